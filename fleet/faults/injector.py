"""The faults of one process: which are on, whom they hit, and what each does to its nodes.

    inject -> choose the nodes -> change their inputs --heal--> the inputs as they were

State is kept by fault: a node that none hits has none. Faults overlap; what is left of an input
once one is healed follows from those that are still on.
"""

from collections.abc import Iterable
from typing import NamedTuple

from fleet.clock import Draws
from fleet.errors import UsageError
from fleet.faults.fault import (
    FAULTS,
    Candidate,
    FaultSpec,
    FaultType,
    Heartbeat,
    PartitionMode,
    choose,
)
from fleet.faults.machine_inputs import OF_MACHINE, OUTAGES, check, faulty
from fleet.kubelet.environment import Environment
from fleet.kubelet.node.node_status import RegistrationPhase
from fleet.objects.effects import NodeId, Op
from fleet.reactor.calls import Hindrance
from fleet.reactor.reactor import Reactor
from fleet.runtime.containers import NEVER
from fleet.wire.http2.messages import Cut

REMEMBERED_NS = 600 * 10**9
"""An outage that is over is known for so long: a relist counts as late 3 or 10 minutes."""
HEARTBEAT_OPS = {
    Heartbeat.LEASE: frozenset((Op.GET_LEASE, Op.CREATE_LEASE, Op.RENEW_LEASE, Op.GET_NODE_LEASE)),
    Heartbeat.STATUS: frozenset((Op.GET_NODE_HEARTBEAT, Op.PATCH_NODE_STATUS_HEARTBEAT)),
}
_HINDERED = frozenset((FaultType.HEARTBEAT_LOSS, FaultType.LATE_HEARTBEATS))


class Injection(NamedTuple):
    """One fault that is on, or was."""

    number: int
    spec: FaultSpec
    nodes: dict[NodeId, None]  # whom it hits, in order; looked up once a node that changes
    since_ns: int
    until_ns: int = NEVER


class Injector:
    """Injects and heals. `has_own_connections`: each node of the reactor has its own."""

    def __init__(self, reactor: Reactor, draws: Draws, *, has_own_connections: bool) -> None:
        self.active: dict[int, Injection] = {}
        self._reactor = reactor
        self._draws = draws
        self._has_own_connections = has_own_connections
        self._over: list[Injection] = []  # outages that runtimes still remember
        self._environments: dict[tuple[object, ...], Environment] = {}

    def candidates(self) -> Iterable[Candidate]:
        """Yield the nodes that a fault may hit: those that are registered."""
        for entry, kubelet in self._reactor.roster.living():
            if kubelet.status.phase is RegistrationPhase.REGISTERED:
                labels = kubelet.facts.labels
                yield Candidate(kubelet.node, entry.caller.index, kubelet.name, labels)

    def inject(self, spec: FaultSpec, number: int) -> Injection:
        """Let something go wrong now; `number` names the fault and is drawn with.

        Raises UsageError if no node of this process can have it.
        """
        assert number not in self.active, number
        if spec.type is FaultType.PARTITION and not self._has_own_connections:
            raise UsageError(
                "Partition: the nodes of this run share connections; it needs --fidelity kubelet "
                "and --watches per-node"
            )
        chosen = choose(spec, self.candidates(), self._draws, number)
        nodes = dict.fromkeys(each.node for each in chosen)
        for origin in dict.fromkeys(map(self._origin, nodes)):
            check(spec, origin.model)
        injection = Injection(number, spec, nodes, self._reactor.clock.now_ns())
        if not FAULTS[spec.type].is_instant:
            self.active[number] = injection
        if spec.type is FaultType.KUBELET_RESTART:
            self._reactor.restart(nodes)
        else:
            self._apply(injection)
        return injection

    def heal(self, number: int) -> Injection:
        """Let a fault end now."""
        injection = self.active.pop(number)
        injection = injection._replace(until_ns=self._reactor.clock.now_ns())
        if injection.spec.type in OUTAGES:
            self._over.append(injection)
        self._apply(injection)
        return injection

    def _of(self, node: NodeId, types: Iterable[FaultType]) -> list[Injection]:
        """Return the faults of some types that a node has."""
        wanted = frozenset(types)
        return [
            each for each in self.active.values() if each.spec.type in wanted and node in each.nodes
        ]

    def _apply(self, injection: Injection) -> None:
        """Change the inputs that a fault is about to what they are with those that are on."""
        kind, nodes, reactor = injection.spec.type, injection.nodes, self._reactor
        is_on = injection.number in self.active
        if kind in _HINDERED:
            self._hinder(nodes)
        elif kind is FaultType.PARTITION:
            for node in nodes:
                self._cut(node)
        elif kind is FaultType.KUBELET_DOWN and is_on:
            reactor.restart(nodes, is_held=True)
        elif kind is FaultType.KUBELET_DOWN:
            reactor.release(node for node in nodes if not self._of(node, (kind,)))
        else:
            assert kind in OF_MACHINE, kind
            self._change_machines(nodes)

    def _hinder(self, nodes: Iterable[NodeId]) -> None:
        hindrances = self._reactor.calls.hindrances
        for node in nodes:
            found = tuple(_hindrance(each.spec) for each in self._of(node, _HINDERED))
            hindrances.pop(node, None)
            if found:
                hindrances[node] = found

    def _cut(self, node: NodeId) -> None:
        """Separate a node, its agents too; a black hole swallows resets."""
        found = {_cut_of(each.spec) for each in self._of(node, (FaultType.PARTITION,))}
        cut = max(found) if found else None
        reactor = self._reactor
        reactor.wires.nodes.cut(reactor.entries[node].pool, cut)
        for kind in reactor.agents.kinds.values() if reactor.agents is not None else ():
            kind.wire.cut(node, cut)

    def _origin(self, node: NodeId) -> Environment:
        env = self._reactor.environment_of(node)
        assert env is not None, node
        return env.origin

    def _change_machines(self, nodes: Iterable[NodeId]) -> None:
        now_ns = self._reactor.clock.now_ns()
        self._over = [each for each in self._over if each.until_ns > now_ns - REMEMBERED_NS]
        for node in nodes:
            env = self._reactor.environment_of(node)
            if env is not None:  # else it is gone
                over = [each for each in self._over if node in each.nodes]
                found = [*over, *self._of(node, OF_MACHINE)]
                self._reactor.change_machine(node, self._environment(env.origin, found))
        self._forget_environments()

    def _environment(self, origin: Environment, found: list[Injection]) -> Environment:
        """Return the environment that nodes with the same faults share."""
        if not found:
            return origin
        key = (id(origin), *((each.number, each.until_ns) for each in found))
        if key not in self._environments:
            given = [(each.spec, each.since_ns, each.until_ns) for each in found]
            self._environments[key] = faulty(origin, given)
        return self._environments[key]

    def _forget_environments(self) -> None:
        """Drop those that no node has any more."""
        used = {id(env) for env in self._reactor.environments_used()}
        for key, env in list(self._environments.items()):
            if id(env) not in used:
                del self._environments[key]
                self._reactor.forget_environment(env)


def _cut_of(spec: FaultSpec) -> Cut:
    return Cut.RESET if spec.mode is PartitionMode.RESET else Cut.BLACK_HOLE


def _hindrance(spec: FaultSpec) -> Hindrance:
    kinds = spec.heartbeats or tuple(Heartbeat)
    ops = frozenset(op for kind in kinds for op in HEARTBEAT_OPS[kind])
    return Hindrance(ops, spec.by_ns or 0)
