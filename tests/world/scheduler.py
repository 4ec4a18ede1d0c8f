"""The scheduler, as far as pods of scenarios need one: who fits where, the least used node first.

Filters are those of taints, node selectors, resources and the number of pods; of many nodes only a
part is looked at, in turns. There is no preemption.
Source: pkg/scheduler/schedule_one.go, numFeasibleNodesToFind; framework/plugins/noderesources.
"""

from fleet.clock import Draws
from fleet.quantity import parse_quantity
from world.components import SCHEDULER, Components, Work
from world.strategic_merge import Object
from world.taints import condition_of, is_tolerated, taints_of
from world.targets import Key

DECIDED_S = 0.002
RETRIED_S = 1.0
LEAST_NODES = 100  # minFeasibleNodesToFind
CLIENT = "system:kube-scheduler"
UNSCHEDULABLE_WORDS = "0/{nodes} nodes are available"
_EFFECTS = ("NoSchedule", "NoExecute")
_STREAM_TIE = 0x5C4ED


class Room:
    """What a node has, and what the pods on it have asked for."""

    __slots__ = ("allocatable", "labels", "name", "pods", "taints", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.labels: dict[str, str] = {}
        self.taints: list[Object] = []
        self.allocatable: dict[str, float] = {}
        self.used: dict[str, float] = {}
        self.pods: dict[str, dict[str, float]] = {}  # by uid: what each asked for

    def take(self, uid: str, asked: dict[str, float]) -> None:
        """Count a pod, once."""
        if uid in self.pods:
            return
        self.pods[uid] = asked
        for name, amount in asked.items():
            self.used[name] = self.used.get(name, 0.0) + amount

    def free(self, uid: str) -> None:
        """Count a pod no more."""
        for name, amount in self.pods.pop(uid, {}).items():
            self.used[name] -= amount

    def holds(self, asked: dict[str, float]) -> bool:
        """Return whether there is room for so much more."""
        if len(self.pods) >= self.allocatable.get("pods", 0):
            return False
        return all(
            self.used.get(name, 0.0) + amount <= self.allocatable.get(name, 0.0)
            for name, amount in asked.items()
        )

    def share(self) -> float:
        """Return how much of it is used, as the least allocated scores it; pods count a little."""
        found = [
            self.used.get(name, 0.0) / self.allocatable[name]
            for name in ("cpu", "memory")
            if self.allocatable.get(name)
        ]
        pods = len(self.pods) / (self.allocatable.get("pods") or 1)
        return (sum(found) / len(found) if found else 0.0) + pods


class Scheduler:
    """See the top of this file."""

    def __init__(self, components: Components, draws: Draws) -> None:
        self._components = components
        self._server = components.server
        self._draws = draws
        self._rooms: dict[str, Room] = {}
        self._where: dict[str, str] = {}  # by uid
        self._waiting: dict[Key, None] = {}  # what fitted nowhere
        self._is_retried = False
        self._start = self._count = 0
        self._work = Work(components, SCHEDULER, DECIDED_S, self._schedule)

    def on_node(self, name: str, node: Object | None) -> None:
        """Take what a node is like, or that it is gone."""
        if node is None:
            self._rooms.pop(name, None)
            return
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = Room(name)
        room.labels = node["metadata"].get("labels", {})
        room.taints = [each for each in taints_of(node) if each["effect"] in _EFFECTS]
        if node.get("spec", {}).get("unschedulable"):
            effect = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
            room.taints = [*room.taints, effect]
        allocatable = node.get("status", {}).get("allocatable") or {}
        room.allocatable = {key: amount_of(each) for key, each in allocatable.items()}
        self._retry()

    def on_pod(self, key: Key, pod: Object | None, uid: str) -> None:
        """Take what a pod is like, or that it is gone."""
        node = pod["spec"].get("nodeName", "") if pod is not None else ""
        is_over = pod is None or pod["status"].get("phase") in {"Succeeded", "Failed"}
        before = self._where.get(uid)
        if is_over and before is not None:
            del self._where[uid]
            if before in self._rooms:
                self._rooms[before].free(uid)
            self._retry()
        elif pod is not None and not is_over and node and before is None:
            self._where[uid] = node
            self._rooms.setdefault(node, Room(node)).take(uid, asked_by(pod))
        elif pod is not None and not node and key not in self._waiting:
            self._work.add(key)
        if pod is None:
            self._waiting.pop(key, None)

    def _retry(self) -> None:
        if self._waiting and not self._is_retried:
            self._is_retried = True
            self._components.after(RETRIED_S, self._take_up)

    def _take_up(self) -> None:
        self._is_retried = False
        waiting, self._waiting = self._waiting, {}
        for key in waiting:
            self._work.add(key)

    def _schedule(self, item: object) -> None:
        assert isinstance(item, tuple), item
        key: Key = item
        stored = self._server.objects.get(key)
        if stored is None or stored.obj["spec"].get("nodeName"):
            return
        pod = stored.obj
        if "deletionTimestamp" in pod["metadata"]:
            return
        room = self._choose(pod)
        path = f"/api/v1/namespaces/{key[1]}/pods/{key[2]}"
        stamp = self._server.now()
        scheduled = {"type": "PodScheduled", "lastProbeTime": None, "lastTransitionTime": stamp}
        if room is None:
            self._waiting[key] = None
            if condition_of(pod, "PodScheduled") is None:
                words = UNSCHEDULABLE_WORDS.format(nodes=len(self._rooms))
                scheduled |= {"status": "False", "reason": "Unschedulable", "message": words}
                self._components.asked(CLIENT, "PATCH", f"{path}/status")
                self._set(key, pod, scheduled, {})
            return
        self._components.asked(CLIENT, "POST", f"{path}/binding")
        self._set(key, pod, scheduled | {"status": "True"}, {"nodeName": room.name})

    def _set(self, key: Key, pod: Object, condition: Object, spec: Object) -> None:
        others = [
            each
            for each in pod["status"].get("conditions") or ()
            if each["type"] != condition["type"]
        ]
        status = {**pod["status"], "conditions": [*others, condition]}
        self._server.replace(key, {**pod, "spec": {**pod["spec"], **spec}, "status": status})

    def _choose(self, pod: Object) -> Room | None:
        """Return the least used of the first nodes that fit."""
        rooms = list(self._rooms.values())
        if not rooms:
            return None
        wanted, asked = feasible_wanted(len(rooms)), asked_by(pod)
        selector: dict[str, str] = pod["spec"].get("nodeSelector") or {}
        tolerations = pod["spec"].get("tolerations") or []
        found: list[Room] = []
        begun, seen = self._start % len(rooms), 0
        for offset in range(len(rooms)):
            room = rooms[(begun + offset) % len(rooms)]
            seen += 1
            if (
                room.holds(asked)
                and all(room.labels.get(key) == value for key, value in selector.items())
                and all(is_tolerated(each, tolerations) for each in room.taints)
            ):
                found.append(room)
                if len(found) == wanted:
                    break
        self._start = begun + seen
        if not found:
            return None
        self._count += 1
        best = min(room.share() for room in found)
        ties = [room for room in found if room.share() == best]
        return ties[int(self._draws.uniform(0, _STREAM_TIE, self._count) * len(ties))]


def feasible_wanted(nodes: int) -> int:
    """Return how many nodes that fit are enough. Source: numFeasibleNodesToFind."""
    if nodes <= LEAST_NODES:
        return nodes
    percent = max(50 - nodes // 125, 5)
    return max(nodes * percent // 100, LEAST_NODES)


def amount_of(value: object) -> float:
    """Return a quantity as a number."""
    return parse_quantity(str(value)).milli / 1000


def asked_by(pod: Object) -> dict[str, float]:
    """Return what a pod asks of a node: of all containers, or of the greediest that begins.

    Source: component-helpers/resource/helpers.go, PodRequests.
    """
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        for name, value in _requests(container).items():
            total[name] = total.get(name, 0.0) + value
    for container in pod["spec"].get("initContainers") or ():
        for name, value in _requests(container).items():
            total[name] = max(total.get(name, 0.0), value)
    return total


def _requests(container: Object) -> dict[str, float]:
    asked = (container.get("resources") or {}).get("requests") or {}
    return {name: amount_of(value) for name, value in asked.items()}
