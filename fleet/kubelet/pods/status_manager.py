"""StatusManager: versioned pod statuses, sent one at a time.

    set_pod_status -> queued -> batch -> GET -> PATCH -> [DELETE] -> next

One request of one pod is in flight per node. As soon as nothing is left to send, what is queued
becomes the next batch: each pod once, with its newest status at that instant, however long the
others take; what changes while a batch is sent is in the next one. What failed is tried again with
the next status of any pod, or at the next tick of 10 s; that tick also overwrites what others
changed in our fields. The tick is armed only when it has something to do. A pod that is gone is
read again with each batch, until housekeeping drops its status.
Source: pkg/kubelet/status/status_manager.go, updateStatusInternal, syncBatch, syncPod,
mergePodStatus, canBeDeleted, RemoveOrphanedStatuses.
Differs: the client's limit of 50 requests a second is not applied here; a batch has the order in
which pods were queued, not a random one. In `light` the patch is computed from what the watch and
our own last patch said, and always sends the newest status; the last status of a pod that is
deleted is left out unless somebody waits for it: one DELETE ends it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s import effects
from fleet.k8s.pods import Pod, PodCondition, PodStatus, PodUid, PodView, TerminatedState
from fleet.k8s.well_known import DISRUPTION_TARGET
from fleet.kubelet.containers.pod_actions import could_restart_all, should_restart
from fleet.kubelet.pod_worker import TERMINAL_PHASES
from fleet.kubelet.pods.status_generate import FINAL_REASONS, OWNED_CONDITIONS, shared_condition
from fleet.kubelet.turn import Turn

SYNC_PERIOD_NS = 10 * NS_PER_S  # syncPeriod
_STREAM_PHASE = 0x57A705


_NO_MIRRORS: dict[PodUid, PodUid] = {}
_NOTHING: dict[PodUid, PodStatus] = {}  # shared: it stays empty


class _Update(NamedTuple):
    """What one pod of a batch is to be reported as."""

    uid: PodUid
    version: int
    status: PodStatus
    finished: bool


@dataclass(slots=True, eq=False)
class _Entry:
    """The newest status of one pod, and how far the server knows it."""

    pod: Pod  # any version: its names never change
    status: PodStatus
    version: int = 0
    sent: int = 0  # the version that the server has
    finished: bool = False  # the pod worker is done: the object may go
    api: PodStatus | None = None  # our last patch, until the watch shows a newer one

    def update(self, uid: PodUid) -> _Update:
        return _Update(uid, self.version, self.status, self.finished)


_NO_BATCH: list[_Update] = []  # shared: it stays empty
_NO_UPDATE = _Update(PodUid(""), 0, PodStatus(), finished=False)


@dataclass(slots=True, eq=False)
class StatusManager:
    """The statuses of one node's pods."""

    _due_ns: int = 0  # of the full pass, 0 when none is armed
    _entries: dict[PodUid, _Entry] = field(default_factory=dict)
    _queue: dict[PodUid, None] = field(default_factory=dict)
    _batch: list[_Update] = field(default_factory=lambda: _NO_BATCH)  # the next one last
    _failed: dict[PodUid, None] = field(default_factory=dict)
    _suspects: dict[PodUid, None] = field(default_factory=dict)  # for the full pass
    _busy: PodUid | None = None  # the pod whose request is in flight
    _sending: _Update = _NO_UPDATE  # what is in flight, as of its batch
    _deleting: bool = False
    # Of static pods: the status of the mirror that one finds, and the uid of its mirror.
    _inherited: dict[PodUid, PodStatus] = field(default_factory=lambda: _NOTHING)
    mirrors: dict[PodUid, PodUid] = field(default_factory=lambda: _NO_MIRRORS)
    _asked_ns: int = 0  # when the request in flight was asked for
    under_way_ns: int = 0  # how long those that were answered took, in all

    def under_way_until(self, now_ns: int) -> int:
        """Return for how long a request has been under way, in all."""
        return self.under_way_ns + (now_ns - self._asked_ns if self._busy is not None else 0)

    def status(self, uid: PodUid) -> PodStatus | None:
        """Return the newest status of a pod."""
        entry = self._entries.get(uid)
        return entry.status if entry is not None else None

    def last_status(self, pod: Pod) -> PodStatus:
        """Return the status generated last, else the API's."""
        return self.status(pod.uid) or pod.status

    def set_pod_status(
        self,
        pod: Pod,
        status: PodStatus,
        wall_s: int,
        *,
        finished: bool = False,
        known: bool = False,
        begins: bool = True,
    ) -> bool:
        """Take a status; queue it unless it says what was said. Return whether it is new.

        `known` (light): the server has it if the watch shows it. `begins`: with a batch, if none
        is under way.
        """
        entry = self._entries.get(pod.uid)
        old = entry.status if entry is not None else self._inherited.pop(pod.uid, pod.status)
        if _revives(pod, old, status):
            return False
        status = _stamp(status, old, wall_s)
        forced = finished or pod.deleting
        if entry is None:
            entry = self._entries[pod.uid] = _Entry(pod, status)
            if known and not forced and is_equal_by_kubelet(pod.status, status):
                return False
        elif not forced and is_equal_by_kubelet(entry.status, status):
            return False
        entry.pod = pod
        entry.status = status
        entry.version += 1
        entry.finished = entry.finished or finished
        if entry.version > entry.sent:
            self._queue[pod.uid] = None
        self._queue.update(self._failed)
        self._failed.clear()
        if begins and self._busy is None and not self._batch:
            self._begin_batch()  # what follows in this instant comes after requests to the runtime
        return True

    def next(self) -> PodUid | None:
        """Return the pod whose status is to be sent now. Source: syncBatch."""
        while self._busy is None and (self._batch or self._queue):
            if not self._batch:
                self._begin_batch()
                continue
            self._sending = self._batch.pop()
            if self._sending.uid in self._entries:
                return self._sending.uid
        return None

    def _begin_batch(self) -> None:
        known = ((uid, self._entries.get(uid)) for uid in reversed(self._queue))
        self._batch = [entry.update(uid) for uid, entry in known if entry is not None]
        self._queue.clear()

    def send(self, uid: PodUid, pod: Pod | None, turn: Turn, *, may_run: bool) -> None:
        """Begin to send what `next` returned; `pod` is None once its object is gone."""
        entry = self._entries[uid]
        if not turn.env.fidelity.reads_before_patch:
            self._sending = entry.update(uid)
        if turn.env.fidelity.reads_before_patch:
            self._busy, self._asked_ns = uid, turn.now_ns
            turn.call(effects.Op.GET_POD, uid, _target(entry.pod))
        elif pod is None:
            entry.sent = entry.version
        elif entry.finished and pod.deleting and not pod.end_matters:
            self._delete(uid, entry, turn)
        else:
            old = entry.api or pod.status
            self._deleting = pod.deleting
            self._patch(uid, entry, old, pod.status.phase, turn, may_run=may_run)

    def on_reply(
        self, call: effects.ApiCall, reply: effects.Reply, turn: Turn, *, may_run: bool
    ) -> PodStatus | None:
        """Go one step on with the pod in flight; return the status that the server just took.

        A pod that is not found is deleted again until the watch shows that it is gone: an API
        server that has just started knows no pods yet when it checks a node's right to delete one.
        Source: syncPod; plugin/pkg/admission/noderestriction, admitPod.
        """
        uid = PodUid(call.key)
        if uid != self._busy:
            return None
        self._busy = None
        entry = self._entries.get(uid)
        if entry is None or (call.op is effects.Op.DELETE_POD and reply.ok):
            self._entries.pop(uid, None)
        elif not reply.ok:
            self._failed[uid] = None
            self._arm(turn)
        elif call.op is effects.Op.PATCH_POD_STATUS:
            patch = call.payload
            assert isinstance(patch, effects.PodStatusPatch), call
            if not turn.env.fidelity.reads_before_patch:
                entry.api = entry.status if patch.new == entry.status else patch.new
            self._patched(uid, entry, patch.new.phase, turn)
            return patch.new
        else:
            self._on_got(uid, entry, reply, turn, may_run=may_run)
        return None

    def on_pod(self, pod: Pod, turn: Turn) -> None:
        """Look at a new version of a pod: the server may not show what we say.

        Source: needsUpdate, needsReconcile.
        """
        entry = self._entries.get(pod.uid)
        if entry is None:
            return
        entry.pod = pod
        if entry.status == pod.status:
            pod.status = entry.status  # one copy of equal values
        if entry.sent != entry.version:
            if pod.uid != self._busy or not pod.deleting:
                return
        else:
            entry.api = None
            if not self._needs_sync(pod, entry):
                return
        self._suspects[pod.uid] = None  # what is in flight may not know that it is being deleted
        self._arm(turn)

    def suspects(self, now_ns: int) -> list[PodUid]:
        """Return the pods that the due full pass looks at; empty when it is not due."""
        if not self._due_ns or now_ns < self._due_ns:
            return []
        self._due_ns = 0
        self._queue.update(self._failed)
        self._failed.clear()
        found = list(self._suspects)
        self._suspects.clear()
        return found

    def reconcile(self, pod: Pod) -> None:
        """Send the status of a suspect again if the server still does not show it."""
        entry = self._entries.get(pod.uid)
        if entry is not None and self._needs_sync(pod, entry):
            self._queue[pod.uid] = None

    def set_mirror(self, uid: PodUid, mirror: PodUid) -> None:
        """Note under which uid the API knows a static pod."""
        if self.mirrors is _NO_MIRRORS:
            self.mirrors = {}
        self.mirrors[uid] = mirror

    def inherit(self, uid: PodUid, shown: PodStatus) -> None:
        """Note what the mirror of a new static pod's name shows: its times go on.

        Source: updateStatusInternal, GetMirrorPodByPod.
        """
        if self._inherited is _NOTHING:
            self._inherited = {}
        self._inherited[uid] = shown

    def send_again(self, uid: PodUid, turn: Turn) -> None:
        """Send the status of a static pod to its new mirror, with the next one or the full pass."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.sent = 0
            entry.api = None
            self._failed[uid] = None
            self._arm(turn)

    def is_unsent(self, uid: PodUid) -> bool:
        """Return whether the server lacks the newest status of a pod."""
        entry = self._entries.get(uid)
        return entry is not None and entry.sent < entry.version

    def drop(self, uid: PodUid, *, knows: bool) -> None:
        """Drop the status of a pod that is gone and still ends, which may set another one.

        `knows`: how many versions the server has taken is not forgotten, so that the pod is read
        again only after as many new ones. Source: RemoveOrphanedStatuses; syncBatch,
        apiStatusVersions.
        """
        entry = self._entries.get(uid)
        self.forget(uid)
        if entry is not None and knows:
            self._entries[uid] = _Entry(entry.pod, entry.pod.status, sent=entry.sent)

    def __iter__(self) -> Iterator[PodUid]:
        """Return the pods of which there is a status."""
        return iter(self._entries)

    def forget(self, uid: PodUid) -> None:
        """Drop a pod that is no longer known."""
        self._entries.pop(uid, None)
        self._inherited.pop(uid, None)
        self._queue.pop(uid, None)
        self._failed.pop(uid, None)
        self._suspects.pop(uid, None)

    def _needs_sync(self, pod: Pod, entry: _Entry) -> bool:
        is_last = entry.finished and pod.deleting and pod.status.phase in TERMINAL_PHASES
        if is_last and pod.uid not in self.mirrors:
            return True
        return not is_equal_by_kubelet(pod.status, entry.status)

    def _on_got(
        self, uid: PodUid, entry: _Entry, reply: effects.Reply, turn: Turn, *, may_run: bool
    ) -> None:
        view = reply.record
        assert isinstance(view, (Pod, PodView)), reply
        if view.uid != self.mirrors.get(uid, uid):
            if uid not in self.mirrors:  # a new mirror is sent to when the watch shows it
                del self._entries[uid]  # recreated under the same name
            return
        self._deleting = view.deleting
        self._patch(uid, entry, view.status, view.status.phase, turn, may_run=may_run)

    def _patch(
        self,
        uid: PodUid,
        entry: _Entry,
        old: PodStatus,
        old_phase: str,
        turn: Turn,
        *,
        may_run: bool,
    ) -> None:
        """Send the merged status, or go on when the server has it already."""
        new = merge_pod_status(old, self._sending.status, turn.wall_s, may_run=may_run)
        if new == old:
            self._patched(uid, entry, old_phase, turn)
            return
        self._busy, self._asked_ns = uid, turn.now_ns
        pod = entry.pod
        payload = effects.PodStatusPatch(
            pod.namespace, pod.name, self.mirrors.get(uid, uid), old, new, pod.token_suffix
        )
        turn.call(effects.Op.PATCH_POD_STATUS, uid, payload)

    def _patched(self, uid: PodUid, entry: _Entry, phase: str, turn: Turn) -> None:
        """Note what the server has, and delete the object if that was the last of it."""
        entry.sent = self._sending.version
        is_last = self._deleting and self._sending.finished and phase in TERMINAL_PHASES
        if is_last and uid not in self.mirrors:
            self._delete(uid, entry, turn)

    def _delete(self, uid: PodUid, entry: _Entry, turn: Turn) -> None:
        self._busy, self._asked_ns = uid, turn.now_ns
        turn.call(effects.Op.DELETE_POD, uid, _target(entry.pod))

    def _arm(self, turn: Turn) -> None:
        """Arm the next full pass, unless it is armed."""
        if not self._due_ns:
            share = turn.env.draws.uniform(turn.node, _STREAM_PHASE, 0)
            phase_ns = int(share * SYNC_PERIOD_NS)
            self._due_ns = turn.now_ns + (phase_ns - turn.now_ns) % SYNC_PERIOD_NS
            if self._due_ns == turn.now_ns:
                self._due_ns += SYNC_PERIOD_NS
            turn.arm(self._due_ns, effects.Timer.STATUS_SYNC)


def _target(pod: Pod) -> effects.PodTarget:
    return effects.PodTarget(pod.namespace, pod.name)


def _revives(pod: Pod, old: PodStatus, new: PodStatus) -> bool:
    """Return whether a container leaves its end that was for good: such a status is dropped.

    Source: checkContainerStateTransition.
    """
    policy = pod.spec.restart_policy
    if policy == "Always" or could_restart_all(pod):
        return False
    shown = (*new.init_containers, *new.containers)
    alive = {each.name for each in shown if not isinstance(each.state, TerminatedState)}
    for each in (*old.init_containers, *old.containers):
        if each.name in alive and isinstance(each.state, TerminatedState):
            spec, code = pod.find(each.name), each.state.exit_code
            again = bool(code) and policy == "OnFailure"
            if not again and not (spec and should_restart(spec, pod, code)):
                return True
    return False


def _stamp(status: PodStatus, old: PodStatus, wall_s: int) -> PodStatus:
    """Set what must not move between updates: transition times, start time, generation.

    Source: updateStatusInternal, updateLastTransitionTime.
    """
    before = {each.type: each for each in old.conditions}
    stamped = []
    for each in status.conditions:
        ours = each.type in OWNED_CONDITIONS and not each.probe_s
        if not ours and (each.type != DISRUPTION_TARGET or each.transition_s):
            stamped.append(each)
            continue
        known = before.get(each.type)
        since_s = known.transition_s if known and known.status == each.status else wall_s
        stamped.append(
            shared_condition(
                each.type, each.status, each.reason, each.message, since_s, each.observed_generation
            )
        )
    return status._replace(
        conditions=share_conditions(tuple(stamped)),
        start_time_s=old.start_time_s or status.start_time_s or wall_s,
        observed_generation=max(status.observed_generation, old.observed_generation),
    )


@lru_cache(maxsize=4096)
def share_conditions(conditions: tuple[PodCondition, ...]) -> tuple[PodCondition, ...]:
    """Return the one tuple of these conditions: pods that start together share it."""
    return conditions


def is_equal_by_kubelet(old: PodStatus, new: PodStatus) -> bool:
    """Compare what kubelets own; not times and generations of conditions.

    Source: isPodStatusByKubeletEqual.
    """
    if old is new:
        return True
    if old.conditions != new.conditions:
        if _owned(old) != _owned(new):
            return False
        old = old._replace(conditions=new.conditions)
    return old == new


def _owned(status: PodStatus) -> dict[str, tuple[str, str, str]]:
    return {
        each.type: (each.status, each.reason, each.message)
        for each in status.conditions
        if each.type in OWNED_CONDITIONS or each.type == DISRUPTION_TARGET
    }


def merge_pod_status(old: PodStatus, new: PodStatus, wall_s: int, *, may_run: bool) -> PodStatus:
    """Merge what others own into our status; hold a terminal phase back while containers may run.

    DisruptionTarget is ours too once the pod becomes terminal, and goes out with the phase: that
    is its transition. Source: mergePodStatus.
    """
    ends = not may_run and new.phase in TERMINAL_PHASES and old.phase not in TERMINAL_PHASES
    shared = tuple(
        _since_now(each, old, wall_s)
        for each in new.conditions
        if ends and each.type == DISRUPTION_TARGET
    )
    others = tuple(
        each
        for each in old.conditions
        if each.type not in OWNED_CONDITIONS and not (shared and each.type == DISRUPTION_TARGET)
    )
    owned = tuple(each for each in new.conditions if each.type in OWNED_CONDITIONS)
    phase, reason, message = new.phase, new.reason, new.message
    if may_run and phase in TERMINAL_PHASES and old.phase not in TERMINAL_PHASES:
        phase, reason, message = old.phase, old.reason, old.message
    if phase in TERMINAL_PHASES:
        owned = tuple(_not_ready(each, phase) for each in owned)
    return new._replace(
        phase=phase,
        reason=reason,
        message=message,
        conditions=share_conditions((*others, *shared, *owned)),
    )


def _since_now(condition: PodCondition, old: PodStatus, wall_s: int) -> PodCondition:
    """Stamp a condition that is sent now, unless the server shows the same status of it.

    Source: updateLastTransitionTime.
    """
    for known in old.conditions:
        if known.type == condition.type and known.status == condition.status:
            return condition._replace(transition_s=known.transition_s)
    return condition._replace(transition_s=wall_s)


def _not_ready(condition: PodCondition, phase: str) -> PodCondition:
    """Make sure that no pod is Ready in a terminal phase (kubernetes issue 108594)."""
    if condition.type in {"Ready", "ContainersReady"} and condition.status == "True":
        return condition._replace(status="False", reason=FINAL_REASONS[phase], message="")
    return condition
