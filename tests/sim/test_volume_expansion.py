"""Volumes that grow while they are claimed: what a kubelet asks, writes and says of them."""

import pytest
from test_volume_timing import (
    ATTACHMENT,
    DATA,
    DRIVER,
    UNIQUE,
    attach_in_turn,
    claim,
)
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

SUCCEEDED = 'MountVolume.NodeExpandVolume succeeded for volume "pv-1" n-0'
FAILED = 'NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : '
EXPANDER = "Expander.NodeExpand failed to expand the volume"
PENDING = [{"type": "FileSystemResizePending", "status": "True"}]
RESYNC_S = 95  # 60 to 90 s, and what follows


def model_with(**driver: object) -> Simulation:
    sim = Simulation(model=model_of(csiDrivers=[{"name": DRIVER, **driver}])).run_for(seconds=60)
    claim(sim.server)
    shape(sim, "1Gi", "1Gi")
    return sim


def shape(sim: Simulation, volume: str, capacity: str, **status: object) -> None:
    """Store the sizes of volume and claim, as an external resizer does."""
    sim.server.update("persistentvolumes", "pv-1", {"spec": {"capacity": {"storage": volume}}})
    spec = {"resources": {"requests": {"storage": volume}}}
    sim.server.update("persistentvolumeclaims", "data", {"spec": spec}, "default")
    patch = {"status": {"capacity": {"storage": capacity}, **status}}
    sim.server.update("persistentvolumeclaims", "data", patch, "default")


def mend(sim: Simulation) -> None:
    notes = {"fleet.emulator/expand-error": None}
    sim.server.update("pods", "db", {"metadata": {"annotations": notes}}, "default")


def grow(sim: Simulation, size: str = "2Gi", status: str = "NodeResizePending") -> None:
    """Do what an external resizer does whose driver needs the node."""
    told: dict[str, object] = {"allocatedResources": {"storage": size}}
    shape(
        sim, size, "1Gi", allocatedResourceStatuses={"storage": status}, conditions=PENDING, **told
    )


def run_pod(sim: Simulation, annotations: dict[str, str] | None = None) -> None:
    """Start a pod with the claim."""
    sim.create_pod("db", volumes=[DATA], annotations=annotations or {})
    attach_in_turn(sim, 5)
    assert sim.phase("db") == "Running"


def status_of(sim: Simulation) -> Object:
    found: Object = sim.server.get("persistentvolumeclaims", "data", "default")["status"]
    return found


def told(sim: Simulation, reason: str) -> dict[str, str]:
    return {each["involvedObject"]["kind"]: each["message"] for each in sim.events(reason)}


def requests(sim: Simulation, since_s: float) -> list[str]:
    """Return what was asked of claims and volumes, in order."""
    return [
        f"{each.verb} {each.path.split('/')[-2 if each.verb == 'GET' else -1]}"
        for each in sim.calls(since_s=since_s)
        if "/persistent" in each.path
    ]


def test_a_mounted_volume_that_has_grown_is_expanded_on_its_node() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim)
    sim.run_for(seconds=RESYNC_S)
    assert not told(sim, "FileSystemResizeSuccessful")
    grow(sim)
    since_s = sim.now_s
    sim.run_for(seconds=RESYNC_S)
    status = status_of(sim)
    assert status["capacity"] == {"storage": "2Gi"}
    assert not status.get("conditions")
    assert "allocatedResourceStatuses" not in status
    both = {"Pod": SUCCEEDED, "PersistentVolumeClaim": SUCCEEDED}
    assert told(sim, "FileSystemResizeSuccessful") == both
    expansion = ["GET persistentvolumeclaims", "PATCH status", "PATCH status"]
    read = ["GET persistentvolumeclaims", "GET persistentvolumes"]
    found = requests(sim, since_s)
    assert found[:5] == [*read, *expansion]
    assert set(found[5:]) <= set(read)
    sim.run_for(seconds=600)
    assert requests(sim, since_s).count("PATCH status") == 2
    assert sim.phase("db") == "Running"


def test_the_claim_of_an_event_is_the_one_that_was_written() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim)
    grow(sim)
    sim.run_for(seconds=RESYNC_S)
    [about] = [
        each["involvedObject"]
        for each in sim.events()
        if each["involvedObject"]["kind"] == "PersistentVolumeClaim"
    ]
    stored = sim.server.get("persistentvolumeclaims", "data", "default")["metadata"]
    assert about["uid"] == stored["uid"]
    assert about["namespace"] == "default"
    assert 0 < int(about["resourceVersion"]) < int(stored["resourceVersion"])


