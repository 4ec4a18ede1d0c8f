"""The reactor: time and bytes become inputs of kubelets, their effects bytes and timers.

    turn: due timers -> replies and watch events -> effects -> one flush

A turn runs at a 20 ms edge, or when the transport has filled the inbox. An exception inside one
kubelet quarantines that kubelet and marks the run; in tests it is raised again. The reactor records
how late each timer was: the instrument reports its own error.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import assert_never

from fleet.agent_behavior import AgentModel
from fleet.agents.reflector import AgentReflector
from fleet.agents.runner import AgentCall, Agents, AgentWire
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
from fleet.kubelet.node_status import Phase as NodePhase
from fleet.kubelet.restart import can_restart, restarted
from fleet.list_watches import Opening, Wire
from fleet.reactor_calls import Calls, Delayed, GivenUp
from fleet.reactor_watches import NOBODY, WATCH_KEY, Entry
from fleet.shared_watches import SHARED_KINDS
from fleet.wire.calls import Caller
from fleet.wire.codec import JSON, Codec
from fleet.wire.messages import Failure, Response
from fleet.wire.routes import ROUTES
from fleet.wire.watch import Phase, Reflector

TIMERS_MAX = 2_000  # per turn; the rest is due at the next one
REPLIES_MAX = 2_000
BUGS_SHOWN_MAX = 5
RESTART_NS_MAX = 1 * NS_PER_S
"""A process is back within a second: each at its own moment, else all would tick in step."""
RESTART_KEY = "restart"
RELIST_KEY = "relist"
_STREAM_RESTART = 0x4E57A47
STORY_MAX = 1_000

log = logging.getLogger(__name__)


class Errand:
    """A request that no kubelet made: the token takes the answer itself."""

    __slots__ = ()

    def on_message(self, message: object, now_ns: int) -> None:
        """Take what the transport brought."""
        raise NotImplementedError


class Reactor(Calls):
    """Owns the kubelets, their timers and the inbox of one process."""

    def __init__(
        self,
        clock: Clock,
        draws: Draws,
        *,
        raise_bugs: bool = False,
        story: frozenset[str] = frozenset(),
        codec: Codec = JSON,
    ) -> None:
        super().__init__(clock, draws, codec)
        self._environments: list[Environment] = []
        self._raise_bugs = raise_bugs
        self._story = story
        self._swept_ns = 0
        self._restarting: dict[NodeId, VirtualKubelet] = {}  # that are about to start
        self.agents: Agents | None = None
        self.others: list[Wire] = []  # wires that are no kubelet's own
        self.on_certificate_timer: Callable[[NodeId, str, int], None] | None = None

    def set_timer(self, node: NodeId, due_ns: int, timer: Timer, key: str = "") -> None:
        """Set a timer from outside of a kubelet."""
        self._wheel.set(due_ns, node, timer, key)

    # ---- the fleet ----

    def add_environment(self, env: Environment) -> None:
        """Keep the wall clock of an environment."""
        self._environments.append(env)
        env.csi_drivers = self.csi_drivers
        env.wall_offset_ns = self.clock.wall_ns() - self.clock.now_ns()

    def run_agents(
        self,
        models: Iterable[AgentModel],
        new_wire: Callable[[AgentModel], AgentWire],
        *,
        impersonates: bool,
    ) -> None:
        """Run agents beside the kubelets that are added from now on, if there are any."""
        agents = Agents(self.clock, self._draws, self._wheel, new_wire, impersonates=impersonates)
        for model in models:
            agents.add_kind(model)
            self.agents = agents

    def add(self, kubelet: VirtualKubelet, caller: Caller, pool: int) -> None:
        """Take a kubelet over and start it; its first requests leave with the next flush."""
        self.register(kubelet, caller, pool)
        self.start(kubelet.node)

    def register(self, kubelet: VirtualKubelet, caller: Caller, pool: int) -> None:
        """Take a kubelet over that starts later."""
        assert kubelet.node == len(self.entries), (kubelet.node, len(self.entries))
        entry = Entry(kubelet, caller, pool)
        if kubelet.name in self._story:
            entry.story = deque(maxlen=STORY_MAX)
        self.entries.append(entry)
        self.by_name[kubelet.name] = kubelet.node

    def start(self, node: NodeId) -> None:
        """Start a kubelet that is registered, unless it was silenced meanwhile."""
        kubelet = self.entries[node].kubelet
        if kubelet is not None:
            out: Outbox = []
            kubelet.start(self.clock.now_ns(), out)
            for event in self._kept_for(kubelet):
                self._input(self.entries[node], event, self.clock.now_ns(), out)
            self._execute(out)

    def silence(self, node: NodeId) -> None:
        """Stop a kubelet: nothing more is sent for it, nothing taken. The Node stays."""
        entry = self.entries[node]
        self._restarting.pop(node, None)
        self._unsubscribe(node)
        if entry.kubelet is not None:
            entry.kubelet.stop()
        entry.kubelet = None
        for reflector in entry.reflectors:
            self._closed(reflector)
            reflector.stop()
        entry.reflectors = ()
        if self.agents is not None:
            self.agents.stop(node)

    def restart(self, nodes: Iterable[NodeId]) -> int:
        """End kubelets as if their processes were killed; return how many begin anew.

        Each is back within `RESTART_NS_MAX`, on new connections; nothing that it asked for or
        waited for reaches the new one. Nodes that are silent or shut down are left alone.
        """
        now_ns = self.clock.now_ns()
        restarting = self._restarting
        for node in nodes:
            kubelet = self.entries[node].kubelet
            if kubelet is not None and can_restart(kubelet):
                self._uncount(kubelet)
                restarting[node] = restarted(kubelet)
        ended = {node for node in restarting if self.entries[node].kubelet is not None}
        self._forget(ended)
        for node in sorted(ended):
            self._end(node)
            share = self._draws.uniform(node, _STREAM_RESTART, now_ns)
            due_ns = now_ns + int(share * RESTART_NS_MAX)
            self._wheel.set(due_ns, node, Timer.CALL_RETRY, RESTART_KEY)
        if self._shared:  # they bring what there is once more, when all are back
            self._relisting = {each.kind for each in self._shared}
            self._wheel.set(now_ns + RESTART_NS_MAX, NOBODY, Timer.CALL_RETRY, RELIST_KEY)
        return len(ended)

    def _uncount(self, kubelet: VirtualKubelet) -> None:
        """Take back what the next kubelet of a node will count once more."""
        self.counts.registered -= kubelet.status.phase is NodePhase.REGISTERED
        if kubelet.sync_loop is not None:
            self.counts.pods_added -= sum(1 for _ in kubelet.sync_loop.pods())

    def _end(self, node: NodeId) -> None:
        """Close what a kubelet had open; until the next one starts there is none."""
        entry = self.entries[node]
        self._unsubscribe(node)
        for reflector in entry.reflectors:
            self._closed(reflector)
            reflector.stop()
        entry.reflectors = ()
        assert entry.kubelet is not None
        assert self.wire is not None
        if not entry.kubelet.env.light:
            self.wire.hang_up(entry.pool)
        entry.kubelet = None
        self._due_lease.pop(node, None)

    def _start_again(self, node: NodeId) -> None:
        kubelet = self._restarting.pop(node, None)
        if kubelet is None:
            return  # its node was removed meanwhile
        self.entries[node].kubelet = kubelet
        self.counts.restarts += 1
        out: Outbox = []
        kubelet.start(self.clock.now_ns(), out)
        self._execute(out)

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
        for wire in (self.wire, self.observer, *self.others):
            if wire is not None:
                wire.flush()
        return more

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due, None when none is set."""
        return self._wheel.next_ns()

    def _sweep(self, now_ns: int) -> None:
        self._swept_ns = now_ns
        self._limits.forget(now_ns)
        offset_ns = self.clock.wall_ns() - now_ns
        for env in self._environments:
            env.wall_offset_ns = offset_ns
        for wire in (self.wire, self.observer, *self.others):
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
                self._go_on(NodeId(node), key)
                continue
            elif timer == Timer.CERTIFICATE:
                if NodeId(node) in self._restarting:
                    self._wheel.set(now_ns + RESTART_NS_MAX, node, timer, key)
                elif self.on_certificate_timer is not None:
                    self.on_certificate_timer(NodeId(node), key, now_ns)
                continue
            elif timer == Timer.AGENT and self.agents is not None:
                self.agents.on_timer(node, key)
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
            if type(token) is ApiCall or type(token) is Delayed:
                assert isinstance(message, Response), message
                self._on_response(token, message, now_ns, out)
            elif type(token) is Opening:
                reflector = token.reflector
                if token.number != reflector.opens or reflector.phase is Phase.STOPPED:
                    continue
                if isinstance(reflector, Reflector):
                    self._on_stream_safely(reflector, message, now_ns, out)
                else:
                    self._on_agents(token, message)
            elif type(token) is GivenUp:
                assert isinstance(message, Response), message
                self._answer(token.call, message, now_ns, out)
            elif isinstance(token, Errand):
                try:
                    token.on_message(message, now_ns)
                except Exception as error:  # noqa: BLE001 - the others get their answers
                    self.on_bug(error)
            elif type(token) is AgentCall:
                self._on_agents(token, message)
        return bool(inbox)

    def _on_agents(self, token: Opening | AgentCall, message: object) -> None:
        """Hand the agents what is theirs; a bug there ends no kubelet."""
        assert self.agents is not None
        try:
            if isinstance(token, AgentCall):
                assert isinstance(message, Response), message
                self.agents.on_reply(token, message)
            else:
                assert isinstance(token.reflector, AgentReflector), token
                self.agents.on_stream(token.reflector, message)
        except Exception as error:  # noqa: BLE001
            self.on_bug(error)

    def _on_response(
        self, token: ApiCall | Delayed, response: Response, now_ns: int, out: Outbox
    ) -> None:
        counts = self.counts
        call = token if isinstance(token, ApiCall) else token.call
        took_us = (response.arrived_ns - response.sent_ns) // 1000
        counts.requests.record(ROUTES[call.op], response.code, took_us, len(response.body))
        kubelet = self.entries[call.node].kubelet
        if kubelet is None:
            return
        if response.failure is Failure.OVERSIZED:
            counts.rejected[response.detail] += 1
        if call.op is Op.RENEW_LEASE:
            self._count_renewal(kubelet, response)
        if not self._sends_again(token, response, now_ns):
            self._answer(call, response, now_ns, out)

    def _answer(self, call: ApiCall, response: Response, now_ns: int, out: Outbox) -> None:
        """Hand a kubelet the answer to a call, or that there is none."""
        entry = self.entries[call.node]
        kubelet = entry.kubelet
        if kubelet is None:
            return
        if entry.story is not None:
            entry.story.append(f"{now_ns} reply {call.op.name} {call.key} {response.code}")
        try:
            reply = self._read(call, response)
            kubelet.on_reply(call, reply, now_ns, out)
        except Exception as error:  # noqa: BLE001 - a bug in one kubelet harms no other
            self._quarantine(entry, error)

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

    def _execute_rare(self, effect: Effect) -> None:
        match effect:
            case StartWatch(node, kind, namespace, name):
                entry = self.entries[node]
                if entry.kubelet is None:
                    return
                if kind in SHARED_KINDS and not entry.kubelet.env.own_watches:
                    out: Outbox = []
                    self.subscribe(effect, self.clock.now_ns(), out)
                    self._execute(out)
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
                self._start_agents(report.node)
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

    def _start_agents(self, node: NodeId) -> None:
        """Start what runs beside a kubelet, now that its Node is there."""
        kubelet = self.entries[node].kubelet
        if self.agents is not None and kubelet is not None:
            self.agents.start(node, kubelet.name, kubelet.env.model.agents)

    # ---- later ----

    def _go_on(self, node: NodeId, key: str) -> None:
        """Take a timer of the reactor's own."""
        if key == RESTART_KEY:
            self._start_again(node)
        elif key == RELIST_KEY:
            self._relist_shared()
        elif key.startswith(WATCH_KEY):
            self._open_due(node, key)
        else:
            self._send_delayed(node, key)

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
