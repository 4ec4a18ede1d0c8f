"""Pods that a node refuses, makes room for, or gives devices, on the wire and in virtual time."""

import pytest
from world.api_server import SimApiServer
from world.pod_world import model_of
from world.simulation import Simulation, pod_json
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

GPU = "nvidia.com/gpu"
PULL = {"imagePullPolicy": "IfNotPresent"}


def container(name: str = "c", **amounts: str) -> Object:
    resources = {"requests": amounts}
    if any("/" in each for each in amounts):
        resources["limits"] = amounts
    return {"name": name, "image": "nginx:1", "resources": resources, **PULL}


def small(**spec: object) -> Object:
    """Return a profile's model of nodes with four CPUs."""
    return {"template": {"status": {"capacity": {"cpu": "4", "memory": "8Gi"}}}, **spec}


def started(*, light: bool = False, **spec: object) -> Simulation:
    return Simulation(seed=1, light=light, model=model_of(**small(**spec))).run_for(seconds=60)


def events(sim: Simulation, about: str) -> list[tuple[str, str, str]]:
    return [(each["type"], each["reason"], each["message"]) for each in sim.events(about=about)]


def reasons(sim: Simulation, about: str) -> list[str]:
    return [reason for _, reason, _ in events(sim, about)]


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_a_refused_pod_fails_and_leaves_with_its_object(*, light: bool) -> None:
    sim = started(light=light)
    sim.create_pod("big", containers=[container(cpu="5")])
    sim.run_for(seconds=5)
    text = "Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000"
    found = sim.status("big")
    assert found["phase"] == "Failed"
    assert found["reason"] == "OutOfcpu"
    assert found["message"] == f"Pod was rejected: {text}"
    assert found["startTime"]
    assert "containerStatuses" not in found
    assert {each["type"] for each in found.get("conditions", ())} <= {"PodScheduled"}
    if not light:
        assert events(sim, "big") == [("Warning", "OutOfcpu", text)]
    sim.run_for(seconds=60)
    assert sim.calls(path="/pods/big", since_s=70) == []  # nothing more is said of it
    sim.server.delete_pod("big")
    sim.run_for(seconds=5)
    assert sim.phase("big") == ""
    assert sim.kubelet().pods is None


@pytest.mark.parametrize("cpu", ["100m", "5"], ids=["runs", "refused"])
def test_a_pod_that_is_gone_is_read_with_each_status_until_housekeeping_drops_it(cpu: str) -> None:
    """Source: status_manager.go, syncPod: a 404 forgets nothing; RemoveOrphanedStatuses does."""
    sim = started()
    sim.create_pod("gone", containers=[container(cpu=cpu)])
    sim.run_for(seconds=10)
    sim.server.delete_pod("gone", grace_s=0)
    before = len(sim.calls(verb="GET", path="/pods/gone"))
    for at in range(4):
        sim.create_pod(f"other-{at}")
        sim.run_for(seconds=0.1)
    sim.run_for(seconds=5)
    reads = len(sim.calls(verb="GET", path="/pods/gone")) - before
    assert reads > 4
    sim.create_pod("last")
    sim.run_for(seconds=5)
    assert len(sim.calls(verb="GET", path="/pods/gone")) == before + reads


def test_a_refused_pod_that_somebody_holds_is_ended_in_one_sync() -> None:
    """Nothing of it ever ran, so that nothing is to be stopped: 0.4 s lay in between."""
    sim = started()
    sim.create_pod("big", containers=[container(cpu="5")])
    sim.run_for(seconds=5)
    sim.server.update("pods", "big", {"metadata": {"finalizers": ["a.example.com/b"]}}, "default")
    since_s = sim.now_s
    sim.server.delete_pod("big")
    sim.run_for(seconds=5)
    told = sim.calls("n-0", path="/pods/big", since_s=since_s)
    assert told[-1].verb == "DELETE"
    assert told[-1].t_ns - told[0].t_ns < 50_000_000


def test_a_refused_pod_that_is_deleted_at_once_goes() -> None:
    sim = started()
    sim.create_pod("big", containers=[container(cpu="5")])
    sim.server.delete_pod("big")
    sim.run_for(seconds=15)
    assert sim.phase("big") == ""


