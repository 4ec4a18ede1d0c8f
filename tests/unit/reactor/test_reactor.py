"""One reactor, a wire that only notes what it was given, and kubelets that note what they get."""

from collections.abc import Callable, Iterator

import pytest
from world.agents import agent_model
from world.sim_clock import SimClock

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.k8s.effects import (
    ApiCall,
    LeaseRenewal,
    Milestone,
    NodeId,
    NodeObject,
    NodeStatusPatch,
    Op,
    Outbox,
    Owner,
    PodTarget,
    Reply,
    ReplyKind,
    Report,
    SetTimer,
    StartWatch,
    StopWatch,
    Timer,
    WatchEvent,
    WatchKind,
)
from fleet.k8s.pods import EventType
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node.node_lease import LeaseState
from fleet.profile.loader import load_mix
from fleet.reactor.reactor import REPLIES_MAX, TIMERS_MAX, Reactor
from fleet.wire.api import watch
from fleet.wire.api.codec import JSON, Codec
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.api.watch import CALL_TRIES_MAX, WatchPhase
from fleet.wire.http2.messages import Cut, Failure, Request, Response, StreamOpened

GET_NODE = ApiCall(NodeId(0), Op.GET_NODE_CSI, "k")
DELETE_POD = ApiCall(NodeId(0), Op.DELETE_POD, "uid", PodTarget("default", "web"))
MODEL = load_mix().model_of(0)


BEGINS = WatchEvent(WatchKind.CONFIG_MAP, EventType.RESTARTED)


class NotedWire:
    def __init__(self) -> None:
        self.sent: list[tuple[int, Request, object]] = []
        self.cancelled: list[object] = []
        self.flushes = 0
        self.hung_up: list[int] = []
        self.swept: list[int] = []
        self.has_token = True

    def send(self, pool: int, request: Request, token: object) -> None:
        self.sent.append((pool, request, token))

    def cancel(self, pool: int, token: object) -> None:
        del pool
        self.cancelled.append(token)

    def abandon(self, is_unwanted: Callable[[object], bool]) -> None:
        self.cancelled += [token for _, _, token in self.sent if is_unwanted(token)]

    def hang_up(self, pool: int) -> None:
        self.hung_up.append(pool)

    def cut(self, pool: int, cut: Cut | None) -> None:
        """Let everything through: no test of the reactor cuts a node off."""

    def expire_token(self, pool: int, *, is_over: bool) -> None:
        """Take every token: no test of the reactor lets one expire."""

    def on_edge(self, *, rests: bool) -> None:
        pass

    def flush(self) -> None:
        self.flushes += 1

    def sweep(self, now_ns: int) -> None:
        self.swept.append(now_ns)


