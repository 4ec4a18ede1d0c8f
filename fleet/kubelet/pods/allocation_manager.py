"""AllocationManager: the resources that the pods of a node were given, while they change.

    pods/resize --fits--> allocated, PodResizeInProgress --applied--> done
        |does not fit: PodResizePending Deferred, tried again; never can: Infeasible

A pod of which nothing is being resized has what its spec says, and nothing is kept of it. While a
resize is pending, its worker sees the pod with the resources that it has.
Source: pkg/kubelet/allocation/allocation_manager.go, handlers.go; kubelet.go, HandlePodUpdates,
SyncPod; kuberuntime_manager.go, computePodResizeAction; pkg/kubelet/events/resize.go.
Differs: a resize of the pod's own resources changes no container; after a restart of fleet a
pending resize counts as allocated.
"""

import copy
from collections.abc import Callable, Mapping
from typing import NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.kubelet.events import Reason
from fleet.kubelet.pods.pod_actions import ContainerKill, KillReason
from fleet.kubelet.pods.pod_workers import PodWorker
from fleet.kubelet.turn import Turn
from fleet.objects.effects import SetTimer, Timer
from fleet.objects.pods import ContainerSpec, Pod, PodCondition, PodSpec, PodUid
from fleet.runtime.containers import RunState, Sandbox

RETRY_NS = 180 * NS_PER_S  # retryDelay: resources may have come free unseen
DEFERRED = "Deferred"
INFEASIBLE = "Infeasible"
RESOURCES = ("cpu", "memory")
IN_PROGRESS = "PodResizeInProgress"
PENDING = "PodResizePending"


class Refusal(NamedTuple):
    """Why a resize cannot be allocated now, or ever."""

    message: str
    is_final: bool = False
    reason: str = DEFERRED  # as admission has it: the event tells it, the condition does not


class _Resize(NamedTuple):
    """A condition of a resize; it is probed each time that it is found to hold."""

    generation: int
    probe_s: int
    since_s: int
    reason: str = ""
    message: str = ""

    def again(self, now_s: int, reason: str, message: str) -> "_Resize":
        """Return it as it is found to hold now. Source: updatedPodResizeCondition."""
        since_s = self.since_s if self.reason == reason else now_s
        return _Resize(self.generation, now_s, since_s, reason, message)


class ResizeActions(NamedTuple):
    """What a sync has to do about a resize."""

    kill: tuple[ContainerKill, ...] = ()  # containers whose policy is RestartContainer
    update: tuple[str, ...] = ()  # containers that take their new resources as they run


NO_ACTIONS = ResizeActions()
Check = Callable[[PodWorker, Pod], Refusal | None]


