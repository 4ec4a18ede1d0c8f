"""When a process rests between two edges, and what is timed there."""

import pytest
from test_reactor import NotedWire
from test_renewals import DUE_NS, LEASE, World

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import ApiCall, NodeId, Op, PodTarget, Timer, WatchEvent, WatchKind
from fleet.k8s.pods import EventType
from fleet.metrics import QUICK_US, Requests
from fleet.reactor.calls import Delayed
from fleet.reactor.process import BUSY_NS, PROMPT_NS, TIMED_NS, IdleDetector
from fleet.wire.http2.messages import Response

ROW = ("PUT", "leases")
LATE = 20 * NS_PER_S + 500 * NS_PER_MS
"""Well after anything was done, and in the part of a second that is rested."""


def test_nine_tenths_of_each_second_are_rested() -> None:
    idle = IdleDetector()
    rested = [idle.may_rest(NS_PER_S + at * NS_PER_MS) for at in range(1_000)]
    assert rested == [False] * 100 + [True] * 900
    assert PROMPT_NS == 100 * NS_PER_MS


def test_whatever_stirs_it_keeps_it_awake_for_a_second_and_timed() -> None:
    idle = IdleDetector()
    idle.note_activity(LATE)
    assert not idle.may_rest(LATE + BUSY_NS - 1)
    assert idle.is_timed(LATE + BUSY_NS - 1)
    assert idle.may_rest(LATE + BUSY_NS)
    assert not idle.is_timed(LATE + BUSY_NS)
    assert idle.is_timed(21 * NS_PER_S + TIMED_NS - 1 + BUSY_NS)
    assert not idle.is_timed(21 * NS_PER_S + TIMED_NS + BUSY_NS)


class RestingWire(NotedWire):
    def __init__(self) -> None:
        super().__init__()
        self.rests: list[bool] = []

    def on_edge(self, *, rests: bool) -> None:
        self.rests.append(rests)


@pytest.mark.parametrize(
    ("op", "payload", "rests"),
    [
        (Op.GET_NODE_HEARTBEAT, None, [True]),
        (Op.GET_POD, PodTarget("default", "web"), [True, False]),  # awake before it is written
    ],
)
def test_only_heartbeats_are_waited_for_asleep(
    op: Op, payload: PodTarget | None, rests: list[bool]
) -> None:
    world, wire = World(), RestingWire()
    world.reactor.wires.connect(nodes=wire)
    world.clock.advance_to(LATE)
    call = ApiCall(NodeId(0), op, "", payload)
    world.reactor.calls.delayed[1] = Delayed(call, 1, has_token=True)
    world.reactor._wheel.set(LATE, 1, Timer.CALL_RETRY)
    world.reactor.turn()
    assert len(wire.sent) == 1
    assert wire.rests == rests


def test_what_comes_for_pods_wakes_it() -> None:
    world, wire = World(), RestingWire()
    world.reactor.wires.connect(nodes=wire)
    world.clock.advance_to(LATE)
    for kind in (WatchKind.NODE, WatchKind.PODS):
        event = WatchEvent(kind, EventType.SYNCED)
        world.reactor._deliver([(NodeId(0), event)], LATE, [])
        assert world.reactor._idle.may_rest(LATE) is (kind is WatchKind.NODE)


def test_an_untimed_answer_counts_as_the_last_timed_one() -> None:
    requests = Requests()
    requests.record(ROW, 200, 5_000)
    for _ in range(9):
        requests.record(ROW, 200, 21_000, timed=False)
    histogram = requests.rows[ROW][200]
    assert (histogram.count, histogram.sum_us) == (10, 50_000)
    assert histogram.percentile_us(0.99) < 6_000


def test_slow_answers_count_as_they_are() -> None:
    requests = Requests()
    requests.record(ROW, 200, 5_000)
    requests.record(ROW, 200, QUICK_US, timed=False)
    requests.record(ROW, 200, QUICK_US, timed=True)
    requests.record(ROW, 200, 21_000, timed=False)  # not as long as the slow one
    assert requests.rows[ROW][200].sum_us == 5_000 + 2 * QUICK_US + 5_000


def test_an_untimed_answer_before_any_timed_one_counts_as_it_is() -> None:
    requests = Requests()
    requests.record(ROW, 200, 21_000, timed=False)
    assert requests.rows[ROW][200].sum_us == 21_000


def test_a_renewal_is_timed_by_when_it_was_sent() -> None:
    took_us = []
    for phase_ns in (30 * NS_PER_MS, 500 * NS_PER_MS):
        world = World()
        _, call = world.renew()
        sent_ns = DUE_NS + phase_ns
        world.clock.advance_to(sent_ns + 20 * NS_PER_MS)
        requests = world.reactor.counts.requests
        requests.record(ROW, 200, 3_000)
        answer = Response(200, LEASE % 2, sent_ns, sent_ns + 20 * NS_PER_MS)
        world.reactor.inbox.append((call, answer))
        world.reactor.turn()
        took_us.append(requests.rows[ROW][200].sum_us - 3_000)
    assert took_us == [20_000, 3_000]
