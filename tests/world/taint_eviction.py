"""The taint-eviction controller: pods leave nodes whose NoExecute taints they do not tolerate.

Source: pkg/controller/tainteviction/taint_eviction.go.
"""

from functools import partial

from fleet.clock import NS_PER_S
from world.components import AGAIN_S, CONTROLLER_MANAGER, Components, Work
from world.node_lifecycle import PodsOn
from world.strategic_merge import Object
from world.taints import NO_EXECUTE, taints_of, tolerates
from world.targets import Key

LOOK_S = 0.002
CLIENT = "system:serviceaccount:kube-system:node-controller"
"""Source: cmd/kube-controller-manager/app/core.go, newTaintEvictionController."""


class TaintEviction:
    """See the top of this file."""

    def __init__(self, components: Components, pods_on: PodsOn) -> None:
        self._components = components
        self._server = components.server
        self._pods_on = pods_on
        self._due: dict[str, tuple[int, int]] = {}  # by uid: begun, due
        self._work = Work(components, CONTROLLER_MANAGER, LOOK_S, self._look)
        components.on_restart.append(self._restart)

    def on_node(self, name: str) -> None:
        """Look at the pods of a node whose taints have changed."""
        for key in self._pods_on(name):
            self._work.add(key)

    def on_pod(self, key: Key) -> None:
        """Look at a pod that was bound."""
        self._work.add(key)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._due.pop(uid, None)

    def _restart(self) -> None:
        self._due.clear()
        for node in self._server.all("nodes"):
            self.on_node(node["metadata"]["name"])

    def _look(self, item: object) -> None:
        """Delete a pod now or later, or let it be. Source: processPodOnNode."""
        assert isinstance(item, tuple), item
        stored = self._server.objects.get(item)
        if stored is None or "deletionTimestamp" in stored.obj["metadata"]:
            return
        pod, uid = stored.obj, str(stored.obj["metadata"]["uid"])
        node = self._server.find("nodes", pod["spec"].get("nodeName", ""))
        taints = [each for each in taints_of(node or {}) if each["effect"] == NO_EXECUTE]
        if not taints:
            self._due.pop(uid, None)
            return
        now_ns = self._components.clock.now_ns()
        limit_ns = tolerated_ns(taints, pod["spec"].get("tolerations") or [])
        if limit_ns is None:
            self._due.pop(uid, None)
            return
        begun_ns, before_ns = self._due.get(uid, (now_ns, -1))
        due_ns = begun_ns + limit_ns if limit_ns else now_ns
        if before_ns == due_ns:
            return
        self._due[uid] = (begun_ns, due_ns)
        wait_s = max(due_ns - now_ns, 0) / NS_PER_S
        self._components.after(wait_s, partial(self._delete, item, uid, due_ns))

    def _delete(self, key: Key, uid: str, due_ns: int) -> None:
        stored = self._server.objects.get(key)
        if stored is None or self._due.get(uid, (0, 0))[1] != due_ns:
            return
        if not self._components.works(CONTROLLER_MANAGER):
            self._components.after(AGAIN_S, partial(self._delete, key, uid, due_ns))
            return
        pod = stored.obj
        if pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]:
            return
        self._due.pop(uid)
        path = f"/api/v1/namespaces/{key[1]}/pods/{key[2]}"
        stamp = self._server.now()
        disrupted = {
            "type": "DisruptionTarget",
            "observedGeneration": pod["metadata"]["generation"],
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": stamp,
        }
        conditions = [*(pod["status"].get("conditions") or ()), disrupted]
        self._components.asked(CLIENT, "PATCH", f"{path}/status")
        self._server.replace(key, {**pod, "status": {**pod["status"], "conditions": conditions}})
        self._components.asked(CLIENT, "DELETE", path)
        self._server.delete_pod(key[2], key[1])


def tolerated_ns(taints: list[Object], tolerations: list[Object]) -> int | None:
    """Return how long a pod may stay beside some taints; None: as long as it likes.

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
