"""Pods that ask one another: by address, through a Service, from their hooks."""

from collections.abc import Iterator

import pytest
from e2e_world import Json, World, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"


def pod(name: str, container: Json, **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", **container}], "terminationGracePeriodSeconds": 5},
    }


def service(name: str, **spec: object) -> Json:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def network(world: World) -> Iterator[World]:
    """Run three nodes with a server, its Service and a client."""
    with world.spawn("network", 3) as fleet:
        fleet.until_ready()
        port = {"port": 80, "targetPort": 8080}
        world.apply(
            pod("asked", {"image": AGNHOST, "args": ["netexec"]}, app="asked"),
            pod("asks", {"image": "busybox", "command": ["sleep", "9999"]}),
            service("asked", selector={"app": "asked"}, ports=[port]),
        )
        try:
            world.kubectl(
                *("wait", "--for=condition=Ready", "pod/asked", "pod/asks", "--timeout=120s")
            )
            yield world
        finally:
            world.kubectl("delete", "service/asked", "pod/asked", "pod/asks", "--wait=false")
        fleet.end_well_or_late()
    world.assert_nothing_left("network")


def test_a_pod_reaches_another_one_by_its_address(network: World) -> None:
    address = network.get("pod", "asked")["status"]["podIP"]
    asked = ("exec", "asks", "--", "wget", "-qO-", f"http://{address}:8080")
    assert network.kubectl(*asked[:-1], f"{asked[-1]}/hostname") == "asked"
    assert network.kubectl(*asked[:-1], f"{asked[-1]}/clientip").startswith(
        network.get("pod", "asks")["status"]["podIP"]
    )
    refused = network.kubectl(
        *("exec", "asks", "--", "sh", "-c", f"nc -z {address} 81 || echo refused")
    )
    assert refused == "refused\n"


def test_a_service_is_reached_by_its_name(network: World) -> None:
    script = "curl -s http://asked.default.svc.cluster.local/hostname || echo refused"
    eventually(
        lambda: network.kubectl("exec", "asks", "--", "sh", "-c", script) == "asked",
        "the nodes know the Service, and that its pod is ready",
    )


@pytest.mark.parametrize("hook", ["postStart", "preStop"])
def test_a_hook_is_in_the_log_of_whom_it_asks(network: World, hook: str) -> None:
    address = network.get("pod", "asked")["status"]["podIP"]
    name = f"hooked-{hook.lower()}"
    request = {"path": f"/echo?msg={name}", "host": address, "port": 8080}
    made = pod(name, {"image": "busybox", "command": ["sleep", "9999"]})
    made["spec"]["containers"][0]["lifecycle"] = {hook: {"httpGet": request}}
    network.apply(made)
    network.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
    if hook == "preStop":
        assert name not in network.kubectl("logs", "asked")
    network.kubectl("delete", f"pod/{name}")
    assert network.kubectl("logs", "asked").count(f"GET /echo?msg={name}&code=") == 1
