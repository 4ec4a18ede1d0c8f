"""How many volumes a node takes changes, and its CSINode follows: by time, and when it is full."""

from itertools import pairwise

import pytest
from test_volume_timing import ATTACHMENT, DATA, DRIVER, claim
from world.pod_world import model_of
from world.sim_faults import ApiServerAnswers
from world.simulation import Simulation
from world.strategic_merge import Object

from fleet.clock import NS_PER_S
from fleet.kubelet.node.csi_node import NODE_ID_ANNOTATION
from fleet.profile.release import V1_34, V1_35, Release

pytest_plugins = ("sim_encodings",)

FEWER = {"curve": "Step", "from": 26, "to": 24, "after": "5m"}
PERIOD = "nodeAllocatableUpdatePeriodSeconds"


def sim_with(period_s: int | None, *, own_watches: bool = True, **driver: object) -> Simulation:
    model = model_of(csiDrivers=[{"name": DRIVER, "allocatableOverTime": FEWER, **driver}])
    sim = Simulation(model=model, own_watches=own_watches)
    if period_s is not None:
        sim.server.create(("csidrivers", "", DRIVER), {"spec": {PERIOD: period_s}})
    sim.run_for(seconds=60)
    return sim


def count(sim: Simulation, name: str = DRIVER) -> int:
    drivers: list[Object] = sim.server.get("csinodes", "n-0")["spec"]["drivers"]
    [found] = [each["allocatable"]["count"] for each in drivers if each["name"] == name]
    return int(found)


def verbs(sim: Simulation, since_s: float) -> list[str]:
    return [each.verb for each in sim.calls(path="/csinodes", since_s=since_s)]


@pytest.mark.parametrize("own_watches", [True, False])
def test_a_count_is_written_when_its_period_is_over(*, own_watches: bool) -> None:
    sim = sim_with(60, own_watches=own_watches)
    assert count(sim) == 26
    since_s = sim.now_s
    sim.run_for(seconds=180)
    assert verbs(sim, since_s) == ["GET"] * 3  # it is as it was
    assert count(sim) == 26
    sim.run_for(seconds=120)
    assert count(sim) == 24
    assert verbs(sim, since_s) == ["GET", "GET", "GET", "GET", "GET", "PUT"]
    [found] = sim.server.get("csinodes", "n-0")["spec"]["drivers"]
    assert found["nodeID"] == "n-0"
    since_s = sim.now_s
    sim.run_for(seconds=600)
    assert verbs(sim, since_s) == ["GET"] * 10


@pytest.mark.parametrize("own_watches", [True, False])
def test_a_period_may_come_change_and_go(*, own_watches: bool) -> None:
    sim = sim_with(None, own_watches=own_watches)
    since_s = sim.now_s
    sim.run_for(seconds=300)
    sim.server.create(("csidrivers", "", DRIVER), {"spec": {PERIOD: 300}})
    sim.run_for(seconds=101)
    sim.server.update("csidrivers", DRIVER, {"spec": {PERIOD: 30}})
    sim.run_for(seconds=1)
    assert verbs(sim, since_s) == []
    sim.run_for(seconds=300)
    assert verbs(sim, since_s).count("GET") == 10
    assert count(sim) == 24
    sim.server.remove(("csidrivers", "", DRIVER))
    sim.run_for(seconds=1)
    since_s = sim.now_s
    sim.run_for(seconds=300)
    assert verbs(sim, since_s) == []
    assert sim.kubelet()._csi is None


def test_a_full_node_says_at_once_how_many_it_takes() -> None:
    sim = sim_with(3_600)
    sim.run_for(seconds=300)
    assert count(sim) == 26  # an hour is not over
    claim(sim.server)
    sim.create_pod("db", volumes=[DATA])
    error = {"message": "no room", "errorCode": 8}
    status = {"attached": False, "attachError": error}
    sim.server.create(("volumeattachments", "", ATTACHMENT), {"status": status})
    sim.run_for(seconds=140)
    assert sim.status("db")["reason"] == "VolumeAttachmentLimitExceeded"
    assert count(sim) == 24


def test_what_is_refused_is_tried_four_times_and_left_for_the_next_period() -> None:
    sim = sim_with(60)
    fault = ApiServerAnswers(500)
    sim.run_for(seconds=50)
    since_s = sim.now_s
    fault.inject(sim.transport)
    sim.run_for(seconds=20)
    assert verbs(sim, since_s) == ["GET"] * 4
    fault.heal(sim.transport)
    since_s = sim.now_s
    sim.run_for(seconds=250)
    assert count(sim) == 24
    assert verbs(sim, since_s).count("PUT") == 1


def test_each_driver_has_a_period_of_its_own() -> None:
    others = [{"name": "other.example.com", "allocatableCount": 3}]
    model = model_of(csiDrivers=[{"name": DRIVER, "allocatableOverTime": FEWER}, *others])
    sim = Simulation(model=model)
    for name, period_s in ((DRIVER, 60), ("other.example.com", 60)):
        sim.server.create(("csidrivers", "", name), {"spec": {PERIOD: period_s}})
    sim.run_for(seconds=60)
    since_s = sim.now_s
    sim.run_for(seconds=300)
    assert verbs(sim, since_s).count("GET") == 10
    assert verbs(sim, since_s).count("PUT") == 1
    assert (count(sim), count(sim, "other.example.com")) == (24, 3)


