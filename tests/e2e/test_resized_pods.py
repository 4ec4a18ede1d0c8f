"""Resizes of a pod's own resources on a real control plane, as its API objects show them."""

import json
import signal
from collections.abc import Iterator

import pytest
import yaml
from e2e_world import Json, Running, World, condition, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE, OLD = "whole-00000", "ungated-00000"
GATE = "InPlacePodLevelResourcesVerticalScaling"
ERROR = "fleet.emulator/resize-error"
PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"


def profile(**configuration: object) -> Json:
    """Return a profile of nodes with 8 CPUs, whose kubelets report at once."""
    return {
        "apiVersion": "fleet.emulator/v1alpha1",
        "kind": "NodeProfile",
        "metadata": {"name": "whole"},
        "spec": {
            "template": {"status": {"capacity": {"cpu": "8", "memory": "32Gi"}}},
            "kubeletConfiguration": {"nodeStatusUpdateFrequency": "1s", **configuration},
        },
    }


def spawned(world: World, prefix: str, document: Json) -> Iterator[Running]:
    path = world.root / f"{prefix}.yaml"
    path.write_text(yaml.safe_dump(document))
    with world.spawn(prefix, 1, f"--profile={path}") as run:
        run.until_ready()
        yield run
        world.kubectl("delete", "pods", "-l", f"test={prefix}", "--now")
        run.end_well_or_late()
    world.assert_nothing_left(prefix)


@pytest.fixture(scope="module")
def fleet(world: World) -> Iterator[Running]:
    """One node with 8 CPUs."""
    yield from spawned(world, "whole", profile())


@pytest.fixture(scope="module")
def ungated(world: World) -> Iterator[Running]:
    """One node whose kubelet does not resize pods as a whole."""
    yield from spawned(world, "ungated", profile(featureGates={GATE: False}))


def own(cpu: str, memory: str = "256Mi") -> Json:
    amounts = {"cpu": cpu, "memory": memory}
    return {"requests": amounts, "limits": amounts}


def start(
    world: World, name: str, cpu: str, node: str = NODE, notes: dict[str, str] | None = None
) -> None:
    """Have a pod run whose containers have no resources, but it itself."""
    container = {"name": "c", "image": "registry.k8s.io/pause:3.10.1"}
    labels = {"test": node.partition("-")[0]}
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "annotations": notes or {}},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 1,
                "resources": own(cpu),
                "containers": [container],
            },
        }
    )
    eventually(lambda: condition(world.get("pod", name), "Ready") == "True", f"{name} is Ready")


def resize(world: World, name: str, resources: Json) -> str:
    patch = json.dumps({"spec": {"resources": resources}})
    done = ("patch", "pod", name, "--subresource=resize", "-p", patch)
    return world.kubectl(*done)


def status(world: World, name: str) -> Json:
    found: Json = world.get("pod", name)["status"]
    return found


def allocated(world: World, name: str) -> Json:
    found: Json = status(world, name)["allocatedResources"]
    return found


def shown(world: World, name: str) -> Json:
    found: Json = status(world, name)["resources"]
    return found


def told(world: World, name: str, kind: str) -> Json:
    """Return a condition of a pod, {} if it is not there."""
    conditions = status(world, name)["conditions"]
    found: Json = next((each for each in conditions if each["type"] == kind), {})
    return found


def events(world: World, name: str, reason: str) -> list[str]:
    found = world.items("events", "--field-selector", f"involvedObject.name={name},reason={reason}")
    return [each["message"] for each in found]


