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
from fleet.k8s.admission import ResourceSliceView
from fleet.k8s.effects import (
    ApiCall,
    Op,
    Reply,
    ReplyKind,
    ResourceSlices,
    StartWatch,
    StopWatch,
    Timer,
    WatchKind,
)
from fleet.k8s.pods import EventType
from fleet.kubelet.turn import Turn
from fleet.profile.machine import DraDriver

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

    __slots__ = ("_due_ns", "_slices", "_wipe_ns", "driver", "state")

    def __init__(self, driver: DraDriver) -> None:
        self.driver = driver
        self.state = PluginState.AWAY
        self._slices: dict[str, bool] = {}  # those that are there; True: seen since the last list
        self._due_ns = 0  # of the next look at the slices
        self._wipe_ns = 0  # when the kubelet deletes what a driver left that went away

    def register(self, turn: Turn) -> None:
        """Begin to look after the slices."""
        assert self.state is PluginState.AWAY, self.state
        self._wipe_ns = 0
        if not turn.env.fidelity.watches_slices:
            self.state = PluginState.WATCHING
            self._wipe(turn)
            self._create(turn)
            return
        self.state = PluginState.SYNCING
        self._slices = {}
        turn.out.append(StartWatch(turn.node, *self._watch()))

    def go_away(self, turn: Turn) -> None:
        """Stop: the kubelet wipes the slices unless the plugin is back in time."""
        self.state = PluginState.AWAY
        self._due_ns = 0
        self._wipe_ns = turn.now_ns + WIPE_DELAY_NS
        if turn.env.fidelity.watches_slices:
            turn.out.append(StopWatch(turn.node, *self._watch()))

    def on_slice(self, event: EventType, view: ResourceSliceView | None, turn: Turn) -> None:
        """Take an event of the watch on this driver's slices."""
        if event is EventType.SYNCED:
            gone = [name for name, is_seen in self._slices.items() if not is_seen]
            self._slices = {name: False for name, is_seen in self._slices.items() if is_seen}
            if self.state is PluginState.SYNCING:
                self.state = PluginState.WATCHING
                self._sync(turn)
            elif gone:
                self._due_ns = turn.now_ns + SYNC_DELAY_NS
            return
        assert view is not None, event
        if event is EventType.DELETED:
            self._slices.pop(view.name, None)
        else:
            self._slices[view.name] = True
        if self.state is PluginState.WATCHING:
            self._due_ns = turn.now_ns + SYNC_DELAY_NS

    def on_reply(self, call: ApiCall, reply: Reply, now_ns: int) -> None:
        """Take the answer to one of our requests; the watch shows the slice itself."""
        if reply.ok:
            return
        if call.op is Op.DELETE_DRIVER_SLICES:
            self._wipe_ns = now_ns + RETRY_NS
        elif self.state is PluginState.WATCHING:
            self._due_ns = now_ns + RETRY_NS

    def next_due_ns(self) -> int:
        """Return when there is something to do, 0 for never."""
        return self._due_ns or self._wipe_ns

    def on_due(self, turn: Turn) -> None:
        """Look at the slices again, or delete them for good."""
        if self._due_ns and turn.now_ns >= self._due_ns:
            self._due_ns = 0
            self._sync(turn)
        if self._wipe_ns and turn.now_ns >= self._wipe_ns:
            self._wipe_ns = 0
            self._wipe(turn)

    def _watch(self) -> tuple[WatchKind, str, str]:
        return WatchKind.RESOURCE_SLICES, "", self.driver.driver

    def _sync(self, turn: Turn) -> None:
        if not self._slices and turn.facts.uid:
            self._create(turn)

    def _create(self, turn: Turn) -> None:
        payload = ResourceSlices(self.driver.driver, turn.facts.uid, generation=1)
        key = self.driver.driver
        turn.call(Op.CREATE_RESOURCE_SLICE, key, payload)

    def _wipe(self, turn: Turn) -> None:
        payload = ResourceSlices(self.driver.driver)
        turn.call(Op.DELETE_DRIVER_SLICES, self.driver.driver, payload)


def wipe_again(call: ApiCall, reply: Reply, turn: Turn) -> None:
    """Wipe all slices of a node again after a failure, of which the key says how long it waited.

    Source: dra_plugin_manager.go, wipeResourceSlices.
    """
    if reply.ok or reply.kind is ReplyKind.NOT_FOUND:
        return
    delay_ns = min(int(call.key) * 2, SLICES_MAX_NS) if call.key else SLICES_FIRST_NS
    turn.arm(turn.now_ns + delay_ns, Timer.RESOURCE_SLICES, str(delay_ns))
