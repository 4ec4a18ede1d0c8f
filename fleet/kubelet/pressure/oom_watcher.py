"""OOMWatcher: when the kernel runs out of memory, whom it kills, and what the kubelet says of it.

A container over its own limit ends by itself (see `runtime.container_usage`) and is no event: only
its status shows OOMKilled. When all of the node is full the kernel picks a victim, and the kubelet
records SystemOOM about the Node. When only the cgroup of a pod, or of all pods, is full it picks a
container of those, without an event.
Source: pkg/kubelet/oom/oom_watcher_linux.go; pkg/kubelet/qos/policy.go, GetContainerOOMScoreAdjust;
Linux, mm/oom_kill.c, oom_badness; cAdvisor, utils/oomparser.
Differs: a container is one process, and its pid is made up.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from fleet.k8s.pods import ContainerSpec, Pod
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.containers.stats_provider import NodeUse, PodTerms
from fleet.profile.usage import NEVER, next_crossing, sum_at
from fleet.runtime.container_usage import resources_of

GUARANTEED_ADJUST = -997  # guaranteedOOMScoreAdj; the kubelet itself has -999
BEST_EFFORT_ADJUST = 1000
NODE_CRITICAL_PRIORITY = 2_000_001_000  # SystemCriticalPriority and 1,000: system-node-critical
PROCESS_NAME_MAX = 15  # Linux, TASK_COMM_LEN less its zero byte
PID_FIRST = 1000
PID_SPAN = 1 << 20
MESSAGE = "System OOM encountered, victim process: %s, pid: %d"


class Victim(NamedTuple):
    """A container that the kernel kills."""

    pod: Pod
    container: str
    process: str


def next_oom_ns(use: NodeUse, pods: Sequence[PodTerms], now_ns: int) -> int:
    """Return when the memory of the node, of its pods together, or of a pod is used up."""
    if not use.pods_memory.terms:
        return NEVER  # nobody is there to be killed
    found = min(use.memory.next_over_ns(now_ns), use.pods_memory.next_over_ns(now_ns))
    for each in pods:
        limit = pod_memory_limit(each.pod)
        if limit:
            found = min(found, next_crossing(tuple(each.memory()), 0, limit, now_ns))
    return found


def pod_memory_limit(pod: Pod) -> int:
    """Return the limit of the pod as a whole, 0 if it has none but those of its containers.

    Source: pkg/kubelet/cm/helpers_linux.go, ResourceConfigForPod.
    """
    if not pod.spec.admission.pod_level:
        return 0
    limit = resources_of(pod.spec.resources_json).limits.memory
    containers = pod.spec.containers
    own = sum(resources_of(each.resources_json).limits.memory for each in containers)
    return limit if limit != own else 0


def is_over_limit(terms: PodTerms, now_ns: int) -> bool:
    """Return whether the containers of a pod use more than the pod may."""
    limit = pod_memory_limit(terms.pod)
    return bool(limit) and sum_at(tuple(terms.memory()), 0, now_ns) > limit


def choose_victim(pods: Sequence[PodTerms], capacity: int, now_ns: int) -> Victim | None:
    """Return the container with the highest badness: what it uses, plus its adjustment."""
    worst: Victim | None = None
    worst_points = 0
    for terms in pods:
        for name, usage, start_ns in terms.running:
            spec = terms.pod.find(name)
            if spec is None:
                continue
            adjust = oom_score_adjust(terms.pod, spec, capacity)
            points = usage.memory.at(now_ns - start_ns) + adjust * capacity // 1000
            if worst is None or points > worst_points:
                worst = Victim(terms.pod, name, process_name(spec))
                worst_points = points
    return worst


def oom_score_adjust(pod: Pod, spec: ContainerSpec, capacity: int) -> int:
    """Return oom_score_adj of a container. Source: GetContainerOOMScoreAdjust."""
    if pod.spec.priority >= NODE_CRITICAL_PRIORITY or pod.spec.qos_class == "Guaranteed":
        return GUARANTEED_ADJUST
    if pod.spec.qos_class == "BestEffort":
        return BEST_EFFORT_ADJUST
    request = _memory(spec)
    if is_sidecar(spec):  # it is worth no less than what it serves
        request = max(request, min(map(_memory, pod.spec.containers)))
    request += _spare_memory(pod)
    adjust = BEST_EFFORT_ADJUST - 1000 * request // capacity
    return min(max(adjust, 1000 + GUARANTEED_ADJUST), BEST_EFFORT_ADJUST - 1)


def _memory(spec: ContainerSpec) -> int:
    return resources_of(spec.resources_json).requests.memory


def _spare_memory(pod: Pod) -> int:
    """Return what a pod itself requests above its containers, for each of them.

    Source: qos/helpers.go, remainingPodMemReqPerContainer; AggregateContainerRequests.
    """
    own = resources_of(pod.spec.own_json).requests.memory
    if not own:
        return 0
    sidecars = peak = 0
    for spec in pod.spec.init_containers:
        sidecars += _memory(spec) if is_sidecar(spec) else 0
        peak = max(peak, sidecars if is_sidecar(spec) else sidecars + _memory(spec))
    asked = max(sidecars + sum(map(_memory, pod.spec.containers)), peak)
    return (own - asked) // len((*pod.spec.init_containers, *pod.spec.containers))


def process_name(spec: ContainerSpec) -> str:
    """Return the name that the kernel would print: of the command, else of the image."""
    program = spec.command[0] if spec.command else spec.image.partition("@")[0]
    name = program.rpartition("/")[2]
    if not spec.command:
        name = name.partition(":")[0]
    return name[:PROCESS_NAME_MAX]


def system_oom_message(process: str, container_id: str) -> str:
    """Return the text of the event SystemOOM."""
    return MESSAGE % (process, PID_FIRST + zlib.crc32(container_id.encode()) % PID_SPAN)
