"""NodeShutdown: the graceful end of a machine, by groups of priority.

    asked -> [event, Ready=False] -> group 1 -> group 2 ... -> lock released -> power off -> boots?
                                    |all its pods have ended, or its time is over

It is made when the machine is asked to shut down; without grace periods in the configuration a
kubelet has no part in it, and the power is off at once. The Lease is renewed until then.
Source: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go, killPods, groupByPriority;
nodeshutdown_manager_linux.go, start, processShutdownEvent; kubelet_pods.go, killPodNow.
Differs: what systemd does after the inhibitor's lock is released is one delay.
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from fleet.clock import NS_PER_S
from fleet.k8s.effects import PowerOff, Timer
from fleet.k8s.pods import Pod, PodUid
from fleet.kubelet.pod_worker import PodKill, PodWorker, Workers, WorkerState, disruption_target
from fleet.kubelet.turn import Turn
from fleet.profile.machine import POWER_OFF_DELAY

ERROR = "node is shutting down"
REASON = "Terminated"
MESSAGE = "Pod was terminated in response to imminent node shutdown."
DETECTED = "Shutdown manager detected shutdown event"
CANCELLED = "Shutdown manager detected shutdown cancellation"
BEGIN = "begin"
"""The key of the timer that begins a shutdown; others are about one that is under way."""

_STREAM_SHARE = 0x5D0
_STREAM_AFTER = 0x5D1
_STREAM_OFF = 0x5D2
_STREAM_BACK = 0x5D3
_STREAM_CANCEL = 0x5D4

Groups = tuple[tuple[int, int], ...]  # priority and seconds, lowest priority first


class NodeShutdown:
    """One shutdown of one node, from its beginning to the last pod."""

    __slots__ = (
        "_cancel_ns",
        "_deadline_ns",
        "_groups",
        "_is_over",
        "_members",
        "_off_after_ns",
        "_off_ns",
    )

    def __init__(self, workers: Iterable[PodWorker], turn: Turn) -> None:
        env = turn.env
        groups = env.model.kubelet.shutdown_grace_by_priority
        assert groups, "without grace periods no kubelet takes part in a shutdown"
        schedule = env.model.shutdown
        delay = POWER_OFF_DELAY if schedule is None else schedule.power_off_delay
        self._off_after_ns = delay.sample(env.draws.uniform(turn.node, _STREAM_OFF, 0))
        self._cancel_ns = 0  # when it is cancelled
        if schedule is not None and schedule.cancel_after is not None:
            share = env.draws.uniform(turn.node, _STREAM_CANCEL, 0)
            self._cancel_ns = turn.now_ns + schedule.cancel_after.sample(share)
        self._is_over = False  # every group was dealt with, and it was cancelled before the end
        self._off_ns = 0  # when the power is off, once every group was dealt with
        self._deadline_ns = 0
        self._members: tuple[PodUid, ...] = ()  # of the group that is being ended
        # The seconds of each group that is left, and its pods.
        self._groups: list[tuple[int, list[PodUid]]] = [(seconds, []) for _, seconds in groups]
        for worker in workers:
            if worker.state < WorkerState.TERMINATED and not worker.removed:
                _, members = self._groups[group_of(groups, worker.pod.spec.priority)]
                members.append(worker.pod.uid)

    def is_off(self, now_ns: int) -> bool:
        """Return whether the machine is off."""
        return bool(self._off_ns) and now_ns >= self._off_ns

    def is_cancelled(self, now_ns: int) -> bool:
        """Return whether the machine stays on after all."""
        return self._is_over and now_ns >= self._cancel_ns

    def is_due(self, workers: Workers, now_ns: int) -> bool:
        """Return whether it is the turn of the next group: this one has ended, or had its time."""
        if self._off_ns or self._is_over:
            return False
        return now_ns >= self._deadline_ns or all(
            (worker := workers.get(uid)) is None or worker.state is WorkerState.FINISHED
            for uid in self._members
        )

    def next_group(self, workers: Workers, turn: Turn) -> list[tuple[PodWorker, PodKill]]:
        """Begin with the next group that has pods; return whom to kill.

        After the last one the inhibitor's lock is released: the machine will be off, unless that is
        cancelled. A cancellation that came sooner is heard then: one goroutine hears and kills.
        """
        while self._groups:
            seconds, members = self._groups.pop(0)
            if members:
                self._members = tuple(members)
                self._deadline_ns = turn.now_ns + seconds * NS_PER_S
                turn.arm(self._deadline_ns, Timer.SHUTDOWN)
                found = [workers[uid] for uid in members if uid in workers]
                return [(each, _kill(each.pod, seconds)) for each in found]
        off_ns = turn.now_ns + self._off_after_ns
        if self._cancel_ns and self._cancel_ns < off_ns:
            self._is_over = True
            turn.arm(max(self._cancel_ns, turn.now_ns), Timer.SHUTDOWN)
        else:
            self._off_ns = off_ns
            turn.arm(off_ns, Timer.SHUTDOWN)
        return []


def _kill(pod: Pod, seconds: int) -> PodKill:
    grace_s = min(seconds, pod.spec.termination_grace_s)
    target = disruption_target(pod, MESSAGE)
    return PodKill(REASON, MESSAGE, grace_s, target, keeps_success=True)


def arm_shutdown(turn: Turn) -> None:
    """Set the timer of a shutdown that the profile declares, if it picks this node."""
    schedule = turn.env.model.shutdown
    if schedule is None or turn.env.draws.uniform(turn.node, _STREAM_SHARE, 0) >= schedule.share:
        return
    after_ns = schedule.after.sample(turn.env.draws.uniform(turn.node, _STREAM_AFTER, 0))
    turn.arm(turn.now_ns + after_ns, Timer.SHUTDOWN, BEGIN)


def power_off(turn: Turn) -> PowerOff:
    """Return the end of the machine, and for how long it is off, if it comes back."""
    schedule = turn.env.model.shutdown
    if schedule is None or schedule.off_for is None:
        return PowerOff(turn.node)
    return PowerOff(turn.node, schedule.off_for.sample(turn.draw(_STREAM_BACK)))


def group_of(groups: Groups, priority: int) -> int:
    """Return which group a priority belongs to: the highest that is not above it."""
    return max(bisect_right(groups, priority, key=itemgetter(0)) - 1, 0)
