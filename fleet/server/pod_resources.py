"""PodResources: the gRPC service of each kubelet on a Unix socket of its own, where asked for.

    DIR/NODE/kubelet.sock -> List | Get | GetAllocatableResources -> a question to the reactor

Monitors of devices ask it which pod has what. A gRPC server cannot tell by which socket it was
asked, so each node has one; grpcio is imported only here, when there is a folder for them.
Source: pkg/kubelet/apis/podresources/server_v1.go; pkg/kubelet/server/server.go,
ListenAndServePodResources; pkg/kubelet/apis/grpc/ratelimit.go.
Differs: v1alpha1 is not served.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf import message_factory

from fleet.k8s.admission import NO_TOPOLOGY, AssignedDevice, PodResources
from fleet.k8s.effects import NodeId
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.server.given_resources import (
    allocatable_resources,
    pod_resources,
    resources_of,
)
from fleet.server.reactor_thread import BugError, NodeGoneError, ReactorThread
from fleet.server.resource_sockets import socket_path
from fleet.wire.api.kubernetes_messages import read_pool

FILE = Path(__file__).parent / "proto" / "podresources_v1.binpb"
SERVICE = "v1.PodResourcesLister"
QPS, BURST = 100, 10
"""Source: podresources/constants.go."""
STOP_S = 0.2
T = TypeVar("T")
NodeAt = Callable[[], NodeId | None]


@cache
def _service() -> Any:
    return read_pool(FILE).FindServiceByName(SERVICE)


@cache
def _method(name: str) -> Any:
    return _service().methods_by_name[name]


@cache
def _answer(name: str) -> Any:
    """Return the class of a method's answer."""
    return message_factory.GetMessageClass(_method(name).output_type)


class PodResourcesServers:
    """The sockets of all nodes of a process; made, started and stopped on the servers' loop."""

    def __init__(self, root: Path, reactor_thread: ReactorThread) -> None:
        self._root = root
        self._reactor_thread = reactor_thread
        self._servers: list[grpc.aio.Server] = []

    async def start(self, nodes: Iterable[tuple[str, NodeAt]]) -> None:
        """Serve each node, by its name and who it is when somebody asks; its folder is there."""
        for name, node_at in nodes:
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((_handlers(self._reactor_thread, node_at),))
            server.add_insecure_port(f"unix:{socket_path(self._root, name)}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        """Serve no more. gRPC removes its sockets."""
        await asyncio.gather(*(each.stop(STOP_S) for each in self._servers))


class Limit:
    """A bucket of tokens. Source: golang.org/x/time/rate, Allow."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self, now_s: float) -> None:
        self._tokens = float(BURST)
        self._at_s = now_s

    def allows(self, now_s: float) -> bool:
        """Take a token, if there is one."""
        self._tokens = min(self._tokens + (now_s - self._at_s) * QPS, BURST)
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class _Lister:
    """The service of one node."""

    __slots__ = ("_limit", "_node_at", "_reactor_thread")

    def __init__(self, reactor_thread: ReactorThread, node_at: NodeAt) -> None:
        self._reactor_thread = reactor_thread
        self._node_at = node_at
        self._limit = Limit(time.monotonic())

    async def list(self, _request: Any, context: Any) -> Any:
        """Tell of all active pods."""
        found = await self._ask(context, pod_resources)
        return _answer("List")(pod_resources=map(_pod, found))

    async def get(self, request: Any, context: Any) -> Any:
        """Tell of one pod."""
        namespace, name = request.pod_namespace, request.pod_name

        def act(kubelet: VirtualKubelet, now_ns: int) -> PodResources | None:
            return resources_of(kubelet, namespace, name, now_ns)

        found = await self._ask(context, act)
        if found is None:
            text = f"pod {name} in namespace {namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, text)
        assert found is not None
        return _answer("Get")(pod_resources=_pod(found))

    async def get_allocatable_resources(self, _request: Any, context: Any) -> Any:
        """Tell of all healthy devices, and of the CPUs and memory that pods may have alone."""
        found = await self._ask(context, allocatable_resources)
        return _answer("GetAllocatableResources")(
            devices=map(_device, found.devices),
            cpu_ids=found.cpus,
            memory=map(_memory, found.memory),
        )

    async def _ask(self, context: Any, act: Callable[[VirtualKubelet, int], T]) -> T:
        if not self._limit.allows(time.monotonic()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        node = self._node_at()
        if node is not None:
            try:
                return await self._reactor_thread.call(node, act)
            except NodeGoneError:
                pass
            except BugError as error:
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet does not run")
        raise AssertionError  # abort does


def _handlers(reactor_thread: ReactorThread, node_at: NodeAt) -> grpc.GenericRpcHandler:
    lister = _Lister(reactor_thread, node_at)
    calls = {
        "List": lister.list,
        "Get": lister.get,
        "GetAllocatableResources": lister.get_allocatable_resources,
    }
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=message_factory.GetMessageClass(
                    _method(name).input_type
                ).FromString,
                response_serializer=_answer(name).SerializeToString,
            )
            for name, call in calls.items()
        },
    )


def _pod(found: PodResources) -> dict[str, Any]:
    """Return a message as what its class takes."""
    return {
        "name": found.name,
        "namespace": found.namespace,
        "containers": [
            {
                "name": each.name,
                "devices": list(map(_device, each.devices)),
                "cpu_ids": each.cpus,
                "memory": list(map(_memory, each.memory)),
                "dynamic_resources": [
                    {
                        "claim_name": claim.name,
                        "claim_namespace": claim.namespace,
                        "claim_resources": [
                            {
                                "driver_name": device.driver,
                                "pool_name": device.pool,
                                "device_name": device.device,
                            }
                            for device in claim.devices
                        ],
                    }
                    for claim in each.claims
                ],
            }
            for each in found.containers
        ],
    }


def _memory(found: tuple[str, int]) -> dict[str, Any]:
    kind, size = found
    return {"memory_type": kind, "size": size, "topology": {"nodes": [{"ID": 0}]}}


def _device(found: AssignedDevice) -> dict[str, Any]:
    shown: dict[str, Any] = {"resource_name": found.resource, "device_ids": [found.id]}
    if found.numa_node != NO_TOPOLOGY:
        shown["topology"] = {"nodes": [{"ID": found.numa_node}]}
    return shown


def nodes_of(
    names: Iterable[tuple[int, str]], node_at: Callable[[int], tuple[NodeId, str] | None]
) -> Iterable[tuple[str, NodeAt]]:
    """Return the nodes of a process by index and name, and how each is found when it is asked."""
    for index, name in names:
        yield name, partial(_node, node_at, index)


def _node(node_at: Callable[[int], tuple[NodeId, str] | None], index: int) -> NodeId | None:
    found = node_at(index)
    return None if found is None else found[0]
