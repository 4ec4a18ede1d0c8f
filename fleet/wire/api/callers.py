"""Who calls: a node as the wire knows it, and what the nodes of one profile share there."""

from dataclasses import dataclass

import orjson

from fleet.clock import NS_PER_S
from fleet.profile.controller_preset import ControllerPreset
from fleet.profile.node_model import NodeModel
from fleet.quantity import format_duration

CALL_TIMEOUT_NS = 90 * NS_PER_S  # the API server itself gives up after 60 s


class RenderedProfile:
    """What the nodes of one profile share on the wire, rendered once."""

    __slots__ = (
        "extra_annotations",
        "extra_labels",
        "extra_taints",
        "impersonate",
        "model",
        "preset",
        "status",
        "timeout",
        "timeout_ns",
        "withheld",
    )

    def __init__(
        self,
        model: NodeModel,
        *,
        extra_labels: dict[str, str],
        extra_annotations: dict[str, str] | None = None,
        extra_taints: tuple[tuple[str, str, str], ...] = (),
        impersonate: bool = False,
        preset: ControllerPreset | None = None,
        withheld: frozenset[str] = frozenset(),
    ) -> None:
        self.model = model
        self.withheld = withheld  # labels that a Node does not register with
        self.preset = preset
        self.extra_labels = extra_labels
        self.extra_annotations = extra_annotations or {}
        self.extra_taints = extra_taints
        self.impersonate = impersonate  # name the user in each request: shared connections
        # A kubelet registers before its first look at the runtime's images (they are cached for
        # 30 s); the image manager reports them later.
        status = {key: part for key, part in model.status_json().items() if key != "images"}
        self.status = orjson.dumps(status)[1:-1]
        # Of the heartbeat client. Source: cmd/kubelet/app/server.go, run: heartbeatClientConfig.
        lease_ns = model.kubelet.node_lease_duration_seconds * NS_PER_S
        self.timeout_ns = min(model.kubelet.node_status_update_frequency_ns, lease_ns)
        self.timeout = format_duration(self.timeout_ns).encode()


@dataclass(slots=True, eq=False)
class Caller:
    """One node as the wire knows it."""

    index: int
    name: bytes
    template: RenderedProfile

    @property
    def user(self) -> bytes:
        """The user that the node is to the API server."""
        return b"system:node:" + self.name
