"""What a daemon on a machine says of its Node: conditions that are no kubelet's.

    say -> PATCH nodes/status --2xx--> said; once more each 5 minutes as long as it is not well
                 +--refused, lost--> tried again after 10 s, with what is so by then

Only nodes with such a condition are kept here. An agent of the node that says the same condition by
its profile learns of it, too, so that both say one thing.
Source: node-problem-detector pkg/exporters/k8sexporter/condition/manager.go, syncLoop, needResync,
needHeartbeat.
Differs: it speaks over the connection of its node, as its kubelet's user, and not while the kubelet
is down.
"""

from dataclasses import dataclass, field

from fleet.agents.agent import patch_conditions
from fleet.clock import NS_PER_S
from fleet.faults.fault import ConditionStatus, FaultSpec, FaultType
from fleet.k8s.effects import NodeId, Timer
from fleet.k8s.pods import NodeCondition
from fleet.profile.node_model import NodeModel
from fleet.reactor.calls import Errand
from fleet.reactor.reactor import Reactor
from fleet.wire.http2.messages import Response

HEARTBEAT_NS = 300 * NS_PER_S
RESYNC_NS = 10 * NS_PER_S
NETWORK = "NetworkUnavailable"
_NETWORK_BAD = ("NoRouteCreated", "RouteController failed to create a route")
_NETWORK_FINE = ("RouteCreated", "RouteController created a route")
"""Source: cloud-provider/controllers/route/route_controller.go, updateNetworkingCondition."""


@dataclass(slots=True)
class Saying:
    """What is to be said of one Node."""

    conditions: dict[str, NodeCondition] = field(default_factory=dict)
    well: set[str] = field(default_factory=set)  # of those: said once more, then forgotten
    due_ns: int = 0
    is_new: bool = False  # differs from what was sent last
    is_under_way: bool = False


class ProblemDetector:
    """The daemons of all nodes of a process."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._sayings: dict[NodeId, Saying] = {}
        reactor.on_problem_timer = self.on_timer

    def say(self, node: NodeId, spec: FaultSpec, *, is_on: bool) -> None:
        """Say from now on what a fault turns, or that it is well."""
        env = self._reactor.environments.of(node)
        if env is None:
            return  # it is gone
        saying = self._sayings.setdefault(node, Saying())
        kind = condition_of(spec)
        status, reason, message = _bad(spec) if is_on else _fine(spec, env.model)
        now_ns = self._reactor.clock.now_ns()
        found = NodeCondition(kind, status, 0, env.wall_s(now_ns), reason, message)
        saying.conditions[kind] = found
        saying.well.discard(kind) if is_on else saying.well.add(kind)
        saying.is_new = True
        self._tell_agents(node, saying)
        self._send(node, saying, now_ns)

    def on_timer(self, node: NodeId, now_ns: int) -> None:
        """Say it again: it is due, or was not heard."""
        saying = self._sayings.get(node)
        if saying is not None and now_ns >= saying.due_ns:
            self._send(node, saying, now_ns)

    def on_answer(self, node: NodeId, response: Response, now_ns: int) -> None:
        self._reactor.counts.requests.record(
            ("PATCH", "nodes/status"), response.code, response.took_us
        )
        saying = self._sayings.get(node)
        if saying is None:
            return
        saying.is_under_way = False
        is_gone = response.code == 404 and saying.well == saying.conditions.keys()
        if not is_gone and not 200 <= response.code < 300:
            saying.is_new = True
            self._wake(node, saying, now_ns + RESYNC_NS)
        elif saying.is_new and not is_gone:
            self._send(node, saying, now_ns)
        else:
            for kind in saying.well:
                del saying.conditions[kind]
            saying.well.clear()
            if saying.conditions:
                self._wake(node, saying, now_ns + HEARTBEAT_NS)
            else:
                del self._sayings[node]
            self._tell_agents(node, saying)

    def _tell_agents(self, node: NodeId, saying: Saying) -> None:
        agents = self._reactor.agents
        if agents is not None and saying.conditions:
            agents.problems[node] = dict(saying.conditions)
        elif agents is not None:
            agents.problems.pop(node, None)

    def _send(self, node: NodeId, saying: Saying, now_ns: int) -> None:
        if saying.is_under_way:
            return  # what is new goes when it is answered
        env, entry = self._reactor.environments.of(node), self._reactor.entries[node]
        if env is None:
            del self._sayings[node]
            return
        if entry.kubelet is None:
            self._wake(node, saying, now_ns + RESYNC_NS)
            return
        saying.is_new, saying.is_under_way = False, True
        caller = entry.caller
        conditions = tuple(saying.conditions.values())
        request = patch_conditions(caller.name, conditions, env.wall_ns(now_ns))
        if caller.template.impersonate:
            request = request._replace(user=caller.user)
        self._reactor.wires.nodes.send(entry.pool, request, _Patch(self, node))

    def _wake(self, node: NodeId, saying: Saying, due_ns: int) -> None:
        saying.due_ns = due_ns
        self._reactor.set_timer(node, due_ns, Timer.PROBLEM)


@dataclass(slots=True, eq=False)
class _Patch(Errand):
    """One patch under way."""

    _detector: ProblemDetector
    _node: NodeId

    def on_message(self, message: object, now_ns: int) -> None:
        if isinstance(message, Response):
            self._detector.on_answer(self._node, message, now_ns)


def condition_of(spec: FaultSpec) -> str:
    """Return the type of the condition that a fault turns, "" for none."""
    return NETWORK if spec.type is FaultType.NETWORK_UNAVAILABLE else spec.condition


def _bad(spec: FaultSpec) -> tuple[str, str, str]:
    """Return status, reason and message of a condition that is not well."""
    kind = condition_of(spec)
    reason, message = _NETWORK_BAD if kind == NETWORK else (kind, f"{kind} was found")
    status = spec.status or ConditionStatus.TRUE
    return status.value, spec.reason or reason, spec.message or message


def _fine(spec: FaultSpec, model: NodeModel) -> tuple[str, str, str]:
    """Return the same of one that is well: as an agent of the node says it, if there is one."""
    kind = condition_of(spec)
    for agent in model.agents:
        for each in agent.conditions:
            if each.type == kind:
                return each.status, each.reason, each.message
    if kind == NETWORK:
        return (ConditionStatus.FALSE.value, *_NETWORK_FINE)
    is_bad = spec.status in {None, ConditionStatus.TRUE}
    status = ConditionStatus.FALSE if is_bad else ConditionStatus.TRUE
    return status.value, f"No{kind}" if is_bad else kind, f"{kind} is as it should be"
