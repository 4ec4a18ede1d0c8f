"""Scenes of pods that a node refuses, and of what happens to its Node."""

from oracle.objects_of_scenes import container, pod, resources
from oracle.scene import Scene


def refused(scene: Scene) -> None:
    """Pods that ask for too much, for another node, or for a port that is taken."""
    ports = [{"containerPort": 80, "hostPort": 18080}]
    scene.create(pod("port", container(ports=ports)))
    scene.until_running("port")
    other = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["nowhere"]}]}
            ]
        }
    }
    scene.create(
        pod("same-port", container(ports=ports)),
        pod("cpu", container(resources=resources("10k", "16Mi"))),
        pod("memory", container(resources=resources("1m", "100Ti"))),
        pod("selector", nodeSelector={"zone": "nowhere"}),
        pod("affinity", affinity={"nodeAffinity": other}),
        pod("device", container(resources={"limits": {"example.com/none": "1"}})),
        pod("windows", os={"name": "windows"}),
    )
    names = ("same-port", "cpu", "memory", "selector", "affinity", "windows")
    for name in names:
        scene.until_over(name)
    scene.until_running("device")
    scene.pause()
    scene.delete("port", "device", *names)


def evicted(scene: Scene) -> None:
    """A pod is evicted through the API."""
    scene.create(pod("evicted"))
    scene.until_running("evicted")
    scene.pause()
    scene.evict("evicted")
    scene.until(lambda side: scene.get(side, "pods", "evicted") is None, "it is gone")
