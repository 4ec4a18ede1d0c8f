"""The real metrics-server on 500 nodes: `make metrics-server`.

What it says is what profile and annotations declare; an autoscaler acts on it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aggregated_api import metrics_server
from e2e.e2e_world import Json, World, eventually, workload

from fleet.quantity import parse_quantity

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

PREFIX = "scraped"
NODES = 500
PROFILE = {
    "apiVersion": "fleet.emulator/v1alpha1",
    "kind": "NodeProfile",
    "metadata": {"name": "uses"},
    "spec": {"usage": {"cpu": "300m", "memory": "2Gi"}},
}
CPU, MEMORY = "fleet.emulator/cpu-usage", "fleet.emulator/memory-usage"
TOLERANCE = 0.02
"""A rate is a difference of sums of core-nanoseconds, by times in milliseconds."""
RISES = '{"curve":"Ramp","from":"20m","to":"160m","after":"20s","duration":"20s"}'
ASKS, TARGET, REPLICAS_MAX = "100m", 50, 5


@pytest.fixture(scope="module")
def scraped(world: World, environment: Path) -> Iterator[World]:
    """Run the nodes and what scrapes them."""
    profile = environment / "uses.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    with world.spawn(PREFIX, NODES, "--fidelity=light", f"--profile={profile}") as run:
        run.until_ready()
        with metrics_server(world, environment):
            yield world
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)


def pod(name: str, cpu: str, memory: str) -> Json:
    container = {"name": "c", "image": "registry.k8s.io/pause:3.10.1"}
    notes = {CPU: cpu, MEMORY: memory}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }


def usage(world: World, path: str) -> dict[str, Json]:
    """Return what the metrics API says of each node, or of each container's pod."""
    found = json.loads(world.kubectl("get", "--raw", f"/apis/metrics.k8s.io/v1beta1/{path}"))
    return {
        each["metadata"]["name"]: each["usage"]
        if "usage" in each
        else each["containers"][0]["usage"]
        for each in found["items"]
    }


def is_near(found: Json, cpu: str, memory: str) -> bool:
    wanted = amount(cpu)
    return abs(amount(found["cpu"]) - wanted) <= wanted * TOLERANCE and amount(
        found["memory"]
    ) == amount(memory)


def amount(text: str) -> int:
    return parse_quantity(text).nano


def test_every_node_is_scraped(scraped: World) -> None:
    def uses() -> dict[str, Json]:
        return usage(scraped, "nodes")

    eventually(lambda: len(uses()) == NODES, "of every node", seen=lambda: len(uses()))
    idle = set(scraped.nodes(PREFIX)) - {
        each["spec"].get("nodeName") for each in scraped.items("pods", "-A")
    }
    assert len(idle) > NODES // 2
    found = uses()
    assert not [found[name] for name in idle if not is_near(found[name], "300m", "2Gi")]


def test_kubectl_top_shows_what_is_declared(scraped: World) -> None:
    scraped.apply(pod("steady", "250m", "100Mi"), pod("changes", "100m", "64Mi"))

    def top(name: str) -> list[str]:
        """Return cpu and memory, [] as long as nothing is known."""
        return scraped.kubectl("top", "pod", name, "--no-headers", check=False).split()[1:]

    def is_shown(name: str, cpu: int, memory: str) -> bool:
        shown = top(name)
        return (
            shown[1:] == [memory] and abs(int(shown[0].removesuffix("m")) - cpu) <= cpu * TOLERANCE
        )

    def seen() -> list[list[str]]:
        return [top("steady"), top("changes")]

    try:
        eventually(lambda: is_shown("steady", 250, "100Mi"), "as declared", seen=seen)
        eventually(lambda: is_shown("changes", 100, "64Mi"), "as declared", seen=seen)
        scraped.kubectl("annotate", "--overwrite", "pod/changes", f"{CPU}=400m")
        eventually(lambda: is_shown("changes", 400, "64Mi"), "as declared now", seen=seen)
        node = scraped.get("pod", "steady")["spec"]["nodeName"]
        cpu, _, memory, _ = scraped.kubectl("top", "node", node, "--no-headers").split()[1:]
        assert int(cpu.removesuffix("m")) >= 300 + 250 - 1, cpu
        assert int(memory.removesuffix("Mi")) >= 2048 + 100, memory
    finally:
        scraped.kubectl("delete", "pod/steady", "pod/changes", "--ignore-not-found")


def test_an_autoscaler_follows_a_rising_curve(scraped: World) -> None:
    deployment = workload("Deployment", "climbs", 1)
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"] = {CPU: RISES}
    template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": ASKS}}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "climbs"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "climbs"},
            "minReplicas": 1,
            "maxReplicas": REPLICAS_MAX,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": TARGET},
                    },
                }
            ],
        },
    }

    def status() -> Json:
        found: Json = scraped.get("hpa", "climbs")["status"]
        return found

    def utilization() -> int:
        """Return what the autoscaler saw last, in percent of what a pod asks for."""
        metrics = status().get("currentMetrics") or [{}]
        return int(metrics[0].get("resource", {}).get("current", {}).get("averageUtilization", 0))

    scraped.apply(deployment, autoscaler)
    try:
        eventually(
            lambda: len(scraped.ready_pods("climbs")) == REPLICAS_MAX,
            "as many as it may",
            limit_s=600,
            seen=status,
        )
        eventually(
            lambda: abs(utilization() - 160) <= 3, "all see the end of the curve", seen=status
        )
        said = scraped.kubectl("describe", "hpa", "climbs")
        assert "cpu resource utilization (percentage of request) above target" in said, said
    finally:
        scraped.kubectl("delete", "hpa/climbs", "deployment/climbs", "--ignore-not-found")
