"""The flags of every component, the ports among them, and how a user's own replace them.

flags.toml has fleet's. Ports are chosen where no outgoing connection can take them: one from the
kernel's ephemeral range is a trap. While the API server restarts, a client that keeps connecting
may be given that very port as its own, connect to itself and block the restart.
"""

import contextlib
import errno
import random
import socket
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fleet.controlplane.directory import ETCD_SOCKET, PEER_SOCKET, Certificates, Layout
from fleet.controlplane.options import (
    APISERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ControlPlaneOptions,
)
from fleet.errors import SetupError, UsageError

LOOPBACK = "127.0.0.1"
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_MIN = 10240
PORT_SPAN = 16384
PORT_TRIES_MAX = 1000  # at random: where none of so many is free, hardly any is
Ports = Mapping[str, int]
"""The port of each component; etcd's is of its metrics and health, its data have a socket."""

SERVICE_CIDR = "10.96.0.0/12"
SERVICE_IP = "10.96.0.1"  # the ClusterIP of the Service default/kubernetes: the first of the range

POD_CIDR = "10.128.0.0/9"  # a /24 for each node
AUDIT_LOG_MEGABYTES = 1 << 20  # the log must not be rotated away under its reader

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*"]
- level: Metadata
"""

PORT_FLAG = "secure-port"


def component_flags(
    options: ControlPlaneOptions,
    layout: Layout,
    ports: Ports,
    certificates: Certificates,
    *,
    with_controllers: bool,
) -> dict[str, list[str]]:
    """Build the flags of every component, the user's own included."""
    etcd_socket, peer_socket = layout.socket(ETCD_SOCKET), layout.socket(PEER_SOCKET)
    found = tomllib.loads(Path(__file__).with_name("flags.toml").read_text(encoding="utf-8"))
    own = {
        component: {
            name: template.format(
                layout=layout,
                certificates=certificates,
                etcd_socket=etcd_socket,
                peer_socket=peer_socket,
                port=ports[component],
                kubeconfig=layout.kubeconfig(component),
                service_cidr=SERVICE_CIDR,
                pod_cidr=POD_CIDR,
            )
            for name, template in flags.items()
        }
        for component, flags in found.items()
    }
    if not options.fsync:
        own[ETCD]["unsafe-no-fsync"] = "true"
    if options.audit_log is not None:
        own[APISERVER] |= {
            "audit-log-path": str(options.audit_log.absolute()),
            "audit-policy-file": str(layout.audit_policy),
            "audit-log-maxsize": str(AUDIT_LOG_MEGABYTES),
        }
    if not with_controllers:
        # Nothing would create the service accounts that this plugin asks every pod for.
        own[APISERVER]["disable-admission-plugins"] = "ServiceAccount"
    return {
        component: merge_flags(flags, options.extra_flags.get(component, ()))
        for component, flags in own.items()
    }


def merge_flags(own: Mapping[str, str], extra: Sequence[str]) -> list[str]:
    """Put the user's flags in place of fleet's; one that is given twice stays twice."""
    parsed = [parse_flag(text) for text in extra]
    replaced = {name for name, _value in parsed}
    flags = [f"--{name}={value}" for name, value in own.items() if name not in replaced]
    return flags + [f"--{name}={value}" for name, value in parsed]


def parse_flag(text: str) -> tuple[str, str]:
    """Split `name=value`, `--name=value` or `name` (which means true)."""
    name, separator, value = text.removeprefix("--").partition("=")
    return name, value if separator else "true"


def fixed_ports(extra: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the ports that the user's flags fix, by component. Raises UsageError."""
    ports = {}
    for component in (APISERVER, SCHEDULER, CONTROLLER_MANAGER):
        for name, value in map(parse_flag, extra.get(component, ())):
            if name == PORT_FLAG:
                if not value.isdecimal() or not 0 < int(value) < 1 << 16:
                    raise UsageError(f"{component}: --{name}={value} is no port")
                ports[component] = int(value)
    return ports


def choose_ports(wanted: Ports, fixed: Ports) -> dict[str, int]:
    """Choose a free port for each component: the `fixed` one, or the `wanted` one if it is free.

    Raises SetupError if nothing is free. Somebody else may still be faster than the component.
    """
    chosen = dict(fixed)
    for component in COMPONENTS:
        if component not in chosen:
            port = wanted.get(component, 0)
            if not port or port in chosen.values() or not _is_free(port):
                port = _free_port(set(chosen.values()))
            chosen[component] = port
    return chosen


def read_ports(path: Path) -> dict[str, int]:
    """Read the ports of the last start, so that kubeconfigs stay true; none if there was none."""
    with contextlib.suppress(OSError, ValueError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    return {}


def _free_port(taken: set[int]) -> int:
    try:
        ephemeral = int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        ephemeral = 32768
    lowest, highest = max(PORT_MIN, ephemeral - PORT_SPAN), ephemeral - 1
    if ephemeral - PORT_MIN < PORT_SPAN // 4:  # there is no room below
        lowest, highest = PORT_MIN, 65535
    for _ in range(PORT_TRIES_MAX):
        port = random.randint(lowest, highest)  # noqa: S311  # no secret
        if port not in taken and _is_free(port):
            return port
    raise SetupError(f"no free port on {LOOPBACK} between {lowest} and {highest}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go listens
        try:
            listener.bind((LOOPBACK, port))
            listener.listen()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
