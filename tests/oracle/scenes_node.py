"""Scenes of what is done to a Node: to be played by themselves, since all pods of it notice."""

from objects_of_scenes import container, pod
from scene import Scene, phase

STATUS_TICK_S = 13.0
"""A node tells what it is every 10 s x U[1, 1.04]."""
TAINT = {"key": "oracle", "value": "x", "effect": "NoExecute"}


def cordoned(scene: Scene) -> None:
    """The Node is cordoned, and uncordoned; a pod that is bound to it runs all the same."""
    scene.patch_node({"spec": {"unschedulable": True}})
    scene.pause(STATUS_TICK_S)
    scene.create(pod("bound"))
    scene.until_running("bound")
    scene.patch_node({"spec": {"unschedulable": False}})
    scene.pause(STATUS_TICK_S)
    scene.delete("bound")


def relabelled(scene: Scene) -> None:
    """The Node gets a label that a pod asks for, and loses it while the pod runs."""
    scene.create(pod("too-soon", nodeSelector={"oracle": "yes"}))
    scene.until_over("too-soon")
    scene.patch_node({"metadata": {"labels": {"oracle": "yes"}, "annotations": {"oracle": "x"}}})
    scene.pause()
    scene.create(pod("in-time", nodeSelector={"oracle": "yes"}))
    scene.until_running("in-time")
    scene.patch_node({"metadata": {"labels": {"oracle": None}, "annotations": {"oracle": None}}})
    scene.pause()
    scene.create(pod("too-late", nodeSelector={"oracle": "yes"}))
    scene.until_over("too-late")
    scene.pause()
    scene.delete("too-soon", "in-time", "too-late")


def tainted(scene: Scene) -> None:
    """The Node gets a taint with NoExecute: pods that do not tolerate it are deleted."""
    tolerates = [{"key": "oracle", "operator": "Exists"}]
    a_while = [{**tolerates[0], "tolerationSeconds": 6}]
    scene.create(pod("stays", tolerations=tolerates), pod("goes"))
    scene.create(pod("leaves", tolerations=a_while))
    for name in ("stays", "goes", "leaves"):
        scene.until_running(name)
    scene.pause()
    scene.patch_node({"spec": {"taints": [TAINT]}})
    scene.until(lambda side: scene.get(side, "pods", "goes") is None, "it goes")
    scene.create(pod("refused"), pod("comes", tolerations=tolerates))
    scene.until_over("refused")
    scene.until_running("comes")
    scene.until(lambda side: scene.get(side, "pods", "leaves") is None, "it leaves")
    scene.patch_node({"spec": {"taints": [{"$patch": "delete", **TAINT}]}})
    scene.pause()
    scene.delete("stays", "comes", "refused")


def static(scene: Scene) -> None:
    """A static pod appears, its mirror is deleted and comes back, it is changed, and it goes."""
    made = pod("static", container(script="sleep 900"))
    mirror = "static-{node}"

    def is_running(side: str) -> bool:
        found = scene.get(side, "pods", mirror)
        return found is not None and phase(found) == "Running"

    scene.place_manifest("static", made)
    scene.until(is_running, "its mirror runs")
    scene.pause(5)
    scene.ask_to_delete(mirror, grace_s=0)
    scene.until(is_running, "its mirror is back")
    scene.pause(5)
    made["spec"]["containers"][0]["command"] = ["sh", "-c", "sleep 901"]
    scene.place_manifest("static", made)
    scene.until(
        lambda side: "901" in str((scene.get(side, "pods", mirror) or {}).get("spec")),
        "its mirror has changed",
    )
    scene.until(is_running, "its mirror runs again")
    scene.pause(5)
    scene.remove_manifest("static")
    scene.until(lambda side: scene.get(side, "pods", mirror) is None, "its mirror is gone")


def static_troubles(scene: Scene) -> None:
    """Static pods that crash, that end, and one whose mirror is deleted with its grace."""
    mirrors = {name: f"{name}-{{node}}" for name in ("crashes", "ends", "stays")}
    scene.place_manifest("crashes", pod("crashes", container(script="sleep 1; exit 3")))
    ends = pod("ends", container(script="sleep 2; exit 0"), restartPolicy="Never")
    scene.place_manifest("ends", ends)
    scene.place_manifest("stays", pod("stays", container("a"), container("b")))
    scene.wait(mirrors["ends"], lambda each: phase(each) == "Succeeded", "has ended")
    scene.wait(mirrors["stays"], lambda each: phase(each) == "Running", "runs")
    scene.pause(18)
    scene.ask_to_delete(mirrors["stays"])
    scene.pause(8)
    scene.wait(mirrors["stays"], lambda each: phase(each) == "Running", "runs again")
    scene.pause(5)
    for name in mirrors:
        scene.remove_manifest(name)
    scene.until(
        lambda side: not any(scene.get(side, "pods", name) for name in mirrors.values()),
        "the mirrors are gone",
    )


def deleted_node(scene: Scene) -> None:
    """The Nodes are deleted: a kubelet that runs does not make its Node again."""
    scene.create(pod("orphan"))
    scene.until_running("orphan")
    scene.pause()
    for node in scene.stage.nodes.values():
        scene.admin.delete("nodes", "", node)
    scene.pause(25)
    scene.delete("orphan", limit_s=70)
