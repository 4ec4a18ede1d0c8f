"""The rows of a node's metrics pages: what families.toml fills its families with.

What happened to pods was counted; the rest is what is there now.
Source: pkg/kubelet/metrics/metrics.go; pkg/kubelet/kubelet_pods.go, HandlePodCleanups;
component-base/metrics/prometheus/slis; github.com/google/cadvisor/metrics/prometheus.go.
Differs: how long a kubelet's own steps take is left out, since no process is behind a node.
Nothing waits for a disk, is throttled or dropped: those counters stay 0.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.static_pods import StaticPod
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node_facts import CONTAINER_TYPES, NodeCounts
from fleet.kubelet.pod_worker import WorkerState
from fleet.quantity import parse_quantity
from fleet.runtime.containers import ID_PREFIX, RunState, full_name
from fleet.server.exposition import Row, Rows, page_text
from fleet.server.node_usage import Cgroup, ContainerUse, NodeUse, PodUse, node_usage
from fleet.server.summary import KUBELET_SHARE

NO_COUNTS = NodeCounts()
CPU_PERIOD = 100_000
PERIODS_PER_S = 1_000_000 // CPU_PERIOD
SHARES_MIN = 2
SHARES_PER_CPU = 1024
USER_SHARE = 3  # of the CPU time one part in so many is the kernel's
THREADS_PER_PROCESS = 4
FILES_PER_PROCESS = 8
KERNEL_SHARE = 32
PACKET_BYTES = 500
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
_QOS = {"Guaranteed": "", "Burstable": "-burstable", "BestEffort": "-besteffort"}


def kubelet_metrics(kubelet: VirtualKubelet, now_ns: int) -> bytes:
    """Return /metrics."""
    counts = kubelet.facts.counted or NO_COUNTS
    use = node_usage(kubelet, now_ns)
    info, version = use.model.node_info, use.model.kubelet_version
    major, minor = (*version.removeprefix("v").split("."), "", "")[:2]
    platform = f"{info.get('operatingSystem', '')}/{info.get('architecture', '')}"
    rows: dict[str, Sequence[Row]] = {
        "name": [{"node": use.name}],
        "version": [{"git_version": version, "major": major, "minor": minor, "platform": platform}],
        "unpinned": [{}] if use.model.kubelet.cpu_manager_policy == "none" else [],
        "rejection": [
            {"reason": reason, "count": count}
            for reason, count in sorted(counts.rejections.items())
        ],
        "container_type": [
            {"container_type": kind, "count": count}
            for kind, count in sorted(zip(CONTAINER_TYPES, counts.containers, strict=True))
            if count
        ],
        **_pod_rows(kubelet, now_ns),
    }
    rows["node"] = [
        {
            **rows["node"][0],
            "pod_start": counts.pod_start,
            "pod_start_sli": counts.pod_start_sli,
            "pod_start_total": counts.pod_start_total,
            "sandboxes": counts.sandboxes,
            "sandbox_errors": counts.sandbox_errors,
            "own_cpu_s": use.system.cpu_ns // KUBELET_SHARE / NS_PER_S,
            "own_memory": use.system.memory // KUBELET_SHARE,
            "received": use.received,  # as upstream's, of the whole node
            "sent": use.sent,
            "started_s": use.started_s,
        }
    ]
    return page_text("/metrics", rows)


def _pod_rows(kubelet: VirtualKubelet, now_ns: int) -> dict[str, list[Row]]:
    """Return how many pods and containers there are, by what they are and do."""
    active, desired = array("I", (0, 0)), array("I", (0, 0))  # by whether they are static
    ephemeral = sandboxes = 0
    states = Counter[str]()
    for worker in kubelet.pods.workers.values() if kubelet.pods is not None else ():
        is_static = isinstance(worker.pod, StaticPod)
        desired[is_static] += not worker.removed
        active[is_static] += worker.state is WorkerState.SYNC
        ephemeral += len(worker.pod.spec.ephemeral_containers)
    for _uid, sandbox in kubelet.pods.runtime if kubelet.pods is not None else ():
        sandboxes += sandbox.ready
        for container in sandbox.containers:
            state = container.state
            if state is RunState.RUNNING and container.exit_ns <= now_ns:
                state = RunState.EXITED
            states[state.name.lower()] += 1
    return {
        "node": [
            {
                "ephemeral_containers": ephemeral,
                "mirror_pods": desired[1],
                "running_pods": sandboxes,
            }
        ],
        "source": [
            {"static": static, "active": active[at], "desired": desired[at]}
            for at, static in enumerate(("", "true"))
        ],
        "container_state": [
            {"container_state": state, "count": count} for state, count in sorted(states.items())
        ],
    }


# ---- the other pages ----


def probe_metrics(kubelet: VirtualKubelet, _now_ns: int) -> bytes:
    """Return /metrics/probes: how often probes ran is not counted."""
    return page_text("/metrics/probes", {"node": [_started(kubelet)]})


def sli_metrics(kubelet: VirtualKubelet, _now_ns: int) -> bytes:
    """Return /metrics/slis: a kubelet that answers is healthy."""
    return page_text("/metrics/slis", {"node": [_started(kubelet)]})


def _started(kubelet: VirtualKubelet) -> Row:
    return {"started_s": kubelet.env.wall_s(kubelet.facts.started_ns)}


def resource_metrics(kubelet: VirtualKubelet, now_ns: int) -> bytes:
    """Return /metrics/resource, by which metrics-server scales.

    Source: pkg/kubelet/metrics/collectors/resource_metrics.go.
    """
    use = node_usage(kubelet, now_ns)
    rows: Rows = {
        "node": [_resources(use.cgroup)],
        "pod": [
            {"namespace": each.pod.namespace, "pod": each.pod.name, **_resources(each.cgroup)}
            for each in use.pods
        ],
        "container": [
            {
                "container": container.name,
                "namespace": each.pod.namespace,
                "pod": each.pod.name,
                "started_s": container.started_s,
                **_resources(container.cgroup),
            }
            for container, each in sorted(
                ((container, each) for each in use.pods for container in each.containers),
                key=lambda found: (found[0].name, found[1].pod.namespace, found[1].pod.name),
            )
        ],
    }
    return page_text("/metrics/resource", rows, use.wall_ns // NS_PER_MS)


def _resources(cgroup: Cgroup) -> dict[str, float]:
    return {"cpu_s": cgroup.cpu_ns / NS_PER_S, "memory": cgroup.memory, "swap": cgroup.swap}


def cadvisor_metrics(kubelet: VirtualKubelet, now_ns: int) -> bytes:
    """Return /metrics/cadvisor: the root cgroup, that of all pods, pods and containers.

    Source: prometheus.go, prometheus_machine.go; pkg/kubelet/server/server.go,
    containerPrometheusLabelsFunc.
    Differs: a pod's cgroup has no series of its sandbox but the network's.
    """
    use = node_usage(kubelet, now_ns)
    now_s, model, info = use.wall_ns // NS_PER_S, use.model, use.model.node_info
    root = _labels("/")
    cores = parse_quantity(model.capacity["cpu"]).value
    rows: dict[str, list[Row]] = {
        "node": [{}],
        "cgroup": [
            _cgroup(root, use.cgroup, use.started_s, now_s),
            _cgroup(_labels("/kubepods.slice"), use.pods_cgroup, use.started_s, now_s),
        ],
        "disk": [_disk(root, use, use.disk)],
        "network": [_network(root, use.received, use.sent)],
        "container": [],
        "limited": [],
        "machine": [
            {
                "system_uuid": use.name,
                "cores": cores,
                "physical_cores": max(cores // 2, 1),
                "memory": parse_quantity(model.capacity["memory"]).value,
                "swap": model.swap_bytes,
            }
        ],
        "system": [
            {"kernelVersion": info.get("kernelVersion", ""), "osVersion": info.get("osImage", "")}
        ],
    }
    for each in use.pods:
        _add_pod(rows, each, use, now_s)
    return page_text("/metrics/cadvisor", rows, use.wall_ns // NS_PER_MS)


def _add_pod(rows: dict[str, list[Row]], each: PodUse, use: NodeUse, now_s: int) -> None:
    pod = each.pod
    qos = _QOS.get(pod.spec.qos_class, "")
    slice_ = f"kubepods{qos}-pod{pod.uid.replace('-', '_')}.slice"
    parent = f"/kubepods.slice/kubepods{qos}.slice/{slice_}" if qos else f"/kubepods.slice/{slice_}"
    labels = _labels(parent, namespace=pod.namespace, pod=pod.name)
    rows["cgroup"].append(_cgroup(labels, each.cgroup, each.created_s, now_s))
    if not pod.spec.host_network:
        pause = hashlib.blake2b(pod.uid.encode(), digest_size=32).hexdigest()
        scope = f"{parent}/cri-containerd-{pause}.scope"
        sandbox = {**labels, "id": scope, "image": PAUSE_IMAGE, "name": pause}
        rows["network"].append(_network(sandbox, each.received, each.sent))
    for container in each.containers:
        _add_container(rows, container, labels, use, now_s)


def _add_container(
    rows: dict[str, list[Row]], each: ContainerUse, pod: dict[str, str], use: NodeUse, now_s: int
) -> None:
    container_id = each.id.removeprefix(ID_PREFIX)
    labels = {
        **pod,
        "container": each.name,
        "id": f"{pod['id']}/cri-containerd-{container_id}.scope",
        "image": full_name(each.image),
        "name": container_id,
    }
    rows["cgroup"].append(_cgroup(labels, each.cgroup, each.started_s, now_s))
    rows["disk"].append(_disk(labels, use, each.disk))
    shares = max(each.cpu_request_milli * SHARES_PER_CPU // 1000, SHARES_MIN)
    rows["container"].append({**labels, "cpu_shares": shares, "memory_limit": each.memory_limit})
    if each.cpu_limit_milli:
        rows["limited"].append(
            {
                **labels,
                "cpu_quota": each.cpu_limit_milli * CPU_PERIOD // 1000,
                "cpu_periods": max(now_s - each.started_s, 0) * PERIODS_PER_S,
            }
        )


def _labels(cgroup: str, namespace: str = "", pod: str = "") -> dict[str, str]:
    """Return the labels of a cgroup that is no container's."""
    return {
        "container": "", "id": cgroup, "image": "", "name": "", "namespace": namespace, "pod": pod,
    }  # fmt: skip


