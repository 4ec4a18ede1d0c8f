"""In-place resizes in virtual time: conditions, events, what containers have, and retries."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)


def resources(cpu: str, memory: str = "64Mi") -> Object:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


def container(cpu: str, memory: str = "64Mi", **fields: object) -> Object:
    return {"name": "c", "image": "nginx:1", "resources": resources(cpu, memory), **fields}


def running(
    *names: str, cpu: str = "1", notes: dict[str, str] | None = None, **fields: object
) -> Simulation:
    """Return a node of 8 CPUs on which some pods run."""
    sim = Simulation(seed=1).run_for(60)
    for name in names:
        spec = {**container(cpu), **fields}
        sim.create_pod(name, "n-0", containers=[spec], annotations=notes or {})
    sim.run_for(10)
    return sim


def resize(sim: Simulation, name: str, cpu: str, memory: str = "64Mi", **fields: object) -> None:
    """Do what a PATCH of pods/resize does."""
    generation = sim.server.get("pods", name, "default")["metadata"].get("generation", 1) + 1
    changed = {
        "metadata": {"generation": generation},
        "spec": {"containers": [container(cpu, memory, **fields)]},
    }
    sim.server.update("pods", name, changed, "default")


def shown(sim: Simulation, name: str) -> Object:
    found: Object = sim.status(name)["containerStatuses"][0]
    return found


def condition(sim: Simulation, name: str, kind: str) -> Object:
    conditions = sim.status(name)["conditions"]
    found: Object = next((each for each in conditions if each["type"] == kind), {})
    return found


def events(sim: Simulation, name: str) -> list[str]:
    return [
        f"{each['reason']}: {each['message']}"
        for each in sim.events()
        if each["involvedObject"]["name"] == name and str(each["reason"]).startswith("Resize")
    ]


def test_the_condition_is_seen_while_it_is_in_progress() -> None:
    sim = running("web", notes={"fleet.emulator/resize-error": "cgroup is busy"})
    resize(sim, "web", "2")
    sim.run_for(5)
    assert condition(sim, "web", "PodResizeInProgress")["status"] == "True"
    sim.run_for(15)  # the error is shown one sync later
    found = condition(sim, "web", "PodResizeInProgress")
    assert (found["status"], found["reason"]) == ("True", "Error")
    assert found["message"] == "cgroup is busy"
    assert found["observedGeneration"] == 2
    after = shown(sim, "web")
    assert after["allocatedResources"]["cpu"] == "2"
    assert after["resources"]["requests"]["cpu"] == "1"
    assert events(sim, "web")[-1].startswith("ResizeError: Pod resize error: {")


@pytest.mark.parametrize("manager", ["cpuManagerPolicy", "memoryManagerPolicy"])
def test_pinned_pods_cannot_be_resized(manager: str) -> None:
    policy = "static" if manager == "cpuManagerPolicy" else "Static"
    kubelet = {
        manager: policy,
        "kubeReserved": {"cpu": "1"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    }
    sim = Simulation(seed=1, model=model_of(kubeletConfiguration=kubelet)).run_for(60)
    spec = container("1")
    spec["resources"]["limits"]["cpu"] = "1"
    sim.create_pod("web", "n-0", containers=[spec])
    sim.run_for(10)
    name = manager.removesuffix("ManagerPolicy")
    for cpu, memory in (("1", "128Mi"), ("2", "128Mi")):
        both = {"cpu": cpu, "memory": memory}
        spec = {**spec, "resources": {"requests": both, "limits": both}}
        sim.server.update("pods", "web", {"spec": {"containers": [spec]}}, "default")
        sim.run_for(5)
        # Each manager minds its own resource alone.
        if name == "memory" or cpu == "2":
            break
        assert shown(sim, "web")["allocatedResources"] == both
    found = condition(sim, "web", "PodResizePending")
    assert found["reason"] == "Infeasible"
    word = "CPU" if name == "cpu" else "Memory"
    assert found["message"] == (
        f'Resize is infeasible for Guaranteed Pods alongside {word} Manager policy "{policy}"'
    )
    assert events(sim, "web")[-1].startswith("ResizeInfeasible: Pod resize Infeasible: {")


def test_init_containers_are_resized_while_they_run_and_before_they_begin() -> None:
    """The gate InPlacePodVerticalScalingInitContainers is on in 1.36."""
    sim = running()
    inits = [
        {**container("1"), "name": name, "image": "busybox:1", "command": ["sleep", "60"]}
        for name in ("one", "two")
    ]
    sim.create_pod("web", "n-0", initContainers=inits, containers=[container("1")])
    sim.run_for(10)
    for each, cpu in zip(inits, ("2", "3"), strict=True):
        each["resources"] = resources(cpu)
    changed = {"metadata": {"generation": 2}, "spec": {"initContainers": inits}}
    sim.server.update("pods", "web", changed, "default")
    sim.run_for(5)
    status = sim.status("web")
    one, two = status["initContainerStatuses"]
    assert one["state"]["running"]
    assert (one["restartCount"], one["resources"]) == (0, resources("2"))
    assert two["state"]["waiting"]
    assert status["allocatedResources"]["cpu"] == "3"
    assert [each.partition(":")[0] for each in events(sim, "web")] == [
        "ResizeStarted",
        "ResizeCompleted",
    ]
    sim.run_for(70)
    one, two = sim.status("web")["initContainerStatuses"]
    assert one["state"]["terminated"]
    assert (two["restartCount"], two["resources"]) == (0, resources("3"))
    assert not condition(sim, "web", "PodResizeInProgress")


def test_what_must_start_again_ends_before_the_rest_is_resized() -> None:
    """And then starts in its place. Source: kuberuntime_manager.go, SyncPod, computePodActions."""
    sim = running()
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    first = {**container("1", resizePolicy=policy), "name": "first"}
    last = {"name": "last", "image": "nginx:1"}
    notes = {"fleet.emulator/resize-error": "cgroup is busy", "fleet.emulator/stop-time": "5s"}
    sim.create_pod("web", "n-0", containers=[first, container("1"), last], annotations=notes)
    sim.run_for(10)
    changed = [{**each, "resources": resources("2")} for each in (first, container("1"))]
    new = {
        "metadata": {"generation": 2},
        "spec": {"containers": [*changed, {**last, "image": "o"}]},
    }
    sim.server.update("pods", "web", new, "default")
    sim.run_for(8)
    assert "Container first resize requires restart" in sim.said("Killing", "web")
    assert [each.partition(":")[0] for each in events(sim, "web")] == ["ResizeStarted"]
    sim.run_for(12)
    assert events(sim, "web")[-1].startswith("ResizeError")
    begun = sorted(
        (int(each["metadata"]["resourceVersion"]), each["involvedObject"]["fieldPath"])
        for each in sim.events("Created", "web")
    )
    assert [path[-6:] for _, path in begun] == ["ers{c}", "first}", "{last}"]


@pytest.mark.parametrize("version", ["v1.35.4", "v1.36.3", "v1.37.2"])
def test_what_a_pod_still_has_by_its_status_is_not_free(version: str) -> None:
    """Source: kubelet.go, HandlePodReconcile; scheduler/framework/types.go, CalculateResource."""
    sim = Simulation(seed=1, model=model_of(kubeletVersion=version)).run_for(60)
    sim.create_pod("web", "n-0", containers=[container("3")])
    notes = {"fleet.emulator/resize-error": "cgroup is busy"}
    sim.create_pod("other", "n-0", containers=[container("3")], annotations=notes)
    sim.run_for(10)
    resize(sim, "web", "6")
    resize(sim, "other", "1")
    sim.run_for(400)
    assert shown(sim, "other")["allocatedResources"]["cpu"] == "1"
    found = condition(sim, "web", "PodResizePending")
    assert (found["status"], found["reason"]) == ("True", "Deferred")
    assert found["message"].startswith("Node didn't have enough resource: cpu, requested: 6000, ")
    assert shown(sim, "web")["allocatedResources"]["cpu"] == "3"
    [event] = events(sim, "web")
    assert event.startswith("ResizeDeferred: Pod resize OutOfcpu: {")
    sim.server.update("pods", "other", {"metadata": {"annotations": None}}, "default")
    sim.run_for(90)
    assert shown(sim, "other")["resources"]["requests"]["cpu"] == "1"
    assert not condition(sim, "web", "PodResizePending")
    assert shown(sim, "web")["resources"]["requests"]["cpu"] == "6"
