"""Static pods, runtime outages and node shutdown on a real control plane, as a user sees them."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from e2e.e2e_world import Json, World, condition, eventually, workload

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

IMAGE = "registry.k8s.io/pause:3.10.1"
HASH, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"


def profile(path: Path, **spec: object) -> str:
    """Write a node profile; return the option that names it."""
    document = {
        "apiVersion": "fleet.emulator/v1alpha1",
        "kind": "NodeProfile",
        "metadata": {"name": path.stem},
        "spec": spec,
    }
    path.write_text(yaml.safe_dump(document))
    return f"--profile={path}"


def manifest(name: str, image: str = IMAGE, **spec: object) -> str:
    container = {"name": "c", "image": image}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"app": name}},
        "spec": {
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "containers": [container],
            **spec,
        },
    }
    return yaml.safe_dump(pod)


def mirrors(world: World, app: str) -> dict[str, Json]:
    found = world.items("pods", "-n", "kube-system", "-l", f"app={app}")
    return {pod["metadata"]["name"]: pod for pod in found}


def running(world: World, app: str, count: int) -> bool:
    pods = mirrors(world, app).values()
    return len(pods) == count and all(condition(pod, "Ready") == "True" for pod in pods)


def test_static_pods_are_mirrored_kept_in_step_and_removed(world: World, tmp_path: Path) -> None:
    """Under the identity of nodes: NodeRestriction is content."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "agent.yaml").write_text(manifest("agent"))
    option = profile(
        tmp_path / "static.yaml",
        kubeletConfiguration={
            "staticPodPath": str(manifests),
            "fileCheckFrequency": "1s",
        },
    )
    with world.spawn("stat", 2, option) as run:
        run.until_ready()
        eventually(lambda: running(world, "agent", 2), "both mirrors are Ready")
        agent = mirrors(world, "agent")["agent-stat-00000"]
        notes, meta = agent["metadata"]["annotations"], agent["metadata"]
        assert notes[HASH] == notes[MIRROR]
        assert notes["kubernetes.io/config.source"] == "file"
        node = world.get("node", "stat-00000")
        assert meta["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
        assert {"operator": "Exists", "effect": "NoExecute"} in agent["spec"]["tolerations"]
        assert agent["spec"]["priority"] == 2000001000
        described = world.kubectl("describe", "pod", "-n", "kube-system", "agent-stat-00000")
        assert re.search(r"Controlled By: +Node/stat-00000\n", described)
        eventually(
            lambda: (
                "Container started"
                in world.kubectl("describe", "pod", "-n", "kube-system", "agent-stat-00000")
            ),
            "its events are found by its hash",
        )
        world.kubectl("delete", "pod", "-n", "kube-system", "agent-stat-00000", "--wait=false")
        eventually(
            lambda: (
                (again := mirrors(world, "agent").get("agent-stat-00000"))
                and again["metadata"]["uid"] != meta["uid"]
                and condition(again, "Ready") == "True"
            ),
            "the mirror is made again",
        )
        again = mirrors(world, "agent")["agent-stat-00000"]
        ids = [pod["status"]["containerStatuses"][0]["containerID"] for pod in (agent, again)]
        assert ids[0] == ids[1]
        (manifests / "agent.yaml").write_text(manifest("agent", "registry.k8s.io/pause:3.9"))
        eventually(
            lambda: (
                all(
                    pod["metadata"]["annotations"][HASH] != notes[HASH]
                    and pod["spec"]["containers"][0]["image"].endswith("3.9")
                    and condition(pod, "Ready") == "True"
                    for pod in mirrors(world, "agent").values()
                )
                and running(world, "agent", 2)
            ),
            "both nodes run the new manifest",
        )
        (manifests / "agent.yaml").unlink()
        eventually(lambda: not mirrors(world, "agent"), "the mirrors went with the file")
        run.end_well_or_late()
    world.assert_nothing_left("stat")


@pytest.mark.slow
def test_outages_of_the_runtime_and_a_late_network(world: World, tmp_path: Path) -> None:
    option = profile(
        tmp_path / "outages.yaml",
        kubeletConfiguration={"nodeStatusUpdateFrequency": "1s"},
        runtime={
            "networkReadyDelay": "8s",
            "outages": [
                {
                    "kind": "RuntimeNotReady",
                    "from": "18s",
                    "for": "10s",
                    "reason": "Upgrade",
                    "message": "being replaced",
                }
            ],
        },
    )

    def message(name: str) -> str:
        nodes = world.nodes("down")
        conditions = nodes[name]["status"].get("conditions", ()) if name in nodes else ()
        return next((str(each["message"]) for each in conditions if each["type"] == "Ready"), "")

    begin = world.get("nodes")["metadata"]["resourceVersion"]

    def said() -> list[str]:
        """Return what the node has said of itself so far, also what nobody looked at in time."""
        since = f"watch=true&resourceVersion={begin}&timeoutSeconds=2"
        events = world.kubectl("get", "--raw", f"/api/v1/nodes?{since}").splitlines()
        nodes = [json.loads(each)["object"] for each in events]
        texts = [
            str(each["message"])
            for node in nodes
            if node["metadata"]["name"] == "down-00000"
            for each in node["status"].get("conditions", ())
            if each["type"] == "Ready"
        ]
        return [text for text, _ in itertools.groupby(texts)]

    with world.spawn("down", 1, option) as run:
        no_network = (
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
            "message:Network plugin returns error: cni plugin not initialized"
        )
        eventually(
            lambda: any(no_network in each for each in said()), "no network at first", seen=said
        )
        tolerations = [{"operator": "Exists"}]
        world.apply(workload("Deployment", "waits", 1, tolerations=tolerations))
        eventually(
            lambda: any(
                each["reason"] == "NetworkNotReady"
                and each["involvedObject"]["name"].startswith("waits-")
                for each in world.items("events")
            ),
            "a pod says that there is no network",
        )
        run.until_ready()
        eventually(lambda: len(world.ready_pods("waits")) == 1, "the pod starts")
        text = (
            "container runtime not ready: RuntimeReady=false reason:Upgrade message:being replaced"
        )
        eventually(lambda: text in said(), "the runtime is not ready", seen=said)
        eventually(
            lambda: any(
                each["reason"] == "NodeNotReady"
                and each["message"] == "Node down-00000 status is now: NodeNotReady"
                and each["source"]["component"] == "kubelet"
                for each in world.items("events", "--field-selector=involvedObject.kind=Node")
            ),
            "the kubelet's event",
        )
        eventually(lambda: message("down-00000") == "kubelet is posting ready status", "healed")
        assert said().index(text) < len(said()) - 1
        world.kubectl("delete", "deployment", "waits", "--wait=false")
        eventually(lambda: not world.pods("waits"), "the pod is gone")
        run.end_well_or_late()
    world.assert_nothing_left("down")


@pytest.mark.slow
def test_a_node_that_shuts_down_ends_its_pods_and_falls_silent(
    world: World, tmp_path: Path
) -> None:
    option = profile(
        tmp_path / "ends.yaml",
        kubeletConfiguration={
            "shutdownGracePeriod": "4s",
            "shutdownGracePeriodCriticalPods": "2s",
        },
        shutdown={"after": "30s"},
    )
    with world.spawn("ends", 1, option) as run:
        run.until_ready()
        pods = workload(
            "Deployment", "ended", 2, nodeSelector={"kubernetes.io/hostname": "ends-00000"}
        )
        # Their kill sets a status that says Failed. Had they ended before the GET that sending it
        # begins with is answered, it would go out as it is (status_manager.go, syncPod), for good.
        pods["spec"]["template"]["metadata"]["annotations"] = {"fleet.emulator/stop-time": "1.5s"}
        world.apply(pods)
        eventually(lambda: len(world.ready_pods("ended")) == 2, "the pods run")
        names = {pod["metadata"]["name"] for pod in world.pods("ended")}

        def ended() -> list[Json]:
            """Return those that are done: a container that exits with 0 has done its work."""
            pods = [pod for pod in world.pods("ended") if pod["metadata"]["name"] in names]
            return [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]

        eventually(lambda: len(ended()) == 2, "the pods are ended")
        for pod in ended():
            assert "reason" not in pod["status"]
            [target] = [
                each for each in pod["status"]["conditions"] if each["type"] == "DisruptionTarget"
            ]
            assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
        said = ("False", "KubeletNotReady", "node is shutting down")

        def is_said() -> bool:
            conditions = world.get("node", "ends-00000")["status"]["conditions"]
            [ready] = [each for each in conditions if each["type"] == "Ready"]
            return (ready["status"], ready["reason"], ready["message"]) == said

        eventually(is_said, "the node says so")
        about = "--field-selector=involvedObject.name=ends-00000,reason=Shutdown"
        eventually(lambda: world.items("events", about), "its event")
        [event] = world.items("events", about)
        assert event["message"] == "Shutdown manager detected shutdown event"
        world.kubectl("delete", "deployment", "ended", "--wait=false")
        run.end_well_or_late()
    world.kubectl("delete", "pods", "-l", "app=ended", "--force", "--grace-period=0", check=False)
    world.assert_nothing_left("ends")


@pytest.mark.slow
def test_a_machine_that_was_shut_down_boots(world: World, tmp_path: Path) -> None:
    option = profile(tmp_path / "boots.yaml", shutdown={"after": "20s", "offFor": "3s"})
    with world.spawn("boots", 1, option) as run:
        run.until_ready()
        before = world.get("node", "boots-00000")["status"]["nodeInfo"]["bootID"]

        def has_booted() -> bool:
            status = world.get("node", "boots-00000")["status"]
            return bool(status["nodeInfo"]["bootID"] != before)

        eventually(has_booted, "the machine has booted")
        about = "--field-selector=involvedObject.name=boots-00000,reason=Rebooted"
        eventually(lambda: world.items("events", about), "its event")
        run.end_well_or_late()
    world.assert_nothing_left("boots")


@pytest.mark.slow
def test_a_shutdown_that_is_cancelled_leaves_its_node_ready(world: World, tmp_path: Path) -> None:
    option = profile(
        tmp_path / "stays.yaml",
        kubeletConfiguration={"shutdownGracePeriod": "4s"},
        shutdown={"after": "15s", "powerOffDelay": "10s", "cancelAfter": "5s"},
    )
    with world.spawn("stays", 1, option) as run:
        run.until_ready()

        def is_ready() -> bool:
            conditions = world.get("node", "stays-00000")["status"]["conditions"]
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

        eventually(lambda: not is_ready(), "the node is shutting down")
        eventually(is_ready, "the node is Ready again")
        about = "--field-selector=involvedObject.name=stays-00000,reason=Shutdown"
        eventually(lambda: len(world.items("events", about)) == 2, "both events")
        run.end_well_or_late()
    world.assert_nothing_left("stays")