def test_what_is_deleted_by_force_makes_room_while_it_ends() -> None:
    """Source: kubelet_pods.go, GetActivePods: of pods that the pod manager has."""
    sim = started()
    notes = {"fleet.emulator/stop-time": "20s"}
    sim.create_pod("one", containers=[container(cpu="3")], annotations=notes)
    sim.run_for(seconds=5)
    sim.server.delete_pod("one", grace_s=0)
    sim.create_pod("two", containers=[container(cpu="3")])
    sim.run_for(seconds=5)
    assert sim.phase("two") == "Running"


def test_what_ended_makes_room() -> None:
    sim = started()
    sim.create_pod("one", containers=[{**container(cpu="3"), "command": ["sleep", "5"]}])
    sim.run_for(seconds=3)
    sim.create_pod("two", containers=[container(cpu="3")])
    sim.run_for(seconds=3)
    assert sim.phase("two") == "Failed"
    sim.server.delete_pod("one")
    sim.run_for(seconds=60)
    sim.create_pod("three", containers=[container(cpu="3")])
    sim.run_for(seconds=3)
    assert sim.phase("three") == "Running"


@pytest.mark.parametrize(("label", "phase"), [("ssd", "Running"), ("hdd", "Failed")])
def test_a_node_is_read_anew_before_its_labels_speak_against_a_pod(label: str, phase: str) -> None:
    sim = started()
    sim.server.update("nodes", "n-0", {"metadata": {"labels": {"disk": label}}})
    sim.run_for(seconds=1)
    since_s = sim.now_s
    sim.create_pod("web", nodeSelector={"disk": "ssd"})
    sim.run_for(seconds=5)
    assert sim.phase("web") == phase
    read = [each.path for each in sim.calls(verb="GET", path="/nodes/n-0", since_s=since_s)]
    # Reads for the Node's status have a time-out.
    assert len([each for each in read if "timeout" not in each]) == (phase == "Failed")


