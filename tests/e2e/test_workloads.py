"""Real workloads through the real scheduler and controllers on virtual nodes."""

import pytest
from e2e_world import World, condition, eventually, workload

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
