"""What this machine must give before anything starts: memory and file descriptors.

The numbers per node are those that `make bench` measured, rounded up.
See docs/explain/performance.md.
"""

import resource

import psutil

from fleet.errors import SetupError
from fleet.profile.settings import Fidelity

BASE_BYTES = 120 << 20
NODE_BYTES = {Fidelity.KUBELET: 64 << 10, Fidelity.LIGHT: 12 << 10}
APISERVER_NODE_BYTES = {Fidelity.KUBELET: 700 << 10, Fidelity.LIGHT: 150 << 10}
CONTROLPLANE_BYTES = 1 << 30
AGENT_BYTES = 24 << 10
APISERVER_AGENT_BYTES = 400 << 10
DESCRIPTORS_BASE = 200
GOAWAY_SPARE = 1.05
"""A GOAWAY opens second connections for a while."""
LIGHT_CONNECTIONS = 2
"""Connections that all nodes of fidelity light share; each carries 100 streams.

Further ones are dialed while these are full. Few, so that the requests of a turn leave in few
writes and come back in few reads; two, so that not all of them hang on one API server of several.
"""
LIGHT_CONNECTIONS_MAX = 64
"""What a storm may dial on top of them, as far as open files are concerned."""


def descriptors_needed(nodes: int, fidelity: Fidelity, agents: float = 0.0) -> int:
    """Return how many file descriptors this process opens: one connection a node, and some.

    `agents` is how many a node has on average; each has a connection of its own.
    """
    own = nodes * agents
    if fidelity is Fidelity.LIGHT:
        return DESCRIPTORS_BASE + LIGHT_CONNECTIONS_MAX + int(own * GOAWAY_SPARE)
    return DESCRIPTORS_BASE + int((nodes + own) * GOAWAY_SPARE)


def raise_descriptors(
    nodes: int, fidelity: Fidelity, *, is_local: bool, agents: float = 0.0
) -> None:
    """Raise the soft limit of open files to what the run needs.

    A local API server inherits the limit and holds the other ends. Raises SetupError naming the
    number when the hard limit is too low.
    """
    needed = descriptors_needed(nodes, fidelity, agents)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))  # root may
        except (ValueError, OSError):
            raise SetupError(
                f"{nodes} nodes in fidelity {fidelity} need {needed} open files, the limit is "
                f"{hard}: raise it (ulimit -Hn {needed}), take fewer --nodes, --no-agents, or "
                "--fidelity light"
            ) from None
        return
    wanted = needed if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and (soft < needed or (is_local and soft < wanted)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_memory(nodes: int, fidelity: Fidelity, *, is_local: bool, agents: float = 0.0) -> None:
    """Raise SetupError when the nodes, and a local control plane, will not fit."""
    needed = BASE_BYTES + nodes * NODE_BYTES[fidelity] + int(nodes * agents * AGENT_BYTES)
    if is_local:
        needed += CONTROLPLANE_BYTES + nodes * APISERVER_NODE_BYTES[fidelity]
        needed += int(nodes * agents * APISERVER_AGENT_BYTES)
    available = available_bytes()
    if needed > available:
        raise SetupError(
            f"{nodes} nodes in fidelity {fidelity} need about {needed / 1e9:.1f} GB of memory"
            f"{' with the local control plane' if is_local else ''}, {available / 1e9:.1f} GB are "
            "available: take fewer --nodes, --no-agents, or --fidelity light"
        )


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
