"""/metrics, /metrics/probes and /metrics/slis: the kubelet's own metrics under their own names.

What is periodic is computed from the age of the kubelet (a relist each second); what happened to
pods was counted; the rest is what is there now.
Source: pkg/kubelet/metrics/metrics.go; pkg/kubelet/kubelet_pods.go, HandlePodCleanups;
pkg/kubelet/prober/prober_manager.go; component-base/metrics/prometheus/slis.
Differs: how long a relist or a call of the runtime takes is that of an idle machine; a probe's
random failures are counted by their share. There is no process behind a node, so no `go_*`; what
its client asked is fleet's own to count.
"""

from collections.abc import Iterable

from fleet.clock import NS_PER_S
from fleet.k8s.pods import PodUid
from fleet.k8s.static_pods import StaticPod
from fleet.kubelet.containers.probe_manager import ProbeCount
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.pod_worker import WorkerState
from fleet.kubelet.stats.exposition import (
    Family,
    Row,
    durations_text,
    one_text,
    steady_lines,
    steady_text,
    text_of,
)
from fleet.kubelet.stats.fixed_metrics import FIXED
from fleet.kubelet.stats.node_usage import node_usage
from fleet.kubelet.stats.pod_lives import life_texts
from fleet.kubelet.stats.pod_metrics import (
    CONTAINER_LOGS,
    VOLUMES,
    log_rows,
    version_text,
    volume_rows,
)
from fleet.kubelet.stats.storage_metrics import claim_text, volume_texts
from fleet.kubelet.stats.summary import KUBELET_SHARE
from fleet.kubelet.tally import CONTAINER_TYPES, DEFAULT_BOUNDS, Durations, NodeTally
from fleet.runtime.containers import RunState

ALPHA, BETA, STABLE = "[ALPHA] ", "[BETA] ", "[STABLE] "
RELIST_NS = 1 * NS_PER_S
RELIST_TAKES_S = 0.002
_STATIC = ("static",)


def _family(name: str, text: str, kind: str = "gauge", labels: tuple[str, ...] = ()) -> Family:
    return Family(f"kubelet_{name}", ALPHA + text, kind, labels)


