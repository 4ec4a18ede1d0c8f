"""What a kubelet asks for first, and to whom it hands what it gets."""

import pytest
from world.node_world import (
    NODE,
    NOT_FOUND,
    OK,
    REFUSED,
    START_S,
    environment,
    model,
    node_reply,
    view,
)

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    CSINodeObject,
    Milestone,
    NodeObject,
    Op,
    Outbox,
    Reply,
    Report,
    SetTimer,
    StartWatch,
    Timer,
    WatchEvent,
    WatchKind,
)
from fleet.k8s.pods import EventType
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node.csi_node import ROUND_ERROR, STORAGE_ERROR
from fleet.kubelet.node.setters import NodeInputs, compute_conditions
from fleet.wire.api.operations import OPERATIONS

SLICES = ApiCall(NODE, Op.DELETE_RESOURCE_SLICES)


def make(env: Environment | None = None) -> tuple[VirtualKubelet, Outbox]:
    kubelet = VirtualKubelet(NODE, "n", "198.18.0.4", env or environment())
    out: Outbox = []
    kubelet.start(0, out)
    return kubelet, out


def answer(kubelet: VirtualKubelet, call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
    kubelet.on_reply(OPERATIONS[call.op].owner, call, reply, now_ns, out)


def node_event(type_: EventType = EventType.ADDED, status: str = "True") -> WatchEvent:
    conditions, _ = compute_conditions((), NodeInputs(not_ready=(STORAGE_ERROR,)), START_S)
    ready = conditions[-1]._replace(status=status)
    return WatchEvent(WatchKind.NODE, type_, view((*conditions[:-1], ready)))


def test_the_first_moment_in_light() -> None:
    _, out = make(environment(light=True))
    assert out == [SetTimer(NODE, 0, Timer.REGISTER)]


def test_pods_are_watched_once_the_node_informer_has_synced() -> None:
    kubelet, out = make()
    out.clear()
    kubelet.on_timer(Timer.POD_SOURCE, "", NS_PER_S, out)
    assert out == [SetTimer(NODE, 2 * NS_PER_S, Timer.POD_SOURCE)]
    kubelet.on_watch_event(node_event(), NS_PER_S, out)
    kubelet.on_watch_event(WatchEvent(WatchKind.NODE, EventType.SYNCED), NS_PER_S, out)
    out.clear()
    kubelet.on_timer(Timer.POD_SOURCE, "", 2 * NS_PER_S, out)
    assert out == [StartWatch(NODE, WatchKind.PODS)]


def test_registration_tells_why_the_node_is_not_ready() -> None:
    kubelet, out = make()
    out.clear()
    kubelet.on_timer(Timer.REGISTER, "", 100 * NS_PER_MS, out)
    [create] = [each for each in out if isinstance(each, ApiCall) and each.op is Op.CREATE_NODE]
    assert isinstance(create.payload, NodeObject)
    ready = create.payload.conditions[-1]
    assert (ready.status, ready.message) == ("False", "CSINode is not yet initialized")


def test_slices_are_wiped_when_the_node_is_seen_and_until_it_worked() -> None:
    kubelet, out = make()
    kubelet._withheld = None  # it is known to be ours
    out.clear()
    kubelet.on_watch_event(node_event(status="False"), 5, out)
    assert SLICES in out
    out.clear()
    kubelet.on_watch_event(node_event(EventType.MODIFIED, "False"), 6, out)
    assert SLICES not in out
    out.clear()
    call = SLICES
    for power in range(8):
        answer(kubelet, call, REFUSED, 0, out)
        timer = out.pop()
        assert isinstance(timer, SetTimer)
        assert 1 << power <= timer.due_ns / NS_PER_S < 1.2 * (1 << power)
        kubelet.on_timer(timer.timer, timer.key, timer.due_ns, out)
        again = out.pop()
        assert isinstance(again, ApiCall)
        call = again
    for reply in (OK, NOT_FOUND, REFUSED):  # the ninth failure is the last
        answer(kubelet, call, reply, 0, out)
    assert out == []


def test_ready_is_told_when_the_server_shows_it() -> None:
    kubelet, out = make()
    reports = []
    for status in ("False", "True", "True", "Unknown"):
        out.clear()
        kubelet.on_watch_event(node_event(EventType.MODIFIED, status), 9, out)
        reports += [each for each in out if isinstance(each, Report)]
    assert reports == [Report(NODE, Milestone.READY, 9), Report(NODE, Milestone.NOT_READY, 9)]


def test_a_csinode_that_exists_makes_the_node_ready() -> None:
    kubelet, out = make()
    kubelet.on_timer(Timer.REGISTER, "", 100 * NS_PER_MS, out)
    answer(kubelet, ApiCall(NODE, Op.CREATE_NODE), node_reply(), 110 * NS_PER_MS, out)
    answer(kubelet, ApiCall(NODE, Op.PROBE_CSINODE), NOT_FOUND, 110 * NS_PER_MS, out)
    now_ns, refused = 0, REFUSED._replace(message="csinodes is forbidden")
    for tries in range(28):  # six rounds and one more
        assert kubelet._not_ready(0)[0].endswith("initialized" if tries < 4 else "is forbidden")
        answer(kubelet, ApiCall(NODE, Op.GET_CSINODE), refused, now_ns, out)
        now_ns = max(each.due_ns for each in out if isinstance(each, SetTimer))
    assert 142 < now_ns / NS_PER_S < 160
    answer(kubelet, ApiCall(NODE, Op.GET_NODE_CSI), node_reply(), 110 * NS_PER_MS, out)
    answer(kubelet, ApiCall(NODE, Op.GET_CSINODE), NOT_FOUND, 110 * NS_PER_MS, out)
    assert out[-1] == ApiCall(NODE, Op.CREATE_CSINODE, "", CSINodeObject("uid-1"))
    assert kubelet._not_ready(NS_PER_S) == (ROUND_ERROR + refused.message,)
    answer(kubelet, ApiCall(NODE, Op.CREATE_CSINODE), OK, 120 * NS_PER_MS, out)
    assert kubelet._not_ready(NS_PER_S) == ()
    assert kubelet._csi is None


@pytest.mark.parametrize("timer", [Timer.POD_SYNC, Timer.STATUS_SYNC, Timer.RUNTIME])
def test_a_node_without_pods_ignores_their_timers(timer: Timer) -> None:
    kubelet, out = make()
    out.clear()
    kubelet.on_timer(timer, "uid", 5, out)
    kubelet.on_watch_event(WatchEvent(WatchKind.PODS, EventType.RESTARTED), 5, out)
    kubelet.on_watch_event(WatchEvent(WatchKind.PODS, EventType.SYNCED), 5, out)
    assert out == []


def test_an_environment_keeps_the_wall_clock() -> None:
    env = environment()
    assert env.wall_s(3 * NS_PER_S + 5) == START_S + 3
    assert env.wall_ns(5) == env.wall_offset_ns + 5
    assert env.model is model()


@pytest.mark.parametrize("op", Op)
def test_every_call_is_answered_to_its_owner(op: Op) -> None:
    kubelet, out = make()
    kubelet._pod_side()
    kubelet.status._tries = 0
    answer(kubelet, ApiCall(NODE, op), REFUSED, 0, out)
