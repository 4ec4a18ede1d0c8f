"""Scenes of containers that start, end, restart and stop."""

from oracle.objects_of_scenes import ALWAYS, PAUSE, container, exec_probe, job, pod
from oracle.scene import Scene, container_status, restarts

IMAGE_TOLD_S = 43.0
"""A kubelet lists its images each 30 s, and reports a change each 10 s x U[1, 1.04]."""


def plain(scene: Scene) -> None:
    """A pod with one container starts and is deleted."""
    scene.live(pod("plain"))


def three_containers(scene: Scene) -> None:
    scene.live(pod("three", container("a"), container("b"), container("c", "sleep 600")))


def init_containers(scene: Scene) -> None:
    """Two init containers run to their ends, one after the other, then the pod runs."""
    first, second = container("first", "sleep 2"), container("second", "exit 0")
    scene.live(pod("init", initContainers=[first, second]))


def failing_init(scene: Scene) -> None:
    """An init container fails twice, then ends well."""
    script = "[ -e /d/two ] && exit 0; [ -e /d/one ] && touch /d/two; touch /d/one; exit 4"
    mounts = [{"name": "d", "mountPath": "/d"}]
    made = pod(
        "failing-init",
        initContainers=[container("i", script, volumeMounts=mounts)],
        volumes=[{"name": "d", "emptyDir": {}}],
    )
    scene.create(made)
    scene.until_running("failing-init", limit_s=60)
    scene.pause()
    scene.delete("failing-init")


def failed_init_never(scene: Scene) -> None:
    """An init container of a pod that never restarts fails: so does the pod."""
    made = pod("init-fails", initContainers=[container("i", "exit 3")], restartPolicy="Never")
    scene.create(made)
    scene.until_over("init-fails")
    scene.pause()
    scene.delete("init-fails")


def sidecars(scene: Scene) -> None:
    """A sidecar starts before the others and ends after them."""
    side = container("side", "sleep 900", **ALWAYS)
    first = container("first", "sleep 1")
    probed = container("probed", "sleep 900", startupProbe=exec_probe("true"), **ALWAYS)
    made = pod(
        "sidecar",
        container("main", "sleep 6"),
        initContainers=[side, first, probed],
        restartPolicy="Never",
    )
    scene.create(made)
    scene.until_over("sidecar", limit_s=60)
    scene.pause()
    scene.delete("sidecar")


def sidecar_crashes(scene: Scene) -> None:
    """A sidecar that ends is restarted while the pod runs."""
    script = "[ -e /d/2 ] && sleep 900; [ -e /d/1 ] && touch /d/2; touch /d/1; sleep 2; exit 1"
    mounts = [{"name": "d", "mountPath": "/d"}]
    made = pod(
        "crashing-side",
        initContainers=[container("side", script, volumeMounts=mounts, **ALWAYS)],
        volumes=[{"name": "d", "emptyDir": {}}],
    )
    scene.create(made)
    scene.wait(
        "crashing-side", lambda each: restarts(each, "side") >= 2, "restarts twice", limit_s=60
    )
    scene.pause()
    scene.delete("crashing-side")


def completes(scene: Scene) -> None:
    """Containers end well, and ill, under each restart policy."""
    scene.create(
        pod("well", container(script="sleep 1"), restartPolicy="Never"),
        pod("ill", container(script="sleep 1; exit 7"), restartPolicy="Never"),
        pod(
            "both",
            container("a", "sleep 1"),
            container("b", "sleep 3; exit 2"),
            restartPolicy="Never",
        ),
        pod("on-failure", container(script="sleep 1; exit 0"), restartPolicy="OnFailure"),
        pod(
            "message",
            container(script="echo it is over > /dev/termination-log; exit 9"),
            restartPolicy="Never",
        ),
    )
    scene.until_over("well", "ill", "both", "on-failure", "message")
    scene.pause()
    scene.delete("well", "ill", "both", "on-failure", "message")


def crash_loop(scene: Scene) -> None:
    """A container that ends at once, until it has been restarted twice."""
    scene.create(pod("crash", container(script="exit 3")))
    scene.wait("crash", lambda each: restarts(each) >= 2, "restarts twice", limit_s=60)
    scene.pause()
    scene.delete("crash")


def changed_image(scene: Scene) -> None:
    """A container is given another image: it is killed and started anew."""
    scene.create(pod("changed", container(), container("other")))
    scene.until_running("changed")
    scene.pause()
    image = "registry.k8s.io/pause:3.10"
    scene.patch("pods", "changed", {"spec": {"containers": [{"name": "c", "image": image}]}})
    scene.wait("changed", lambda each: restarts(each) == 1, "restarts")
    scene.pause()
    scene.delete("changed")


def changed_init_image(scene: Scene) -> None:
    """The image of an init container changes after it ran, and that of a sidecar."""
    made = pod(
        "changed-init",
        initContainers=[container("i", "exit 0"), container("side", "sleep 900", **ALWAYS)],
    )
    scene.create(made)
    scene.until_running("changed-init")
    scene.pause()
    changed = [{"name": "side", "image": PAUSE}]
    scene.patch("pods", "changed-init", {"spec": {"initContainers": changed}})
    scene.pause(8)
    scene.delete("changed-init")


