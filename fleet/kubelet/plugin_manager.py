"""PluginManager: the plugins of one node, when they register, and what then changes.

A plugin is a pod of a DaemonSet beside its socket: the node is up first, and the capacity and the
ResourceSlices of its devices appear later. Made only on nodes whose profile has plugins.
Source: pkg/kubelet/pluginmanager; pkg/kubelet/cm/devicemanager; pkg/kubelet/cm/dra.
Differs: the sockets themselves are not simulated; CSI drivers register with their own manager.
"""

from fleet.config import NodeModel
from fleet.effects import NodeId, Outbox, SetTimer, Timer
from fleet.kubelet.device_manager import DeviceManager
from fleet.kubelet.environment import Environment
from fleet.objects import PodUid

Resources = tuple[tuple[str, int, int], ...]


def has_plugins(model: NodeModel) -> bool:
    """Return whether the nodes of a profile have anything to manage here."""
    return bool(model.devices or model.dra_drivers)


class PluginManager:
    """Owns the managers whose plugins a node has, and their one timer."""

    __slots__ = ("_due_ns", "_node", "devices")

    def __init__(self, node: NodeId, name: str, env: Environment, now_ns: int) -> None:
        self._node = node
        self._due_ns = 0
        self.devices = DeviceManager(node, name, env.model, env.draws, now_ns)

    def start(self, now_ns: int, out: Outbox) -> None:
        """Wait for the first plugin."""
        self._arm(now_ns, out)

    def on_timer(self, now_ns: int, out: Outbox) -> list[PodUid] | None:
        """Take what changed by itself; return the pods that must tell, None if nothing was due."""
        if not self._due_ns or now_ns < self._due_ns:
            return None
        self._arm(now_ns, out)
        return self.devices.take_affected(now_ns)

    def on_annotations(
        self, annotations: tuple[tuple[str, str], ...], now_ns: int
    ) -> list[PodUid] | None:
        """Take the annotations of the Node; return the pods that must tell, None for no change."""
        if not self.devices.on_annotations(annotations):
            return None
        return self.devices.take_affected(now_ns)

    def resources(self, now_ns: int) -> Resources:
        """Return capacity and allocatable of what the device plugins offer now."""
        return self.devices.resources(now_ns)

    def _arm(self, now_ns: int, out: Outbox) -> None:
        self._due_ns = self.devices.next_change_ns(now_ns)
        if self._due_ns:
            out.append(SetTimer(self._node, self._due_ns, Timer.PLUGINS))
