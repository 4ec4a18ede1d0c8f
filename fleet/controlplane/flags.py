"""The flags of every component, the ports among them, and how a user's own replace them.

Ports are chosen where no outgoing connection can take them. One from the kernel's ephemeral range
is a trap: while the API server restarts, a client that keeps connecting may be given that very port
as its own, connect to itself and block the restart.

What is not set here has upstream's default, on purpose: priority-and-fairness, in-flight limits,
controllers' numbers of workers and node-monitor times are part of what is measured. Only what would
measure fleet's set-up instead of the control plane is raised: the clients' rate limits.
"""

import contextlib
import errno
import random
import socket
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

# A /24 for each node, as is upstream's default: 32,768 of them, and the allocator's limit is 16
# bits between the two masks. It is not said, for --node-cidr-mask-size rules a second family out.
POD_CIDR = "10.128.0.0/9"

ADVERTISED = "192.0.2.1"
"""The endpoint of default/kubernetes may not be on loopback; this address is nowhere (RFC 5737)."""

CLIENT_QPS = 5000
CLIENT_BURST = 10000
"""More than one API server can take; negative would mean no limit, but older releases refuse it."""

QUOTA_BYTES = 8 << 30  # the most that etcd suggests; by default it takes no writes beyond 2 GiB
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
    own = {
        ETCD: _etcd(options, layout, ports),
        APISERVER: _apiserver(options, layout, ports, certificates),
        SCHEDULER: _scheduler(layout, ports, certificates),
        CONTROLLER_MANAGER: _controller_manager(layout, ports, certificates),
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
    """Split `name=value`, `--name=value` or `name` (which means true). Raises UsageError."""
    name, separator, value = text.strip().partition("=")
    name = name.lstrip("-")
    if not name or any(letter.isspace() for letter in name):
        raise UsageError(f"{text!r} is no flag: write it as name=value")
    return name, value if separator else "true"


def check_extra_flags(extra: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError for a component that does not exist or for text that is no flag."""
    for component, flags in extra.items():
        if component not in COMPONENTS:
            raise UsageError(f"no component {component!r}; there are {', '.join(COMPONENTS)}")
        for text in flags:
            parse_flag(text)


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


def _etcd(options: ControlPlaneOptions, layout: Layout, ports: Ports) -> dict[str, str]:
    """Listen on sockets in a directory that only this user enters: TLS would cost measured CPU.

    A user who reaches etcd has every Secret, and the whole cluster. Its port has metrics and health
    only. What is advertised must be a host and a port, but nobody asks there: it is one member, and
    the API server asks only what `etcd-servers` names.
    """
    advertised = f"http://{LOOPBACK}:{ports[ETCD]}"
    flags = {
        "name": "fleet",
        "data-dir": str(layout.etcd),
        "listen-client-urls": f"unix://{layout.socket(ETCD_SOCKET)}",
        "advertise-client-urls": advertised,
        "listen-metrics-urls": f"http://{LOOPBACK}:{ports[ETCD]}",
        "listen-peer-urls": f"unix://{layout.socket(PEER_SOCKET)}",
        "initial-advertise-peer-urls": advertised,
        "initial-cluster": f"fleet={advertised}",
        "quota-backend-bytes": str(QUOTA_BYTES),
    }
    if not options.fsync:
        flags["unsafe-no-fsync"] = "true"
    return flags


def _apiserver(
    options: ControlPlaneOptions, layout: Layout, ports: Ports, certificates: Certificates
) -> dict[str, str]:
    """Source: cmd/kubeadm/app/phases/controlplane/manifests.go, getAPIServerCommand."""
    flags = {
        "etcd-servers": f"unix://{layout.socket(ETCD_SOCKET)}",
        "bind-address": LOOPBACK,
        PORT_FLAG: str(ports[APISERVER]),
        "advertise-address": ADVERTISED,
        "tls-cert-file": str(certificates.apiserver.certificate),
        "tls-private-key-file": str(certificates.apiserver.key),
        "client-ca-file": str(certificates.ca.certificate),
        "token-auth-file": str(layout.tokens),
        "enable-bootstrap-token-auth": "true",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "service-cluster-ip-range": SERVICE_CIDR,
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": str(certificates.service_account.certificate),
        "service-account-signing-key-file": str(certificates.service_account.key),
        "kubelet-client-certificate": str(certificates.kubelet_client.certificate),
        "kubelet-client-key": str(certificates.kubelet_client.key),
        "kubelet-preferred-address-types": "InternalIP,Hostname",
        "proxy-client-cert-file": str(certificates.front_proxy_client.certificate),
        "proxy-client-key-file": str(certificates.front_proxy_client.key),
        "requestheader-client-ca-file": str(certificates.front_proxy_ca.certificate),
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
    }
    if options.audit_log is not None:
        flags["audit-log-path"] = str(options.audit_log.absolute())
        flags["audit-policy-file"] = str(layout.audit_policy)
        flags["audit-log-maxsize"] = str(AUDIT_LOG_MEGABYTES)
    return flags


def _scheduler(layout: Layout, ports: Ports, certificates: Certificates) -> dict[str, str]:
    """Use flags and not a configuration file, so that a user can bring an own one."""
    return {
        **_client_flags(layout.kubeconfig(SCHEDULER)),
        PORT_FLAG: str(ports[SCHEDULER]),
        "tls-cert-file": str(certificates.scheduler_serving.certificate),
        "tls-private-key-file": str(certificates.scheduler_serving.key),
    }


def _controller_manager(layout: Layout, ports: Ports, certificates: Certificates) -> dict[str, str]:
    """Source: cmd/kubeadm/app/phases/controlplane/manifests.go, getControllerManagerCommand.

    Differs: plug-ins for volumes are looked for in fleet's directory only; upstream's default place
    would be created on the user's machine.
    """
    return {
        **_client_flags(layout.kubeconfig(CONTROLLER_MANAGER)),
        PORT_FLAG: str(ports[CONTROLLER_MANAGER]),
        "tls-cert-file": str(certificates.controller_manager_serving.certificate),
        "tls-private-key-file": str(certificates.controller_manager_serving.key),
        "controllers": "*,bootstrap-signer-controller,token-cleaner-controller",
        "use-service-account-credentials": "true",
        "service-account-private-key-file": str(certificates.service_account.key),
        "root-ca-file": str(certificates.ca.certificate),
        "cluster-signing-cert-file": str(certificates.ca.certificate),
        "cluster-signing-key-file": str(certificates.ca.key),
        "allocate-node-cidrs": "true",
        "cluster-cidr": POD_CIDR,
        "service-cluster-ip-range": SERVICE_CIDR,
        "flex-volume-plugin-dir": str(layout.volume_plugins),
    }


def _client_flags(kubeconfig: Path) -> dict[str, str]:
    return {
        "kubeconfig": str(kubeconfig),
        "authentication-kubeconfig": str(kubeconfig),
        "authorization-kubeconfig": str(kubeconfig),
        "bind-address": LOOPBACK,
        "leader-elect": "false",
        "kube-api-qps": str(CLIENT_QPS),
        "kube-api-burst": str(CLIENT_BURST),
    }
