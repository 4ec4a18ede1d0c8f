"""/metrics/resource: what metrics-server reads of a node.

Source: pkg/kubelet/metrics/collectors/resource_metrics.go; `scrape_error`, deprecated since 1.29,
is hidden in 1.36.
"""

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.kubelet.stats.exposition import Family, escaped, go_float
from fleet.kubelet.stats.node_usage import NodeUse

_CONTAINER = ("container", "pod", "namespace")
_POD = ("pod", "namespace")
_STABLE, _ALPHA = "[STABLE] ", "[ALPHA] "
NODE_CPU = Family(
    "node_cpu_usage_seconds_total",
    _STABLE + "Cumulative cpu time consumed by the node in core-seconds",
    "counter",
)
NODE_MEMORY = Family(
    "node_memory_working_set_bytes", _STABLE + "Current working set of the node in bytes"
)
NODE_SWAP = Family(
    "node_swap_usage_bytes",
    _ALPHA + "Current swap usage of the node in bytes. Reported only on non-windows systems",
)
CONTAINER_CPU = Family(
    "container_cpu_usage_seconds_total",
    _STABLE + "Cumulative cpu time consumed by the container in core-seconds",
    "counter",
    _CONTAINER,
)
CONTAINER_MEMORY = Family(
    "container_memory_working_set_bytes",
    _STABLE + "Current working set of the container in bytes",
    labels=_CONTAINER,
)
CONTAINER_SWAP = Family(
    "container_swap_usage_bytes",
    _ALPHA
    + "Current amount of the container swap usage in bytes. Reported only on non-windows systems",
    labels=_CONTAINER,
)
CONTAINER_SWAP_LIMIT = Family(
    "container_swap_limit_bytes",
    _ALPHA
    + "Current amount of the container swap limit in bytes. Reported only on non-windows systems",
    labels=_CONTAINER,
)
CONTAINER_START = Family(
    "container_start_time_seconds",
    _STABLE + "Start time of the container since unix epoch in seconds",
    labels=_CONTAINER,
)
POD_CPU = Family(
    "pod_cpu_usage_seconds_total",
    _STABLE + "Cumulative cpu time consumed by the pod in core-seconds",
    "counter",
    _POD,
)
POD_MEMORY = Family(
    "pod_memory_working_set_bytes",
    _STABLE + "Current working set of the pod in bytes",
    labels=_POD,
)
POD_SWAP = Family(
    "pod_swap_usage_bytes",
    _ALPHA + "Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
    labels=_POD,
)
SCRAPE_ERROR = Family(
    "resource_scrape_error",
    _STABLE + "1 if there was an error while getting container metrics, 0 otherwise",
)
_NODE_LINES = (
    NODE_CPU.head() + NODE_CPU.name + " %s %d\n"
    + NODE_MEMORY.head() + NODE_MEMORY.name + " %s %d\n"
    + NODE_SWAP.head() + NODE_SWAP.name + " %s %d\n"
)  # fmt: skip
_LAST_LINES = SCRAPE_ERROR.head() + SCRAPE_ERROR.name + " 0\n"


def resource_metrics(use: NodeUse) -> bytes:
    """Return the text of a node; families are sorted by name, series by labels."""
    stamp = use.wall_ns // NS_PER_MS
    cgroup = use.cgroup
    node = _NODE_LINES % (
        go_float(cgroup.cpu_ns / NS_PER_S),
        stamp,
        go_float(cgroup.memory),
        stamp,
        go_float(cgroup.swap),
        stamp,
    )
    if not use.pods:
        return (node + _LAST_LINES).encode()
    text = "".join((_containers(use, f" {stamp}\n"), node, _pods(use, f" {stamp}\n"), _LAST_LINES))
    return text.encode()


def _containers(use: NodeUse, end: str) -> str:
    rows = []
    for each in use.pods:
        pod = each.pod
        for container in each.containers:
            labels = (
                f'{{container="{escaped(container.name)}",namespace="{escaped(pod.namespace)}",'
                f'pod="{escaped(pod.name)}"}} '
            )
            rows.append((container.name, pod.namespace, pod.name, labels, container))
    rows.sort(key=lambda row: row[:3])
    families: list[list[str]] = [[CONTAINER_CPU.head()], [CONTAINER_MEMORY.head()]]
    families += [[CONTAINER_START.head()], [CONTAINER_SWAP_LIMIT.head()], [CONTAINER_SWAP.head()]]
    cpu, memory, start, limit, swap = families
    for _, _, _, labels, container in rows:
        cgroup = container.cgroup
        cpu.append(f"{CONTAINER_CPU.name}{labels}{go_float(cgroup.cpu_ns / NS_PER_S)}{end}")
        memory.append(f"{CONTAINER_MEMORY.name}{labels}{go_float(cgroup.memory)}{end}")
        start.append(f"{CONTAINER_START.name}{labels}{go_float(container.started_s)}\n")
        limit.append(f"{CONTAINER_SWAP_LIMIT.name}{labels}{go_float(cgroup.swap)}{end}")
        swap.append(f"{CONTAINER_SWAP.name}{labels}{go_float(cgroup.swap)}{end}")
    return "".join("".join(lines) for lines in families)


def _pods(use: NodeUse, end: str) -> str:
    families = [[POD_CPU.head()], [POD_MEMORY.head()], [POD_SWAP.head()]]
    cpu, memory, swap = families
    for each in use.pods:
        pod, cgroup = each.pod, each.cgroup
        labels = f'{{namespace="{escaped(pod.namespace)}",pod="{escaped(pod.name)}"}} '
        cpu.append(f"{POD_CPU.name}{labels}{go_float(cgroup.cpu_ns / NS_PER_S)}{end}")
        memory.append(f"{POD_MEMORY.name}{labels}{go_float(cgroup.memory)}{end}")
        swap.append(f"{POD_SWAP.name}{labels}{go_float(cgroup.swap)}{end}")
    return "".join("".join(lines) for lines in families)
