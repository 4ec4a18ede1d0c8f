import pytest
from world.node_world import (
    EXISTS,
    LOST,
    NODE,
    OK,
    REFUSED,
    START_S,
    environment,
    existing,
    facts,
    node_reply,
    turn,
    view,
)

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    Milestone,
    NodeObject,
    NodeStatusPatch,
    Op,
    Outbox,
    ReplyKind,
    Report,
    SetTimer,
    Timer,
)
from fleet.k8s.pods import NodeCondition
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason
from fleet.kubelet.node.node_status import NodeStatus
from fleet.kubelet.node.setters import (
    NodeInputs,
    compute_conditions,
    has_changed,
    set_ready,
)
from fleet.kubelet.turn import Turn

ENV = environment()
READY = NodeInputs()
FRESH = [
    Reason.NODE_HAS_SUFFICIENT_MEMORY,
    Reason.NODE_HAS_NO_DISK_PRESSURE,
    Reason.NODE_HAS_SUFFICIENT_PID,
]
GET = ApiCall(NODE, Op.GET_NODE_HEARTBEAT)
CREATE = ApiCall(NODE, Op.CREATE_NODE)
PATCH = ApiCall(NODE, Op.PATCH_NODE_STATUS_HEARTBEAT)


class Status(NodeStatus):
    """A status beside the facts of its node."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = facts()


def at(status: Status, now_ns: int, out: Outbox | None = None, env: Environment = ENV) -> Turn:
    return turn(env, now_ns, out, status.facts)


def conditions(now_s: int = START_S, inputs: NodeInputs = READY) -> tuple[NodeCondition, ...]:
    return compute_conditions((), inputs, now_s)[0]


def registered(now_ns: int = NS_PER_S) -> Status:
    """Return the status of a node that is Ready and has reported once, at `now_ns`."""
    status = Status()
    effects: Outbox = []
    status.start(at(status, 0, effects))
    status.on_register_timer(READY, at(status, 100 * NS_PER_MS, effects))
    assert status.on_register_reply(node_reply(), at(status, now_ns, effects))
    status.on_node(view(conditions()), status.facts)
    status.sync(READY, at(status, now_ns, effects))
    status.on_status_reply(PATCH, OK, READY, at(status, now_ns, effects))
    return status


def test_ready_tells_why_not() -> None:
    one, event = set_ready(None, ("no CNI",), 5)
    assert (one.status, one.reason, one.message, event) == (
        "False",
        "KubeletNotReady",
        "no CNI",
        None,
    )
    two, _ = set_ready(one, ("no CNI", "no CSI"), 9)
    assert (two.message, two.transition_s) == ("[no CNI, no CSI]", 5)
    ready, event = set_ready(two, (), 12)
    assert (ready.status, ready.transition_s, event) == ("True", 12, Reason.NODE_READY)
    assert set_ready(ready, ("x",), 13)[1] is Reason.NODE_NOT_READY


def test_heartbeats_are_no_change() -> None:
    before = conditions(5)
    assert not has_changed(before, tuple(each._replace(heartbeat_s=9) for each in before))
    assert has_changed(before, (before[0]._replace(status="Unknown"), *before[1:]))
    assert has_changed(before, before[1:])


def test_registration_sleeps_first_and_doubles_to_seven_seconds() -> None:
    status, out = Status(), list[SetTimer]()
    effects: Outbox = []
    now_ns = 0
    status.start(at(status, 0, effects))
    for tried in range(9):
        [timer] = effects
        assert isinstance(timer, SetTimer)
        out.append(timer)
        effects.clear()
        now_ns = timer.due_ns
        events = status.on_register_timer(READY, at(status, now_ns, effects))
        assert events == FRESH * (1 if tried else 3)
        made = NodeObject(conditions(ENV.wall_s(now_ns)), ENV.images.status_json())
        assert effects == [CREATE._replace(payload=made)]
        effects.clear()
        assert not status.on_register_reply(REFUSED, at(status, now_ns, effects))
    delays = [b.due_ns - a.due_ns for a, b in zip(out, out[1:], strict=False)]  # noqa: RUF007
    assert out[0].due_ns == 100 * NS_PER_MS
    assert [each // NS_PER_MS for each in delays] == [200, 400, 800, 1600, 3200, 6400, 7000, 7000]


def test_a_node_that_the_informer_has_is_made_up_by_the_try_alone() -> None:
    """As after a restart: whoever else looks at it finds it."""
    status = Status()
    effects: Outbox = []
    status.start(at(status, 0, effects))
    status.on_node(view(conditions()), status.facts)
    assert status.on_register_timer(READY, at(status, 100 * NS_PER_MS, effects)) == FRESH


@pytest.mark.parametrize("kind", [ReplyKind.EXISTS, ReplyKind.FORBIDDEN])
def test_a_refused_create_looks_at_the_node(kind: ReplyKind) -> None:
    status = Status()
    effects: Outbox = []
    status.start(at(status, 0, effects))
    status.on_register_timer(READY, at(status, 100 * NS_PER_MS, effects))
    effects.clear()
    assert not status.on_register_reply(EXISTS._replace(kind=kind), at(status, 0, effects))
    assert effects == [ApiCall(NODE, Op.GET_NODE_EXISTING)]
    effects.clear()
    stale = existing()._replace(labels={**existing().labels, "kubernetes.io/os": "plan9"})
    assert not status.on_register_reply(node_reply(stale), at(status, 0, effects))
    patch = NodeStatusPatch(labels=(("kubernetes.io/os", "linux"),))
    assert effects == [ApiCall(NODE, Op.PATCH_NODE_STATUS, "", patch)]
    effects.clear()
    assert status.on_register_reply(OK, at(status, 7, effects))
    assert effects == [Report(NODE, Milestone.REGISTERED, 7)]


def test_the_next_report_is_due_after_half_to_one_and_a_half_periods() -> None:
    status = registered()
    effects: Outbox = []
    status._due_ns = 0
    status.arm(READY, at(status, NS_PER_S, effects))
    timer = effects[-1]
    assert isinstance(timer, SetTimer)
    assert 150 * NS_PER_S <= timer.due_ns <= 462 * NS_PER_S


def test_a_tick_of_its_own_follows_a_quick_report_that_failed() -> None:
    status = registered()
    status.on_node(view(conditions(inputs=NodeInputs(not_ready=("no CNI",)))), status.facts)
    effects: Outbox = []
    status.arm(READY, at(status, 3 * NS_PER_S, effects))
    assert status.on_fast_timer(READY, at(status, 4 * NS_PER_S, effects)) == [Reason.NODE_READY]
    effects.clear()
    for tries in range(1, 6):
        status.on_status_reply(PATCH, LOST, READY, at(status, 4 * NS_PER_S, effects))
        assert [each.op for each in effects if isinstance(each, ApiCall)] == [
            PATCH.op,
            *[GET.op] * (tries - 1),
        ]
    assert status._fast_due_ns < 0


def test_the_fast_loop_gives_up_after_two_minutes() -> None:
    status = registered()
    status._fast_due_ns = 0
    effects: Outbox = []
    status.arm(READY, at(status, 121 * NS_PER_S, effects))
    assert status._fast_due_ns < 0
    timers = [each.timer for each in effects if isinstance(each, SetTimer)]
    assert Timer.FAST_STATUS not in timers
