"""What of the runtime is out of order, and when: as the profile of the node declares it.

Source: fleet.kubelet.node.runtime_state, which plans the same windows for the virtual kubelet; they
count from the start of the runtime, which is that of its first kubelet.
"""

import asyncio

import grpc

from fleet.clock import NS_PER_S
from fleet.k8s.effects import NodeId
from fleet.kubelet.node.runtime_state import UNAVAILABLE, RuntimeState
from fleet.profile.machine import Outage, OutageKind
from oracle.cri.errors import CriError
from oracle.cri.machine import Machine


class Outages:
    """The outages of this node."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        started_ns = machine.now_ns()
        self._state = RuntimeState(NodeId(machine.node), machine.model, machine.draws, started_ns)

    def active(self, kind: OutageKind) -> Outage | None:
        """Return the outage of a kind that there is now."""
        return self._window(kind)[0]

    def check(self) -> None:
        """Raise CriError while nobody answers."""
        if self.active(OutageKind.RUNTIME_DOWN) is not None:
            text = UNAVAILABLE.partition(" desc = ")[2]
            raise CriError(grpc.StatusCode.UNAVAILABLE, text)

    async def wait(self, kind: OutageKind) -> None:
        """Wait for the end of an outage."""
        await asyncio.sleep(self._window(kind)[1] / NS_PER_S)

    def _window(self, kind: OutageKind) -> tuple[Outage | None, int]:
        """Return the outage that there is of a kind, and how long it goes on."""
        now_ns = self._machine.now_ns()
        for each in self._state._windows(now_ns):
            if each.outage.kind is kind and each.start_ns <= now_ns < each.end_ns:
                return each.outage, each.end_ns - now_ns
        return None, 0
