"""Scenes of images, volumes and probes."""

from oracle.normalisation import Json
from oracle.objects_of_scenes import (
    config_map,
    container,
    exec_probe,
    grpc_probe,
    http_probe,
    pod,
    secret,
    tcp_probe,
)
from oracle.scene import Scene, is_ready, restarts, waiting


def pulls(scene: Scene) -> None:
    """An image is pulled, pulled by a second pod, and one never is."""
    image = "registry.k8s.io/oracle/{namespace}"
    scene.create(
        pod("pulls", container(image="registry.k8s.io/oracle/pulled:1"), notes={"pull-time": "2s"})
    )
    scene.until_running("pulls")
    scene.pause()
    scene.delete("pulls")
    never = container(image="registry.k8s.io/oracle/absent:1", imagePullPolicy="Never")
    assert image
    scene.create(pod("never", never))
    scene.wait("never", lambda each: waiting(each) == "ErrImageNeverPull", "is refused")
    scene.pause()
    scene.delete("never")


def failing_pulls(scene: Scene) -> None:
    """A pull fails and backs off; later it succeeds."""
    note = {"pull-error": "NotFound"}
    scene.create(pod("not-found", container(image="registry.k8s.io/oracle/later:1"), notes=note))
    scene.wait("not-found", lambda each: waiting(each) == "ImagePullBackOff", "backs off")
    scene.pause(14)
    change = {"metadata": {"annotations": {"fleet.emulator/pull-error": None}}}
    scene.patch("pods", "not-found", change)
    scene.until_running("not-found", limit_s=90)
    scene.pause()
    scene.delete("not-found")


def invalid_image(scene: Scene) -> None:
    scene.create(pod("invalid", container(image="Not/A:Valid:Name")))
    scene.wait("invalid", lambda each: waiting(each) == "InvalidImageName", "is refused")
    scene.pause()
    scene.delete("invalid")


def pull_secrets(scene: Scene) -> None:
    """A pod names a pull secret that is not there."""
    named = [{"name": "absent"}]
    made = pod(
        "secretive", container(image="registry.k8s.io/oracle/secret:1"), imagePullSecrets=named
    )
    scene.live(made)


def volumes(scene: Scene) -> None:
    """Volumes of each kind that needs no driver."""
    sources = [
        {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 7200}},
        {"configMap": {"name": "config"}},
        {"secret": {"name": "secret"}},
        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    kinds: list[Json] = [
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "secret", "secret": {"secretName": "secret"}},
        {"name": "projected", "projected": {"sources": sources}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": "/"}},
        {"name": "optional", "configMap": {"name": "absent", "optional": True}},
        {
            "name": "down",
            "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]},
        },
    ]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in kinds]
    env: list[Json] = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "a"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "b"}}},
    ]
    scene.create(config_map("config", a="1"), secret("secret", b="1"))
    made = [container(name, volumeMounts=mounts, env=env) for name in "ab"]
    scene.create(pod("volumes", *made, volumes=kinds))
    scene.until_running("volumes")
    scene.pause()
    scene.patch("configmaps", "config", {"data": {"a": "2"}})
    scene.pause(5)
    scene.delete("volumes")


def missing_objects(scene: Scene) -> None:
    """A Secret and a ConfigMap are missing and appear."""
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}}]
    waits = [{"name": "s", "secret": {"secretName": "late"}}]
    mounts = [{"name": "s", "mountPath": "/s"}]
    scene.create(
        pod("no-secret", container(volumeMounts=mounts), volumes=waits),
        pod("no-config", container(env=env)),
    )
    scene.wait(
        "no-config", lambda each: waiting(each) == "CreateContainerConfigError", "misses its config"
    )
    scene.pause(12)
    scene.create(config_map("late", b="1"), secret("late", b="1"))
    scene.until_running("no-secret")
    scene.pause(20)
    scene.patch("configmaps", "late", {"data": {"a": "1"}})
    scene.until_running("no-config", limit_s=90)
    scene.pause()
    scene.delete("no-secret", "no-config")


def readiness(scene: Scene) -> None:
    """Readiness probes of each kind fail, pass, fail and recover."""
    handlers = {
        "http": http_probe(timeoutSeconds=1),
        "tcp": tcp_probe(timeoutSeconds=1),
        "grpc": grpc_probe(timeoutSeconds=1),
    }
    note = {"readiness-probe": "Success after 5s, Refused after 12s, Success after 18s"}
    ports = [{"containerPort": 8080}, {"containerPort": 9090}]
    made = [
        pod(
            name,
            container(readinessProbe={**probe, "failureThreshold": 1}, ports=ports),
            notes=note,
        )
        for name, probe in handlers.items()
    ]
    script = "sleep 5; touch /tmp/ok; sleep 7; rm /tmp/ok; sleep 6; touch /tmp/ok; sleep 900"
    probed = exec_probe("cat /tmp/ok", failureThreshold=1)
    made.append(pod("exec", container(script=script, readinessProbe=probed)))
    scene.create(*made)
    names = (*handlers, "exec")
    for name in names:
        scene.until_ready(name)
    for name in names:
        scene.wait(name, lambda each: not is_ready(each), "is not ready")
    for name in names:
        scene.until_ready(name)
    scene.pause()
    scene.delete(*names)


def http_failures(scene: Scene) -> None:
    """An HTTP server answers 503; one listens and says nothing."""
    ports = [{"containerPort": 8080}]
    probe = http_probe(timeoutSeconds=1)
    scene.create(
        pod(
            "busy",
            container(readinessProbe=probe, ports=ports),
            notes={"readiness-probe": "Failure"},
        ),
        pod(
            "mute",
            container(readinessProbe=probe, ports=ports),
            notes={"readiness-probe": "Timeout, Success after 8s"},
        ),
    )
    scene.until_running("busy")
    scene.until_ready("mute")
    scene.pause()
    scene.delete("busy", "mute")


def liveness(scene: Scene) -> None:
    """Liveness probes fail and restart containers."""
    script = "touch /tmp/ok; sleep 4; rm /tmp/ok; sleep 900"
    probed = exec_probe("cat /tmp/ok", failureThreshold=2)
    ports = [{"containerPort": 8080}]
    note = {"liveness-probe": "Success, Failure after 4s"}
    web = container(livenessProbe=http_probe(failureThreshold=2, timeoutSeconds=1), ports=ports)
    scene.create(
        pod("exec", container(script=script, livenessProbe=probed)),
        pod("http", web, notes=note),
    )
    for name in ("exec", "http"):
        scene.wait(name, lambda each: restarts(each) >= 1, "restarts", limit_s=60)
    scene.pause()
    scene.delete("exec", "http")


def startup(scene: Scene) -> None:
    """A startup probe that passes late, and one that never does."""
    slow = container(
        script="sleep 4; touch /tmp/up; sleep 900",
        startupProbe=exec_probe("cat /tmp/up", failureThreshold=20),
        readinessProbe=exec_probe("true"),
        livenessProbe=exec_probe("true"),
    )
    never = container(script="sleep 900", startupProbe=exec_probe("exit 2", failureThreshold=3))
    scene.create(pod("slow", slow), pod("never", never))
    scene.until_ready("slow")
    scene.wait("never", lambda each: restarts(each) >= 1, "restarts", limit_s=60)
    scene.pause()
    scene.delete("slow", "never")
