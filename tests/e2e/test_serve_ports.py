"""Kubelets that share one address: a port for each."""

import json
import socket

import pytest

from e2e.e2e_world import World, pod
from e2e.free_ports import free_port

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODES = 3
SAYS = "echo hello; sleep 3600"


def own_address() -> str:
    """Return this machine's address in its network; without one that of `lo`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def test_each_node_answers_at_a_port_of_its_own(world: World) -> None:
    """The API server finds each: its logs, its exec, and what it proxies to."""
    address, first = own_address(), free_port(NODES)
    names = [f"ports-{number:05d}" for number in range(NODES)]
    with world.spawn("ports", NODES, "--serve=ports", f"--serve-at={address}:{first}") as fleet:
        fleet.until_ready()
        nodes = world.nodes("ports")
        for port, name in enumerate(names, first):
            status = nodes[name]["status"]
            assert {"type": "InternalIP", "address": address} in status["addresses"]
            assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": port}}
            assert "ExtendWebSocketsToKubelet" in status["declaredFeatures"]
        world.apply(pod("first", SAYS, names[0]), pod("last", SAYS, names[-1]))
        world.kubectl("wait", "--for=condition=Ready", "pod/first", "pod/last", "--timeout=120s")
        for name in ("first", "last"):
            assert world.kubectl("logs", name) == "hello\n"
            assert world.kubectl("exec", name, "--", "echo", name) == f"{name}\n"
        if not address.startswith("127."):
            path = f"/api/v1/nodes/{names[-1]}/proxy/pods"
            found = json.loads(world.kubectl("get", "--raw", path))
            assert [each["metadata"]["name"] for each in found["items"]] == ["last"]
        world.kubectl("delete", "pod/first", "pod/last", "--wait=false")
        fleet.end_well_or_late()
    world.assert_nothing_left("ports")
