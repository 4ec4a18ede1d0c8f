"""One probe of one container: its ticks, its counters, and the next tick that anybody would notice.

A worker has no task and no ticker. It knows the instants of its ticks and can ask the behaviour of
the pod how each attempt will end, so `look` goes ahead to the first one that leaves an event or
changes the result; those before it are only counted.

A worker is attached to one container: a new container id begins with no result, and its first tick
sets the initial one: unknown, not ready, alive.
Source: pkg/kubelet/prober/worker.go, worker, run, doProbe; results/results_manager.go, Result.
Differs: the age of a container, by which its behaviour goes, counts from the second in which it
started, as shown.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, PodUid, ProbeSpec
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.containers.prober import CANCELLED, run_probe
from fleet.kubelet.turn import Turn
from fleet.profile.container_behavior import (
    ALWAYS_GOOD,
    FOREVER,
    ProbeAnswer,
    ProbeAttempt,
    ProbeBehavior,
    ProbeKind,
    ProbePhase,
)
from fleet.profile.distribution import Shape

NEVER = FOREVER
LOOK_AHEAD_MAX = 256
"""So many ticks are looked at in one go; where none of them matters, the look goes on later."""
RESTART_GRACE_S = 10
_STREAM_FIRST = 0x9B0E
_STREAM_FAILURE = 0x9B1E
_STREAM_LATENCY = 0x9B2E


class ProbeResult(IntEnum):
    """Source: pkg/kubelet/prober/results/results_manager.go, Result."""

    UNKNOWN = -1
    SUCCESS = 0
    FAILURE = 1


INITIAL = (ProbeResult.UNKNOWN, ProbeResult.FAILURE, ProbeResult.SUCCESS)  # by `ProbeKind`


class View(NamedTuple):
    """What a worker reads of the status of a running container."""

    container_id: str
    started_s: int
    started: bool
    end_ns: int = NEVER  # when the runtime ends it, of which the status knows later


class Look(NamedTuple):
    """The next tick that matters: when it is, when its attempt ends, the counters before it."""

    tick_ns: int
    due_ns: int
    last: ProbeResult
    run: int


class Probed(NamedTuple):
    """What probes say of a container that has some."""

    started: bool
    ready: bool


NOT_PROBED: Mapping[str, Probed] = {}


class ProbeUpdate(NamedTuple):
    """A result that changed. Source: results.Update."""

    kind: ProbeKind
    container: str
    result: ProbeResult


@dataclass(slots=True, eq=False)
class ProbeWorker:
    """The state of one probe."""

    kind: ProbeKind
    spec: ContainerSpec
    probe: ProbeSpec
    behavior: ProbeBehavior = ALWAYS_GOOD
    anchor_ns: int = 0  # a tick; the others are whole periods after it
    seen_ns: int = 0  # ticks up to here are done
    kept_ns: int = 0  # when the next attempt is, if that is known and still to come
    tick_ns: int = 0  # the one that is planned
    due_ns: int = NEVER  # when its attempt ends
    container_id: str = ""
    started_s: int = 0  # of the container
    end_ns: int = NEVER  # of the container
    result: ProbeResult | None = None  # of this container, None before the first tick
    last: ProbeResult = ProbeResult.UNKNOWN
    run: int = 0  # how many times in a row `last` came
    on_hold: bool = False  # until there is a new container
    is_new: bool = False  # no tick has seen this container yet
    is_live: bool = False  # its ticks probe
    forced: bool = False  # the next tick matters whatever it finds
    triggered: bool = False  # an attempt is wanted at once
    usual: ProbeBehavior | None = None  # of a new container, if somebody wrote into this one

    def begin(self, uid: PodUid, start_ns: int, turn: Turn) -> None:
        """Begin to tick: at once, but soon after the kubelet's start at a random instant.

        `start_ns` is the kubelet's. Source: worker.go, run.
        """
        period_ns = self.probe.period_s * NS_PER_S
        self.anchor_ns = turn.now_ns
        self.seen_ns = turn.now_ns - 1
        if turn.now_ns - start_ns < period_ns:
            share = self._uniform(_STREAM_FIRST, uid, turn.now_ns, turn)
            self.anchor_ns += int(period_ns * share)

    def attach(self, view: View) -> None:
        """Begin with a container."""
        if self.usual is not None:
            self.behavior, self.usual = self.usual, None
        self.container_id = view.container_id
        self.started_s = view.started_s
        self.end_ns = view.end_ns
        self.result = None
        self.on_hold = False
        self.is_new = True

    def begin_container(self, view: View, start_ns: int, turn: Turn) -> None:
        """Set the initial result of a container, unless a kubelet before us started it.

        A sidecar that had started then keeps that.
        """
        self.is_new = False
        if not was_started_before(view.started_s, start_ns, turn):
            self.result = INITIAL[self.kind]
        elif self.kind is ProbeKind.STARTUP and is_sidecar(self.spec) and view.started:
            self.result = ProbeResult.SUCCESS

    def can_probe(self, view: View | None) -> bool:
        """Return whether ticks have anything to do."""
        if view is None:
            return False
        is_new = view.container_id != self.container_id or self.is_new
        if self.kind is ProbeKind.STARTUP:
            return is_new or not (view.started or self.on_hold)
        return view.started and (is_new or not self.on_hold)

    def is_under_way(self, now_ns: int) -> bool:
        """Return whether the planned attempt has begun and is not done with."""
        return self.tick_ns <= now_ns and self.due_ns != NEVER

    def is_delayed(self, tick_ns: int, turn: Turn) -> bool:
        """Return whether a tick comes before the initial delay is over; whole seconds count."""
        return turn.env.wall_s(tick_ns) - self.started_s < self.probe.initial_delay_s

    def plan(self, uid: PodUid, view: View | None, turn: Turn) -> None:
        """Find the next tick that matters, from what the status now says of the container."""
        now_ns, back_ns = turn.now_ns, 1
        is_same = view is not None and view.container_id == self.container_id
        is_under_way = is_same and self.is_under_way(now_ns)
        if view is not None and is_same:
            is_planned = self.is_live and self.due_ns != NEVER and not self.triggered
            is_kept = is_under_way or (is_planned and self.can_probe(view))
            if is_kept and self.end_ns == view.end_ns:
                return
            if self.is_live:  # another end may be that of an attempt that is under way
                back_ns = self.probe.timeout_s * NS_PER_S
            self.skip_to(uid, now_ns - back_ns, turn)
            self.end_ns = view.end_ns
        self.seen_ns = max(self.seen_ns, now_ns - back_ns)
        self.is_live = self.can_probe(view)
        if view is None or not self.is_live:
            self.due_ns = NEVER
            self.forced = False
            return
        if not is_same:
            self.attach(view)
        if self.triggered and now_ns >= self.anchor_ns and not is_under_way:
            self.triggered = False
            self.forced = True
            self.anchor_ns = now_ns
            self.seen_ns = now_ns - 1
            self.kept_ns = 0
        found = self.look(uid, NEVER, turn)
        self.tick_ns, self.due_ns = found.tick_ns, found.due_ns

    def follow(self, uid: PodUid, behavior: ProbeBehavior, turn: Turn) -> None:
        """Find what another behaviour says from now on; `plan` is to be called."""
        if behavior != self.behavior:
            self.skip_to(uid, turn.now_ns, turn)
            self.behavior = behavior
            if not self.is_under_way(turn.now_ns):
                self.due_ns = NEVER

    def skip_to(self, uid: PodUid, limit_ns: int, turn: Turn) -> None:
        """Count the ticks up to an instant, none of which matters."""
        if self.is_live and self.seen_ns < limit_ns and not self.forced:
            found = self.look(uid, limit_ns, turn)
            self.last, self.run = found.last, found.run
            self.seen_ns = limit_ns
            self.kept_ns = found.tick_ns if found.tick_ns != NEVER else 0

    def look(self, uid: PodUid, limit_ns: int, turn: Turn) -> Look:  # noqa: PLR0911 - one for each end
        """Return the first tick after the last one that matters, or that is beyond the limit."""
        last, run = self.last, self.run
        is_kept = self.kept_ns > self.seen_ns
        tick_ns = self.kept_ns if is_kept else self._next_tick_ns(self.seen_ns + 1)
        if self.forced or (self.is_new and self.kind is not ProbeKind.LIVENESS):
            took_ns = 0
            if not self.is_delayed(tick_ns, turn):
                took_ns = self.attempt(uid, tick_ns, turn).took_ns
            return Look(tick_ns, tick_ns + took_ns, last, run)
        started_ns = self.started_s * NS_PER_S - turn.env.wall_offset_ns
        delay_ns = self.probe.initial_delay_s * NS_PER_S
        delayed_ns = self._next_tick_ns(started_ns + delay_ns)
        tick_ns = tick_ns if tick_ns >= started_ns + delay_ns else delayed_ns
        result = self.result
        if result is None and self.kind is ProbeKind.LIVENESS:
            result = ProbeResult.SUCCESS
        if self.behavior is CANCELLED and not turn.env.fidelity.records_events:
            return Look(NEVER, NEVER, last, run)  # each is an error: neither an event nor a result
        for _ in range(LOOK_AHEAD_MAX):
            if tick_ns > limit_ns:
                return Look(tick_ns, NEVER, last, run)
            steady, end_ns = self._steady_result(tick_ns - started_ns, turn)
            if steady is not None and steady is result:
                # The same goes on until the phase ends: skip to the first tick after it.
                last, run = steady, self._threshold(steady)
                if end_ns == FOREVER or started_ns + end_ns > limit_ns:
                    return Look(NEVER, NEVER, last, run)
                tick_ns = self._next_tick_ns(started_ns + end_ns)
                continue
            attempt = self.attempt(uid, tick_ns, turn)
            due_ns = tick_ns + attempt.took_ns
            if attempt.answer is not ProbeAnswer.SUCCESS and turn.env.fidelity.records_events:
                return Look(tick_ns, due_ns, last, run)  # an event
            found = counted(attempt)
            if found is not None:
                after = run + 1 if last is found else 1
                if after >= self._threshold(found) and found is not result:
                    return Look(tick_ns, due_ns, last, run)
                last, run = found, after
            tick_ns = self.after(tick_ns, due_ns)
        return Look(tick_ns, tick_ns, last, run)

    def attempt(self, uid: PodUid, tick_ns: int, turn: Turn) -> ProbeAttempt:
        """Return how the attempt of one tick ends."""
        age_ns = tick_ns + turn.env.wall_offset_ns - self.started_s * NS_PER_S
        failure = self._uniform(_STREAM_FAILURE, uid, tick_ns, turn)
        latency = self._uniform(_STREAM_LATENCY, uid, tick_ns, turn)
        left_ns, is_command = self.end_ns - tick_ns, self.probe.handler == "exec"
        behavior = self.behavior
        if left_ns <= 0 and behavior is not CANCELLED and not self.probe.host:
            answer = ProbeAnswer.ERROR if is_command else ProbeAnswer.REFUSED
            behavior = ProbeBehavior((ProbePhase(answer=answer),))
        found = run_probe(self.probe, behavior, age_ns, failure, latency)
        if is_command and 0 < left_ns <= found.took_ns:  # it is killed, too
            return ProbeAttempt(ProbeAnswer.FAILURE, left_ns, ProbePhase())
        return found

    def take(self, attempt: ProbeAttempt) -> bool:
        """Count an attempt that has ended; return whether the result changed."""
        found = counted(attempt)
        if found is None:
            return False
        self.run = self.run + 1 if self.last is found else 1
        self.last = found
        if self.run < self._threshold(found):
            return False
        changed = found is not self.result
        self.result = found
        # What a startup probe decides holds for this container, and so does its death sentence.
        if self.kind is ProbeKind.STARTUP or (
            self.kind is ProbeKind.LIVENESS and found is ProbeResult.FAILURE
        ):
            self.on_hold = True
            self.run = 0
        return changed

    def after(self, tick_ns: int, end_ns: int) -> int:
        """Return when the attempt is that follows one which has begun and ended at instants.

        A ticker keeps one tick that nobody takes: after a slow attempt the next one is at once.
        Source: time.NewTicker, whose channel has room for one.
        """
        return max(self._next_tick_ns(tick_ns + 1), end_ns)

    def _next_tick_ns(self, at_ns: int) -> int:
        """Return the first tick at or after an instant."""
        if at_ns <= self.anchor_ns:
            return self.anchor_ns
        return at_ns + (self.anchor_ns - at_ns) % (self.probe.period_s * NS_PER_S)

    def _threshold(self, result: ProbeResult) -> int:
        """Return how many of a result in a row decide."""
        if result is ProbeResult.FAILURE:
            return self.probe.failure_threshold
        return self.probe.success_threshold

    def _steady_result(self, age_ns: int, turn: Turn) -> tuple[ProbeResult | None, int]:
        """Return what every attempt of this phase finds, if unseen, and when the phase ends."""
        phase, end_ns = self.behavior.at(age_ns)
        if phase.failure_rate or phase.latency.shape is not Shape.CONSTANT:
            return None, end_ns
        attempt = run_probe(self.probe, self.behavior, age_ns, 0.0, 0.0)
        if self.end_ns != NEVER:  # an attempt that the container outlives ends before that
            lived_ns = self.end_ns + turn.env.wall_offset_ns - self.started_s * NS_PER_S
            end_ns = min(end_ns, lived_ns - attempt.took_ns)
            if age_ns >= end_ns:
                return None, end_ns
        if attempt.answer is ProbeAnswer.SUCCESS or not turn.env.fidelity.records_events:
            return counted(attempt), end_ns
        return None, end_ns

    def _uniform(self, stream: int, uid: PodUid, tick_ns: int, turn: Turn) -> float:
        key = zlib.crc32(self.spec.name.encode(), zlib.crc32(uid.encode())) + self.kind
        return turn.env.draws.uniform(turn.node, stream << 33 | key, tick_ns)


def counted(attempt: ProbeAttempt) -> ProbeResult | None:
    """Return the result that an attempt counts as; an error counts as none."""
    if attempt.answer is ProbeAnswer.ERROR:
        return None
    return ProbeResult.SUCCESS if attempt.answer.is_good else ProbeResult.FAILURE


def was_started_before(started_s: int, start_ns: int, turn: Turn) -> bool:
    """Return whether a kubelet before us started a container; `start_ns` is when we began.

    Source: prober_manager.go, kubeletRestartGracePeriod. Older kubelets take it for a new one.
    """
    return (
        turn.env.model.release.keeps_started
        and started_s < turn.env.wall_s(start_ns) - RESTART_GRACE_S
    )
