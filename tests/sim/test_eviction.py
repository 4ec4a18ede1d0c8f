"""Pressure, evictions and OOM kills in virtual time: usage is declared, the rest follows."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation, default_model, pod_json
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

MEMORY = "fleet.emulator/memory-usage"
DISK = "fleet.emulator/ephemeral-storage-usage"
KILLED = {"fleet.emulator/stop-exit-code": "143"}
"""As of an application that has no handler of SIGTERM: a pod that exits with 0 has succeeded."""


def create(sim: Simulation, name: str, resources: Object | None = None, **notes: str) -> str:
    """Create a pod whose one container uses what the notes say."""
    keys = {"memory": MEMORY, "disk": DISK}
    annotations = KILLED | {keys[key]: value for key, value in notes.items()}
    pod = pod_json(name, "n-0", annotations=annotations)
    if resources is not None:
        pod["spec"]["containers"][0]["resources"] = resources
    stored = sim.server.create(("pods", "default", name), pod)
    assert stored is not None, name
    return str(stored.obj["metadata"]["uid"])


def node_events(sim: Simulation, reason: str) -> list[Object]:
    return [
        each
        for each in sim.events()
        if each["involvedObject"]["kind"] == "Node" and each["reason"] == reason
    ]


def ramp(first: str, last: str, duration: str, after: str = "0s") -> dict[str, str]:
    return {"curve": "Ramp", "from": first, "to": last, "duration": duration, "after": after}


def settled(*, light: bool = False, seed: int = 1, **spec: object) -> Simulation:
    return Simulation(seed=seed, light=light, model=model_of(**spec)).run_for(seconds=30)


def test_a_container_over_its_limit_is_killed_and_restarted_by_its_policy() -> None:
    for light in (False, True):
        sim = settled(light=light)
        curve = '{"curve":"Ramp","from":"0","to":"200Mi","duration":"40s"}'
        create(sim, "leak", {"limits": {"memory": "100Mi"}}, memory=curve)
        sim.run_for(seconds=30)
        [container] = sim.status("leak")["containerStatuses"]
        assert container["restartCount"] == 1
        ended = container["lastState"]["terminated"]
        assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
        assert node_events(sim, "SystemOOM") == []


def test_memory_pressure_evicts_one_pod_after_another_and_holds_five_minutes() -> None:
    sim = settled(template={"status": {"capacity": {"memory": "4Gi"}}})
    assert sim.condition("n-0", "MemoryPressure") == "False"
    create(sim, "greedy", memory="2900Mi")
    create(sim, "modest", {"requests": {"memory": "1Gi"}}, memory="900Mi")
    sim.run_for(seconds=20)
    pod = sim.server.get("pods", "greedy", "default")
    assert pod["status"]["phase"] == "Failed"
    assert pod["status"]["reason"] == "Evicted"
    assert pod["status"]["message"].startswith(
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: "
    )
    assert pod["status"]["message"].endswith(
        "Container c was using 2900Mi, request is 0, has larger consumption of memory. "
    )
    [condition] = [c for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (condition["status"], condition["reason"]) == ("True", "TerminationByKubelet")
    assert condition["message"] == pod["status"]["message"]
    assert sim.phase("modest") == "Running"
    [event] = sim.events("Evicted", "greedy")
    assert event["type"] == "Warning"
    assert event["metadata"]["annotations"] == {
        "offending_containers": "c",
        "offending_containers_usage": "2900Mi",
        "starved_resource": "memory",
    }
    [event] = node_events(sim, "EvictionThresholdMet")
    assert event["message"] == "Attempting to reclaim memory"
    [event] = node_events(sim, "NodeHasInsufficientMemory")
    assert event["message"] == "Node n-0 status is now: NodeHasInsufficientMemory"
    began_s = sim.now_s
    assert sim.condition("n-0", "MemoryPressure") == "True"
    sim.run_for(seconds=280)
    assert sim.condition("n-0", "MemoryPressure") == "True"
    sim.run_for(seconds=40)
    assert sim.condition("n-0", "MemoryPressure") == "False", began_s
    # The first one is from before a kubelet 1.37 knew the UID of its Node.
    is_named_later = default_model().release.node_event_uid == "uid"
    assert len(node_events(sim, "NodeHasSufficientMemory")) == 1 + is_named_later


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_a_pod_that_is_evicted_and_ends_well_has_succeeded(*, light: bool) -> None:
    """So does a real kubelet's, which tells why only of a phase that its manager gave."""
    sim = settled(light=light, template={"status": {"capacity": {"memory": "4Gi"}}})
    pod = pod_json("greedy", "n-0", annotations={MEMORY: "3800Mi"})
    assert sim.server.create(("pods", "default", "greedy"), pod) is not None
    sim.run_for(seconds=20)
    status = sim.status("greedy")
    assert (status["phase"], status.get("reason"), status.get("message")) == (
        "Succeeded",
        None,
        None,
    )
    by_type = {each["type"]: each for each in status["conditions"]}
    assert by_type["DisruptionTarget"]["reason"] == "TerminationByKubelet"
    assert by_type["Ready"]["reason"] == "PodCompleted"
    assert light or len(sim.events("Evicted", "greedy")) == 1


