"""EvictionManager: signals, thresholds, grace periods, ranking, and the pressure of a node.

Every 10 s it compares what is available with the thresholds. One that is met sets a condition of
the node, which stays for a transition period after it was seen last; one that is met for its grace
period has resources reclaimed: images and dead containers first, then one pod at a time, with a
wait for its cleanup. A pass that would find nothing is not armed: usage is a sum of known curves,
so that the pass that will find something is computed.
Source: pkg/kubelet/eviction/eviction_manager.go, synchronize, waitForPodsCleanup, Admit;
helpers.go; api/types.go.
Differs: the kernel's memory notifications are off, as by default. One disk holds everything, as
without a dedicated image filesystem, so that the thresholds of containerfs, which upstream then
copies from nodefs, change nothing and are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.containers.stats_provider import Measure, NodeUse, PodStats, PodTerms, pod_stats
from fleet.kubelet.pod_worker import PodKill, kill_timeout_ns
from fleet.kubelet.pressure.preemption import is_critical_pod, requested
from fleet.profile.kubelet_configuration import EvictionThreshold
from fleet.profile.node_model import NodeModel
from fleet.profile.usage import NEVER, next_crossing
from fleet.quantity import Quantity, QuantityFormat, parse_quantity, share_of, whole_quantity
from fleet.runtime.container_usage import amount_text, resources_of

MEMORY_AVAILABLE = "memory.available"
ALLOCATABLE_MEMORY = "allocatableMemory.available"
NODE_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure")
MEMORY, DISK, PIDS = NODE_CONDITIONS
EPHEMERAL = "ephemeral-storage"

EMPTY_DIR_LIMIT = 'Usage of EmptyDir volume "%s" exceeds the limit "%s". '
LOW = "The node was low on resource: %s. "
WHOLE = "Pod %s was using %s, request is %s, has larger consumption of %s. "
THRESHOLD = "Threshold quantity: %s, available: %s. "
CONTAINER = "Container %s was using %s, request is %s, has larger consumption of %s. "
POD_DISK_LIMIT = "Pod ephemeral local storage usage exceeds the total limit of containers %s. "
CONTAINER_DISK_LIMIT = 'Container %s exceeded its local ephemeral storage limit "%s". '


class Signal(NamedTuple):
    """What a signal is about."""

    condition: str
    resource: str
    measure: str  # a field of NodeUse; nodefs and imagefs are about the one disk
    is_bytes: bool = True


SIGNALS = {
    MEMORY_AVAILABLE: Signal(MEMORY, "memory", "memory"),
    ALLOCATABLE_MEMORY: Signal(MEMORY, "memory", "pods_memory"),
    "nodefs.available": Signal(DISK, EPHEMERAL, "disk"),
    "nodefs.inodesFree": Signal(DISK, "inodes", "inodes", is_bytes=False),
    "imagefs.available": Signal(DISK, EPHEMERAL, "disk"),
    "imagefs.inodesFree": Signal(DISK, "inodes", "inodes", is_bytes=False),
    "pid.available": Signal(PIDS, "pids", "pids", is_bytes=False),
}


@lru_cache(maxsize=1024)
def size_limit(text: str) -> int:
    """Return the limit of an emptyDir in bytes, 0 when there is none."""
    return parse_quantity(text).value if text else 0


class Observation(NamedTuple):
    """What is left of a resource."""

    available: int
    capacity: int


Observations = dict[str, Observation]


@lru_cache(maxsize=256)
def thresholds_of(model: NodeModel) -> tuple[EvictionThreshold, ...]:
    """Return the thresholds of a profile; memory comes first, as it is reclaimed first.

    Source: ParseThresholdConfig, addAllocatableThresholds, byEvictionPriority.
    """
    found = [*model.kubelet.hard_thresholds, *model.kubelet.soft_thresholds]
    if "pods" in model.kubelet.enforce_node_allocatable:
        found += [
            each._replace(signal=ALLOCATABLE_MEMORY)
            for each in model.kubelet.hard_thresholds
            if each.signal == MEMORY_AVAILABLE
        ]
    known = [each for each in found if each.signal in SIGNALS]
    return tuple(sorted(known, key=lambda each: SIGNALS[each.signal].condition != MEMORY))


def threshold_amount(threshold: EvictionThreshold, capacity: int, *, reclaim: bool = False) -> int:
    """Return below which amount a threshold is met; `reclaim` adds its minimum reclaim.

    Source: GetThresholdQuantity, thresholdsMet.
    """
    amount = _amount(threshold.quantity, threshold.percent, capacity)
    if reclaim:
        amount += _amount(threshold.reclaim, threshold.reclaim_percent, capacity)
    return amount


def _amount(quantity: Quantity, percent: float, capacity: int) -> int:
    return share_of(capacity, percent) if percent else quantity.value


def observations_of(use: NodeUse, now_ns: int) -> Observations:
    """Return what each signal says. Source: makeSignalObservations."""
    left = {
        name: Observation(max(each.capacity - each.used(now_ns), 0), each.capacity)
        for name, each in use._asdict().items()
    }
    return {name: left[signal.measure] for name, signal in SIGNALS.items()}


def is_met(
    threshold: EvictionThreshold, observations: Observations, *, reclaim: bool = False
) -> bool:
    """Return whether less is available than a threshold wants."""
    observed = observations[threshold.signal]
    return observed.available < threshold_amount(threshold, observed.capacity, reclaim=reclaim)


Ranked = tuple[Pod, PodStats | None]


def rank(pods: Sequence[Ranked], resource: str) -> list[Ranked]:
    """Return pods in the order in which they are evicted for want of a resource.

    Source: rankMemoryPressure, rankPIDPressure, rankDiskPressureFunc. Equals keep their order.
    """
    return sorted(pods, key=lambda each: _place(each[0], each[1], resource))


def _place(pod: Pod, stats: PodStats | None, resource: str) -> tuple[int, ...]:
    """Return a pod's place: the lowest goes first, as one does without stats."""
    priority = pod.spec.priority
    if resource == "pids":
        return (priority, 0) if stats is None else (priority, 1, -stats.pids)
    if stats is None:
        return 0, priority
    used = {"memory": stats.memory, EPHEMERAL: stats.ephemeral, "inodes": stats.inodes}[resource]
    # Upstream takes the disk's request for what inodes are used above it, too.
    asked = requested(pod, EPHEMERAL if resource == "inodes" else resource)
    exceeds = used > (0 if resource == "inodes" else asked)
    return 1, not exceeds, priority, asked - used


