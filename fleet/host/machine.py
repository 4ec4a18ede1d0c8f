"""What this machine must give before anything starts: memory, file descriptors and local ports.

The numbers per node are those that `make bench` measured, rounded up.
See docs/explain/performance.md.
"""

import resource
from pathlib import Path
from typing import NamedTuple

import psutil

from fleet.errors import SetupError
from fleet.host.transports import connections_of
from fleet.profile.settings import Fidelity

BASE_BYTES = 120 << 20
NODE_BYTES = {Fidelity.KUBELET: 64 << 10, Fidelity.LIGHT: 12 << 10}
WATCHES_BYTES = 8 << 10  # of a node in light that has its own watches
APISERVER_NODE_BYTES = {Fidelity.KUBELET: 700 << 10, Fidelity.LIGHT: 150 << 10}
APISERVER_WATCHES_BYTES = 400 << 10
CONTROLPLANE_BYTES = 1 << 30
AGENT_BYTES = 24 << 10
APISERVER_AGENT_BYTES = 400 << 10
DESCRIPTORS_BASE = 200
GOAWAY_SPARE = 1.05  # a GOAWAY opens second connections for a while
LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Load(NamedTuple):
    """The nodes that a machine is to hold."""

    nodes: int
    fidelity: Fidelity
    agents: float = 0.0  # how many a node has on average; each has a connection of its own
    own_watches: bool = False

    def __str__(self) -> str:
        return f"{self.nodes} nodes in fidelity {self.fidelity}"

    @property
    def connections(self) -> int:
        """How many connections to the API server there may be at the same time.

        One for each node, or in light as many as their streams need.
        """
        count = self.nodes * self.agents
        if self.fidelity is not Fidelity.LIGHT:
            return int((self.nodes + count) * GOAWAY_SPARE)
        count += connections_of(self.nodes, own_watches=self.own_watches)
        return int(count * GOAWAY_SPARE)

    @property
    def fewer(self) -> str:
        """What to do for the machine to suffice."""
        if self.fidelity is not Fidelity.LIGHT:
            return "take fewer --nodes, --no-agents, or --fidelity light"
        return f"take fewer --nodes, or {'--watches shared' if self.own_watches else '--no-agents'}"


def raise_descriptors(load: Load, listening: int = 0) -> int:
    """Return how many open files are needed, and raise their soft limit to the hard one.

    Pods and clients bring more than nodes. A local API server inherits the limit and holds the
    other ends. Raises SetupError naming the number when the hard limit is too low. Source: Go's os
    package, which does so at its start.
    """
    needed = DESCRIPTORS_BASE + load.connections + listening  # sockets of kubelets
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))  # root may
        except (ValueError, OSError):
            raise SetupError(
                f"{load} need {needed} open files, the limit is {hard}: raise it "
                f"(ulimit -Hn {needed}), {load.fewer}"
            ) from None
        return needed
    wanted = max(soft, needed) if hard == resource.RLIM_INFINITY else hard
    if soft not in (wanted, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return needed


def check_ports(load: Load) -> None:
    """Raise SetupError when this machine has fewer local ports than the run has connections.

    All lead to one address and port, so that each needs a local port of its own.
    """
    available = local_ports()
    if load.connections > available:
        raise SetupError(
            f"{load} need {load.connections} connections to the API server, "
            f"this machine has {available} local ports: widen the range (sysctl -w "
            f'net.ipv4.ip_local_port_range="1024 65535"), {load.fewer}'
        )


def local_ports() -> int:
    """Return how many ports connections may begin at; those that are taken are among them."""
    try:
        first, last = LOCAL_PORTS.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 65_535  # not Linux's own: none is known to be lacking
    return int(last) - int(first) + 1


def check_memory(load: Load, *, is_local: bool) -> int:
    """Return the bytes that nodes, and a local control plane, need. Raises SetupError if over."""
    nodes, fidelity, agents = load.nodes, load.fidelity, load.nodes * load.agents
    watching = nodes if load.own_watches and fidelity is Fidelity.LIGHT else 0
    needed = BASE_BYTES + nodes * NODE_BYTES[fidelity] + int(agents * AGENT_BYTES)
    needed += watching * WATCHES_BYTES
    if is_local:
        needed += CONTROLPLANE_BYTES + nodes * APISERVER_NODE_BYTES[fidelity]
        needed += int(agents * APISERVER_AGENT_BYTES) + watching * APISERVER_WATCHES_BYTES
    available = available_bytes()
    if needed > available:
        raise SetupError(
            f"{load} need about {needed / 1e9:.1f} GB of memory"
            f"{' with the local control plane' if is_local else ''}, {available / 1e9:.1f} GB are "
            f"available: {load.fewer}"
        )
    return needed


def available_bytes() -> int:
    """Return the memory that can still be had, within the container's limit if there is one."""
    available = int(psutil.virtual_memory().available)
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:  # noqa: PTH123
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:  # noqa: PTH123
            used = int(file.read())
    except (OSError, ValueError):
        return available
    if limit.isdigit():
        available = min(available, int(limit) - used)
    return available
