"""/metrics/cadvisor: cgroups and the machine under cAdvisor's names.

Source: github.com/google/cadvisor/metrics/prometheus.go, prometheus_machine.go;
pkg/kubelet/server/server.go, containerPrometheusLabelsFunc.
Differs: of the many series of a cgroup those that dashboards and alerts read; a pod's cgroup has no
series of its sandbox but the network's.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.kubelet.stats.exposition import Family, escaped, go_float
from fleet.kubelet.stats.node_usage import Cgroup, ContainerUse, NodeUse, PodUse
from fleet.profile.node_model import NodeModel
from fleet.quantity import parse_quantity
from fleet.runtime.containers import ID_PREFIX, image_name

CPU_PERIOD = 100_000
SHARES_MIN = 2
SHARES_PER_CPU = 1024
USER_SHARE = 3
"""Of the cpu time one part in so many is the kernel's."""
THREADS_PER_PROCESS = 4
PACKET_BYTES = 500
DISK = "/dev/vda1"
INTERFACE = "eth0"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
_QOS = {"Guaranteed": "", "Burstable": "-burstable", "BestEffort": "-besteffort"}
Value = Callable[[Cgroup], float]


def _counter(name: str, text: str) -> Family:
    return Family(f"container_{name}_total", text, "counter")