def _cgroup(labels: dict[str, str], each: Cgroup, started_s: int, now_s: int) -> Row:
    system_ns = each.cpu_ns // USER_SHARE
    active = each.memory - each.memory_rss  # page cache that is in use
    return {
        **labels,
        "started_s": started_s,
        "now_s": now_s,
        "cpu_s": each.cpu_ns / NS_PER_S,
        "cpu_system_s": system_ns / NS_PER_S,
        "cpu_user_s": (each.cpu_ns - system_ns) / NS_PER_S,
        "memory": each.memory,
        "memory_usage": each.memory_usage,
        "memory_rss": each.memory_rss,
        "memory_cache": each.memory_usage - each.memory_rss,
        "memory_active": active,
        "memory_inactive": each.memory_usage - each.memory,
        "memory_mapped": active // 2,
        "memory_kernel": each.memory // KERNEL_SHARE,
        "page_faults": each.page_faults,
        "major_faults": each.major_faults,
        "swap": each.swap,
        "pids": each.pids,
        "threads": each.pids * THREADS_PER_PROCESS,
        "files": each.pids * FILES_PER_PROCESS,
    }


def _disk(labels: dict[str, str], use: NodeUse, used: int) -> Row:
    capacity = use.capacity
    return {
        **labels,
        "disk": used,
        "disk_size": capacity.disk,
        "inodes": capacity.inodes,
        "inodes_free": max(capacity.inodes - use.inodes, 0),
    }


def _network(labels: dict[str, str], received: int, sent: int) -> Row:
    return {
        **labels,
        "received": received,
        "received_packets": received // PACKET_BYTES,
        "sent": sent,
        "sent_packets": sent // PACKET_BYTES,
    }
