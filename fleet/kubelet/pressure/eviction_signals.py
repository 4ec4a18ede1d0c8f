"""Eviction signals: thresholds, what is observed of them, whom to evict, and the words for it.

Pure. A threshold is met when what is available is below its amount.
Source: pkg/kubelet/eviction/helpers.go; pkg/kubelet/eviction/api/types.go.
Differs: one disk holds everything, as without a dedicated image filesystem, so that the thresholds
of containerfs, which upstream then copies from nodefs, change nothing and are left out.
"""

from collections.abc import Callable, Sequence
from functools import cmp_to_key, lru_cache
from typing import NamedTuple

from fleet.k8s.pods import Pod
from fleet.kubelet.containers.stats_provider import NodeStats, PodStats
from fleet.profile.kubelet_configuration import EvictionThreshold
from fleet.profile.node_model import NodeModel
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
    is_bytes: bool = True


SIGNALS = {
    MEMORY_AVAILABLE: Signal(MEMORY, "memory"),
    ALLOCATABLE_MEMORY: Signal(MEMORY, "memory"),
    "nodefs.available": Signal(DISK, EPHEMERAL),
    "nodefs.inodesFree": Signal(DISK, "inodes", is_bytes=False),
    "imagefs.available": Signal(DISK, EPHEMERAL),
    "imagefs.inodesFree": Signal(DISK, "inodes", is_bytes=False),
    "pid.available": Signal(PIDS, "pids", is_bytes=False),
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


def observations_of(stats: NodeStats) -> Observations:
    """Return what each signal says. Source: makeSignalObservations."""
    memory = _left(stats.memory_capacity, stats.memory)
    pods = _left(stats.pods_memory_limit, stats.pods_memory)
    disk = _left(stats.disk_capacity, stats.disk)
    inodes = _left(stats.inodes_capacity, stats.inodes)
    return {
        MEMORY_AVAILABLE: memory,
        ALLOCATABLE_MEMORY: pods,
        "nodefs.available": disk,
        "nodefs.inodesFree": inodes,
        "imagefs.available": disk,
        "imagefs.inodesFree": inodes,
        "pid.available": _left(stats.pids_max, stats.pids),
    }


def _left(capacity: int, used: int) -> Observation:
    return Observation(max(capacity - used, 0), capacity)


def is_met(
    threshold: EvictionThreshold, observations: Observations, *, reclaim: bool = False
) -> bool:
    """Return whether less is available than a threshold wants."""
    observed = observations[threshold.signal]
    return observed.available < threshold_amount(threshold, observed.capacity, reclaim=reclaim)


Ranked = tuple[Pod, PodStats | None]
_Key = Callable[[Pod, PodStats], int]


def rank(pods: Sequence[Ranked], resource: str) -> list[Ranked]:
    """Return pods in the order in which they are evicted for want of a resource.

    Source: rankMemoryPressure, rankPIDPressure, rankDiskPressureFunc. Equals keep their order.
    """
    if resource == "pids":

        def compare(one: Ranked, other: Ranked) -> int:
            return _by_priority(one, other) or _by(one, other, lambda _, stats: -stats.pids)
    else:
        used, asked = _MEASURES[resource]

        def compare(one: Ranked, other: Ranked) -> int:
            return (
                _by(one, other, lambda pod, stats: 0 if used(pod, stats) > asked(pod, stats) else 1)
                or _by_priority(one, other)
                or _by(one, other, lambda pod, stats: -_over(pod, stats, resource))
            )

    return sorted(pods, key=cmp_to_key(compare))


def _by_priority(one: Ranked, other: Ranked) -> int:
    mine, others = one[0].spec.priority, other[0].spec.priority
    return (mine > others) - (mine < others)


def _by(one: Ranked, other: Ranked, key: _Key) -> int:
    """Compare by a measure; pods without stats come first."""
    if one[1] is None or other[1] is None:
        return (one[1] is not None) - (other[1] is not None)
    first, second = key(one[0], one[1]), key(other[0], other[1])
    return (first > second) - (first < second)


def _over(pod: Pod, stats: PodStats, resource: str) -> int:
    """Return the usage above the request; upstream takes the disk's request for inodes, too."""
    used = _MEASURES[resource][0](pod, stats)
    kind = EPHEMERAL if resource == "inodes" else resource
    return used - _MEASURES[kind][1](pod, stats)


_MEASURES: dict[str, tuple[_Key, _Key]] = {
    "memory": (
        lambda _, stats: stats.memory,
        lambda pod, _: resources_of(pod.spec.resources_json).requests.memory,
    ),
    EPHEMERAL: (
        lambda _, stats: stats.ephemeral,
        lambda pod, _: resources_of(pod.spec.resources_json).requests.ephemeral,
    ),
    "inodes": (lambda _, stats: stats.inodes, lambda *_: 0),
}


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
    if resource == "memory" and own_request != "0":  # told even if the pod uses less
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


def local_storage_message(pod: Pod, stats: PodStats) -> str:
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
    # Sidecars have no limit of their own here: containers alone are looked at.
    asked = {spec.name: spec.resources_json for spec in pod.spec.containers}
    for each in stats.containers:
        resources_json = asked.get(each.name, b"")
        limit = resources_of(resources_json).limits.ephemeral
        if limit and each.ephemeral > limit:
            text = amount_text(resources_json, "limits", EPHEMERAL)
            return CONTAINER_DISK_LIMIT % (each.name, text)
    return ""
