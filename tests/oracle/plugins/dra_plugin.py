"""The node plug-in of a DRA driver: it prepares claims, and says how its devices are."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from oracle.plugins.messages import DRA_HEALTH, DRA_PLUGIN
from oracle.plugins.server import Plugin

LOOKS_S = 0.05
HEALTHY, UNHEALTHY = 1, 2
LASTS_S = 3600
"""For so long what was said of a device holds."""


class DraPlugin(Plugin):
    """The devices of one driver on one node; a pool has the name of its node."""

    kind = "DRAPlugin"
    services = (DRA_PLUGIN, DRA_HEALTH)
    versions = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")  # 1.37 asks only for what is named

    def __init__(
        self, driver: str, pool: str, devices: Mapping[str, str], *, error: str = ""
    ) -> None:
        """Make it; `devices` has what is wrong with each, `error` why no claim can be prepared."""
        super().__init__(driver)
        self._pool = pool
        self._devices = devices
        self._error = error
        self.allocations: dict[tuple[str, str], tuple[str, str]] = {}
        """Request and device of each claim; a driver would read the claims itself."""

    def node_prepare_resources(self, request: Any) -> Mapping[str, object]:
        return {"claims": {each.uid: self._prepared(each) for each in request.claims}}

    def _prepared(self, claim: Any) -> Mapping[str, object]:
        if self._error:
            return {"error": self._error}
        requested, device = self.allocations[claim.namespace, claim.name]
        found = {"request_names": [requested], "pool_name": self._pool, "device_name": device}
        return {"devices": [found]}

    def node_unprepare_resources(self, request: Any) -> Mapping[str, object]:
        return {"claims": {each.uid: {} for each in request.claims}}

    def node_watch_resources(self, _: Any) -> Iterator[Mapping[str, object]]:
        yield {
            "devices": [
                {
                    "device": {"pool_name": self._pool, "device_name": name},
                    "health": UNHEALTHY if message else HEALTHY,
                    "last_updated_time": int(time.time()),
                    "health_check_timeout_seconds": LASTS_S,
                    "message": message,
                }
                for name, message in self._devices.items()
            ]
        }
        while not self.stops.wait(LOOKS_S):
            pass
