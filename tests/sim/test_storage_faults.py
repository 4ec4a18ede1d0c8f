"""Volumes that cannot be attached or mounted: their pods wait, others do not, and all is well."""

from functools import partial

from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object
from world.targets import Key

from fleet.faults.injector import attach_problem
from fleet.k8s.volumes import attachment_name

pytest_plugins = ("sim_encodings",)

DRIVER = "csi.example.com"
NODES = ("n-0", "n-1")
TRIES_S = 10
"""How often the attacher tries; a real one waits longer and longer, up to 5 minutes."""


def handle(node: str) -> str:
    return f"vol-{node}"


def started() -> Simulation:
    """Return two nodes with a driver, and a claim for each that is bound to a volume."""
    sim = Simulation(
        nodes=len(NODES), seed=7, monitored=True, model=model_of(csiDrivers=[{"name": DRIVER}])
    )
    sim.run_for(seconds=60)
    for node in NODES:
        claim = {"spec": {"volumeName": f"pv-{node}"}, "status": {"phase": "Bound"}}
        stored = sim.server.create(("persistentvolumeclaims", "default", f"data-{node}"), claim)
        assert stored is not None
        csi = {"driver": DRIVER, "volumeHandle": handle(node)}
        spec = {"csi": csi, "claimRef": {"uid": stored.obj["metadata"]["uid"]}}
        sim.server.create(("persistentvolumes", "", f"pv-{node}"), {"spec": spec})
    return sim


def attach(sim: Simulation, node: str) -> None:
    """Try as the attacher of the driver does, until it has attached the volume of a node."""
    key: Key = ("volumeattachments", "", attachment_name(handle(node), DRIVER, node))
    problem = attach_problem(sim.reactor, node)
    status: Object = {"attached": not problem, "attachError": None}
    if problem:
        status["attachError"] = {"message": problem}
        sim.after(TRIES_S, partial(attach, sim, node))
    else:
        name = f"kubernetes.io/csi/{DRIVER}^{handle(node)}"
        volumes = [{"name": name, "devicePath": ""}]
        sim.server.update("nodes", node, {"status": {"volumesAttached": volumes}})
    if sim.server.find(*_place(key)) is None:
        sim.server.create(key, {"spec": {"attacher": DRIVER}})
    sim.server.update(key[0], key[2], {"status": status})


def _place(key: Key) -> tuple[str, str, str]:
    return key[0], key[2], key[1]


def create_pods(sim: Simulation) -> None:
    """Create a pod with a claim and one without on each node."""
    for node in NODES:
        claim = {"claimName": f"data-{node}"}
        volumes = [{"name": "data", "persistentVolumeClaim": claim}]
        sim.create_pod(f"db-{node}", node, volumes=volumes)
        sim.create_pod(f"web-{node}", node)
        sim.after(5, partial(attach, sim, node))


def phases(sim: Simulation) -> dict[str, str]:
    return {
        f"{kind}-{node}": sim.phase(f"{kind}-{node}") for kind in ("db", "web") for node in NODES
    }


ALL_RUN = {f"{kind}-{node}": "Running" for kind in ("db", "web") for node in NODES}
ONE_WAITS = {**ALL_RUN, "db-n-1": "Pending"}


def test_a_volume_that_is_not_attached_keeps_its_pod_waiting() -> None:
    sim = started()
    sim.go_wrong(type="AttachFailure", nodes=["n-1"], message="no slot", seconds=100)
    create_pods(sim)
    sim.run_for(seconds=90)
    assert phases(sim) == ONE_WAITS
    name = attachment_name(handle("n-1"), DRIVER, "n-1")
    assert sim.server.get("volumeattachments", name)["status"]["attachError"] == {
        "message": "no slot"
    }
    assert sim.ready() == len(NODES)
    sim.run_for(seconds=10 + TRIES_S + 130)  # what waits for a volume begins anew after 2 minutes
    assert phases(sim) == ALL_RUN


def test_a_volume_that_is_not_mounted_is_told_and_keeps_its_pod_waiting() -> None:
    sim = started()
    sim.go_wrong(type="MountFailure", nodes=["n-1"], message="wrong fs type", seconds=100)
    create_pods(sim)
    sim.run_for(seconds=90)
    assert phases(sim) == ONE_WAITS
    told = sim.events("FailedMount")
    assert {each["involvedObject"]["name"] for each in told} == {"db-n-1"}
    assert any("wrong fs type" in each["message"] for each in told)
    assert sim.ready() == len(NODES)
    sim.run_for(seconds=10 + 130)  # the back-off is 2 minutes at most
    assert phases(sim) == ALL_RUN
