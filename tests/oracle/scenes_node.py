"""Scenes of what is done to a Node: to be played by themselves, since all pods of it notice."""

from oracle.objects_of_scenes import pod
from oracle.scene import Scene

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
    a_while = [{**tolerates[0], "effect": "NoExecute", "tolerationSeconds": 6}]
    scene.create(pod("stays", tolerations=tolerates), pod("goes"))
    scene.create(pod("leaves", tolerations=a_while))
    scene.until_running("stays", "goes", "leaves")
    scene.pause()
    scene.patch_node({"spec": {"taints": [TAINT]}})
    scene.until(lambda side: scene.get(side, "pods", "goes") is None, "it goes")
    scene.create(pod("comes", tolerations=tolerates))
    scene.until_running("comes")
    scene.until(lambda side: scene.get(side, "pods", "leaves") is None, "it leaves")
    scene.patch_node({"spec": {"taints": None}})
    scene.until(lambda side: not scene.node(side)["spec"].get("taints"), "it has no taint")
    scene.pause()
    scene.delete("stays", "comes")
