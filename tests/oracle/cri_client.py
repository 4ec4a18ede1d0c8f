"""A gRPC client of the runtime, and a server of it for one test."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from fleet.clock import Draws
from fleet.profile.loader import load_mix
from fleet.profile.option_types import ProfileChoice
from oracle.cri.applications import from_pods
from oracle.cri.machine import Machine
from oracle.cri.messages import path, request_class, response_class, service, value
from oracle.cri.server import CriServer

Json = dict[str, Any]
IMAGE = "registry.k8s.io/pause:3.10.1"
NETWORK = f"127.{100 + os.getpid() % 100}.7"
"""Not that of another process of pytest."""
MACHINE = Machine(
    load_mix((ProfileChoice("default"),)).models[0], Draws(1), pod_cidr=f"{NETWORK}.0/24"
)
UID = "0d1b2c3d-0000-4000-8000-000000000001"
EXITED, RUNNING, CREATED = (
    value(f"CONTAINER_{state}") for state in ("EXITED", "RUNNING", "CREATED")
)


class Client:
    """Calls a method by its name; the messages are plain keywords."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._calls = {}
        for name in ("RuntimeService", "ImageService"):
            for method in service(name).methods:
                if not method.server_streaming:
                    self._calls[method.name] = (
                        request_class(method),
                        channel.unary_unary(
                            path(method),
                            request_serializer=request_class(method).SerializeToString,
                            response_deserializer=response_class(method).FromString,
                        ),
                    )

    async def call(self, name: str, **fields: Any) -> Any:
        request, call = self._calls[name]
        return await call(request(**fields))

    async def error(self, name: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(name, **fields)
        return caught.value.code(), caught.value.details() or ""

    async def sandbox(self, annotations: dict[str, str] | None = None) -> tuple[str, Json]:
        config = {
            "metadata": {"name": "p", "namespace": "default", "uid": UID},
            "annotations": annotations or {},
        }
        made = await self.call("RunPodSandbox", config=config)
        return made.pod_sandbox_id, config

    async def container(self, sandbox: str, config: Json, **fields: Any) -> str:
        container = {"metadata": {"name": "c"}, "image": {"image": IMAGE}, **fields}
        made = await self.call(
            "CreateContainer", pod_sandbox_id=sandbox, config=container, sandbox_config=config
        )
        return str(made.container_id)

    async def started(self, annotations: dict[str, str] | None = None, /, **fields: Any) -> str:
        sandbox, config = await self.sandbox(annotations)
        container = await self.container(sandbox, config, **fields)
        await self.call("StartContainer", container_id=container)
        return container

    async def status(self, container: str) -> Any:
        return (await self.call("ContainerStatus", container_id=container)).status

    async def until_exited(self, container: str) -> Any:
        while (status := await self.status(container)).state != EXITED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return status


def play(
    tmp_path: Path,
    story: Callable[[Client], Awaitable[None]],
    *pods: Json,
    machine: Machine = MACHINE,
) -> None:
    async def run() -> None:
        server = CriServer(machine, tmp_path / "cri.sock", from_pods(*pods))
        await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                await story(Client(channel))
        finally:
            await server.stop()

    asyncio.run(run())


def pod(annotations: dict[str, str] | None = None, **container: Any) -> Json:
    return {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": UID,
            "annotations": annotations or {},
        },
        "spec": {"containers": [{"name": "c", "image": IMAGE, **container}]},
    }
