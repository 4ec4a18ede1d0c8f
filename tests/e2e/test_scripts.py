"""Containers that look around: scripts with files and variables, users, paths in volumes."""

from functools import partial

import pytest
from e2e_world import Json, World, eventually

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ONCE = "[ -e /data/tried ] && exit 0; touch /data/tried; exit 7"
INDEX = "exit $(JOB_COMPLETION_INDEX)"


def job(name: str, script: str, volume: Json | None, **spec: object) -> Json:
    """Return a Job of one container that runs a script, with a volume at /data."""
    container: Json = {"name": "c", "image": "busybox", "command": ["sh", "-c", script]}
    pod: Json = {"containers": [container], "restartPolicy": spec.pop("restart", "Never")}
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


def test_scripts_decide_how_jobs_end(world: World) -> None:
    """A file in an emptyDir outlives the container, one on the host the pod; indexes differ."""
    host = {"hostPath": {"path": "/tmp/job", "type": "DirectoryOrCreate"}}
    with world.spawn("script", 1) as run:
        run.until_ready()
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
        run.end_well_or_late()
    world.assert_nothing_left("script")


def pod(name: str, container: Json, **spec: object) -> Json:
    """Return a Pod of one container with an emptyDir called data."""
    full = {"name": "c", "image": "registry.k8s.io/pause:3.10.1", **container}
    volumes = [{"name": "data", "emptyDir": {}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "users"}},
        "spec": {"containers": [full], "volumes": volumes, **spec},
    }


def test_users_and_paths_are_shown_and_checked(world: World) -> None:
    """What a kubelet cannot configure waits with CreateContainerConfigError and its text."""
    asked = {"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "supplementalGroups": [4000]}
    up = {"name": "UP", "value": ".."}
    mount = {"name": "data", "mountPath": "/data", "subPathExpr": "$(UP)"}
    with world.spawn("users", 1) as run:
        run.until_ready()
        world.apply(
            pod("user", {}, securityContext=asked),
            pod("root", {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}),
            pod("path", {"env": [up], "volumeMounts": [mount]}),
        )

        def state(name: str) -> Json:
            [status] = world.get("pod", name)["status"].get("containerStatuses", [{}])
            found: Json = status.get("state", {})
            return found.get("waiting", {}) or found

        def has_message(name: str) -> bool:
            return "message" in state(name)

        def is_told(name: str, text: str) -> bool:
            events = world.items("events", f"--field-selector=involvedObject.name={name}")
            return any(each["message"].startswith(text) for each in events)

        refused = {
            "root": "container's runAsUser breaks non-root policy",
            "path": "unable to provision SubPath `..`: must not contain '..'",
        }
        for name, text in refused.items():
            eventually(partial(has_message, name), f"{name} is refused")
            assert state(name)["reason"] == "CreateContainerConfigError"
            assert state(name)["message"].startswith(text)
            eventually(partial(is_told, name, f"Error: {text}"), f"the event of {name}")
        eventually(lambda: "running" in state("user"), "the container runs")
        [status] = world.get("pod", "user")["status"]["containerStatuses"]
        groups = [3000, 2000, 4000]
        assert status["user"] == {"linux": {"uid": 1000, "gid": 3000, "supplementalGroups": groups}}
        world.kubectl("delete", "pods", "-l", "app=users", "--wait=false")
        run.end_well_or_late()
    world.assert_nothing_left("users")
