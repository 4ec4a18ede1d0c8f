"""Dynamic resources in virtual time: slices of drivers that come and go, claims of pods."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

from fleet.k8s.effects import NodeId

pytest_plugins = ("sim_encodings",)

DRIVER = "gpu.example.com"


def started(seconds: float = 60, *, light: bool = False, **driver: object) -> Simulation:
    spec = {"driver": DRIVER, "count": 2, "registrationDelay": "20s", **driver}
    sim = Simulation(seed=4, light=light, model=model_of(dynamicResources=[spec]))
    sim.run_for(seconds=seconds)
    return sim


def slices(sim: Simulation) -> list[Object]:
    return sim.server.all("resourceslices")


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_a_driver_publishes_its_devices_once_it_has_registered(*, light: bool) -> None:
    attributes = {"uuid": "{{name}}/{{index}}", "ecc": True, "generation": 5}
    sim = started(19, light=light, attributes=attributes, capacity={"memory": "80Gi"})
    assert slices(sim) == []
    sim.run_for(seconds=2)
    [found] = slices(sim)
    [owner] = found["metadata"]["ownerReferences"]
    assert owner["uid"] == sim.server.get("nodes", "n-0")["metadata"]["uid"]
    assert owner["controller"] is True
    assert found["metadata"]["name"].startswith("00000-gpu.example.com-n-0-")
    spec = found["spec"]
    assert spec["pool"] == {"name": "n-0", "generation": 1, "resourceSliceCount": 1}
    assert (spec["driver"], spec["nodeName"]) == (DRIVER, "n-0")
    assert [each["name"] for each in spec["devices"]] == ["device-0", "device-1"]
    assert spec["devices"][1]["attributes"] == {
        "uuid": {"string": "n-0/1"},
        "ecc": {"bool": True},
        "generation": {"int": 5},
    }
    assert spec["devices"][1]["capacity"] == {"memory": {"value": "80Gi"}}
    sim.run_for(seconds=600)
    assert slices(sim) == [found]


def test_a_slice_that_somebody_deletes_comes_back_after_30_s() -> None:
    sim = started()
    [found] = slices(sim)
    sim.server.remove(("resourceslices", "", found["metadata"]["name"]))
    sim.run_for(seconds=29)
    assert slices(sim) == []
    sim.run_for(seconds=2)
    [again] = slices(sim)
    assert again["spec"] == found["spec"]
    assert again["metadata"]["uid"] != found["metadata"]["uid"]


def test_the_slices_of_a_driver_that_went_are_wiped_after_30_s() -> None:
    sim = started(99, pluginOutages=[{"after": "100s", "duration": "100s"}])
    watches = sim.server.open_watches
    sim.run_for(seconds=29)
    assert len(slices(sim)) == 1
    assert sim.server.open_watches == watches - 1
    sim.run_for(seconds=5)
    assert slices(sim) == []
    wiped = sim.calls(verb="DELETECOLLECTION", path="spec.driver%3Dgpu.example.com")
    assert len(wiped) == 1
    sim.run_for(seconds=70)
    assert len(slices(sim)) == 1


def test_a_driver_that_is_back_in_time_keeps_its_slices() -> None:
    sim = started(300, pluginOutages=[{"after": "100s", "duration": "20s"}])
    assert len(slices(sim)) == 1
    assert sim.calls(verb="DELETECOLLECTION", path="spec.driver") == []


def claim(sim: Simulation, name: str, pod_uid: str, *, owner: str = "", **status: object) -> None:
    result = {"request": "gpu", "driver": DRIVER, "pool": "n-0", "device": "device-1"}
    owners = [{"kind": "Pod", "uid": owner, "controller": True}] if owner else []
    obj = {
        "metadata": {"ownerReferences": owners},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "uid": pod_uid}],
            **status,
        },
    }
    stored = sim.server.create(("resourceclaims", "default", name), obj)
    assert stored is not None


def pod(sim: Simulation, name: str, **source: str) -> str:
    container = {"name": "c", "image": "nginx:1", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", **source}]
    return sim.create_pod(name, containers=[container], resourceClaims=claims)


def errors(sim: Simulation, about: str) -> list[str]:
    start = "Failed to prepare dynamic resources: prepare dynamic resources: "
    found = [str(each["message"]) for each in sim.events("FailedPrepareDynamicResources", about)]
    assert all(each.startswith(start) for each in found)
    return [each.removeprefix(start) for each in found]


def test_a_claim_is_read_before_the_sandbox_and_its_device_shown() -> None:
    sim = started()
    uid = pod(sim, "train", resourceClaimName="mine")
    claim(sim, "mine", uid)
    sim.run_for(seconds=5)
    assert sim.phase("train") == "Running"
    [read] = sim.calls(verb="GET", path="/resourceclaims/mine")
    sandboxed = sim.calls(verb="PATCH", path="/pods/train/status")[1]
    assert read.t_ns < sandboxed.t_ns
    [status] = sim.status("train")["containerStatuses"]
    assert status["allocatedResourcesStatus"] == [
        {
            "name": "claim:gpu",
            "resources": [{"health": "Unknown", "resourceID": f"{DRIVER}/n-0/device-1"}],
        }
    ]


def health(sim: Simulation, name: str = "train") -> list[Object]:
    [status] = sim.status(name)["containerStatuses"]
    [found] = status["allocatedResourcesStatus"]
    resources: list[Object] = found["resources"]
    return resources


def test_a_driver_with_a_health_service_says_how_devices_are() -> None:
    changes = [
        {"after": "100s", "devices": [0]},
        {"after": "200s", "devices": [1], "message": "ECC errors"},
        {"after": "300s", "state": "Unknown"},
        {"after": "400s", "state": "Healthy"},
    ]
    sim = started(health=changes, pluginOutages=[{"after": "500s", "duration": "60s"}])
    uid = pod(sim, "train", resourceClaimName="mine")
    claim(sim, "mine", uid)
    sim.run_for(seconds=5)
    shown = {"health": "Healthy", "resourceID": f"{DRIVER}/n-0/device-1"}
    assert health(sim) == [shown]
    sim.run_for(seconds=60)
    patched = len(sim.calls(verb="PATCH", path="/pods/train/status"))
    assert health(sim) == [shown]
    sim.run_for(seconds=76)  # at 201 s: the other device changes no pod, this one does at once
    assert health(sim) == [{**shown, "health": "Unhealthy", "message": "ECC errors"}]
    assert len(sim.calls(verb="PATCH", path="/pods/train/status")) == patched + 1
    sim.run_for(seconds=100)
    assert health(sim) == [{**shown, "health": "Unknown"}]
    sim.run_for(seconds=100)
    assert health(sim) == [shown]
    sim.run_for(seconds=190)  # what a driver that went had said is forgotten
    assert health(sim) == [shown]


def test_the_health_of_a_device_of_another_pool_is_unknown() -> None:
    sim = started(health=[])
    uid = pod(sim, "train", resourceClaimName="mine")
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}
        for pool, device in (("n-0", "device-9"), ("shared", "device-1"), ("n-0", "device-0"))
    ]
    results.append({**results[-1], "request": "again"})
    claim(sim, "mine", uid, allocation={"devices": {"results": results}})
    sim.run_for(seconds=5)
    assert [each["health"] for each in health(sim)] == ["Unknown", "Unknown", "Healthy"]


def test_a_claim_that_is_missing_holds_its_pod_back_until_the_next_resync() -> None:
    sim = started()
    uid = pod(sim, "train", resourceClaimName="mine")
    sim.run_for(seconds=5)
    assert sim.phase("train") == "Pending"
    assert len(errors(sim, "train")) == 1
    assert errors(sim, "train")[0].startswith("fetch ResourceClaim mine: ")
    claim(sim, "mine", uid)
    sim.run_for(seconds=50)
    assert sim.phase("train") == "Pending"
    sim.run_for(seconds=40)
    assert sim.phase("train") == "Running"


def test_a_claim_that_is_not_the_pods_is_refused() -> None:
    sim = started()
    other, late = (
        pod(sim, "other", resourceClaimName="taken"),
        pod(sim, "late", resourceClaimTemplateName="t"),
    )
    claim(sim, "taken", "nobody")
    sim.run_for(seconds=5)
    uid = sim.server.get("resourceclaims", "taken", "default")["metadata"]["uid"]
    assert errors(sim, "other") == [
        f"pod other ({other}) is not allowed to use ResourceClaim taken ({uid})"
    ]
    assert errors(sim, "late") == ['pod "default/late": ResourceClaim not created yet']
    claim(sim, "late-gpu-x", late, owner="somebody")
    named = [{"name": "gpu", "resourceClaimName": "late-gpu-x"}]
    sim.server.update("pods", "late", {"status": {"resourceClaimStatuses": named}}, "default")
    sim.run_for(seconds=100)
    assert errors(sim, "late")[1:] == [
        "ResourceClaim default/late-gpu-x was not created for Pod default/late (Pod is not owner)"
    ]


def test_a_claim_needs_its_driver() -> None:
    sim = started(pluginOutages=[{"after": "50s"}])
    uid = pod(sim, "train", resourceClaimName="mine")
    claim(sim, "mine", uid)
    free = pod(sim, "free", resourceClaimName="free")
    claim(sim, "free", free, allocation=None)
    sim.run_for(seconds=5)
    assert errors(sim, "train") == [f"DRA driver {DRIVER} is not registered"]
    assert errors(sim, "free") == ["ResourceClaim free: not allocated"]


def test_a_driver_can_fail() -> None:
    sim = started(prepareError="no such device")
    uid = pod(sim, "train", resourceClaimName="mine")
    claim(sim, "mine", uid)
    sim.run_for(seconds=5)
    text = "NodePrepareResources failed for ResourceClaim mine: no such device"
    assert errors(sim, "train") == [text]
    sim.server.delete_pod("train")
    sim.run_for(seconds=60)
    assert sim.phase("train") == ""


def test_the_devices_of_a_claim_are_given_back_before_an_end_is_told() -> None:
    """A claim that another pod has still shows its devices. Source: SyncTerminatingPod."""
    sim = started(health=[])
    container = {"name": "c", "image": "nginx:1", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": "mine"}]
    users = []
    for name, deadline_s in (("first", 20), ("last", 60)):
        uid = sim.create_pod(
            name,
            containers=[container],
            resourceClaims=claims,
            activeDeadlineSeconds=deadline_s,
        )
        users.append({"resource": "pods", "uid": uid})
    claim(sim, "mine", "", reservedFor=users)
    sim.run_for(seconds=5)
    assert health(sim, "first") == health(sim, "last") != []
    sim.run_for(seconds=120)
    for name, is_shown in (("first", True), ("last", False)):
        assert sim.phase(name) == "Failed"
        [status] = sim.status(name)["containerStatuses"]
        assert "terminated" in status["state"]
        assert ("allocatedResourcesStatus" in status) is is_shown


def test_claims_stay_prepared_when_a_kubelet_restarts() -> None:
    """They are in its checkpoint, and are not read again."""
    sim = started(health=[])
    uid = pod(sim, "train", resourceClaimName="mine")
    claim(sim, "mine", uid)
    sim.run_for(seconds=5)
    shown = health(sim)
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=100)
    assert health(sim) == shown
    assert len(sim.calls(verb="GET", path="/resourceclaims/mine")) == 1
