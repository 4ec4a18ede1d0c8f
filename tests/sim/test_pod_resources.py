"""PodResources of a fleet in virtual time, asked by a real gRPC client at the nodes' sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import pytest
from google.protobuf import message_factory
from world.pod_world import model_of
from world.simulation import Simulation

from fleet.k8s.effects import NodeId
from fleet.server.pod_resources import FILE, SERVICE, PodResourcesServers, nodes_of
from fleet.server.reactor_thread import NodeGoneError, ReactorThread
from fleet.server.resource_sockets import prepare_sockets, remove_sockets, socket_path
from fleet.wire.api.kubernetes_messages import read_pool

pytest_plugins = ("sim_encodings",)

GPU, GPUS = "example.com/gpu", 8
METHODS = read_pool(FILE).FindServiceByName(SERVICE).methods_by_name
T = TypeVar("T")


class Direct:
    """ReactorThread to the kubelets of a simulation, which are answered at once."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    async def ask(self, node: NodeId, act: Callable[[Any, int], T]) -> T:
        kubelet = self._sim.reactor.entries[node].kubelet
        if kubelet is None:
            raise NodeGoneError(node)
        return act(kubelet, self._sim.clock.now_ns())


class Monitor:
    """A client of one node's service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __call__(self, name: str, **fields: str) -> Any:
        """Call a method."""
        asked = message_factory.GetMessageClass(METHODS[name].input_type)
        answer = message_factory.GetMessageClass(METHODS[name].output_type)
        call = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=asked.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(asked(**fields), timeout=60)

    async def pods(self) -> dict[str, dict[str, list[str]]]:
        """Return the devices of all containers, by pod."""
        return {each.name: devices_of(each) for each in (await self("List")).pod_resources}


def devices_of(found: Any) -> dict[str, list[str]]:
    """Return the devices of a pod by container."""
    return {
        container.name: [id_ for device in container.devices for id_ in device.device_ids]
        for container in found.containers
    }


def monitored(
    root: Path, sim: Simulation, play: Callable[[dict[str, Monitor]], Awaitable[None]]
) -> None:
    """Serve all nodes of a simulation, and monitor them."""

    def node_at(index: int) -> tuple[NodeId, str] | None:
        return (NodeId(index), sim.names[index]) if index < len(sim.names) else None

    async def main() -> None:
        names = (*sim.names, "not-there")
        prepare_sockets(root, names)
        servers = PodResourcesServers(root, cast("ReactorThread", Direct(sim)))
        try:
            await servers.start(nodes_of(enumerate(names), node_at))
            channels = {
                name: grpc.aio.insecure_channel(f"unix:{socket_path(root, name)}") for name in names
            }
            await play({name: Monitor(channel) for name, channel in channels.items()})
            for channel in channels.values():
                await channel.close()
        finally:
            await servers.stop()
            remove_sockets(root, names)

    asyncio.run(main())
    assert list(root.iterdir()) == []


@pytest.fixture
def sim() -> Simulation:
    """Bring up two nodes with eight devices each, in two NUMA nodes."""
    devices = [{"resource": GPU, "count": GPUS, "idPrefix": "GPU-", "numaNodes": 2}]
    found = Simulation(seed=1, nodes=2, model=model_of(devices=devices))
    found.run_for(60)
    return found


def create(sim: Simulation, name: str, gpus: int) -> None:
    resources = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}}
    trains = {"name": "trains", "image": "cuda", "resources": resources}
    containers = [trains, {"name": "logs", "image": "busybox"}]
    sim.create_pod(name, sim.names[0], containers=containers)
    sim.run_for(20)


def test_each_pod_has_devices_of_its_own(sim: Simulation, tmp_path: Path) -> None:
    async def play(monitors: dict[str, Monitor]) -> None:
        one, other = monitors[sim.names[0]], monitors[sim.names[1]]
        offered = (await one("GetAllocatableResources")).devices
        nodes = [each.topology.nodes[0].ID for each in offered]
        assert sorted(nodes) == [0] * (GPUS // 2) + [1] * (GPUS // 2)
        assert await one.pods() == {}
        create(sim, "small", 2)
        create(sim, "large", 5)
        found = await one.pods()
        small, large = found["small"]["trains"], found["large"]["trains"]
        assert (len(small), len(large)) == (2, 5)
        assert len({*small, *large}) == 7
        assert {id_ for each in offered for id_ in each.device_ids} > {*small, *large}
        assert found["small"]["logs"] == []
        got = (await one("Get", pod_name="small", pod_namespace="default")).pod_resources
        assert devices_of(got) == found["small"]
        assert {each.resource_name for each in got.containers[0].devices} == {GPU}
        assert await other.pods() == {}
        sim.server.delete_pod("small")
        sim.run_for(60)
        assert set(await one.pods()) == {"large"}

    monitored(tmp_path, sim, play)


def test_what_is_not_there_is_told_as_upstream(sim: Simulation, tmp_path: Path) -> None:
    async def play(monitors: dict[str, Monitor]) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await monitors[sim.names[0]]("Get", pod_name="nope", pod_namespace="default")
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        assert caught.value.details() == "pod nope in namespace default not found"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await monitors["not-there"]("List")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    monitored(tmp_path, sim, play)
