"""Containers on a real control plane: restarts, hooks, deadlines, sidecars, Jobs."""

import json
from collections.abc import Iterator
from itertools import count

import pytest
from e2e_world import Json, World, condition, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

IMAGE = "registry.k8s.io/e2e-test-images/agnhost:2.53"


def container(name: str = "c", script: str = "", **fields: object) -> Json:
    spec: Json = {"name": name, "image": IMAGE, **fields}
    if script:
        spec["command"] = ["sh", "-c", script]
    return spec


def pod(name: str, *containers: Json, notes: dict[str, str] | None = None, **spec: object) -> Json:
    annotations = {f"fleet.emulator/{key}": value for key, value in (notes or {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, "labels": {"app": "contained"}},
        "spec": {
            "containers": [*containers] or [container()],
            "terminationGracePeriodSeconds": 5,
            **spec,
        },
    }


def rules(action: str, code: int) -> Json:
    return {
        "restartPolicy": "Never",
        "restartPolicyRules": [
            {"action": action, "exitCodes": {"operator": "In", "values": [code]}}
        ],
    }


def hook(*command: str) -> Json:
    return {"exec": {"command": [*command]}}


def cpus(cpu: str) -> Json:
    return {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}


SIDE = {"restartPolicy": "Always"}
PODS = (
    pod("crash-loop", container(script="echo oops > /dev/termination-log; exit 3")),
    pod("ruled", container(script="sleep 1; exit 42", **rules("Restart", 42))),
    pod(
        "restart-all",
        container("source", "sleep 2; exit 88", **rules("RestartAllContainers", 88)),
        container("other"),
        restartPolicy="Never",
    ),
    pod("cannot-run", notes={"start-failure": "RunContainerError: no such file"}),
    pod("bad-hook", container(lifecycle={"postStart": hook("sh", "-c", "exit 4")})),
    pod("too-long", activeDeadlineSeconds=6),
    pod(
        "with-sidecar",
        container("main", "sleep 3"),
        initContainers=[container("init", "sleep 1"), container("side", **SIDE)],
        restartPolicy="Never",
    ),
    pod("debugged"),
    pod("resized", container(resources=cpus("1")), nodeName="contained-00000"),
    pod("neighbour", container(resources=cpus("3")), nodeName="contained-00000"),
    pod("slow-to-stop", container(lifecycle={"preStop": hook("false")})),
)


@pytest.fixture(scope="module")
def nodes(world: World) -> Iterator[None]:
    """Run two nodes, and all pods at once, for all tests of this file."""
    with world.spawn("contained", 2) as run:
        run.until_ready()
        world.apply(*PODS)
        yield
        world.kubectl("delete", "pod", "-l", "app=contained", "--now", "--wait=false")
        run.end_well_or_late()
    world.assert_nothing_left("contained")


def status(world: World, name: str) -> Json:
    found: Json = world.get("pod", name)["status"]
    return found


def state(world: World, name: str, container: str = "c", field: str = "containerStatuses") -> Json:
    statuses = status(world, name).get(field, ())
    found: Json = next((each for each in statuses if each["name"] == container), {})
    return found


def events(world: World, name: str, reason: str) -> dict[str, int]:
    found = world.items("events", "--field-selector", f"involvedObject.name={name},reason={reason}")
    return {each["message"]: each["count"] for each in found}


@pytest.mark.usefixtures("nodes")
def test_a_crash_loop(world: World) -> None:
    uid = world.get("pod", "crash-loop")["metadata"]["uid"]
    words = (
        "State: Waiting Reason: CrashLoopBackOff",
        "Last State: Terminated Reason: Error Message: oops Exit Code: 3",
        f"Back-off restarting failed container c in pod crash-loop_default({uid})",
    )

    polls = count()

    def is_described() -> bool:
        # Why it waits is told by the next sync, at the end of the back-off, or of a change before.
        world.kubectl("annotate", "pod", "crash-loop", f"poll={next(polls)}", "--overwrite")
        described = " ".join(world.kubectl("describe", "pod", "crash-loop").split())
        return all(each in described for each in words)

    eventually(is_described, "kubectl describe shows the crash loop")


@pytest.mark.usefixtures("nodes")
def test_restart_rules(world: World) -> None:
    eventually(lambda: state(world, "ruled").get("restartCount", 0), "the rule restarts it")
    assert status(world, "ruled")["phase"] == "Running"

    def have_all_restarted() -> bool:
        found = [state(world, "restart-all", name) for name in ("source", "other")]
        return all(each.get("restartCount", 0) for each in found)

    eventually(have_all_restarted, "RestartAllContainers")
    ended = state(world, "restart-all", "other")["lastState"]["terminated"]
    assert ended["reason"] == "RestartingAllContainers"
    kinds = [each["type"] for each in status(world, "restart-all")["conditions"]]
    assert kinds[-1] == "AllContainersRestarting"


@pytest.mark.usefixtures("nodes")
def test_a_container_that_cannot_run(world: World) -> None:
    eventually(lambda: state(world, "cannot-run").get("lastState"), "it has failed to start")
    ended = state(world, "cannot-run")["lastState"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert ended["startedAt"] == "1970-01-01T00:00:00Z"
    eventually(lambda: "Error: no such file" in events(world, "cannot-run", "Failed"), "its event")


@pytest.mark.usefixtures("nodes")
def test_a_failed_post_start_hook(world: World) -> None:
    eventually(lambda: events(world, "bad-hook", "FailedPostStartHook"), "the hook has failed")
    assert list(events(world, "bad-hook", "FailedPostStartHook")) == ["PostStartHook failed"]
    eventually(lambda: events(world, "bad-hook", "Killing"), "the container is killed")
    assert list(events(world, "bad-hook", "Killing")) == ["FailedPostStartHook"]
    eventually(
        lambda: (
            "PostStartHookError" in world.kubectl("get", "pod", "bad-hook")
            or "CrashLoopBackOff" in world.kubectl("get", "pod", "bad-hook")
        ),
        "kubectl shows it",
    )


@pytest.mark.usefixtures("nodes")
def test_a_deadline(world: World) -> None:
    eventually(lambda: status(world, "too-long").get("phase") == "Failed", "the deadline")
    found = status(world, "too-long")
    assert found["reason"] == "DeadlineExceeded"
    eventually(lambda: events(world, "too-long", "DeadlineExceeded"), "its event")
    [(message, count)] = events(world, "too-long", "DeadlineExceeded").items()
    assert message == found["message"]
    assert count >= 1
    assert "Reason:           DeadlineExceeded" in world.kubectl("describe", "pod", "too-long")


@pytest.mark.usefixtures("nodes")
def test_a_sidecar_beside_a_job_like_pod(world: World) -> None:
    eventually(lambda: status(world, "with-sidecar").get("phase") == "Succeeded", "it completes")
    found = status(world, "with-sidecar")
    init, side = found["initContainerStatuses"]
    assert init["state"]["terminated"]["reason"] == "Completed"
    assert init["ready"]
    assert side["state"]["terminated"]["exitCode"] == 0
    assert condition(world.get("pod", "with-sidecar"), "Initialized") == "True"
    eventually(lambda: events(world, "with-sidecar", "Killing"), "the sidecar is stopped")
    assert list(events(world, "with-sidecar", "Killing")) == ["Stopping container side"]


@pytest.mark.usefixtures("nodes")
def test_an_ephemeral_container(world: World) -> None:
    eventually(lambda: status(world, "debugged").get("phase") == "Running", "it runs")
    debug = ("--container=debugger", f"--image={IMAGE}", "--", "sleep", "1")
    world.kubectl("debug", "debugged", *debug)
    field = "ephemeralContainerStatuses"
    eventually(
        lambda: "terminated" in state(world, "debugged", "debugger", field).get("state", {}),
        "it has run",
    )
    assert state(world, "debugged", "debugger", field)["restartCount"] == 0
    assert status(world, "debugged")["phase"] == "Running"


@pytest.mark.usefixtures("nodes")
def test_a_failed_pre_stop_hook(world: World) -> None:
    eventually(lambda: status(world, "slow-to-stop").get("phase") == "Running", "it runs")
    world.kubectl("delete", "pod", "slow-to-stop")
    eventually(lambda: events(world, "slow-to-stop", "FailedPreStopHook"), "the hook has failed")
    assert list(events(world, "slow-to-stop", "FailedPreStopHook")) == ["PreStopHook failed"]


@pytest.mark.usefixtures("nodes")
def test_jobs_complete_and_fail(world: World) -> None:
    def job(name: str, script: str, **spec: object) -> Json:
        template = {"spec": {"containers": [container(script=script)], "restartPolicy": "Never"}}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"template": template, **spec},
        }

    world.apply(
        job("completes", "sleep 1", completions=3, parallelism=3),
        job("fails", "exit 1", backoffLimit=0),
    )
    world.kubectl("wait", "--for=condition=complete", "--timeout=120s", "job/completes")
    world.kubectl("wait", "--for=condition=failed", "--timeout=120s", "job/fails")
    assert world.get("job", "completes")["status"]["succeeded"] == 3
    world.kubectl("delete", "job", "completes", "fails", "--wait=false")


