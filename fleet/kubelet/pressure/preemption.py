"""Preemption: which pods a critical pod displaces when the node is short of resources.

As few as possible: BestEffort pods first, then Burstable, then Guaranteed ones; among them those
that come closest to what is missing.
Source: pkg/kubelet/preemption/preemption.go, getPodsToPreempt; pkg/kubelet/types/pod_update.go.
"""

from typing import NamedTuple

from fleet.k8s.pods import Pod
from fleet.k8s.static_pods import StaticPod
from fleet.profile.kubelet_configuration import SYSTEM_CRITICAL_PRIORITY

REASON = "Preempting"
MESSAGE = "Preempted in order to admit critical pod"
CONDITION_MESSAGE = "Pod was preempted by Kubelet to accommodate a critical pod."


class Need(NamedTuple):
    """How much of a resource must come free; cpu in thousandths."""

    resource: str
    amount: int


class Preemption(NamedTuple):
    """The victims, or why no set of pods would do."""

    pods: tuple[Pod, ...] = ()
    error: str = ""


def is_critical_pod(pod: Pod) -> bool:
    """Return whether a pod is critical to the node. Source: IsCriticalPod."""
    if isinstance(pod, StaticPod) or pod.is_mirror:
        return True
    return pod.spec.priority >= SYSTEM_CRITICAL_PRIORITY


def pods_to_preempt(pod: Pod, others: list[Pod], needs: list[Need]) -> Preemption:
    """Choose the pods that must go for a critical pod."""
    ranks: dict[str, list[Pod]] = {"BestEffort": [], "Burstable": [], "Guaranteed": []}
    for other in others:
        # Source: Preemptable.
        is_lesser = is_critical_pod(pod) and not is_critical_pod(other)
        if is_lesser or pod.spec.priority > other.spec.priority:
            ranks[other.spec.qos_class or "BestEffort"].append(other)
    best_effort, burstable, guaranteed = ranks.values()
    lacking = _subtract(needs, [*best_effort, *burstable, *guaranteed])
    if lacking:
        return Preemption(error=_no_pods(lacking))
    from_guaranteed = _closest(guaranteed, _subtract(needs, [*best_effort, *burstable]))
    from_burstable = _closest(burstable, _subtract(needs, [*best_effort, *from_guaranteed]))
    from_best_effort = _closest(best_effort, _subtract(needs, [*from_burstable, *from_guaranteed]))
    return Preemption((*from_best_effort, *from_burstable, *from_guaranteed))


def requested(pod: Pod, resource: str) -> int:
    """Return what a pod asks for: an overhead alone is nothing, nor what only containers can ask.

    Source: pkg/api/v1/resource/helpers.go, GetResourceRequestQuantity.
    """
    spec = pod.spec.admission
    amount = 1 if resource == "pods" else dict(spec.requests).get(resource, 0)
    is_lost = spec.pod_level and not resource.startswith(("pods", "cpu", "memory", "hugepages-"))
    return 0 if is_lost or amount == dict(spec.overhead).get(resource, 0) else amount


def _subtract(needs: list[Need], pods: list[Pod]) -> list[Need]:
    """Return what is still missing when these pods are gone."""
    rest = [
        Need(need.resource, need.amount - sum(requested(pod, need.resource) for pod in pods))
        for need in needs
    ]
    return [need for need in rest if need.amount > 0]


def _closest(pods: list[Pod], needs: list[Need]) -> list[Pod]:
    """Take the pod nearest to the need until it is met. Source: getPodsToPreemptByDistance."""
    chosen: list[Pod] = []
    pods = list(pods)
    while needs:
        assert pods, needs
        best_distance = float(len(needs) + 1)
        best = 0
        for index, pod in enumerate(pods):
            # How far a pod alone is from meeting the needs, each weighed alike.
            rests = ((need.amount - requested(pod, need.resource), need.amount) for need in needs)
            distance = sum((rest / amount) ** 2 for rest, amount in rests if rest > 0)
            if distance < best_distance or (
                distance == best_distance and _is_smaller(pod, pods[best])
            ):
                best_distance, best = distance, index
        needs = _subtract(needs, [pods[best]])
        chosen.append(pods[best])
        pods[best] = pods[-1]
        pods.pop()
    return chosen


def _is_smaller(pod: Pod, other: Pod) -> bool:
    """Source: smallerResourceRequest."""
    for resource in ("memory", "cpu"):
        first, second = requested(pod, resource), requested(other, resource)
        if first != second:
            return first < second
    return True


def _no_pods(needs: list[Need]) -> str:
    listed = "".join(f"(res: {need.resource}, q: {need.amount}), " for need in needs)
    return (
        "preemption: error finding a set of pods to preempt: "
        f"no set of running pods found to reclaim resources: [{listed}]"
    )