ACTIVE_PODS = _family(
    "active_pods",
    "The number of pods the kubelet considers active and which are being considered when admitting "
    "new pods. static is true if the pod is not from the apiserver.",
    labels=_STATIC,
)
REJECTIONS = _family(
    "admission_rejections_total",
    "Cumulative number pod admission rejections by the Kubelet.",
    "counter",
    ("reason",),
)
CGROUPS = _family(
    "cgroup_manager_duration_seconds",
    "Duration in seconds for cgroup manager operations. Broken down by method.",
    "histogram",
    ("operation_type",),
)
CGROUP_TAKES_S = 0.0005
QOS_CLASSES = 3
"""Guaranteed, Burstable, BestEffort; the first one's cgroup is that of all pods."""
QOS_UPDATE_NS = 60 * NS_PER_S
"""Source: qos_container_manager_linux.go, periodicQOSCgroupUpdateInterval."""
CGROUP_VERSION = _family("cgroup_version", "cgroup version on the hosts.")
DESIRED_PODS = _family(
    "desired_pods",
    "The number of pods the kubelet is being instructed to run. static is true if the pod is not "
    "from the apiserver.",
    labels=_STATIC,
)
EPHEMERAL = _family(
    "managed_ephemeral_containers",
    "Current number of ephemeral containers in pods managed by this kubelet.",
)
MIRROR_PODS = _family(
    "mirror_pods",
    "The number of mirror pods the kubelet will try to create (one per admitted static pod)",
)
NODE_NAME = _family("node_name", "The node's name. The count is always 1.", labels=("node",))
LAST_SEEN = _family(
    "pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active."
)
DISCARDED = _family("pleg_discard_events", "The number of discard events in PLEG.", "counter")
RELIST = _family(
    "pleg_relist_duration_seconds",
    "Duration in seconds for relisting pods in PLEG.",
    "histogram",
)
RELIST_INTERVAL = _family(
    "pleg_relist_interval_seconds",
    "Interval in seconds between relisting in PLEG.",
    "histogram",
)
POD_START = _family(
    "pod_start_duration_seconds",
    "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
    "histogram",
)
_EXCLUDING = "excluding time to pull images and run init containers"
_INCLUDING = "since creation, including time to pull images and run init containers"
_MEASURED = (
    "measured from pod creation timestamp to when all its containers are reported as started and "
    "observed via watch"
)
POD_START_SLI = _family(
    "pod_start_sli_duration_seconds",
    f"Duration in seconds to start a pod, {_EXCLUDING}, {_MEASURED}",
    "histogram",
)
POD_START_TOTAL = _family(
    "pod_start_total_duration_seconds",
    f"Duration in seconds to start a pod {_INCLUDING}, {_MEASURED}",
    "histogram",
)
POD_WORKER = _family(
    "pod_worker_duration_seconds",
    "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or "
    "sync",
    "histogram",
)
RUN_SANDBOX = _family(
    "run_podsandbox_duration_seconds",
    "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
    "histogram",
)
RUNNING_CONTAINERS = _family(
    "running_containers", "Number of containers currently running", labels=("container_state",)
)
RUNNING_PODS = _family("running_pods", "Number of pods that have a running pod sandbox")
OPERATIONS = _family(
    "runtime_operations_total",
    "Cumulative number of runtime operations by operation type.",
    "counter",
    ("operation_type",),
)
STARTED_CONTAINERS = _family(
    "started_containers_total",
    "Cumulative number of containers started",
    "counter",
    ("container_type",),
)
STARTED_PODS = _family("started_pods_total", "Cumulative number of pods started", "counter")
WORKING_PODS = _family(
    "working_pods",
    "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the "
    "pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An "
    "orphaned pod has been removed from local configuration or force deleted in the API and "
    "consumes resources that are not otherwise visible.",
    labels=("config", "lifecycle", "static"),
)
_START = "Start time of the process since unix epoch in seconds."
PROCESS_START = Family("process_start_time_seconds", _START)
OTHER_PROCESS_START = Family("process_start_time_seconds", ALPHA + _START)
"""Beside probes and SLIs, whose registry is Kubernetes' own."""
PROBES = Family(
    "prober_probe_total",
    BETA + "Cumulative number of a liveness, readiness or startup probe for a container by result.",
    "counter",
    ("container", "namespace", "pod", "pod_uid", "probe_type", "result"),
)
HEALTH_CHECK = Family(
    "kubernetes_healthcheck",
    STABLE + "This metric records the result of a single healthcheck.",
    labels=("name", "type"),
)
PROCESS_CPU = Family(
    "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "counter"
)
PROCESS_FILES = Family("process_max_fds", "Maximum number of open file descriptors.")
PROCESS_RECEIVED = Family(
    "process_network_receive_bytes_total",
    "Number of bytes received by the process over the network.",
    "counter",
)
PROCESS_SENT = Family(
    "process_network_transmit_bytes_total",
    "Number of bytes sent by the process over the network.",
    "counter",
)
"""As upstream's, of the whole network of the node. Source: procfs, NetStat IpExt."""
PROCESS_VIRTUAL_MAX = Family(
    "process_virtual_memory_max_bytes",
    "Maximum amount of virtual memory available in bytes.",
)
UNLIMITED = float(1 << 64)
FILES_MAX = 1_000_000
"""Source: pkg/kubelet/apis/config/v1beta1/defaults.go, MaxOpenFiles."""
PROCESS_MEMORY = Family("process_resident_memory_bytes", "Resident memory size in bytes.")
POD_WORKER_START = _family(
    "pod_worker_start_duration_seconds",
    "Duration in seconds from kubelet seeing a pod to starting a worker.",
    "histogram",
)
TOPOLOGY_REQUESTS = _family(
    "topology_manager_admission_requests_total",
    "The number of admission requests where resources have to be aligned.",
    "counter",
)
TOPOLOGY_ERRORS = _family(
    "topology_manager_admission_errors_total",
    "The number of admission request failures where resources could not be aligned.",
    "counter",
)
CPU_POOLS = (
    _family(
        "cpu_manager_exclusive_cpu_allocation_count",
        "The total number of CPUs exclusively allocated to containers running on this node",
    ),
    _family(
        "cpu_manager_shared_pool_size_millicores",
        "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
    ),
)
TOPOLOGY_TAKES = _family(
    "topology_manager_admission_duration_ms",
    "Duration in milliseconds to serve a pod admission request.",
    "histogram",
)
TOPOLOGY_BOUNDS_MS = tuple(0.05 * 2**at for at in range(15))
OPERATION_TIMES = _family(
    "runtime_operations_duration_seconds",
    "Duration in seconds of runtime operations. Broken down by operation type.",
    "histogram",
    ("operation_type",),
)
OPERATION_BOUNDS = tuple(0.005 * 2.5**at for at in range(14))
"""Source: metrics.go, RuntimeOperationsDuration."""
OPERATION_TAKES_S = 0.001
WORKER_STARTS_S = 0.001
UNALIGNED = "TopologyAffinityError"
CHECKS = ("log", "ping", "syncloop")
NO_TALLY = NodeTally()
NO_SYNCS = Durations(DEFAULT_BOUNDS)
_LIFECYCLES = ("sync", "terminated", "terminating")
NO_PODS = {
    (config, lifecycle, static): 0
    for config, statics in (
        ("desired", ("", "true")),
        ("orphan", ("", "true")),
        ("runtime_only", ("unknown",)),
    )
    for lifecycle in _LIFECYCLES
    for static in statics
}


