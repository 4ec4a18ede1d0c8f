"""The rows of a node's metrics pages: what families.toml fills its families with.

What is periodic is computed from the age of the kubelet (a relist each second); what happened to
pods was counted; the rest is what is there now.
Source: pkg/kubelet/metrics/metrics.go; pkg/kubelet/kubelet_pods.go, HandlePodCleanups;
pkg/kubelet/prober/prober_manager.go; component-base/metrics/prometheus/slis and restclient;
github.com/google/cadvisor/metrics/prometheus.go.
Differs: how long a relist or a call of the runtime takes is that of an idle machine; a probe's
random failures are counted by their share. No process is behind a node, so there is no `go_*`.
Nothing waits for a disk, is throttled or dropped: those counters stay 0.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.host.node_certificates import CertificateStore
from fleet.k8s.effects import NodeId
from fleet.k8s.objects import CertificateKind
from fleet.k8s.static_pods import StaticPod
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node_facts import CONTAINER_TYPES, DEFAULT_BOUNDS, Durations, NodeCounts
from fleet.kubelet.pod_worker import WorkerState
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.quantity import parse_quantity
from fleet.reactor.reactor import Reactor
from fleet.runtime.containers import ID_PREFIX, RunState, image_name
from fleet.server.exposition import Row, Rows, page_text
from fleet.server.node_usage import Cgroup, ContainerUse, NodeUse, PodUse, node_usage
from fleet.server.summary import KUBELET_SHARE

NO_COUNTS = NodeCounts()
RELIST_NS = 1 * NS_PER_S
RELIST_TAKES_S = 0.002
OPERATION_TAKES_S = 0.001
CGROUP_TAKES_S = 0.0005
WORKER_STARTS_S = 0.001
STEP_TAKES_S = 0.001  # of an operation on a volume
QOS_CLASSES = 3  # guaranteed, Burstable, BestEffort; the first one's cgroup is that of all pods
QOS_UPDATE_NS = 60 * NS_PER_S
"""Source: qos_container_manager_linux.go, periodicQOSCgroupUpdateInterval."""
OPERATION_BOUNDS = tuple(0.005 * 2.5**at for at in range(14))
"""Source: metrics.go, RuntimeOperationsDuration."""
VOLUME_BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
"""Source: pkg/volume/util/metrics.go."""
PLUGINS = {
    "configMap": "kubernetes.io/configmap",
    "csi": "kubernetes.io/csi",
    "downwardAPI": "kubernetes.io/downward-api",
    "emptyDir": "kubernetes.io/empty-dir",
    "hostPath": "kubernetes.io/host-path",
    "persistentVolumeClaim": "kubernetes.io/csi",
    "projected": "kubernetes.io/projected",
    "secret": "kubernetes.io/secret",
}
"""By the kind of a volume. Source: pkg/volume/*, the plug-ins' names."""
DESIRED, ACTUAL = "desired_state_of_world", "actual_state_of_world"

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


def kubelet_metrics(kubelet: VirtualKubelet, now_ns: int, outside: Rows | None = None) -> bytes:
    """Return /metrics; `outside` are the rows of its certificates and of its requests."""
    counts = kubelet.facts.counted or NO_COUNTS
    use = node_usage(kubelet, now_ns)
    relists = max(now_ns - kubelet.facts.started_ns, 0) // RELIST_NS
    created = sum(counts.syncs["create"].counts) if "create" in counts.syncs else 0
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
        "cgroup_operation": list(_cgroup_operations(kubelet, created, now_ns)),
        "sync": [
            {"operation_type": name, "took": took} for name, took in sorted(counts.syncs.items())
        ],
        "sandbox": [{"runtime_handler": "", "took": counts.sandbox}] if counts.sandboxes else [],
        "runtime_operation": list(_runtime_operations(counts, relists)),
        "container_type": [
            {"container_type": kind, "count": count}
            for kind, count in sorted(zip(CONTAINER_TYPES, counts.containers, strict=True))
            if count
        ],
        "volume_operation": list(_volume_operations(counts)),
        "volume": _volumes(kubelet),
        **_pod_rows(kubelet, now_ns),
        **(outside or {}),
    }
    rows["node"] = [
        {
            **rows["node"][0],
            "relisted_s": kubelet.env.wall_ns(kubelet.facts.started_ns + relists * RELIST_NS)
            / NS_PER_S,
            "relists": _steady(relists, RELIST_TAKES_S),
            "relist_intervals": _steady(max(relists - 1, 0), 1 + RELIST_TAKES_S),
            "pod_start": counts.pod_start,
            "pod_start_sli": counts.pod_start_sli,
            "pod_start_total": counts.pod_start_total,
            "worker_starts": _steady(created, WORKER_STARTS_S),
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


def _steady(count: int, seconds: float, bounds: tuple[float, ...] = DEFAULT_BOUNDS) -> Durations:
    """Return a histogram of durations that are all the same."""
    found = Durations(bounds)
    found.counts[bisect_left(bounds, seconds)] = count
    found.total_ns = round(count * seconds * NS_PER_S)
    return found


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


def _cgroup_operations(kubelet: VirtualKubelet, created: int, now_ns: int) -> Iterator[Row]:
    """Yield how often cgroups were made, changed and removed: those of the classes, one a pod.

    Source: qos_container_manager_linux.go, Start, UpdateCgroups, which is called each minute and
    before a pod's is made; node_container_manager_linux.go, enforceNodeAllocatableCgroups.
    """
    minutes = max(now_ns - kubelet.facts.started_ns, 0) // QOS_UPDATE_NS
    workers = () if kubelet.pods is None else kubelet.pods.workers.values()
    there = sum(worker.state < WorkerState.TERMINATED for worker in workers)
    for name, count in (
        ("create", QOS_CLASSES + created),
        ("destroy", max(created - there, 0)),
        ("update", 1 + QOS_CLASSES * (1 + minutes + created)),
    ):
        if count:
            yield {"operation_type": name, "took": _steady(count, CGROUP_TAKES_S)}


def _runtime_operations(counts: NodeCounts, relists: int) -> Iterator[Row]:
    """Yield how often the runtime was asked what: each relist lists all there is.

    A new sandbox takes as long as declared, all else no time.
    """
    started = sum(counts.containers)
    for name, count in (
        ("create_container", started),
        ("list_containers", relists),
        ("list_podsandbox", relists),
        ("run_podsandbox", counts.sandboxes),
        ("start_container", started),
        ("status", relists // 5),
        ("version", 1),
    ):
        if count:
            mean_s = OPERATION_TAKES_S
            if name == "run_podsandbox":
                mean_s = counts.sandbox.total_ns / NS_PER_S / count
            took = _steady(count, mean_s, OPERATION_BOUNDS)
            yield {"operation_type": name, "count": count, "took": took}


def _volume_operations(counts: NodeCounts) -> Iterator[Row]:
    """Yield what was done with volumes, by plug-in.

    Differs: volumes of claims are not counted; a resync that would find nothing is not run, so that
    it mounts nothing again.
    """
    done = Counter[tuple[str, str]]()
    for (operation, kind), count in counts.volumes.items():
        if kind in PLUGINS:
            done[operation, PLUGINS[kind]] += count
    for (operation, plugin), count in sorted(done.items()):
        name, _, status = operation.partition("/")
        yield {
            "operation_name": name,
            "status": status or "success",
            "volume_plugin": plugin,
            "took": _steady(count, STEP_TAKES_S, VOLUME_BOUNDS),
        }


def _volumes(kubelet: VirtualKubelet) -> list[Row]:
    """Return how many volumes there are, and how many are to be."""
    pods = kubelet.pods
    if pods is None:
        return []
    found = Counter[tuple[str, str]]()
    for worker in pods.workers.values():
        if worker.state is not WorkerState.SYNC:
            continue
        # No sandbox is made before everything is mounted.
        is_mounted = pods.runtime.sandbox(worker.pod.uid) is not None
        for volume in worker.pod.spec.volumes:
            if volume.mounted and volume.kind in PLUGINS:
                found[PLUGINS[volume.kind], DESIRED] += 1
                found[PLUGINS[volume.kind], ACTUAL] += is_mounted
    return [
        {"plugin_name": plugin, "state": state, "count": count}
        for (plugin, state), count in sorted(found.items())
        if count
    ]


# ---- what is counted outside the kubelet ----


def certificate_rows(
    store: CertificateStore, node_name: str, kubelet: KubeletConfiguration, now_s: float
) -> Rows:
    """Return how long the certificates that a node renews itself are good for.

    Source: cmd/kubelet/app/server.go, buildKubeletClientConfig; pkg/kubelet/certificate/kubelet.go,
    NewKubeletServerCertificateManager.
    Differs: a certificate that has expired shows +Inf, as one that there is none of.
    """
    rows: dict[str, list[Row]] = {}
    for name, kind, is_shown in (
        ("client_certificate", CertificateKind.CLIENT, kubelet.rotate_certificates),
        ("serving_certificate", CertificateKind.SERVING, kubelet.server_tls_bootstrap),
    ):
        if is_shown:
            held = store.current(node_name, kind, now_s)
            left_s = float("inf") if held is None else float(int(held.not_after_s - now_s))
            rows[name] = [{"left_s": left_s}]
    return rows


def client_rows(reactor: Reactor, node: NodeId) -> Rows:
    """Return what a node asked the API server, and begin to time it. On the reactor's loop.

    Differs: durations are kept from the first time that the node's /metrics was asked, since a node
    that nobody asks is to hold nothing of them.
    """
    counts = reactor.entries[node].client
    if counts.took is None:
        counts.took = {}
    host = reactor.wires.authority
    return {
        "request": [
            {"code": code, "host": host, "method": method, "count": count}
            for code, method, count in sorted(reactor.clients.rows(counts))
        ],
        "request_time": [
            {"host": host, "verb": verb, "took": took} for verb, took in sorted(counts.took.items())
        ],
    }


# ---- the other pages ----


def probe_metrics(kubelet: VirtualKubelet, now_ns: int) -> bytes:
    """Return /metrics/probes."""
    rows: list[Row] = []
    if kubelet.pods is not None:
        for uid, count in kubelet.pods.probe_counts(kubelet.env, now_ns):
            pod = kubelet.pods.workers[uid].pod
            labels = {"container": count.container, "namespace": pod.namespace, "pod": pod.name}
            rows += [
                {**labels, "pod_uid": uid, "probe_type": count.kind, "result": result, "count": n}
                for result, n in count.results
                if n
            ]
    return page_text("/metrics/probes", {"probe": rows, "node": [_started(kubelet)]})


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
                "memory": use.capacity.memory,
                "swap": model.swap_bytes,
            }
        ],
        "system": [
            {
                "kernelVersion": info.get("kernelVersion", ""),
                "osVersion": info.get("osImage", ""),
            }
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
    rows: dict[str, list[Row]],
    each: ContainerUse,
    pod: dict[str, str],
    use: NodeUse,
    now_s: int,
) -> None:
    container_id = each.id.removeprefix(ID_PREFIX)
    labels = {
        **pod,
        "container": each.name,
        "id": f"{pod['id']}/cri-containerd-{container_id}.scope",
        "image": image_name(each.image),
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
