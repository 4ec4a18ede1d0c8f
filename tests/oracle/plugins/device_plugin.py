"""A device plug-in: it says which devices it has, and which of them are healthy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oracle.plugins.messages import DEVICE_PLUGIN
from oracle.plugins.server import Plugin

LOOKS_S = 0.05
"""So often a stream looks whether a device is another's health."""


class DevicePlugin(Plugin):
    """The devices of one resource."""

    kind = "DevicePlugin"
    versions = ("v1beta1",)
    services = (DEVICE_PLUGIN,)

    def __init__(self, resource: str, ids: Sequence[str]) -> None:
        super().__init__(resource)
        self._ids = ids
        self._unhealthy: frozenset[str] = frozenset()

    def fail(self, count: int) -> None:
        """Let so many devices be unhealthy, the first ones."""
        self._unhealthy = frozenset(self._ids[:count])

    def get_device_plugin_options(self, _: Any) -> Mapping[str, object]:
        return {"get_preferred_allocation_available": True}

    def list_and_watch(self, _: Any) -> Iterator[Mapping[str, object]]:
        told: frozenset[str] | None = None
        while not self.stops.is_set():
            if self._unhealthy == told:
                self.stops.wait(LOOKS_S)
                continue
            told = self._unhealthy
            yield {
                "devices": [
                    {"ID": each, "health": "Unhealthy" if each in told else "Healthy"}
                    for each in self._ids
                ]
            }

    def get_preferred_allocation(self, request: Any) -> Mapping[str, object]:
        """Prefer the first ones: a kubelet itself would draw."""
        answers = []
        for each in request.container_requests:
            must = [*each.must_include_deviceIDs]
            free = [one for one in self._ids if one in {*each.available_deviceIDs} - {*must}]
            answers.append({"deviceIDs": (must + free)[: each.allocation_size]})
        return {"container_responses": answers}

    def allocate(self, request: Any) -> Mapping[str, object]:
        return {"container_responses": [{} for _ in request.container_requests]}
