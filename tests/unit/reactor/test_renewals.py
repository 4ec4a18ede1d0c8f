"""The short way of a renewal: what it does itself, and what it leaves to the long way."""

import gc
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType

import pytest
from test_reactor import MODEL, NotedWire
from world.sim_clock import SimClock

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.effects import ApiCall, NodeId, Op, Timer
from fleet.kubelet.environment import LIGHT, Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node.node_lease import LeaseState
from fleet.reactor.calls import Hindrance
from fleet.reactor.reactor import Reactor
from fleet.wire.api.codec import JSON
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.http2.hpack import HeaderPlan
from fleet.wire.http2.http2_codec import Http2Codec, Stream
from fleet.wire.http2.messages import Failure, Request, Response

LEASE = b'{"metadata":{"resourceVersion":"%d"},"spec":{"renewTime":"2026-11-21T02:06:48.123456Z"}}'
DUE_NS = 10 * NS_PER_S


class World:
    """A kubelet that waits to renew its Lease at `DUE_NS`, and a wire that notes."""

    def __init__(self, *, impersonate: bool = False, story: bool = False) -> None:
        self.clock = SimClock()
        self.reactor = Reactor(self.clock, Draws(1), raise_bugs=True, codec=JSON)
        self.wire = NotedWire()
        self.reactor.wires.connect(nodes=self.wire)
        env = Environment(MODEL, Draws(1), fidelity=LIGHT, own_watches=True)
        self.reactor.environments.add(env)
        template = RenderedProfile(MODEL, extra_labels={}, impersonate=impersonate)
        self.kubelet = VirtualKubelet(NodeId(0), "n-0", "192.0.2.1", env)
        self.reactor.add(self.kubelet, Caller(0, b"n-0", template), 0)
        self.reactor.turn()
        self.wire.sent.clear()
        self.kubelet._withheld = None
        lease = self.lease = self.kubelet.lease
        lease._state, lease.base, lease.due_ns = LeaseState.WAIT, LEASE % 1, DUE_NS
        lease.renewed_ns = 1
        if story:
            self.reactor.entries[0].story = deque()

    def renew(self) -> tuple[Request, ApiCall]:
        """Let the renewal come due; return what was sent."""
        self.clock.advance_to(DUE_NS)
        self.reactor._wheel.set(DUE_NS, 0, Timer.RENEW_LEASE)
        self.reactor.turn()
        [(pool, request, token)] = self.wire.sent
        assert pool == 0
        assert isinstance(token, ApiCall)
        self.wire.sent.clear()
        return request, token

    def answer(self, token: ApiCall, code: int, body: bytes = b"", **fields: int) -> None:
        now_ns = self.clock.now_ns()
        response = Response(code, body, now_ns, now_ns + 5, **fields)  # type: ignore[arg-type]
        self.reactor.inbox.append((token, response))
        self.reactor.turn()


@pytest.mark.parametrize(
    ("code", "body", "follows"),
    [
        (409, b"{}", Op.GET_LEASE),
        (404, b"{}", Op.RENEW_LEASE),
        (503, b"{}", Op.RENEW_LEASE),
        (200, b"", Op.RENEW_LEASE),  # that nobody can read
        (0, b"", Op.RENEW_LEASE),
    ],
)
def test_what_is_no_success_goes_the_long_way(code: int, body: bytes, follows: Op) -> None:
    """Source: component-helpers/apimachinery/lease/controller.go, retryUpdateLease."""
    world = World()
    _, token = world.renew()
    failure = {} if code else {"failure": Failure.TIMEOUT}
    world.answer(token, code, body, **failure)
    [(_, _, again)] = world.wire.sent
    assert isinstance(again, ApiCall)
    assert again.op is follows
    assert world.reactor.counts.renewals == (code == 200)


def test_a_stale_timer_and_the_answer_to_a_silent_node_do_nothing() -> None:
    world = World()
    world.reactor._wheel.set(1, 0, Timer.RENEW_LEASE)
    world.clock.advance_to(DUE_NS - 1)
    world.reactor.turn()
    assert not world.wire.sent
    _, token = world.renew()
    world.reactor.silence(NodeId(0))
    world.answer(token, 200, LEASE % 2)
    assert world.lease.base == LEASE % 1
    assert world.reactor.counts.requests.total == 1  # the server did it all the same
    assert not world.reactor.counts.renewals


