"""Real workloads through the real scheduler and controllers on virtual nodes."""

import json
from datetime import datetime

import pytest
from e2e_world import Json, World, condition, eventually, workload
from world import everyday_pods

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


KEPT = "fleet.example/kept"
"""A finalizer: what its kubelet said of a pod can be read though it has deleted the pod."""


def test_everyday_pods_come_up_complete_and_are_stopped(world: World) -> None:
    """Probes of any port, unknown init containers and Jobs, disruption, hooks, SIGTERM."""
    files = everyday_pods
    servers, jobs, disrupted, stopped = (
        [each for text in texts for each in files.objects_of(text)]
        for texts in (
            (files.PROBES, files.INIT_CONTAINERS),
            (files.BATCH_COMMANDS,),
            (files.JOB_DISRUPTION,),
            (files.PRESTOP, files.STUBBORN),
        )
    )
    for each in stopped:
        each["metadata"]["finalizers"] = [KEPT]
    with world.spawn("everyday", 3) as run:
        run.until_ready()
        world.apply(*servers, *jobs, *stopped, *disrupted)
        for job in ("trains", "replaces"):
            _disrupt(world, job)
        names = [f"pod/{each['metadata']['name']}" for each in (*servers, *stopped)]
        world.kubectl("wait", "--for=condition=Ready", *names, "--timeout=60s")
        world.kubectl("delete", "--wait=false", *(f"pod/{_name(each)}" for each in stopped))
        asked_s = [_asked_s(world, _name(each)) for each in stopped]
        names = [f"job/{_name(each)}" for each in jobs]
        world.kubectl("wait", "--for=condition=Complete", *names, "job/replaces", "--timeout=60s")
        assert _made(world, "replaces") == 3
        trains = world.get("job", "trains")["status"]
        eventually(lambda: world.get("job", "trains")["status"].get("failed"), "one has failed")
        assert (trains.get("succeeded", 0), "conditions" in trains) == (0, False)
        eventually(lambda: _made(world, "trains") == 2, "the Job replaces it")
        drained, killed = (_ended(world, _name(each)) for each in stopped)
        assert (drained["exitCode"], killed["exitCode"]) == (0, 137)
        assert _seconds(drained["finishedAt"]) - asked_s[0] >= 10
        assert _seconds(killed["finishedAt"]) - asked_s[1] >= 8
        for each in servers:
            statuses = world.get("pod", _name(each))["status"]["containerStatuses"]
            assert all(one["ready"] and not one["restartCount"] for one in statuses), _name(each)
        world.kubectl("delete", "--now", "pod,job", "--all")
        run.end_well_or_late()
    world.assert_nothing_left("everyday")


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _made(world: World, job: str) -> int:
    """Count the pods that a Job has made."""
    wanted = f"involvedObject.name={job},reason=SuccessfulCreate"
    return sum(
        each.get("count") or 1 for each in world.items("events", f"--field-selector={wanted}")
    )


def _disrupt(world: World, job: str) -> None:
    """Delete a running pod of `trains`; evict one of `replaces`."""
    selector = f"batch.kubernetes.io/job-name={job}"

    def running() -> list[str]:
        found = world.items("pods", "-l", selector)
        return [_name(each) for each in found if each["status"].get("phase") == "Running"]

    eventually(running, f"a pod of {job} runs", poll_s=0.1)
    name = running()[0]
    if job == "trains":
        world.kubectl("delete", "pod", name, "--wait=false")
        return
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
    }
    path = f"/api/v1/namespaces/default/pods/{name}/eviction"
    world.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def _ended(world: World, name: str) -> Json:
    """Return how the container of a pod ended that was deleted, then let the pod go."""

    def state() -> Json | None:
        (status,) = world.get("pod", name)["status"]["containerStatuses"]
        found: Json | None = status["state"].get("terminated")
        return found

    eventually(state, f"{name} has ended")
    found = state() or {}
    world.kubectl("patch", "pod", name, "--patch", '{"metadata":{"finalizers":null}}')
    return found


def _asked_s(world: World, name: str) -> float:
    """Return when the deletion of a pod was asked for that still takes its grace."""
    meta = world.get("pod", name)["metadata"]
    assert meta["deletionGracePeriodSeconds"], name
    return _seconds(meta["deletionTimestamp"]) - float(meta["deletionGracePeriodSeconds"])


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
