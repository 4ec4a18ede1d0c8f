"""The agents of all nodes of a process: their streams, calls and timers, over wires of their own.

An agent starts once its Node is registered, and ends with its kubelet's machine. Each kind of agent
has a wire (its user agent and encoding are one for all nodes), each agent a pool on it.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol

from fleet.agents.agent import NO_PROBLEMS, WATCH, Agent, AgentReflector, Open, Send, Turn, Wake
from fleet.clock import Clock, Draws, TimerWheel
from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import Timer
from fleet.k8s.pods import EventType, NodeCondition
from fleet.metrics import Requests
from fleet.profile.agent_behavior import NODE, AgentEncoding, AgentModel
from fleet.wire.api import watch
from fleet.wire.api.codec import JSON, Codec, protobuf
from fleet.wire.api.framing import Partial
from fleet.wire.http2.messages import Failure, Response, StreamOpened

SEED_SHIFT = 16
NAMES_BITS = 0xFFFF_FFFF


class AgentWire(watch.Wire, Protocol):
    """A wire whose pools come and go with the agents."""

    def open_pool(self, pool: int, user: bytes = b"") -> None:
        """Add the connection of a node's agent; it dials at the first request."""
        ...

    def close_pool(self, pool: int) -> None:
        """Close it; what it still waits for is answered."""
        ...


@dataclass(slots=True, eq=False)
class AgentCounts:
    """What the agents of one kind did; bytes are counted by their wire."""

    agents: int = 0  # that run now
    requests: Requests = field(default_factory=Requests)
    watches_open: int = 0
    watch_restarts: int = 0
    watch_events: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


class AgentKind(NamedTuple):
    """What the agents of one name share in a process."""

    model: AgentModel
    seed: int
    wire: AgentWire
    codec: Codec
    counts: AgentCounts
    impersonates: bool


class AgentCall(NamedTuple):
    """The token of a request that is no list-watch."""

    agent: Agent
    verb: str
    resource: str
    key: str


