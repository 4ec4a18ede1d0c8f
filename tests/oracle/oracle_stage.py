"""Both nodes as the scenes see them."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from both_nodes import OWN, REAL, BothNodes
from header_tap import Noted
from normalisation import Json, seconds
from scene import FLEET
from scene import REAL as REAL_SIDE

from fleet.controlplane import ControlPlaneInfo


class OracleStage:
    """What scenes do to both nodes, and what was written down of them."""

    def __init__(self, both: BothNodes) -> None:
        self._both = both
        self.nodes: Mapping[str, str] = {REAL_SIDE: REAL, FLEET: OWN}
        self._reading = threading.Lock()
        """Scenes are played in threads; the log is read from where it was read last."""

    @property
    def info(self) -> ControlPlaneInfo:
        return self._both.world.info

    @property
    def manifests(self) -> Mapping[str, Path]:
        places = self._both.manifests
        return {side: places[node] for side, node in self.nodes.items()}

    @property
    def noted(self) -> Mapping[str, Noted]:
        return self._both.noted

    @property
    def started_s(self) -> Mapping[str, Sequence[float]]:
        """When each node was started: its first request."""
        logged = self._logged()
        first = {
            side: min((each["requestReceivedTimestamp"] for each in logged[node]), default="")
            for side, node in self.nodes.items()
        }
        return {side: (seconds(text),) for side, text in first.items() if text}

    def audit(self) -> list[Json]:
        return [each for events in self._logged().values() for each in events]

    def _logged(self) -> dict[str, list[Json]]:
        with self._reading:
            return self._both.audit()
