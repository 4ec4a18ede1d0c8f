"""A whole fleet in virtual time: the real reactor and kubelets, a fake server, no asyncio.

`run_for` jumps from one instant at which something is due to the next. A failing simulation shows
its seed, and the command that replays it, in its captured output.
"""

import functools
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Self, TypeVar

import pytest
from support.go_program import TESTED

from fleet.clock import NS_PER_S, Draws
from fleet.faults.fault import OF_KUBELET, FaultSpec
from fleet.faults.injector import Injector
from fleet.k8s.effects import NodeId, Op, WatchKind
from fleet.k8s.holds import Hold
from fleet.k8s.pods import NodeView
from fleet.kubelet.environment import CATALOG_KINDS, KUBELET, LIGHT, Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.reactor.reactor import Reactor
from fleet.server.node_metrics import kubelet_metrics
from fleet.wire.api.operations import OPERATIONS
from fleet.wire.api.requests import Caller, RenderedProfile
from world.api_server import SimApiServer
from world.encodings import ENCODINGS
from world.sim_clock import SimClock
from world.sim_faults import Fault
from world.strategic_merge import Object
from world.transport import Sent, SimTransport
from world.virtual_time import World

LEASE_DURATION_S = 40
MONITOR_S = 5
GRACE_S = 50  # node-monitor-grace-period
RUN = "fleet.emulator/run=sim"
SEED = "FLEET_SIM_SEED"
SEEDS = "FLEET_SIM_SEEDS"
FIRST_SEED = "FLEET_SIM_FIRST_SEED"
Test = TypeVar("Test", bound=Callable[..., None])
ENCODING: ContextVar[str] = ContextVar("encoding", default="json")
"""Of simulations that do not name theirs; the tests run in each, see sim_encodings.py."""


@functools.cache
def default_model() -> NodeModel:
    """Return the model that shipped nodes have on a server of the release that is tested."""
    return load_mix().model_of(0).on_server(TESTED)


EVERY_WATCH = (
    *("nodes", "services", "csidrivers", "runtimeclasses", "pods"),
    *(("podcertificaterequests",) * default_model().release.watches_certificate_requests),
)
"""What a kubelet of the default model watches itself, without pods."""
WATCHES = len(EVERY_WATCH)


def seeds(count: int) -> list[int]:
    """Return the seeds to try: one if the environment names it, more or others if it asks."""
    if SEED in os.environ:
        return [int(os.environ[SEED])]
    first = int(os.environ.get(FIRST_SEED, "1"))
    return list(range(first, first + int(os.environ.get(SEEDS, count))))


def seeded(count: int) -> Callable[[Test], Test]:
    """Mark a test that draws its story, and run it with each of the seeds to try."""

    def mark(test: Test) -> Test:
        drawn: Test = pytest.mark.parametrize("seed", seeds(count))(test)
        marked: Test = pytest.mark.seeded(drawn)
        return marked

    return mark