def hooks(scene: Scene) -> None:
    """Hooks that take a while, and one that fails."""

    def hook(script: str) -> dict[str, object]:
        return {"exec": {"command": ["sh", "-c", script]}}

    slow = {"postStart": hook("sleep 2"), "preStop": hook("sleep 1")}
    scene.create(
        pod("slow-hooks", container(script="sleep 900", lifecycle=slow)),
        pod("bad-stop", container(script="sleep 900", lifecycle={"preStop": hook("exit 5")})),
        pod(
            "sleeps",
            container(script="sleep 900", lifecycle={"preStop": {"sleep": {"seconds": 1}}}),
        ),
        # It heeds SIGTERM: a kill of seconds would race with the deletion.
        pod("bad-start", container(lifecycle={"postStart": hook("exit 4")})),
    )
    scene.until_running("slow-hooks", "bad-stop", "sleeps")
    scene.wait("bad-start", lambda each: restarts(each) >= 2, "restarts after its back-off")
    scene.pause()
    scene.delete("slow-hooks", "bad-stop", "sleeps", "bad-start")


def failing_hooks(scene: Scene) -> None:
    """A hook after the start fails, and its container takes its grace period to end.

    A relist falls into each sync then, and the next one sees how the container ended.
    """
    hook = {"exec": {"command": ["sh", "-c", "exit 4"]}}
    scene.create(pod("hook-fails", container(script="sleep 3600", lifecycle={"postStart": hook})))
    scene.wait("hook-fails", lambda each: restarts(each) >= 1, "restarts")
    scene.pause(3)
    scene.delete("hook-fails")


def stops(scene: Scene) -> None:
    """Containers that take their time to stop, and one that has to be killed."""
    scene.create(
        pod("slow-stop", notes={"stop-time": "1s", "stop-exit-code": "143"}),
        pod("killed", notes={"stop-time": "never"}),
        pod("at-once", terminationGracePeriodSeconds=0),
    )
    scene.until_running("slow-stop", "killed", "at-once")
    scene.pause()
    scene.delete("slow-stop", "killed", "at-once")


def shortened(scene: Scene) -> None:
    """A pod that ignores SIGTERM is deleted, then deleted again with less grace."""
    scene.create(pod("shortened", notes={"stop-time": "never"}, terminationGracePeriodSeconds=60))
    scene.until_running("shortened")
    scene.pause()
    scene.ask_to_delete("shortened")
    scene.pause(4)
    scene.delete("shortened", grace_s=2)


def forced(scene: Scene) -> None:
    """A running pod is deleted with no grace: the object is gone at once."""
    scene.create(pod("forced"))
    scene.until_running("forced")
    scene.pause()
    scene.delete("forced", grace_s=0)
    scene.pause(5)


def deadline(scene: Scene) -> None:
    """A pod is active for too long."""
    scene.create(pod("deadline", activeDeadlineSeconds=4))
    scene.until_over("deadline")
    scene.pause()
    scene.delete("deadline")


def start_failures(scene: Scene) -> None:
    """The runtime cannot create or start a container."""
    scene.create(
        pod("no-start", notes={"start-failure": "RunContainerError: no such file"}),
        pod("no-create", notes={"start-failure": "CreateContainerError: no space"}),
        pod("once", notes={"start-failure": "RunContainerError: busy", "start-failure-times": "1"}),
    )
    scene.wait("no-start", lambda each: restarts(each) >= 2, "is tried after its back-off")
    scene.until_running("once")
    scene.pause()
    scene.delete("no-start", "no-create", "once")


def jobs(scene: Scene) -> None:
    """A Job whose pod fails once; one whose pod is to be ignored or to fail the Job."""
    rule = {"onExitCodes": {"operator": "In", "values": [42]}, "action": "FailJob"}
    scene.create(
        job("well", "sleep 1"),
        job("fails", "sleep 1; exit 42", backoffLimit=3, podFailurePolicy={"rules": [rule]}),
    )

    def is_over(name: str, kind: str) -> None:
        scene.wait(
            name,
            lambda each: any(c["type"] == kind for c in each["status"].get("conditions", ())),
            f"is {kind}",
            plural="jobs",
        )

    is_over("well", "Complete")
    is_over("fails", "Failed")
    scene.pause()
    scene.delete("well", "fails", plural="jobs")


def ephemeral(scene: Scene) -> None:
    """An ephemeral container is added to a running pod."""
    scene.create(pod("debugged"))
    scene.until_running("debugged")
    scene.pause()
    made = {**container("debugger", "sleep 2; exit 1"), "terminationMessagePolicy": "File"}
    change = {"spec": {"ephemeralContainers": [made]}}
    scene.patch("pods", "debugged", change, "ephemeralcontainers")
    scene.wait(
        "debugged",
        lambda each: "terminated" in container_status(each, "debugger").get("state", {}),
        "debugger ends",
    )
    scene.pause()
    scene.delete("debugged")


def restart_rules(scene: Scene) -> None:
    """A container of a pod that never restarts is restarted for one exit code."""
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    made = container(
        script="sleep 1; [ -e /d/x ] && exit 1; touch /d/x; exit 42",
        restartPolicy="Never",
        restartPolicyRules=[rule],
        volumeMounts=[{"name": "d", "mountPath": "/d"}],
    )
    volumes = [{"name": "d", "emptyDir": {}}]
    scene.create(pod("ruled", made, volumes=volumes, restartPolicy="Never"))
    scene.until_over("ruled", limit_s=60)
    scene.pause()
    scene.delete("ruled")


def deleted_early(scene: Scene) -> None:
    """Pods are deleted while they are created, pull, or wait for a volume."""
    waits = [{"name": "d", "configMap": {"name": "missing"}}]
    scene.create(
        pod("early", container(image="registry.k8s.io/slow:1"), notes={"pull-time": "20s"}),
        pod("waits", volumes=waits),
    )
    scene.pause(4)
    scene.delete("early", "waits")
    scene.pause(IMAGE_TOLD_S)  # it is the last one, and both nodes shall have reported its image
