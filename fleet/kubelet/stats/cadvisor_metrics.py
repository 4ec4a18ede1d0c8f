"""/metrics/cadvisor: cgroups and the machine under cAdvisor's names.

Source: github.com/google/cadvisor/metrics/prometheus.go, prometheus_machine.go;
pkg/kubelet/server/server.go, containerPrometheusLabelsFunc.
Differs: nothing waits for a disk, is throttled or dropped: those counters stay 0; a pod's cgroup
has no series of its sandbox but the network's.
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
PERIODS_PER_S = 1_000_000 // CPU_PERIOD
SHARES_MIN = 2
SHARES_PER_CPU = 1024
USER_SHARE = 3
"""Of the cpu time one part in so many is the kernel's."""
THREADS_PER_PROCESS = 4
FILES_PER_PROCESS = 8
KERNEL_SHARE = 32
OPEN_FILES_MAX = 1 << 20
PACKET_BYTES = 500
DISK = "/dev/vda1"
INTERFACE = "eth0"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
_QOS = {"Guaranteed": "", "Burstable": "-burstable", "BestEffort": "-besteffort"}
Value = Callable[[Cgroup], float]


def _counter(name: str, text: str) -> Family:
    return Family(f"container_{name}_total", text, "counter")


def _nothing(_each: Cgroup) -> float:
    return 0


