"""The reactor: time and bytes become inputs of kubelets, their effects bytes and timers.

    turn: due timers -> replies and watch events -> effects -> one flush

A turn runs at a 20 ms edge, or, without the timers, when the transport has filled the inbox. An
exception inside one kubelet marks the run and fails the pod that the kubelet was busy with. Where
there is none, or that pod has failed before, the kubelet is quarantined. In tests the exception is
raised again. The reactor records how late each timer was: the instrument reports its own error.
"""

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeVar, assert_never

from fleet.agents.agent import AgentReflector
from fleet.agents.runner import AgentCall, Agents, AgentWire
from fleet.clock import NS_PER_S, Clock, Draws
from fleet.k8s.effects import (
    ApiCall,
    Effect,
    Milestone,
    NodeId,
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
from fleet.k8s.pods import Pod
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.pod_worker import PodWorker
from fleet.profile.agent_behavior import AgentModel
from fleet.reactor.calls import Calls, Delayed, Errand, Unsent, owner_of
from fleet.reactor.heartbeats import RENEW_LEASE, RENEWAL_DUE, Heartbeats
from fleet.reactor.process import NOBODY, STORY_MAX, Entry, Process, count_report
from fleet.reactor.restarts import RESTART_NS_MAX, Restarts
from fleet.reactor.watches import Deliveries, Watches
from fleet.wire.api.codec import JSON, Codec
from fleet.wire.api.operations import OPERATIONS
from fleet.wire.api.requests import Caller
from fleet.wire.api.watch import Opening, Reflector, WatchPhase
from fleet.wire.http2.messages import Failure, Response

TIMERS_MAX = 2_000  # per turn; the rest is due at the next one
REPLIES_MAX = 2_000
BUGS_SHOWN_MAX = 5
OUTLIVING = frozenset(
    (
        *(Timer.SHUTDOWN, Timer.CERTIFICATE, Timer.CALL_RETRY, Timer.WATCH_RETRY),
        *(Timer.AGENT, Timer.PROBLEM),
    )
)
"""Timers of the machine, of what is kept in its files, and of what has a number of its own."""
_OWN_TIMERS = frozenset(
    (
        Timer.CALL_RETRY,
        Timer.WATCH_RETRY,
        Timer.RESTART,
        Timer.RELIST,
        Timer.AGENT,
        Timer.PROBLEM,
        Timer.CERTIFICATE,
    )
)
T = TypeVar("T")

log = logging.getLogger(__name__)


class Environments:
    """Those of the profiles, and of machines that are not as their profile says."""

    def __init__(self, process: Process, watches: Watches, restarts: Restarts) -> None:
        self._process = process
        self._watches = watches
        self._restarts = restarts
        self._all: list[Environment] = []

    def add(self, env: Environment) -> None:
        """Take the environment of a profile, before its kubelets."""
        self._all.append(env)
        env.csi_drivers = self._watches.csi_drivers
        env.services = self._watches.services
        env.runtime_classes = self._watches.runtime_classes
        clock = self._process.clock
        env.wall_offset_ns = clock.wall_ns() - clock.now_ns()

    def use(self, env: Environment) -> None:
        """Take that of machines which are not as their profile says, if it is not known yet."""
        if env not in self._all:
            env.wall_offset_ns = env.origin.wall_offset_ns + env.skew_ns
            self._all.append(env)

    def forget(self, env: Environment) -> None:
        """Drop one that no node has any more."""
        self._all.remove(env)

    def of(self, node: NodeId) -> Environment | None:
        """Return what a node's kubelet, or the one that will follow, sees of its machine."""
        kubelet = self._process.kubelets.entries[node].kubelet or self._restarts.successor(node)
        return kubelet.env if kubelet is not None else None

    def in_use(self) -> Iterable[Environment]:
        """Yield those of all kubelets, of the ones that will follow too."""
        for node in range(len(self._process.kubelets.entries)):
            env = self.of(NodeId(node))
            if env is not None:
                yield env

    def set_clocks(self, now_ns: int) -> None:
        """Let their time be that of the wall clock, which may be set while we run."""
        offset_ns = self._process.clock.wall_ns() - now_ns
        for env in self._all:
            env.wall_offset_ns = offset_ns + env.skew_ns


class Reactor:
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
        process = Process(clock, draws, codec)
        self.clock = clock
        self.codec = codec
        self.counts = process.counts
        self.kubelets = process.kubelets
        self.entries = process.kubelets.entries  # looked up for each input
        self.wires = process.wires
        self.inbox: list[tuple[object, object]] = []
        self.calls = Calls(process)
        self._heartbeats = Heartbeats(process, self.calls)
        self.watches = Watches(process, self.calls.delays)
        self.agents: Agents | None = None
        self.on_observed: Callable[[WatchEvent], None] | None = None  # what decides who is Ready
        self.on_lost: Callable[[NodeId], None] | None = None  # of Nodes that others make
        self.on_certificate_timer: Callable[[NodeId, str, int], None] | None = None
        self.on_problem_timer: Callable[[NodeId, int], None] | None = None
        self._unregistered = process.unregistered
        self._draws = draws
        self._wheel = process.wheel
        self._idle = process.idle
        self._restarts = Restarts(process)
        self.environments = Environments(process, self.watches, self._restarts)
        self._raise_bugs = raise_bugs
        self._story = story
        self._swept_ns = 0

    def set_timer(self, node: NodeId, due_ns: int, timer: Timer, key: str = "") -> None:
        """Set a timer from outside of a kubelet."""
        self._wheel.set(due_ns, node, timer, key)

    def perform(self, out: Outbox) -> None:
        """Do what a kubelet asked for outside of a turn, because of a request to its server."""
        self._execute(out)

    def unregistered(self) -> dict[NodeId, str]:
        """Return the nodes that could not register until now, and why by their last try."""
        found = self._unregistered.items()
        return {node: why for node, why in found if self.entries[node].kubelet is not None}

    # ---- the fleet ----

    def run_agents(
        self,
        models: Iterable[AgentModel],
        new_wire: Callable[[AgentModel], AgentWire],
        *,
        impersonates: bool,
    ) -> None:
        """Run agents next to the kubelets that are added from now on, if there are any."""
        agents = Agents(self.clock, self._draws, self._wheel, new_wire, impersonates=impersonates)
        for model in models:
            agents.add_kind(model)
            self.agents = agents

    def add(self, kubelet: VirtualKubelet, caller: Caller, pool: int, watch_pool: int = -1) -> None:
        """Take a kubelet over and start it; its first requests leave with the next flush.

        Its watches use the connections of its calls, unless a `watch_pool` is given.
        """
        self.register(kubelet, caller, pool, watch_pool)
        self.start(kubelet.node)

    def register(
        self, kubelet: VirtualKubelet, caller: Caller, pool: int, watch_pool: int = -1
    ) -> None:
        """Take a kubelet over that starts later."""
        entry = Entry(kubelet, caller, pool, watch_pool=watch_pool)
        if kubelet.name in self._story:
            entry.story = deque(maxlen=STORY_MAX)
        self.kubelets.add(entry)

    def start(self, node: NodeId) -> None:
        """Start a kubelet that is registered, unless it has been silenced."""
        kubelet = self.entries[node].kubelet
        if kubelet is not None:
            out: Outbox = []
            kubelet.start(self.clock.now_ns(), out, is_settled=kubelet.env.starts_settled)
            self._deliver(self.watches.kept_for(kubelet), self.clock.now_ns(), out)
            self._execute(out)

    def silence(self, node: NodeId) -> None:
        """Stop a kubelet: nothing more is sent for it, nothing taken. The Node stays."""
        entry = self.entries[node]
        self._restarts.cancel(node)
        if entry.kubelet is not None:
            entry.kubelet.stop()
        entry.kubelet = None
        self.watches.end_all(node)
        if self.agents is not None:
            self.agents.stop(node)

    def share_watch(self, kind: WatchKind, label: str = "") -> None:
        """Open a watch for the whole fleet on the observer's connection."""
        self._deliver_now(self.watches.share(kind, label))

    def restart(self, nodes: Iterable[NodeId], *, is_held: bool = False) -> int:
        """End kubelets as if their processes were killed; return how many start again.

        Each is back within `RESTART_NS_MAX`, or of `release` if it is held, on new connections;
        nothing that it asked for or waited for reaches the new one. Nodes that are silent or shut
        down are left alone.
        """
        now_ns = self.clock.now_ns()
        ended = self._restarts.begin(nodes)
        self._forget(ended)
        for node in sorted(ended):
            self.watches.end_all(node)
            self._restarts.end(node, now_ns, is_held=is_held)
        if not is_held:
            self._relist_later(now_ns)
        return len(ended)

    def release(self, nodes: Iterable[NodeId]) -> int:
        """Start kubelets that were held after their end; return how many there are."""
        now_ns = self.clock.now_ns()
        count = self._restarts.release(nodes, now_ns)
        if count:
            self._relist_later(now_ns)
        return count

    def _start_again(self, node: NodeId, now_ns: int, out: Outbox) -> None:
        if self._restarts.on_due(node, now_ns, out):  # its machine was off, and missed events
            self._relist_later(now_ns)

    def _relist_later(self, now_ns: int) -> None:
        if self.watches.expect_relist():  # what there is comes once more, when all are back
            self._wheel.set(now_ns + RESTART_NS_MAX, NOBODY, Timer.RELIST)

    def change_machine(self, node: NodeId, env: Environment) -> None:
        """Give a node another environment: its machine is not as it was."""
        self.environments.use(env)
        kubelet = self.entries[node].kubelet
        if kubelet is None:
            kubelet = self._restarts.successor(node)
            if kubelet is not None:
                kubelet.env = env
            return
        out: Outbox = []
        entry = self.entries[node]
        self._guard(entry, kubelet.on_machine_changed, env, self.clock.now_ns(), out)
        self._execute(out)

    def _forget(self, nodes: AbstractSet[NodeId]) -> None:
        """Drop all that is on its way for some nodes: timers, calls, answers, openings."""

        def is_theirs(token: object) -> bool:
            return owner_of(token) in nodes

        self._wheel.forget(nodes, kept=OUTLIVING)
        self.calls.forget(nodes)
        self.inbox[:] = [each for each in self.inbox if not is_theirs(each[0])]
        self.wires.nodes.abandon(is_theirs)

    def static_pods_changed(self, env: Environment) -> None:
        """Have the nodes of a profile read its static pods, which changed."""
        out: Outbox = []
        for _, kubelet in self.kubelets.living():
            if kubelet.env.origin is env:
                kubelet.env.static = env.static
                kubelet.on_static_pods_changed(self.clock.now_ns(), out)
        self._execute(out)

    # ---- one turn ----

    def turn(self, *, timers: bool = True) -> bool:
        """Handle what is due, then write once per connection. Returns whether more is waiting."""
        more = self._guard(None, self._turn, self.clock.now_ns(), timers)
        return more is not False  # what an interrupted turn left is seen to at once

    def _turn(self, now_ns: int, timers: bool) -> bool:  # noqa: FBT001 - by `_guard`
        out: Outbox = []
        rests = timers and self._idle.may_rest(now_ns)
        if timers:
            self.wires.on_edge(rests=rests)
        # Timers first: they are late already, while an answer was stamped as it arrived.
        more = timers and self._expire(now_ns, out)
        more = self._drain(now_ns, out) or more
        self._execute(out)
        if rests and not self._idle.may_rest(now_ns):
            self.wires.on_edge(rests=False)  # a pod has come: its kubelet waits for answers
        if now_ns - self._swept_ns >= NS_PER_S:
            self._sweep(now_ns)
        self.wires.flush()
        return more

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due, None when none is set."""
        return self._wheel.next_ns()

    def _sweep(self, now_ns: int) -> None:
        self._swept_ns = now_ns
        self.calls.limits.forget(now_ns)
        self.environments.set_clocks(now_ns)  # once a second, not at each use
        for wire in self.wires.all:
            wire.sweep(now_ns)

    def _expire(self, now_ns: int, out: Outbox) -> bool:
        """Take the timers that are due, leases first within one turn."""
        expired = self._wheel.expire(now_ns, TIMERS_MAX)
        record_lag, renew = self.counts.timer_lag.record, self._heartbeats.send
        if len(expired) == TIMERS_MAX:  # a suspend: who renews last is taken for dead
            expired.sort(key=lambda each: (each[3] != RENEWAL_DUE, each[0], each[1]))
        for due_ns, _, owner, timer, key in expired:
            record_lag((now_ns - due_ns) // 1000)
            if timer == RENEWAL_DUE:
                entry = self.entries[owner]
                if self._guard(entry, renew, NodeId(owner), entry, now_ns, out):
                    continue
            if timer in _OWN_TIMERS:
                self._guard(None, self._on_own_timer, owner, Timer(timer), key, now_ns, out)
                continue
            entry = self.entries[owner]
            if entry.kubelet is None:
                continue
            if entry.story is not None:
                entry.story.append(f"{now_ns} timer {Timer(timer).name} {key}")
            self._guard(entry, entry.kubelet.on_timer, Timer(timer), key, now_ns, out)
        return len(expired) == TIMERS_MAX

    def _on_own_timer(self, owner: int, timer: Timer, key: str, now_ns: int, out: Outbox) -> None:
        """Take a timer that is no kubelet's; `owner` is a node, or a number of the part's own."""
        if timer is Timer.CALL_RETRY:
            unsent = self.calls.on_due(owner)
            if unsent is not None:
                self._answer(*unsent, now_ns, out)
        elif timer is Timer.WATCH_RETRY:
            self._deliver(self.watches.on_due(owner), now_ns, out)
        elif timer is Timer.RESTART:
            self._start_again(NodeId(owner), now_ns, out)
        elif timer is Timer.RELIST:
            self._deliver(self.watches.relist(), now_ns, out)
        elif timer is Timer.AGENT:
            if self.agents is not None:
                self.agents.on_timer(owner, key)
        elif timer is Timer.PROBLEM:
            if self.on_problem_timer is not None:
                self.on_problem_timer(NodeId(owner), now_ns)
        elif self._restarts.is_waiting(NodeId(owner)):
            # Its certificate outlives the process; there is nobody to renew it just now.
            self._wheel.set(now_ns + RESTART_NS_MAX, owner, timer, key)
        elif self.on_certificate_timer is not None:
            self.on_certificate_timer(NodeId(owner), key, now_ns)

    def _drain(self, now_ns: int, out: Outbox) -> bool:
        """Hand what the transport brought to its owners."""
        inbox, renewed = self.inbox, self._heartbeats.take
        # What comes while these are handled waits for the next turn, or a turn might never end.
        batch = inbox[:REPLIES_MAX]
        del inbox[:REPLIES_MAX]
        for token, message in batch:
            if type(token) is ApiCall or type(token) is Delayed:
                assert isinstance(message, Response), message
                if type(token) is ApiCall and token.op is RENEW_LEASE:
                    entry = self.entries[token.node]
                    if self._guard(entry, renewed, token, entry, message, now_ns):
                        continue
                self._on_response(token, message, now_ns, out)
            elif type(token) is Opening and isinstance(token.reflector, Reflector):
                node = token.reflector.node
                owner = self.entries[node] if node != NOBODY else None
                found = self._guard(owner, self.watches.on_message, token, message, now_ns)
                if found:
                    self._deliver(found, now_ns, out)
            elif type(token) is Unsent:
                assert isinstance(message, Response), message
                self._answer(token.call, message, now_ns, out)
            elif isinstance(token, Errand):
                self._guard(None, token.on_message, message, now_ns)
            elif type(token) is AgentCall or type(token) is Opening:
                self._guard(None, self._on_agents, token, message)
        return bool(inbox)

    def _on_agents(self, token: AgentCall | Opening, message: object) -> None:
        """Hand the agents what is theirs."""
        assert self.agents is not None
        if isinstance(token, AgentCall):
            assert isinstance(message, Response), message
            self.agents.on_reply(token, message)
        else:
            assert isinstance(token.reflector, AgentReflector), token
            is_over = token.reflector.phase is WatchPhase.STOPPED
            if token.number == token.reflector.opens and not is_over:
                self.agents.on_stream(token.reflector, message)

    def _on_response(
        self, token: ApiCall | Delayed, response: Response, now_ns: int, out: Outbox
    ) -> None:
        call = token if isinstance(token, ApiCall) else token.call
        entry = self.entries[call.node]
        if self._guard(entry, self.calls.on_response, token, response, now_ns):
            self._answer(call, response, now_ns, out)

    def _answer(self, call: ApiCall, response: Response, now_ns: int, out: Outbox) -> None:
        """Hand a kubelet the answer to a call, or that there is none."""
        entry = self.entries[call.node]
        if entry.kubelet is None:
            return
        if entry.story is not None:
            entry.story.append(f"{now_ns} reply {call.op.name} {call.key} {response.code}")
        self._guard(entry, self._reply, entry.kubelet, call, response, now_ns, out)

    def _reply(
        self, kubelet: VirtualKubelet, call: ApiCall, response: Response, now_ns: int, out: Outbox
    ) -> None:
        owner = OPERATIONS[call.op].owner
        kubelet.on_reply(owner, call, self.calls.read(call, response), now_ns, out)

    def _deliver(self, found: Deliveries, now_ns: int, out: Outbox) -> None:
        """Hand events to the kubelets, and to the observer what is nobody's."""
        for node, event in found:
            if node == NOBODY:
                if self.on_observed is not None:
                    self._guard(None, self.on_observed, event)
                continue
            entry = self.entries[node]
            if entry.kubelet is None:
                continue
            if event.kind is not WatchKind.NODE:
                self._idle.note_activity(now_ns)
            if entry.story is not None:
                entry.story.append(f"{now_ns} watch {event.kind.name} {event.type.name}")
            self._guard(entry, entry.kubelet.on_watch_event, event, now_ns, out)

    def _deliver_now(self, found: Deliveries) -> None:
        """Hand events over outside of a turn's own steps, and do what follows at once."""
        if found:
            out: Outbox = []
            self._deliver(found, self.clock.now_ns(), out)
            self._execute(out)

    # ---- bugs ----

    def _guard(self, entry: Entry | None, act: Callable[..., T], *inputs: object) -> T | None:
        """Let one input act; a bug there costs one kubelet, or marks the run, and nothing else."""
        try:
            return act(*inputs)
        except Exception as error:  # noqa: BLE001 - the one place: see the module's docstring
            if entry is None:
                self.on_bug(error)
            elif self._raise_bugs or not self._fail_pod(entry, error, inputs):
                self._quarantine(entry, error)
            return None

    def _fail_pod(self, entry: Entry, error: Exception, inputs: tuple[object, ...]) -> bool:
        """Fail the pod that an exception is about; return whether there is one to be failed."""
        kubelet = entry.kubelet
        uid = _pod_of(error, inputs)
        if kubelet is None or not uid:
            return False
        out: Outbox = []
        try:
            is_failed = kubelet.fail_pod(uid, ascii(error), self.clock.now_ns(), out)
        except Exception:  # noqa: BLE001 - the node has no way on with this pod
            return False
        if is_failed:
            self.on_bug(error)
            log.error("node %s failed pod %s after a bug in fleet", kubelet.name, uid)
            self._execute(out)
        return is_failed

    def on_bug(self, error: Exception) -> None:
        """Mark the run for a bug that no single kubelet is to blame for, and go on."""
        if self._raise_bugs:
            raise error
        self.counts.bugs += 1
        if self.counts.bugs <= BUGS_SHOWN_MAX:
            log.error("a bug in fleet: %r", error, exc_info=error)

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

    # ---- effects ----

    def _execute(self, out: Outbox) -> None:
        """Do what the kubelets asked for, in order; nothing else leaves a kubelet."""
        guard, call, schedule = self._guard, self._call, self._wheel.set
        for effect in out:
            if isinstance(effect, ApiCall):
                if not guard(self.entries[effect.node], call, effect):
                    lost = Response(0, b"", 0, self.clock.now_ns(), -1, Failure.CANCELLED)
                    self.inbox.append((Unsent(effect), lost))
            elif isinstance(effect, SetTimer):
                schedule(effect.due_ns, effect.node, effect.timer, effect.key)
            else:
                self._execute_rare(effect)

    def _call(self, call: ApiCall) -> bool:
        """Send a call; one that cannot be sent is answered in the next turn."""
        unsent = self.calls.call(call)
        if unsent is not None:
            self.inbox.append((Unsent(call), unsent))
        return True

    def _execute_rare(self, effect: Effect) -> None:
        match effect:
            case StartWatch():
                self._deliver_now(self.watches.start(effect))
            case StopWatch():
                self.watches.stop(effect)
            case Report():
                self._on_report(effect)
            case PowerOff(node, off_ns):
                self._power_off(node, off_ns)
            case ApiCall() | SetTimer():
                raise AssertionError(effect)  # handled by the caller
            case _:
                assert_never(effect)

    def _power_off(self, node: NodeId, off_ns: int | None) -> None:
        """Let a machine fall silent: its watches end, and nothing more is sent until it boots."""
        self.watches.end_all(node, hangs_up=True)
        if off_ns is None:
            self.silence(node)
            return
        self._forget({node})
        self._restarts.power_off(node, self.clock.now_ns(), off_ns)
        if self.agents is not None:
            self.agents.stop(node)

    def _on_report(self, report: Report) -> None:
        """Count what a kubelet has come to, and do what follows from it here."""
        count_report(self.counts, report)
        kubelet = self.entries[report.node].kubelet
        if kubelet is None:
            return
        if report.milestone is Milestone.REGISTERED and self.agents is not None:
            self.agents.start(report.node, kubelet.name, kubelet.env.model.agents)
        elif report.milestone is Milestone.FOREIGN and self.on_lost is not None:
            self.on_lost(report.node)
        elif report.milestone is Milestone.FOREIGN:  # its kubelet falls silent: reported once
            self.counts.foreign_names.append(kubelet.name)
            log.error("node %s exists and is not this run's: it is left alone", kubelet.name)


def _pod_of(error: Exception, inputs: tuple[object, ...]) -> str:
    """Return the uid of the pod that an exception is about, "" if it is about none.

    The innermost function that has a pod at hand is the one that was busy with it, also where the
    input was about all pods of the node; a request that cannot be written is about that of its key.
    """
    found = next((each.key for each in inputs if isinstance(each, ApiCall)), "")
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, Pod | PodWorker):
                found = value.uid if isinstance(value, Pod) else value.pod.uid
                break
    return found
