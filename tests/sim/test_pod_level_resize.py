"""Resizes of a pod's own resources in virtual time: what is admitted, applied, told, kept."""

import pytest
from world.pod_world import model_of
from world.sim_faults import ConnectionsRefused
from world.simulation import Simulation
from world.strategic_merge import Object

from fleet.k8s.effects import NodeId
from fleet.profile.node_model import NodeModel

pytest_plugins = ("sim_encodings",)

GATE = "InPlacePodLevelResourcesVerticalScaling"
USAGE = "fleet.emulator/memory-usage"
DISK = "fleet.emulator/ephemeral-storage-usage"
ERROR = "fleet.emulator/resize-error"


def own(cpu: str, memory: str = "256Mi", limit: str = "") -> Object:
    """Return resources of a pod itself; its limit of memory is its request unless given."""
    return {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"cpu": cpu, "memory": limit or memory},
    }


def node(model: NodeModel | None = None) -> Simulation:
    """Return a node of 8 CPUs."""
    return Simulation(seed=1, model=model).run_for(60)


def run(sim: Simulation, name: str, resources: Object | None, **spec: object) -> None:
    """Have a pod run; its container has no resources unless they are given."""
    container = {"name": "c", "image": "nginx:1", **spec.pop("container", {})}  # type: ignore[dict-item]
    if resources is not None:
        spec["resources"] = resources
    sim.create_pod(name, "n-0", containers=[container], **spec)
    sim.run_for(10)
    assert sim.phase(name) == "Running"


def resize(sim: Simulation, name: str, resources: Object) -> None:
    """Do what a PATCH of pods/resize does."""
    generation = sim.server.get("pods", name, "default")["metadata"].get("generation", 1) + 1
    changed = {"metadata": {"generation": generation}, "spec": {"resources": resources}}
    sim.server.update("pods", name, changed, "default")


def condition(sim: Simulation, name: str, kind: str) -> Object:
    conditions = sim.status(name)["conditions"]
    found: Object = next((each for each in conditions if each["type"] == kind), {})
    return found


def told(sim: Simulation, name: str) -> list[str]:
    """Return the reasons of the events of a pod's resizes, oldest first."""
    return [
        each["reason"]
        for each in sim.events()
        if each["involvedObject"]["name"] == name and str(each["reason"]).startswith("Resize")
    ]


def test_it_waits_until_another_pod_ends() -> None:
    sim = node()
    run(sim, "web", own("3"))
    run(sim, "job", own("3"), container={"command": ["sleep", "60"]}, restartPolicy="Never")
    resize(sim, "web", own("6"))
    sim.run_for(5)
    found = condition(sim, "web", "PodResizePending")
    assert (found["status"], found["reason"], found["observedGeneration"]) == (
        "True",
        "Deferred",
        2,
    )
    assert found["message"].startswith("Node didn't have enough resource: cpu, requested: 6000, ")
    assert sim.status("web")["allocatedResources"]["cpu"] == "3"
    assert sim.status("web")["resources"]["limits"]["cpu"] == "3"
    sim.run_for(60)
    assert sim.phase("job") == "Succeeded"
    assert not condition(sim, "web", "PodResizePending")
    assert sim.status("web")["allocatedResources"]["cpu"] == "6"
    assert sim.status("web")["resources"]["limits"]["cpu"] == "6"
    assert told(sim, "web") == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]


def test_containers_that_have_no_limit_take_that_of_their_pod() -> None:
    sim = node()
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    run(sim, "web", own("1"), container={"resizePolicy": policy})
    resize(sim, "web", own("1", "256Mi", limit="512Mi"))
    sim.run_for(10)
    [container] = sim.status("web")["containerStatuses"]
    assert container["restartCount"] == 1
    killing = [each["message"] for each in sim.events("Killing")]
    assert killing == ["Container c resize requires restart"]
    assert told(sim, "web") == ["ResizeStarted", "ResizeCompleted"]
    resize(sim, "web", own("2", "256Mi", limit="512Mi"))
    sim.run_for(10)
    assert sim.status("web")["containerStatuses"][0]["restartCount"] == 1
    assert sim.status("web")["resources"]["limits"]["cpu"] == "2"


