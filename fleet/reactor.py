"""The reactor: time and bytes become inputs of kubelets, their effects bytes and timers.

    turn: due timers -> replies and watch events -> effects -> one flush

A turn runs at a 20 ms edge, or when the transport has filled the inbox. An exception inside one
kubelet quarantines that kubelet and marks the run; in tests it is raised again. The reactor records
how late each timer was: the instrument reports its own error.
"""

import logging
from collections import deque
from typing import NamedTuple, assert_never

from fleet.clock import NS_PER_S, Clock, Draws
from fleet.effects import (
    ApiCall,
    Effect,
    Milestone,
    NodeId,
    Op,
    Outbox,
    PowerOff,
    Report,
    SetTimer,
    StartWatch,
    StopWatch,
    Timer,
    WatchEvent,
    WatchKind,
)
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.list_watches import Opening
from fleet.reactor_watches import Entry, Watches
from fleet.wire.calls import Caller, build
from fleet.wire.messages import Response
from fleet.wire.replies import decode_reply
from fleet.wire.routes import ROUTES
from fleet.wire.watch import Phase, Reflector

TIMERS_MAX = 2_000  # per turn; the rest is due at the next one
REPLIES_MAX = 2_000
CALL_TRIES_MAX = 10  # client-go/rest/with_retry.go: on 429 and 5xx with Retry-After
BUGS_SHOWN_MAX = 5
STORY_MAX = 1_000

log = logging.getLogger(__name__)


class Retried(NamedTuple):
    """A call that a server asked us to send again later."""

    call: ApiCall
    tries: int


