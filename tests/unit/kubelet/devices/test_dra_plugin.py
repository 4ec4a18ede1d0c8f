"""What a DRA driver asks of the API server, step by step."""

from world.node_world import NODE, OK, REFUSED, environment, facts, turn

from fleet.clock import NS_PER_S
from fleet.k8s.admission import ResourceSliceView
from fleet.k8s.effects import ApiCall, Op, Outbox, ResourceSlices, StartWatch, StopWatch
from fleet.k8s.pods import EventType
from fleet.kubelet.devices.dra import DRAPlugin, PluginState
from fleet.kubelet.turn import Turn
from fleet.profile.machine import DraDriver

S = NS_PER_S
DRIVER = DraDriver(driver="gpu.example.com")
CREATE = ApiCall(
    NODE, Op.CREATE_RESOURCE_SLICE, DRIVER.driver, ResourceSlices(DRIVER.driver, "uid", 1)
)
WIPE = ApiCall(NODE, Op.DELETE_DRIVER_SLICES, DRIVER.driver, ResourceSlices(DRIVER.driver))


def at(now_ns: int, out: Outbox, *, light: bool = False) -> Turn:
    known = facts()
    known.uid = "uid"
    return turn(environment(light=light), now_ns, out, known)


def synced(*names: str, light: bool = False) -> tuple[DRAPlugin, Outbox]:
    """Return a driver whose watch has shown these slices, and what it asked for then."""
    plugin = DRAPlugin(DRIVER)
    out: Outbox = []
    plugin.register(at(0, out, light=light))
    if not light:
        assert isinstance(out[0], StartWatch)
        assert (out[0].namespace, out[0].name) == ("", DRIVER.driver)
    for name in names:
        view = ResourceSliceView(name, "1", 1)
        plugin.on_slice(EventType.ADDED, view, at(0, out))
    plugin.on_slice(EventType.SYNCED, None, at(0, out))
    return plugin, out


def test_in_light_a_slice_is_made_after_those_that_were_left_are_deleted() -> None:
    _, out = synced(light=True)
    assert out == [WIPE, CREATE]


def test_a_refusal_is_met_with_another_try() -> None:
    plugin, _ = synced()
    out: Outbox = []
    plugin.on_reply(CREATE, OK, at(5 * S, out))
    assert plugin.next_due_ns() == 0
    plugin.on_reply(CREATE, REFUSED, at(5 * S, out))
    assert plugin.next_due_ns() == 6 * S
    plugin.on_due(at(6 * S, out))
    assert out == [CREATE]


def test_a_driver_that_is_gone_is_wiped_nine_times_later_each_time() -> None:
    plugin, _ = synced()
    out: Outbox = []
    plugin.go_away(at(10 * S, out))
    assert isinstance(out.pop(), StopWatch)
    assert plugin.state is PluginState.AWAY
    plugin.on_due(at(39 * S, out))
    assert out == []
    plugin.on_due(at(40 * S, out))
    assert out == [WIPE]
    now_ns = 40 * S
    for power in range(8):
        plugin.on_reply(WIPE, REFUSED, at(now_ns, out))
        before_ns, now_ns = now_ns, plugin.next_due_ns()
        assert 1 << power <= (now_ns - before_ns) / S < 1.2 * (1 << power)
        plugin.on_due(at(now_ns, out))
    plugin.on_reply(WIPE, REFUSED, at(now_ns, out))
    assert (plugin.next_due_ns(), out) == (0, [WIPE] * 9)


def test_a_slice_that_went_while_the_watch_was_down_is_made_anew() -> None:
    plugin, _ = synced("00000-x", "00000-y")
    out: Outbox = []
    plugin.on_slice(EventType.ADDED, ResourceSliceView("00000-x", "1", 1), at(5 * S, out))
    plugin.on_slice(EventType.SYNCED, None, at(5 * S, out))
    plugin.on_due(at(35 * S, out))
    assert out == []  # the other one is still there
    plugin.on_slice(EventType.SYNCED, None, at(50 * S, out))
    assert plugin.next_due_ns() == 80 * S
    plugin.on_due(at(80 * S, out))
    assert out == [CREATE]
