"""Real workloads through the real scheduler and controllers on virtual nodes."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from world.everyday_pods import objects_of

from e2e.e2e_world import Json, World, condition, eventually, workload

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_deployment_and_a_job_live_their_whole_life_in_light(world: World) -> None:
    """200 pods on 50 nodes become Ready, are scaled down and deleted; a Job completes."""
    app, job = "web", "batch"
    with world.spawn("w", 50, "--fidelity=light") as run:
        run.until_ready()
        nodes = world.nodes("w")
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
        assert {condition(node, "Ready") for node in world.nodes("w").values()} == {"True"}
        run.end_well_or_late()
    world.assert_nothing_left("w")


@pytest.mark.usefixtures("stage")
def test_a_drained_node_gives_its_pods_to_the_others(world: World) -> None:
    world.apply(workload("Deployment", "drained", 12))
    world.kubectl("rollout", "status", "deployment/drained", "--timeout=120s")
    nodes = set(world.nodes("stage"))
    gone = min(pod["spec"]["nodeName"] for pod in world.pods("drained"))
    world.kubectl("cordon", gone)
    # Or the scheduler may not know of it yet when the first of the others needs a node.
    eventually(lambda: world.nodes("stage")[gone]["spec"].get("taints"), "the controller's taint")
    world.kubectl("drain", gone, "--timeout=120s")
    eventually(lambda: len(world.ready_pods("drained")) == 12, "all are Ready again")
    assert {pod["spec"]["nodeName"] for pod in world.pods("drained")} <= nodes - {gone}
    node = world.nodes("stage")[gone]
    assert node["spec"]["unschedulable"]
    assert condition(node, "Ready") == "True"
    world.kubectl("uncordon", gone)
    world.kubectl("delete", "deployment", "drained", "--wait=false")
    eventually(lambda: not world.pods("drained"), "the pods are gone")


KEPT = "fleet.example/kept"
"""A finalizer: what its kubelet said of a pod can be read though it has deleted the pod."""


@pytest.mark.usefixtures("stage")
def test_everyday_pods_come_up_complete_and_are_stopped(world: World) -> None:
    """Probes of any port, unknown init containers and Jobs, disruption, hooks, SIGTERM."""
    servers, jobs, disrupted, stopped = (
        [each for name in names for each in objects_of(name)]
        for names in (
            ("probes", "init-containers"),
            ("batch-commands",),
            ("job-disruption",),
            ("prestop", "stubborn"),
        )
    )
    for each in stopped:
        each["metadata"]["finalizers"] = [KEPT]
    world.apply(*servers, *jobs, *stopped, *disrupted)
    for job in ("trains", "replaces"):
        _disrupt(world, job)
    names = [f"pod/{each['metadata']['name']}" for each in (*servers, *stopped)]
    world.kubectl("wait", "--for=condition=Ready", *names, "--timeout=120s")
    world.kubectl("delete", "--wait=false", *(f"pod/{_name(each)}" for each in stopped))
    asked_s = [_asked_s(world, _name(each)) for each in stopped]
    names = [f"job/{_name(each)}" for each in jobs]
    world.kubectl("wait", "--for=condition=Complete", *names, "job/replaces", "--timeout=120s")
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


HTTP = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}


def notes(**timelines: str) -> dict[str, str]:
    return {f"fleet.emulator/{kind}-probe": text for kind, text in timelines.items()}


def annotate(world: World, *pods: str, **timelines: str) -> None:
    """Change what probes of pods meet."""
    changes = [f"{key}={text}" for key, text in notes(**timelines).items()]
    world.kubectl("annotate", "pods", "--overwrite", *pods, *changes)


def events(world: World, name: str, reason: str) -> dict[str, int]:
    found = world.items("events", "--field-selector", f"involvedObject.name={name},reason={reason}")
    return {each["message"]: each["count"] for each in found}


def endpoints(world: World, service: str) -> list[bool]:
    """Return the ready condition of every endpoint of a Service."""
    slices = world.items("endpointslices", "-l", f"kubernetes.io/service-name={service}")
    return [
        each["conditions"]["ready"] for found in slices for each in found.get("endpoints") or ()
    ]


@pytest.mark.usefixtures("stage")
def test_readiness_decides_about_endpoints(world: World) -> None:
    """A Deployment comes up after some seconds, and leaves its Service when it fails."""
    app = "ready-later"
    deployment = workload("Deployment", app, 3)
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"] = notes(readiness="Success after 1h")
    template["spec"]["containers"][0]["readinessProbe"] = HTTP
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": app},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80}]},
    }
    world.apply(deployment, service)
    eventually(lambda: endpoints(world, app) == [False] * 3, "three endpoints, none ready")
    pods = world.pods(app)
    assert {condition(each, "Ready") for each in pods} == {"False"}
    assert {each["status"]["phase"] for each in pods} == {"Running"}
    [reason] = [c["reason"] for c in pods[0]["status"]["conditions"] if c["type"] == "Ready"]
    assert reason == "ContainersNotReady"
    annotate(world, "-l", f"app={app}", readiness="Success after 2s")
    world.kubectl("rollout", "status", f"deployment/{app}", "--timeout=120s")
    eventually(lambda: endpoints(world, app) == [True] * 3, "three ready endpoints")
    for each in world.pods(app):
        name, ip = each["metadata"]["name"], each["status"]["podIP"]
        started, ready = (
            next(c["lastTransitionTime"] for c in each["status"]["conditions"] if c["type"] == kind)
            for kind in ("PodReadyToStartContainers", "Ready")
        )
        assert started < ready
        refused = f"dial tcp {ip}:8080: connect: connection refused"
        assert list(events(world, name, "Unhealthy")) == [
            f'Readiness probe failed: Get "http://{ip}:8080/healthz": {refused}'
        ]
    name = world.pods(app)[0]["metadata"]["name"]
    annotate(world, name, readiness="Failure")
    eventually(
        lambda: sorted(endpoints(world, app)) == [False, True, True],
        "one endpoint less",
    )
    world.kubectl("delete", "deployment,service", app, "--wait=false")


ONCE = "[ -e /data/tried ] && exit 0; touch /data/tried; exit 7"
INDEX = "exit $(JOB_COMPLETION_INDEX)"


def job(name: str, script: str, volume: Json | None, **spec: object) -> Json:
    """Return a Job of one container that runs a script, with a volume at /data."""
    container: Json = {"name": "c", "image": "busybox", "command": ["sh", "-c", script]}
    pod: Json = {"containers": [container], "restartPolicy": spec.pop("restart", "Never")}
    pod["nodeSelector"] = {"kubernetes.io/hostname": "stage-00000"}  # it has the file of before
    if volume is not None:
        pod["volumes"] = [{"name": "data", **volume}]
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    labels = {"metadata": {"labels": {"app": name}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": {**labels, "spec": pod}, **spec},
    }


def ends(world: World, name: str, end: str) -> None:
    """Wait for the final condition of a Job."""

    def has_ended() -> bool:
        found = world.get("job", name)["status"].get("conditions", ())
        return end in {each["type"] for each in found}

    eventually(has_ended, f"the Job {name} is {end}")


@pytest.mark.usefixtures("stage")
def test_scripts_decide_how_jobs_end(world: World) -> None:
    """A file in an emptyDir outlives the container, one on the host the pod; indexes differ."""
    host = {"hostPath": {"path": "/tmp/job", "type": "DirectoryOrCreate"}}
    world.apply(
        job("local", ONCE, {"emptyDir": {}}, restart="OnFailure"),
        job("host", ONCE, host, backoffLimit=1),
        job(
            "index",
            INDEX,
            None,
            completionMode="Indexed",
            completions=4,
            parallelism=4,
            backoffLimitPerIndex=0,
        ),
    )
    for name, end in (("local", "Complete"), ("host", "Complete"), ("index", "Failed")):
        ends(world, name, end)
    [pod] = world.pods("local")
    [status] = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 7
    assert status["state"]["terminated"]["reason"] == "Completed"
    phases = sorted(pod["status"]["phase"] for pod in world.pods("host"))
    assert phases == ["Failed", "Succeeded"]
    assert world.get("job", "index")["status"]["completedIndexes"] == "0"
    world.kubectl("delete", "jobs", "--all", "--wait=false")


CHARTS = sorted(Path(__file__).with_name("public_charts").glob("*.yaml"))
"""Manifests written for this test. They name programs and images that fleet knows nothing about."""
PLURALS = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "Job": "jobs",
}


def is_up(found: Json) -> bool:
    """Return whether a workload has reached the state that its chart is meant for."""
    status = found.get("status", {})
    match found["kind"]:
        case "DaemonSet":
            wanted = status.get("desiredNumberScheduled", 0)
            return bool(wanted) and status.get("numberReady") == wanted
        case "Job":
            conditions = status.get("conditions", ())
            return "Complete" in {each["type"] for each in conditions}
        case _:
            return bool(status.get("readyReplicas", 0) == found["spec"]["replicas"])


@pytest.mark.usefixtures("stage")
def test_shapes_of_public_charts_become_ready_or_complete(world: World) -> None:
    """No container restarts on the way, and no Job needs a second pod."""
    objects = [each for path in CHARTS for each in yaml.safe_load_all(path.read_text())]
    workloads = [each for each in objects if each["kind"] in PLURALS]
    wanted = {(each["kind"], each["metadata"]["name"]) for each in workloads}
    assert len(wanted) >= 35
    world.kubectl("create", "namespace", "charts")
    world.kubectl("apply", "--namespace=charts", *(f"--filename={path}" for path in CHARTS))

    def behind() -> list[str]:
        found = [
            {"kind": kind, **each}
            for kind, plural in PLURALS.items()
            for each in world.items(plural, "--namespace=charts")
        ]
        up = {(each["kind"], each["metadata"]["name"]) for each in found if is_up(each)}
        return sorted(f"{kind} {name}" for kind, name in wanted - up)

    eventually(lambda: not behind(), "every chart is up", seen=behind)
    restarts: Counter[str] = Counter()
    for pod in world.items("pods", "--namespace=charts"):
        status = pod["status"]
        assert status["phase"] in ("Running", "Succeeded"), (pod["metadata"]["name"], status)
        containers = status.get("initContainerStatuses", []) + status["containerStatuses"]
        restarts[pod["metadata"]["name"]] = sum(each["restartCount"] for each in containers)
    assert not +restarts
    world.kubectl("delete", "namespace", "charts", "--wait=false")
