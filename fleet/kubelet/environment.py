"""What the kubelets of one profile share: nothing here belongs to a single node."""

from functools import lru_cache

from fleet.clock import NS_PER_S, Draws
from fleet.config import NodeModel
from fleet.image_store import ImageStore
from fleet.runtime import Runtime
from fleet.static_objects import NO_STATIC_PODS
from fleet.volume_objects import CSIDriverView


class Environment:
    """Handed to every input of a kubelet, so that no node keeps a copy."""

    __slots__ = (
        "csi_drivers",
        "draws",
        "images",
        "light",
        "model",
        "runtimes",
        "static",
        "tolerate_key",
        "wall_offset_ns",
    )

    def __init__(
        self, model: NodeModel, draws: Draws, *, light: bool, tolerate_key: str = ""
    ) -> None:
        self.model = model
        self.draws = draws
        self.images = ImageStore(model)  # what the nodes of the profile have on disk
        self.light = light  # fidelity `light`: no GETs, tokens, events
        self.tolerate_key = tolerate_key  # a pod that does not tolerate it never becomes Ready
        self.csi_drivers: dict[str, CSIDriverView] = {}  # as the watch of any node shows them
        self.static = NO_STATIC_PODS  # as the profile's file and URL say
        self.runtimes: dict[int, Runtime] = {}  # by node, of kubelets that are being restarted
        self.wall_offset_ns = 0  # wall minus monotonic; the reactor keeps it

    def wall_ns(self, now_ns: int) -> int:
        """Return the wall time of a monotonic instant."""
        return now_ns + self.wall_offset_ns

    def wall_s(self, now_ns: int) -> int:
        """Return the wall time in whole seconds, as API objects are stamped."""
        return _shared((now_ns + self.wall_offset_ns) // NS_PER_S)


@lru_cache(maxsize=256)
def _shared(wall_s: int) -> int:
    """Return the one number of this second: each pod keeps several times."""
    return wall_s
