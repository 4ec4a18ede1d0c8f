from world.node_world import (
    EXISTS,
    LOST,
    NODE,
    NOT_FOUND,
    OK,
    REFUSED,
    environment,
    node_reply,
    turn,
)

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    CSINodeObject,
    Op,
    Outbox,
    Reply,
    ReplyKind,
    SetTimer,
    Timer,
)
from fleet.k8s.objects import CSINodeView, Owner
from fleet.kubelet.node.csi_node import CSINode

ENV = environment()
PROBE = ApiCall(NODE, Op.PROBE_CSINODE)
GET_NODE = ApiCall(NODE, Op.GET_NODE_CSI)
GET = ApiCall(NODE, Op.GET_CSINODE)
CREATE = ApiCall(NODE, Op.CREATE_CSINODE, "", CSINodeObject("uid-1"))
DELETE = ApiCall(NODE, Op.DELETE_CSINODE)


def step(csi: CSINode, call: ApiCall, reply: Reply, now_ns: int = 0) -> Outbox:
    out: Outbox = []
    csi.on_reply(call, reply, turn(ENV, now_ns, out))
    return out


def fire(csi: CSINode, now_ns: int) -> Outbox:
    out: Outbox = []
    csi.on_timer(turn(ENV, now_ns, out))
    return out


def owned_by(uid: str) -> Reply:
    return Reply(ReplyKind.OK, CSINodeView("5", (Owner(uid, "Node"),)), 200)


def test_a_missing_one_is_made() -> None:
    csi = CSINode()
    out: Outbox = []
    csi.start(turn(ENV, 0, out))
    assert out == [PROBE]
    assert step(csi, PROBE, NOT_FOUND) == [GET_NODE]
    assert step(csi, GET_NODE, node_reply()) == [GET]
    assert step(csi, GET, NOT_FOUND) == [CREATE]
    assert not csi.is_initialized
    assert step(csi, CREATE, OK) == []
    assert csi.is_initialized


def test_the_probe_repeats_every_second() -> None:
    csi = CSINode()
    assert step(csi, PROBE, LOST, 5) == [SetTimer(NODE, NS_PER_S + 5, Timer.CSI_NODE)]
    assert fire(csi, NS_PER_S) == []
    assert fire(csi, NS_PER_S + 5) == [PROBE]


def test_ones_own_is_taken_over() -> None:
    csi = CSINode()
    step(csi, PROBE, OK)
    step(csi, GET_NODE, node_reply())
    assert step(csi, GET, owned_by("uid-1")) == []
    assert csi.is_initialized


def test_anothers_is_deleted_and_the_next_try_makes_it() -> None:
    csi = CSINode()
    step(csi, PROBE, OK)
    step(csi, GET_NODE, node_reply())
    assert step(csi, GET, owned_by("uid-0")) == [DELETE]
    [timer] = step(csi, DELETE, OK)
    assert isinstance(timer, SetTimer)
    assert fire(csi, timer.due_ns) == [GET_NODE]


def test_tries_wait_in_two_nested_back_offs() -> None:
    """Four tries 10 ms x5, then 30 ms x8, each with up to a tenth more."""
    csi = CSINode()
    step(csi, PROBE, OK)
    waits = []
    now_ns = 0
    for _ in range(12):
        [timer] = step(csi, GET_NODE, NOT_FOUND, now_ns)
        assert isinstance(timer, SetTimer)
        waits.append((timer.due_ns - now_ns) / NS_PER_MS)
        now_ns = timer.due_ns
        assert fire(csi, now_ns) == [GET_NODE]
    expected = [10, 50, 250, 30, 10, 50, 250, 240, 10, 50, 250, 1920]
    for wait, base in zip(waits, expected, strict=True):
        assert base <= wait <= base * 1.1


def test_a_refused_create_is_tried_again() -> None:
    for refusal in (EXISTS, REFUSED):
        csi = CSINode()
        step(csi, PROBE, OK)
        step(csi, GET_NODE, node_reply())
        step(csi, GET, NOT_FOUND)
        [timer] = step(csi, CREATE, refusal)
        assert isinstance(timer, SetTimer)
        assert not csi.is_initialized
    assert step(csi, GET, REFUSED) != []
