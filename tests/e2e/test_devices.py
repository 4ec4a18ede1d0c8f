"""Devices of nodes on a real control plane: who gets them, and what is told when one fails."""

from collections.abc import Iterator

import pytest
import yaml

from e2e.e2e_world import Json, Running, World, eventually

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE = "adm-00000"
GPU = "nvidia.com/gpu"
DRIVER = "fpga.example.com"
PROFILE: Json = {
    "apiVersion": "fleet.emulator/v1alpha1",
    "kind": "NodeProfile",
    "metadata": {"name": "adm"},
    "spec": {
        "devices": [
            {"resource": GPU, "count": 2, "idPrefix": "GPU-", "registrationDelay": "1s"},
        ],
        "dynamicResources": [
            {
                "driver": DRIVER,
                "count": 2,
                "namePrefix": "fpga-",
                "attributes": {"model": "F1"},
                "registrationDelay": "1s",
            },
        ],
        "kubeletConfiguration": {"nodeStatusUpdateFrequency": "1s"},
    },
}


@pytest.fixture(scope="module")
def fleet(world: World) -> Iterator[Running]:
    """Two nodes with two GPUs and two FPGAs each."""
    path = world.root / "adm.yaml"
    path.write_text(yaml.safe_dump(PROFILE))
    with world.spawn("adm", 2, f"--profile={path}") as run:
        run.until_ready()
        yield run
        run.end_well_or_late()
    eventually(lambda: not world.items("resourceslices"), "what the nodes published is gone")
    world.assert_nothing_left("adm")


def pod(name: str, container: Json | None = None, node: str = NODE, **spec: object) -> Json:
    """Return a pod that is bound by hand, as no scheduler would."""
    main = {"name": "c", "image": "registry.k8s.io/pause:3.10.1", **(container or {})}
    labels = spec.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"test": "admission", **labels}},  # type: ignore[dict-item]
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [main],
            **spec,
        },
    }


def asks(**amounts: str) -> Json:
    """Return requests; `gpu` stands for the device plugin's resource."""
    gpu = amounts.pop("gpu", "")
    requests = {name.replace("_", "-"): text for name, text in amounts.items()}
    if gpu:
        return {"resources": {"limits": {GPU: gpu}, "requests": {GPU: gpu}}}
    return {"resources": {"requests": requests}}


def end(world: World) -> None:
    world.kubectl("delete", "pods", "-l", "test=admission", "--wait=true")


def phases(world: World) -> dict[str, str]:
    found = world.items("pods", "-l", "test=admission")
    return {each["metadata"]["name"]: each["status"]["phase"] for each in found}


def gpus(world: World, node: str = NODE) -> tuple[str, str]:
    status = world.get("node", node)["status"]
    return status["capacity"].get(GPU, ""), status["allocatable"].get(GPU, "")


@pytest.mark.usefixtures("fleet")
def test_a_gpu_fails_under_its_pod(world: World) -> None:
    """Capacity counts it still, the pod's status tells, and no other pod gets it."""
    eventually(lambda: gpus(world) == ("2", "2"), "the device plugin has registered")
    world.apply(pod("first", asks(gpu="1")))
    world.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=120s")

    def health() -> list[tuple[str, str]]:
        [status] = world.get("pod", "first")["status"]["containerStatuses"]
        [told] = status["allocatedResourcesStatus"]
        assert told["name"] == GPU
        return [(each["resourceID"], each["health"]) for each in told["resources"]]

    [(device, state)] = health()
    assert device.startswith("GPU-")
    assert state == "Healthy"
    note = f"fleet.emulator/fault=DeviceFailure resource={GPU} count=1"
    world.kubectl("annotate", "node", NODE, note)
    eventually(lambda: health() == [(device, "Unhealthy")], "the pod tells")
    eventually(lambda: gpus(world) == ("2", "1"), "the node tells")
    world.apply(pod("both", asks(gpu="2")), pod("second", asks(gpu="1")))
    world.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=120s")
    eventually(lambda: phases(world)["both"] == "Failed", "two are refused")
    assert world.get("pod", "both")["status"]["reason"] == "UnexpectedAdmissionError"
    world.kubectl("annotate", "node", NODE, "fleet.emulator/fault-")
    eventually(lambda: gpus(world) == ("2", "2"), "the device is well again")
    end(world)


def device_request(**claim: Json) -> Json:
    expression = f"device.attributes['{DRIVER}'].model == 'F1'"
    exactly = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": expression}}]}
    return {"devices": {"requests": [{"name": "fpga", "exactly": exactly}]}, **claim}


def uses(**source: str) -> Json:
    return {"resourceClaims": [{"name": "fpga", **source}]}


@pytest.mark.usefixtures("fleet")
def test_the_scheduler_allocates_a_device_and_its_pod_runs(world: World) -> None:
    """And a pod that was bound past the scheduler, with a claim of nobody's, does not."""
    eventually(lambda: len(world.items("resourceslices")) == 2, "both nodes publish devices")
    kind = {"apiVersion": "resource.k8s.io/v1"}
    expression = f"device.driver == '{DRIVER}'"
    template, claim = {"spec": device_request()}, device_request()
    container = {"resources": {"claims": [{"name": "fpga"}]}}
    train = pod("train", container, **uses(resourceClaimTemplateName="fpga"))
    del train["spec"]["nodeName"]
    world.apply(
        {
            **kind,
            "kind": "DeviceClass",
            "metadata": {"name": DRIVER},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        },
        {**kind, "kind": "ResourceClaimTemplate", "metadata": {"name": "fpga"}, "spec": template},
        {**kind, "kind": "ResourceClaim", "metadata": {"name": "free"}, "spec": claim},
        train,
        pod("thief", container, **uses(resourceClaimName="free")),
    )
    world.kubectl("wait", "--for=condition=Ready", "pod/train", "--timeout=120s")
    found = world.get("pod", "train")
    [named] = found["status"]["resourceClaimStatuses"]
    claimed = world.get("resourceclaim", named["resourceClaimName"])
    [result] = claimed["status"]["allocation"]["devices"]["results"]
    assert result["pool"] == found["spec"]["nodeName"]
    [status] = found["status"]["containerStatuses"]
    device = f"{DRIVER}/{result['pool']}/{result['device']}"
    shown = {"name": "claim:fpga", "resources": [{"health": "Unknown", "resourceID": device}]}
    assert status["allocatedResourcesStatus"] == [shown]
    thief, free = world.get("pod", "thief"), world.get("resourceclaim", "free")
    about = "--field-selector=involvedObject.name=thief,reason=FailedPrepareDynamicResources"
    eventually(lambda: world.items("events", about), "the refusal")
    assert world.items("events", about)[0]["message"] == (
        "Failed to prepare dynamic resources: prepare dynamic resources: "
        f"pod thief ({thief['metadata']['uid']}) is not allowed to use "
        f"ResourceClaim free ({free['metadata']['uid']})"
    )
    assert thief["status"]["phase"] == "Pending"
    end(world)