def pod_json(name: str, node: str = "", **spec: object) -> Object:
    """Return a pod as admission leaves it: one container, a token volume."""
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    root = {"configMap": {"name": "kube-root-ca.crt"}}
    container: Object = {"name": "c", "image": "nginx:1", "imagePullPolicy": "IfNotPresent"}
    for field in ("command", "startupProbe", "readinessProbe", "livenessProbe"):
        if field in spec:
            container[field] = spec.pop(field)
    volumes = [{"name": "kube-api-access-9zkmg", "projected": {"sources": [token, root]}}]
    volumes += spec.pop("volumes", [])  # type: ignore[arg-type]
    container["volumeMounts"] = [
        {"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes
    ]
    meta: Object = {"labels": {"app": name.partition("-")[0]}}
    if "annotations" in spec:
        meta["annotations"] = spec.pop("annotations")
    scheduled = {"type": "PodScheduled", "status": "True", "observedGeneration": 1}
    return {
        "metadata": meta,
        "spec": {
            "volumes": volumes,
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "serviceAccountName": "default",
            **({"nodeName": node} if node else {}),
            **spec,
        },
        "status": {"phase": "Pending", "conditions": [scheduled], "qosClass": "BestEffort"},
    }


class Simulation:
    """Nodes `n-0`, `n-1`, ... that all start at instant 0."""

    def __init__(
        self,
        nodes: int = 1,
        seed: int = 0,
        *,
        light: bool = False,
        raise_bugs: bool = True,
        monitored: bool = False,
        setup: Callable[[SimApiServer], None] | None = None,
        model: NodeModel | None = None,
        own_watches: bool | None = None,
        encoding: str | None = None,
        is_ours: Callable[[NodeView], bool] = lambda _view: True,
        registers: bool = True,
        hold: Callable[[SimApiServer], Hold] | None = None,
        settled: bool = False,
    ) -> None:
        self.seed = seed
        self._hold = hold
        self._settled = settled
        self._is_ours = is_ours
        self._registers = registers
        self.model = model or default_model()
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].partition("[")[0]
        self.encoding = encoding or ENCODING.get()
        print(f"seed {seed}, {self.encoding}; replay it: {SEED}={seed} .venv/bin/pytest {test}")
        self.clock = SimClock()
        self.server = SimApiServer(self.clock, ENCODINGS[self.encoding])
        codec = self.server.encoding.codec
        self.draws = Draws(seed)
        self.reactor = Reactor(self.clock, self.draws, codec=codec, raise_bugs=raise_bugs)
        self.names = [f"n-{index}" for index in range(nodes)]
        self.transport = SimTransport(
            self.server, self.clock, self.reactor.inbox, self.draws, self.names
        )
        self.observer = SimTransport(
            self.server, self.clock, self.reactor.inbox, Draws(seed + 1), ["observer"]
        )
        self.reactor.wires.connect(nodes=self.transport)
        self.wires = [self.transport, self.observer]  # a test may have more
        self.world = World(self.clock, self.reactor, self.wires)
        for namespace in ("default", "other"):
            self.server.create(("configmaps", namespace, "kube-root-ca.crt"), {})
        self.server.create(("services", "default", "kubernetes"), {"spec": {}})
        if setup is not None:
            setup(self.server)
        if monitored:
            self._monitor()
        self._own_watches = not light if own_watches is None else own_watches
        self._start(light=light)
        has_own = not light and self._own_watches
        self.injector = Injector(self.reactor, self.draws, has_own_connections=has_own)
        self._faults = 0

    def _start(self, *, light: bool) -> None:
        model = self.model
        self.env = Environment(
            model,
            self.draws,
            fidelity=LIGHT if light else KUBELET,
            own_watches=self._own_watches,
            is_ours=self._is_ours,
            registers=self._registers,
            starts_settled=self._settled,
        )
        self.reactor.environments.add(self.env)
        if self._hold is not None:
            self.env.holds[0] = self._hold(self.server)
        label, _, run = RUN.partition("=")
        template = RenderedProfile(
            model,
            extra_labels={label: run},
            impersonate=light,
        )
        if light or not self._own_watches:
            self.reactor.wires.connect(observer=self.observer)
            self.reactor.share_watch(WatchKind.NODE, RUN)
        if not self._own_watches:
            self.reactor.watches.are_shared = True
            for kind in (WatchKind.PODS,) if light else (WatchKind.PODS, *sorted(CATALOG_KINDS)):
                self.reactor.share_watch(kind)
        for index, name in enumerate(self.names):
            kubelet = VirtualKubelet(NodeId(index), name, model.addresses(index), self.env)
            caller = Caller(index, name.encode(), template)
            self.reactor.add(kubelet, caller, 0 if light else index)
        self.world.turn()

    # ---- time ----

    @property
    def now_s(self) -> float:
        return self.clock.now_ns() / NS_PER_S

    def run_for(self, seconds: float) -> Self:
        self.world.run_until(self.clock.now_ns() + int(seconds * NS_PER_S))
        return self

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something at a later instant."""
        self.world.after(seconds, action)

    def inject(self, fault: Fault, seconds: float = 0) -> None:
        """Let something go wrong now, for so long."""
        for wire in (self.transport, self.observer):
            fault.inject(wire)
            self.after(seconds, functools.partial(fault.heal, wire))

    def go_wrong(self, seconds: float = 0, **spec: object) -> list[str]:
        """Inject a fault as users write it, heal it after so long; return whom it hits."""
        self._faults += 1
        number = self._faults
        found = self.injector.inject(FaultSpec.model_validate(spec), number)
        if seconds:
            self.after(seconds, functools.partial(self._heal, number))
        if found.spec.every_ns:
            first_ns = self.injector.first_turn_ns(number) - self.clock.now_ns()
            self.after(first_ns / NS_PER_S, functools.partial(self._come_and_go, number))
        return [self.names[node] for node in found.nodes]

    def _come_and_go(self, number: int) -> None:
        if number in self.injector.active:
            due_ns = self.injector.turn(number)
            wait_s = (due_ns - self.clock.now_ns()) / NS_PER_S
            self.after(wait_s, functools.partial(self._come_and_go, number))

    def _heal(self, number: int) -> None:
        self.injector.heal(number)

    def _monitor(self) -> None:
        """Mark silent nodes as the controller does. Source: node_lifecycle_controller.go."""
        limit = self.clock.true_ns() - GRACE_S * NS_PER_S
        for node in self.server.all("nodes"):
            name = node["metadata"]["name"]
            if self.node_seen_ns(name) < limit and self.condition(name) != "Unknown":
                conditions = [
                    {"type": each["type"], "status": "Unknown", "reason": "NodeStatusUnknown"}
                    for each in node["status"]["conditions"]
                    if each["type"] in OF_KUBELET
                ]
                self.server.update("nodes", name, {"status": {"conditions": conditions}})
        self.after(MONITOR_S, self._monitor)

    def kubelet(self, node: int = 0) -> VirtualKubelet:
        """Return the kubelet of a node, which was not removed."""
        found = self.reactor.entries[node].kubelet
        assert found is not None, node
        return found

    def kubelet_metrics(self, node: int = 0) -> bytes:
        """Return /metrics of a node, as its server would show it."""
        return kubelet_metrics(self.kubelet(node), self.clock.now_ns())

    # ---- the cluster ----

    def node_seen_ns(self, name: str) -> int:
        """Return the wall time of a node's last renewal, status report, or of its making."""
        sent = self.calls(name, "PUT", "/leases/", code=200)
        sent += self.calls(name, "PATCH", "/api/v1/nodes/", code=200)
        sent += self.calls(name, "POST", "/api/v1/nodes", code=201)
        return SimClock.EPOCH_NS + max((each.t_ns for each in sent), default=0)

    def condition(self, node: str, kind: str = "Ready") -> str:
        """Return the status of a Node's condition, as the server has it."""
        found = self.server.find("nodes", node) or {"status": {}}
        conditions = found["status"].get("conditions", ())
        return next((str(each["status"]) for each in conditions if each["type"] == kind), "")

    def ready(self) -> int:
        return sum(self.condition(name) == "True" for name in self.names)

    def create_pod(self, name: str, node: str = "n-0", **spec: object) -> str:
        """Create a pod, bound to a node at once; return its uid."""
        stored = self.server.create(("pods", "default", name), pod_json(name, node, **spec))
        assert stored is not None, name
        return str(stored.obj["metadata"]["uid"])

    def phase(self, pod: str) -> str:
        """Return a pod's phase, "" once it is gone."""
        found = self.server.find("pods", pod, "default")
        return str(found["status"]["phase"]) if found else ""

    def status(self, pod: str) -> Object:
        found: Object = self.server.get("pods", pod, "default")["status"]
        return found

    def events(self, reason: str = "", about: str = "") -> list[Object]:
        """Return the Events of a reason, or about an object, the oldest first."""
        return [
            each
            for each in self.server.all("events")
            if reason in {"", each["reason"]} and about in {"", each["involvedObject"]["name"]}
        ]

    def said(self, reason: str, about: str = "") -> dict[str, int]:
        """Return how often each message was said for a reason."""
        return {
            str(each["message"]): int(each.get("count", 1)) for each in self.events(reason, about)
        }

    # ---- what happened ----

    @property
    def trace(self) -> list[Sent]:
        return self.transport.trace

    def calls(
        self, node: str = "", verb: str = "", path: str = "", code: int = -1, since_s: float = 0
    ) -> list[Sent]:
        """Return the requests that match, in the order in which they were answered."""
        return [
            each
            for each in self.trace
            if (not node or each.node == node)
            and (not verb or each.verb == verb)
            and path in each.path
            and code in {-1, each.code}
            and each.t_ns >= since_s * NS_PER_S
        ]

    def longest_gap_s(
        self, op: Op, since_s: float = 0, nodes: Sequence[str] | None = None
    ) -> float:
        """Return the longest time that a node (one of some) went without a success of a call."""
        row = OPERATIONS[op]
        since_ns, end_ns = int(since_s * NS_PER_S), self.clock.now_ns()
        names = self.names if nodes is None else nodes
        seen: dict[str, list[int]] = {name: [] for name in names}
        for each in self.calls(verb=row.verb, path=f"/{row.resource}", since_s=since_s):
            if 200 <= each.code < 300 and each.node in seen:
                seen[each.node].append(each.t_ns)
        longest = 0
        for times in seen.values():
            edges = [since_ns or (times or [0])[0], *times, end_ns]
            longest = max(longest, *(after - before for before, after in pairwise(edges)))
        return longest / NS_PER_S


def started(seed: int = 1, *, light: bool = False) -> Simulation:
    """Return a node that has settled."""
    return Simulation(seed=seed, light=light).run_for(seconds=60)