class Reactor(Watches):
    """Owns the kubelets, their timers and the inbox of one process."""

    def __init__(
        self,
        clock: Clock,
        draws: Draws,
        *,
        raise_bugs: bool = False,
        story: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(clock, draws)
        self.inbox: list[tuple[object, object]] = []
        self._environments: list[Environment] = []
        self._retries: dict[str, Retried] = {}
        self._retry_seq = 0
        self._due_lease: dict[NodeId, int] = {}
        self._raise_bugs = raise_bugs
        self._story = story
        self._swept_ns = 0

    # ---- the fleet ----

    def add_environment(self, env: Environment) -> None:
        """Keep the wall clock of an environment."""
        self._environments.append(env)
        env.wall_offset_ns = self.clock.wall_ns() - self.clock.now_ns()

    def add(self, kubelet: VirtualKubelet, caller: Caller, pool: int) -> None:
        """Take a kubelet over and start it; its first requests leave with the next flush."""
        assert kubelet.node == len(self.entries), (kubelet.node, len(self.entries))
        entry = Entry(kubelet, caller, pool)
        if kubelet.name in self._story:
            entry.story = deque(maxlen=STORY_MAX)
        self.entries.append(entry)
        self.by_name[kubelet.name] = kubelet.node
        out: Outbox = []
        kubelet.start(self.clock.now_ns(), out)
        self._execute(out)

    def silence(self, node: NodeId) -> None:
        """Stop a kubelet: nothing more is sent for it, nothing taken. The Node stays."""
        entry = self.entries[node]
        if entry.kubelet is not None:
            entry.kubelet.stop()
        entry.kubelet = None
        for reflector in entry.reflectors:
            self._closed(reflector)
            reflector.stop()
        entry.reflectors = ()

    def static_pods_changed(self, env: Environment) -> None:
        """Tell the nodes of a profile that its static pods changed."""
        out: Outbox = []
        for entry in self.entries:
            if entry.kubelet is not None and entry.kubelet.env is env:
                entry.kubelet.on_static_pods_changed(self.clock.now_ns(), out)
        self._execute(out)

    # ---- one turn ----

    def turn(self) -> bool:
        """Handle what is due, then write once per connection. Returns whether more is waiting."""
        now_ns = self.clock.now_ns()
        out: Outbox = []
        more = self._expire(now_ns, out)
        more = self._drain(now_ns, out) or more
        self._execute(out)
        if now_ns - self._swept_ns >= NS_PER_S:
            self._sweep(now_ns)
        for wire in (self.wire, self.observer):
            if wire is not None:
                wire.flush()
        return more

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due, None when none is set."""
        return self._wheel.next_ns()

    def _sweep(self, now_ns: int) -> None:
        self._swept_ns = now_ns
        offset_ns = self.clock.wall_ns() - now_ns
        for env in self._environments:
            env.wall_offset_ns = offset_ns
        for wire in (self.wire, self.observer):
            if wire is not None:
                wire.sweep(now_ns)

    def _expire(self, now_ns: int, out: Outbox) -> bool:
        """Hand the timers that are due to their kubelets, leases first within one turn."""
        expired = self._wheel.expire(now_ns, TIMERS_MAX)
        record_lag = self.counts.timer_lag.record
        if len(expired) == TIMERS_MAX:
            expired.sort(key=_leases_first)
        for due_ns, _, node, timer, key in expired:
            record_lag((now_ns - due_ns) // 1000)
            if timer == Timer.RENEW_LEASE:
                self._due_lease[NodeId(node)] = due_ns
            elif timer == Timer.CALL_RETRY:
                self._retry(NodeId(node), key)
                continue
            entry = self.entries[node]
            kubelet = entry.kubelet
            if kubelet is None:
                continue
            if entry.story is not None:
                entry.story.append(f"{now_ns} timer {Timer(timer).name} {key}")
            try:
                kubelet.on_timer(Timer(timer), key, now_ns, out)
            except Exception as error:  # noqa: BLE001 - a bug in one kubelet harms no other
                self._quarantine(entry, error)
        return len(expired) == TIMERS_MAX

    def _drain(self, now_ns: int, out: Outbox) -> bool:
        """Hand what the transport brought to its owners."""
        inbox = self.inbox
        batch = inbox[:REPLIES_MAX]
        del inbox[:REPLIES_MAX]
        for token, message in batch:
            if type(token) is ApiCall:
                assert isinstance(message, Response), message
                self._on_response(token, message, 1, now_ns, out)
            elif type(token) is Opening:
                reflector = token.reflector
                assert isinstance(reflector, Reflector), reflector
                if token.number == reflector.opens and reflector.phase is not Phase.STOPPED:
                    self._on_stream_safely(reflector, message, now_ns, out)
            elif type(token) is Retried:
                assert isinstance(message, Response), message
                self._on_response(token.call, message, token.tries, now_ns, out)
        return bool(inbox)

    def _on_response(
        self, call: ApiCall, response: Response, tries: int, now_ns: int, out: Outbox
    ) -> None:
        counts = self.counts
        took_us = (response.arrived_ns - response.sent_ns) // 1000
        counts.requests.record(ROUTES[call.op], response.code, took_us)
        entry = self.entries[call.node]
        kubelet = entry.kubelet
        if kubelet is None:
            return
        if response.retry_after_s >= 0 and tries < CALL_TRIES_MAX and _asks_again(response.code):
            self._retry_later(call, tries, now_ns + response.retry_after_s * NS_PER_S)
            return
        if call.op is Op.RENEW_LEASE and response.code == 200:
            self._count_renewal(kubelet, response)
        if entry.story is not None:
            entry.story.append(f"{now_ns} reply {call.op.name} {call.key} {response.code}")
        try:
            kubelet.on_reply(call, decode_reply(call.op, response), now_ns, out)
        except Exception as error:  # noqa: BLE001 - a bug in one kubelet harms no other
            self._quarantine(entry, error)

    def _count_renewal(self, kubelet: VirtualKubelet, response: Response) -> None:
        """Measure the interval as the API server sees it, and how late we sent the renewal."""
        counts = self.counts
        counts.renewals += 1
        before_ns = kubelet.lease.renewed_ns
        if before_ns:
            interval_ns = response.arrived_ns - before_ns
            if interval_ns > counts.lease_interval_ns_max:
                counts.lease_interval_ns_max = interval_ns
            if interval_ns > kubelet.env.model.lease_duration_s * NS_PER_S:
                counts.leases_missed += 1
        due_ns = self._due_lease.pop(kubelet.node, None)
        if due_ns is not None:
            counts.lease_late.record((response.sent_ns - due_ns) // 1000)

    # ---- watches ----

    def on_bug(self, error: Exception) -> None:
        """Mark the run for a bug that no single kubelet is to blame for, and go on."""
        if self._raise_bugs:
            raise error
        self.counts.bugs += 1
        if self.counts.bugs <= BUGS_SHOWN_MAX:
            log.error("a bug in fleet: %r", error, exc_info=error)

    def _input(self, entry: Entry, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        kubelet = entry.kubelet
        if kubelet is None:
            return
        if entry.story is not None:
            entry.story.append(f"{now_ns} watch {event.kind.name} {event.type.name}")
        try:
            kubelet.on_watch_event(event, now_ns, out)
        except Exception as error:  # noqa: BLE001 - a bug in one kubelet harms no other
            self._quarantine(entry, error)

    # ---- effects ----

    def _execute(self, out: Outbox) -> None:
        """Do what the kubelets asked for, in order; nothing else leaves a kubelet."""
        schedule = self._wheel.set
        for effect in out:
            if isinstance(effect, ApiCall):
                self._call(effect)
            elif isinstance(effect, SetTimer):
                schedule(effect.due_ns, effect.node, effect.timer, effect.key)
            else:
                self._execute_rare(effect)

    def _call(self, call: ApiCall) -> None:
        entry = self.entries[call.node]
        if entry.kubelet is None:
            return
        if entry.story is not None:
            entry.story.append(f"{self.clock.now_ns()} call {call.op.name} {call.key}")
        assert self.wire is not None
        self.wire.send(entry.pool, build(call, entry.caller), call)

    def _execute_rare(self, effect: Effect) -> None:
        match effect:
            case StartWatch(node, kind, namespace, name):
                entry = self.entries[node]
                if entry.kubelet is None:
                    return
                own = kind in (WatchKind.NODE, WatchKind.PODS)
                reflector = Reflector(node, kind, entry.kubelet.name if own else name, namespace)
                entry.reflectors = (*entry.reflectors, reflector)
                self._open(reflector)
            case StopWatch(node, kind, namespace, name):
                self._stop_watch(node, kind, namespace, name)
            case Report():
                self._count(effect)
            case PowerOff(node):
                self._power_off(node)
            case ApiCall() | SetTimer():
                raise AssertionError(effect)  # handled by the caller
            case _:
                assert_never(effect)

    def _power_off(self, node: NodeId) -> None:
        """Let a machine fall silent: its watches end, and nothing more is sent."""
        assert self.wire is not None
        entry = self.entries[node]
        for reflector in entry.reflectors:
            self.wire.cancel(entry.pool, Opening(reflector, reflector.opens))
        self.silence(node)

    def _count(self, report: Report) -> None:
        counts = self.counts
        value_us = report.value_ns // 1000
        match report.milestone:
            case Milestone.REGISTERED:
                counts.registered += 1
                counts.node_start.record(value_us)
            case Milestone.NOT_READY:
                counts.not_ready += 1
            case Milestone.GONE:
                counts.gone += 1
            case Milestone.POD_ADDED:
                counts.pods_added += 1
            case Milestone.POD_RUNNING:
                counts.pods_running += 1
                counts.pod_start.record(value_us)
            case Milestone.POD_FAILED:
                counts.pods_failed += 1
            case Milestone.POD_REMOVED:
                counts.pods_removed += 1
            case Milestone.EVENT_DROPPED:
                counts.events_dropped += 1
            case Milestone.READY:
                counts.ready += 1
            case _:
                assert_never(report.milestone)

    # ---- second tries ----

    def _retry_later(self, call: ApiCall, tries: int, due_ns: int) -> None:
        """Send a call again when the server said so. Source: client-go/rest/with_retry.go."""
        self._retry_seq += 1
        key = f"call/{self._retry_seq}"
        self._retries[key] = Retried(call, tries + 1)
        self._wheel.set(due_ns, call.node, Timer.CALL_RETRY, key)

    def _retry(self, node: NodeId, key: str) -> None:
        if key.startswith("watch/"):
            _, kind, rest = key.split("/", 2)
            namespace, name = rest.rsplit("/", 1)
            reflector = self._find(node, WatchKind(int(kind)), namespace, name)
            if reflector is not None and reflector.phase is not Phase.STOPPED:
                self._open(reflector)
            return
        retried = self._retries.pop(key)
        entry = self.entries[node]
        if entry.kubelet is not None:
            assert self.wire is not None
            self.wire.send(entry.pool, build(retried.call, entry.caller), retried)

    def _quarantine(self, entry: Entry, error: Exception) -> None:
        """Take one kubelet out of the run; its story is kept and the run will fail."""
        if self._raise_bugs:
            raise error
        if entry.kubelet is None:
            return  # it is out already
        self.counts.quarantined += 1
        name = entry.kubelet.name
        log.error("node %s is quarantined after a bug in fleet: %r", name, error, exc_info=error)
        if entry.story is not None:
            log.error("story of %s:\n%s", name, "\n".join(entry.story))
        self.silence(entry.kubelet.node)


def _leases_first(entry: tuple[int, int, int, int, str]) -> tuple[bool, int, int]:
    return entry[3] != Timer.RENEW_LEASE, entry[0], entry[1]


def _asks_again(code: int) -> bool:
    return code == 429 or code >= 500
