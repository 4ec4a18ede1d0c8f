"""Scenes in which others change a pod, or what it refers to, while it runs."""

from oracle.normalisation import Json
from oracle.objects_of_scenes import config_map, container, pod, secret
from oracle.scene import Scene, container_status, is_ready, restarts

FINALIZER = "oracle.example.com/held"
GATE = "oracle.example.com/gate"
LOOKS_S = 12.0
"""Every 10 s a kubelet looks at all statuses: status_manager.go, Start."""
SEES_S = 15.0
"""A sync that failed is tried again after 10 to 15 s."""


def readiness_gates(scene: Scene) -> None:
    """A pod is ready when a controller says so, and not when it takes that back."""
    scene.create(pod("gated", readinessGates=[{"conditionType": GATE}]))
    scene.until_running("gated")
    scene.pause()
    for status in ("True", "False"):
        said = {"type": GATE, "status": status, "reason": "Said", "message": "by a controller"}
        scene.patch("pods", "gated", {"status": {"conditions": [said]}}, "status")
        scene.wait(
            "gated",
            lambda each, status=status: is_ready(each) is (status == "True"),  # type: ignore[misc]
            f"is ready: {status}",
        )
        scene.pause()
    scene.delete("gated")


def finalizers(scene: Scene) -> None:
    """Pods that somebody holds are deleted: they end, and stay until they are let go."""

    def held(made: Json) -> Json:
        made["metadata"]["finalizers"] = [FINALIZER]
        return made

    made = (
        held(pod("runs")),
        held(pod("done", container(script="true"), restartPolicy="Never")),
        held(pod("fails", container(script="exit 3"), restartPolicy="Never")),
        held(pod("waits", volumes=[{"name": "v", "configMap": {"name": "none"}}])),
        held(pod("refused", nodeSelector={"zone": "nowhere"})),
    )
    scene.create(*made)
    scene.until_running("runs")
    scene.until_over("done", "fails", "refused")
    scene.pause()
    names = [each["metadata"]["name"] for each in made]
    scene.ask_to_delete(*names)
    scene.until_over("runs", "waits")
    scene.pause(LOOKS_S)
    for name in names:
        scene.patch("pods", name, {"metadata": {"finalizers": None}})
    for name in names:
        scene.until(
            lambda side, name=name: scene.get(side, "pods", name) is None,  # type: ignore[misc]
            f"{name} is gone",
        )


def foreign_statuses(scene: Scene) -> None:
    """Others write into the status of a pod: the kubelet takes back what is its own."""
    scene.create(pod("touched"), pod("failed"))
    scene.until_running("touched", "failed")
    scene.pause()
    foreign = {"type": "oracle.example.com/seen", "status": "True"}
    unready = {"type": "Ready", "status": "False", "reason": "Foreign"}
    scene.patch("pods", "touched", {"status": {"conditions": [foreign]}}, "status")
    scene.pause(LOOKS_S)
    scene.patch("pods", "touched", {"status": {"conditions": [unready]}}, "status")
    scene.pause(LOOKS_S)
    scene.patch("pods", "touched", {"status": {"phase": "Pending", "reason": "Foreign"}}, "status")
    scene.pause(LOOKS_S)
    scene.patch("pods", "failed", {"status": {"phase": "Failed"}}, "status")
    scene.pause(LOOKS_S)
    scene.delete("touched", "failed")


def edited(scene: Scene) -> None:
    """Labels, annotations and a deadline of running pods are changed."""
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]
    volumes = [{"name": "d", "downwardAPI": {"items": items}}]
    mounts = [{"name": "d", "mountPath": "/d"}]
    scene.create(pod("edited", container(volumeMounts=mounts), volumes=volumes), pod("ends"))
    scene.until_running("edited", "ends")
    scene.pause()
    for change in (
        {"metadata": {"labels": {"app": "web"}}},
        {"metadata": {"annotations": {"oracle.example.com/note": "one"}}},
        {"metadata": {"labels": {"app": None}}},
        {"spec": {"tolerations": [{"key": "oracle", "operator": "Exists"}]}},
    ):
        scene.patch("pods", "edited", change)
        scene.pause(4)
    scene.patch("pods", "ends", {"spec": {"activeDeadlineSeconds": 20}})
    scene.until_over("ends")
    scene.pause()
    scene.delete("edited", "ends")


