"""Probes on a real control plane: readiness and endpoints, liveness and restarts, startup gates."""

from collections.abc import Iterator

import pytest
from e2e_world import Json, World, condition, eventually, workload

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

IMAGE = "registry.k8s.io/pause:3.10.1"
HTTP = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}


@pytest.fixture(scope="module")
def nodes(world: World) -> Iterator[None]:
    """Run two nodes for all tests of this file."""
    with world.spawn("probed", 2) as run:
        run.until_ready()
        yield
        run.end_well_or_late()
    world.assert_nothing_left("probed")


def notes(**timelines: str) -> dict[str, str]:
    return {f"fleet.emulator/{kind}-probe": text for kind, text in timelines.items()}


def annotate(world: World, *pods: str, **timelines: str) -> None:
    """Change what probes of pods meet."""
    changes = [f"{key}={text}" for key, text in notes(**timelines).items()]
    world.kubectl("annotate", "pods", "--overwrite", *pods, *changes)


def pod(name: str, annotations: dict[str, str], **spec: object) -> Json:
    """Return a Pod; a container `c` takes the probes of the spec."""
    container: Json = {"name": "c", "image": IMAGE}
    container |= {key: spec.pop(key) for key in list(spec) if key.endswith("Probe")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def container(world: World, name: str, field: str = "containerStatuses") -> Json:
    found: Json = world.get("pod", name)["status"].get(field, [{}])[0]
    return found


def events(world: World, name: str, reason: str) -> dict[str, int]:
    found = world.items("events", "--field-selector", f"involvedObject.name={name},reason={reason}")
    return {each["message"]: each["count"] for each in found}


def endpoints(world: World, service: str) -> list[bool]:
    """Return the ready condition of every endpoint of a Service."""
    slices = world.items("endpointslices", "-l", f"kubernetes.io/service-name={service}")
    return [
        each["conditions"]["ready"] for found in slices for each in found.get("endpoints") or ()
    ]


@pytest.mark.usefixtures("nodes")
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


@pytest.mark.usefixtures("nodes")
def test_every_handler_says_what_a_real_one_says(world: World) -> None:
    handlers: dict[str, Json] = {
        "http": {"httpGet": {"path": "/", "port": 80}},
        "tcp": {"tcpSocket": {"port": 81}},
        "grpc": {"grpc": {"port": 82}},
        "exec": {"exec": {"command": ["sh", "-c", "echo not yet; exit 1"]}},
    }
    containers = [
        {"name": name, "image": IMAGE, "readinessProbe": probe} for name, probe in handlers.items()
    ]
    world.apply(pod("unwell", notes(readiness="Failure"), containers=containers[:3]))
    world.apply(pod("unwell-exec", {}, containers=containers[3:]))
    eventually(
        lambda: (
            len(events(world, "unwell", "Unhealthy")) == 3
            and events(world, "unwell-exec", "Unhealthy")
        ),
        "every probe has failed",
    )
    ip = world.get("pod", "unwell")["status"]["podIP"]
    assert set(events(world, "unwell", "Unhealthy")) == {
        "Readiness probe failed: HTTP probe failed with statuscode: 503",
        f"Readiness probe failed: dial tcp {ip}:81: connect: connection refused",
        'Readiness probe failed: service unhealthy (responded with "NOT_SERVING")',
    }
    assert list(events(world, "unwell-exec", "Unhealthy")) == ["Readiness probe failed: not yet\n"]
    fields = "involvedObject.name=unwell,reason=Unhealthy"
    found = world.items("events", "--field-selector", fields)
    assert {each["involvedObject"]["fieldPath"] for each in found} == {
        f"spec.containers{{{name}}}" for name in ("http", "tcp", "grpc")
    }
    assert {(each["type"], each["source"]["component"]) for each in found} == {
        ("Warning", "kubelet")
    }
    world.kubectl("delete", "pod", "unwell", "unwell-exec", "--wait=false")


@pytest.mark.usefixtures("nodes")
def test_liveness_restarts_and_startup_gates(world: World) -> None:
    """Three pods at once: one keeps dying, one is slow to start, one has a sidecar that is."""
    liveness = {"exec": {"command": ["cat", "/tmp/healthy"]}, "periodSeconds": 1}
    no_file = "cat: /tmp/healthy: No such file or directory"
    sidecar = {
        "name": "side",
        "image": IMAGE,
        "restartPolicy": "Always",
        "startupProbe": {"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 300},
    }
    world.apply(
        pod(
            "dying",
            notes(liveness=f"[{{after: 3s, result: Failure, output: '{no_file}'}}]"),
            livenessProbe={**liveness, "failureThreshold": 2},
        ),
        pod(
            "slow",
            notes(startup="Success after 1h", liveness="Success"),
            startupProbe={**HTTP, "failureThreshold": 300},
            livenessProbe={**HTTP, "failureThreshold": 1},
        ),
        pod("sided", notes(startup="Success after 1h"), initContainers=[sidecar]),
    )
    eventually(lambda: container(world, "slow").get("state", {}).get("running"), "slow runs")
    slow = container(world, "slow")
    assert slow["started"] is False
    assert slow["ready"] is False
    eventually(lambda: container(world, "sided").get("state"), "its status")
    waiting = container(world, "sided")
    assert waiting["state"]["waiting"]["reason"] == "PodInitializing"
    eventually(lambda: container(world, "dying").get("restartCount"), "dying was restarted")
    killed = "Container c failed liveness probe, will be restarted"
    eventually(lambda: events(world, "dying", "Killing"), "its event")
    assert set(events(world, "dying", "Killing")) == {killed}
    assert set(events(world, "dying", "Unhealthy")) == {f"Liveness probe failed: {no_file}"}
    last = container(world, "dying")["lastState"]["terminated"]
    assert last["reason"] in {"Completed", "Error"}
    eventually(lambda: events(world, "slow", "Unhealthy"), "its startup probe has failed")
    annotate(world, "slow", "sided", startup="Success")
    for name in ("slow", "sided"):
        world.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
    assert container(world, "slow")["started"]
    assert container(world, "slow")["restartCount"] == 0
    assert container(world, "sided", "initContainerStatuses")["started"]
    described = world.kubectl("describe", "pod", "slow")
    assert "Startup probe failed: Get" in described
    assert "Liveness probe failed" not in described
    world.kubectl("delete", "pod", "dying", "slow", "sided", "--wait=false")
    eventually(
        lambda: not any(world.pods(name) for name in ("dying", "slow", "sided")),
        "the pods are gone",
    )