class _Counts:
    """What of its pods a kubelet sees now."""

    __slots__ = ("active", "desired", "ephemeral", "running", "sandboxes", "states", "working")

    def __init__(self, kubelet: VirtualKubelet, now_ns: int) -> None:
        self.active = [0, 0]  # by whether they are static
        self.desired = [0, 0]
        self.working: dict[tuple[str, str, str], int] = {}
        self.ephemeral = 0
        self.sandboxes = 0
        self.states = {"created": 0, "exited": 0, "running": 0}
        pods = kubelet.pods
        if pods is None:
            return
        for worker in pods.workers.values():
            is_static = isinstance(worker.pod, StaticPod)
            self.desired[is_static] += not worker.removed
            self.active[is_static] += worker.state is WorkerState.SYNC
            self.ephemeral += len(worker.pod.spec.ephemeral_containers)
            lifecycle = worker.state.name.lower()
            config = "orphan" if worker.removed else "desired"
            key = (config, lifecycle, "true" if is_static else "")
            self.working[key] = self.working.get(key, 0) + 1
        for _uid, sandbox in pods.runtime:
            self.sandboxes += sandbox.ready
            for container in sandbox.containers:
                state = container.state.name.lower()
                if container.state is RunState.RUNNING and container.exit_ns <= now_ns:
                    state = "exited"
                self.states[state] += 1