class NotedKubelet(VirtualKubelet):
    """Notes its inputs; asks for what `wants` holds at its next one."""

    __slots__ = ("got", "wants")

    def __init__(self, node: int, env: Environment) -> None:
        super().__init__(NodeId(node), f"n-{node}", "192.0.2.1", env)
        self.got: list[object] = []
        self.wants: Outbox = []

    def start(self, now_ns: int, out: Outbox, *, is_settled: bool = False) -> None:
        del now_ns, is_settled
        self._give(out)

    def on_timer(self, timer: Timer, key: str, now_ns: int, out: Outbox) -> None:
        self._note((timer, key, now_ns), out)

    def on_reply(self, owner: Owner, call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
        del owner, call, now_ns
        self._note(reply, out)

    def on_watch_event(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        del now_ns
        self._note(event, out)

    def _note(self, what: object, out: Outbox) -> None:
        self.got.append(what)
        self._give(out)

    def _give(self, out: Outbox) -> None:
        if self.wants and self.wants[0] is None:
            raise ValueError("a bug")
        out += self.wants
        self.wants = []


class World:
    def __init__(self, nodes: int = 1, *, raise_bugs: bool = True, codec: Codec = JSON) -> None:
        self.clock = SimClock()
        self.reactor = Reactor(
            self.clock, Draws(1), raise_bugs=raise_bugs, story=frozenset({"n-0"}), codec=codec
        )
        self.wire = NotedWire()
        self.reactor.wires.connect(nodes=self.wire)
        self.env = Environment(MODEL, Draws(1))
        self.reactor.environments.add(self.env)
        template = RenderedProfile(MODEL, extra_labels={})
        self.kubelets = [NotedKubelet(node, self.env) for node in range(nodes)]
        for kubelet in self.kubelets:
            self.reactor.add(kubelet, Caller(kubelet.node, b"n", template), kubelet.node)

    def asks(self, *effects: object, node: int = 0) -> None:
        """Let a kubelet ask for something, at its next timer, which is due now."""
        self.kubelets[node].wants = list(effects)  # type: ignore[arg-type]
        self.reactor._wheel.set(self.clock.now_ns(), node, Timer.HOUSEKEEPING, "ask")
        self.reactor.turn()

    def answer(self, token: object, code: int, body: bytes = b"", **fields: int) -> bool:
        now_ns = self.clock.now_ns()
        response = Response(code, body, now_ns, now_ns, **fields)  # type: ignore[arg-type]
        self.reactor.inbox.append((token, response))
        return self.reactor.turn()

    def after(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_ns() + int(seconds * NS_PER_S))
        self.reactor.turn()


class AgentsWire(NotedWire):
    def open_pool(self, pool: int, user: bytes = b"") -> None:
        """Be there for everybody."""

    def close_pool(self, pool: int) -> None:
        """Bring what was on its way all the same."""


WATCHES = [{"resource": "services"}]


def test_an_agent_goes_on_while_its_kubelet_restarts() -> None:
    world, wire, model = World(), AgentsWire(), agent_model(watches=WATCHES, startDelay="30s")
    kubelet = VirtualKubelet(NodeId(1), "n-1", "198.18.0.2", world.env)
    world.reactor.add(kubelet, Caller(1, b"n-1", world.reactor.entries[0].caller.template), 1)
    world.reactor.run_agents([model], lambda _model: wire, impersonates=False)
    assert world.reactor.agents is not None
    world.reactor.agents.start(1, "n-1", (model,))
    assert world.reactor.restart([NodeId(1)], is_held=True) == 1
    world.after(60)
    assert len(wire.sent) == 1  # it has begun to watch


def test_what_comes_late_for_the_agents_of_a_silent_node_is_dropped() -> None:
    world, wire, model = World(), AgentsWire(), agent_model(watches=WATCHES)
    world.reactor.run_agents([model], lambda _model: wire, impersonates=False)
    assert world.reactor.agents is not None
    world.reactor.agents.start(0, "n-0", (model,))
    world.after(60)
    [(_, _, token)] = wire.sent
    world.reactor.silence(NodeId(0))
    world.reactor.inbox.append((token, ERROR))
    world.reactor.turn()
    assert len(wire.sent) == 1


def test_why_nodes_cannot_register_is_kept_until_they_can() -> None:
    """After a refused create the kubelet finds no Node: that is not the reason."""
    world = World(nodes=3)
    for node in map(NodeId, range(3)):
        world.reactor.entries[node].caller.name = b"n-%d" % node
        message = b"node n-%d may not set the label x" % node
        create = ApiCall(node, Op.CREATE_NODE, "", NodeObject(()))
        world.answer(create, 403, b'{"kind":"Status","message":"%b"}' % message)
        world.answer(ApiCall(node, Op.GET_NODE_EXISTING), 404)
    assert list(world.reactor.unregistered().values()) == ["node NODE may not set the label x"] * 3
    world.answer(ApiCall(NodeId(0), Op.PATCH_NODE_STATUS, "", NodeStatusPatch()), 200)
    world.reactor.silence(NodeId(1))
    world.answer(ApiCall(NodeId(2), Op.CREATE_NODE, "", NodeObject(())), 0)
    [why] = world.reactor.unregistered().values()
    assert "label" not in why


def test_watches_use_the_pool_that_they_are_given() -> None:
    world = World()
    kubelet = NotedKubelet(1, world.env)
    caller = world.reactor.entries[0].caller
    world.kubelets.append(kubelet)
    world.reactor.add(kubelet, caller, 1, watch_pool=7)
    for node in (0, 1):
        want = StartWatch(NodeId(node), WatchKind.PODS)
        world.asks(want, GET_NODE._replace(node=NodeId(node)), node=node)
    pools = [(pool, request.stream) for pool, request, _ in world.wire.sent]
    assert sorted(pools) == [(0, False), (0, True), (1, False), (7, True)]


def test_what_fleet_could_not_send_is_no_error_of_the_server() -> None:
    """Its answers have code 0: they would slow the start of nodes, and look like the server's."""
    world = World()
    want = StartWatch(NodeId(0), WatchKind.PODS)
    world.asks(want, GET_NODE)
    for _, _, token in list(world.wire.sent):
        world.answer(token, 0, failure=Failure.OWN_LIMIT)
    assert not world.reactor.counts.requests.rows
    assert world.kubelets[0].got[-1] == Reply(ReplyKind.LOST, None, 0)


def test_a_timer_fires_when_it_is_due() -> None:
    world = World()
    world.asks(SetTimer(NodeId(0), 5 * NS_PER_MS, Timer.POD_SYNC, "uid"))
    assert world.reactor.next_timer_ns() == 5 * NS_PER_MS
    world.after(0.004)
    assert len(world.kubelets[0].got) == 1
    world.after(0.003)
    assert world.kubelets[0].got[-1] == (Timer.POD_SYNC, "uid", 7 * NS_PER_MS)
    assert world.reactor.counts.timer_lag.max_us == 2_000


def test_every_turn_flushes_once_and_sweeps_once_a_second() -> None:
    world = World()
    before = world.wire.flushes
    for _ in range(6):
        world.after(0.25)
    assert world.wire.flushes == before + 6
    assert world.wire.swept == [NS_PER_S]


def test_a_turn_is_bounded_and_leases_come_first() -> None:
    world = World()
    for _ in range(TIMERS_MAX):
        world.reactor._wheel.set(0, 0, Timer.HOUSEKEEPING)
    world.reactor._wheel.set(0, 0, Timer.RENEW_LEASE)
    assert world.reactor.turn()
    assert len(world.kubelets[0].got) == TIMERS_MAX
    assert not world.reactor.turn()
    assert world.kubelets[0].got[-1] == (Timer.RENEW_LEASE, "", 0)
    world.reactor.inbox += [(GET_NODE, Response(404, b"", 0, 0))] * (REPLIES_MAX + 1)
    assert world.reactor.turn()
    assert not world.reactor.turn()


def test_leases_come_first_within_a_turn_that_is_full() -> None:
    world = World()
    for _ in range(TIMERS_MAX - 1):
        world.reactor._wheel.set(0, 0, Timer.HOUSEKEEPING)
    world.reactor._wheel.set(0, 0, Timer.RENEW_LEASE)
    world.reactor.turn()
    assert world.kubelets[0].got[0] == (Timer.RENEW_LEASE, "", 0)


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_honoured_ten_times(code: int) -> None:
    world = World()
    world.asks(GET_NODE)
    for tries in range(1, CALL_TRIES_MAX + 1):
        assert len(world.wire.sent) == tries
        assert len(world.kubelets[0].got) == 1
        world.answer(world.wire.sent[-1][2], code, retry_after_s=2)
        world.after(1.9)
        world.after(0.2)
    assert len(world.wire.sent) == CALL_TRIES_MAX
    assert world.kubelets[0].got[-1] == Reply(
        ReplyKind.REFUSED, None, code, "", 21_000_000_000, 21_000_000_000
    )


@pytest.mark.parametrize(("code", "after_s"), [(404, 2), (503, -1)])
def test_other_refusals_go_to_the_kubelet(code: int, after_s: int) -> None:
    world = World()
    world.asks(GET_NODE)
    world.answer(GET_NODE, code, retry_after_s=after_s)
    assert isinstance(world.kubelets[0].got[-1], Reply)


def test_a_heartbeat_has_one_time_for_all_its_tries() -> None:
    """Source: client-go/rest/request.go, request: the time-out is set before the first try."""
    world = World()
    world.after(1)
    world.asks(GET_NODE._replace(op=Op.GET_NODE_HEARTBEAT))
    limits_s = []
    for _ in range(4):  # each is refused 2 s after it was sent, and told to come in a second
        _, request, token = world.wire.sent[-1]
        limits_s.append(request.timeout_ns // NS_PER_S)
        sent_ns = world.clock.now_ns()
        world.after(2)
        refusal = Response(429, b"", sent_ns, world.clock.now_ns(), 1)
        world.reactor.inbox.append((token, refusal))
        world.reactor.turn()
        world.after(1)
    assert limits_s == [10, 7, 4, 1]
    assert len(world.wire.sent) == 4
    assert world.kubelets[0].got[-1] == Reply(
        ReplyKind.LOST, None, 0, "context deadline exceeded", 0, world.clock.now_ns()
    )


def test_a_read_whose_connection_is_lost_is_repeated_and_a_write_is_not() -> None:
    """Source: client-go/rest/request.go, isErrRetryableFunc: GETs only, a second later."""
    world = World()
    world.asks(GET_NODE)
    world.answer(GET_NODE, 0, failure=Failure.LOST)
    assert world.kubelets[0].got == [(Timer.HOUSEKEEPING, "ask", 0)]
    world.after(1.02)
    assert len(world.wire.sent) == 2
    world.asks(DELETE_POD)
    world.answer(DELETE_POD, 0, failure=Failure.LOST)
    assert isinstance(world.kubelets[0].got[-1], Reply)
    assert len(world.wire.sent) == 3


class Watched:
    """One open watch of n-0."""

    def __init__(self, kind: WatchKind = WatchKind.CONFIG_MAP) -> None:
        self.world = World()
        self.world.asks(StartWatch(NodeId(0), kind, "ns", "x"))
        self.opened()

    @property
    def token(self) -> object:
        return self.world.wire.sent[-1][2]

    def opened(self) -> None:
        self.push(StreamOpened(0, 0))

    def push(self, *messages: object) -> None:
        self.world.reactor.inbox += [(self.token, each) for each in messages]
        self.world.reactor.turn()

    def events(self) -> Iterator[EventType]:
        for each in self.world.kubelets[0].got:
            if isinstance(each, WatchEvent) and each != BEGINS:
                yield each.type


ADDED = b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"5"}}}\n'
SYNCED = (
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"6",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}}}}\n'
)
ERROR = b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n'
CLOSED = Response(200, b"", 0, 0)


