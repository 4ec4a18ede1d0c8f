"""PodManager: the static pods of one node, and their mirror pods in the API.

    manifest -> static pod -> mirror POSTed -> its status is the static pod's
                                |deleted, or of another hash: DELETE with uid, POST again
    manifest gone -> pod ends -> housekeeping -> mirror DELETEd

It exists while the node has static pods or mirrors. Both are known by their full name; a changed
manifest makes another static pod of the same name, which waits until the old one has ended.
Source: pkg/kubelet/pod/pod_manager.go, mirror_client.go; kubelet.go, tryReconcileMirrorPods,
fastStaticPodsRegistration; kubelet_pods.go, HandlePodCleanups; pod_workers.go, allowStaticPodStart.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleet.clock import NS_PER_S, Draws
from fleet.kubelet.pods.pod_workers import BACKOFF_PERIOD_NS
from fleet.kubelet.turn import Turn
from fleet.objects.effects import (
    ApiCall,
    MirrorPodObject,
    MirrorTarget,
    NodeId,
    Op,
    Reply,
    Timer,
)
from fleet.objects.pods import Pod, PodUid
from fleet.objects.static_pods import StaticPod, StaticPods
from fleet.objects.well_known import MIRROR_ANNOTATION

HOUSEKEEPING_NS = 2 * NS_PER_S  # housekeepingPeriod
BACKOFF_JITTER = 0.5  # workerBackOffPeriodJitterFactor
RESYNC_NS = 60 * NS_PER_S  # syncFrequency: a mirror is made by a sync of its pod
"""Before the full name of a pod: the key of calls and timers about its mirror."""
_STREAM_HOUSEKEEPING = 0x40CE
_STREAM_RESYNC = 0x40CF
_STREAM_START = 0x40D0


@dataclass(slots=True, eq=False)
class _Entry:
    """One full name: the static pod that is wanted, and the mirror as the watch shows it."""

    static: StaticPod | None = None
    waiting: bool = False  # until the pod that had the name before has ended
    start_ns: int = 0  # when it may be looked again whether it has
    mirror: Pod | None = None
    busy: bool = False  # a call about the mirror is in flight
    posted: bool = False  # the POST was answered, the watch does not show it yet
    retry_ns: int = 0


class PodManager:
    """Static pods and mirrors of one node, by full name."""

    __slots__ = ("_due_ns", "_entries", "_phase_ns")

    def __init__(self, node: NodeId, draws: Draws) -> None:
        self._entries: dict[str, _Entry] = {}
        self._due_ns = 0  # of housekeeping, 0 when there is nothing to clean up
        share = draws.uniform(node, _STREAM_HOUSEKEEPING, 0)
        self._phase_ns = int(share * HOUSEKEEPING_NS)

    def is_empty(self) -> bool:
        """Return whether there is neither a static pod nor a mirror."""
        return not self._entries

    def __iter__(self) -> Iterator[StaticPod]:
        return (each.static for each in self._entries.values() if each.static is not None)

    def take(
        self, wanted: StaticPods, turn: Turn
    ) -> tuple[list[StaticPod], list[StaticPod], list[StaticPod]]:
        """Take what the sources say; return the pods that are gone, new, and named twice."""
        known = {each.uid: each for each in self}
        pods: dict[PodUid, StaticPod] = {}
        twice = []
        for source in (wanted.file or (), wanted.http or ()):
            names = set()
            for manifest in source:
                pod = manifest.pod_of(turn.facts.name, turn.wall_ns)
                if pod.full_name in names:
                    twice.append(pod)
                    continue
                names.add(pod.full_name)
                pods[pod.uid] = known.get(pod.uid, pod)
        gone = [pod for uid, pod in known.items() if uid not in pods]
        added = [pod for uid, pod in pods.items() if uid not in known]
        for pod in gone:
            self._entries[pod.full_name].static = None
        return gone, added, twice

    def add(self, pod: StaticPod, turn: Turn, *, may_start: bool) -> bool:
        """Keep a new static pod; return whether it starts now, or waits for its namesake."""
        entry = self._entries.setdefault(pod.full_name, _Entry())
        entry.static = pod
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
        share = turn.draw(_STREAM_START)
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
        if gone:
            if entry.mirror is not None and entry.mirror.uid != mirror.uid:
                return
            entry.mirror = None
            entry.posted = False
        else:
            entry.mirror = mirror
            entry.posted = False
        if entry.static is not None:
            self._reconcile(mirror.full_name, entry, turn)
        elif entry.mirror is not None:
            self.arm(turn)
        elif not entry.busy:
            del self._entries[mirror.full_name]

    def reconcile(self, pods: Iterable[StaticPod], turn: Turn) -> None:
        """Make sure that each has its mirror. Source: tryReconcileMirrorPods."""
        for pod in pods:
            entry = self._entries.get(pod.full_name)
            if entry is not None and entry.static is pod and not entry.waiting:
                self._reconcile(pod.full_name, entry, turn)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to a POST or DELETE of a mirror."""
        name = call.key
        entry = self._entries.get(name)
        if entry is None:
            return
        entry.busy = False
        target = call.payload
        if call.op is Op.CREATE_MIRROR_POD:
            entry.posted = reply.ok and entry.mirror is None
        elif reply.ok and entry.mirror is not None:
            assert isinstance(target, MirrorTarget), call
            if target.uid in {"", entry.mirror.uid}:
                entry.mirror = None
        if entry.static is None:
            self._forget_or_arm(name, entry, turn)
        elif not reply.ok:
            share = turn.draw(_STREAM_RESYNC)
            entry.retry_ns = turn.now_ns + int(RESYNC_NS * (1 + share / 2))
            turn.arm(entry.retry_ns, Timer.STATIC_PODS, name)
        else:
            self._reconcile(name, entry, turn)

    def on_retry(self, name: str, turn: Turn) -> None:
        """Try again what failed, as the next sync of the pod would."""
        entry = self._entries.get(name)
        if entry is not None and entry.retry_ns and turn.now_ns >= entry.retry_ns:
            entry.retry_ns = 0
            self._reconcile(name, entry, turn)

    def arm(self, turn: Turn) -> None:
        """Set the timer of the next housekeeping, unless it is set."""
        if not self._due_ns:
            self._due_ns = (
                turn.now_ns + HOUSEKEEPING_NS - (turn.now_ns - self._phase_ns) % HOUSEKEEPING_NS
            )
            turn.arm(self._due_ns, Timer.HOUSEKEEPING)

    def is_due(self, now_ns: int) -> bool:
        """Return whether housekeeping is due; it is armed anew by who still has work for it."""
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
                self._delete(name, entry, "", turn)

    def _forget_or_arm(self, name: str, entry: _Entry, turn: Turn) -> None:
        if entry.mirror is None:
            del self._entries[name]
        else:
            self.arm(turn)

    def _reconcile(self, name: str, entry: _Entry, turn: Turn) -> None:
        static, mirror = entry.static, entry.mirror
        if static is None or entry.busy or entry.waiting:
            return
        if mirror is None:
            if turn.facts.owner_uid and not entry.posted:
                self._create(name, entry, static, turn)
        elif mirror.deleting or not is_mirror_of(mirror, static):
            self._delete(name, entry, mirror.uid, turn)

    def _create(self, name: str, entry: _Entry, static: StaticPod, turn: Turn) -> None:
        entry.busy = True
        payload = MirrorPodObject(
            static.manifest.json,
            static.name,
            static.uid,
            static.manifest.source,
            static.seen_ns,
            turn.facts.owner_uid,
        )
        turn.call(Op.CREATE_MIRROR_POD, name, payload)

    def _delete(self, name: str, entry: _Entry, uid: str, turn: Turn) -> None:
        assert entry.mirror is not None, name
        entry.busy = True
        target = MirrorTarget(entry.mirror.namespace, entry.mirror.name, uid)
        turn.call(Op.DELETE_MIRROR_POD, name, target)


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Tell whether a mirror is of this static pod, not of one that had its name before."""
    return dict(mirror.annotations).get(MIRROR_ANNOTATION) == pod.uid