def test_a_container_is_told_with_the_limits_that_it_has_of_its_pod() -> None:
    sim = node()
    asked = {"limits": {"memory": "64Mi"}, "requests": {"memory": "64Mi"}}
    run(sim, "web", own("1"), container={"resources": asked})
    [container] = sim.status("web")["containerStatuses"]
    amounts = {"cpu": "1", "memory": "64Mi"}
    assert container["resources"] == {"limits": amounts, "requests": amounts}
    # What is updated has the least of shares, where it asks for none, and no more those of a limit.
    after = {"limits": {"cpu": "2", "memory": "64Mi"}, "requests": {"memory": "64Mi"}}
    resize(sim, "web", own("2"))
    sim.run_for(5)
    [container] = sim.status("web")["containerStatuses"]
    assert container["resources"] == after
    assert sim.reactor.restart([NodeId(0)]) == 1
    sim.run_for(20)
    [container] = sim.status("web")["containerStatuses"]
    assert container["resources"] == after


def test_without_the_gate_nothing_is_resized_and_nothing_told() -> None:
    sim = node(model_of(kubeletConfiguration={"featureGates": {GATE: False}}))
    run(sim, "web", own("1"))
    assert GATE not in sim.server.get("nodes", "n-0")["status"]["declaredFeatures"]
    resize(sim, "web", own("60"))  # an API server refuses it by what the node declares
    sim.run_for(10)
    assert "resources" not in sim.status("web")
    assert "allocatedResources" not in sim.status("web")
    assert not told(sim, "web")
    assert not condition(sim, "web", "PodResizePending")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cgroup_that_cannot_be_written_until_it_can(*, restarts: bool) -> None:
    sim = node()
    run(sim, "web", own("1"), annotations={ERROR: "cgroup is busy"})
    resize(sim, "web", own("2"))
    sim.run_for(20)
    if restarts:
        assert sim.reactor.restart([NodeId(0)]) == 1
        sim.run_for(20)
    found = condition(sim, "web", "PodResizeInProgress")
    assert (found["reason"], found["message"]) == ("Error", "cgroup is busy")
    assert found["observedGeneration"] == 2
    assert sim.status("web")["allocatedResources"]["cpu"] == "2"
    assert sim.status("web")["resources"]["limits"]["cpu"] == "1"
    sim.server.update("pods", "web", {"metadata": {"annotations": {ERROR: None}}}, "default")
    sim.run_for(30)
    assert not condition(sim, "web", "PodResizeInProgress")
    assert sim.status("web")["resources"]["limits"]["cpu"] == "2"
    assert told(sim, "web") == ["ResizeStarted", "ResizeError", "ResizeCompleted"]


def test_a_limit_below_what_is_used_waits_until_less_is_used() -> None:
    sim = node()
    run(sim, "web", own("1"), annotations={USAGE: "200Mi"})
    resize(sim, "web", own("1", "100Mi"))
    sim.run_for(20)
    found = condition(sim, "web", "PodResizeInProgress")
    assert found["reason"] == "Error"
    assert found["message"] == (
        "cannot decrease memory limits: "
        "[attempting to set pod memory limit (104857600) below current usage (209715200), "
        'attempting to set container "c" memory limit (104857600) below current usage (209715200)]'
    )
    assert sim.status("web")["resources"]["limits"]["memory"] == "256Mi"
    assert sim.status("web")["containerStatuses"][0]["restartCount"] == 0
    sim.server.update("pods", "web", {"metadata": {"annotations": {USAGE: "50Mi"}}}, "default")
    sim.run_for(30)
    assert not condition(sim, "web", "PodResizeInProgress")
    assert sim.status("web")["resources"]["limits"]["memory"] == "100Mi"
    # What is applied counts: the kernel kills what uses more from now on.
    sim.server.update("pods", "web", {"metadata": {"annotations": {USAGE: "150Mi"}}}, "default")
    sim.run_for(30)
    [container] = sim.status("web")["containerStatuses"]
    assert container["lastState"]["terminated"]["reason"] == "OOMKilled"