def test_a_volume_that_grew_before_is_expanded_as_it_is_mounted() -> None:
    sim = model_with(nodeExpansion=True)
    grow(sim)
    since_s = sim.now_s
    run_pod(sim)
    assert status_of(sim)["capacity"] == {"storage": "2Gi"}
    both = {"Pod": SUCCEEDED, "PersistentVolumeClaim": SUCCEEDED}
    assert told(sim, "FileSystemResizeSuccessful") == both
    claims = "GET persistentvolumeclaims"
    assert requests(sim, since_s) == [
        *(claims, "GET persistentvolumes"),
        claims,  # the size, before it is attached
        *(claims, "PATCH status", "PATCH status"),
        claims,  # the reconciler knows the size of before, and looks
        *(claims, "GET persistentvolumes"),  # for the sync that finds the container running
    ]


def test_a_driver_that_does_it_all_needs_nothing_of_the_node() -> None:
    sim = model_with()
    run_pod(sim)
    shape(sim, "2Gi", "2Gi", allocatedResources={"storage": "2Gi"})
    since_s = sim.now_s
    sim.run_for(seconds=RESYNC_S)
    read = ["GET persistentvolumeclaims", "GET persistentvolumes"]
    assert requests(sim, since_s)[:3] == [*read, read[0]]
    sim.run_for(seconds=RESYNC_S)
    found = requests(sim, since_s)
    assert found.count(read[0]) == found.count(read[1]) + 1
    assert not told(sim, "FileSystemResizeSuccessful")


def test_a_refused_expansion_is_told_and_tried_again_until_it_succeeds() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim, annotations={"fleet.emulator/expand-error": "the disk is busy"})
    grow(sim)
    sim.run_for(seconds=RESYNC_S)
    error = f"{EXPANDER} : rpc error: code = Internal desc = the disk is busy"
    assert told(sim, "VolumeResizeFailed") == {"Pod": FAILED + error}
    status = status_of(sim)
    assert status["capacity"] == {"storage": "1Gi"}
    assert status["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}
    [failed] = [each for each in status["conditions"] if each["type"] == "NodeResizeError"]
    assert failed["message"] == f"failed to expand pvc with {error}"
    assert sim.phase("db") == "Running"
    mend(sim)
    sim.run_for(seconds=130)  # the back-off is 122 s at most
    status = status_of(sim)
    assert status["capacity"] == {"storage": "2Gi"}
    assert not status.get("conditions")


def test_what_is_infeasible_waits_for_its_controller() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim, annotations={"fleet.emulator/expand-error": "OutOfRange: too large"})
    grow(sim)
    sim.run_for(seconds=RESYNC_S)
    status = status_of(sim)
    assert status["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
    error = f"{EXPANDER} rpc error: code = OutOfRange desc = too large"
    assert told(sim, "VolumeResizeFailed") == {"Pod": FAILED + error}
    since_s = sim.now_s
    sim.run_for(seconds=10)  # the reconciler looks at each of its turns
    found = requests(sim, since_s)
    assert 80 <= found.count("GET persistentvolumeclaims") <= 102
    assert "PATCH status" not in found
    mend(sim)
    grow(sim)
    sim.run_for(seconds=2)
    assert status_of(sim)["capacity"] == {"storage": "2Gi"}


def test_a_volume_that_waits_to_be_expanded_is_mounted_for_another_pod() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim, annotations={"fleet.emulator/expand-error": "OutOfRange: too large"})
    grow(sim)
    sim.run_for(seconds=RESYNC_S)
    assert "NodeResizeInfeasible" in str(status_of(sim))
    sim.create_pod("two", volumes=[DATA])
    sim.run_for(seconds=20)
    assert sim.phase("two") == "Running"
    since_s = sim.now_s
    sim.run_for(seconds=RESYNC_S)
    assert requests(sim, since_s).count("GET persistentvolumeclaims") > 300  # it still waits


def test_a_volume_that_is_not_expanded_in_use_is_left_alone() -> None:
    sim = model_with(nodeExpansion=True)
    notes = {"fleet.emulator/expand-error": "FailedPrecondition: it is in use"}
    run_pod(sim, annotations=notes)
    grow(sim)
    sim.run_for(seconds=RESYNC_S)
    assert not told(sim, "VolumeResizeFailed")
    assert "NodeResizeError" in [each["type"] for each in status_of(sim)["conditions"]]
    since_s = sim.now_s
    sim.run_for(seconds=300)
    assert "PATCH status" not in requests(sim, since_s)


