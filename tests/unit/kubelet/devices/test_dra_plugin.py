"""What a DRA driver asks of the API server, step by step."""

from fleet.clock import NS_PER_S
from fleet.kubelet.devices.dra_plugin import DRAPlugin, PluginState
from fleet.objects.admission import ResourceSliceView
from fleet.objects.effects import ApiCall, NodeId, Op, Outbox, ResourceSlices, StartWatch, StopWatch
from fleet.objects.pods import EventType
from fleet.profile.device_behavior import DraDriverSpec

S = NS_PER_S
NODE = NodeId(3)
DRIVER = DraDriverSpec(driver="gpu.example.com").compiled()
CREATE = ApiCall(
    NODE, Op.CREATE_RESOURCE_SLICE, DRIVER.driver, ResourceSlices(DRIVER.driver, "uid", 1)
)
WIPE = ApiCall(NODE, Op.DELETE_DRIVER_SLICES, DRIVER.driver, ResourceSlices(DRIVER.driver))


def synced(*names: str, light: bool = False) -> tuple[DRAPlugin, Outbox]:
    """Return a driver whose watch has shown these slices, and what it asked for then."""
    plugin = DRAPlugin(NODE, "n", DRIVER)
    out: Outbox = []
    plugin.register("uid", out, light=light)
    if not light:
        assert isinstance(out[0], StartWatch)
        assert (out[0].namespace, out[0].name) == ("", DRIVER.driver)
    for name in names:
        view = ResourceSliceView(name, "1", 1)
        plugin.on_slice(EventType.ADDED, view, "uid", 0, out)
    plugin.on_slice(EventType.SYNCED, None, "uid", 0, out)
    return plugin, out


def test_a_slice_is_made_only_where_there_is_none() -> None:
    _, out = synced()
    assert out[1:] == [CREATE]
    _, out = synced("00000-x")
    assert out[1:] == []
    _, out = synced(light=True)
    assert out == [WIPE, CREATE]


def test_a_refusal_is_met_with_another_try() -> None:
    plugin, _ = synced()
    out: Outbox = []
    plugin.on_reply(CREATE, 5 * S, is_refused=False)
    assert plugin.next_due_ns() == 0
    plugin.on_reply(CREATE, 5 * S, is_refused=True)
    assert plugin.next_due_ns() == 6 * S
    plugin.on_due("uid", 6 * S, out)
    assert out == [CREATE]


def test_a_driver_that_is_gone_is_wiped_and_wiped_again_after_a_failure() -> None:
    plugin, _ = synced()
    out: Outbox = []
    plugin.go_away(10 * S, out, light=False)
    assert isinstance(out.pop(), StopWatch)
    assert plugin.state is PluginState.AWAY
    plugin.on_due("uid", 39 * S, out)
    assert out == []
    plugin.on_due("uid", 40 * S, out)
    assert out == [WIPE]
    plugin.on_reply(WIPE, 41 * S, is_refused=True)
    plugin.on_due("uid", 42 * S, out)
    assert out == [WIPE, WIPE]


def test_a_slice_that_went_while_the_watch_was_down_is_made_anew() -> None:
    plugin, _ = synced("00000-x", "00000-y")
    out: Outbox = []
    plugin.on_slice(EventType.ADDED, ResourceSliceView("00000-x", "1", 1), "uid", 5 * S, out)
    plugin.on_slice(EventType.SYNCED, None, "uid", 5 * S, out)
    plugin.on_due("uid", 35 * S, out)
    assert out == []  # the other one is still there
    plugin.on_slice(EventType.SYNCED, None, "uid", 50 * S, out)
    assert plugin.next_due_ns() == 80 * S
    plugin.on_due("uid", 80 * S, out)
    assert out == [CREATE]