def lost_keys(scene: Scene) -> None:
    """Keys of a ConfigMap and a Secret, which a running pod needs, go and come back."""
    volumes: list[Json] = [
        {"name": "c", "configMap": {"name": "config", "items": [{"key": "a", "path": "a"}]}},
        {"name": "s", "secret": {"secretName": "secret", "items": [{"key": "a", "path": "a"}]}},
    ]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    scene.create(config_map("config", a="1", b="2"), secret("secret", a="1", b="2"))
    scene.create(
        *(
            pod(f"needs-{each['name']}", container(volumeMounts=[mount]), volumes=[each])
            for each, mount in zip(volumes, mounts, strict=True)
        )
    )
    scene.until_running("needs-c", "needs-s")
    scene.pause()
    scene.patch("configmaps", "config", {"data": {"a": None}})
    scene.patch("secrets", "secret", {"data": {"a": None}})
    scene.pause()
    for name in ("needs-c", "needs-s"):  # or each would be synced at a random time
        scene.patch("pods", name, {"metadata": {"annotations": {"oracle.example.com/at": "1"}}})
    scene.pause(SEES_S + SEES_S)
    scene.patch("configmaps", "config", {"data": {"a": "3"}})
    scene.patch("secrets", "secret", {"data": {"a": "Mw=="}})
    scene.pause(SEES_S)
    scene.delete("needs-c", "needs-s")


def projected(scene: Scene) -> None:
    """Projected volumes name keys and objects that are missing, some of them optional."""

    def projecting(name: str, *sources: Json) -> Json:
        volumes = [{"name": "p", "projected": {"sources": [*sources]}}]
        mounts = [{"name": "p", "mountPath": "/p"}]
        return pod(name, container(volumeMounts=mounts), volumes=volumes)

    def keys(name: str, key: str, **fields: object) -> Json:
        return {"name": name, "items": [{"key": key, "path": f"{name}/{key}"}], **fields}

    scene.create(config_map("config", a="1"), secret("secret", a="1"))
    made = (
        projecting("all", {"configMap": keys("config", "a")}, {"secret": keys("secret", "a")}),
        projecting("optional", {"configMap": keys("none", "a", optional=True)}),
        projecting("optional-key", {"secret": keys("secret", "none", optional=True)}),
    )
    lacking = (
        projecting("no-key", {"configMap": keys("config", "none")}),
        projecting("no-secret-key", {"secret": keys("secret", "none")}),
        projecting("no-map", {"configMap": keys("none", "a")}),
    )
    scene.create(*made, *lacking)
    for each in made:
        scene.until_running(each["metadata"]["name"])
    scene.pause(SEES_S)
    scene.patch("configmaps", "config", {"data": {"none": "1"}})
    scene.until_running("no-key")
    scene.pause()
    scene.delete(*(each["metadata"]["name"] for each in (*made, *lacking)))


def debuggers(scene: Scene) -> None:
    """Ephemeral containers see another container, or one that is not there."""

    def debug(name: str, **fields: object) -> None:
        made = {**container("debugger", "sleep 2; exit 1"), **fields}
        made["terminationMessagePolicy"] = "File"
        scene.patch("pods", name, {"spec": {"ephemeralContainers": [made]}}, "ephemeralcontainers")

    crashing = container(script="exit 1")
    scene.create(
        pod("sees"), pod("crashes", crashing), pod("over", crashing, restartPolicy="Never")
    )
    scene.until_running("sees")
    scene.wait("crashes", lambda each: restarts(each) >= 2, "restarts twice")
    scene.until_over("over")
    scene.pause()
    debug("sees", targetContainerName="c")
    debug("crashes", targetContainerName="c")
    debug("over")
    for name in ("sees", "crashes"):
        scene.wait(
            name,
            lambda each: "terminated" in container_status(each, "debugger").get("state", {}),
            "debugger ends",
        )
    scene.pause()
    scene.delete("sees", "crashes", "over")