def _active_file(each: Cgroup) -> int:
    """Return the page cache that is in use: what a working set has beside anonymous memory."""
    return each.memory - each.memory_rss


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
    *(
        (Family(f"container_{name}", text), value, "")
        for name, text, value in (
            (
                "cpu_load_average_10s",
                "Value of container cpu load average over the last 10 seconds.",
                _nothing,
            ),
            (
                "cpu_load_d_average_10s",
                "Value of container cpu load.d average over the last 10 seconds.",
                _nothing,
            ),
            (
                "file_descriptors",
                "Number of open file descriptors for the container.",
                lambda each: each.pids * FILES_PER_PROCESS,
            ),
            ("health_state", "The result of the container's health check", lambda _each: -1),
            (
                "memory_kernel_usage",
                "Size of kernel memory allocated in bytes.",
                lambda each: each.memory // KERNEL_SHARE,
            ),
            (
                "memory_mapped_file",
                "Size of memory mapped files in bytes.",
                lambda each: _active_file(each) // 2,
            ),
            (
                "memory_max_usage_bytes",
                "Maximum memory usage recorded in bytes",
                lambda each: each.memory_usage,
            ),
            (
                "memory_total_active_file_bytes",
                "Current total active file in bytes.",
                _active_file,
            ),
            (
                "memory_total_inactive_file_bytes",
                "Current total inactive file in bytes.",
                lambda each: each.memory_usage - each.memory,
            ),
            ("sockets", "Number of open sockets for the container.", lambda each: each.pids),
            (
                "threads_max",
                "Maximum number of threads allowed inside the container, infinity if value is zero",
                _nothing,
            ),
        )
    ),
)
_STATES = ("iowaiting", "running", "sleeping", "stopped", "uninterruptible")
_TASKS = Family("container_tasks_state", "Number of tasks in given state")
_FAULTS = Family(
    "container_memory_failures_total",
    "Cumulative count of memory allocation failures.",
    "counter",
)
_ULIMITS = Family(
    "container_ulimits_soft",
    "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
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
_RESERVATION = Family(
    "container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container."
)
_SWAP_LIMIT = Family(
    "container_spec_memory_swap_limit_bytes", "Memory swap limit for the container."
)
_THROTTLING = tuple(
    (_counter(f"cpu_cfs_{name}", text), is_time)
    for name, text, is_time in (
        ("burst_periods", "Number of periods when burst occurs.", False),
        ("burst_seconds", "Total time duration the container has been bursted.", False),
        ("periods", "Number of elapsed enforcement period intervals.", True),
        ("throttled_periods", "Number of throttled period intervals.", False),
        ("throttled_seconds", "Total time duration the container has been throttled.", False),
    )
)
"""Of a container with a limit, and whether it counts its time."""
_DISK_IO = (
    Family("container_fs_io_current", "Number of I/Os currently in progress"),
    *(
        _counter(f"fs_{name}", f"Cumulative {text}")
        for name, text in (
            ("io_time_seconds", "count of seconds spent doing I/Os"),
            ("io_time_weighted_seconds", "weighted I/O time in seconds"),
            ("read_seconds", "count of seconds spent reading"),
            ("reads_merged", "count of reads merged"),
            ("reads", "count of reads completed"),
            ("sector_reads", "count of sector reads completed"),
            ("sector_writes", "count of sector writes completed"),
            ("write_seconds", "count of seconds spent writing"),
            ("writes_merged", "count of writes merged"),
            ("writes", "count of writes completed"),
        )
    ),
)
_NETWORK = tuple(
    (_counter(f"network_{way}_{what}", f"Cumulative count of {text}"), way, what)
    for way, what, text in (
        ("receive", "bytes", "bytes received"),
        ("receive", "errors", "errors encountered while receiving"),
        ("receive", "packets_dropped", "packets dropped while receiving"),
        ("receive", "packets", "packets received"),
        ("transmit", "bytes", "bytes transmitted"),
        ("transmit", "errors", "errors encountered while transmitting"),
        ("transmit", "packets_dropped", "packets dropped while transmitting"),
        ("transmit", "packets", "packets transmitted"),
    )
)


_TIMELESS = ("container_spec_", "container_start_time_seconds")
"""What is said without a time."""


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
        end = "\n" if family.name.startswith(_TIMELESS) else self._end
        lines.append(f"{family.name}{{{labels}}} {go_float(value)}{end}")

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


def _flat(labels: Labels, *, before_id: str = "", after_id: str = "", at_end: str = "") -> str:
    """Return labels in the order of their names, with more of them around `id` or at the end."""
    container, cgroup, image, name, namespace, pod = labels
    return (
        f'container="{container}",{before_id}id="{cgroup}",image="{image}",{after_id}'
        f'name="{name}",namespace="{namespace}",pod="{pod}"{at_end}'
    )


def _add_cgroup(text: _Text, labels: Labels, cgroup: Cgroup) -> None:
    plain = _flat(labels)
    for family, value, more in _CGROUP:
        shown = _flat(labels, before_id=more) if more else plain
        text.add(family, shown, value(cgroup))
    text.add(_OOM, plain, 0)
    for kind, count in (("pgfault", cgroup.page_faults), ("pgmajfault", cgroup.major_faults)):
        for scope in ("container", "hierarchy"):
            shown = _flat(labels, before_id=f'failure_type="{kind}",', at_end=f',scope="{scope}"')
            text.add(_FAULTS, shown, count)
    for state in _STATES:
        text.add(_TASKS, _flat(labels, at_end=f',state="{state}"'), 0)
    text.add(_ULIMITS, _flat(labels, at_end=',ulimit="max_open_files"'), OPEN_FILES_MAX)


def _add_disk(text: _Text, labels: Labels, use: NodeUse, used: int) -> None:
    shown = _flat(labels, before_id=f'device="{DISK}",')
    text.add(_FS_USAGE, shown, used)
    text.add(_FS_LIMIT, shown, use.capacity.disk)
    text.add(_FS_INODES, shown, use.capacity.inodes)
    text.add(_FS_INODES_FREE, shown, max(use.capacity.inodes - use.inodes, 0))
    for family in _DISK_IO:
        text.add(family, shown, 0)


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
        periods = max(wall_s - each.started_s, 0) * PERIODS_PER_S
        for family, is_time in _THROTTLING:
            text.add(family, plain, periods if is_time else 0)
    text.add(_CPU_SHARES, plain, max(each.cpu_request_milli * SHARES_PER_CPU // 1000, SHARES_MIN))
    text.add(_MEMORY_LIMIT, plain, each.memory_limit)
    text.add(_RESERVATION, plain, 0)
    text.add(_SWAP_LIMIT, plain, 0)


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
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", model.swap_bytes),
        ("machine_cpu_books", "Number of CPU books.", 0),
        ("machine_cpu_drawers", "Number of CPU drawers.", 0),
        ("machine_nvm_avg_power_budget_watts", "NVM power budget.", 0),
    )
    boot = f'boot_id="",machine_id="",system_uuid="{escaped(use.name)}"'
    found = [
        (name, f"{Family(name, text).head()}{name}{{{boot}}} {go_float(value)}\n")
        for name, text, value in machine
    ]
    capacity = Family(
        "machine_nvm_capacity",
        "NVM capacity value labeled by NVM mode (memory mode or app direct mode).",
    )
    lines = (
        f'{capacity.name}{{boot_id="",machine_id="",mode="{mode}",'
        f'system_uuid="{escaped(use.name)}"}} 0\n'
        for mode in ("app_direct_mode", "memory_mode")
    )
    found.append((capacity.name, capacity.head() + "".join(lines)))
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
    for what, end in (("container", ""), ("machine", ".")):
        error = Family(
            f"{what}_scrape_error",
            f"1 if there was an error while getting {what} metrics, 0 otherwise{end}",
        )
        found.append((error.name, f"{error.head()}{error.name} 0\n"))
    return found
