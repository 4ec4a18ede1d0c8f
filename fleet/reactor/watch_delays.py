"""How long after a change was committed its event comes: measured on the kubelets' own writes.

    a status is sent --every 4th--> looked for --its event came, and its answer--> measured
                                               --refused, changed nothing--> dropped
                                               --no event for a minute--> lost

The answer to a write names the version that was committed; the event of that version is the one
that is looked for, on the watch by which the writer's kubelet hears of its objects. The moment of
the commit itself is not known (objects have times in whole seconds): it is later than the request
was sent, and earlier than it was answered. So there are two figures, and the truth is between them:
`delay`, from the flush that sent the write, is at most that much; `behind`, from the answer, is at
least that much, and has neither the way to the server nor the write in it: both come the same way.
Differs: SIG Scalability's watch latency ends in the API server, where an event is ready to be sent.
"""

from collections.abc import Container
from dataclasses import dataclass

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, NodeId, Op, PodStatusPatch, WatchKind
from fleet.k8s.pods import NodeView, Pod
from fleet.metrics import FleetCounts
from fleet.reactor.process import NOBODY, Entry
from fleet.wire.api.watch import WatchPhase
from fleet.wire.http2.messages import Response

EVERY = 4
"""A write in so many is looked for: some microseconds each, where a write takes tenths of a
millisecond of fleet's CPU. By count and not by time: the first of a burst is its quickest."""
LOOKED_FOR_MAX = 1_000
LOST_NS = 60 * NS_PER_S
SEEN_MAX = 7  # Events of one object before the answer to one write of it: other writers are few
OK = 200
WATCHED_WRITES = {
    Op.PATCH_POD_STATUS: WatchKind.PODS,
    Op.PATCH_NODE_STATUS: WatchKind.NODE,
    Op.PATCH_NODE_STATUS_HEARTBEAT: WatchKind.NODE,
}
"""What is looked for, and on which watch."""


@dataclass(slots=True, eq=False)
class _Sample:
    """One write that is looked for."""

    call: ApiCall
    watcher: NodeId  # whose watch brings the event: NOBODY's is the process's
    began_ns: int
    version: int = 0  # that was committed, 0 until the answer
    sent_ns: int = 0
    taken_ns: int = 0  # when the answer was
    seen: tuple[tuple[int, int], ...] = ()  # versions of events before the answer, and when


class WatchDelays:
    """The writes of one process whose events are looked for."""

    def __init__(self, counts: FleetCounts) -> None:
        self._counts = counts
        self._writes = 0
        self.looked_for: dict[str, _Sample] = {}
        """By the uid of the pod, or the name of the node; empty most of the time."""

    def on_sent(self, call: ApiCall, entry: Entry, now_ns: int, *, timed: bool) -> None:
        """Take a write; every few of them its event is looked for, if a watch is open for it.

        Not `timed`: it will not be known to the millisecond when that comes.
        """
        kind = WATCHED_WRITES[call.op]
        if self.looked_for:
            self._give_up(now_ns)
        if not timed:
            return
        self._writes += 1
        if self._writes % EVERY:
            return
        kubelet, key = entry.kubelet, _key(call, entry)
        assert kubelet is not None, call
        if key in self.looked_for or len(self.looked_for) >= LOOKED_FOR_MAX:
            return
        watcher = NOBODY
        if kubelet.env.own_watches:
            watcher = call.node
            if not any(
                each.kind is kind and each.phase is WatchPhase.STREAM for each in entry.reflectors
            ):
                return  # its event will be part of a snapshot
        self.looked_for[key] = _Sample(call, watcher, now_ns)

    def on_answer(
        self, call: ApiCall, entry: Entry, response: Response, version: str, now_ns: int
    ) -> None:
        """Take the answer to a write; `version` is what it says, "" where that cannot be read."""
        key = _key(call, entry)
        sample = self.looked_for.get(key)
        if sample is None or sample.call is not call:
            return
        if response.code != OK or not version.isdigit():
            del self.looked_for[key]
            return
        sample.version, sample.sent_ns, sample.taken_ns = int(version), response.sent_ns, now_ns
        for seen, arrived_ns in sample.seen:
            if self._is_over(key, sample, seen, arrived_ns):
                return

    def on_event(self, watcher: NodeId, record: object, now_ns: int) -> None:
        """Take what a watch of pods or nodes brought; `watcher` is whose it is."""
        if isinstance(record, Pod):
            key: str = record.uid
        elif isinstance(record, NodeView):
            key = record.name
        else:
            return
        sample = self.looked_for.get(key)
        if sample is None or sample.watcher != watcher or not record.resource_version.isdigit():
            return
        version = int(record.resource_version)
        if not sample.version:
            sample.seen = (*sample.seen[-SEEN_MAX:], (version, now_ns))
        else:
            self._is_over(key, sample, version, now_ns)

    def forget(self, nodes: Container[NodeId]) -> None:
        """Drop the writes of kubelets that end."""
        kept = {key: each for key, each in self.looked_for.items() if each.call.node not in nodes}
        self.looked_for = kept

    def _is_over(self, key: str, sample: _Sample, version: int, arrived_ns: int) -> bool:
        """Compare an event with what is looked for; versions of one object only grow."""
        if version < sample.version:
            return False
        del self.looked_for[key]
        if version == sample.version:  # else the write changed nothing, and has no event
            self._counts.watch_delay.record((arrived_ns - sample.sent_ns) // 1000)
            self._counts.watch_behind.record((arrived_ns - sample.taken_ns) // 1000)
        return True

    def _give_up(self, now_ns: int) -> None:
        """Count what has been looked for too long; the oldest are the first."""
        while self.looked_for:
            key, sample = next(iter(self.looked_for.items()))
            if now_ns - sample.began_ns < LOST_NS:
                return
            del self.looked_for[key]
            self._counts.watch_delay_lost += 1


def _key(call: ApiCall, entry: Entry) -> str:
    payload = call.payload
    return payload.uid if isinstance(payload, PodStatusPatch) else entry.caller.name.decode()
