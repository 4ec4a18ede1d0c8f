"""The node-lifecycle controller: who is Unknown, which taints follow, how fast.

    heard of --50 s of silence--> Unknown --> NoSchedule at once, NoExecute at the rate of its zone

A node is heard of when its Lease is renewed or the heartbeat of its Ready condition moves.
Source: pkg/controller/nodelifecycle/node_lifecycle_controller.go, with its default flags.
"""

import enum
from collections.abc import Callable, Iterable

from fleet.clock import NS_PER_S
from world.components import CONTROLLER_MANAGER, Components, Work
from world.strategic_merge import Object
from world.taints import (
    MANAGED,
    NO_EXECUTE,
    NO_SCHEDULE,
    NOT_READY,
    OF_CONDITIONS,
    UNREACHABLE,
    UNSCHEDULABLE,
    condition_of,
    taints_of,
)
from world.targets import Key

MONITOR_S = 5.01  # --node-monitor-period, which begins when a look at all nodes is over
GRACE_NS = 50 * NS_PER_S  # --node-monitor-grace-period
STARTUP_NS = 60 * NS_PER_S  # --node-startup-grace-period
PASS_S = 0.1  # scheduler.NodeEvictionPeriod
RATE = 0.1  # --node-eviction-rate
SECONDARY_RATE = 0.01  # --secondary-node-eviction-rate
LARGE_ZONE = 50  # --large-cluster-size-threshold
UNHEALTHY_SHARE = 0.55  # --unhealthy-zone-threshold
UNHEALTHY_LEAST = 3  # nodes, for a zone to be partially disrupted
TAINT_S = 0.005
CLIENT = "system:serviceaccount:kube-system:node-controller"
STOPPED = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
NEVER = ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
PodsOn = Callable[[str], Iterable[Key]]
_SET_UNKNOWN = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


class ZoneState(enum.Enum):
    """How much of a zone is there."""

    INITIAL = enum.auto()
    NORMAL = enum.auto()
    PARTIAL = enum.auto()
    FULL = enum.auto()


class Health:
    """What was last heard of a node."""

    __slots__ = ("heartbeat", "probe_ns", "renewed")

    def __init__(self, probe_ns: int, heartbeat: str | None) -> None:
        self.probe_ns = probe_ns
        self.heartbeat = heartbeat
        self.renewed: str = ""


class Zone:
    """The nodes of a zone that are to be tainted, and how many may be now: a bucket of one token.

    Source: nodelifecycle/scheduler/rate_limited_queue.go.
    """

    __slots__ = ("_filled_ns", "_pause_ns", "_saved_ns", "queue", "state")

    def __init__(self, now_ns: int) -> None:
        self.queue: dict[str, None] = {}
        self.state = ZoneState.INITIAL
        self._pause_ns = _pause_ns(RATE)  # between two; 0: none may be
        self._saved_ns = self._pause_ns
        self._filled_ns = now_ns

    def limit(self, rate: float, now_ns: int) -> None:
        """Go on at another rate; who waits now waits with it, too."""
        pause_ns = _pause_ns(rate)
        if pause_ns != self._pause_ns:
            is_waiting = not self.accepts(now_ns)
            self._pause_ns, self._saved_ns = pause_ns, 0 if is_waiting else pause_ns

    def accepts(self, now_ns: int) -> bool:
        """Take a token if there is one."""
        self._saved_ns = min(self._pause_ns, self._saved_ns + now_ns - self._filled_ns)
        self._filled_ns = now_ns
        if not self._pause_ns or self._saved_ns < self._pause_ns:
            return False
        self._saved_ns = 0
        return True


def _pause_ns(rate: float) -> int:
    return round(NS_PER_S / rate) if rate else 0


