"""The controllers of the simulated control plane, and who is told of which write."""

from collections.abc import Iterable

from fleet.clock import Draws
from world.components import Components
from world.node_lifecycle import NodeLifecycle
from world.scheduler import Scheduler
from world.strategic_merge import Object
from world.taint_eviction import TaintEviction
from world.taints import taints_of
from world.targets import Key
from world.workloads import Workloads

_OF_WORKLOADS = frozenset({"pods", "replicasets", "deployments"})


class Controllers:
    """Node-lifecycle, taint-eviction, scheduler, Deployments: all that scenarios rely on."""

    def __init__(self, components: Components, draws: Draws) -> None:
        self._on_node: dict[str, dict[Key, None]] = {}  # pods, by node
        self.lifecycle = NodeLifecycle(components, self.pods_on)
        self.eviction = TaintEviction(components, self.pods_on)
        self.scheduler = Scheduler(components, draws)
        self.workloads = Workloads(components, draws)
        components.server.listeners.append(self._on_write)

    def pods_on(self, node: str) -> Iterable[Key]:
        """Return the pods that are bound to a node."""
        return self._on_node.get(node, ())

    def _on_write(self, key: Key, old: Object | None, new: Object | None) -> None:
        if key[0] == "nodes":
            self._node(key[2], old, new)
        elif key[0] == "pods":
            self._pod(key, old, new)
        if key[0] in _OF_WORKLOADS:
            self.workloads.on_object(key, old, new)

    def _node(self, name: str, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.lifecycle.on_node(name)
        is_same = old is not None and new is not None
        if is_same and _of_scheduler(old or {}) == _of_scheduler(new or {}):
            return
        self.scheduler.on_node(name, new)
        before = taints_of(old) if old is not None else []
        after = taints_of(new) if new is not None else []
        if before != after:
            self.eviction.on_node(name)

    def _pod(self, key: Key, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None, key
        uid = str(pod["metadata"]["uid"])
        node = str(pod["spec"].get("nodeName", ""))
        if new is None:
            self._on_node.get(node, {}).pop(key, None)
            self.eviction.forget(uid)
        elif node and (old is None or not old["spec"].get("nodeName")):
            self._on_node.setdefault(node, {})[key] = None
            self.eviction.on_pod(key)
        self.scheduler.on_pod(key, new, uid)


def _of_scheduler(node: Object) -> tuple[object, ...]:
    """Return what the scheduler goes by."""
    spec, status = node.get("spec", {}), node.get("status", {})
    labels = node["metadata"].get("labels")
    return spec.get("taints"), spec.get("unschedulable"), status.get("allocatable"), labels