def test_a_stopped_watch_is_cancelled_and_heard_no_more() -> None:
    watched = Watched()
    [reflector] = watched.world.reactor.entries[0].reflectors
    watched.world.asks(StopWatch(NodeId(0), WatchKind.CONFIG_MAP, "ns", "x"))
    assert reflector.phase is WatchPhase.STOPPED
    assert watched.world.wire.cancelled == [watched.token]
    watched.push(ADDED)
    assert list(watched.events()) == []
    watched.world.asks(StopWatch(NodeId(0), WatchKind.CONFIG_MAP, "ns", "x"))


def test_a_watch_that_was_stopped_for_being_idle_goes_on_from_its_version() -> None:
    """Source: watch_based_manager.go, restartReflectorIfNeeded: the same reflector runs again."""
    watched = Watched()
    watched.push(SYNCED)
    want = StartWatch(NodeId(0), WatchKind.CONFIG_MAP, "ns", "x")
    for is_idle in (True, False):
        watched.world.asks(StopWatch(*want, is_idle=is_idle))
        watched.world.asks(want)
        path = watched.world.wire.sent[-1][1].path
        assert b"sendInitialEvents" in path
        assert (b"resourceVersion=6" in path) == is_idle
    assert len(watched.world.reactor.entries[0].reflectors) == 1


