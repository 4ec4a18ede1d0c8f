"""Kubelets that restart: what a real API server gets of it, and that no pod notices."""

import time

import pytest

from e2e.audit_requests import requests_of, seconds, shape_of
from e2e.e2e_world import Json, Running, World, condition, eventually, workload
from e2e.fault_world import order

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "storm"
LEASE = "leases/kube-node-lease"
START = {
    "create nodes 409",
    "get nodes 200",
    "get csinodes 200",
    f"get {LEASE} 200",
    f"update {LEASE} 200",
    "deletecollection resourceslices 200",
    "create events/default 201",
    "watch nodes 200",
    "watch pods 200",
    "watch services 200",
    "watch csidrivers 200",
    "watch runtimeclasses 200",
}
"""What a kubelet asks for that finds its Node. Source: kubelet-reference 1.1, 1.2."""


def restart(run: Running, nodes: int, **whom: object) -> float:
    """Restart kubelets; return when."""
    began = time.time()
    told = order(run, do="inject", fault={"type": "KubeletRestart", **whom})
    assert told["nodes"] == nodes, told
    return began


def containers(world: World, app: str) -> dict[str, Json]:
    return {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0] for pod in world.pods(app)
    }


def test_a_share_of_the_kubelets_begins_anew(world: World) -> None:
    with world.spawn(PREFIX, 3, world.quick()) as run:
        run.until_ready()
        leases = ("leases", "-n", "kube-node-lease", "-o", "name")
        eventually(lambda: world.kubectl("get", *leases).count(f"/{PREFIX}-") == 3, "Leases")
        world.apply(workload("Deployment", PREFIX, 9))
        eventually(lambda: len(world.ready_pods(PREFIX)) == 9, "pods are Ready")
        before, nodes = containers(world, PREFIX), world.nodes(PREFIX)
        began = restart(run, 2, share=0.67)

        def missing() -> dict[str, set[str]]:
            since = {
                node: shape_of([each for each in requests_of(world, node) if seconds(each) > began])
                for node in nodes
            }
            return {
                node: START - found for node, found in since.items() if "create nodes 409" in found
            }

        eventually(
            lambda: list(missing().values()) == [set(), set()],
            "two nodes asked for all that a kubelet asks for at its start",
            seen=missing,
        )
        eventually(
            lambda: all(
                condition(node, "Ready") == "True" for node in world.nodes(PREFIX).values()
            ),
            "all nodes are Ready, those that restarted too",
        )
        world.apply(workload("Deployment", PREFIX, 12))
        eventually(lambda: len(world.ready_pods(PREFIX)) == 12, "new pods run too")
        assert before.items() <= containers(world, PREFIX).items()
        world.kubectl("delete", "deployment", PREFIX)
        eventually(lambda: not world.pods(PREFIX), "pods end")
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)
