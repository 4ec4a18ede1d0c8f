from world.node_world import LOST, NODE, NOT_FOUND, environment, node_reply, turn
from world.sim_clock import SimClock

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    LeaseObject,
    LeaseRenewal,
    NodeId,
    Op,
    Outbox,
    Reply,
    ReplyKind,
    SetTimer,
)
from fleet.k8s.pods import LeaseView
from fleet.kubelet.node.node_lease import LeaseState, NodeLease

BASE = b'{"renewTime":"x"}'
ENV = environment()
GET = ApiCall(NODE, Op.GET_LEASE)
OWNER = ApiCall(NODE, Op.GET_NODE_LEASE)


def lease_reply(arrived_ns: int, body: bytes = BASE) -> Reply:
    return Reply(ReplyKind.OK, LeaseView(body), 200, "", 0, arrived_ns)


def renewal(now_ns: int, base: bytes = BASE) -> ApiCall:
    return ApiCall(NODE, Op.RENEW_LEASE, "", LeaseRenewal(base, SimClock.EPOCH_NS + now_ns))


def creation(now_ns: int) -> ApiCall:
    lease = LeaseObject("uid-1", 40, SimClock.EPOCH_NS + now_ns)
    return ApiCall(NODE, Op.CREATE_LEASE, "", lease)


class World:
    """A lease, what it asks for, and the due time of its last timer."""

    def __init__(self) -> None:
        self.lease = NodeLease()
        self.now_ns = 0
        self.due_ns = 0

    def reply(self, call: ApiCall, reply: Reply) -> Outbox:
        return self._taken(
            lambda out: self.lease.on_reply(call, reply, turn(ENV, self.now_ns, out))
        )

    def fire(self) -> Outbox:
        self.now_ns = self.due_ns
        return self._taken(lambda out: self.lease.on_timer(turn(ENV, self.now_ns, out)))

    def _taken(self, act: object) -> Outbox:
        out: Outbox = []
        act(out)  # type: ignore[operator]
        for each in out:
            if isinstance(each, SetTimer):
                self.due_ns = each.due_ns
        return out

    def created(self) -> "World":
        self.reply(GET, NOT_FOUND)
        self.reply(OWNER, node_reply())
        self.reply(creation(0), lease_reply(self.now_ns))
        return self


def test_looks_back_off_to_seven_seconds() -> None:
    world = World().created()
    world.fire()
    for _ in range(5):
        world.reply(renewal(0), LOST)
    delays = []
    for _ in range(8):
        [timer] = world.reply(GET, LOST)
        assert isinstance(timer, SetTimer)
        delays.append((timer.due_ns - world.now_ns) // NS_PER_MS)
        assert world.fire() == [GET]
    assert delays == [200, 400, 800, 1600, 3200, 6400, 7000, 7000]
    world.reply(GET, lease_reply(world.now_ns))
    world.reply(renewal(0), lease_reply(world.now_ns))
    world.fire()
    for _ in range(5):
        world.reply(renewal(0), LOST)
    [timer] = world.reply(GET, LOST)
    assert isinstance(timer, SetTimer)
    assert timer.due_ns - world.now_ns == 200 * NS_PER_MS


def test_a_stale_timer_does_nothing() -> None:
    world = World().created()
    out: Outbox = []
    world.lease.on_timer(turn(ENV, world.due_ns - 1, out))
    world.fire()
    world.lease.on_timer(turn(ENV, world.due_ns, out))
    assert out == []


def test_a_stopped_lease_is_silent() -> None:
    world = World().created()
    world.lease.stop()
    assert world.fire() == []
    assert world.reply(renewal(0), lease_reply(1)) == []


def test_in_light_renewals_fall_due_together() -> None:
    dues: dict[bool, list[int]] = {}
    for light in (False, True):
        env = environment(light=light)
        dues[light] = []
        for node in range(200):
            lease = NodeLease()
            lease._state, lease.base = LeaseState.WAIT, BASE
            now_ns = node * 7_654_321
            lease.begin(now_ns)
            due_ns = lease.on_success(BASE, now_ns, NodeId(node), env, now_ns)
            assert 10 * NS_PER_S <= due_ns - now_ns < 10.5 * NS_PER_S
            dues[light].append(due_ns)
    assert {due_ns % (100 * NS_PER_MS) for due_ns in dues[True]} == {0}
    assert len(set(dues[True])) < 21  # 1.9 s of them
    assert len(set(dues[False])) == 200


def test_tries_after_a_conflict_each_look_for_the_node_and_then_for_the_lease() -> None:
    """As recorded of a kubelet 1.36.3 whose Node and Lease were deleted."""
    world = World().created()
    [renew] = world.fire()
    assert isinstance(renew, ApiCall)
    assert world.reply(renew, Reply(ReplyKind.CONFLICT)) == [GET]
    assert world.reply(GET, NOT_FOUND) == [OWNER]
    for _ in range(4):  # tries left of five
        assert world.reply(OWNER, NOT_FOUND) == [OWNER]
    assert world.reply(OWNER, NOT_FOUND) == [GET]
    assert world.reply(GET, NOT_FOUND) == [OWNER]
    [timer] = world.reply(OWNER, NOT_FOUND)
    assert isinstance(timer, SetTimer)
    assert world.fire() == [GET]


def test_a_node_that_comes_back_between_tries_has_its_lease_at_once() -> None:
    world = World().created()
    [renew] = world.fire()
    assert isinstance(renew, ApiCall)
    world.reply(renew, Reply(ReplyKind.CONFLICT))
    world.reply(GET, NOT_FOUND)
    world.reply(OWNER, NOT_FOUND)
    assert world.reply(OWNER, node_reply()) == [creation(world.now_ns)]
    [timer] = world.reply(creation(world.now_ns), lease_reply(world.now_ns))
    assert isinstance(timer, SetTimer)
