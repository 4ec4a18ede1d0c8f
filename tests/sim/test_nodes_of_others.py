"""Kubelets of Nodes that others make: they create none, and change nothing that a Node says."""

import copy
from typing import Any

from sim_faults import ApiServerAnswers
from simulation import Simulation, default_model

from fleet.objects.effects import NodeId
from fleet.objects.well_known import MANAGED_ANNOTATION
from fleet.profile.managed_model import Resources, managed_model
from fleet.simulation.api_server import SimApiServer
from fleet.simulation.transport import Sent

pytest_plugins = ("sim_encodings",)

NODE = "/api/v1/nodes"
AMOUNTS = {"cpu": "3", "memory": "5Gi", "pods": "17", "example.com/widget": "2"}
MADE: dict[str, Any] = {
    "metadata": {
        "name": "n-0",
        "labels": {"pool": "theirs", "kubernetes.io/arch": "s390x"},
        "annotations": {"theirs": "kept"},
    },
    "spec": {"providerID": "kwok://n-0", "taints": [{"key": "t", "effect": "NoSchedule"}]},
    "status": {
        "capacity": AMOUNTS,
        "allocatable": AMOUNTS,
        "nodeInfo": {"kubeletVersion": "v1.30.0", "osImage": "Theirs"},
        "addresses": [{"type": "InternalIP", "address": "10.9.9.9"}],
    },
}


def make(server: SimApiServer) -> None:
    """Create the Node as an autoscaler does."""
    server.create(("nodes", "", "n-0"), copy.deepcopy(MADE))


def managed(seed: int) -> Simulation:
    model = managed_model(default_model(), Resources.of(MADE["status"]))
    return Simulation(seed=seed, setup=make, model=model, registers=False)


def creations(sim: Simulation) -> list[Sent]:
    return [each for each in sim.calls(verb="POST") if each.path.partition("?")[0] == NODE]


def test_all_that_a_node_says_stays_and_the_rest_is_filled_in() -> None:
    sim = managed(1)
    sim.run_for(seconds=60)
    node = sim.server.get("nodes", "n-0")
    assert sim.condition("n-0") == "True"
    assert node["metadata"]["labels"] == MADE["metadata"]["labels"]
    assert node["metadata"]["annotations"]["theirs"] == "kept"
    assert node["metadata"]["annotations"][MANAGED_ANNOTATION] == "true"
    assert node["spec"] == MADE["spec"]
    status, said = node["status"], MADE["status"]
    for member in ("capacity", "allocatable"):
        assert {key: status[member][key] for key in AMOUNTS} == AMOUNTS
        assert set(status[member]) == {*AMOUNTS, "ephemeral-storage"}
    assert status["addresses"] == said["addresses"]
    assert status["nodeInfo"] == {
        **{key: value for key, value in default_model().node_info.items() if value},
        **{key: status["nodeInfo"][key] for key in ("machineID", "systemUUID", "bootID")},
        **said["nodeInfo"],
    }
    assert not creations(sim)
    lease = sim.server.get("leases", "n-0", "kube-node-lease")
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


def test_pods_run_there() -> None:
    sim = managed(2)
    sim.create_pod("a")
    sim.run_for(seconds=60)
    assert sim.phase("a") == "Running"


def test_a_restarted_kubelet_creates_no_node_either_and_finds_nothing_to_change() -> None:
    sim = managed(3)
    sim.run_for(seconds=30)
    before = len(sim.calls(verb="PATCH", path=NODE))
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=9)
    assert len(sim.calls(verb="PATCH", path=NODE)) == before + 1, "the first report alone"
    assert not creations(sim)


def test_a_node_that_is_deleted_is_not_made_anew() -> None:
    """Not by a kubelet that nobody has told yet, not by its successor, whatever fails meanwhile."""
    sim = managed(4)
    sim.run_for(seconds=30)
    sim.server.remove(("nodes", "", "n-0"))
    sim.run_for(seconds=60)
    sim.reactor.restart([NodeId(0)])
    sim.inject(ApiServerAnswers(503), seconds=20)
    sim.run_for(seconds=60)
    assert not creations(sim)
    assert sim.server.find("nodes", "n-0") is None
    sim.reactor.silence(NodeId(0))
    silent = len(sim.trace)
    sim.run_for(seconds=60)
    assert len(sim.trace) == silent