@pytest.mark.usefixtures("nodes")
def test_another_image_restarts_the_container(world: World) -> None:
    """As `kubectl set image` does; all else of the pod goes on."""
    world.apply(pod("changed", container(), container("beside")))
    eventually(lambda: condition(world.get("pod", "changed"), "Ready") == "True", "it is Ready")

    def containers() -> dict[str, Json]:
        found = world.get("pod", "changed")["status"]["containerStatuses"]
        return {each["name"]: each for each in found}

    before = containers()
    world.kubectl("set", "image", "pod/changed", "c=registry.k8s.io/pause:3.10.1")
    eventually(lambda: containers()["c"]["restartCount"] == 1, "the container is another")
    eventually(lambda: condition(world.get("pod", "changed"), "Ready") == "True", "Ready again")
    after = containers()
    assert after["c"]["image"] == "registry.k8s.io/pause:3.10.1"
    assert after["c"]["containerID"] != before["c"]["containerID"]
    assert after["beside"]["containerID"] == before["beside"]["containerID"]
    eventually(lambda: events(world, "changed", "Killing"), "it was told why")
    assert [*events(world, "changed", "Killing")] == [
        "Container c definition changed, will be restarted"
    ]
    world.kubectl("delete", "pod", "changed", "--wait=true")


@pytest.mark.usefixtures("nodes")
def test_an_in_place_resize(world: World) -> None:
    def resize(cpu: str) -> None:
        patch = {"spec": {"containers": [{"name": "c", "resources": cpus(cpu)}]}}
        world.kubectl("patch", "pod", "resized", "--subresource=resize", "-p", json.dumps(patch))

    def allocated() -> str:
        return str(state(world, "resized")["allocatedResources"]["cpu"])

    def pending() -> Json:
        conditions = status(world, "resized")["conditions"]
        found: Json = next((each for each in conditions if each["type"] == "PodResizePending"), {})
        return found

    eventually(lambda: status(world, "resized").get("phase") == "Running", "it runs")
    resize("2")
    eventually(lambda: allocated() == "2", "2 CPUs are allocated")
    eventually(lambda: events(world, "resized", "ResizeCompleted"), "the resize is complete")

    def limits() -> Json:
        found: Json = state(world, "resized")["resources"]["limits"]
        return found

    eventually(lambda: limits() == {"cpu": "2"}, "the status follows the event", seen=limits)
    assert state(world, "resized")["restartCount"] == 0
    eventually(lambda: events(world, "resized", "ResizeStarted"), "the resize has started")
    resize("6")
    eventually(lambda: pending().get("reason") == "Deferred", "there is no room for 6 CPUs")
    assert allocated() == "2"
    eventually(lambda: events(world, "resized", "ResizeDeferred"), "its event")
    [message] = events(world, "resized", "ResizeDeferred")
    assert "Node didn't have enough resource: cpu, requested: 6000" in message
    world.kubectl("delete", "pod", "neighbour")
    eventually(lambda: allocated() == "6", "the neighbour has left room")
    eventually(lambda: not pending(), "nothing is pending")
