"""Taints and tolerations, and the taint-eviction controller.

A pod is deleted when its node gets a NoExecute taint that the pod does not tolerate, or tolerates
only for a time that is over.
Source: component-helpers/scheduling/corev1/helpers.go, api/core/v1/toleration.go ToleratesTaint;
pkg/controller/tainteviction/taint_eviction.go.
"""

from collections.abc import Iterable
from functools import partial

from fleet.clock import NS_PER_S
from world.api_server import SimApiServer
from world.strategic_merge import Object
from world.targets import Key
from world.virtual_time import World

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
NO_EXECUTE = "NoExecute"
LOOK_S = 0.002


def tolerates(toleration: Object, taint: Object) -> bool:
    """Return whether a toleration matches a taint."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    is_named = bool(toleration.get("key"))
    return is_named and toleration.get("value", "") == taint.get("value", "")


def is_tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    """Return whether any toleration matches a taint."""
    return any(tolerates(each, taint) for each in tolerations)


def tolerated_ns(taints: list[Object], tolerations: list[Object]) -> int | None:
    """Return how long a pod may stay on a node with some taints; None: without limit.

    Source: getMinTolerationTime.
    """
    used = []
    for taint in taints:
        found = next((each for each in tolerations if tolerates(each, taint)), None)
        if found is None:
            return 0
        used.append(found)
    limits = [
        max(int(each["tolerationSeconds"]), 0)
        for each in used
        if each.get("tolerationSeconds") is not None
    ]
    return min(limits) * NS_PER_S if limits else None


class TaintEviction:
    """The controller. It looks at a pod when the pod is bound and when its node's taints change."""

    def __init__(self, world: World, server: SimApiServer) -> None:
        self._world = world
        self._server = server
        self._due: dict[str, tuple[int, int]] = {}  # by uid: begun, due
        server.listeners.append(self._on_write)

    def _on_write(self, key: Key, old: Object | None, new: Object | None) -> None:
        if key[0] == "nodes" and _taints_of(old) != _taints_of(new):
            for pod in self._server.all("pods"):
                if pod["spec"].get("nodeName") == key[2]:
                    self._look_soon(("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]))
        elif key[0] == "pods" and new is None:
            assert old is not None, key
            self._due.pop(str(old["metadata"]["uid"]), None)
        elif key[0] == "pods" and (old is None or not old["spec"].get("nodeName")):
            self._look_soon(key)

    def _look_soon(self, key: Key) -> None:
        self._world.after(LOOK_S, partial(self._look, key))

    def _look(self, key: Key) -> None:
        """Delete a pod now or later, or let it be. Source: processPodOnNode."""
        pod = self._server.find(key[0], key[2], key[1])
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        uid = str(pod["metadata"]["uid"])
        node = self._server.find("nodes", pod["spec"].get("nodeName", ""))
        taints = [each for each in _taints_of(node) if each["effect"] == NO_EXECUTE]
        limit_ns = tolerated_ns(taints, pod["spec"].get("tolerations") or [])
        if limit_ns is None:
            self._due.pop(uid, None)
            return
        now_ns = self._world.clock.now_ns()
        begun_ns, before_ns = self._due.get(uid, (now_ns, -1))
        due_ns = begun_ns + limit_ns if limit_ns else now_ns
        if before_ns == due_ns:
            return
        self._due[uid] = (begun_ns, due_ns)
        wait_s = max(due_ns - now_ns, 0) / NS_PER_S
        self._world.after(wait_s, partial(self._delete, key, uid, due_ns))

    def _delete(self, key: Key, uid: str, due_ns: int) -> None:
        if self._due.get(uid, (0, 0))[1] != due_ns:
            return
        del self._due[uid]
        pod = self._server.get(key[0], key[2], key[1])
        if "deletionTimestamp" in pod["metadata"]:
            return
        disrupted = {
            "type": "DisruptionTarget",
            "observedGeneration": pod["metadata"]["generation"],
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": self._server.now(),
        }
        conditions = [*(pod["status"].get("conditions") or ()), disrupted]
        self._server.replace(key, {**pod, "status": {**pod["status"], "conditions": conditions}})
        self._server.delete_pod(key[2], key[1])


def _taints_of(node: Object | None) -> list[Object]:
    found: list[Object] = (node or {}).get("spec", {}).get("taints") or []
    return found
