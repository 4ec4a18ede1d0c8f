"""Both nodes as the scenes see them."""

import asyncio
import contextlib
import http.client
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.header_tap import Noted

from fleet.controlplane.options import ControlPlaneInfo
from fleet.run.control_socket import ask
from oracle.both_nodes import OWN, REAL, BothNodes
from oracle.normalisation import Json, seconds
from oracle.plugins.csi_plugin import CsiPlugin
from oracle.plugins.device_plugin import DevicePlugin
from oracle.plugins.dra_plugin import DraPlugin
from oracle.real_kubelet import CONFIGURATION, sessions_go_first
from oracle.scene import FLEET
from oracle.scene import REAL as REAL_SIDE

REGISTERS_S = 1.0
"""A kubelet that is back has told of its Node by then: what is registered sooner, or later, is in
another request.
"""
ANSWERS_S = 30.0
"""A kubelet asks the API server, five times if need be."""


class OracleStage:
    """What scenes do to both nodes, and what was written down of them."""

    def __init__(self, both: BothNodes) -> None:
        self._both = both
        self.nodes: Mapping[str, str] = {REAL_SIDE: REAL, FLEET: OWN}
        self._reading = threading.Lock()
        """Scenes are played in threads; the log is read from where it was read last."""
        self._restarts_s: list[float] = []
        self.outages_s: list[tuple[float, float]] = []
        """Since when, and until when, the API server answered nobody."""

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
        """When each node was started: its first request, at first and since it was killed."""
        logged = self._logged()
        asked = {
            side: sorted(seconds(each["requestReceivedTimestamp"]) for each in logged[node])
            for side, node in self.nodes.items()
        }
        return {
            side: [
                next(at_s for at_s in times if at_s >= since_s)
                for since_s in (0.0, *self._restarts_s)
                if times and times[-1] >= since_s
            ]
            for side, times in asked.items()
        }

    def restart_apiserver(self) -> None:
        begun_s = time.time()
        self._both.stage.restart()
        sessions_go_first()
        self.outages_s.append((begun_s, time.time()))

    def restart_kubelets(self) -> None:
        self._both.real.kill_kubelet()
        self._restarts_s.append(time.time())
        order = {"do": "inject", "fault": {"type": "KubeletRestart"}}
        asyncio.run(ask(self._both.own.directory, order))
        self._both.real.start_kubelet()
        if self._both.real.plugins:
            time.sleep(REGISTERS_S)
            self._both.real.register_plugins()
            self._both.real.register_drivers()

    def fail_devices(self, resource: str, count: int) -> None:
        [plugin] = [each for each in self._both.real.plugins if each.name == resource]
        assert isinstance(plugin, DevicePlugin)
        fault = {"type": "DeviceFailure", "resource": resource, "count": count}
        order = {"do": "inject", "fault": fault} if count else {"do": "heal", "what": fault["type"]}
        asyncio.run(ask(self._both.own.directory, order))
        plugin.fail(count)

    def allocated(self, driver: str, namespace: str, claim: str, device: Json) -> None:
        for plugin in self._both.real.plugins:
            if isinstance(plugin, DraPlugin) and plugin.name == driver:
                plugin.allocations[namespace, claim] = device["request"], device["device"]

    def set_stuck(self, driver: str, *, is_stuck: bool) -> None:
        [plugin] = [each for each in self._both.real.plugins if each.name == driver]
        assert isinstance(plugin, CsiPlugin)
        plugin.is_stuck = is_stuck

    def ask_kubelet(self, side: str, method: str, path: str, token: str) -> int:
        """Ask the kubelet of a side at its port for everybody; return the code of its answer."""
        node = self._both.world.get("node", self.nodes[side])["status"]
        address = next(each for each in node["addresses"] if each["type"] == "InternalIP")
        host = CONFIGURATION["address"] if side == REAL_SIDE else address["address"]
        port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # a kubelet has signed its certificate itself
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWERS_S, context=context)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            return connection.getresponse().status

    def audit(self) -> list[Json]:
        return [each for events in self._logged().values() for each in events]

    def _logged(self) -> dict[str, list[Json]]:
        with self._reading:
            return self._both.audit()
