"""What the DRA driver of a node does on the API: it publishes its devices in a ResourceSlice.

    away --registers--> WATCH of its slices --synced, none there--> CREATE
                          |deleted or changed by others: looked at again 30 s later
    away: the kubelet deletes the driver's slices after 30 s

Source: dynamic-resource-allocation/resourceslice/resourceslicecontroller.go, syncPool;
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go, wipeResourceSlices.
Differs: a driver's requests go over the kubelet's connection and under its name; one slice holds
all devices; `light` has no watch: slices are replaced once, and not looked after.
"""

import enum

from fleet.clock import NS_PER_S
from fleet.objects.admission import ResourceSliceView
from fleet.objects.effects import (
    ApiCall,
    NodeId,
    Op,
    Outbox,
    Reply,
    ReplyKind,
    ResourceSlices,
    SetTimer,
    StartWatch,
    StopWatch,
    Timer,
    WatchKind,
)
from fleet.objects.pods import EventType
from fleet.profile.device_behavior import DraDriver

SYNC_DELAY_NS = 30 * NS_PER_S
"""Source: resourceslicecontroller.go, DefaultSyncDelay."""
WIPE_DELAY_NS = 30 * NS_PER_S
"""Source: pkg/kubelet/cm/container_manager_linux.go, the wiping delay of the plugin manager."""
RETRY_NS = 1 * NS_PER_S
SLICES_FIRST_NS = 1 * NS_PER_S
SLICES_MAX_NS = 300 * NS_PER_S


class PluginState(enum.IntEnum):
    """How far a driver's plugin has come."""

    AWAY = 0
    SYNCING = 1  # its watch has not shown everything yet
    WATCHING = 2


class DRAPlugin:
    """The driver of one kind of devices on one node."""

    __slots__ = ("_due_ns", "_name", "_node", "_slices", "_wipe_ns", "driver", "state")

    def __init__(self, node: NodeId, name: str, driver: DraDriver) -> None:
        self._node = node
        self._name = name  # of the node
        self.driver = driver
        self.state = PluginState.AWAY
        self._slices: dict[str, bool] = {}  # those that are there; True: seen since the last list
        self._due_ns = 0  # of the next look at the slices
        self._wipe_ns = 0  # when the kubelet deletes what a driver left that went away

    def register(self, node_uid: str, out: Outbox, *, light: bool) -> None:
        """Begin to look after the slices."""
        assert self.state is PluginState.AWAY, self.state
        self._wipe_ns = 0
        if light:
            self.state = PluginState.WATCHING
            self._wipe(out)
            self._create(node_uid, 1, out)
            return
        self.state = PluginState.SYNCING
        self._slices = {}
        out.append(StartWatch(self._node, *self._watch()))

    def go_away(self, now_ns: int, out: Outbox, *, light: bool) -> None:
        """Stop: the kubelet wipes the slices unless the plugin is back in time."""
        self.state = PluginState.AWAY
        self._due_ns = 0
        self._wipe_ns = now_ns + WIPE_DELAY_NS
        if not light:
            out.append(StopWatch(self._node, *self._watch()))

    def on_slice(
        self,
        event: EventType,
        view: ResourceSliceView | None,
        node_uid: str,
        now_ns: int,
        out: Outbox,
    ) -> None:
        """Take an event of the watch on this driver's slices."""
        if event is EventType.SYNCED:
            gone = [name for name, is_seen in self._slices.items() if not is_seen]
            self._slices = {name: False for name, is_seen in self._slices.items() if is_seen}
            if self.state is PluginState.SYNCING:
                self.state = PluginState.WATCHING
                self._sync(node_uid, out)
            elif gone:
                self._due_ns = now_ns + SYNC_DELAY_NS
            return
        assert view is not None, event
        if event is EventType.DELETED:
            self._slices.pop(view.name, None)
        else:
            self._slices[view.name] = True
        if self.state is PluginState.WATCHING:
            self._due_ns = now_ns + SYNC_DELAY_NS

    def on_reply(self, call: ApiCall, now_ns: int, *, is_refused: bool) -> None:
        """Take the answer to one of our requests; the watch shows the slice itself."""
        if not is_refused:
            return
        if call.op is Op.DELETE_DRIVER_SLICES:
            self._wipe_ns = now_ns + RETRY_NS
        elif self.state is PluginState.WATCHING:
            self._due_ns = now_ns + RETRY_NS

    def next_due_ns(self) -> int:
        """Return when there is something to do, 0 for never."""
        return self._due_ns or self._wipe_ns

    def on_due(self, node_uid: str, now_ns: int, out: Outbox) -> None:
        """Look at the slices again, or delete them for good."""
        if self._due_ns and now_ns >= self._due_ns:
            self._due_ns = 0
            self._sync(node_uid, out)
        if self._wipe_ns and now_ns >= self._wipe_ns:
            self._wipe_ns = 0
            self._wipe(out)

    def _watch(self) -> tuple[WatchKind, str, str]:
        return WatchKind.RESOURCE_SLICES, "", self.driver.driver

    def _sync(self, node_uid: str, out: Outbox) -> None:
        if not self._slices and node_uid:
            self._create(node_uid, 1, out)

    def _create(self, node_uid: str, generation: int, out: Outbox) -> None:
        payload = ResourceSlices(self.driver.driver, node_uid, generation)
        key = self.driver.driver
        out.append(ApiCall(self._node, Op.CREATE_RESOURCE_SLICE, key, payload))

    def _wipe(self, out: Outbox) -> None:
        payload = ResourceSlices(self.driver.driver)
        out.append(ApiCall(self._node, Op.DELETE_DRIVER_SLICES, self.driver.driver, payload))


def wipe_again(call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
    """Wipe all slices of a node again after a failure, of which the key says how long it waited.

    Source: dra_plugin_manager.go, wipeResourceSlices.
    """
    if reply.ok or reply.kind is ReplyKind.NOT_FOUND:
        return
    delay_ns = min(int(call.key) * 2, SLICES_MAX_NS) if call.key else SLICES_FIRST_NS
    out.append(SetTimer(call.node, now_ns + delay_ns, Timer.RESOURCE_SLICES, str(delay_ns)))
