"""One node's container runtime on a Unix socket."""

from pathlib import Path

import grpc

from oracle.cri.applications import Lookup
from oracle.cri.handlers import generic_handler
from oracle.cri.image_service import ImageService
from oracle.cri.images import Images
from oracle.cri.machine import Machine
from oracle.cri.messages import IMAGE_SERVICE, RUNTIME_SERVICE
from oracle.cri.outages import Outages
from oracle.cri.pods import Pods
from oracle.cri.ports import Ports
from oracle.cri.runtime_service import RuntimeService

END_S = 0.2


class CriServer:
    """The runtime and its socket."""

    def __init__(self, machine: Machine, socket: Path, look_up: Lookup) -> None:
        self.images = Images(machine, look_up)
        self.pods = Pods(machine, self.images, look_up)
        self.address = f"unix://{socket}"
        self._ports = Ports(machine, self.pods)
        self._server = grpc.aio.server()
        outages = Outages(machine)
        runtime = RuntimeService(machine, self.pods, outages)
        images = ImageService(machine, self.images, str(socket.parent))
        self._server.add_generic_rpc_handlers(
            (
                generic_handler(RUNTIME_SERVICE, runtime, outages.check),
                generic_handler(IMAGE_SERVICE, images, outages.check),
            )
        )
        self._server.add_insecure_port(self.address)

    async def start(self) -> None:
        await self._server.start()

    async def wait(self) -> None:
        await self._server.wait_for_termination()

    async def stop(self) -> None:
        """End everything that listens."""
        self.pods.close()
        await self._ports.close()
        await self._server.stop(END_S)
