"""PluginManager: the plugins of one node, when they register, and what then changes.

A plugin is a pod of a DaemonSet beside its socket: the node is up first, and the capacity and the
ResourceSlices of its devices appear later. Made only on nodes whose profile has plugins.
Source: pkg/kubelet/pluginmanager; pkg/kubelet/cm/devicemanager; pkg/kubelet/cm/dra/plugin.
Differs: the sockets themselves are not simulated; CSI drivers register with their own manager.
"""

from collections.abc import Iterator

from fleet.clock import Draws
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.devices.dra import registration_ns
from fleet.kubelet.devices.dra_plugin import DRAPlugin, PluginState
from fleet.kubelet.devices.node_resources import Wanted
from fleet.kubelet.environment import Environment
from fleet.objects.admission import ResourceSliceView
from fleet.objects.effects import ApiCall, NodeId, Outbox, Reply, SetTimer, Timer, WatchEvent
from fleet.objects.pods import PodUid
from fleet.profile.device_behavior import DraDriver, outage_begin_ns
from fleet.profile.node_model import NodeModel


def has_plugins(model: NodeModel) -> bool:
    """Return whether the nodes of a profile have anything to manage here."""
    return bool(model.devices or model.dra_drivers)


class PluginManager:
    """Owns the managers whose plugins a node has, and their one timer."""

    __slots__ = ("_due_ns", "_light", "_node", "_plugins", "_registered_ns", "_start_ns", "devices")

    def __init__(self, node: NodeId, name: str, env: Environment, now_ns: int) -> None:
        self._node = node
        self._light = env.light
        self._start_ns = now_ns
        self._due_ns = 0
        self.devices = DeviceManager(node, name, env.model, env.draws, now_ns)
        drivers = env.model.dra_drivers
        self._plugins = tuple(DRAPlugin(node, name, driver) for driver in drivers)
        self._registered_ns = _registrations(drivers, node, env.draws, now_ns)

    def start(self, now_ns: int, out: Outbox) -> None:
        """Wait for the first plugin."""
        self._arm(now_ns, out)

    def on_timer(self, node_uid: str, now_ns: int, out: Outbox) -> list[PodUid] | None:
        """Take what changed by itself; return the pods that must tell, None if nothing was due."""
        if not self._due_ns or now_ns < self._due_ns:
            return None
        self.advance(node_uid, now_ns, out)
        return self.devices.take_affected(now_ns)

    def advance(self, node_uid: str, now_ns: int, out: Outbox) -> None:
        """Let DRA drivers come, go, and look after their slices; a slice needs the Node's uid."""
        for plugin, registered_ns in zip(self._plugins, self._registered_ns, strict=True):
            outages = plugin.driver.outages
            is_there = now_ns >= registered_ns
            is_there = is_there and outage_begin_ns(outages, self._start_ns, now_ns) < 0
            if not is_there and plugin.state is not PluginState.AWAY:
                plugin.go_away(now_ns, out, light=self._light)
            elif is_there and node_uid and plugin.state is PluginState.AWAY:
                plugin.register(node_uid, out, light=self._light)
            plugin.on_due(node_uid, now_ns, out)
        self._arm(now_ns, out)

    def on_annotations(
        self, annotations: tuple[tuple[str, str], ...], now_ns: int
    ) -> list[PodUid] | None:
        """Take the annotations of the Node; return the pods that must tell, None for no change."""
        if not self.devices.on_annotations(annotations):
            return None
        return self.devices.take_affected(now_ns)

    def on_slice(self, event: WatchEvent, node_uid: str, now_ns: int, out: Outbox) -> None:
        """Take an event of a driver's watch."""
        view = event.record
        assert view is None or isinstance(view, ResourceSliceView), event
        for plugin in self._plugins:
            if plugin.driver.driver == event.name:
                plugin.on_slice(event.type, view, node_uid, now_ns, out)
        self._arm(now_ns, out)

    def on_reply(self, call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
        """Take the answer to a driver's request."""
        for plugin in self._plugins:
            if plugin.driver.driver == call.key:
                plugin.on_reply(call, now_ns, is_refused=not reply.ok)
        self._arm(now_ns, out)

    def resources(self, now_ns: int) -> Wanted:
        """Return capacity and allocatable of what the device plugins offer now."""
        return self.devices.resources(now_ns)

    def _arm(self, now_ns: int, out: Outbox) -> None:
        due_ns = min((each for each in self._changes(now_ns) if each > now_ns), default=0)
        if due_ns and due_ns != self._due_ns:
            out.append(SetTimer(self._node, due_ns, Timer.PLUGINS))
        self._due_ns = due_ns

    def _changes(self, now_ns: int) -> Iterator[int]:
        yield self.devices.next_change_ns(now_ns)
        yield from self._registered_ns
        for plugin in self._plugins:
            yield plugin.next_due_ns()
            for outage in plugin.driver.outages:
                begin_ns = self._start_ns + outage.at_ns
                yield begin_ns
                if outage.duration_ns:
                    yield begin_ns + outage.duration_ns


def _registrations(
    drivers: tuple[DraDriver, ...], node: NodeId, draws: Draws, start_ns: int
) -> tuple[int, ...]:
    return tuple(
        registration_ns(driver, index, node, draws, start_ns)
        for index, driver in enumerate(drivers)
    )