@pytest.mark.parametrize("release", [V1_34, V1_35], ids=lambda release: release.name)
def test_kubelets_of_1_34_write_their_count_once(release: Release) -> None:
    model = model_of(csiDrivers=[{"name": DRIVER, "allocatableOverTime": FEWER}])
    sim = Simulation(model=model.on_server(release.newest).adapted(zone_labels=True))
    sim.server.create(("csidrivers", "", DRIVER), {"spec": {PERIOD: 60}})
    sim.run_for(seconds=900)
    assert count(sim) == (26 if release is V1_34 else 24)


def sim_of(release: Release, **driver: object) -> Simulation:
    """Return a node of a minor whose CSINode is there, and whose driver is not yet."""
    model = model_of(csiDrivers=[{"name": DRIVER, "allocatableCount": 26, **driver}])
    sim = Simulation(model=model.on_server(release.newest).adapted(zone_labels=True))
    while sim.server.find("csinodes", "n-0") is None:
        sim.run_for(seconds=0.1)
    return sim


def owned_by_another(sim: Simulation) -> None:
    owners = [{"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": "of-another"}]
    sim.server.update("csinodes", "n-0", {"metadata": {"ownerReferences": owners}})


def owner(sim: Simulation) -> str:
    [found] = sim.server.get("csinodes", "n-0")["metadata"]["ownerReferences"]
    own = sim.server.get("nodes", "n-0")["metadata"]["uid"]
    return "ours" if found["uid"] == own else "another"


@pytest.mark.parametrize(
    ("release", "expected", "whose"),
    [
        (V1_34, ["GET", "PUT"], "another"),
        (V1_35, ["GET", "DELETE", "GET", "POST", "PUT"], "ours"),
    ],
    ids=["1.34", "1.35"],
)
def test_a_driver_that_registers_replaces_the_csinode_of_another_node(
    release: Release, expected: list[str], whose: str
) -> None:
    sim = sim_of(release)
    owned_by_another(sim)
    since_s = sim.now_s
    sim.run_for(seconds=10)
    assert verbs(sim, since_s) == expected
    assert owner(sim) == whose
    assert count(sim) == 26


def test_a_count_that_changes_replaces_the_csinode_of_another_node() -> None:
    sim = sim_with(60)
    owned_by_another(sim)
    since_s = sim.now_s
    sim.run_for(seconds=61)
    assert verbs(sim, since_s) == ["GET", "DELETE", "GET", "POST", "PUT"]
    assert owner(sim) == "ours"


@pytest.mark.parametrize(
    ("release", "reads_of_the_node"), [(V1_34, 2), (V1_35, 1)], ids=["1.34", "1.35"]
)
def test_a_driver_that_registers_creates_a_csinode_that_is_gone(
    release: Release, reads_of_the_node: int
) -> None:
    sim = sim_of(release)
    sim.server.remove(("csinodes", "", "n-0"))
    since_s = sim.now_s
    sim.run_for(seconds=5)
    assert verbs(sim, since_s) == ["GET", "POST", "PUT"]
    reads = [each for each in sim.calls(path="/nodes/n-0", since_s=since_s) if each.verb == "GET"]
    assert len(reads) == reads_of_the_node
    assert owner(sim) == "ours"


def test_a_csinode_that_is_refused_is_asked_for_again_and_the_node_is_not() -> None:
    """Source: nodeinfomanager.go, InstallCSIDriver: updateNode, then updateCSINode."""
    sim = sim_of(V1_35)
    while NODE_ID_ANNOTATION not in str(sim.server.get("nodes", "n-0")):
        sim.run_for(seconds=0.001)
    since_s = sim.now_s
    fault = ApiServerAnswers(500)
    fault.inject(sim.transport)
    sim.run_for(seconds=0.1)
    fault.heal(sim.transport)
    sim.run_for(seconds=0.5)
    assert verbs(sim, since_s) == ["GET", "GET", "GET", "GET", "PUT"]
    assert not sim.calls(path="/nodes/n-0", since_s=since_s)
    assert count(sim) == 26


def test_a_driver_that_cannot_register_is_tried_less_and_less_often() -> None:
    """Source: pkg/util/goroutinemap/exponentialbackoff, by which the plug-in manager waits."""
    sim = sim_of(V1_35)
    since_s = sim.now_s
    for unreadable in ("{", "[]"):
        sim.server.update(
            "nodes", "n-0", {"metadata": {"annotations": {NODE_ID_ANNOTATION: unreadable}}}
        )
        sim.run_for(seconds=200)
    reads = sim.calls(verb="GET", path="/nodes/n-0", since_s=since_s)
    starts_s = [each.t_ns / NS_PER_S for each in reads if each.path.endswith("/n-0")][::4]
    gaps_s = [after - before for before, after in pairwise(starts_s)]
    assert gaps_s == pytest.approx([1, 1, 2, 4, 8, 16, 32, 64, 122, 122], abs=0.5)
    readable = {"metadata": {"annotations": {NODE_ID_ANNOTATION: "null"}}}
    sim.server.update("nodes", "n-0", readable)
    sim.run_for(seconds=122)
    assert count(sim) == 26
