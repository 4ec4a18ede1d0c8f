"""The servers of kubelets without sockets and threads: bytes in, bytes out, in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fleet.k8s.effects import NodeId, Outbox
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.server.reactor_thread import NodeGoneError, ReactorThread
from world.simulation import Simulation

T = TypeVar("T")


class Transport:
    """A connection in memory; as those of uvloop it is no `asyncio.Transport`."""

    def __init__(self, **extra: object) -> None:
        self.sent = bytearray()
        self.is_closed = False
        self.is_paused = False
        self.protocol: Any = None
        self._extra = extra

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        for each in list_of_data:
            self.sent += each

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._extra.get(name, default)

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    @property
    def status(self) -> str:
        return self.sent.partition(b"\r\n")[0].decode()


class AtOnce:
    """A ReactorThread without a reactor: what is asked of a node is answered at once."""

    async def call(self, _node: NodeId, act: Callable[[object, int], object]) -> object:
        await asyncio.sleep(0)
        return act(None, 0)

    def perform(self, out: Outbox) -> None:
        """Do none of it."""


class DirectCalls(ReactorThread):
    """Asks the kubelets of a simulation in the same thread."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._reactor = sim.reactor

    async def call(self, node: NodeId, act: Callable[[VirtualKubelet, int], T]) -> T:
        kubelet = self._reactor.entries[node].kubelet
        if kubelet is None:
            raise NodeGoneError(node)
        found = act(kubelet, self._sim.clock.now_ns())
        self._sim.transport.flush()
        return found