def test_a_watch_stopped_during_its_back_off_stays_stopped() -> None:
    watched = Watched()
    watched.push(SYNCED, ERROR)
    watched.world.asks(StopWatch(NodeId(0), WatchKind.CONFIG_MAP, "ns", "x"))
    watched.world.after(3)
    assert len(watched.world.wire.sent) == 1


def test_the_pages_of_a_list_are_one_snapshot() -> None:
    watched = Watched()
    watched.push(Response(0, b"", 0, 0, -1, Failure.RESET))  # a LIST follows
    page = b'{"metadata":{"resourceVersion":"9","continue":"t"},"items":[]}'
    watched.push(Response(200, page, 0, 0))
    assert b"continue=t" in watched.world.wire.sent[-1][1].path
    assert watched.world.kubelets[0].got.count(BEGINS) == 2


def test_a_list_whose_pages_do_not_end_begins_anew_after_a_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "PAGES_MAX", 5)
    page = b'{"metadata":{"resourceVersion":"9","continue":"%b"},"items":[]}'
    for tokens in (b"aa", b"abababab", b"abcdefghijkl"):
        watched = Watched()
        watched.push(Response(0, b"", 0, 0, -1, Failure.RESET))  # a LIST follows
        sent = watched.world.wire.sent
        for at in range(len(tokens)):
            before = len(sent)
            watched.push(Response(200, page % tokens[at : at + 1], 0, 0))
            if len(sent) == before:
                break
        assert len(sent) == before, tokens
        watched.world.after(4)
        assert b"continue" not in sent[-1][1].path


