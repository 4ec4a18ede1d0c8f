"""EvictionManager: signals, thresholds, grace periods, ranking, and the pressure of a node.

Every 10 s it compares what is available with the thresholds. One that is met sets a condition of
the node, which stays for a transition period after it was seen last; one that is met for its grace
period has resources reclaimed: images and dead containers first, then one pod at a time, with a
wait for its cleanup. A pass that would find nothing is not armed: usage is a sum of known curves,
so that the pass that will find something is computed.
Source: pkg/kubelet/eviction/eviction_manager.go, synchronize, waitForPodsCleanup, Admit.
Differs: the kernel's memory notifications are off, as by default.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod, Toleration
from fleet.kubelet.containers.stats_provider import (
    NodeStats,
    NodeTerms,
    PodTerms,
    node_capacity,
    pod_stats,
)
from fleet.kubelet.pressure.eviction_signals import (
    NODE_CONDITIONS,
    SIGNALS,
    Observations,
    Ranked,
    eviction_message,
    is_met,
    local_storage_message,
    observations_of,
    rank,
    size_limit,
    threshold_amount,
    thresholds_of,
)
from fleet.kubelet.pressure.preemption import is_critical_pod
from fleet.profile.kubelet_configuration import EvictionThreshold
from fleet.profile.node_model import NodeModel
from fleet.profile.usage import NEVER, next_crossing
from fleet.runtime.container_usage import resources_of

EVICTED = "Evicted"
PERIOD_NS = 10 * NS_PER_S
"""Source: pkg/kubelet/kubelet.go, evictionMonitoringPeriod."""
CLEANUP_TIMEOUT_NS = 30 * NS_PER_S  # podCleanupTimeout
CLEANUP_POLL_NS = 1 * NS_PER_S  # podCleanupPollFreq
KILL_TIMEOUT_MIN_S = 10
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


Stats = Callable[[], NodeStats]
"""Measures the node now."""


class EvictionManager:
    """The thresholds that a node met, and the pressure that follows.

    `conditions` names the pressures, in the order of `NODE_CONDITIONS`.
    """

    __slots__ = (
        "_cleanup_until_ns",
        "_evicted",
        "_evicted_ns",
        "_first_met_ns",
        "_last_ns",
        "_met",
        "_seen_ns",
        "conditions",
    )

    def __init__(self, started_ns: int) -> None:
        self._last_ns = started_ns  # the phase of the passes
        self._first_met_ns: dict[EvictionThreshold, int] = {}
        self._met: tuple[EvictionThreshold, ...] = ()  # for their grace periods, and not resolved
        self._seen_ns: dict[str, int] = {}  # when the cause of a condition was seen last
        self._evicted: tuple[str, ...] = ()  # uids whose cleanup is waited for
        self._evicted_ns = 0
        self._cleanup_until_ns = 0
        self.conditions: tuple[str, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is under pressure, nor was lately."""
        return not (self.conditions or self._first_met_ns or self._evicted)

    @property
    def evicted(self) -> tuple[str, ...]:
        """Return the uids of the pods whose cleanup is waited for."""
        return self._evicted

    def synchronize(
        self, model: NodeModel, pods: Sequence[PodTerms | Pod], reclaim: "Reclaim", now_ns: int
    ) -> Pass:
        """Run one pass over the active pods: those that should run, with curves if they do.

        Source: synchronize.
        """
        self._last_ns = now_ns
        self._evicted = ()
        observations = observations_of(reclaim.stats())
        thresholds = self._observe(model, observations, now_ns)
        ranked = [_ranked(each, now_ns) for each in pods]
        over = tuple(_local_storage_evictions(ranked)) if _has_isolation(model) else ()
        if over:
            return self._evicting(Pass("", over), now_ns)
        if not thresholds:
            return Pass("", ())
        first = thresholds[0]
        starved = SIGNALS[first.signal].resource
        if starved not in {"memory", "pids"}:
            reclaim.delete_unused()
            after = observations_of(reclaim.stats())
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
            return self._evicting(Pass(starved, (eviction,)), now_ns)
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

    def _evicting(self, found: Pass, now_ns: int) -> Pass:
        """Wait for the evicted pods to be cleaned up before the next pass."""
        self._evicted = tuple(each.pod.uid for each in found.evictions)
        self._evicted_ns = now_ns
        grace_s = max(each.grace_s for each in found.evictions)
        kill_s = max(grace_s + grace_s // 2, KILL_TIMEOUT_MIN_S)
        self._cleanup_until_ns = now_ns + kill_s * NS_PER_S + CLEANUP_TIMEOUT_NS
        return found

    def on_cleaned_up(self, now_ns: int) -> None:
        """Learn that nothing is left of the evicted pods: the next pass is at the next poll."""
        polls = -(-(now_ns - self._evicted_ns) // CLEANUP_POLL_NS) or 1
        due_ns = self._evicted_ns + polls * CLEANUP_POLL_NS
        self._cleanup_until_ns = min(self._cleanup_until_ns, due_ns)

    def next_pass_ns(
        self, model: NodeModel, terms: NodeTerms, pods: Sequence[PodTerms], now_ns: int
    ) -> int:
        """Return when the next pass will find something, NEVER if none will."""
        if self._evicted:
            return max(self._cleanup_until_ns, now_ns)
        if self._first_met_ns:
            return self._next_tick(now_ns + 1)
        hold_ns = model.kubelet.eviction_pressure_transition_period_ns
        change_ns = min((seen + hold_ns for seen in self._seen_ns.values()), default=NEVER)
        change_ns = min(change_ns, _next_met_ns(model, terms, now_ns))
        for each in pods if _has_isolation(model) else ():
            change_ns = min(change_ns, _over_limit_ns(each, now_ns))
        return change_ns if change_ns == NEVER else self._next_tick(max(change_ns, now_ns + 1))

    def _next_tick(self, wanted_ns: int) -> int:
        return wanted_ns + (self._last_ns - wanted_ns) % PERIOD_NS


class Reclaim(NamedTuple):
    """How the manager measures the node, and frees what no pod needs."""

    stats: Stats
    delete_unused: Callable[[], None]


def _ranked(found: PodTerms | Pod, now_ns: int) -> Ranked:
    if isinstance(found, PodTerms):
        return found.pod, pod_stats(found, now_ns)
    return found, None


def _has_isolation(model: NodeModel) -> bool:
    """Return whether limits of local storage hold."""
    return model.kubelet.local_storage_capacity_isolation


def _local_storage_evictions(pods: Sequence[Ranked]) -> Iterator[Eviction]:
    """Yield the pods that use more of the disk than they may. Source: localStorageEviction."""
    for pod, stats in pods:
        message = local_storage_message(pod, stats) if stats is not None else ""
        if message and not is_critical_pod(pod):
            yield Eviction(pod, message, (), IMMEDIATE_GRACE_S, disrupts=False)


def _next_met_ns(model: NodeModel, terms: NodeTerms, now_ns: int) -> int:
    """Return the first instant at which any threshold is met."""
    sums = {
        "memory.available": (terms.memory, 0),
        "allocatableMemory.available": (terms.pods_memory, 0),
        "available": (terms.disk, terms.disk_base),
        "inodesFree": (terms.inodes, 0),
        "pid.available": (terms.pids, terms.pids_base),
    }
    found = NEVER
    for name, limit in _first_limits(model).items():
        curves, base = sums[name]
        found = min(found, next_crossing(curves, base, limit, now_ns))
    return found


@lru_cache(maxsize=256)
def _first_limits(model: NodeModel) -> dict[str, int]:
    """Return, for each amount that is measured, above which usage the first threshold is met.

    Signals of nodefs and imagefs are about the one disk.
    """
    capacity = node_capacity(model)
    totals = {
        "memory.available": capacity.memory,
        "allocatableMemory.available": model.pods_memory_bytes,
        "available": capacity.disk,
        "inodesFree": capacity.inodes,
        "pid.available": model.pids_max,
    }
    limits: dict[str, int] = {}
    for threshold in thresholds_of(model):
        name = threshold.signal.removeprefix("nodefs.").removeprefix("imagefs.")
        amount = threshold_amount(threshold, totals[name])
        if amount:
            limits[name] = min(limits.get(name, totals[name]), totals[name] - amount)
    return limits


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
        or any(map(_tolerates_memory_pressure, pod.spec.tolerations))
    ):
        return ""
    return _NODE_CONDITION % " ".join(conditions)


def _tolerates_memory_pressure(toleration: Toleration) -> bool:
    """Source: core/v1/toleration.go, ToleratesTaint, for the taint without a value."""
    if toleration.effect not in {"", "NoSchedule"}:
        return False
    if toleration.key not in {"", MEMORY_PRESSURE_TAINT}:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and not toleration.value