def eviction_message(
    resource: str,
    pod: Pod,
    stats: PodStats | None,
    thresholds: Sequence[EvictionThreshold],
    observations: Observations,
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the words of an eviction, and the annotations of its event.

    Source: evictionMessage, getThresholdMetInfo.
    """
    message = LOW % resource
    for threshold in thresholds:
        signal = SIGNALS[threshold.signal]
        if signal.resource == resource:
            message += THRESHOLD % _shown(threshold, observations[threshold.signal], signal)
            break
    if stats is None:
        return message, ()
    notes: tuple[tuple[str, str], ...] = ()
    own_request = amount_text(pod.spec.own_json, "requests", "memory")
    if resource == "memory" and own_request != "0":  # said even if the pod uses less
        usage = str(whole_quantity(stats.memory))
        message += WHOLE % (pod.name, usage, own_request, resource)
        notes = (("offending_pod", pod.name), ("offending_pod_usage", usage))
    blamed = []
    # Ephemeral containers have no requests, and are not blamed.
    specs = {spec.name: spec for spec in (*pod.spec.containers, *pod.spec.init_containers)}
    for each in stats.containers:
        if each.name not in specs:
            continue
        resources_json = specs[each.name].resources_json
        asked = resources_of(resources_json).requests
        if resource == "memory":
            used, request = each.memory, asked.memory
        elif resource == EPHEMERAL:
            used, request = each.ephemeral, asked.ephemeral
        else:
            continue
        if used > request:
            shown = amount_text(resources_json, "requests", resource)
            usage = str(whole_quantity(used))
            message += CONTAINER % (each.name, usage, shown, resource)
            blamed.append((each.name, usage))
    return message, (
        ("offending_containers", ",".join(name for name, _ in blamed)),
        ("offending_containers_usage", ",".join(usage for _, usage in blamed)),
        *notes,
        ("starved_resource", resource),
    )


def _shown(threshold: EvictionThreshold, observed: Observation, signal: Signal) -> tuple[str, str]:
    """Print a threshold as configured, or its share, and what is available."""
    amount = threshold.quantity
    if threshold.percent:
        amount = whole_quantity(share_of(observed.capacity, threshold.percent))
    form = QuantityFormat.BINARY_SI if signal.is_bytes else QuantityFormat.DECIMAL_SI
    return str(amount), str(whole_quantity(observed.available, form))


def local_storage_message(pod: Pod, stats: PodStats, *, limits_sidecars: bool = False) -> str:
    """Return why a pod is evicted for the disk that it uses alone, "" when it is not.

    Source: eviction_manager.go, emptyDirLimitEviction, podEphemeralStorageLimitEviction,
    containerEphemeralStorageLimitEviction.
    """
    used = dict(stats.volumes)
    for volume in pod.spec.volumes:
        limit = size_limit(volume.size_limit)
        if limit and used.get(volume.name, 0) > limit:
            return EMPTY_DIR_LIMIT % (volume.name, volume.size_limit)
    limit = resources_of(pod.spec.resources_json).limits.ephemeral
    if limit and stats.ephemeral > limit:
        return POD_DISK_LIMIT % amount_text(pod.spec.resources_json, "limits", EPHEMERAL)
    sidecars = filter(is_sidecar, pod.spec.init_containers) if limits_sidecars else ()
    asked = {spec.name: spec.resources_json for spec in (*sidecars, *pod.spec.containers)}
    for each in stats.containers:
        resources_json = asked.get(each.name, b"")
        limit = resources_of(resources_json).limits.ephemeral
        if limit and each.ephemeral > limit:
            text = amount_text(resources_json, "limits", EPHEMERAL)
            return CONTAINER_DISK_LIMIT % (each.name, text)
    return ""


EVICTED = "Evicted"
PERIOD_NS = 10 * NS_PER_S  # Source: pkg/kubelet/kubelet.go, evictionMonitoringPeriod
CLEANUP_TIMEOUT_NS = 30 * NS_PER_S  # podCleanupTimeout
CLEANUP_POLL_NS = 1 * NS_PER_S  # podCleanupPollFreq
IMMEDIATE_GRACE_S = 1  # immediateEvictionGracePeriodSeconds: 0 would be forced
MEMORY_PRESSURE_TAINT = "node.kubernetes.io/memory-pressure"
_NODE_CONDITION = "The node had condition: [%s]. "


class Eviction(NamedTuple):
    """A pod that is to be evicted now."""

    pod: Pod
    message: str
    annotations: tuple[tuple[str, str], ...]
    grace_s: int
    disrupts: bool  # sets the condition DisruptionTarget


class Pass(NamedTuple):
    """What one pass found."""

    starved: str  # the resource that an event says is reclaimed, "" for none
    evictions: tuple[Eviction, ...]


@dataclass(slots=True, eq=False)
class EvictionManager:
    """The thresholds that a node met, and the pressure that follows.

    `conditions` names the pressures, in the order of `NODE_CONDITIONS`.
    """

    _last_ns: int  # the phase of the passes
    _first_met_ns: dict[EvictionThreshold, int] = field(default_factory=dict)
    _met: tuple[EvictionThreshold, ...] = ()  # for their grace periods, and not resolved
    # when the cause of a condition was seen last
    _seen_ns: dict[str, int] = field(default_factory=dict)
    evicted: tuple[str, ...] = ()  # uids, of the last pass until the next one
    _evicted_ns: int = 0
    _wait_until_ns: int = 0
    conditions: tuple[str, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is under pressure, nor was lately."""
        return not (self.conditions or self._first_met_ns or self.evicted)

    def synchronize(
        self,
        model: NodeModel,
        pods: Sequence[PodTerms | Pod],
        use: Callable[[], NodeUse],
        delete_unused: Callable[[], None],
        now_ns: int,
    ) -> Pass:
        """Run one pass over the active pods: those that should run, with curves if they do.

        `use` measures the node, `delete_unused` frees what no pod needs. Source: synchronize.
        """
        self._last_ns = now_ns
        self.evicted = ()
        observations = observations_of(use(), now_ns)
        thresholds = self._observe(model, observations, now_ns)
        ranked: list[Ranked] = [
            (each.pod, pod_stats(each, now_ns)) if isinstance(each, PodTerms) else (each, None)
            for each in pods
        ]
        over = tuple(_local_storage_evictions(ranked, model))
        if over:
            return Pass("", over)
        if not thresholds:
            return Pass("", ())
        first = thresholds[0]
        starved = SIGNALS[first.signal].resource
        if starved not in {"memory", "pids"}:
            delete_unused()
            after = observations_of(use(), now_ns)
            if not any(is_met(each, after, reclaim=True) for each in thresholds_of(model)):
                return Pass(starved, ())
        for pod, stats in rank(ranked, starved):
            if is_critical_pod(pod):
                continue
            message, notes = eviction_message(starved, pod, stats, thresholds, observations)
            grace_s = IMMEDIATE_GRACE_S
            if first.grace_ns:
                grace_s = min(
                    model.kubelet.eviction_max_pod_grace_period_s, pod.spec.termination_grace_s
                )
            eviction = Eviction(pod, message, notes, grace_s, disrupts=True)
            return Pass(starved, (eviction,))
        return Pass(starved, ())

    def _observe(
        self, model: NodeModel, observations: Observations, now_ns: int
    ) -> list[EvictionThreshold]:
        """Note which thresholds are met; return those that are for their grace periods."""
        known = thresholds_of(model)
        met = [each for each in known if is_met(each, observations)]
        met += [
            each
            for each in self._met
            if each not in met and is_met(each, observations, reclaim=True)
        ]
        self._first_met_ns = {each: self._first_met_ns.get(each, now_ns) for each in met}
        for each in met:
            self._seen_ns[SIGNALS[each.signal].condition] = now_ns
        hold_ns = model.kubelet.eviction_pressure_transition_period_ns
        self._seen_ns = {
            name: seen_ns for name, seen_ns in self._seen_ns.items() if now_ns - seen_ns < hold_ns
        }
        self.conditions = tuple(each for each in NODE_CONDITIONS if each in self._seen_ns)
        lasting = [
            each
            for each in known
            if now_ns - self._first_met_ns.get(each, now_ns) >= each.grace_ns
            and each in self._first_met_ns
        ]
        self._met = tuple(lasting)
        return lasting

    def wait(self, killed: Eviction | None, now_ns: int) -> None:
        """Wait for a pod to be killed, or else for all to be cleaned up.

        Source: evictPod, waitForPodsCleanup.
        """
        wait_ns = CLEANUP_TIMEOUT_NS
        if killed is not None:
            self.evicted += (killed.pod.uid,)
            wait_ns = kill_timeout_ns(PodKill(EVICTED, "", killed.grace_s), killed.pod)
        self._evicted_ns, self._wait_until_ns = now_ns, now_ns + wait_ns

    def is_late(self, now_ns: int) -> bool:
        """Return whether that took too long."""
        return now_ns >= self._wait_until_ns

    def on_cleaned_up(self, now_ns: int) -> None:
        """Learn that nothing is left of the evicted pods: the next pass is at the next poll."""
        polls = -(-(now_ns - self._evicted_ns) // CLEANUP_POLL_NS) or 1
        due_ns = self._evicted_ns + polls * CLEANUP_POLL_NS
        self._wait_until_ns = min(self._wait_until_ns, due_ns)

    def next_pass_ns(
        self, model: NodeModel, use: NodeUse, pods: Sequence[PodTerms], now_ns: int
    ) -> int:
        """Return when the next pass will find something, NEVER if none will."""
        if self.evicted:
            return max(self._wait_until_ns, now_ns)
        if self._first_met_ns:
            return self._next_tick(now_ns + 1)
        hold_ns = model.kubelet.eviction_pressure_transition_period_ns
        change_ns = min((seen + hold_ns for seen in self._seen_ns.values()), default=NEVER)
        change_ns = min(change_ns, _next_met_ns(model, use, now_ns))
        for each in pods if model.kubelet.local_storage_capacity_isolation else ():
            change_ns = min(change_ns, _over_limit_ns(each, now_ns))
        return change_ns if change_ns == NEVER else self._next_tick(max(change_ns, now_ns + 1))

    def _next_tick(self, wanted_ns: int) -> int:
        return wanted_ns + (self._last_ns - wanted_ns) % PERIOD_NS


def _local_storage_evictions(pods: Sequence[Ranked], model: NodeModel) -> Iterator[Eviction]:
    """Yield the pods that use more of the disk than they may. Source: localStorageEviction."""
    with_sidecars = model.release.limits_sidecars
    for pod, stats in pods if model.kubelet.local_storage_capacity_isolation else ():
        if stats is None:
            continue
        message = local_storage_message(pod, stats, limits_sidecars=with_sidecars)
        if message and not is_critical_pod(pod):
            yield Eviction(pod, message, (), IMMEDIATE_GRACE_S, disrupts=False)


def _next_met_ns(model: NodeModel, use: NodeUse, now_ns: int) -> int:
    """Return the first instant at which any threshold is met."""
    measures: dict[str, Measure] = use._asdict()
    limits = {name: each.capacity for name, each in measures.items()}
    for threshold in thresholds_of(model):
        name = SIGNALS[threshold.signal].measure
        capacity = measures[name].capacity
        limits[name] = min(limits[name], capacity - threshold_amount(threshold, capacity))
    return min(
        (
            each._replace(capacity=limits[name]).next_over_ns(now_ns)
            for name, each in measures.items()
            if limits[name] < each.capacity
        ),
        default=NEVER,
    )


def _over_limit_ns(terms: PodTerms, now_ns: int) -> int:
    """Return the first instant at which a pod uses more of the disk than it may."""
    found = NEVER
    limit = resources_of(terms.pod.spec.resources_json).limits.ephemeral
    if limit:
        found = next_crossing(tuple(terms.ephemeral()), 0, limit, now_ns)
    for name, curve, start_ns in terms.volumes:
        volume = next(each for each in terms.pod.spec.volumes if each.name == name)
        limit = size_limit(volume.size_limit)
        if limit:
            found = min(found, next_crossing([(curve, start_ns)], 0, limit, now_ns))
    for name, usage, start_ns in terms.running:
        spec = terms.pod.find(name)
        limit = resources_of(spec.resources_json).limits.ephemeral if spec is not None else 0
        if limit:
            found = min(found, next_crossing([(usage.ephemeral, start_ns)], 0, limit, now_ns))
    return found


def admits_under_pressure(pod: Pod, conditions: tuple[str, ...]) -> str:
    """Return why a pod is refused with reason Evicted, "" when it is not.

    `conditions` are the pressures of the node, as `EvictionManager.conditions`. Memory pressure
    alone refuses only BestEffort pods that do not tolerate it.
    Source: eviction_manager.go, Admit.
    """
    if not conditions or is_critical_pod(pod):
        return ""
    if conditions == ("MemoryPressure",) and (
        pod.spec.qos_class != "BestEffort"
        or any(
            each.tolerates(MEMORY_PRESSURE_TAINT, "", "NoSchedule") for each in pod.spec.tolerations
        )
    ):
        return ""
    return _NODE_CONDITION % " ".join(conditions)
