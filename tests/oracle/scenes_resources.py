"""Scenes of pods that ask for much of a node: one at a time, since messages say what is used."""

from oracle.normalisation import Json
from oracle.objects_of_scenes import container, job, pod, resources
from oracle.scene import Scene, condition_of

CRITICAL = "system-node-critical"
IN_PROGRESS = "PodResizeInProgress"


def resized(scene: Scene) -> None:
    """Containers are resized in place: up, down, with a restart, and with new limits."""
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    scene.create(
        pod("resized", container(resources=resources("100m", "64Mi"), resizePolicy=policy)),
        pod("burstable", container("a", resources={"requests": {"cpu": "50m"}}), container("b")),
    )
    scene.until_running("resized", "burstable")
    scene.pause()
    for cpu, memory in (("200m", "64Mi"), ("150m", "64Mi"), ("150m", "128Mi")):
        scene.resize("resized", "c", resources(cpu, memory))
        scene.pause(6)
    scene.resize("burstable", "a", {"requests": {"cpu": "75m"}, "limits": {"cpu": "100m"}})
    scene.pause(6)
    scene.delete("resized", "burstable")


def deferred_resize(scene: Scene) -> None:
    """A resize has to wait for the end of another pod."""
    half = f"{scene.allocatable_milli_cpu() * 6 // 10}m"
    scene.create(
        pod("waits", container(resources=resources("100m", "64Mi"))),
        pod("other", container(resources=resources(half, "32Mi"))),
    )
    scene.until_running("waits", "other")
    scene.pause()
    scene.resize("waits", "c", resources(half, "64Mi"))
    scene.wait("waits", lambda each: pending_reason(each) == "Deferred", "is deferred")
    scene.pause(5)
    scene.delete("other")
    scene.wait("waits", lambda each: not pending_reason(each), "is resized", limit_s=240)
    scene.pause(5)
    scene.delete("waits")


def whole_resized(scene: Scene) -> None:
    """Pods are resized as a whole: with limits for their containers, with a restart, at first."""
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    asked = {"requests": {"cpu": "50m", "memory": "16Mi"}}
    limited = {"limits": {"memory": "32Mi"}, "requests": {"memory": "16Mi"}}
    own = resources("200m", "64Mi")
    scene.create(
        pod("whole", container("a"), container("b", resources=limited), resources=own),
        pod("renewed", container(resizePolicy=policy), resources=own),
        pod("given", container(resources=asked)),
    )
    scene.until_running("whole", "renewed", "given")
    scene.pause()
    for cpu, memory in (("300m", "64Mi"), ("300m", "128Mi"), ("250m", "96Mi")):
        scene.resize_whole("whole", resources(cpu, memory))
        scene.pause(6)
    scene.resize_whole("renewed", resources("200m", "128Mi"))
    scene.pause(6)
    scene.resize_whole("given", {"requests": {"cpu": "75m", "memory": "32Mi"}})
    scene.pause(6)
    scene.delete("whole", "renewed", "given")


def critical_resize(scene: Scene) -> None:
    """A critical pod is resized on a full node: another is killed for it."""
    free_milli = scene.allocatable_milli_cpu()

    def asks(parts: int) -> Json:
        return {"requests": {"cpu": f"{free_milli * parts // 10}m"}}

    scene.create(
        pod("other", container(resources=asks(5))),
        pod("critical", container(resources=asks(3)), priorityClassName=CRITICAL),
    )
    scene.until_running("other", "critical")
    scene.pause()
    scene.resize("critical", "c", asks(6))
    scene.until_over("other")
    scene.wait("critical", lambda each: not condition_of(each, IN_PROGRESS), "is resized")
    scene.pause(5)
    scene.delete("other", "critical")


def resize_and_restart(scene: Scene) -> None:
    """The kubelets are killed while a resize is deferred, and come back."""
    parts = scene.allocatable_milli_cpu() // 10
    scene.create(
        pod("waits", container(), resources=resources(f"{parts}m", "64Mi")),
        pod("other", container(resources=resources(f"{parts * 6}m", "32Mi"))),
    )
    scene.until_running("waits", "other")
    scene.pause()
    scene.resize_whole("waits", resources(f"{parts * 6}m", "64Mi"))
    scene.wait("waits", lambda each: pending_reason(each) == "Deferred", "is deferred")
    scene.pause(15)
    scene.restart_kubelets()
    scene.pause(30)
    scene.delete("other")
    scene.wait("waits", lambda each: not pending_reason(each), "is resized", limit_s=240)
    scene.pause(5)
    scene.delete("waits")


def pending_reason(each: Json) -> str:
    return str(condition_of(each, "PodResizePending").get("reason", ""))


def preempted(scene: Scene) -> None:
    """A critical pod comes to a full node: the least important that suffice are killed."""
    free_milli = scene.allocatable_milli_cpu()

    def asks(parts: int) -> Json:
        return {"requests": {"cpu": f"{free_milli * parts // 10}m"}}

    scene.create(
        pod("large", container(resources=asks(5))),
        pod("small", container(resources=asks(3))),
        pod("least"),
    )
    scene.until_running("large", "small", "least")
    scene.pause()
    scene.create(pod("critical", container(resources=asks(4)), priorityClassName=CRITICAL))
    scene.until_running("critical")
    scene.create(pod("too-much", container(resources=asks(6))))
    scene.until_over("too-much")
    scene.create(pod("in-vain", container(resources=asks(12)), priorityClassName=CRITICAL))
    scene.until_over("in-vain")
    scene.pause()
    scene.delete("large", "small", "least", "critical", "too-much", "in-vain")


def pod_resources(scene: Scene) -> None:
    """Pods with resources as a whole, tiny ones, limits without requests, ephemeral storage."""
    disk = {"cpu": "50m", "memory": "16Mi", "ephemeral-storage": "1Gi"}
    scene.live(
        pod("whole", container("a"), container("b"), resources=resources("200m", "64Mi")),
        pod("tiny", container(resources=resources("1m", "4Mi"))),
        pod("limits", container(resources={"limits": {"cpu": "100m"}})),
        pod("disk", container(resources={"requests": disk, "limits": disk})),
        pod(
            "mixed",
            container("a", resources=resources("100m", "64Mi")),
            container("b", resources=resources("", "16Mi")),
            initContainers=[container("i", "exit 0", resources=resources("300m", "16Mi"))],
        ),
    )


def disrupted_job(scene: Scene) -> None:
    """A Job whose pod is evicted through the API, which is not to count as a failure."""
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    policy = {"rules": [rule]}
    scene.create(job("evicted", "sleep 12", backoffLimit=0, podFailurePolicy=policy))
    scene.until(lambda side: scene.running_of_job(side, "evicted"), "its pod runs")
    scene.pause()
    scene.evict_named({side: scene.running_of_job(side, "evicted") for side in scene.namespaces})
    scene.wait(
        "evicted",
        lambda each: any(c["type"] == "Complete" for c in each["status"].get("conditions", ())),
        "is complete",
        plural="jobs",
        limit_s=90,
    )
    scene.pause()
    scene.delete("evicted", plural="jobs")