def test_a_kubelet_that_restarts_knows_what_it_had_allocated() -> None:
    sim = node()
    run(sim, "web", own("3"))
    run(sim, "other", own("4"))
    resize(sim, "web", own("6"))
    sim.run_for(5)
    before = condition(sim, "web", "PodResizePending")
    assert before["reason"] == "Deferred"
    assert sim.reactor.restart([NodeId(0)]) == 1
    sim.run_for(20)
    after = condition(sim, "web", "PodResizePending")
    assert (after["reason"], after["message"]) == ("Deferred", before["message"])
    assert sim.status("web")["allocatedResources"] == {"cpu": "3", "memory": "256Mi"}
    assert sim.status("web")["resources"]["limits"]["cpu"] == "3"
    assert sim.phase("other") == "Running"
    assert told(sim, "web") == ["ResizeDeferred"]
    sim.server.delete_pod("other")
    sim.run_for(40)
    assert not condition(sim, "web", "PodResizePending")
    assert sim.status("web")["allocatedResources"] == {"cpu": "6", "memory": "256Mi"}
    assert sim.status("web")["resources"]["limits"]["cpu"] == "6"
    assert told(sim, "web") == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]


def test_a_pod_that_waits_for_another_one_keeps_what_it_was_given() -> None:
    """The first is looked at again once its Node was read; no resize is tried before them all."""
    sim = node()
    sim.server.update("nodes", "n-0", {"metadata": {"labels": {"disk": "ssd"}}})
    run(sim, "first", None, nodeSelector={"disk": "ssd"})
    run(sim, "web", own("3"))
    run(sim, "other", own("4"))
    resize(sim, "web", own("6"))
    sim.run_for(5)
    before = condition(sim, "web", "PodResizePending")
    sim.server.update("nodes", "n-0", {"metadata": {"labels": {"disk": None}}})
    sim.run_for(5)
    assert sim.reactor.restart([NodeId(0)]) == 1
    sim.run_for(60)
    assert sim.events("NodeAffinity", "first")
    after = condition(sim, "web", "PodResizePending")
    assert (after["reason"], after["message"]) == ("Deferred", before["message"])
    assert sim.status("web")["allocatedResources"] == {"cpu": "3", "memory": "256Mi"}
    assert sim.phase("other") == "Running"
    assert told(sim, "web") == ["ResizeDeferred"]
    sim.server.delete_pod("other")
    sim.run_for(40)
    assert sim.status("web")["resources"]["limits"]["cpu"] == "6"
    assert told(sim, "web") == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]


def test_allocations_outlive_two_restarts_while_the_api_server_is_down() -> None:
    """What the node uses itself is watched from the start, before any pod is known."""
    sim = node(model_of(usage={"memory": {"curve": "Constant", "value": "1Gi"}}))
    run(sim, "web", own("3"))
    run(sim, "other", own("4"))
    resize(sim, "web", own("6"))
    sim.run_for(5)
    before = condition(sim, "web", "PodResizePending")
    sim.inject(ConnectionsRefused(), 60)
    for _ in range(2):
        assert sim.reactor.restart([NodeId(0)]) == 1
        sim.run_for(30)
    sim.run_for(30)
    after = condition(sim, "web", "PodResizePending")
    assert (after["reason"], after["message"]) == ("Deferred", before["message"])
    assert sim.status("web")["allocatedResources"] == {"cpu": "3", "memory": "256Mi"}
    assert told(sim, "web") == ["ResizeDeferred"]


def test_nothing_is_kept_of_pods_that_went_while_their_kubelet_was_down() -> None:
    sim = node()
    run(sim, "web", own("1"), annotations={ERROR: "cgroup is busy"})
    run(sim, "other", own("1"))
    resize(sim, "web", own("2"))
    sim.run_for(20)
    assert condition(sim, "web", "PodResizeInProgress")["reason"] == "Error"
    assert sim.reactor.restart([NodeId(0)]) == 1
    uid = sim.server.get("pods", "web", "default")["metadata"]["uid"]
    left = sim.env.allocations[0]
    assert uid in left.given
    assert uid in left.before
    assert uid in left.actuated
    sim.server.remove(("pods", "default", "web"))
    sim.run_for(20)
    assert sim.reactor.restart([NodeId(0)]) == 1
    left = sim.env.allocations[0]
    assert [each.name for each in left.given.values()] == ["other"]
    assert not left.before
    assert not left.actuated