@pytest.mark.usefixtures("fleet")
def test_a_pod_is_resized_as_it_runs(world: World) -> None:
    start(world, "grows", "1")
    assert shown(world, "grows") == own("1")
    before = status(world, "grows")["containerStatuses"][0]["containerID"]
    resize(world, "grows", own("2", "512Mi"))
    eventually(lambda: events(world, "grows", "ResizeCompleted"), "the resize is complete")
    eventually(lambda: shown(world, "grows")["limits"] == own("2", "512Mi")["limits"], "its limits")
    assert allocated(world, "grows") == {"cpu": "2", "memory": "512Mi"}
    # No cgroup has a request of memory, so that the status goes on to say what it said.
    assert shown(world, "grows")["requests"] == {"cpu": "2", "memory": "256Mi"}
    [container] = status(world, "grows")["containerStatuses"]
    assert (container["containerID"], container["restartCount"]) == (before, 0)
    [message] = events(world, "grows", "ResizeStarted")
    assert message == (
        'Pod resize started: {"containers":[{"name":"c","resources":{}}],"generation":2}'
    )
    eventually(lambda: not told(world, "grows", IN_PROGRESS), "nothing is in progress")
    world.kubectl("delete", "pod", "grows")


def test_it_waits_for_room_also_when_the_kubelet_starts_anew(world: World, fleet: Running) -> None:
    start(world, "waits", "3")
    start(world, "beside", "4")
    resize(world, "waits", own("6"))
    eventually(lambda: told(world, "waits", PENDING), "it is pending")
    found = told(world, "waits", PENDING)
    assert (found["reason"], found["observedGeneration"]) == ("Deferred", 2)
    text = "Node didn't have enough resource: cpu, requested: 6000, used: 4000, capacity: 8000"
    assert found["message"] == text
    eventually(lambda: events(world, "waits", "ResizeDeferred"), "its event")
    fleet.process.send_signal(signal.SIGHUP)
    fleet.until("SIGHUP: restarting")
    eventually(
        lambda: told(world, "waits", PENDING)["lastProbeTime"] != found["lastProbeTime"],
        "the new kubelet has looked at it: the old one did so every three minutes",
    )
    again = told(world, "waits", PENDING)
    assert (again["reason"], again["message"]) == ("Deferred", text)
    assert allocated(world, "waits")["cpu"] == "3"
    assert shown(world, "waits")["limits"]["cpu"] == "3"
    world.kubectl("delete", "pod", "beside")
    eventually(lambda: allocated(world, "waits")["cpu"] == "6", "the other has left room")
    eventually(lambda: shown(world, "waits")["limits"]["cpu"] == "6", "it has what it was given")
    eventually(lambda: not told(world, "waits", PENDING), "nothing is pending")
    assert len(events(world, "waits", "ResizeDeferred")) == 1
    assert status(world, "waits")["containerStatuses"][0]["restartCount"] == 0
    world.kubectl("delete", "pod", "waits")


@pytest.mark.usefixtures("fleet")
def test_a_resize_that_cannot_be_applied_until_it_can(world: World) -> None:
    start(world, "fails", "1", notes={ERROR: "cgroup is busy"})
    resize(world, "fails", own("2"))
    eventually(lambda: told(world, "fails", IN_PROGRESS).get("reason") == "Error", "the error")
    assert told(world, "fails", IN_PROGRESS)["message"] == "cgroup is busy"
    assert allocated(world, "fails")["cpu"] == "2"
    assert shown(world, "fails")["limits"]["cpu"] == "1"
    eventually(lambda: events(world, "fails", "ResizeError"), "its event")
    world.kubectl("annotate", "pod", "fails", f"{ERROR}-")
    eventually(lambda: shown(world, "fails")["limits"]["cpu"] == "2", "it is applied")
    eventually(lambda: not told(world, "fails", IN_PROGRESS), "nothing is in progress")
    eventually(lambda: events(world, "fails", "ResizeCompleted"), "the resize is complete")
    world.kubectl("delete", "pod", "fails")


@pytest.mark.usefixtures("ungated")
def test_a_node_that_does_not_declare_it_is_not_asked(world: World) -> None:
    start(world, "plain", "1", node=OLD)
    assert GATE not in world.get("node", OLD)["status"]["declaredFeatures"]
    assert "resources" not in status(world, "plain")
    assert "allocatedResources" not in status(world, "plain")
    patch = json.dumps({"spec": {"resources": own("2")}})
    refused = ("patch", "pod", "plain", "--subresource=resize", "-p", patch)
    assert not world.kubectl(*refused, check=False)
    assert world.get("pod", "plain")["spec"]["resources"] == own("1")
    world.kubectl("delete", "pod", "plain")
