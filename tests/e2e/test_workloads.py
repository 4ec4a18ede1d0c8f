"""Real workloads through the real scheduler and controllers on virtual nodes."""

import pytest
from e2e_world import Json, World, condition, eventually, workload

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fidelity", ["kubelet", "light"])
def test_a_deployment_and_a_job_live_their_whole_life(world: World, fidelity: str) -> None:
    """200 pods on 50 nodes become Ready, are scaled down and deleted; a Job completes."""
    app, job = f"web-{fidelity}", f"batch-{fidelity}"
    with world.spawn(f"w-{fidelity}", 50, f"--fidelity={fidelity}") as run:
        run.until_ready()
        nodes = world.nodes(f"w-{fidelity}")
        assert len(nodes) == 50
        world.apply(workload("Deployment", app, 200))
        world.kubectl("rollout", "status", f"deployment/{app}", "--timeout=120s")
        pods = world.ready_pods(app)
        assert len(pods) == 200
        assert len({pod["status"]["podIP"] for pod in pods}) == 200
        for pod in pods:
            node = nodes[pod["spec"]["nodeName"]]
            addresses = {each["address"] for each in node["status"]["addresses"]}
            assert pod["status"]["hostIP"] in addresses
            assert pod["status"]["phase"] == "Running"
        world.kubectl("scale", f"deployment/{app}", "--replicas=20")
        eventually(lambda: len(world.pods(app)) == 20, "scaled to 20")
        assert len(world.ready_pods(app)) == 20
        world.kubectl("delete", "deployment", app, "--wait=false")
        eventually(lambda: not world.pods(app), "the deployment's pods are gone")
        world.apply(workload("Job", job, 10))
        world.kubectl("wait", "--for=condition=Complete", f"job/{job}", "--timeout=120s")
        assert {pod["status"]["phase"] for pod in world.pods(job)} == {"Succeeded"}
        world.kubectl("delete", "job", job, "--wait=false")
        eventually(lambda: not world.pods(job), "the job's pods are gone")
        assert {condition(node, "Ready") for node in world.nodes(f"w-{fidelity}").values()} == {
            "True"
        }
        run.end_well_or_late()
    world.assert_nothing_left(f"w-{fidelity}")


def test_a_drained_node_gives_its_pods_to_the_others(world: World) -> None:
    with world.spawn("drain", 3) as run:
        run.until_ready()
        world.apply(workload("Deployment", "drained", 12))
        world.kubectl("rollout", "status", "deployment/drained", "--timeout=120s")
        assert {pod["spec"]["nodeName"] for pod in world.pods("drained")} == set(
            world.nodes("drain")
        )
        world.kubectl("drain", "drain-00001", "--timeout=120s")
        eventually(lambda: len(world.ready_pods("drained")) == 12, "all are Ready again")
        assert {pod["spec"]["nodeName"] for pod in world.pods("drained")} == {
            "drain-00000",
            "drain-00002",
        }
        node = world.nodes("drain")["drain-00001"]
        assert node["spec"]["unschedulable"]
        assert condition(node, "Ready") == "True"
        world.kubectl("delete", "deployment", "drained", "--wait=false")
        run.end_well_or_late()
    world.assert_nothing_left("drain")


LABEL = "fleet.emulator/workload"
SHIPPED = {
    "web": "Ready",
    "crashloop": "Error",
    "oom": "OOMKilled",
    "bad-image": "ImagePullBackOff",
    "ml-training": "ContainerCreating",
}
"""What is seen of each shipped behaviour; images of 10 GB take longer than a test."""


def behaving(name: str) -> Json:
    """Return a pod of a shipped behaviour; a container of more than 50 MiB is killed."""
    container: Json = {"name": "c", "image": f"example.com/{name}:1"}
    if name == "oom":
        container["resources"] = {"limits": {"memory": "50Mi"}}
    if name == "web":
        probe = {"httpGet": {"port": 80}, "periodSeconds": 1, "failureThreshold": 60}
        container["startupProbe"] = probe
    labels = {"app": name, LABEL: name}
    made: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}
    return made | {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}


def shown(pod: Json) -> set[str]:
    """Return what `kubectl get pods` may show of its container, now and before."""
    words = {"Ready"} if condition(pod, "Ready") == "True" else set()
    for each in pod["status"].get("containerStatuses", ()):
        for state in (*each["state"].values(), *each["lastState"].values()):
            words.add(state.get("reason", ""))
    return words


def test_the_behaviours_that_ship_behave(world: World) -> None:
    profiles = ("default", *SHIPPED)
    with world.spawn("shipped", 3, *(f"--profile={each}" for each in profiles)) as run:
        run.until_ready()
        world.apply(*(behaving(name) for name in SHIPPED))

        seen: dict[str, set[str]] = {name: set() for name in SHIPPED}

        def is_all_seen() -> bool:
            for pod in world.items("pods"):
                seen[pod["metadata"]["name"]] |= shown(pod)
            return all(word in seen[name] for name, word in SHIPPED.items())

        eventually(is_all_seen, "all behave", seen=lambda: seen)
        assert "Ready" not in seen["bad-image"]
        # In order, a pod that pulls would stay until its image is there: minutes.
        world.kubectl("delete", "pod", *SHIPPED, "--force", "--grace-period=0")
        eventually(lambda: not world.items("pods"), "they are gone")
        run.end_well_or_late()
    world.assert_nothing_left("shipped")
