"""PodManager: the static pods of one node, and their mirror pods in the API.

    manifest -> static pod -> mirror POSTed -> its status is the static pod's
                                |deleted, or of another hash: DELETE with uid, POST again
    manifest gone -> pod ends -> housekeeping -> mirror DELETEd

A sync of a static pod acts on the mirror as it was when the sync was asked for, not on the one
that there is by then: a mirror that has gone since is deleted once more, which is answered with
404, or 409 where its successor is there, and nothing is made before the next sync. What is asked
for while the requests of a sync are under way waits for their answers.

It exists while the node has static pods or mirrors. Both are known by their full name; a changed
manifest makes another static pod of the same name, which waits until the old one has ended.
Source: pkg/kubelet/pod/pod_manager.go, mirror_client.go; kubelet.go, tryReconcileMirrorPods,
fastStaticPodsRegistration; pod_workers.go, UpdatePodOptions, startPodSync, allowStaticPodStart;
kubelet_pods.go, HandlePodCleanups.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, MirrorPodObject, MirrorTarget, Op, Reply, Timer
from fleet.k8s.pods import Pod
from fleet.k8s.static_pods import FILE, StaticManifest, StaticPod
from fleet.k8s.well_known import MIRROR_ANNOTATION
from fleet.kubelet.pod_worker import BACKOFF_PERIOD_NS
from fleet.kubelet.turn import Turn

HOUSEKEEPING_NS = 2 * NS_PER_S  # housekeepingPeriod
BACKOFF_JITTER = 0.5  # workerBackOffPeriodJitterFactor
_STREAM_HOUSEKEEPING = 0x40CE
_STREAM_RESYNC = 0x40CF
_STREAM_START = 0x40D0


class Captured(NamedTuple):
    """The mirror of a name when a sync was asked for that has something to do about it."""

    mirror: Pod | None  # to be deleted; None: to be made


@dataclass(slots=True, eq=False)
class _Entry:
    """One full name: the static pod that is wanted, and the mirror as the watch shows it."""

    static: StaticPod | None = None
    waiting: bool = False  # until the pod that had the name before has ended
    start_ns: int = 0  # when it may be looked again whether it has
    mirror: Pod | None = None
    asked: Captured | None = None  # of the sync that is pending
    begun: Captured | None = None  # of the sync that waits for a relist
    busy: bool = False  # a call about the mirror is in flight
    posted: bool = False  # the POST was answered, the watch does not show it yet
    retry_ns: int = 0


@dataclass(slots=True, eq=False)
class PodManager:
    """Static pods and mirrors of one node, by full name."""

    _entries: dict[str, _Entry] = field(default_factory=dict)
    _due_ns: int = 0  # of housekeeping, 0 when there is nothing to clean up

    def is_empty(self) -> bool:
        """Return whether there is neither a static pod nor a mirror."""
        return not self._entries

    def __iter__(self) -> Iterator[StaticPod]:
        return (each.static for each in self._entries.values() if each.static is not None)

    def take(
        self, wanted: Iterable[StaticManifest], turn: Turn
    ) -> tuple[list[StaticPod], list[StaticPod]]:
        """Take what the files say; return the pods that are gone, and those that are new.

        Of files that name one pod the last one counts. Source: config/file.go, newSourceFile: its
        store has a pod of each name, so that filterInvalidPods of config.go finds none twice.
        """
        known = {each.uid: each for each in self}
        named: dict[str, StaticPod] = {}
        for manifest in wanted:
            pod = manifest.pod_of(turn.facts.name, turn.wall_ns)
            named[pod.full_name] = known.get(pod.uid, pod)
        pods = {pod.uid: pod for pod in named.values()}
        gone = [pod for uid, pod in known.items() if uid not in pods]
        added = [pod for uid, pod in pods.items() if uid not in known]
        for pod in gone:
            self._entries[pod.full_name].static = None
        return gone, added

    def add(self, pod: StaticPod, turn: Turn, *, may_start: bool) -> bool:
        """Keep a new static pod; return whether it starts now, or waits for its namesake."""
        entry = self._entries.setdefault(pod.full_name, _Entry())
        entry.static = pod
        entry.asked = entry.begun = None
        entry.waiting = not may_start
        if not may_start:
            self._wait(pod.full_name, entry, turn)
        return may_start

    def waits_no_more(self, name: str, turn: Turn, *, is_free: bool) -> StaticPod | None:
        """Return the static pod that may start now that its time has come and its name is free."""
        entry = self._entries.get(name)
        if entry is None or not entry.waiting or turn.now_ns < entry.start_ns:
            return None
        if not is_free and entry.static is not None:
            self._wait(name, entry, turn)
            return None
        entry.waiting = False
        return entry.static

    def _wait(self, name: str, entry: _Entry, turn: Turn) -> None:
        """Look again after a back-off. Source: pod_workers.go, allowPodStart."""
        share = turn.draw(_STREAM_START, name)
        entry.start_ns = turn.now_ns + int(BACKOFF_PERIOD_NS * (1 + BACKOFF_JITTER * share))
        turn.arm(entry.start_ns, Timer.STATIC_PODS, name)

    def static_of(self, mirror: Pod) -> StaticPod | None:
        """Return the static pod that a mirror is of."""
        entry = self._entries.get(mirror.full_name)
        return entry.static if entry is not None else None

    def mirror_of(self, pod: Pod) -> Pod | None:
        """Return the mirror of a static pod as the watch shows it."""
        entry = self._entries.get(pod.full_name)
        if entry is None or entry.mirror is None or not is_mirror_of(entry.mirror, pod):
            return None
        return entry.mirror

    def shown_of(self, pod: Pod) -> Pod | None:
        """Return the mirror of a pod's name, whosever it is."""
        entry = self._entries.get(pod.full_name)
        return entry.mirror if entry is not None else None

    def is_superseded(self, pod: Pod) -> bool:
        """Return whether another static pod has taken the name of this one."""
        entry = self._entries.get(pod.full_name)
        return entry is not None and entry.static is not None and entry.static.uid != pod.uid

    def on_mirror(self, mirror: Pod, turn: Turn, *, gone: bool) -> None:
        """Take the mirror as the watch shows it."""
        entry = self._entries.setdefault(mirror.full_name, _Entry())
        static = entry.static
        if not gone:
            entry.mirror = mirror
            entry.posted = entry.posted and static is not None and is_in_need(mirror, static)
        elif entry.mirror is not None and entry.mirror.uid == mirror.uid:
            entry.mirror = None
        if static is not None:
            waits = not (turn.env.model.release.heeds_unadmitted or entry.retry_ns)
            is_needed = gone or (waits and _captured(entry.mirror, static) is not None)
            self._arm_resync(mirror.full_name, entry, turn, is_needed=is_needed)
            return
        entry.posted = False
        if entry.mirror is not None:
            self.arm(turn)
        elif not entry.busy:
            del self._entries[mirror.full_name]

    def _entry_of(self, pod: Pod) -> _Entry | None:
        """Return the entry of a pod that is static and wanted, and has its name for itself."""
        if not isinstance(pod, StaticPod):
            return None
        entry = self._entries.get(pod.full_name)
        return entry if entry is not None and entry.static is pod and not entry.waiting else None

    def ask(self, pod: Pod) -> None:
        """Note what the sync that is asked for now is to do about the mirror that there is."""
        entry = self._entry_of(pod)
        if entry is not None:
            entry.asked = _captured(entry.mirror, pod)

    def ask_about(self, pod: Pod, mirror: Pod) -> bool:
        """Note the same of a mirror that the watch has just shown, or that is gone.

        Return whether a sync is to do something at once. Source: GetPodAndMirrorPod.
        """
        entry = self._entry_of(pod)
        if entry is None:
            return False
        entry.asked = _captured(mirror, pod)
        return entry.asked is not None and not entry.busy

    def begin(self, pod: Pod) -> None:
        """Begin the sync that was asked for, which waits for a relist. Source: startPodSync."""
        entry = self._entry_of(pod)
        if entry is not None and entry.begun is None and not entry.busy:
            entry.begun, entry.asked = entry.asked, None

    def begun(self, pod: Pod) -> Captured | None:
        """Return what the sync that runs now is to do."""
        entry = self._entry_of(pod)
        if entry is None:
            return None
        self.begin(pod)
        found, entry.begun = entry.begun, None
        return found

    def has_begun(self, pod: Pod) -> bool:
        """Return whether a sync with something to do waits for a relist."""
        entry = self._entry_of(pod)
        return entry is not None and entry.begun is not None

    def is_asked(self, pod: Pod) -> bool:
        """Return whether a sync with something to do is pending, and no request keeps it."""
        entry = self._entry_of(pod)
        return entry is not None and entry.asked is not None and not entry.busy

    def reconcile(self, pod: Pod, captured: Captured | None, turn: Turn) -> None:
        """Do about the mirror of a pod what its sync is to do. Source: tryReconcileMirrorPods."""
        entry = None if captured is None else self._entry_of(pod)
        if captured is None or entry is None or entry.static is None:
            return
        if entry.busy:
            entry.asked = entry.asked or captured
        elif captured.mirror is None:
            self._create(pod.full_name, entry, entry.static, turn)
        else:
            self._delete(pod.full_name, entry, captured.mirror, captured.mirror.uid, turn)

    def make_all(self, turn: Turn) -> None:
        """Make sure that each pod has its mirror. Source: fastStaticPodsRegistration."""
        for pod in list(self):
            self.ask(pod)
            self.reconcile(pod, self.begun(pod), turn)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> StaticPod | None:
        """Take the answer to a POST or DELETE of a mirror; return a pod that is to be synced."""
        name = call.key
        entry = self._entries.get(name)
        if entry is None:
            return None
        entry.busy = False
        static, target = entry.static, call.payload
        if static is None:
            if isinstance(target, MirrorTarget) and reply.ok and entry.mirror is not None:
                entry.mirror = entry.mirror if target.uid not in {"", entry.mirror.uid} else None
            if entry.mirror is None:
                del self._entries[name]
            else:
                self.arm(turn)
            return None
        if call.op is Op.CREATE_MIRROR_POD:
            entry.posted = reply.ok and _captured(entry.mirror, static) is not None
        elif reply.ok and not entry.waiting:
            self._create(name, entry, static, turn)
        if entry.busy:
            return None
        is_needed = _captured(entry.mirror, static) is not None
        self._arm_resync(name, entry, turn, is_needed=is_needed)
        return static if entry.asked is not None else None

    def _arm_resync(self, name: str, entry: _Entry, turn: Turn, *, is_needed: bool) -> None:
        """Have the next resync of a pod look at its mirror. Source: completeWork."""
        if is_needed:
            period_ns = turn.env.model.kubelet.sync_frequency_ns
            share = turn.draw(_STREAM_RESYNC, name)
            entry.retry_ns = turn.now_ns + int(period_ns * (1 + share / 2))
            turn.arm(entry.retry_ns, Timer.STATIC_PODS, name)

    def on_retry(self, name: str, turn: Turn) -> StaticPod | None:
        """Return the pod whose next sync is due, if it is without its mirror."""
        entry = self._entries.get(name)
        if entry is None or not entry.retry_ns or turn.now_ns < entry.retry_ns:
            return None
        entry.retry_ns = 0
        entry.posted = False
        static = entry.static
        return static if static is not None and _captured(entry.mirror, static) else None

    def arm(self, turn: Turn) -> None:
        """Set the timer of the next housekeeping, unless it is set."""
        if not self._due_ns:
            share = turn.env.draws.uniform(turn.node, _STREAM_HOUSEKEEPING, 0)
            past_ns = (turn.now_ns - int(share * HOUSEKEEPING_NS)) % HOUSEKEEPING_NS
            self._due_ns = turn.now_ns + HOUSEKEEPING_NS - past_ns
            turn.arm(self._due_ns, Timer.HOUSEKEEPING)

    def is_due(self, now_ns: int) -> bool:
        """Return whether housekeeping is due; what still has work for it arms it again."""
        if not self._due_ns or now_ns < self._due_ns:
            return False
        self._due_ns = 0
        return True

    def clean_up(self, busy_names: set[str], turn: Turn) -> None:
        """Delete the mirrors without a static pod; those whose pod still ends are let be."""
        for name, entry in list(self._entries.items()):
            if entry.static is not None or entry.busy:
                continue
            if entry.mirror is None:
                if name not in busy_names:
                    del self._entries[name]
                continue
            if name in busy_names:
                self.arm(turn)
            else:
                self._delete(name, entry, entry.mirror, "", turn)

    def _create(self, name: str, entry: _Entry, static: StaticPod, turn: Turn) -> None:
        if entry.posted or not turn.facts.owner_uid:
            return
        entry.busy = True
        payload = MirrorPodObject(
            static.manifest.json,
            static.name,
            static.uid,
            FILE,
            static.seen_ns,
            turn.facts.owner_uid,
        )
        turn.call(Op.CREATE_MIRROR_POD, name, payload)

    def _delete(self, name: str, entry: _Entry, mirror: Pod, uid: str, turn: Turn) -> None:
        entry.busy = True
        target = MirrorTarget(mirror.namespace, mirror.name, uid)
        turn.call(Op.DELETE_MIRROR_POD, name, target)


def _captured(mirror: Pod | None, pod: Pod) -> Captured | None:
    return Captured(mirror) if mirror is None or is_in_need(mirror, pod) else None


def is_in_need(mirror: Pod, pod: Pod) -> bool:
    """Return whether a mirror is to be deleted for another one. Source: tryReconcileMirrorPods."""
    return mirror.deleting or not is_mirror_of(mirror, pod)


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Return whether a mirror is of this static pod, not of one that had its name before."""
    return dict(mirror.annotations).get(MIRROR_ANNOTATION) == pod.uid