class AllocationManager:
    """The resizes of one node's pods; made with the first of them."""

    __slots__ = ("_actuated", "_before", "_desired", "_due_ns", "_pending", "_progress")

    def __init__(self) -> None:
        self._pending: dict[PodUid, _Resize] = {}
        self._progress: dict[PodUid, _Resize] = {}
        self._desired: dict[PodUid, Pod] = {}  # of pending ones: what the API asks for
        self._actuated: dict[PodUid, dict[str, ContainerSpec]] = {}  # what containers still have
        self._before: dict[PodUid, Pod] = {}  # of those in progress: as they were before
        self._due_ns = 0  # of the next try, 0 when nothing is pending

    def take(self, worker: PodWorker, pod: Pod, check: Check, turn: Turn) -> Pod:
        """Take a new version of a pod; return it with the resources that it is given.

        Source: HandlePodUpdates, handlePodResourcesResize.
        """
        if not has_other_resources(worker.pod, pod):
            self._pending.pop(pod.uid, None)
            self._desired.pop(pod.uid, None)
            return pod
        desired = self._desired.get(pod.uid)
        if desired is not None and not has_other_resources(desired, pod):
            self._desired[pod.uid] = pod
            return with_resources(pod, worker.pod)
        return self._allocate(worker, pod, check, turn)

    def _allocate(self, worker: PodWorker, pod: Pod, check: Check, turn: Turn) -> Pod:
        refusal = check(worker, pod)
        if refusal is not None:
            reason = INFEASIBLE if refusal.is_final else DEFERRED
            before = self._pending.get(pod.uid)
            since_s = before.since_s if before and before.reason == reason else turn.wall_s
            self._pending[pod.uid] = _Resize(
                pod.generation, turn.wall_s, since_s, reason, refusal.message
            )
            self._desired[pod.uid] = pod
            if before is None or (before.reason, before.generation) != (reason, pod.generation):
                event = Reason.RESIZE_INFEASIBLE if refusal.is_final else Reason.RESIZE_DEFERRED
                text = _summary(pod, pod.generation, refusal.message)
                told = reason if refusal.is_final else refusal.reason
                turn.event(pod, event, f"Pod resize {told}: {text}")
            self._arm(turn)
            return with_resources(pod, worker.pod)
        self._pending.pop(pod.uid, None)
        self._desired.pop(pod.uid, None)
        self._progress[pod.uid] = _Resize(pod.generation, turn.wall_s, turn.wall_s)
        self._before.setdefault(pod.uid, worker.pod)
        has = self._actuated.setdefault(pod.uid, {})
        for spec in (*worker.pod.spec.init_containers, *worker.pod.spec.containers):
            has.setdefault(spec.name, spec)
        text = _summary(pod, pod.generation)
        turn.event(pod, Reason.RESIZE_STARTED, f"Pod resize started: {text}")
        return pod

    def retry(
        self, workers: Mapping[PodUid, PodWorker], check: Check, turn: Turn
    ) -> list[PodWorker]:
        """Try the deferred resizes again; return the pods that have to be synced.

        Source: retryPendingResizes; sortPendingResizes, but for the time that they waited.
        """
        if self._due_ns and turn.now_ns >= self._due_ns:
            self._due_ns = 0
        changed = []
        found = [workers[uid] for uid in self._pending if uid in workers]
        found.sort(key=lambda worker: -worker.pod.spec.priority)
        for worker in found:
            uid = worker.pod.uid
            before = self._pending[uid]
            if before.reason == INFEASIBLE:
                continue
            worker.pod = self._allocate(worker, self._desired[uid], check, turn)
            if self._pending.get(uid) != before:
                changed.append(worker)
        return changed

    def has_deferred(self) -> bool:
        """Return whether any resize waits for resources."""
        return any(each.reason == DEFERRED for each in self._pending.values())

    def actions(self, pod: Pod, sandbox: Sandbox) -> ResizeActions:
        """Return which containers are to be changed. Source: computePodResizeAction."""
        has = self._actuated.get(pod.uid)
        if has is None:
            return NO_ACTIONS
        kill, update = [], []
        for spec in (*pod.spec.init_containers, *pod.spec.containers):
            old = has.get(spec.name)
            container = sandbox.find(spec.name)
            if old is None or container is None or container.state is not RunState.RUNNING:
                continue
            changed = _changed(old, spec)
            if any(name in spec.life.resize_restarts for name in changed):
                message = f"Container {spec.name} resize requires restart"
                kill.append(ContainerKill(spec.name, message, KillReason.UNKNOWN))
            elif changed:
                update.append(spec.name)
        return ResizeActions(tuple(kill), tuple(update))

    def actuate(self, uid: PodUid, name: str) -> None:
        """Note that a container has what was allocated: it was updated, or made anew."""
        self._actuated.get(uid, {}).pop(name, None)

    def fail(self, pod: Pod, message: str, turn: Turn) -> None:
        """Note that the runtime could not apply a resize. Source: SyncPod, ResizePodInPlace."""
        begun = _Resize(pod.generation, turn.wall_s, turn.wall_s)
        before = self._progress.get(pod.uid, begun)
        now = before.again(turn.wall_s, "Error", message)
        self._progress[pod.uid] = now
        if (now.reason, now.message) != (before.reason, before.message):
            text = _summary(pod, now.generation, message)
            turn.event(pod, Reason.RESIZE_ERROR, f"Pod resize error: {text}")

    def look(self, pod: Pod, sandbox: Sandbox | None, turn: Turn) -> None:
        """End the resize of a pod once nothing is left of it. Source: IsPodResizeInProgress."""
        progress = self._progress.get(pod.uid)
        if progress is None:
            return
        if sandbox is not None and self.actions(pod, sandbox) != NO_ACTIONS:
            self._progress[pod.uid] = progress._replace(probe_s=turn.wall_s)
            return
        del self._progress[pod.uid]
        self._before.pop(pod.uid, None)
        self._actuated.pop(pod.uid, None)
        text = _summary(pod, progress.generation)
        turn.event(pod, Reason.RESIZE_COMPLETED, f"Pod resize completed: {text}")

    def conditions(self, uid: PodUid) -> tuple[PodCondition, ...]:
        """Return what the status says of the resize of a pod."""
        return tuple(
            PodCondition(
                kind,
                "True",
                found.reason,
                found.message,
                found.since_s,
                found.generation,
                found.probe_s,
            )
            for kind, known in ((PENDING, self._pending), (IN_PROGRESS, self._progress))
            if (found := known.get(uid)) is not None
        )

    @property
    def in_progress(self) -> int:
        """Return how many resizes are being applied. Source: recordInProgressResizeCount."""
        return len(self._progress)

    def actuated(self, uid: PodUid) -> dict[str, ContainerSpec]:
        """Return what the containers of a pod still have, where it is not what they shall have."""
        return self._actuated.get(uid, {})

    def in_cgroup(self, pod: Pod) -> PodSpec:
        """Return the spec that the cgroup of a pod is by: until a resize is done, the old one."""
        return self._before.get(pod.uid, pod).spec

    def forget(self, uid: PodUid) -> None:
        """Drop what is kept of a pod."""
        kept = (self._pending, self._progress, self._desired, self._actuated, self._before)
        for known in kept:
            known.pop(uid, None)

    def _arm(self, turn: Turn) -> None:
        if not self._due_ns:
            self._due_ns = turn.now_ns + RETRY_NS
            turn.out.append(SetTimer(turn.node, self._due_ns, Timer.RESIZE))