def test_a_node_under_memory_pressure_refuses_best_effort_pods() -> None:
    sim = settled(
        usage={"memory": {"curve": "Constant", "value": "32Gi"}},
    )
    assert sim.condition("n-0", "MemoryPressure") == "True"
    create(sim, "besteffort")
    create(sim, "burstable", {"requests": {"cpu": "10m", "memory": "1Mi"}})
    sim.run_for(seconds=2)
    status = sim.status("besteffort")
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"] == ("Pod was rejected: The node had condition: [MemoryPressure]. ")
    assert sim.phase("burstable") != "Failed"


def test_a_soft_threshold_gives_a_pod_its_grace_period() -> None:
    sim = settled(
        template={"status": {"capacity": {"memory": "4Gi"}}},
        kubeletConfiguration={
            "evictionSoft": {"memory.available": "1Gi"},
            "evictionSoftGracePeriod": {"memory.available": "1m"},
            "evictionMaxPodGracePeriod": 60,
        },
    )
    create(sim, "large", memory="3Gi")
    sim.run_for(seconds=50)
    assert sim.phase("large") == "Running"
    assert sim.condition("n-0", "MemoryPressure") == "True"
    sim.run_for(seconds=40)
    assert sim.phase("large") == "Failed"
    assert "Threshold quantity: 1Gi" in sim.status("large")["message"]


def test_disk_pressure_comes_from_what_pods_write_and_evicts_the_largest() -> None:
    sim = settled(template={"status": {"capacity": {"ephemeral-storage": "20Gi"}}})
    create(sim, "small", disk="1Gi")
    grows = '{"curve":"Ramp","from":"0","to":"40Gi","duration":"200s"}'
    create(sim, "grows", disk=grows)
    sim.run_for(seconds=60)
    assert sim.condition("n-0", "DiskPressure") == "False"
    sim.run_for(seconds=60)
    status = sim.status("grows")
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"].startswith(
        "The node was low on resource: ephemeral-storage. Threshold quantity: "
    )
    assert sim.condition("n-0", "DiskPressure") == "True"
    assert sim.phase("small") == "Running"
    [event] = node_events(sim, "NodeHasDiskPressure")
    assert event["type"] == "Normal"


def test_a_pod_over_its_own_limit_of_the_disk_is_evicted_from_a_calm_node() -> None:
    sim = settled()
    limits = {"limits": {"ephemeral-storage": "1Gi"}}
    create(sim, "writer", limits, disk='{"curve":"Step","from":"0","to":"2Gi","after":"20s"}')
    sim.run_for(seconds=40)
    status = sim.status("writer")
    assert status["reason"] == "Evicted"
    assert status["message"] == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
    )
    assert "DisruptionTarget" not in [each["type"] for each in status["conditions"]]
    assert sim.condition("n-0", "DiskPressure") == "False"
    assert node_events(sim, "EvictionThresholdMet") == []