def test_the_more_important_of_two_that_wait_is_first() -> None:
    sim = node()
    run(sim, "lesser", own("2"))
    run(sim, "greater", own("2"), priority=10)
    run(sim, "other", own("3"))
    for name in ("lesser", "greater"):
        resize(sim, name, own("4"))
        sim.run_for(5)
        assert condition(sim, name, "PodResizePending")["reason"] == "Deferred"
    resize(sim, "other", own("1"))  # asks for less: what others wait for is free at once
    sim.run_for(5)
    assert sim.status("greater")["allocatedResources"]["cpu"] == "4"
    assert condition(sim, "lesser", "PodResizePending")["reason"] == "Deferred"
    sim.server.delete_pod("other")
    sim.run_for(40)
    assert condition(sim, "lesser", "PodResizePending")["reason"] == "Deferred"
    resize(sim, "greater", own("2"))
    sim.run_for(5)
    assert not condition(sim, "lesser", "PodResizePending")
    assert sim.status("lesser")["allocatedResources"]["cpu"] == "4"


def test_under_pressure_it_waits_and_is_tried_again_every_three_minutes() -> None:
    """That a disk has room again is no news to the allocation manager."""
    soft = {"nodefs.available": "40Gi"}
    configuration = {
        "evictionSoft": soft,
        "evictionSoftGracePeriod": dict.fromkeys(soft, "1h"),
        "evictionPressureTransitionPeriod": "30s",
    }
    sim = node(model_of(kubeletConfiguration=configuration))
    run(sim, "web", own("1"))
    run(sim, "filler", None, annotations={DISK: "75Gi"})
    sim.run_for(60)
    assert sim.condition("n-0", "DiskPressure") == "True"
    for generation, cpu in enumerate(("2", "1", "3"), 2):  # asked for, taken back, asked for anew
        resize(sim, "web", own(cpu))
        sim.run_for(5)
        found = condition(sim, "web", "PodResizePending")
        assert bool(found) == (cpu != "1")
        if found:
            assert (found["reason"], found["observedGeneration"]) == ("Deferred", generation)
            assert found["message"] == "The node had condition: [DiskPressure]. "
        sim.run_for(0 if cpu == "3" else 100)
    less = {"metadata": {"annotations": {DISK: "1Gi"}}}
    sim.server.update("pods", "filler", less, "default")
    sim.run_for(160)
    assert sim.condition("n-0", "DiskPressure") == "False"
    assert condition(sim, "web", "PodResizePending")
    sim.run_for(20)
    assert not condition(sim, "web", "PodResizePending")
    assert sim.status("web")["resources"]["limits"]["cpu"] == "3"


def test_the_pod_itself_is_resized_once_it_is_initialized() -> None:
    """Source: kuberuntime_manager.go, computePodActions, which ends before where it is not."""
    sim = node()
    init = {"name": "i", "image": "busybox:1", "command": ["sleep", "60"]}
    main = {"name": "c", "image": "nginx:1"}
    sim.create_pod("web", "n-0", containers=[main], initContainers=[init], resources=own("1"))
    sim.run_for(10)
    # Of what an init container is limited to nothing changes.
    resize(sim, "web", {**own("1"), "requests": {"cpu": "500m", "memory": "256Mi"}})
    sim.run_for(20)
    assert condition(sim, "web", "PodResizeInProgress")["status"] == "True"
    assert told(sim, "web") == ["ResizeStarted"]
    sim.run_for(60)
    assert sim.phase("web") == "Running"
    assert not condition(sim, "web", "PodResizeInProgress")
    assert told(sim, "web") == ["ResizeStarted", "ResizeCompleted"]