_CGROUP: tuple[tuple[Family, Value, str], ...] = (
    (
        Family(
            "container_cpu_system_seconds_total",
            "Cumulative system cpu time consumed in seconds.",
            "counter",
        ),
        lambda each: each.cpu_ns // USER_SHARE / NS_PER_S,
        "",
    ),
    (
        Family(
            "container_cpu_usage_seconds_total",
            "Cumulative cpu time consumed in seconds.",
            "counter",
        ),
        lambda each: each.cpu_ns / NS_PER_S,
        'cpu="total",',
    ),
    (
        Family(
            "container_cpu_user_seconds_total",
            "Cumulative user cpu time consumed in seconds.",
            "counter",
        ),
        lambda each: (each.cpu_ns - each.cpu_ns // USER_SHARE) / NS_PER_S,
        "",
    ),
    (
        Family("container_memory_cache", "Number of bytes of page cache memory."),
        lambda each: each.memory_usage - each.memory_rss,
        "",
    ),
    (
        Family("container_memory_failcnt", "Number of memory usage hits limits", "counter"),
        lambda _each: 0,
        "",
    ),
    (
        Family("container_memory_rss", "Size of RSS in bytes."),
        lambda each: each.memory_rss,
        "",
    ),
    (
        Family("container_memory_swap", "Container swap usage in bytes."),
        lambda each: each.swap,
        "",
    ),
    (
        Family(
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was "
            "accessed",
        ),
        lambda each: each.memory_usage,
        "",
    ),
    (
        Family("container_memory_working_set_bytes", "Current working set in bytes."),
        lambda each: each.memory,
        "",
    ),
    (
        Family("container_processes", "Number of processes running inside the container."),
        lambda each: each.pids,
        "",
    ),
    (
        Family("container_threads", "Number of threads running inside the container"),
        lambda each: each.pids * THREADS_PER_PROCESS,
        "",
    ),
)
_OOM = Family(
    "container_oom_events_total",
    "Count of out of memory events observed for the container",
    "counter",
)
_FS_LIMIT = Family(
    "container_fs_limit_bytes",
    "Number of bytes that can be consumed by the container on this filesystem.",
)
_FS_USAGE = Family(
    "container_fs_usage_bytes",
    "Number of bytes that are consumed by the container on this filesystem.",
)
_FS_INODES = Family("container_fs_inodes_total", "Number of Inodes")
_FS_INODES_FREE = Family("container_fs_inodes_free", "Number of available Inodes")
_LAST_SEEN = Family("container_last_seen", "Last time a container was seen by the exporter")
_START = Family(
    "container_start_time_seconds", "Start time of the container since unix epoch in seconds."
)
_CPU_PERIOD = Family("container_spec_cpu_period", "CPU period of the container.")
_CPU_QUOTA = Family("container_spec_cpu_quota", "CPU quota of the container.")
_CPU_SHARES = Family("container_spec_cpu_shares", "CPU share of the container.")
_MEMORY_LIMIT = Family("container_spec_memory_limit_bytes", "Memory limit for the container.")
_NETWORK = tuple(
    (_counter(f"network_{way}_{what}", f"Cumulative count of {text}"), way, what)
    for way, what, text in (
        ("receive", "bytes", "bytes received"),
        ("receive", "errors", "errors encountered while receiving"),
        ("receive", "packets", "packets received"),
        ("transmit", "bytes", "bytes transmitted"),
        ("transmit", "errors", "errors encountered while transmitting"),
        ("transmit", "packets", "packets transmitted"),
    )
)


class _Text:
    """The series of all cgroups, by family."""

    __slots__ = ("_end", "_families")

    def __init__(self, stamp_ms: int) -> None:
        self._families: dict[str, list[str]] = {}
        self._end = f" {stamp_ms}\n"

    def add(self, family: Family, labels: str, value: float) -> None:
        """Add one series."""
        lines = self._families.get(family.name)
        if lines is None:
            lines = self._families[family.name] = [family.head()]
        lines.append(f"{family.name}{{{labels}}} {go_float(value)}{self._end}")

    def families(self) -> list[tuple[str, str]]:
        """Return the text of each family by its name."""
        return [(name, "".join(lines)) for name, lines in self._families.items()]


def cadvisor_metrics(use: NodeUse) -> bytes:
    """Return the text of a node: the root cgroup, that of all pods, pods and containers."""
    text = _Text(use.wall_ns // NS_PER_MS)
    wall_s = use.wall_ns // NS_PER_S
    for name, cgroup in (("/", use.cgroup), ("/kubepods.slice", use.pods_cgroup)):
        labels = _labels(name)
        _add_cgroup(text, labels, cgroup)
        text.add(_START, _flat(labels), use.started_s)
        text.add(_LAST_SEEN, _flat(labels), wall_s)
    root = _labels("/")
    _add_disk(text, root, use, use.disk)
    _add_network(text, root, use.received, use.sent)
    for pod in use.pods:
        _add_pod(text, pod, use, wall_s)
    families = [*text.families(), *_machine(use.model, use)]
    families.sort()
    return "".join(lines for _, lines in families).encode()


Labels = tuple[str, str, str, str, str, str]
"""container, id, image, name, namespace, pod."""


def _labels(
    cgroup: str,
    container: str = "",
    image: str = "",
    name: str = "",
    namespace: str = "",
    pod: str = "",
) -> Labels:
    return container, cgroup, image, name, namespace, pod


def _flat(labels: Labels, *, before_id: str = "", after_id: str = "") -> str:
    """Return labels in the order of their names, with more of them before or behind `id`."""
    container, cgroup, image, name, namespace, pod = labels
    return (
        f'container="{container}",{before_id}id="{cgroup}",image="{image}",{after_id}'
        f'name="{name}",namespace="{namespace}",pod="{pod}"'
    )


def _add_cgroup(text: _Text, labels: Labels, cgroup: Cgroup) -> None:
    plain = _flat(labels)
    for family, value, more in _CGROUP:
        shown = _flat(labels, before_id=more) if more else plain
        text.add(family, shown, value(cgroup))
    text.add(_OOM, plain, 0)


def _add_disk(text: _Text, labels: Labels, use: NodeUse, used: int) -> None:
    shown = _flat(labels, before_id=f'device="{DISK}",')
    text.add(_FS_USAGE, shown, used)
    text.add(_FS_LIMIT, shown, use.capacity.disk)
    text.add(_FS_INODES, shown, use.capacity.inodes)
    text.add(_FS_INODES_FREE, shown, max(use.capacity.inodes - use.inodes, 0))


def _add_network(text: _Text, labels: Labels, received: int, sent: int) -> None:
    shown = _flat(labels, after_id=f'interface="{INTERFACE}",')
    for family, way, what in _NETWORK:
        count = received if way == "receive" else sent
        divisor = {"bytes": 1, "packets": PACKET_BYTES}.get(what, 0)
        text.add(family, shown, count // divisor if divisor else 0)


def _add_pod(text: _Text, each: PodUse, use: NodeUse, wall_s: int) -> None:
    pod = each.pod
    qos = _QOS.get(pod.spec.qos_class, "")
    slice_ = f"kubepods{qos}-pod{pod.uid.replace('-', '_')}.slice"
    parent = f"/kubepods.slice/kubepods{qos}.slice/{slice_}" if qos else f"/kubepods.slice/{slice_}"
    namespace, name = escaped(pod.namespace), escaped(pod.name)
    labels = _labels(parent, namespace=namespace, pod=name)
    _add_cgroup(text, labels, each.cgroup)
    text.add(_START, _flat(labels), each.created_s)
    text.add(_LAST_SEEN, _flat(labels), wall_s)
    if not pod.spec.host_network:
        pause = hashlib.blake2b(pod.uid.encode(), digest_size=32).hexdigest()
        scope = f"{parent}/cri-containerd-{pause}.scope"
        sandbox = _labels(scope, "", PAUSE_IMAGE, pause, namespace, name)
        _add_network(text, sandbox, each.received, each.sent)
    for container in each.containers:
        _add_container(text, container, parent, (namespace, name), use, wall_s)


def _add_container(
    text: _Text,
    each: ContainerUse,
    parent: str,
    pod: tuple[str, str],
    use: NodeUse,
    wall_s: int,
) -> None:
    container_id = each.id.removeprefix(ID_PREFIX)
    scope = f"{parent}/cri-containerd-{container_id}.scope"
    labels = _labels(scope, each.name, escaped(image_name(each.image)), container_id, *pod)
    _add_cgroup(text, labels, each.cgroup)
    _add_disk(text, labels, use, each.disk)
    plain = _flat(labels)
    text.add(_START, plain, each.started_s)
    text.add(_LAST_SEEN, plain, wall_s)
    text.add(_CPU_PERIOD, plain, CPU_PERIOD)
    if each.cpu_limit_milli:
        text.add(_CPU_QUOTA, plain, each.cpu_limit_milli * CPU_PERIOD // 1000)
    text.add(_CPU_SHARES, plain, max(each.cpu_request_milli * SHARES_PER_CPU // 1000, SHARES_MIN))
    text.add(_MEMORY_LIMIT, plain, each.memory_limit)


@lru_cache(maxsize=64)
def _cores(model: NodeModel) -> int:
    return parse_quantity(model.capacity["cpu"]).value


def _machine(model: NodeModel, use: NodeUse) -> list[tuple[str, str]]:
    """Return what is told of the machine."""
    info = model.node_info
    machine = (
        ("machine_cpu_cores", "Number of logical CPU cores.", _cores(model)),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", max(_cores(model) // 2, 1)),
        ("machine_cpu_sockets", "Number of CPU sockets.", 1),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", use.capacity.memory),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", 0),
    )
    end = f" {use.wall_ns // NS_PER_MS}\n"
    boot = f'boot_id="",machine_id="",system_uuid="{escaped(use.name)}"'
    found = [
        (name, f"{Family(name, text).head()}{name}{{{boot}}} {go_float(value)}{end}")
        for name, text, value in machine
    ]
    version = Family(
        "cadvisor_version_info",
        "A metric with a constant '1' value labeled by kernel version, OS version, docker version, "
        "cadvisor version & cadvisor revision.",
    )
    kernel, system = info.get("kernelVersion", ""), info.get("osImage", "")
    labels = (
        f'cadvisorRevision="",cadvisorVersion="",dockerVersion="",'
        f'kernelVersion="{escaped(kernel)}",osVersion="{escaped(system)}"'
    )
    found.append((version.name, f"{version.head()}{version.name}{{{labels}}} 1\n"))
    error = Family(
        "container_scrape_error",
        "1 if there was an error while getting container metrics, 0 otherwise",
    )
    found.append((error.name, f"{error.head()}{error.name} 0\n"))
    return found
