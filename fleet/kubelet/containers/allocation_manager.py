"""AllocationManager: the resources that the pods of a node were given, while they change.

    pods/resize --fits--> allocated, PodResizeInProgress --applied--> done
        |does not fit: PodResizePending Deferred, tried again; never can: Infeasible

A pod of which nothing is being resized has what its spec says, and nothing is kept of it. While a
resize is pending, its worker sees the pod with the resources that it has. The pod's own resources
are resized as those of its containers are; what its cgroup has changes with the first of them.
Source: pkg/kubelet/allocation/allocation_manager.go, handlers.go; kubelet.go, HandlePodUpdates,
SyncPod; kuberuntime_manager.go, computePodResizeAction, computePodLevelResourcesResizeAction;
doPodResizeAction, validateMemoryResizeAction; pkg/kubelet/events/resize.go.
Differs: the pod's cgroup cannot be written if that of one of its containers cannot.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.effects import SetTimer, Timer
from fleet.k8s.pods import Pod, PodCondition, PodSpec, PodUid
from fleet.kubelet.containers.pod_allocation import (
    WHOLE,
    actuated_by_status,
    allocated_by_status,
    asks_more,
    changed,
    has_other_resources,
    limited_json,
    lowered_memory_limit,
    resizes_pods,
    updated_by_status,
    updated_json,
    with_resources,
)
from fleet.kubelet.events import Reason
from fleet.kubelet.pod_worker import ContainerKill, KillReason, PodWorker
from fleet.kubelet.turn import Turn
from fleet.runtime.container_usage import container_usage
from fleet.runtime.containers import RunState, Sandbox

RETRY_NS = 180 * NS_PER_S  # retryDelay: resources may have come free unseen
FIRST_RETRY_NS = 30 * NS_PER_S  # initialRetryDelay: until all pods are known
DEFERRED = "Deferred"
INFEASIBLE = "Infeasible"
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
    whole: bool = False  # the pod as a whole takes its own


NO_ACTIONS = ResizeActions()
NOTHING: Mapping[str, bytes] = {}
NOTHING_UPDATED: Mapping[PodUid, Mapping[str, bytes]] = {}
Check = Callable[[PodWorker, Pod], Refusal | None]


@dataclass(slots=True, eq=False)
class AllocationManager:
    """The resizes of one node's pods; made with the first of them."""

    _pending: dict[PodUid, _Resize] = field(default_factory=dict)
    _progress: dict[PodUid, _Resize] = field(default_factory=dict)
    _desired: dict[PodUid, Pod] = field(
        default_factory=dict
    )  # of pending ones: what the API asks for
    _actuated: dict[PodUid, dict[str, bytes]] = field(
        default_factory=dict
    )  # what containers still have
    _before: dict[PodUid, Pod] = field(default_factory=dict)  # by which a pod's cgroup still is
    _found: tuple[PodUid, ...] = ()  # left by a kubelet before us, and not looked at yet
    _ended: tuple[PodUid, ...] = ()  # pods that have by now what they were given
    # What containers have that were updated as they ran.
    _updated: Mapping[PodUid, Mapping[str, bytes]] = field(default_factory=lambda: NOTHING_UPDATED)
    _due_ns: int = 0  # of the next try, 0 when nothing is pending

    def take(self, worker: PodWorker, pod: Pod, check: Check, turn: Turn) -> Pod:
        """Take a new version of a pod; return it with the resources that it is given.

        Source: HandlePodUpdates, handlePodResourcesResize.
        """
        whole = resizes_pods(turn.env.model)
        if not has_other_resources(worker.pod, pod, whole=whole):
            self._pending.pop(pod.uid, None)
            self._desired.pop(pod.uid, None)
            return pod
        desired = self._desired.get(pod.uid)
        if desired is not None and not has_other_resources(desired, pod, whole=whole):
            self._desired[pod.uid] = pod
            return with_resources(pod, worker.pod)
        return self._allocate(worker, pod, check, turn)

    def restore(self, worker: PodWorker, turn: Turn) -> None:
        """Take over what a kubelet before us had allocated to a pod that runs.

        Source: allocation_manager.go, AddPod; status_manager.go, BackfillPodResizeConditions.
        Differs: a kubelet has checkpoints, of what it allocated and of what containers have; here
        the status of the pod says both, of requests whenever they differ.
        """
        pod, now_s = worker.pod, turn.wall_s
        if pod.spec.own_json and (updated := updated_by_status(pod)):
            self._updated = {**self._updated, pod.uid: updated}
        given = allocated_by_status(pod)
        for each in pod.status.conditions:
            known = {PENDING: self._pending, IN_PROGRESS: self._progress}.get(each.type)
            if known is not None and (known is self._progress or given is not None):
                generation = each.observed_generation
                known[pod.uid] = _Resize(generation, now_s, now_s, each.reason, each.message)
        if given is not None:
            self._desired[pod.uid] = pod
            self._pending.setdefault(pod.uid, _Resize(pod.generation, now_s, now_s))
            self._found = (*self._found, pod.uid)
            self._arm(FIRST_RETRY_NS, turn)
            worker.pod = given
        if pod.uid in self._progress:
            self._before[pod.uid], self._actuated[pod.uid] = actuated_by_status(worker.pod)

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
            self._arm(RETRY_NS, turn)
            return with_resources(pod, worker.pod)
        self._pending.pop(pod.uid, None)
        self._desired.pop(pod.uid, None)
        self._progress[pod.uid] = _Resize(pod.generation, turn.wall_s, turn.wall_s)
        self._before.setdefault(pod.uid, worker.pod)
        has = self._actuated.setdefault(pod.uid, {})
        own, updated = worker.pod.spec, self._updated.get(pod.uid, NOTHING)
        for spec in (*own.init_containers, *own.containers):
            has.setdefault(spec.name, updated.get(spec.name) or limited_json(spec, own))
        has.setdefault(WHOLE, own.own_json)
        text = _summary(pod, pod.generation)
        turn.event(pod, Reason.RESIZE_STARTED, f"Pod resize started: {text}")
        return pod

    def retry(
        self, workers: Mapping[PodUid, PodWorker], check: Check, turn: Turn
    ) -> list[PodWorker]:
        """Try the deferred resizes again; return the pods that have to be synced.

        Source: retryPendingResizes.
        """
        if self.is_due(turn):
            self._due_ns = 0
        elif self._found:
            return []  # not before all pods are known: sourcesReady
        changed = []
        for worker in self._in_order(workers[uid] for uid in self._pending if uid in workers):
            uid = worker.pod.uid
            before = self._pending[uid]
            if before.reason == INFEASIBLE and uid not in self._found:
                continue
            worker.pod = self._allocate(worker, self._desired[uid], check, turn)
            if self._pending.get(uid) != before:
                changed.append(worker)
        self._found = ()
        return changed

    def _in_order(self, workers: Iterable[PodWorker]) -> list[PodWorker]:
        """Return who is tried first: who asks for no more, is important, has waited for long.

        Source: sortPendingResizes.
        """

        def key(worker: PodWorker) -> tuple[bool, int, bool, int]:
            pod, pending = worker.pod, self._pending[worker.pod.uid]
            grows = asks_more(pod, self._desired[pod.uid])
            lesser = pod.spec.qos_class != "Guaranteed"
            return grows, -pod.spec.priority, lesser, pending.since_s

        return sorted(workers, key=key)

    def on_synced(self, turn: Turn) -> None:
        """Learn that all pods are known: what was found pending is due now."""
        if self._found:
            self._due_ns = turn.now_ns

    def is_due(self, turn: Turn) -> bool:
        """Return whether it is time to try again; a timer that fires may be of a time before."""
        return bool(self._due_ns) and turn.now_ns >= self._due_ns

    def has_deferred(self) -> bool:
        """Return whether any resize waits for resources, or for being looked at."""
        return bool(self._found) or any(
            each.reason != INFEASIBLE for each in self._pending.values()
        )

    def actions(self, pod: Pod, sandbox: Sandbox) -> ResizeActions:
        """Return what is to be changed.

        Source: computePodResizeAction, computePodLevelResourcesResizeAction.
        """
        has = self._actuated.get(pod.uid)
        if has is None:
            return NO_ACTIONS
        kill, update = [], []
        for spec in (*pod.spec.init_containers, *pod.spec.containers):
            old = has.get(spec.name)
            container = sandbox.find(spec.name)
            if old is None or container is None or container.state is not RunState.RUNNING:
                continue
            differs = changed(old, limited_json(spec, pod.spec))
            if any(name in spec.life.resize_restarts for name in differs):
                message = f"Container {spec.name} resize requires restart"
                kill.append(ContainerKill(spec.name, message, KillReason.UNKNOWN))
            elif differs:
                update.append(spec.name)
        whole = WHOLE in has and bool(changed(has[WHOLE], pod.spec.own_json))
        return ResizeActions(tuple(kill), tuple(update), whole)

    def actuate(self, uid: PodUid, name: str = WHOLE) -> None:
        """Note that a container that is new, or the pod itself, has what was allocated to it."""
        self._actuated.get(uid, {}).pop(name, None)
        if name in self._updated.get(uid, NOTHING):
            left = {key: json for key, json in self._updated[uid].items() if key != name}
            self._updated = {**self._updated, uid: left}

    def update(self, pod: Pod, name: str) -> None:
        """Note that a container was given what was allocated to it as it runs."""
        self.actuate(pod.uid, name)
        spec = pod.find(name)
        assert spec is not None, name
        if (json := updated_json(spec, pod.spec)) is not None:
            known = {**self._updated.get(pod.uid, NOTHING), name: json}
            self._updated = {**self._updated, pod.uid: known}

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
        """End the resize of a pod once nothing is left of it. Source: IsPodResizeInProgress.

        A pod that had no resources of its own has no record of them, which counts as done.
        """
        has = self._actuated.get(pod.uid)
        if has is None:
            return
        left = NO_ACTIONS if sandbox is None else self.actions(pod, sandbox)
        progress = self._progress.get(pod.uid)
        if left.kill or left.update or (left.whole and has[WHOLE]):
            begun = progress or _Resize(pod.generation, turn.wall_s, turn.wall_s)
            self._progress[pod.uid] = begun._replace(probe_s=turn.wall_s)
            return
        if not left.whole:
            del self._actuated[pod.uid]
            self._before.pop(pod.uid, None)
            self._ended = (*self._ended, pod.uid)
        if progress is not None:
            del self._progress[pod.uid]
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
            if (found := known.get(uid)) is not None and (found.reason or known is self._progress)
        )

    def actuated(self, uid: PodUid) -> Mapping[str, bytes]:
        """Return what the containers of a pod still have, where it is not what they shall have."""
        return self._actuated.get(uid, NOTHING)

    def had(self, uid: PodUid) -> Mapping[str, bytes]:
        """Return what the containers of a pod have, where it is not as if they had just started."""
        updated, actuated = self._updated.get(uid), self.actuated(uid)
        return actuated if updated is None else {**updated, **actuated}

    def in_cgroup(self, pod: Pod) -> PodSpec:
        """Return the spec that the cgroup of a pod is by: until a resize is done, the old one."""
        return self._before.get(pod.uid, pod).spec

    def as_in_cgroup(self, pod: Pod) -> Pod:
        """Return a pod with the resources that its cgroup is by."""
        before = self._before.get(pod.uid)
        return pod if before is None else with_resources(pod, before)

    def take_ended(self) -> tuple[PodUid, ...]:
        """Return the pods whose resizes have ended since this was asked last."""
        ended, self._ended = self._ended, ()
        return ended

    def forget(self, uid: PodUid) -> None:
        """Drop what is kept of a pod."""
        kept = (self._pending, self._progress, self._desired, self._actuated, self._before)
        for known in kept:
            known.pop(uid, None)
        self._found = tuple(each for each in self._found if each != uid)
        if uid in self._updated:
            self._updated = {key: each for key, each in self._updated.items() if key != uid}

    def _arm(self, delay_ns: int, turn: Turn) -> None:
        if self._due_ns <= turn.now_ns:  # not set, or of what waits no more
            self._due_ns = turn.now_ns + delay_ns
            turn.out.append(SetTimer(turn.node, self._due_ns, Timer.RESIZE))