@dataclass(eq=False)
class Agents:
    """Owns the agents of one process; the reactor hands it what is theirs."""

    _clock: Clock
    _draws: Draws
    _wheel: TimerWheel
    _new_wire: Callable[[AgentModel], AgentWire]
    _: KW_ONLY
    impersonates: bool
    kinds: dict[str, AgentKind] = field(default_factory=dict)
    problems: dict[int, Mapping[str, NodeCondition]] = field(default_factory=dict)
    """By node: what faults turned."""
    _on_nodes: dict[int, tuple[Agent, ...]] = field(default_factory=dict)

    def add_kind(self, model: AgentModel) -> None:
        """Make what the agents of one name share; before the first of them starts."""
        if model.name not in self.kinds:
            seed = (zlib.crc32(model.name.encode()) & NAMES_BITS) << SEED_SHIFT
            wire, counts = self._new_wire(model), AgentCounts()
            codec = protobuf() if model.encoding is AgentEncoding.PROTOBUF else JSON
            kind = AgentKind(model, seed, wire, codec, counts, self.impersonates)
            self.kinds[model.name] = kind

    def start(self, node: int, name: str, models: tuple[AgentModel, ...]) -> None:
        """Start the agents of a node, unless they run already."""
        if node in self._on_nodes:
            return
        agents = []
        for model in models:
            kind = self.kinds[model.name]
            if not Agent.runs_on(node, model, kind.seed, self._draws):
                continue
            agent = Agent(node, name, model, kind.seed)
            user = model.user.replace(NODE.decode(), name) if kind.impersonates else ""
            kind.wire.open_pool(node, user.encode())
            kind.counts.agents += 1
            agents.append(agent)
        self._on_nodes[node] = tuple(agents)
        for agent in agents:
            turn = self._turn(node)
            agent.start(turn)
            self._execute(agent, turn)

    def stop(self, node: int) -> None:
        """End the agents of a node: nothing more is sent for them, nothing taken."""
        for agent in self._on_nodes.pop(node, ()):
            kind = self.kinds[agent.model.name]
            for reflector in agent.reflectors:
                watch.end(reflector, kind.counts)
            agent.reflectors = ()
            kind.counts.agents -= 1
            kind.wire.close_pool(node)

    def on_timer(self, node: int, key: str) -> None:
        """Do what an agent is due to do; its place on the node leads the key."""
        place, _, own = key.partition(":")
        agents = self._on_nodes.get(node)
        if agents is None:
            return
        agent = agents[int(place)]
        turn = self._turn(node)
        agent.on_timer(own, turn)
        self._execute(agent, turn)

    def on_reply(self, call: AgentCall, response: Response) -> None:
        """Count an answer and hand it to its agent."""
        agent = call.agent
        took_us = response.took_us
        counts = self.kinds[agent.model.name].counts
        if response.failure is not Failure.OWN_LIMIT:  # the transport has counted it
            counts.requests.record((call.verb, call.resource), response.code, took_us)
        if agent in self._on_nodes.get(agent.node, ()):
            turn = self._turn(agent.node)
            agent.on_reply(call.key, response, turn)
            self._execute(agent, turn)

    def on_stream(self, reflector: AgentReflector, message: object) -> None:
        """Take what came for the newest request of a list-watch."""
        lane, now_ns = self._lane(reflector), self._clock.now_ns()
        try:
            if type(message) is bytes:
                self._on_chunk(reflector, lane, message, now_ns)
                return
            assert isinstance(message, (StreamOpened, Response)), message
            step = watch.on_message(reflector, lane, message, now_ns)
            if step.page is not None:
                decode = self._codec_of(reflector, step.page).decode_list
                if reflector.on_page(step.page, decode):
                    self._synced(reflector)
        except RemoteProtocolError as error:
            step = watch.on_unreadable(reflector, lane, error, now_ns)
        self._go_on(reflector, step, now_ns)

    def _turn(self, node: int) -> Turn:
        problems = self.problems.get(node, NO_PROBLEMS)
        return Turn(self._draws, self._clock.now_ns(), self._clock.wall_ns(), [], problems)

    def _execute(self, agent: Agent, turn: Turn) -> None:
        place = self._on_nodes[agent.node].index(agent)
        for effect in turn.out:
            match effect:
                case Send(request, verb, resource, key):
                    wire = self.kinds[agent.model.name].wire
                    wire.send(agent.node, request, AgentCall(agent, verb, resource, key))
                case Wake(due_ns, key):
                    self._wheel.set(due_ns, agent.node, Timer.AGENT, f"{place}:{key}")
                case Open(reflector):
                    watch.open_watch(reflector, self._lane(reflector), self._clock.now_ns())

    # ---- list-watches ----

    def _lane(self, reflector: AgentReflector) -> watch.Lane:
        kind = self.kinds[reflector.model.name]
        return watch.Lane(kind.wire, reflector.node, kind.counts, self._draws)

    def _codec_of(self, reflector: AgentReflector, body: Partial) -> Codec:
        """Return how to read what came: custom resources are JSON, whatever was asked for."""
        return JSON if body[:1] == b"{" else self.kinds[reflector.model.name].codec

    def _on_chunk(
        self, reflector: AgentReflector, lane: watch.Lane, data: bytes, now_ns: int
    ) -> None:
        codec = self._codec_of(reflector, reflector.begun(data))
        found = reflector.on_chunk(data, codec.decode_watch_event, codec.split)
        lane.counts.watch_events += len(found)
        for event, code in found:
            if event is EventType.SYNCED:
                self._synced(reflector)
            elif event is EventType.ERROR:
                assert isinstance(code, int), code
                step = watch.on_error_event(reflector, lane, code, now_ns)
                self._go_on(reflector, step, now_ns)

    def _go_on(self, reflector: AgentReflector, step: watch.Step, now_ns: int) -> None:
        """Ask again, now or when the agent is woken for it."""
        if step.wait_ns > 0:
            turn = self._turn(reflector.node)
            turn.out.append(Wake(now_ns + step.wait_ns, f"{WATCH}{reflector.at}/0"))
            self._execute(self._agent_of(reflector), turn)
        elif step.wait_ns == 0:
            watch.open_watch(reflector, self._lane(reflector), now_ns)

    def _synced(self, reflector: AgentReflector) -> None:
        agent, turn = self._agent_of(reflector), self._turn(reflector.node)
        agent.on_synced(reflector.at, turn)
        self._execute(agent, turn)

    def _agent_of(self, reflector: AgentReflector) -> Agent:
        agents = self._on_nodes[reflector.node]
        return next(each for each in agents if each.model is reflector.model)