def test_a_node_out_of_memory_kills_the_worst_container_and_says_so() -> None:
    sim = settled(
        template={"status": {"capacity": {"memory": "4Gi"}}},
        kubeletConfiguration={"evictionHard": {"nodefs.available": "1%"}},
    )
    create(sim, "victim", memory='{"curve":"Step","from":"1Mi","to":"5Gi","after":"15s"}')
    asks = {"requests": {"memory": "1Gi"}}
    create(sim, "bystander", asks, memory="500Mi")
    sim.run_for(seconds=30)
    [container] = sim.status("victim")["containerStatuses"]
    assert container["restartCount"] == 1
    assert container["lastState"]["terminated"]["reason"] == "OOMKilled"
    [event] = node_events(sim, "SystemOOM")
    assert (event["type"], event["metadata"]["namespace"]) == ("Warning", "default")
    text, pid = event["message"].rsplit(" ", 1)
    assert text == "System OOM encountered, victim process: nginx, pid:"
    assert int(pid) >= 1000
    assert sim.status("bystander")["containerStatuses"][0]["restartCount"] == 0


def test_an_eviction_looks_the_same_in_light() -> None:
    seen = []
    for light in (False, True):
        sim = settled(light=light, template={"status": {"capacity": {"memory": "4Gi"}}})
        create(sim, "greedy", memory="3800Mi")
        sim.run_for(seconds=40)
        status = sim.status("greedy")
        assert status["reason"] == "Evicted"
        seen.append({(c["type"], c["status"], c.get("reason")) for c in status["conditions"]})
        assert sim.condition("n-0", "MemoryPressure") == "True"
    assert seen[0] == seen[1]


def test_the_declared_usage_of_a_node_brings_pressure_without_any_pod() -> None:
    sim = settled(
        usage={"pids": ramp("100", "1M", "100s")},
        pidsMax=500_000,
        kubeletConfiguration={"evictionHard": {"pid.available": "10%"}},
    )
    assert sim.condition("n-0", "PIDPressure") == "False"
    sim.run_for(seconds=40)
    assert sim.condition("n-0", "PIDPressure") == "True"
    assert len(node_events(sim, "NodeHasInsufficientPID")) == 1


def test_a_pod_that_uses_little_costs_no_passes() -> None:
    sim = settled()
    create(sim, "calm", memory="10Mi")
    sim.run_for(seconds=30)
    before = sim.reactor._wheel.size
    sent = len(sim.calls(since_s=sim.now_s))
    sim.run_for(seconds=3600)
    assert sim.reactor._wheel.size <= before
    assert [
        each for each in sim.calls(since_s=60) if each.verb == "PATCH" and "events" in each.path
    ] == []
    assert sent == 0
    loop = sim.reactor.entries[0].kubelet.pods  # type: ignore[union-attr]
    assert loop is not None
    assert loop.monitor is not None
    sim.server.delete_pod("calm")
    sim.run_for(seconds=60)
    assert sim.reactor.entries[0].kubelet.pods is None  # type: ignore[union-attr]


def create_with_image(sim: Simulation, name: str, image: str, size: str) -> None:
    notes = KILLED | {"fleet.emulator/image-size": size, "fleet.emulator/pull-time": "1s"}
    pod = pod_json(name, "n-0", annotations=notes)
    pod["spec"]["containers"][0]["image"] = image
    assert sim.server.create(("pods", "default", name), pod) is not None


def test_unused_images_are_deleted_before_a_pod_is_evicted() -> None:
    """Without image garbage collection: eviction finds the disk full, and frees it."""
    sim = settled(kubeletConfiguration={"imageGCHighThresholdPercent": 100})
    create_with_image(sim, "first", "registry.example/first:1", "50Gi")
    sim.run_for(seconds=430)  # noticed within five minutes, it must be two minutes old
    sim.server.delete_pod("first")
    sim.run_for(seconds=40)
    create_with_image(sim, "second", "registry.example/second:1", "40Gi")
    sim.run_for(seconds=40)
    assert sim.phase("second") == "Running"
    assert len(node_events(sim, "EvictionThresholdMet")) == 1
    assert sim.events("Evicted", "second") == []
    assert sim.condition("n-0", "DiskPressure") == "True"
    sim.run_for(seconds=320)
    assert sim.condition("n-0", "DiskPressure") == "False"
    images = [each["names"][-1] for each in sim.server.get("nodes", "n-0")["status"]["images"]]
    assert "registry.example/second:1" in images
    assert "registry.example/first:1" not in images


def annotate(sim: Simulation, name: str, value: str) -> None:
    changed = {"metadata": {"annotations": {MEMORY: value}}}
    sim.server.update("pods", name, changed, "default")


