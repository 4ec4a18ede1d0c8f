"""PluginManager: the plugins of one node, when they register, and what then changes.

A plugin is a pod of a DaemonSet next to its socket: the node is up first, and the capacity and the
ResourceSlices of its devices appear later. Made only on nodes whose profile has plugins.
Source: pkg/kubelet/pluginmanager; pkg/kubelet/cm/devicemanager; pkg/kubelet/cm/dra/plugin.
Differs: the sockets themselves are not simulated; CSI drivers register with their own manager.
"""

from collections.abc import Iterator

from fleet.k8s.admission import ResourceSliceView
from fleet.k8s.effects import ApiCall, Reply, Timer, WatchEvent
from fleet.k8s.pods import PodUid
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.devices.dra import DRAPlugin, PluginState, registration_ns
from fleet.kubelet.turn import Turn
from fleet.profile.machine import outage_begin_ns


class PluginManager:
    """Owns the managers whose plugins a node has, and their one timer."""

    __slots__ = ("_due_ns", "_plugins", "_registered_ns", "_start_ns", "devices")

    def __init__(self, turn: Turn) -> None:
        self._start_ns = turn.now_ns
        self._due_ns = 0
        self.devices = DeviceManager(turn)
        drivers = turn.env.model.dra_drivers
        self._plugins = tuple(DRAPlugin(driver) for driver in drivers)
        self._registered_ns = tuple(
            registration_ns(driver, index, turn) for index, driver in enumerate(drivers)
        )
        self._arm(turn)

    def on_timer(self, turn: Turn) -> list[PodUid] | None:
        """Take what changed by itself; return the pods whose status does, None if none was due."""
        if not self._due_ns or turn.now_ns < self._due_ns:
            return None
        self.advance(turn)
        return self.devices.take_affected(turn)

    def advance(self, turn: Turn) -> None:
        """Let DRA drivers come, go, see to their slices; a slice waits for the Node's uid."""
        for plugin, registered_ns in zip(self._plugins, self._registered_ns, strict=True):
            outages = plugin.driver.plugin_outages
            is_there = turn.now_ns >= registered_ns
            is_there = is_there and outage_begin_ns(outages, self._start_ns, turn.now_ns) < 0
            if not is_there and plugin.state is not PluginState.AWAY:
                plugin.go_away(turn)
            elif is_there and turn.facts.uid and plugin.state is PluginState.AWAY:
                plugin.register(turn)
            plugin.on_due(turn)
        self._arm(turn)

    def on_slice(self, event: WatchEvent, turn: Turn) -> None:
        """Take an event of a driver's watch."""
        view = event.record
        assert view is None or isinstance(view, ResourceSliceView), event
        for plugin in self._plugins:
            if plugin.driver.driver == event.name:
                plugin.on_slice(event.type, view, turn)
        self._arm(turn)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to a driver's request."""
        for plugin in self._plugins:
            if plugin.driver.driver == call.key:
                plugin.on_reply(call, reply, turn)
        self._arm(turn)

    def _arm(self, turn: Turn) -> None:
        due_ns = min((each for each in self._changes(turn) if each > turn.now_ns), default=0)
        if due_ns and due_ns != self._due_ns:
            turn.arm(due_ns, Timer.PLUGINS)
        self._due_ns = due_ns

    def _changes(self, turn: Turn) -> Iterator[int]:
        yield self.devices.next_change_ns(turn)
        yield from self._registered_ns
        for plugin in self._plugins:
            yield plugin.next_due_ns()
            yield from (self._start_ns + each.after_ns for each in plugin.driver.health or ())
            for outage in plugin.driver.plugin_outages:
                begin_ns = self._start_ns + outage.after_ns
                yield begin_ns
                if outage.duration_ns:
                    yield begin_ns + outage.duration_ns
