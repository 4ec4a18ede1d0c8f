"""AllocationManager: the resources that the pods of a node were given, while they change.

    pods/resize --fits--> allocated, PodResizeInProgress --applied--> done
        |does not fit: PodResizePending Deferred, tried again; never can: Infeasible

A pod of which nothing is being resized has what its spec says, and nothing is kept of it. While a
resize is pending, its worker sees the pod with the resources that it has. The pod's own resources
are resized as those of its containers are; what its cgroup has changes with the first of them. A
limit of the pod itself is also one of each container that has none for that resource. Amounts are
JSON as the API renders them, with sorted keys, so that equal ones are equal bytes.
Source: pkg/kubelet/allocation/allocation_manager.go, handlers.go; kubelet.go, HandlePodUpdates,
SyncPod, recordResizeOperations; kuberuntime_manager.go, computePodResizeAction,
computePodLevelResourcesResizeAction, doPodResizeAction, validateMemoryResizeAction,
containerResourcesFromRequirements; pkg/kubelet/util/util.go, GetLimits;
pkg/kubelet/events/resize.go.
Differs: the pod's cgroup cannot be written if that of one of its containers cannot.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Timer
from fleet.k8s.pods import ContainerSpec, Pod, PodCondition, PodSpec, PodUid
from fleet.kubelet.environment import Allocations
from fleet.kubelet.events import Reason, aggregate
from fleet.kubelet.pod_worker import ContainerKill, KillReason, PodWorker, Rejection
from fleet.kubelet.turn import Turn
from fleet.quantity import parse_quantity
from fleet.runtime.container_usage import container_usage
from fleet.runtime.containers import RunState, Sandbox

RESOURCES = ("cpu", "memory")
KINDS = ("requests", "limits")
KEPT_MAX = 1024
WHOLE = ""  # in the place of a container's name: the pod itself
Resources = dict[str, dict[str, Any]]


def has_other_resources(old: Pod, new: Pod, *, whole: bool) -> bool:
    """Return whether containers, or the pod as a `whole`, ask for other resources than before."""
    before, after = old.spec, new.spec
    if before is after:
        return False
    if whole and before.own_json != after.own_json:
        return True
    had = {each.name: each.resources_json for each in (*before.init_containers, *before.containers)}
    return any(
        had.get(each.name, each.resources_json) != each.resources_json
        for each in (*after.init_containers, *after.containers)
    )


def asks_other(old: Pod, new: Pod, resource: str) -> bool:
    """Return whether a container requests another amount of a resource than it was given.

    Source: pkg/kubelet/allocation/handlers.go, guaranteedPodResourceResizeRequired.
    """
    had = {each.name: each for each in (*old.spec.init_containers, *old.spec.containers)}
    return any(
        each.name in had and _request(each, resource) != _request(had[each.name], resource)
        for each in (*new.spec.init_containers, *new.spec.containers)
    )


def _request(spec: ContainerSpec, resource: str) -> str | None:
    asked: dict[str, str] = orjson.loads(spec.requests_json) if spec.requests_json else {}
    return asked.get(resource)


def asks_more(old: Pod, new: Pod) -> bool:
    """Return whether a pod requests more CPU or memory. Source: isResizeIncreasingRequests."""
    had, asked = dict(old.spec.admission.requests), dict(new.spec.admission.requests)
    return any(asked.get(name, 0) > had.get(name, 0) for name in RESOURCES)


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
        own_json=had.own_json,
        admission=spec.admission._replace(
            requests=had.admission.requests, pod_level=had.admission.pod_level
        ),
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


def limited_json(spec: ContainerSpec, pod: PodSpec) -> bytes:
    """Return the resources of a container, with the limits of its pod where it has none."""
    return _limited(spec.resources_json, pod.own_json) if pod.own_json else spec.resources_json


@lru_cache(maxsize=KEPT_MAX)
def _limited(resources_json: bytes, own_json: bytes) -> bytes:
    found = amounts(resources_json)
    given = amounts(own_json)["limits"]
    limits = found["limits"]
    missing = {
        name: given[name]
        for name in RESOURCES
        if name in given and limits.get(name, "0") == "0" and given[name] != "0"
    }
    if not missing:
        return resources_json
    return rendered({**found, "limits": {**limits, **missing}})


def updated_json(spec: ContainerSpec, pod: PodSpec) -> bytes | None:
    """Return what a container has once it was updated as it runs; None: as if it were new.

    One that requests no CPU has the shares of its limit when it is made, and the least that there
    are when it is updated: its request is then said to be 0.
    Source: updatePodContainerResources; kuberuntime_container_linux.go, calculateLinuxResources.
    """
    found = amounts(limited_json(spec, pod))
    if "cpu" in found["requests"] or "cpu" not in found["limits"]:
        return None
    return rendered({**found, "requests": {**found["requests"], "cpu": "0"}})


def changed(had: bytes, asked: bytes) -> tuple[str, ...]:
    """Return of which resources the amounts differ."""
    if had == asked:
        return ()
    before, after = amounts(had), amounts(asked)
    return tuple(
        name
        for name in RESOURCES
        if any(before[kind].get(name, "0") != after[kind].get(name, "0") for kind in KINDS)
    )


def lowered_memory_limit(had: bytes, asked: bytes) -> int:
    """Return the limit of memory in bytes if it is new or lower than it was, else 0."""
    before, after = (
        parse_quantity(amounts(each)["limits"].get("memory", "0")).value for each in (had, asked)
    )
    return after if after and (not before or after < before) else 0


def amounts(json: bytes) -> Resources:
    """Return requests and limits; what is not there is empty."""
    found: Resources = orjson.loads(json) if json else {}
    return {"limits": {}, "requests": {}, **found}


def rendered(found: Resources) -> bytes:
    """Return amounts as JSON with sorted keys, without what is empty."""
    told = {kind: each for kind, each in found.items() if each}
    return b"%b" % orjson.dumps(told, option=orjson.OPT_SORT_KEYS)


RETRY_NS = 180 * NS_PER_S  # retryDelay: resources may have come free unseen
FIRST_RETRY_NS = 30 * NS_PER_S  # initialRetryDelay: until all pods are known
DEFERRED = "Deferred"
INFEASIBLE = "Infeasible"
IN_PROGRESS = "PodResizeInProgress"
PENDING = "PodResizePending"


def _condition(
    kind: str, generation: int, now_s: int, reason: str = "", message: str = ""
) -> PodCondition:
    """Return a condition of a resize; it is probed each time that it is found to hold."""
    return PodCondition(kind, "True", reason, message, now_s, generation, now_s)


class ResizeActions(NamedTuple):
    """What a sync has to do about a resize."""

    kill: tuple[ContainerKill, ...] = ()  # containers whose policy is RestartContainer
    update: tuple[str, ...] = ()  # containers that take their new resources as they run
    whole: bool = False  # the pod as a whole takes its own


NO_ACTIONS = ResizeActions()
NOTHING: Mapping[str, bytes] = {}
NOTHING_UPDATED: Mapping[PodUid, Mapping[str, bytes]] = {}
Check = Callable[[PodWorker, Pod], Rejection | None]
"""Why a resize cannot be allocated: ever, if the reason is Infeasible, else for now."""


@dataclass(slots=True, eq=False)
class AllocationManager:
    """The resizes of one node's pods; made with the first of them."""

    _pending: dict[PodUid, PodCondition] = field(default_factory=dict)
    _progress: dict[PodUid, PodCondition] = field(default_factory=dict)
    # of pending ones: what the API asks for
    _desired: dict[PodUid, Pod] = field(default_factory=dict)
    # what containers still have
    _actuated: dict[PodUid, dict[str, bytes]] = field(default_factory=dict)
    _before: dict[PodUid, Pod] = field(default_factory=dict)  # pods as their cgroups were last set
    _given: dict[PodUid, Pod] | None = None  # what a kubelet before us had allocated to pods
    _found: tuple[PodUid, ...] = ()  # of those, what is not looked at yet
    _ended: tuple[PodUid, ...] = ()  # pods that have by now what they were given
    # Resources of containers resized while running.
    _updated: Mapping[PodUid, Mapping[str, bytes]] = field(default_factory=lambda: NOTHING_UPDATED)
    _due_ns: int = 0  # of the next try, 0 when nothing is pending

    def take(self, worker: PodWorker, pod: Pod, check: Check, turn: Turn) -> Pod:
        """Take a new version of a pod; return it with the resources that it is given.

        Source: HandlePodUpdates, handlePodResourcesResize.
        """
        whole = turn.env.model.release.resizes_whole_pods
        if not has_other_resources(worker.pod, pod, whole=whole):
            self._pending.pop(pod.uid, None)
            self._desired.pop(pod.uid, None)
            return pod
        desired = self._desired.get(pod.uid)
        if desired is not None and not has_other_resources(desired, pod, whole=whole):
            self._desired[pod.uid] = pod
            return with_resources(pod, worker.pod)
        return self._allocate(worker, pod, check, turn)

    def checkpoint(self, workers: Mapping[PodUid, PodWorker]) -> Allocations:
        """Return what outlives a kubelet, restored or not. Source: pkg/kubelet/allocation/state."""
        given = {uid: worker.pod for uid, worker in workers.items()}
        return Allocations(
            {**(self._given or {}), **given}, self._before, self._actuated, self._updated
        )

    @classmethod
    def read(cls, left: Allocations | None) -> "AllocationManager":
        """Return the manager of a kubelet, with what one before it left."""
        if left is None:
            return cls()
        given, before, actuated, updated = left
        return cls(_given=given, _before=before, _actuated=actuated, _updated=updated)

    def restore(self, worker: PodWorker, turn: Turn) -> None:
        """Take over what a kubelet before us had allocated to a pod that runs.

        Source: allocation_manager.go, AddPod; status_manager.go, BackfillPodResizeConditions.
        Differs: after a restart of fleet a pod has what its spec says.
        """
        pod, now_s = worker.pod, turn.wall_s
        given = (self._given or {}).pop(pod.uid, None)
        if given is None:
            return
        whole = turn.env.model.release.resizes_whole_pods
        is_pending = has_other_resources(given, pod, whole=whole)
        for each in pod.status.conditions:
            known = {PENDING: self._pending, IN_PROGRESS: self._progress}.get(each.type)
            if known is not None and (known is self._progress or is_pending):
                known[pod.uid] = each._replace(transition_s=now_s, probe_s=now_s)
        if is_pending:
            self._desired[pod.uid] = pod
            self._pending.setdefault(pod.uid, _condition(PENDING, pod.generation, now_s))
            self._found = (*self._found, pod.uid)
            self._arm(FIRST_RETRY_NS, turn)
            worker.pod = with_resources(pod, given)

    def _allocate(self, worker: PodWorker, pod: Pod, check: Check, turn: Turn) -> Pod:
        rejection = check(worker, pod)
        if rejection is not None:
            is_final = rejection.reason == INFEASIBLE
            reason = INFEASIBLE if is_final else DEFERRED
            before, now_s = self._pending.get(pod.uid), turn.wall_s
            found = _condition(PENDING, pod.generation, now_s, reason, rejection.message)
            if before and before.reason == reason:
                found = found._replace(transition_s=before.transition_s)
            self._pending[pod.uid] = found
            self._desired[pod.uid] = pod
            told = (reason, pod.generation)
            if before is None or (before.reason, before.observed_generation) != told:
                event = Reason.RESIZE_INFEASIBLE if is_final else Reason.RESIZE_DEFERRED
                text = _summary(pod, pod.generation, rejection.message)
                self._report(pod, event, f"Pod resize {rejection.reason}: {text}", turn)
            self._arm(RETRY_NS, turn)
            return with_resources(pod, worker.pod)
        self._pending.pop(pod.uid, None)
        self._desired.pop(pod.uid, None)
        self._progress[pod.uid] = _condition(IN_PROGRESS, pod.generation, turn.wall_s)
        self._before.setdefault(pod.uid, worker.pod)
        has = self._actuated.setdefault(pod.uid, {})
        own, updated = worker.pod.spec, self._updated.get(pod.uid, NOTHING)
        for spec in (*own.init_containers, *own.containers):
            has.setdefault(spec.name, updated.get(spec.name) or limited_json(spec, own))
        has.setdefault(WHOLE, own.own_json)
        text = _summary(pod, pod.generation)
        self._report(pod, Reason.RESIZE_STARTED, f"Pod resize started: {text}", turn)
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
            return grows, -pod.spec.priority, lesser, pending.transition_s

        return sorted(workers, key=key)

    def on_synced(self, workers: Iterable[PodUid], turn: Turn) -> None:
        """Forget pods that are gone; what was found pending is due. Source: RemoveOrphanedPods."""
        self._given = None
        for uid in {*self._before, *self._actuated, *self._updated}.difference(workers):
            self.forget(uid)
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

    def actions(
        self, pod: Pod, sandbox: Sandbox, start: tuple[ContainerSpec, ...]
    ) -> ResizeActions:
        """Return what a sync that starts these changes: the pod itself once it is initialized.

        Source: computePodActions, computePodResizeAction, computePodLevelResourcesResizeAction.
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
        begins = any(each in start or sandbox.find(each.name) for each in pod.spec.containers)
        whole = begins and WHOLE in has and bool(changed(has[WHOLE], pod.spec.own_json))
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

    def error(self, worker: PodWorker, sandbox: Sandbox, resize: ResizeActions, turn: Turn) -> str:
        """Return why nothing of a resize can be applied, "" if nothing speaks against it."""
        pod = worker.pod
        had, in_cgroup = self.actuated(pod.uid), self.in_cgroup(pod)
        wanted = {spec.name: limited_json(spec, pod.spec) for spec in pod.spec.all_containers}
        lowered = {name: lowered_memory_limit(had[name], wanted[name]) for name in resize.update}
        started = (each.name for each in worker.plan if each.name in had)
        restarts = any(changed(had[name], wanted[name]) for name in started)
        if restarts or any("memory" in changed(had[name], wanted[name]) for name in resize.update):
            whole = lowered_memory_limit(in_cgroup.ended_json, pod.spec.ended_json)
            below = aggregate(_below_usage(_usage(pod, sandbox, turn), lowered, whole))
            if below:
                return f"cannot decrease memory limits: {below}"
        if not resize.whole:
            return ""
        behavior = turn.behavior(pod)
        errors = (behavior.container(spec.name).life.resize_error for spec in pod.spec.containers)
        return next((each for each in errors if each), "")

    def fail(self, pod: Pod, message: str, turn: Turn) -> None:
        """Note that the runtime could not apply a resize.

        Source: SyncPod, ResizePodInPlace; updatedPodResizeCondition.
        """
        begun = _condition(IN_PROGRESS, pod.generation, turn.wall_s)
        before = self._progress.get(pod.uid, begun)
        is_known = before.reason == "Error"
        now = before._replace(reason="Error", message=message, probe_s=turn.wall_s)
        self._progress[pod.uid] = now if is_known else now._replace(transition_s=turn.wall_s)
        if not is_known or message != before.message:
            text = _summary(pod, before.observed_generation, message)
            self._report(pod, Reason.RESIZE_ERROR, f"Pod resize error: {text}", turn)

    def _report(self, pod: Pod, reason: Reason, message: str, turn: Turn) -> None:
        """Record an event about a resize that is not done."""
        if turn.env.model.release.reports_resizes:
            turn.event(pod, reason, message)

    def look(self, pod: Pod, sandbox: Sandbox | None, turn: Turn) -> None:
        """End the resize of a pod once nothing is left of it. Source: IsPodResizeInProgress.

        A pod that had no resources of its own has no record of them, which counts as done.
        """
        has = self._actuated.get(pod.uid)
        if has is None:
            return
        left = NO_ACTIONS if sandbox is None else self.actions(pod, sandbox, pod.spec.containers)
        progress = self._progress.get(pod.uid)
        if left.kill or left.update or (left.whole and has[WHOLE]):
            begun = progress or _condition(IN_PROGRESS, pod.generation, turn.wall_s)
            self._progress[pod.uid] = begun._replace(probe_s=turn.wall_s)
            return
        if not left.whole:
            del self._actuated[pod.uid]
            self._before.pop(pod.uid, None)
            self._ended = (*self._ended, pod.uid)
        if progress is not None:
            del self._progress[pod.uid]
            text = _summary(pod, progress.observed_generation)
            turn.event(pod, Reason.RESIZE_COMPLETED, f"Pod resize completed: {text}")

    def conditions(self, uid: PodUid) -> tuple[PodCondition, ...]:
        """Return what the status says of the resize of a pod."""
        pending, progress = self._pending.get(uid), self._progress.get(uid)
        shown = (pending if pending and pending.reason else None, progress)
        return tuple(each for each in shown if each is not None)

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
            turn.arm(self._due_ns, Timer.RESIZE)


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
