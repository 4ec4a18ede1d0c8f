"""Memory, disk and OOM as users see them: declared usage, real conditions, taints and events."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e_world import Json, World, condition, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "evict"
MEMORY_NODE, DISK_NODE, OOM_NODE = (f"{PREFIX}-0000{index}" for index in range(3))
USAGE = "fleet.emulator/%s-usage"
PROFILE = {
    "apiVersion": "fleet.emulator/v1alpha1",
    "kind": "NodeProfile",
    "metadata": {"name": "small"},
    "spec": {
        "template": {
            "status": {"capacity": {"cpu": "4", "memory": "4Gi", "ephemeral-storage": "20Gi"}}
        },
        "kubeletConfiguration": {
            "nodeStatusUpdateFrequency": "2s",
            "evictionPressureTransitionPeriod": "40s",
        },
    },
}
STEP = '{"curve":"Step","from":"1Mi","to":"5Gi","after":"2s"}'


def pod(name: str, node: str, usage: dict[str, str], **resources: Json) -> Json:
    container = {"name": "c", "image": "registry.k8s.io/pause:3.10.1", "resources": resources}
    notes = {USAGE % key: value for key, value in usage.items()}
    notes["fleet.emulator/stop-exit-code"] = "143"  # else it has succeeded, evicted or not
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "tolerations": [{"key": "fleet.emulator/fake", "operator": "Exists"}],
        },
    }


@pytest.fixture(scope="module")
def fleet(world: World, environment: Path) -> Iterator[World]:
    """Bring up three small nodes: one runs out of memory, one out of disk, one overcommits."""
    profile = environment / "small.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    with world.spawn(PREFIX, 3, f"--profile={profile}") as run:
        run.until_ready()
        asks = {"requests": {"memory": "1Gi"}}
        world.apply(
            pod("leak", DISK_NODE, {"memory": "101Mi"}, limits={"memory": "100Mi"}),
            pod("greedy", MEMORY_NODE, {"memory": "2900Mi"}),
            pod("modest", MEMORY_NODE, {"memory": "900Mi"}, **asks),
            pod("writer", DISK_NODE, {"ephemeral-storage": "17Gi"}),
            pod("huge", OOM_NODE, {"memory": STEP}),
        )
        yield world
        world.kubectl("delete", "pod", "--all", "--grace-period=0", "--force", "--wait=false")
        run.end_well_or_late()


def status(world: World, name: str) -> Json:
    found: Json = world.get("pod", name)["status"]
    return found


def restarts(world: World, name: str) -> int:
    found = status(world, name).get("containerStatuses", ())
    return found[0]["restartCount"] if found else 0


def events(world: World, name: str, reason: str) -> list[Json]:
    selector = f"involvedObject.name={name},reason={reason}"
    return world.items("events", "-n", "default", f"--field-selector={selector}")


def taints(world: World, node: str) -> set[str]:
    return {each["key"] for each in world.get("node", node)["spec"].get("taints", ())}


def test_memory_pressure_evicts_taints_and_refuses(fleet: World) -> None:
    eventually(lambda: status(fleet, "greedy")["phase"] == "Failed", "greedy is evicted")
    fleet.apply(pod("late", MEMORY_NODE, {}))  # at once: the pressure is over some time later
    eventually(lambda: status(fleet, "late")["phase"] == "Failed", "late is refused")
    found = status(fleet, "greedy")
    assert found["reason"] == "Evicted"
    assert found["message"].startswith(
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: "
    )
    assert "Container c was using 2900Mi, request is 0, has larger" in found["message"]
    [target] = [each for each in found["conditions"] if each["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
    eventually(lambda: events(fleet, "greedy", "Evicted"), "the pod's event")
    [event] = events(fleet, "greedy", "Evicted")
    assert event["metadata"]["annotations"]["starved_resource"] == "memory"
    eventually(lambda: events(fleet, MEMORY_NODE, "EvictionThresholdMet"), "the node's event")
    eventually(
        lambda: condition(fleet.get("node", MEMORY_NODE), "MemoryPressure") == "True",
        "the condition",
    )
    eventually(
        lambda: "node.kubernetes.io/memory-pressure" in taints(fleet, MEMORY_NODE), "the taint"
    )
    eventually(lambda: events(fleet, MEMORY_NODE, "NodeHasInsufficientMemory"), "its event")
    assert status(fleet, "late")["reason"] == "Evicted"
    assert status(fleet, "late")["message"].endswith("The node had condition: [MemoryPressure]. ")
    assert status(fleet, "modest")["phase"] == "Running"


def test_disk_pressure_evicts_the_largest_writer(fleet: World) -> None:
    eventually(lambda: status(fleet, "writer")["phase"] == "Failed", "writer is evicted")
    assert "low on resource: ephemeral-storage" in status(fleet, "writer")["message"]
    eventually(
        lambda: condition(fleet.get("node", DISK_NODE), "DiskPressure") == "True", "the condition"
    )
    eventually(lambda: "node.kubernetes.io/disk-pressure" in taints(fleet, DISK_NODE), "the taint")


def test_a_container_over_its_limit_shows_oom_killed_and_restarts(fleet: World) -> None:
    eventually(lambda: restarts(fleet, "leak") >= 1, "the leaking container was restarted")
    [container] = status(fleet, "leak")["containerStatuses"]
    last = container["lastState"].get("terminated") or container["state"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("OOMKilled", 137)


def test_a_system_oom_is_an_event_of_the_node(fleet: World) -> None:
    eventually(lambda: events(fleet, OOM_NODE, "SystemOOM"), "the event")
    event = events(fleet, OOM_NODE, "SystemOOM")[0]
    assert event["type"] == "Warning"
    assert event["source"] == {"component": "kubelet", "host": OOM_NODE}
    assert event["message"].startswith("System OOM encountered, victim process: pause, pid: ")
    described = fleet.kubectl("get", "events", "-n", "default")
    assert "System OOM encountered" in described
    eventually(lambda: restarts(fleet, "huge") >= 1, "a restart")


def test_the_conditions_and_taints_go_once_the_pressure_is_over(fleet: World) -> None:
    def tainted() -> list[str]:
        found = (*taints(fleet, MEMORY_NODE), *taints(fleet, DISK_NODE))
        return [each for each in found if each.endswith("-pressure")]

    eventually(lambda: not tainted(), "the nodes have no such taint any more")
    eventually(
        lambda: condition(fleet.get("node", MEMORY_NODE), "MemoryPressure") == "False", "neither"
    )
    eventually(lambda: events(fleet, MEMORY_NODE, "NodeHasSufficientMemory"), "its event")