def test_a_watch_that_begins_anew_during_the_back_off_of_another_is_asked_for_once() -> None:
    watched = Watched()
    watched.push(Response(0, b"", 0, 0, -1, Failure.RESET))  # a LIST follows
    watched.push(Response(0, b"", 0, 0, -1, Failure.DIAL))
    watched.world.asks(StopWatch(NodeId(0), WatchKind.CONFIG_MAP, "ns", "x"))
    watched.world.asks(StartWatch(NodeId(0), WatchKind.CONFIG_MAP, "ns", "x"))
    assert len(watched.world.wire.sent) == 3
    watched.world.after(3)
    assert len(watched.world.wire.sent) == 3


def test_a_watch_that_cannot_be_read_takes_its_own_node_out() -> None:
    world = World(nodes=2, raise_bugs=False)
    for node in (0, 1):
        world.asks(StartWatch(NodeId(node), WatchKind.CONFIG_MAP, "ns", "x"), node=node)
    for _, _, token in world.wire.sent:
        world.reactor.inbox.append((token, StreamOpened(0, 0)))
    world.reactor.turn()
    assert world.reactor.counts.watches_open == 2
    world.reactor.inbox.append((world.wire.sent[0][2], object()))
    world.reactor.turn()
    assert [entry.kubelet is None for entry in world.reactor.entries] == [True, False]
    assert world.reactor.counts.watches_open == 1
    assert not world.reactor.counts.bugs


def test_a_shared_watch_that_cannot_be_read_marks_the_run() -> None:
    world = World(raise_bugs=False)
    world.reactor.wires.connect(observer=world.wire)
    world.reactor.share_watch(WatchKind.NODE)
    world.reactor.inbox.append((world.wire.sent[-1][2], object()))
    world.reactor.turn()
    assert world.reactor.counts.bugs == 1
    assert world.reactor.entries[0].kubelet is not None


def test_what_a_broken_kubelet_asked_for_is_not_done() -> None:
    world = World(raise_bugs=False)
    out: Outbox = [GET_NODE, StartWatch(NodeId(0), WatchKind.NODE)]
    world.reactor.silence(NodeId(0))
    world.reactor._execute(out)
    assert world.wire.sent == []


def test_in_tests_a_bug_is_raised() -> None:
    world = World()
    with pytest.raises(ValueError, match="a bug"):
        world.asks(None)


def test_a_story_is_kept_of_the_nodes_asked_for() -> None:
    world = World(nodes=2)
    world.asks(GET_NODE)
    world.answer(GET_NODE, 404)
    story = world.reactor.entries[0].story
    assert story is not None
    assert list(story) == [
        "0 timer HOUSEKEEPING ask",
        "0 call GET_NODE_CSI k",
        "0 reply GET_NODE_CSI k 404",
    ]
    assert world.reactor.entries[1].story is None


def test_lease_intervals_are_measured_as_the_server_sees_them() -> None:
    world = World()
    lease = world.kubelets[0].lease
    renew = ApiCall(NodeId(0), Op.RENEW_LEASE)
    lease._state = LeaseState.RENEW
    lease.renewed_ns = 1
    world.clock.advance_to(41 * NS_PER_S)
    world.answer(renew, 200)
    counts = world.reactor.counts
    assert (counts.renewals, counts.leases_missed) == (1, 1)
    assert counts.lease_interval_ns_max == 41 * NS_PER_S - 1
    assert counts.lease_late.max_us == 41_000_000


def test_a_server_that_refuses_renewals_does_not_make_them_sent_late() -> None:
    world = World()
    lease = b'{"spec":{"renewTime":"2026-11-21T02:06:48.123456Z"}}'
    renew = ApiCall(NodeId(0), Op.RENEW_LEASE, "", LeaseRenewal(lease, 0))
    world.kubelets[0].lease._state = LeaseState.RENEW
    world.after(0.02)
    world.answer(renew, 429, retry_after_s=2)
    world.after(2.5)
    [*_, (_, _, again)] = world.wire.sent
    assert again != renew
    world.answer(again, 200)
    counts = world.reactor.counts
    assert (counts.renewals, counts.lease_late.count) == (1, 1)
    assert counts.lease_late.max_us == 20_000


def test_reports_are_counted() -> None:
    world = World()
    world.asks(*(Report(NodeId(0), each, 5_000_000) for each in Milestone))
    counts = world.reactor.counts
    assert (counts.registered, counts.not_ready, counts.gone) == (1, 1, 1)
    assert (counts.pods_added, counts.pods_running, counts.pods_failed) == (1, 1, 1)
    assert (counts.pods_removed, counts.events_dropped) == (1, 1)
    assert counts.node_start.max_us == counts.pod_start.max_us == 5_000