class NodeLifecycle:
    """See the top of this file; `pods_on` returns the keys of the pods of a node."""

    def __init__(self, components: Components, pods_on: PodsOn) -> None:
        self._components = components
        self._server = components.server
        self._pods_on = pods_on
        self._healths: dict[str, Health] = {}
        self._zones: dict[str, Zone] = {}
        self._known: dict[str, None] = {}
        self._taint = Work(components, CONTROLLER_MANAGER, TAINT_S, self._taint_no_schedule)
        components.on_restart.append(self._forget)
        components.after(MONITOR_S, self._monitor)
        components.after(PASS_S, self._pass)

    def on_node(self, name: str) -> None:
        """Look at a node that has changed."""
        self._taint.add(name)

    def _forget(self) -> None:
        self._healths.clear()
        self._zones.clear()
        self._known.clear()

    # ---- health ----

    def _monitor(self) -> None:
        self._components.after(MONITOR_S, self._monitor)
        if not self._components.works(CONTROLLER_MANAGER):
            return
        now_ns = self._components.clock.now_ns()
        conditions: dict[str, list[str]] = {}
        nodes = self._server.all("nodes")
        for node in nodes:
            name, zone = node["metadata"]["name"], zone_of(node)
            self._zones.setdefault(zone, Zone(now_ns))
            if name not in self._known:
                self._known[name] = None
                self._mark_reachable(name)
            before, now = self._update_health(node, now_ns)
            conditions.setdefault(zone, []).append(now)
            if now:
                self._evict(name, zone, now)
            if before == "True" and now != "True":
                self._mark_pods(name)
        if len(self._known) > len(nodes):
            here = {node["metadata"]["name"] for node in nodes}
            self._known = {name: None for name in self._known if name in here}
        self._handle_disruption(conditions, nodes, now_ns)

    def _update_health(self, node: Object, now_ns: int) -> tuple[str, str]:
        """Return the Ready condition as it was and is. Source: tryUpdateNodeHealth."""
        name = node["metadata"]["name"]
        ready = condition_of(node, "Ready")
        heartbeat = None if ready is None else str(ready.get("lastHeartbeatTime", ""))
        health = self._healths.get(name)
        if health is None or health.heartbeat != heartbeat:
            renewed = "" if health is None else health.renewed
            health = self._healths[name] = Health(now_ns, heartbeat)
            health.renewed = renewed
        lease = self._server.find("leases", name, "kube-node-lease")
        if lease is not None and lease["spec"].get("renewTime", "") > health.renewed:
            health.renewed = lease["spec"]["renewTime"]
            health.probe_ns = now_ns
        before = "Unknown" if ready is None else str(ready["status"])
        grace_ns = STARTUP_NS if ready is None else GRACE_NS
        if now_ns <= health.probe_ns + grace_ns or (ready is not None and before == "Unknown"):
            return before, "" if ready is None else before
        self._set_unknown(node)
        return before, "Unknown"

    def _set_unknown(self, node: Object) -> None:
        stamp, meta = self._server.now(), node["metadata"]
        conditions = [dict(each) for each in node.get("status", {}).get("conditions") or ()]
        by_type = {each["type"]: each for each in conditions}
        for kind in _SET_UNKNOWN:
            condition = by_type.get(kind)
            if condition is None:
                reason, message = NEVER
                condition = {"type": kind, "lastHeartbeatTime": meta["creationTimestamp"]}
                conditions.append(condition)
            elif condition["status"] == "Unknown":
                continue
            else:
                reason, message = STOPPED
            condition.update(
                status="Unknown", reason=reason, message=message, lastTransitionTime=stamp
            )
        status = {**node.get("status", {}), "conditions": conditions}
        self._write(meta["name"], {**node, "status": status}, "/status")

    def _mark_pods(self, node: str) -> None:
        """Take the Ready condition of the pods of a node away. Source: MarkPodsNotReady."""
        for key in list(self._pods_on(node)):
            pod = self._server.objects[key].obj
            ready = condition_of(pod, "Ready")
            if ready is None or ready["status"] == "False":
                continue
            stamp = self._server.now()
            conditions = [
                {**each, "status": "False", "lastTransitionTime": stamp} if each is ready else each
                for each in pod["status"]["conditions"]
            ]
            status = {**pod["status"], "conditions": conditions}
            path = f"/api/v1/namespaces/{key[1]}/pods/{key[2]}/status"
            self._components.asked(CLIENT, "PUT", path)
            self._server.replace(key, {**pod, "status": status})

    # ---- taints ----

    def _taint_no_schedule(self, item: object) -> None:
        """Have taints of a node follow from its conditions. Source: doNoScheduleTaintingPass."""
        name = str(item)
        node = self._server.find("nodes", name)
        if node is None:
            return
        wanted = {
            key: None
            for each in node.get("status", {}).get("conditions") or ()
            if (key := OF_CONDITIONS.get((each["type"], each["status"])))
        }
        if node.get("spec", {}).get("unschedulable"):
            wanted[UNSCHEDULABLE] = None
        has = {
            each["key"]: None
            for each in taints_of(node)
            if each["effect"] == NO_SCHEDULE and each["key"] in MANAGED
        }
        if wanted.keys() != has.keys():
            added = [(key, NO_SCHEDULE) for key in wanted if key not in has]
            gone = [(key, NO_SCHEDULE) for key in has if key not in wanted]
            self._swap(name, added, gone)

    def _evict(self, name: str, zone: str, ready: str) -> None:
        """Queue a node for its taint, or free it of it. Source: processTaintBaseEviction."""
        if ready == "True":
            self._mark_reachable(name)
            return
        wanted, other = (NOT_READY, UNREACHABLE) if ready == "False" else (UNREACHABLE, NOT_READY)
        has = self._no_execute(name)
        if other in has:
            self._swap(name, [(wanted, NO_EXECUTE)], [(other, NO_EXECUTE)])
        elif wanted not in has:
            queue = self._zones[zone].queue
            queue.pop(name, None)
            queue[name] = None

    def _mark_reachable(self, name: str) -> None:
        gone = [(key, NO_EXECUTE) for key in self._no_execute(name)]
        if gone:
            self._swap(name, [], gone)
        for zone in self._zones.values():
            if zone.queue:
                zone.queue.pop(name, None)

    def _no_execute(self, name: str) -> list[str]:
        node = self._server.find("nodes", name)
        taints = taints_of(node) if node is not None else ()
        if not taints:
            return []
        keys = (NOT_READY, UNREACHABLE)
        return [
            each["key"] for each in taints if each["effect"] == NO_EXECUTE and each["key"] in keys
        ]

    def _pass(self) -> None:
        """Taint as many nodes as their zones may have. Source: doNoExecuteTaintingPass."""
        self._components.after(PASS_S, self._pass)
        if not self._components.works(CONTROLLER_MANAGER):
            return
        now_ns = self._components.clock.now_ns()
        for zone in self._zones.values():
            while zone.queue and zone.accepts(now_ns):
                name = next(iter(zone.queue))
                del zone.queue[name]
                node = self._server.find("nodes", name)
                ready = condition_of(node, "Ready") if node is not None else None
                if ready is None or ready["status"] == "True":
                    continue
                is_false = ready["status"] == "False"
                keys = (NOT_READY, UNREACHABLE) if is_false else (UNREACHABLE, NOT_READY)
                self._swap(name, [(keys[0], NO_EXECUTE)], [(keys[1], NO_EXECUTE)])

    def _handle_disruption(
        self, conditions: dict[str, list[str]], nodes: list[Object], now_ns: int
    ) -> None:
        """Slow down, or stop, when too much of a zone is gone. Source: handleDisruption."""
        states = {zone: zone_state(each) for zone, each in conditions.items()}
        for gone in [each for each in self._zones if each not in conditions]:
            del self._zones[gone]
        if not states:
            return
        is_all = all(each is ZoneState.FULL for each in states.values())
        was_all = all(each.state is ZoneState.FULL for each in self._zones.values())
        if is_all and was_all:
            return
        if is_all:
            for node in nodes:
                self._mark_reachable(node["metadata"]["name"])
            for each in self._zones.values():
                each.limit(0.0, now_ns)
                each.state = ZoneState.FULL
            return
        if was_all:
            for health in self._healths.values():
                health.probe_ns = now_ns
        for name, zone in self._zones.items():
            if was_all or zone.state is not states[name]:
                zone.limit(_rate(states[name], len(conditions[name])), now_ns)
                zone.state = states[name]

    def _swap(
        self, name: str, added: Iterable[tuple[str, str]], gone: Iterable[tuple[str, str]]
    ) -> None:
        node = self._server.get("nodes", name)
        unwanted, stamp = {*added, *gone}, self._server.now()
        taints = [each for each in taints_of(node) if (each["key"], each["effect"]) not in unwanted]
        taints += [{"key": key, "effect": effect, "timeAdded": stamp} for key, effect in added]
        spec = {key: each for key, each in node.get("spec", {}).items() if key != "taints"}
        if taints:
            spec["taints"] = taints
        self._write(name, {**node, "spec": spec})

    def _write(self, name: str, node: Object, sub: str = "") -> None:
        self._components.asked(CLIENT, "PUT" if sub else "PATCH", f"/api/v1/nodes/{name}{sub}")
        self._server.replace(("nodes", "", name), node)


def zone_of(node: Object) -> str:
    """Return region and zone of a node, "" if it has none. Source: node.GetZoneKey."""
    labels = node["metadata"].get("labels", {})
    region = labels.get("topology.kubernetes.io/region", "")
    zone = labels.get("topology.kubernetes.io/zone", "")
    return f"{region}:{zone}" if region or zone else ""


def zone_state(ready: list[str]) -> ZoneState:
    """Return how much of a zone is there. Source: ComputeZoneState."""
    lost = sum(each != "True" for each in ready)
    if lost == len(ready):
        return ZoneState.FULL
    if lost >= UNHEALTHY_LEAST and lost / len(ready) >= UNHEALTHY_SHARE:
        return ZoneState.PARTIAL
    return ZoneState.NORMAL


def _rate(state: ZoneState, size: int) -> float:
    if state is not ZoneState.PARTIAL:
        return RATE
    return SECONDARY_RATE if size > LARGE_ZONE else 0.0
