"""The faults of one process: which are on, whom they hit, and what each does to its nodes.

    inject -> choose the nodes -> change their inputs --heal--> the inputs as they were

State is kept by fault: a node that none hits has none. Faults overlap; what is left of an input
once one is healed follows from those that are still on.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field
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
from fleet.faults.problem_detector import ProblemDetector, condition_of
from fleet.k8s.effects import NodeId, Op
from fleet.kubelet.environment import Environment
from fleet.kubelet.node.node_status import RegistrationPhase
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
_ALL_OPS = frozenset(Op)
_HINDERED = frozenset((FaultType.HEARTBEAT_LOSS, FaultType.LATE_HEARTBEATS, FaultType.SLOW_LINK))
_DOWN = (FaultType.KUBELET_DOWN, FaultType.NODE_DOWN)
_OF_CONNECTION = (FaultType.PARTITION, FaultType.TOKEN_EXPIRED)
_SAID = (FaultType.NODE_CONDITION, FaultType.NETWORK_UNAVAILABLE)
_CUTS = {
    PartitionMode.RESET: Cut.RESET,
    PartitionMode.BLACK_HOLE: Cut.BLACK_HOLE,
    PartitionMode.INBOUND: Cut.INBOUND,
    PartitionMode.OUTBOUND: Cut.OUTBOUND,
}


class Injection(NamedTuple):
    """One fault that is on, or was."""

    number: int
    spec: FaultSpec
    nodes: dict[NodeId, None]  # whom it hits, in order; looked up once a node that changes
    since_ns: int
    until_ns: int = NEVER
    is_on: bool = True  # one that comes and goes is off in between


@dataclass(eq=False)
class Injector:
    """Injects and heals. `has_own_connections`: each node of the reactor has its own.

    `expire` ends the life of a node's client certificate, None where nodes have none.
    """

    _reactor: Reactor
    _draws: Draws
    _: KW_ONLY
    has_own_connections: bool
    expire: Callable[[NodeId], None] | None = None
    active: dict[int, Injection] = field(default_factory=dict)
    _over: list[Injection] = field(default_factory=list)  # outages that runtimes still remember
    _environments: dict[tuple[object, ...], Environment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._detector = ProblemDetector(self._reactor)

    def candidates(self) -> Iterable[Candidate]:
        """Yield the nodes that a fault may hit: those that are registered.

        A node without a kubelet, because of another fault, can be hit by its name.
        """
        for number, entry in enumerate(self._reactor.entries):
            node, kubelet = NodeId(number), entry.kubelet
            if kubelet is None:
                if self._reactor.environments.of(node) is not None:
                    yield Candidate(node, entry.caller.index, entry.caller.name.decode(), {})
            elif kubelet.status.phase is RegistrationPhase.REGISTERED:
                yield Candidate(node, entry.caller.index, kubelet.name, kubelet.facts.labels)

    def inject(self, spec: FaultSpec, number: int, on_for_ns: int = 0) -> Injection:
        """Let something go wrong now; `number` names the fault and is drawn with.

        One that comes and goes, and has done so for `on_for_ns` elsewhere, goes on in step with
        that. Raises UsageError if no node of this process can have it.
        """
        assert number not in self.active, number
        assert not FAULTS[spec.type].of_control_plane, spec
        if spec.type in _OF_CONNECTION and not self.has_own_connections:
            raise UsageError(
                f"{spec.type.value}: the nodes of this run share connections; it needs --fidelity "
                "kubelet and --watches per-node"
            )
        if spec.type is FaultType.TOKEN_EXPIRED and not self._reactor.wires.nodes.has_token:
            raise UsageError(
                "TokenExpired: the nodes of this run speak with certificates; it needs a "
                "kubeconfig with a token, and not --identity csr"
            )
        if spec.type is FaultType.CERTIFICATE_EXPIRED and self.expire is None:
            raise UsageError(
                "CertificateExpired: the nodes of this run have no certificates of their own; "
                "it needs --identity csr"
            )
        chosen = choose(spec, self.candidates(), self._draws, number)
        nodes = dict.fromkeys(each.node for each in chosen)
        for origin in dict.fromkeys(map(self._origin, nodes)):
            check(spec, origin.model)
        turns, turned_ns = divmod(on_for_ns, _turn_ns(spec)) if spec.every_ns else (0, 0)
        since_ns = self._reactor.clock.now_ns() - turned_ns
        is_over_at_once = FAULTS[spec.type].is_instant
        is_on = is_over_at_once or turns % 2 == 0
        injection = Injection(number, spec, nodes, since_ns, is_on=is_on)
        if not spec.is_instant:
            self.active[number] = injection
        if is_on and not (is_over_at_once and on_for_ns):
            self._begin(injection)
        return injection

    def turn(self, number: int) -> int:
        """Let a fault that comes and goes do so; return when it is due again.

        What is over at once happens again each time; all else is on for one half and off for the
        other.
        """
        now_ns, before = self._reactor.clock.now_ns(), self.active[number]
        assert before.spec.every_ns, before
        due_ns = now_ns + _turn_ns(before.spec)
        if FAULTS[before.spec.type].is_instant:
            self._begin(before)
            return due_ns
        if before.is_on:
            self._end(before._replace(until_ns=now_ns, is_on=False))
        else:
            self.active[number] = before._replace(since_ns=now_ns, until_ns=NEVER, is_on=True)
            self._begin(self.active[number])
        return due_ns

    def first_turn_ns(self, number: int) -> int:
        """Return when a fault comes or goes next after its beginning, NEVER if it stays."""
        injection = self.active.get(number)
        if injection is None or not injection.spec.every_ns:
            return NEVER
        return injection.since_ns + _turn_ns(injection.spec)

    def heal(self, number: int) -> Injection:
        """Let a fault end now."""
        injection = self.active.pop(number)
        if injection.is_on:
            injection = injection._replace(until_ns=self._reactor.clock.now_ns(), is_on=False)
            self._end(injection)
        return injection

    def _begin(self, injection: Injection) -> None:
        kind, nodes, reactor = injection.spec.type, injection.nodes, self._reactor
        if kind is FaultType.KUBELET_RESTART:
            reactor.restart(nodes)
        elif kind is FaultType.CERTIFICATE_EXPIRED:
            assert self.expire is not None, injection
            for node in nodes:
                self.expire(node)
        elif kind in {FaultType.SANDBOX_DEATH, FaultType.CONTAINER_CRASH}:
            for node in nodes:
                self._kill(node, kind)
        else:
            self._apply(injection)

    def _end(self, injection: Injection) -> None:
        """Take back what a fault does; it is not among those that are on any more."""
        if injection.number in self.active:
            self.active[injection.number] = injection
        if FAULTS[injection.spec.type].is_instant:
            return
        if injection.spec.type in OUTAGES:
            self._over.append(injection)
        self._apply(injection)

    def _of(self, node: NodeId, types: Iterable[FaultType]) -> list[Injection]:
        wanted = frozenset(types)
        return [
            each
            for each in self.active.values()
            if each.is_on and each.spec.type in wanted and node in each.nodes
        ]

    def _apply(self, injection: Injection) -> None:
        """Change the inputs that a fault is about to what they are with those that are on."""
        kind, nodes, reactor = injection.spec.type, injection.nodes, self._reactor
        is_on = injection.is_on
        if kind in _HINDERED:
            self._hinder(nodes)
        elif kind is FaultType.PARTITION:
            for node in nodes:
                self._cut(node)
        elif kind is FaultType.TOKEN_EXPIRED:
            for node in nodes:
                is_over = bool(self._of(node, (kind,)))  # the node's; its agents have others
                reactor.wires.nodes.expire_token(reactor.entries[node].pool, is_over=is_over)
        elif kind in _SAID:
            for node in nodes:
                self._say(node, injection.spec)
        elif kind is FaultType.KUBELET_DOWN and is_on:
            reactor.restart(nodes, is_held=True)
        elif kind is FaultType.KUBELET_DOWN:
            self._release(nodes)
        elif kind is FaultType.NODE_DOWN:
            self._switch(injection)
        else:
            assert kind in OF_MACHINE, kind
            self._change_machines(nodes)

    def _say(self, node: NodeId, spec: FaultSpec) -> None:
        """Have a daemon say of a Node what the last fault that is on makes of a condition."""
        kind = condition_of(spec)
        found = [each.spec for each in self._of(node, _SAID) if condition_of(each.spec) == kind]
        self._detector.say(node, found[-1] if found else spec, is_on=bool(found))

    def _release(self, nodes: Iterable[NodeId]) -> None:
        self._reactor.release(node for node in nodes if not self._of(node, _DOWN))

    def _switch(self, injection: Injection) -> None:
        """Take the power of machines away, or boot those that have it again."""
        reactor = self._reactor
        if injection.is_on:
            reactor.restart(injection.nodes, is_held=True)
        for node in injection.nodes:
            self._cut(node)
            env = reactor.environments.of(node)  # None: it is gone
            if env and not injection.is_on and not self._of(node, (FaultType.NODE_DOWN,)):
                env.boot(node, injection.since_ns, reactor.clock.now_ns())
        if not injection.is_on:
            self._release(injection.nodes)

    def _kill(self, node: NodeId, kind: FaultType) -> None:
        """Kill the processes of all sandboxes or all containers of a node that runs."""
        kubelet = self._reactor.entries[node].kubelet
        if kubelet is None or kubelet.pods is None:
            return
        runtime = kubelet.pods.runtime
        if kind is FaultType.CONTAINER_CRASH:
            runtime.kill_all(self._reactor.clock.now_ns())
        else:
            for uid, _ in runtime:
                runtime.stop_sandbox(uid)
        self._reactor.change_machine(node, kubelet.env)

    def _hinder(self, nodes: Iterable[NodeId]) -> None:
        hindrances = self._reactor.calls.hindrances
        for node in nodes:
            found = tuple(_hindrance(each.spec) for each in self._of(node, _HINDERED))
            hindrances.pop(node, None)
            if found:
                hindrances[node] = found

    def _cut(self, node: NodeId) -> None:
        """Separate a node, its agents too; a black hole swallows resets."""
        partitions = self._of(node, (FaultType.PARTITION,))
        found = {_CUTS[each.spec.mode or PartitionMode.BLACK_HOLE] for each in partitions}
        reactor = self._reactor
        if self.has_own_connections:
            reactor.wires.nodes.cut(reactor.entries[node].pool, _joined(found))
        if self._of(node, (FaultType.NODE_DOWN,)):  # their kubelets have hung up already
            found.add(Cut.RESET)
        cut = _joined(found)
        for kind in reactor.agents.kinds.values() if reactor.agents is not None else ():
            kind.wire.cut(node, cut)

    def _origin(self, node: NodeId) -> Environment:
        env = self._reactor.environments.of(node)
        assert env is not None, node
        return env.origin

    def _change_machines(self, nodes: Iterable[NodeId]) -> None:
        now_ns = self._reactor.clock.now_ns()
        self._over = [each for each in self._over if each.until_ns > now_ns - REMEMBERED_NS]
        for node in nodes:
            env = self._reactor.environments.of(node)
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
        used = {id(env) for env in self._reactor.environments.in_use()}
        for key, env in list(self._environments.items()):
            if id(env) not in used:
                del self._environments[key]
                self._reactor.environments.forget(env)


def attach_problem(reactor: Reactor, name: str) -> str:
    """Return why no volume can be attached to the node of a name just now, "" if it can."""
    wanted = name.encode()
    for node, entry in enumerate(reactor.entries):
        env = reactor.environments.of(NodeId(node))
        if entry.caller.name == wanted and env is not None:
            return env.model.broken.attachments
    return ""


def _turn_ns(spec: FaultSpec) -> int:
    """Return the time between two turns of a fault that comes and goes."""
    return spec.every_ns if FAULTS[spec.type].is_instant else spec.every_ns // 2


def _joined(cuts: AbstractSet[Cut]) -> Cut | None:
    """Return what several partitions do together."""
    if {Cut.INBOUND, Cut.OUTBOUND} <= cuts:
        return Cut.BLACK_HOLE
    return max(cuts, default=None)


def _hindrance(spec: FaultSpec) -> Hindrance:
    if spec.type is FaultType.SLOW_LINK:
        return Hindrance(_ALL_OPS, spec.by_ns or 0)
    kinds = spec.heartbeats or tuple(Heartbeat)
    ops = frozenset(op for kind in kinds for op in HEARTBEAT_OPS[kind])
    return Hindrance(ops, spec.by_ns or 0)