def test_an_error_keeps_a_pod_from_its_volume() -> None:
    sim = model_with(nodeExpansion=True)
    grow(sim)
    notes = {"fleet.emulator/expand-error": "the disk is busy"}
    sim.create_pod("db", volumes=[DATA], annotations=notes)
    attach_in_turn(sim, 5)
    assert sim.phase("db") == "Pending"
    [text] = sim.said("FailedMount")
    start = 'MountVolume.Setup failed while expanding volume for volume "pv-1" : '
    assert text.startswith(start + EXPANDER)
    mend(sim)
    sim.run_for(seconds=60)
    assert sim.phase("db") == "Running"
    assert status_of(sim)["capacity"] == {"storage": "2Gi"}


@pytest.mark.parametrize("modes", [["ReadWriteOnce"], ["ReadWriteMany"]])
def test_each_node_of_a_shared_volume_expands_it(modes: list[str]) -> None:
    sim = model_with(nodeExpansion=True)
    sim.server.update("persistentvolumeclaims", "data", {"spec": {"accessModes": modes}}, "default")
    run_pod(sim)
    shape(sim, "2Gi", "2Gi", allocatedResources={"storage": "2Gi"})  # another node was first
    since_s = sim.now_s
    sim.run_for(seconds=RESYNC_S)
    assert "PATCH status" not in requests(sim, since_s)
    is_shared = modes == ["ReadWriteMany"]
    assert bool(told(sim, "FileSystemResizeSuccessful")) is is_shared


def test_an_older_resizer_is_taken_at_its_volume_s_word() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim)
    shape(sim, "2Gi", "1Gi", conditions=PENDING)
    since_s = sim.now_s
    sim.run_for(seconds=RESYNC_S)
    assert status_of(sim)["capacity"] == {"storage": "2Gi"}
    assert not status_of(sim).get("conditions")
    assert requests(sim, since_s).count("PATCH status") == 1


def test_a_claim_that_changes_meanwhile_is_read_again() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim, annotations={"fleet.emulator/mount-delay": "1s"})
    grow(sim)
    sim.server.throttles["PATCH"] = 0
    for _ in range(RESYNC_S * 20):
        if "NodeResizeInProgress" in str(status_of(sim)):
            break
        sim.run_for(seconds=0.05)
    note = {"metadata": {"annotations": {"touched": "yes"}}}
    sim.server.update("persistentvolumeclaims", "data", note, "default")
    sim.run_for(seconds=5)
    [text] = told(sim, "VolumeResizeFailed").values()
    assert "update pvc status failed: patchPVCStatus failed to patch PVC" in text
    assert status_of(sim)["capacity"] == {"storage": "2Gi"}


def test_a_claim_that_is_read_only_is_not_expanded() -> None:
    sim = model_with(nodeExpansion=True)
    grow(sim)
    source = {"claimName": "data", "readOnly": True}
    sim.create_pod("db", volumes=[{"name": "data", "persistentVolumeClaim": source}])
    attach_in_turn(sim, 5)
    assert sim.phase("db") == "Running"
    text = 'MountVolume.NodeExpandVolume failed for volume "pv-1" requested read-only file system'
    both = {"Pod": text, "PersistentVolumeClaim": text}
    assert told(sim, "FileSystemResizeFailed") == both
    sim.run_for(seconds=RESYNC_S)
    assert status_of(sim)["capacity"] == {"storage": "1Gi"}


def test_a_pod_that_goes_takes_its_expansion_along() -> None:
    sim = model_with(nodeExpansion=True)
    run_pod(sim, annotations={"fleet.emulator/expand-error": "the disk is busy"})
    grow(sim)
    sim.run_for(seconds=RESYNC_S)
    sim.server.delete_pod("db", grace_s=1)
    sim.run_for(seconds=30)
    assert sim.kubelet().pods is None
    sim.server.remove(("volumeattachments", "", ATTACHMENT))
    sim.server.update("nodes", "n-0", {"status": {"volumesAttached": []}})
    sim.run_for(seconds=20)
    run_pod(sim)
    assert status_of(sim)["capacity"] == {"storage": "2Gi"}
    assert UNIQUE in sim.server.get("nodes", "n-0")["status"]["volumesInUse"]
