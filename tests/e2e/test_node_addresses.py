"""Nodes and pods at addresses of this machine: what the API server proxies to arrives there."""

import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import Json, World, eventually

from fleet.errors import Exit, SetupError
from fleet.server.local_route import LocalRoute

CAP_NET_ADMIN = 12


def may_route() -> bool:
    [line] = [
        each
        for each in Path("/proc/self/status").read_text().splitlines()
        if each.startswith("CapEff:")
    ]
    return bool(int(line.split()[1], 16) >> CAP_NET_ADMIN & 1)


pytest_plugins = ("e2e_fixtures",)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not may_route(), reason="routes take CAP_NET_ADMIN"),
]

SLICE = os.getpid() % 8
RANGE = ipaddress.IPv4Network(f"198.18.{SLICE * 16}.0/20")
"""Of RFC 2544; another one for each session of tests on the machine."""
OTHER = ipaddress.IPv4Network(f"198.19.{SLICE * 16}.0/20")
NODES, PODS = RANGE.subnets()
ADD_AND_DIE = """
import ipaddress, os, signal, sys
from fleet.server.local_route import LocalRoute
LocalRoute(ipaddress.IPv4Network(sys.argv[1])).add()
os.kill(os.getpid(), signal.SIGKILL)
"""
AS_NOBODY = """
import ipaddress, os, sys
from fleet.errors import SetupError
from fleet.server.local_route import LocalRoute
os.setuid(65534)
try:
    LocalRoute(ipaddress.IPv4Network(sys.argv[1])).add()
except SetupError as error:
    sys.exit(str(error))
"""


def routed(network: ipaddress.IPv4Network) -> list[Json]:
    shown = ("ip", "-json", "route", "show", "table", "local", "exact", str(network))
    done = subprocess.run(shown, capture_output=True, text=True, check=True, timeout=120)
    found: list[Json] = json.loads(done.stdout or "[]")
    return found


def run(script: str, network: ipaddress.IPv4Network) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-c", script, str(network))
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def web() -> tuple[Json, Json]:
    container = {"name": "c", "image": "nginx", "ports": [{"containerPort": 8080}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "proxied"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"app": "proxied"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    }
    return pod, service


@pytest.fixture(scope="module")
def proxied(world: World) -> Iterator[World]:
    """Run two nodes with a pod and its Service."""
    with world.spawn("proxied", 2, f"--node-addresses={RANGE}") as fleet:
        fleet.until_ready()
        world.apply(*web())
        try:
            world.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=120s")
            yield world
        finally:
            world.kubectl("delete", "service/web", "pod/web", "--wait=false")
        fleet.end_well_or_late()
    assert not routed(RANGE)
    world.assert_nothing_left("proxied")


def test_nodes_and_pods_have_addresses_of_the_range(proxied: World) -> None:
    for node in proxied.nodes("proxied").values():
        [address] = [
            each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"
        ]
        assert ipaddress.ip_address(address) in NODES
        assert "ExtendWebSocketsToKubelet" in node["status"]["declaredFeatures"]
    status = proxied.get("pod", "web")["status"]
    assert ipaddress.ip_address(status["podIP"]) in PODS
    assert ipaddress.ip_address(status["hostIP"]) in NODES


def test_a_node_is_proxied_to(proxied: World) -> None:
    for name in proxied.nodes("proxied"):
        assert proxied.kubectl("get", "--raw", f"/api/v1/nodes/{name}/proxy/healthz") == "ok"
    node = proxied.get("pod", "web")["spec"]["nodeName"]
    found = json.loads(proxied.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods"))
    assert "web" in {each["metadata"]["name"] for each in found["items"]}


def test_a_pod_is_proxied_to(proxied: World) -> None:
    root = "/api/v1/namespaces/default/pods"
    for name in ("web", "web:8080"):
        eventually(
            lambda name=name: (
                proxied.kubectl(  # type: ignore[misc]
                    "get", "--raw", f"{root}/{name}/proxy/hostname", check=False
                )
                == "web"
            ),
            f"{name} answers",
        )


def test_a_port_that_is_not_declared_refuses(proxied: World) -> None:
    path = "/api/v1/namespaces/default/pods/web:8081/proxy/"
    done = subprocess.run(
        (
            *proxied.info.kubectl,
            f"--kubeconfig={proxied.info.kubeconfig}",
            *("get", "--raw", path),
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "connection refused" in done.stderr


def test_a_service_is_proxied_to_by_its_endpoints(proxied: World) -> None:
    path = "/api/v1/namespaces/default/services/web:http/proxy/hostname"
    eventually(
        lambda: proxied.kubectl("get", "--raw", path, check=False) == "web",
        "the Service has its endpoint, and that answers",
    )


def test_a_range_in_use_is_refused(proxied: World) -> None:
    with pytest.raises(SetupError, match="another run's"):
        LocalRoute(RANGE).add()
    with pytest.raises(SetupError, match=f"overlaps {RANGE}, which is routed to lo"):
        LocalRoute(next(RANGE.subnets())).add()
    assert routed(RANGE)
    pod = proxied.get("pod", "web")["status"]["podIP"]
    done = proxied.fleet(
        *("spawn", "--nodes=1", "--name-prefix=refused", f"--node-addresses={pod}/24")
    )
    assert (done.returncode, "has host bits set" in done.stderr) == (Exit.USAGE, True), done.stderr
    half = next(RANGE.subnets())
    done = proxied.fleet("spawn", "--nodes=1", "--name-prefix=refused", f"--node-addresses={half}")
    assert (done.returncode, "overlaps" in done.stderr) == (Exit.SETUP, True), done.stderr


def test_what_a_killed_run_left_is_cleaned_by_the_next() -> None:
    assert run(ADD_AND_DIE, OTHER).returncode < 0
    assert routed(OTHER)
    half = next(OTHER.subnets())
    route = LocalRoute(half)
    route.add()
    try:
        assert not routed(OTHER)
        assert routed(half)
    finally:
        route.remove()
    assert not routed(half)


def test_without_the_right_there_is_one_line() -> None:
    done = run(AS_NOBODY, OTHER)
    assert "Operation not permitted; it takes root (CAP_NET_ADMIN)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert SetupError.exit_code is Exit.SETUP
    assert not routed(OTHER)