def kubelet_metrics(kubelet: VirtualKubelet, now_ns: int, extra: bytes = b"") -> bytes:
    """Return the text of /metrics; `extra` is what the server itself counts."""
    facts, env = kubelet.facts, kubelet.env
    tally = facts.tally or NO_TALLY
    counts = _Counts(kubelet, now_ns)
    use = node_usage(kubelet, now_ns)
    relists = max(now_ns - facts.started_ns, 0) // RELIST_NS
    seen_s = env.wall_ns(facts.started_ns + relists * RELIST_NS) / NS_PER_S
    static = (counts.active[1], counts.desired[1])
    pods = tally.syncs.get("create", NO_SYNCS)
    created = sum(pods.counts)
    operations = _operations(tally, relists)
    own = use.system
    is_unpinned = env.model.kubelet.cpu_manager_policy == "none"
    unaligned = tally.rejections.get(UNALIGNED, 0)
    parts = [
        *volume_texts(tally),
        claim_text(tally.sandboxes + tally.sandbox_errors, _ended(kubelet, created)),
        text_of(VOLUMES, volume_rows(kubelet)),
        text_of(CONTAINER_LOGS, log_rows(use)),
        version_text(env.model.kubelet_version, env.model.node_info),
        one_text(PROCESS_CPU, own.cpu_ns // KUBELET_SHARE / NS_PER_S),
        one_text(PROCESS_MEMORY, own.memory // KUBELET_SHARE),
        one_text(PROCESS_FILES, FILES_MAX),
        one_text(PROCESS_RECEIVED, use.received),
        one_text(PROCESS_SENT, use.sent),
        one_text(PROCESS_VIRTUAL_MAX, UNLIMITED),
        steady_text(POD_WORKER_START, created, WORKER_STARTS_S),
        one_text(TOPOLOGY_REQUESTS, created + unaligned),
        steady_text(TOPOLOGY_TAKES, created + unaligned, 0, TOPOLOGY_BOUNDS_MS),
        one_text(TOPOLOGY_ERRORS, unaligned),
        _operation_times(operations, tally),
        _cgroup_times(kubelet, created, now_ns),
        text_of(ACTIVE_PODS, [(("",), counts.active[0]), (("true",), static[0])]),
        text_of(REJECTIONS, [((reason,), n) for reason, n in tally.rejections.items()]),
        one_text(CGROUP_VERSION, 2),
        text_of(DESIRED_PODS, [(("",), counts.desired[0]), (("true",), static[1])]),
        one_text(EPHEMERAL, counts.ephemeral),
        one_text(MIRROR_PODS, static[1]),
        text_of(NODE_NAME, [((facts.name,), 1)]),
        one_text(DISCARDED, 0),
        one_text(LAST_SEEN, seen_s),
        steady_text(RELIST, relists, RELIST_TAKES_S),
        steady_text(RELIST_INTERVAL, max(relists - 1, 0), 1 + RELIST_TAKES_S),
        durations_text(POD_START, (("", tally.pod_start),)),
        durations_text(POD_START_SLI, (("", tally.pod_start_sli),)),
        durations_text(POD_START_TOTAL, (("", tally.pod_start_total),)),
        durations_text(
            POD_WORKER,
            [(f'operation_type="{name}"', found) for name, found in sorted(tally.syncs.items())],
        ),
        durations_text(RUN_SANDBOX, (('runtime_handler=""', tally.sandbox),))
        if tally.sandboxes
        else "",
        text_of(RUNNING_CONTAINERS, [((state,), n) for state, n in counts.states.items() if n]),
        one_text(RUNNING_PODS, counts.sandboxes),
        text_of(OPERATIONS, operations),
        text_of(
            STARTED_CONTAINERS,
            [((kind,), n) for kind, n in zip(CONTAINER_TYPES, tally.containers, strict=True) if n],
        ),
        one_text(STARTED_PODS, tally.sandboxes),
        *life_texts(kubelet, tally),
        # A static policy sets these two; none leaves them as they are made.
        *(one_text(each, 0) for each in CPU_POOLS if is_unpinned),
        text_of(WORKING_PODS, list((NO_PODS | counts.working).items())),
        one_text(PROCESS_START, env.wall_s(facts.started_ns)),
    ]
    texts = [*FIXED, *((_name_of(part), part) for part in parts if part)]
    texts.sort()
    return "".join(text for _, text in texts).encode() + extra


def _name_of(text: str) -> str:
    """Return which metric a text is of: it begins with `# HELP NAME `."""
    return text[len("# HELP ") : text.index(" ", len("# HELP "))]


def _cgroup_times(kubelet: VirtualKubelet, created: int, now_ns: int) -> str:
    """Return how often cgroups were made, changed and removed: those of the classes, one a pod.

    Source: qos_container_manager_linux.go, Start, UpdateCgroups, which is called each minute and
    before a pod's is made; node_container_manager_linux.go, enforceNodeAllocatableCgroups.
    """
    minutes = max(now_ns - kubelet.facts.started_ns, 0) // QOS_UPDATE_NS
    counts = {
        "create": QOS_CLASSES + created,
        "destroy": _ended(kubelet, created),
        "update": 1 + QOS_CLASSES * (1 + minutes + created),
    }
    lines: list[str] = []
    for name, count in counts.items():
        if count:
            label = f'operation_type="{name}"'
            lines += steady_lines(CGROUPS.name, count, CGROUP_TAKES_S, DEFAULT_BOUNDS, label)
    return CGROUPS.head() + "".join(lines)


def _ended(kubelet: VirtualKubelet, created: int) -> int:
    """Return how many of the pods that were created run no more."""
    pods = kubelet.pods
    workers = () if pods is None else pods.workers.values()
    there = sum(worker.state < WorkerState.TERMINATED for worker in workers)
    return max(created - there, 0)


def _operation_times(operations: Iterable[Row], tally: NodeTally) -> str:
    """Return how long calls of the runtime took: a new sandbox as declared, all else no time."""
    lines: list[str] = []
    for (name,), count in operations:
        mean_s = OPERATION_TAKES_S
        if name == "run_podsandbox":
            mean_s = tally.sandbox.total_ns / NS_PER_S / count
        label = f'operation_type="{name}"'
        lines += steady_lines(OPERATION_TIMES.name, count, mean_s, OPERATION_BOUNDS, label)
    return OPERATION_TIMES.head() + "".join(lines) if lines else ""


def _operations(tally: NodeTally, relists: int) -> list[Row]:
    """Return how often the runtime was asked what: each relist lists all there is."""
    started = sum(tally.containers)
    found = {
        "create_container": started,
        "list_containers": relists,
        "list_podsandbox": relists,
        "run_podsandbox": tally.sandboxes,
        "start_container": started,
        "status": relists // 5,
        "version": 1,
    }
    return [((name,), n) for name, n in found.items() if n]


def probe_metrics(kubelet: VirtualKubelet, now_ns: int) -> bytes:
    """Return the text of /metrics/probes."""
    rows: list[Row] = []
    pods = kubelet.pods
    if pods is not None:
        counts: Iterable[tuple[PodUid, ProbeCount]] = pods.probe_counts(kubelet.env, now_ns)
        for uid, count in counts:
            pod = pods.workers[uid].pod
            labels = (count.container, pod.namespace, pod.name, uid, count.kind)
            rows += [((*labels, result), n) for result, n in count.results if n]
    start_s = kubelet.env.wall_s(kubelet.facts.started_ns)
    return (text_of(PROBES, rows) + one_text(OTHER_PROCESS_START, start_s)).encode()


def sli_metrics(kubelet: VirtualKubelet, _now_ns: int) -> bytes:
    """Return the text of /metrics/slis."""
    rows: list[Row] = [((name, "healthz"), 1) for name in CHECKS]
    start_s = kubelet.env.wall_s(kubelet.facts.started_ns)
    return (text_of(HEALTH_CHECK, rows) + one_text(OTHER_PROCESS_START, start_s)).encode()