def test_a_critical_pod_waits_for_those_that_it_displaces() -> None:
    sim = started()
    killed = {"fleet.emulator/stop-exit-code": "143", "fleet.emulator/stop-time": "3s"}
    slow: Object = {"terminationGracePeriodSeconds": 10, "annotations": killed}
    sim.create_pod("low", containers=[container(cpu="3")], **slow)
    sim.create_pod("lower", containers=[container(cpu="500m")], **slow)
    sim.run_for(seconds=5)
    sim.create_pod("critical", containers=[container(cpu="2")], priority=2_000_001_000)
    sim.run_for(seconds=20)
    assert sim.phase("critical") == "Running"
    assert sim.phase("lower") == "Running"
    found = sim.status("low")
    assert found["phase"] == "Failed"
    assert found["reason"] == "Preempting"
    assert found["message"] == "Preempted in order to admit critical pod"
    [condition] = [each for each in found["conditions"] if each["type"] == "DisruptionTarget"]
    assert condition["reason"] == "TerminationByKubelet"
    assert condition["message"] == "Pod was preempted by Kubelet to accommodate a critical pod."
    text = "Preempted in order to admit critical pod"
    assert ("Warning", "Preempting", text) in events(sim, "low")
    ended = found["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    assert sim.status("critical")["containerStatuses"][0]["state"]["running"]["startedAt"] >= ended
    # the status that says so is sent once the containers have ended
    assert condition["lastTransitionTime"] >= ended


def test_victims_are_killed_one_after_another_and_later_pods_wait() -> None:
    """A kubelet's sync loop waits for each victim: preemption.go, evictPodsToFreeRequests."""
    sim = started()
    slow: Object = {
        "terminationGracePeriodSeconds": 10,
        "annotations": {"fleet.emulator/stop-time": "never"},
    }
    for name in ("one", "two"):
        sim.create_pod(name, containers=[container(cpu="2")], **slow)
    sim.run_for(seconds=5)
    sim.create_pod("critical", containers=[container(cpu="3")], priority=2_000_001_000)
    sim.run_for(seconds=1)
    for name in ("later", "last"):
        sim.create_pod(name, containers=[container(cpu="1")])
    sim.run_for(seconds=3)
    preempted = [name for name in ("one", "two") if "Preempting" in reasons(sim, name)]
    assert len(preempted) == 1
    assert sim.phase("later") == sim.phase("last") == "Pending"  # nobody has looked at them
    sim.run_for(seconds=10)
    assert [sim.phase(name) for name in preempted] == ["Failed"]
    assert {"Preempting"} <= set(reasons(sim, "one")) & set(reasons(sim, "two"))
    assert sim.phase("critical") == "Pending"
    sim.run_for(seconds=10)
    phases = {"one": "Failed", "two": "Failed", "critical": "Running", "later": "Running"}
    assert {name: sim.phase(name) for name in phases} == phases
    assert sim.status("last")["reason"] == "OutOfcpu"  # the fourth of four CPUs is taken


def test_pods_of_a_snapshot_are_admitted_in_the_order_of_creation() -> None:
    """Source: kubelet.go, HandlePodAdditions."""

    def setup(server: SimApiServer) -> None:
        for name, at in (("a-young", "2026-01-01T00:00:09Z"), ("b-old", "2026-01-01T00:00:08Z")):
            pod = pod_json(name, "n-0", containers=[container(cpu="3")])
            pod["metadata"]["creationTimestamp"] = at
            server.create(("pods", "default", name), pod)

    sim = Simulation(seed=1, model=model_of(**small()), setup=setup).run_for(seconds=60)
    assert sim.phase("b-old") == "Running"
    assert sim.status("a-young")["reason"] == "OutOfcpu"


def test_a_critical_pod_that_nobody_can_make_room_for_is_an_error() -> None:
    sim = started()
    sim.create_pod("critical", containers=[container(cpu="9")], priority=2_000_001_000)
    sim.run_for(seconds=5)
    assert sim.status("critical")["reason"] == "UnexpectedAdmissionError"
    assert sim.status("critical")["message"] == (
        "Pod was rejected: Unexpected error while attempting to recover from admission failure: "
        "preemption: error finding a set of pods to preempt: "
        "no set of running pods found to reclaim resources: [(res: cpu, q: 5000), ]"
    )


def gpus(**device: object) -> Object:
    return {"devices": [{"resource": GPU, "count": 2, **device}]}


def amounts(sim: Simulation) -> tuple[str, str]:
    found = sim.server.get("nodes", "n-0")["status"]
    return found["capacity"].get(GPU, ""), found["allocatable"].get(GPU, "")


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_devices_come_fail_and_go(*, light: bool) -> None:
    health = [
        {"after": "100s", "devices": [0]},
        {"after": "200s", "devices": [0], "state": "Healthy"},
    ]
    outages = [{"after": "300s", "duration": "400s"}]
    spec = gpus(registrationDelay="20s", health=health, pluginOutages=outages)
    sim = Simulation(seed=2, light=light, model=model_of(**small(**spec)))
    seen: list[tuple[int, str, str]] = []
    for _ in range(80):
        sim.run_for(seconds=10)
        if not seen or seen[-1][1:] != amounts(sim):
            seen.append((int(sim.now_s), *amounts(sim)))
    assert [each[1:] for each in seen] == [
        ("", ""),
        ("2", "2"),
        ("2", "1"),
        ("2", "2"),
        ("2", "0"),
        ("0", "0"),
        ("2", "2"),
    ]
    for (at_s, *_), due_s in zip(seen[1:], (20, 100, 200, 300, 600, 700), strict=True):
        assert due_s <= at_s <= due_s + 21  # the next tick of the node status, and our own step


def test_a_pods_devices_show_in_its_status_and_fail_there() -> None:
    sim = started(**gpus(registrationDelay="5s", health=[{"after": "100s", "devices": [0]}]))
    sim.create_pod("one", containers=[container(**{GPU: "1"})])
    sim.run_for(seconds=5)
    [shown] = sim.status("one")["containerStatuses"]
    assert shown["allocatedResourcesStatus"] == [
        {"name": GPU, "resources": [{"health": "Healthy", "resourceID": "gpu-0"}]}
    ]
    sim.run_for(seconds=50)
    [shown] = sim.status("one")["containerStatuses"]
    [told] = shown["allocatedResourcesStatus"][0]["resources"]
    assert told == {"health": "Unhealthy", "resourceID": "gpu-0"}
    sim.create_pod("two", containers=[container(**{GPU: "1"})])
    sim.create_pod("three", containers=[container(**{GPU: "1"})])
    sim.run_for(seconds=5)
    assert sim.phase("two") == "Running"
    assert sim.status("three")["reason"] == "UnexpectedAdmissionError"
    assert sim.status("three")["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{GPU}. Requested: 1, Available: 0, which is unexpected"
    )
    sim.server.delete_pod("two")
    sim.run_for(seconds=40)
    sim.create_pod("four", containers=[container(**{GPU: "1"})])
    sim.run_for(seconds=5)
    assert sim.phase("four") == "Running"


def test_allocatable_of_what_others_write_follows_the_capacity() -> None:
    """As when a user advertises a resource: kubectl patch node --subresource=status."""
    sim = started()
    sim.server.update("nodes", "n-0", {"status": {"capacity": {"x.io/dongle": "4"}}})
    sim.run_for(seconds=11)
    assert sim.server.get("nodes", "n-0")["status"]["allocatable"]["x.io/dongle"] == "4"
    sim.create_pod("one", containers=[container(**{"x.io/dongle": "3"})])
    sim.create_pod("two", containers=[container(**{"x.io/dongle": "3"})])
    sim.run_for(seconds=5)
    assert sim.phase("one") == "Running"
    assert sim.status("two")["reason"] == "OutOfx.io/dongle"
    sim.server.update("nodes", "n-0", {"status": {"capacity": {"x.io/dongle": None}}})
    sim.run_for(seconds=11)
    assert "x.io/dongle" not in sim.server.get("nodes", "n-0")["status"]["allocatable"]


def test_a_pod_that_runs_already_keeps_its_device() -> None:
    """As after a restart: it is not admitted again, however full the node is."""
    first = Simulation(seed=1, model=model_of(**small(**gpus(registrationDelay="5s"))))
    first.run_for(seconds=60)
    first.create_pod("old", containers=[container(cpu="3", **{GPU: "1"})])
    first.run_for(seconds=5)
    assert first.phase("old") == "Running"
    old = first.server.get("pods", "old", "default")

    def setup(server: SimApiServer) -> None:
        server.create(("pods", "default", "old"), old)

    sim = Simulation(seed=1, model=model_of(**small(**gpus(registrationDelay="30s"))), setup=setup)
    sim.run_for(seconds=20)
    assert sim.phase("old") == "Running"
    sim.run_for(seconds=40)
    [shown] = sim.status("old")["containerStatuses"]
    assert shown["allocatedResourcesStatus"][0]["resources"][0]["resourceID"] == "gpu-0"
    sim.create_pod("both", containers=[container(**{GPU: "2"})])
    sim.create_pod("one", containers=[container(**{GPU: "1"})])
    sim.create_pod("big", containers=[container(cpu="2")])
    sim.run_for(seconds=5)
    assert sim.phase("one") == "Running"
    assert "Requested: 2, Available: 1" in sim.status("both")["message"]
    assert sim.status("big")["reason"] == "OutOfcpu"
    assert events(sim, "old") == []


def test_whole_cpus_are_given_refused_and_taken_back() -> None:
    pinning = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    sim = started(kubeletConfiguration=pinning)
    both = {"cpu": "2", "memory": "64Mi"}
    whole = {**container(), "resources": {"requests": both, "limits": both}}
    sim.create_pod("one", containers=[whole])
    sim.run_for(seconds=5)
    sim.create_pod("two", containers=[whole])
    sim.run_for(seconds=5)
    text = (
        "Allocate failed due to not enough cpus available to satisfy request: requested=2, "
        "available=1, which is unexpected"
    )
    assert events(sim, "two") == [("Warning", "UnexpectedAdmissionError", text)]
    sim.server.delete_pod("one")
    sim.run_for(seconds=60)
    sim.create_pod("three", containers=[whole])
    sim.run_for(seconds=5)
    assert sim.phase("three") == "Running"