def test_between_edges_an_answer_is_taken_and_what_is_due_waits() -> None:
    world = World()
    _, token = world.renew()
    world.answer(token, 200, LEASE % 2)
    world.clock.advance_to(world.lease.due_ns)
    world.reactor.turn(timers=False)
    assert not world.wire.sent
    world.reactor.turn()
    assert len(world.wire.sent) == 1


def test_writes_that_are_held_are_not_passed_by() -> None:
    """Until it is known that the Node is ours its Lease is not renewed either."""
    kubelet = VirtualKubelet(NodeId(0), "n-0", "192.0.2.1", World().kubelet.env)
    lease = kubelet.lease
    lease._state, lease.base = LeaseState.WAIT, LEASE % 1
    assert kubelet.begin_renewal(DUE_NS) == b""
    assert lease._state is LeaseState.WAIT


class WrittenWire(NotedWire):
    """Has requests written as a connection writes them."""

    def __init__(self) -> None:
        super().__init__()
        plan = HeaderPlan(b"server", b"Bearer token", b"kubelet/v1.36.3", b"application/json")
        self.codec = Http2Codec(plan)
        self.codec.outbound.out.clear()

    def send(self, pool: int, request: Request, token: object) -> None:
        super().send(pool, request, token)
        self.codec.open_stream(Stream(token, request, request.stream))


def calls_of(act: Callable[[], object]) -> list[str]:
    """Return the functions of fleet that something calls, records apart, which are of tuple."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<lambda>":
            found.append(frame.f_code.co_name)

    before = sys.getprofile()
    gc.disable()  # or the callbacks of a collection would count, if one falls into the turn
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found[1:-1]  # without `act` itself, and what ends this


def calls_of_a_heartbeat(*, story: bool) -> tuple[int, int]:
    """Return how many calls a renewal takes from its timer to bytes, and from its answer on."""
    world = World(story=story)
    world.reactor._wheel.forget((0,), ())  # what else there is to do
    wire = WrittenWire()
    world.reactor.wires.connect(nodes=wire)
    world.wire = wire
    _, token = world.renew()
    world.answer(token, 200, LEASE % 2)
    world.clock.advance_to(world.lease.due_ns - 1)
    world.reactor.turn()  # what there is to do once a second
    idle = len(calls_of(world.reactor.turn))
    world.clock.advance_to(world.lease.due_ns)
    wire.codec.outbound.out.clear()
    sent = len(calls_of(world.reactor.turn))
    assert wire.codec.outbound.out
    [(_, _, asked)] = wire.sent
    now_ns = world.clock.now_ns()
    world.reactor.inbox.append((asked, Response(200, LEASE % 3, now_ns, now_ns)))
    taken = len(calls_of(world.reactor.turn))
    assert world.lease.due_ns > now_ns
    return sent - idle, taken - idle


def test_a_heartbeat_stays_short() -> None:
    """Calls are counted, not time: they are as many on every machine, however busy it is.

    The long way is the reference, in the same run: 20 and 16 calls, there 37 and 36.
    """
    sent, taken = calls_of_a_heartbeat(story=False)
    long_sent, long_taken = calls_of_a_heartbeat(story=True)
    assert sent <= 0.6 * long_sent
    assert taken <= 0.5 * long_taken


def test_a_renewal_that_a_fault_hinders_is_not_sent() -> None:
    """A node that is to lose its heartbeats loses those of the short way, too."""
    world = World()
    hindered = (Hindrance(frozenset((Op.RENEW_LEASE,))),)
    world.reactor.calls.hindrances[NodeId(0)] = hindered
    world.clock.advance_to(DUE_NS)
    world.reactor._wheel.set(DUE_NS, 0, Timer.RENEW_LEASE)
    world.reactor.turn()
    assert not world.wire.sent
    assert world.lease.is_first_try  # it waits for an answer that does not come
