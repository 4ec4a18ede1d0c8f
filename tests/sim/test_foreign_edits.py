"""What others write into a Node of what its kubelet says, in JSON and in protobuf."""

from collections.abc import Mapping

from world.sim_faults import AnswersSlow, ApiServerAnswers
from world.simulation import Simulation

pytest_plugins = ("sim_encodings",)
REPORTED = ("capacity", "allocatable", "nodeInfo", "addresses", "daemonEndpoints")


def edited(sim: Simulation, **edit: Mapping[str, object]) -> int:
    """Edit the Node, and return in how many patches its kubelet puts it right."""
    before = len(sim.calls(verb="PATCH", path="/nodes/n-0"))
    sim.server.update("nodes", "n-0", dict(edit))
    sim.run_for(seconds=60)
    return len(sim.calls(verb="PATCH", path="/nodes/n-0")) - before


def test_edits_are_put_right_by_one_patch_each() -> None:
    sim = Simulation(seed=3).run_for(seconds=30)
    node = sim.server.get("nodes", "n-0")
    status = {member: node["status"][member] for member in REPORTED}
    labels = dict(node["metadata"]["labels"])
    assert edited(sim, status={"capacity": {"cpu": "1"}}) == 1
    assert edited(sim, status={"allocatable": {"memory": "1Ki", "pods": "1"}}) == 1
    assert edited(sim, status={"nodeInfo": {"kubeletVersion": "v9"}}) == 1
    assert edited(sim, status={"addresses": [{"type": "InternalIP", "address": "1.1.1.1"}]}) == 1
    os_and_arch = {"kubernetes.io/os": "plan9", "kubernetes.io/arch": "vax"}
    assert edited(sim, metadata={"labels": os_and_arch}) == 1
    assert edited(sim, metadata={"labels": {"kubernetes.io/hostname": "other"}}) == 0
    node = sim.server.get("nodes", "n-0")
    assert {member: node["status"][member] for member in REPORTED} == status
    assert node["metadata"]["labels"] == labels | {"kubernetes.io/hostname": "other"}


def test_what_kubelets_do_not_say_stays_as_others_wrote_it() -> None:
    sim = Simulation(seed=3).run_for(seconds=30)
    assert edited(sim, status={"volumesAttached": [{"name": "v", "devicePath": "d"}]}) == 0
    assert edited(sim, metadata={"labels": {"mine": "x"}, "annotations": {"a": "b"}}) == 0
    assert edited(sim, status={"capacity": {"cpu": "8000m"}}) <= 1  # the same, or nearly


def test_an_edit_that_is_taken_back_costs_nothing() -> None:
    sim = Simulation(seed=3)
    sim.run_for(seconds=33)  # between two ticks
    node = sim.server.get("nodes", "n-0")
    before = len(sim.calls(verb="PATCH", path="/nodes/n-0"))
    capacity = node["status"]["capacity"]["cpu"]
    sim.server.update("nodes", "n-0", {"status": {"capacity": {"cpu": "1"}}})
    sim.run_for(seconds=0.5)
    sim.server.update("nodes", "n-0", {"status": {"capacity": {"cpu": capacity}}})
    sim.run_for(seconds=60)
    assert len(sim.calls(verb="PATCH", path="/nodes/n-0")) == before


def test_a_node_that_is_deleted_and_made_bare_gets_all_that_a_kubelet_says() -> None:
    sim = Simulation(seed=3).run_for(seconds=30)
    status = sim.server.get("nodes", "n-0")["status"]
    status["nodeInfo"] = {name: value for name, value in status["nodeInfo"].items() if value != ""}
    sim.server.remove(("nodes", "", "n-0"))
    sim.run_for(seconds=30)
    assert sim.server.find("nodes", "n-0") is None
    sim.server.create(("nodes", "", "n-0"), {"metadata": {"name": "n-0"}, "spec": {}, "status": {}})
    sim.run_for(seconds=30)
    node = sim.server.get("nodes", "n-0")
    for member in REPORTED:
        assert node["status"][member] == status[member]
    assert sim.condition("n-0") == "True"
    assert node["metadata"]["labels"]["kubernetes.io/os"] == "linux"


def test_an_edit_is_put_right_that_is_seen_while_a_report_is_on_its_way() -> None:
    every = 1.5
    for tries in range(8):  # one of them falls between a PATCH and its answer, which takes 4 s
        sim = Simulation(seed=3).run_for(seconds=33)
        capacity = sim.server.get("nodes", "n-0")["status"]["capacity"]
        AnswersSlow(4).inject(sim.transport)
        sim.server.update("nodes", "n-0", {"status": {"capacity": {"cpu": "1"}}})
        sim.run_for(seconds=tries * every)
        sim.server.update("nodes", "n-0", {"status": {"capacity": {"pods": "1"}}})
        sim.run_for(seconds=45)
        assert sim.server.get("nodes", "n-0")["status"]["capacity"] == capacity, tries


def test_an_edit_is_put_right_though_all_tries_of_a_report_failed() -> None:
    sim = Simulation(seed=3).run_for(seconds=33)
    capacity = sim.server.get("nodes", "n-0")["status"]["capacity"]
    since_s = sim.now_s
    fault = ApiServerAnswers(500)
    fault.inject(sim.transport)
    sim.server.update("nodes", "n-0", {"status": {"capacity": {"cpu": "1"}}})
    sim.run_for(seconds=15)
    assert len(sim.calls(verb="PATCH", path="/nodes/n-0", since_s=since_s)) == 1
    fault.heal(sim.transport)
    sim.run_for(seconds=15)
    assert sim.server.get("nodes", "n-0")["status"]["capacity"] == capacity
