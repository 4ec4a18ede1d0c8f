"""What a node refuses on the real control plane, whom it displaces, and who gets its devices."""

from collections.abc import Iterator

import pytest
import yaml
from e2e_world import Json, Running, World, condition, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE = "adm-00000"
GPU = "nvidia.com/gpu"
DRIVER = "fpga.example.com"
PROFILE: Json = {
    "apiVersion": "fleet.emulator/v1alpha1",
    "kind": "NodeProfile",
    "metadata": {"name": "adm"},
    "spec": {
        "template": {
            "status": {
                "capacity": {"cpu": "4", "memory": "8Gi"},
                "features": {"supplementalGroupsPolicy": False},
            }
        },
        "appArmor": False,
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
        "kubeletConfiguration": {
            "maxPods": 20,
            "nodeStatusUpdateFrequency": "1s",
            "featureGates": {
                "PodLevelResources": False,
                "RestartAllContainersOnContainerExits": False,
            },
        },
    },
}


@pytest.fixture(scope="module")
def fleet(world: World) -> Iterator[Running]:
    """Two nodes with four CPUs and two GPUs each."""
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


def text_of(resource: str, requested: int, used: int, capacity: int) -> str:
    amounts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return f"Node didn't have enough resource: {resource}, {amounts}"


MEMORY = (8 << 30) - (100 << 20)
DISK = 96_636_764_000  # 100Gi less 10 %, as a float32
TWO_RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [9]}}]
TOO_FEW = f"requested number of devices unavailable for {GPU}. Requested: 3, Available: 2"
REFUSED: dict[str, tuple[Json, str, str]] = {
    "cpu": (pod("cpu", asks(cpu="3")), "OutOfcpu", text_of("cpu", 3000, 1500, 4000)),
    "memory": (
        pod("memory", asks(memory="8Gi")),
        "OutOfmemory",
        text_of("memory", 8 << 30, 0, MEMORY),
    ),
    "disk": (
        pod("disk", asks(ephemeral_storage="1Ti")),
        "OutOfephemeral-storage",
        text_of("ephemeral-storage", 1 << 40, 0, DISK),
    ),
    "label": (
        pod("label", nodeSelector={"disk": "ssd"}),
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    ),
    "port": (
        pod("port", {"ports": [{"containerPort": 80, "hostPort": 8080}]}),
        "NodePorts",
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
    ),
    "os": (
        pod("os", os={"name": "windows"}),
        "PodOSNotSupported",
        "Failed to admit pod as the OS field doesn't match node OS",
    ),
    "os-label": (
        pod("os-label", labels={"kubernetes.io/os": "windows"}),
        "PodOSSelectorNodeLabelDoesNotMatch",
        "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    ),
    "sysctl": (
        pod("sysctl", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
        "SysctlForbidden",
        'forbidden sysctl: "kernel.msgmax" not allowlisted',
    ),
    "app-armor": (
        pod("app-armor", securityContext={"appArmorProfile": {"type": "RuntimeDefault"}}),
        "AppArmor",
        "Cannot enforce AppArmor: AppArmor is not enabled on the host",
    ),
    "groups": (
        pod("groups", securityContext={"supplementalGroupsPolicy": "Strict"}),
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    ),
    "pod-level": (
        pod("pod-level", resources={"requests": {"cpu": "100m"}}),
        "PodLevelResourcesNotSupported",
        "PodLevelResources feature gate is disabled",
    ),
    "feature": (
        pod("feature", {"restartPolicy": "Never", "restartPolicyRules": TWO_RULES}),
        "PodFeatureUnsupported",
        "Pod requires node features that are not available: RestartAllContainersOnContainerExits",
    ),
    "gpu": (
        pod("gpu", asks(gpu="3")),
        "UnexpectedAdmissionError",
        f"Allocate failed due to {TOO_FEW}, which is unexpected",
    ),
}


def phases(world: World) -> dict[str, str]:
    found = world.items("pods", "-l", "test=admission")
    return {each["metadata"]["name"]: each["status"]["phase"] for each in found}


def gpus(world: World, node: str = NODE) -> tuple[str, str]:
    status = world.get("node", node)["status"]
    return status["capacity"].get(GPU, ""), status["allocatable"].get(GPU, "")


def refusals(world: World) -> dict[str, Json]:
    """Return the warnings of our node's kubelet about pods, by their names."""
    found = world.items("events", "--field-selector=involvedObject.kind=Pod,type=Warning")
    mine = [each for each in found if each["source"].get("host") == NODE]
    return {each["involvedObject"]["name"]: each for each in mine}


@pytest.mark.usefixtures("fleet")
def test_a_node_refuses_what_it_cannot_run_and_says_why(world: World) -> None:
    holder = pod(
        "holder", {**asks(cpu="1500m"), "ports": [{"containerPort": 80, "hostPort": 8080}]}
    )
    world.apply(holder)
    world.kubectl("wait", "--for=condition=Ready", "pod/holder", "--timeout=120s")
    eventually(lambda: gpus(world) == ("2", "2"), "the device plugin has registered")
    world.apply(*(wanted for wanted, _, _ in REFUSED.values()))
    eventually(lambda: [*phases(world).values()].count("Failed") == len(REFUSED), "all are refused")
    eventually(lambda: refusals(world).keys() >= REFUSED.keys(), "their events")
    events = refusals(world)
    pods = {each["metadata"]["name"]: each for each in world.items("pods", "-l", "test=admission")}
    for name, (_, reason, text) in REFUSED.items():
        status, event = pods[name]["status"], events[name]
        assert (status["reason"], status["message"]) == (reason, f"Pod was rejected: {text}"), name
        assert status["startTime"], name
        assert status["qosClass"], name
        assert "containerStatuses" not in status, name
        assert condition(pods[name], "Ready") == "", name
        assert (event["reason"], event["message"], event["count"]) == (reason, text, 1)
        assert event["source"] == {"component": "kubelet", "host": NODE}
    assert "Reason:           OutOfcpu" in world.kubectl("describe", "pod", "cpu")
    assert phases(world)["holder"] == "Running"
    end(world)


@pytest.mark.usefixtures("fleet")
def test_no_execute_taints_keep_pods_out(world: World) -> None:
    world.kubectl("taint", "node", "adm-00001", "gone=:NoExecute")
    try:
        world.apply(pod("tainted", node="adm-00001"))  # its eviction follows at once
        about = "--field-selector=involvedObject.name=tainted,reason=TaintToleration"
        eventually(lambda: world.items("events", about), "the refusal")
        [event] = world.items("events", about)
        assert event["message"] == (
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
        )
    finally:
        world.kubectl("taint", "node", "adm-00001", "gone-")
        world.kubectl("delete", "pod", "tainted", "--ignore-not-found")


@pytest.mark.usefixtures("fleet")
def test_a_critical_pod_displaces_others(world: World) -> None:
    low = pod("low", asks(cpu="3"), terminationGracePeriodSeconds=5)
    # A status that says Failed goes out as the kill begins; it ends after that is on its way.
    low["metadata"]["annotations"] = {"fleet.emulator/stop-time": "1.5s"}
    world.apply(low, pod("tiny", asks(cpu="100m")))
    world.kubectl("wait", "--for=condition=Ready", "pod/low", "pod/tiny", "--timeout=120s")
    world.apply(pod("critical", asks(cpu="2"), priorityClassName="system-node-critical"))
    world.kubectl("wait", "--for=condition=Ready", "pod/critical", "--timeout=120s")
    displaced = {"low": "Succeeded", "tiny": "Running", "critical": "Running"}
    eventually(lambda: phases(world) == displaced, "one has made room")
    status = world.get("pod", "low")["status"]
    assert "reason" not in status  # its container exited with 0: a real kubelet says no more
    assert condition({"status": status}, "DisruptionTarget") == "True"
    end(world)


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


@pytest.mark.usefixtures("fleet")
def test_a_full_node_and_a_resource_that_a_user_advertised(world: World) -> None:
    """The 21st pod of a node for 20, and the fourth dongle of three."""
    node = "adm-00001"
    advertised = '{"status":{"capacity":{"x.io/dongle":"3"}}}'
    world.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", advertised)
    world.apply(*(pod(f"full-{index}", node=node) for index in range(21)))

    def allocatable() -> Json:
        found: Json = world.get("node", node)["status"]["allocatable"]
        return found

    eventually(lambda: allocatable().get("x.io/dongle") == "3", "the kubelet follows")
    eventually(lambda: "Pending" not in phases(world).values(), "all pods are decided")
    [refused] = [
        each
        for each in world.items("pods", "-l", "test=admission")
        if each["status"]["phase"] == "Failed"
    ]
    assert refused["status"]["reason"] == "OutOfpods"
    assert refused["status"]["message"] == f"Pod was rejected: {text_of('pods', 1, 20, 20)}"
    end(world)
    dongles = {"x.io/dongle": "4"}
    world.apply(pod("dongles", {"resources": {"limits": dongles, "requests": dongles}}, node=node))
    eventually(lambda: phases(world) == {"dongles": "Failed"}, "it is refused")
    status = world.get("pod", "dongles")["status"]
    assert status["reason"] == "OutOfx.io/dongle"
    assert status["message"] == f"Pod was rejected: {text_of('x.io/dongle', 4, 0, 3)}"
    end(world)
