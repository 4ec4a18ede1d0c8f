"""The node plug-in of a CSI driver: it stages and publishes volumes: empty directories."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from oracle.plugins.messages import CSI_IDENTITY, CSI_NODE
from oracle.plugins.server import Plugin, RefusedCallError

STAGES, EXPANDS, ONE_WRITER = 1, 3, 5
"""Source: csi.proto, NodeServiceCapability.RPC.Type."""
STUCK = "The device is busy."


class CsiPlugin(Plugin):
    """One driver on one node."""

    kind = "CSIPlugin"
    versions = ("1.0.0",)
    services = (CSI_IDENTITY, CSI_NODE)

    def __init__(self, driver: str, node: str, *, expands: bool = False) -> None:
        super().__init__(driver)
        self._node = node
        self._can = (STAGES, ONE_WRITER, *((EXPANDS,) if expands else ()))
        self.is_stuck = False
        """Whether no volume can be unpublished."""
        self.secrets: list[dict[str, str]] = []
        """Those of NodeStageVolume and NodePublishVolume."""

    def get_plugin_info(self, _: Any) -> Mapping[str, object]:
        return {"name": self.name, "vendor_version": "1"}

    def get_plugin_capabilities(self, _: Any) -> Mapping[str, object]:
        return {}

    def probe(self, _: Any) -> Mapping[str, object]:
        return {}

    def node_get_info(self, _: Any) -> Mapping[str, object]:
        return {"node_id": self._node}

    def node_get_capabilities(self, _: Any) -> Mapping[str, object]:
        return {"capabilities": [{"rpc": {"type": each}} for each in self._can]}

    def node_stage_volume(self, request: Any) -> Mapping[str, object]:
        self.secrets.append(dict(request.secrets))
        return {}

    def node_unstage_volume(self, _: Any) -> Mapping[str, object]:
        return {}

    def node_publish_volume(self, request: Any) -> Mapping[str, object]:
        self.secrets.append(dict(request.secrets))
        Path(request.target_path).mkdir(exist_ok=True)
        return {}

    def node_unpublish_volume(self, request: Any) -> Mapping[str, object]:
        if self.is_stuck:
            raise RefusedCallError(grpc.StatusCode.INTERNAL, STUCK)
        place = Path(request.target_path)
        if place.exists():
            place.rmdir()
        return {}

    def node_expand_volume(self, request: Any) -> Mapping[str, object]:
        return {"capacity_bytes": request.capacity_range.required_bytes}
