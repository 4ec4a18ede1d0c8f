"""Scenes of static pods and their mirrors."""

from oracle.objects_of_scenes import container, pod
from oracle.scene import Scene, phase, restarts

RESYNC_S = 110.0
"""A mirror that somebody deleted at once is made again by the next sync of its pod, each minute."""


def static(scene: Scene) -> None:
    """A static pod appears, its mirror is deleted and comes back, it is changed, and it goes."""
    made = pod("web", container(script="sleep 900"))
    mirror = "web-{node}"

    def is_running(side: str) -> bool:
        found = scene.get(side, "pods", mirror)
        return found is not None and phase(found) == "Running"

    scene.place_manifest("web", made)
    scene.until(is_running, "its mirror runs")
    scene.pause(5)
    scene.ask_to_delete(mirror, grace_s=0)
    scene.until(is_running, "its mirror is back", limit_s=RESYNC_S)
    scene.pause(5)
    made["spec"]["containers"][0]["command"] = ["sh", "-c", "sleep 901"]
    scene.place_manifest("web", made)
    scene.until(
        lambda side: "901" in str((scene.get(side, "pods", mirror) or {}).get("spec")),
        "its mirror has changed",
    )
    scene.until(is_running, "its mirror runs again")
    scene.pause(5)
    scene.remove_manifest("web")
    scene.until(lambda side: scene.get(side, "pods", mirror) is None, "its mirror is gone")


def static_troubles(scene: Scene) -> None:
    """Static pods that crash, that end, and one whose mirror is deleted with its grace.

    What is removed while it runs takes 3 s to end: until then housekeeping has dropped its status.
    """
    mirrors = {name: f"{name}-{{node}}" for name in ("crashes", "ends", "stays")}
    script = "sleep 1; [ -e /d/2 ] && sleep 900; [ -e /d/1 ] && touch /d/2; touch /d/1; exit 3"
    crashing = container(script=script, volumeMounts=[{"name": "d", "mountPath": "/d"}])
    volumes = [{"name": "d", "emptyDir": {}}]
    scene.place_manifest("crashes", pod("crashes", crashing, volumes=volumes))
    ends = pod("ends", container(script="sleep 2; exit 0"), restartPolicy="Never")
    scene.place_manifest("ends", ends)
    scene.place_manifest("stays", pod("stays", container("a", "sleep 900"), container("b")))
    scene.wait(mirrors["ends"], lambda each: phase(each) == "Succeeded", "has ended")
    scene.wait(mirrors["stays"], lambda each: phase(each) == "Running", "runs")
    scene.wait(mirrors["crashes"], lambda each: restarts(each) >= 2, "restarts twice")
    scene.pause(5)
    scene.remove_manifest("crashes")
    scene.ask_to_delete(mirrors["stays"])
    scene.pause(8)
    scene.wait(mirrors["stays"], lambda each: phase(each) == "Running", "runs again")
    scene.pause(5)
    for name in ("ends", "stays"):
        scene.remove_manifest(name)
    scene.until(
        lambda side: not any(scene.get(side, "pods", name) for name in mirrors.values()),
        "the mirrors are gone",
    )
