"""What a kubelet asks for first, and to whom it hands what it gets."""

import pytest
from world.node_world import (
    NODE,
    NOT_FOUND,
    OK,
    REFUSED,
    START_S,
    environment,
    view,
)

from fleet.clock import NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    Op,
    Outbox,
    Reply,
    SetTimer,
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


def test_why_a_csinode_could_not_be_made_is_said_after_each_round() -> None:
    kubelet, out = make()
    now_ns, refused = 0, REFUSED._replace(message="csinodes is forbidden")
    for tries in range(28):  # six rounds and one more
        assert kubelet._not_ready(0)[0].endswith("initialized" if tries < 4 else "is forbidden")
        answer(kubelet, ApiCall(NODE, Op.GET_CSINODE), refused, now_ns, out)
        now_ns = max(each.due_ns for each in out if isinstance(each, SetTimer))
    assert 142 < now_ns / NS_PER_S < 160
    assert kubelet._not_ready(0) == (ROUND_ERROR + refused.message,)


@pytest.mark.parametrize("timer", [Timer.POD_SYNC, Timer.STATUS_SYNC, Timer.RUNTIME])
def test_a_node_without_pods_ignores_their_timers(timer: Timer) -> None:
    kubelet, out = make()
    out.clear()
    kubelet.on_timer(timer, "uid", 5, out)
    kubelet.on_watch_event(WatchEvent(WatchKind.PODS, EventType.RESTARTED), 5, out)
    kubelet.on_watch_event(WatchEvent(WatchKind.PODS, EventType.SYNCED), 5, out)
    assert out == []


@pytest.mark.parametrize("op", Op)
def test_every_call_is_answered_to_its_owner(op: Op) -> None:
    kubelet, out = make()
    kubelet._pod_side()
    kubelet.status._tries = 0
    answer(kubelet, ApiCall(NODE, op), REFUSED, 0, out)