def has_other_resources(old: Pod, new: Pod) -> bool:
    """Return whether containers ask for other resources than they did."""
    before, after = old.spec, new.spec
    if before is after:
        return False
    had = {each.name: each.resources_json for each in (*before.init_containers, *before.containers)}
    return any(
        had.get(each.name, each.resources_json) != each.resources_json
        for each in (*after.init_containers, *after.containers)
    )


def with_resources(pod: Pod, allocated: Pod) -> Pod:
    """Return a pod with the resources of another version. Source: UpdatePodFromAllocation."""
    spec, had = pod.spec, allocated.spec
    new = copy.copy(pod)
    new.spec = spec._replace(
        containers=_with_resources(spec.containers, had.containers),
        init_containers=_with_resources(spec.init_containers, had.init_containers),
        allocated_json=had.allocated_json,
        resources_json=had.resources_json,
        running_json=had.running_json,
        ended_json=had.ended_json,
        own_memory=had.own_memory,
        admission=spec.admission._replace(requests=had.admission.requests),
    )
    return new


def _with_resources(
    specs: tuple[ContainerSpec, ...], allocated: tuple[ContainerSpec, ...]
) -> tuple[ContainerSpec, ...]:
    known = {spec.name: spec for spec in allocated}
    return tuple(
        spec._replace(
            requests_json=known[spec.name].requests_json,
            resources_json=known[spec.name].resources_json,
        )
        if spec.name in known
        else spec
        for spec in specs
    )


def _changed(old: ContainerSpec, new: ContainerSpec) -> tuple[str, ...]:
    """Return which resources of a container differ."""
    if old.resources_json == new.resources_json:
        return ()
    before, after = orjson.loads(old.resources_json), orjson.loads(new.resources_json)
    return tuple(
        name
        for name in RESOURCES
        if any(
            before.get(kind, {}).get(name) != after.get(kind, {}).get(name)
            for kind in ("requests", "limits")
        )
    )


def _summary(pod: Pod, generation: int, error: str = "") -> str:
    """Return what the events say. Source: makeResourceSummaryFromSpec."""
    summary: dict[str, object] = {}
    kinds = (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers))
    for field, specs in kinds:
        if specs:
            summary[field] = [
                {"name": spec.name, "resources": orjson.loads(spec.resources_json)}
                for spec in specs
            ]
    summary["generation"] = generation
    if error:
        summary["error"] = error
    return orjson.dumps(summary).decode()