def test_an_annotation_is_followed_while_the_pod_runs() -> None:
    sim = settled(template={"status": {"capacity": {"memory": "4Gi"}}})
    create(sim, "small", {"limits": {"memory": "100Mi"}})
    create(sim, "free")
    sim.run_for(seconds=30)
    annotate(sim, "small", "101Mi")
    annotate(sim, "free", "3800Mi")
    sim.run_for(seconds=15)
    [container] = sim.status("small")["containerStatuses"]
    assert container["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert sim.status("free")["reason"] == "Evicted"
    annotate(sim, "small", "99Mi")
    sim.run_for(seconds=120)
    [container] = sim.status("small")["containerStatuses"]
    assert "running" in container["state"]


def test_a_kill_that_was_to_come_does_not_come_once_the_usage_is_lowered() -> None:
    sim = settled()
    curve = '{"curve":"Ramp","from":"0","to":"200Mi","duration":"120s"}'
    create(sim, "leak", {"limits": {"memory": "100Mi"}}, memory=curve)
    sim.run_for(seconds=40)
    annotate(sim, "leak", "50Mi")
    sim.run_for(seconds=120)
    [container] = sim.status("leak")["containerStatuses"]
    assert container["restartCount"] == 0
    assert "running" in container["state"]


def test_an_empty_dir_over_its_limit_costs_the_pod_its_place() -> None:
    """One pod after another: the next is evicted once the containers of the last have ended."""
    sim = settled()
    grows = '{"curve":"Ramp","from":"0","to":"1Gi","duration":"60s"}'
    notes = {"fleet.emulator/empty-dir-usage": grows, "fleet.emulator/stop-time": "never"}
    for name in ("cache", "other", "third"):
        pod = pod_json(name, "n-0", annotations=KILLED | notes)
        pod["spec"]["volumes"].append({"name": "scratch", "emptyDir": {"sizeLimit": "500Mi"}})
        pod["spec"]["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        assert sim.server.create(("pods", "default", name), pod) is not None
    sim.run_for(seconds=25)
    assert sim.phase("cache") == "Running"
    sim.run_for(seconds=30)
    assert len({each["firstTimestamp"] for each in sim.events("Evicted")}) == 3
    status = sim.status("cache")
    assert status["reason"] == "Evicted"
    assert status["message"] == 'Usage of EmptyDir volume "scratch" exceeds the limit "500Mi". '
    [event] = sim.events("Evicted", "cache")
    assert "annotations" not in event["metadata"]


def test_a_pod_with_a_limit_of_its_own_has_its_largest_container_killed() -> None:
    sim = settled()
    notes = {
        "fleet.emulator/memory-usage.big": '{"curve":"Step","from":"0","to":"90Mi","after":"9s"}',
        "fleet.emulator/memory-usage.small": "20Mi",
    }
    pod = pod_json("shared", "n-0", annotations=notes)
    [container] = pod["spec"]["containers"]
    pod["spec"]["containers"] = [{**container, "name": name} for name in ("big", "small")]
    pod["spec"]["resources"] = {"limits": {"memory": "100Mi"}, "requests": {"memory": "100Mi"}}
    assert sim.server.create(("pods", "default", "shared"), pod) is not None
    sim.run_for(seconds=18)
    found = sim.status("shared")["containerStatuses"]
    restarts = {each["name"]: each["restartCount"] for each in found}
    assert restarts == {"big": 1, "small": 0}
    assert found[0]["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert node_events(sim, "SystemOOM") == []


def test_a_pod_that_is_being_ended_is_evicted_before_those_that_use_less() -> None:
    """It heeds no SIGTERM and has its minute; nobody else is evicted meanwhile."""
    sim = settled(template={"status": {"capacity": {"memory": "4Gi"}}})
    notes = {MEMORY: "2000Mi", "fleet.emulator/stop-time": "never"}
    sim.create_pod("ending", annotations=notes, terminationGracePeriodSeconds=60)
    sim.run_for(seconds=20)
    sim.server.delete_pod("ending")
    create(sim, "modest", memory="1800Mi")
    sim.run_for(seconds=30)
    assert len(sim.events("Evicted", "ending")) == 1
    assert sim.events("Evicted", "modest") == []
    sim.run_for(seconds=40)
    assert (sim.phase("ending"), sim.phase("modest")) == ("", "Running")