def _summary(pod: Pod, generation: int, error: str = "") -> str:
    """Return what the events say. Source: makeResourceSummaryFromSpec."""
    summary: dict[str, object] = {}
    kinds = (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers))
    for kind, specs in kinds:
        if specs:
            summary[kind] = [
                {"name": spec.name, "resources": orjson.loads(spec.resources_json)}
                for spec in specs
            ]
    summary["generation"] = generation
    if error:
        summary["error"] = error
    return orjson.dumps(summary).decode()


POD_BELOW = "attempting to set pod memory limit (%d) below current usage (%d)"
CONTAINER_BELOW = 'attempting to set container "%s" memory limit (%d) below current usage (%d)'


def resize_error(
    pod: Pod,
    sandbox: Sandbox,
    resize: ResizeActions,
    had: Mapping[str, bytes],
    in_cgroup: PodSpec,
    turn: Turn,
) -> str:
    """Return why nothing of a resize can be applied, "" if nothing speaks against it.

    `had` are the resources that containers still have, `in_cgroup` what the pod as a whole has.
    """
    wanted = {spec.name: limited_json(spec, pod.spec) for spec in pod.spec.all_containers}
    lowered = {name: lowered_memory_limit(had[name], wanted[name]) for name in resize.update}
    if resize.kill or any("memory" in changed(had[name], wanted[name]) for name in resize.update):
        whole = lowered_memory_limit(in_cgroup.ended_json, pod.spec.ended_json)
        below = list(_below_usage(_usage(pod, sandbox, turn), lowered, whole))
        if below:
            text = below[0] if len(below) == 1 else f"[{', '.join(dict.fromkeys(below))}]"
            return f"cannot decrease memory limits: {text}"
    if not resize.whole:
        return ""
    behavior = turn.behavior(pod)
    errors = (behavior.container(spec.name).life.resize_error for spec in pod.spec.containers)
    return next((each for each in errors if each), "")


def _below_usage(usage: Mapping[str, int], lowered: Mapping[str, int], whole: int) -> Iterator[str]:
    """Yield what would be below what is used; upstream prints the pod's usage in each."""
    used = sum(usage.values())
    if whole and used >= whole:
        yield POD_BELOW % (whole, used)
    for name, memory in usage.items():
        limit = lowered.get(name, 0)
        if limit and memory >= limit:
            yield CONTAINER_BELOW % (name, limit, used)


def _usage(pod: Pod, sandbox: Sandbox, turn: Turn) -> dict[str, int]:
    """Return the memory that the containers of a pod use; what is not declared fits."""
    behavior = turn.behavior(pod)
    found = {}
    for container in sandbox.containers:
        spec = pod.find(container.name)
        if spec is not None and container.state is RunState.RUNNING:
            usage = container_usage(spec.resources_json, behavior.container(spec.name).usage)
            start_ns = container.started_s * NS_PER_S - turn.env.wall_offset_ns
            found[spec.name] = usage.memory.at(turn.now_ns - start_ns)
    return found
