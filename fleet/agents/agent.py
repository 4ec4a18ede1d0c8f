"""One agent on one node, as a machine: what it asks, keeps saying of its Node, and when.

    start --delay--> reads, conditions, events, and its watches
    due, reply ----> the next period, or the same again after a failure

A key names what a timer or an answer is about: a letter, a place in the profile's list, and how
often it has failed, so that an agent keeps nothing of it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fleet.agents.node_patches import Condition, create_event, patch_conditions, read
from fleet.agents.reflector import AgentReflector
from fleet.clock import NS_PER_S, Draws
from fleet.profile.agent_behavior import (
    WATCHES_MAX,
    AgentCondition,
    AgentEvent,
    AgentModel,
    AgentProblem,
)
from fleet.wire.http2.messages import Request, Response

START, READ, CONDITIONS, EVENT, TURNED, WATCH = "s", "r", "c", "e", "t", "w"
COMPONENT = "node-problem-detector"
"""Who reports that a condition turned."""
READ_RETRY_FIRST_NS = NS_PER_S
READ_RETRY_DOUBLINGS_MAX = 5
CONDITIONS_RETRY_NS = 10 * NS_PER_S
"""Source: node-problem-detector, pkg/exporters/k8sexporter/condition, resyncPeriod."""
EVENT_RETRY_NS = 10 * NS_PER_S
EVENT_TRIES_MAX = 12
"""Source: client-go/tools/events/event_broadcaster.go, defaultSleepDuration, maxTriesPerEvent."""
NO_PROBLEMS: Mapping[str, Condition] = {}
_DELAY, _EVENT, _PROBLEM, _RETRY, _SHARE = range(WATCHES_MAX, WATCHES_MAX + 5)


class Send(NamedTuple):
    """Send a request; the answer comes back with the key."""

    request: Request
    verb: str
    resource: str
    key: str


class Wake(NamedTuple):
    """Call `on_timer(key)` at an instant."""

    due_ns: int
    key: str


class Open(NamedTuple):
    """Begin to keep a list-watch going."""

    reflector: AgentReflector


AgentEffect = Send | Wake | Open


class Agent:
    """What differs by node. `seed` tells its draws from those of the kubelet and other agents."""

    __slots__ = ("_said_ns", "_started_ns", "model", "name", "node", "reflectors", "seed")

    def __init__(self, node: int, name: str, model: AgentModel, seed: int) -> None:
        self.node = node
        self.name = name  # of the node
        self.model = model
        self.seed = seed
        self.reflectors: tuple[AgentReflector, ...] = ()
        self._said_ns = 0
        self._started_ns = 0

    @staticmethod
    def runs_on(node: int, model: AgentModel, seed: int, draws: Draws) -> bool:
        """Return whether a node is of the share that has the agent."""
        return draws.uniform(node, seed + _SHARE, 0) < model.share

    def start(self, draws: Draws, now_ns: int, out: list[AgentEffect]) -> None:
        """Begin after the delay."""
        delay_ns = self.model.start_delay.sample(draws.uniform(self.node, self.seed + _DELAY, 0))
        out.append(Wake(now_ns + delay_ns, f"{START}0/0"))

    def on_timer(
        self,
        key: str,
        draws: Draws,
        now_ns: int,
        wall_ns: int,
        out: list[AgentEffect],
        problems: Mapping[str, Condition] = NO_PROBLEMS,
    ) -> None:
        """Do what is due. `problems` are conditions that are otherwise than the profile says."""
        what, at, tries = parse(key)
        if what == START:
            self._begin(draws, now_ns, wall_ns, out, problems)
        elif what == READ:
            each = self.model.reads[at]
            request = read(each, self.name.encode())
            out.append(Send(request, each.verb, each.resource, key))
        elif what == CONDITIONS:
            self._say_conditions(tries, draws, now_ns, wall_ns, out, problems)
        elif what == EVENT:
            self._send_event(self.model.events[at], key, wall_ns, out)
        elif what == TURNED:
            condition = self.model.conditions[at]
            said, _, _ = self._state(at, draws, now_ns)
            self._send_event(_turned(condition, said), key, wall_ns, out)
        elif what == WATCH and self.reflectors:
            out.append(Open(self.reflectors[at]))

    def on_reply(
        self, key: str, response: Response, draws: Draws, now_ns: int, out: list[AgentEffect]
    ) -> None:
        """Take an answer: again after a failure, else when the next one is due."""
        what, at, tries = parse(key)
        is_lost = not response.code or response.code == 429 or response.code >= 500
        if what == READ:
            every_ns = self.model.reads[at].every_ns
            if is_lost:
                wait_ns = READ_RETRY_FIRST_NS << min(tries, READ_RETRY_DOUBLINGS_MAX)
                self._again(key, wait_ns, response, draws, now_ns, out)
            elif every_ns:
                out.append(Wake(now_ns + every_ns, f"{READ}{at}/0"))
        elif what == CONDITIONS:
            if not 200 <= response.code < 300:
                self._again(key, CONDITIONS_RETRY_NS, response, draws, now_ns, out)
            else:
                due_ns = self._next_conditions_ns(draws, now_ns)
                out.append(Wake(due_ns, f"{CONDITIONS}0/0"))
        elif is_lost and tries + 1 < EVENT_TRIES_MAX:
            self._again(key, EVENT_RETRY_NS, response, draws, now_ns, out)
        elif what == EVENT and self.model.events[at].every_ns:
            out.append(Wake(now_ns + self.model.events[at].every_ns, f"{EVENT}{at}/0"))

    def on_synced(self, at: int, out: list[AgentEffect]) -> None:
        """Open the watches that waited for this one to sync."""
        if self.model.watches[at].wait_for_sync:
            self._open_from(at + 1, out)

    def _begin(
        self,
        draws: Draws,
        now_ns: int,
        wall_ns: int,
        out: list[AgentEffect],
        problems: Mapping[str, Condition] = NO_PROBLEMS,
    ) -> None:
        self._said_ns = self._started_ns = now_ns
        model = self.model
        self.reflectors = tuple(
            AgentReflector(self.node, self.name, model, at, self.seed)
            for at in range(len(model.watches))
        )
        for at in range(len(model.reads)):
            self.on_timer(f"{READ}{at}/0", draws, now_ns, wall_ns, out)
        self._open_from(0, out)
        if model.conditions:
            self.on_timer(f"{CONDITIONS}0/0", draws, now_ns, wall_ns, out, problems)
        for at, event in enumerate(model.events):
            after_ns = event.after.sample(draws.uniform(self.node, self.seed + _EVENT, at))
            out.append(Wake(now_ns + after_ns, f"{EVENT}{at}/0"))

    def _open_from(self, first: int, out: list[AgentEffect]) -> None:
        for reflector in self.reflectors[first:]:
            if reflector.opens:
                return  # after a relist: the others go on by themselves
            out.append(Open(reflector))
            if reflector.watch.wait_for_sync:
                return

    def _again(
        self,
        key: str,
        wait_ns: int,
        response: Response,
        draws: Draws,
        now_ns: int,
        out: list[AgentEffect],
    ) -> None:
        """Try once more, when the server says so or after a wait with a quarter of jitter."""
        what, at, tries = parse(key)
        count = (ord(what) << 32) + (at << 16) + tries
        jitter = 1 + draws.uniform(self.node, self.seed + _RETRY, count) / 4
        wait_ns = max(int(wait_ns * jitter), response.retry_after_s * NS_PER_S)
        out.append(Wake(now_ns + wait_ns, f"{what}{at}/{tries + 1}"))

    # ---- what it says of its Node ----

    def _say_conditions(
        self,
        tries: int,
        draws: Draws,
        now_ns: int,
        wall_ns: int,
        out: list[AgentEffect],
        problems: Mapping[str, Condition],
    ) -> None:
        """Patch all conditions; one that turned is an event too."""
        offset_ns = wall_ns - now_ns
        conditions = []
        for at, each in enumerate(self.model.conditions):
            if each.type in problems:
                conditions.append(problems[each.type])
                continue
            said, since_ns, _ = self._state(at, draws, now_ns)
            conditions.append(
                Condition(each.type, said.status, said.reason, said.message, since_ns + offset_ns)
            )
            if each.problem is not None and since_ns > self._said_ns:
                self._send_event(_turned(each, said), f"{TURNED}{at}/0", wall_ns, out)
        self._said_ns = now_ns
        request = patch_conditions(self.name.encode(), conditions, wall_ns)
        out.append(Send(request, "PATCH", "nodes/status", f"{CONDITIONS}0/{tries}"))

    def _send_event(
        self, event: AgentEvent, key: str, wall_ns: int, out: list[AgentEffect]
    ) -> None:
        request = create_event(self.name.encode(), event, wall_ns)
        out.append(Send(request, "POST", "events", key))

    def _next_conditions_ns(self, draws: Draws, now_ns: int) -> int:
        """Return when the heartbeat is due, or a condition turns before."""
        turns = (self._state(at, draws, now_ns)[2] or 0 for at in range(len(self.model.conditions)))
        return min((now_ns + self.model.heartbeat_ns, *(each for each in turns if each)))

    def _state(
        self, at: int, draws: Draws, now_ns: int
    ) -> tuple[AgentCondition | AgentProblem, int, int]:
        """Return what a condition says now, since when and until when; 0 for ever."""
        condition = self.model.conditions[at]
        problem = condition.problem
        if problem is None or not self._has_problem(at, problem, draws):
            return condition, self._started_ns, 0
        stream, count = self.seed + _PROBLEM, at << 32
        first_ns = problem.start.sample(draws.uniform(self.node, stream, count))
        past_ns = now_ns - self._started_ns - first_ns
        if past_ns < 0:
            return condition, self._started_ns, self._started_ns + first_ns
        times = past_ns // problem.every_ns if problem.every_ns else 0
        begun_ns = self._started_ns + first_ns + times * problem.every_ns
        lasts_ns = problem.duration.sample(draws.uniform(self.node, stream, count + times + 1))
        if now_ns < begun_ns + lasts_ns:
            return problem, begun_ns, begun_ns + lasts_ns
        again_ns = begun_ns + problem.every_ns if problem.every_ns else 0
        return condition, begun_ns + lasts_ns, again_ns

    def _has_problem(self, at: int, problem: AgentProblem, draws: Draws) -> bool:
        return draws.uniform(self.node, self.seed + _SHARE, at + 1) < problem.share


def parse(key: str) -> tuple[str, int, int]:
    """Return what a key is about: its letter, a place, and how often it has failed."""
    at, _, tries = key[1:].partition("/")
    return key[0], int(at), int(tries)


def _turned(condition: AgentCondition, said: AgentCondition | AgentProblem) -> AgentEvent:
    """Return the event of a condition that turned.

    Source: node-problem-detector, pkg/util/helpers.go, GenerateConditionChangeEvent.
    """
    message = f"Node condition {condition.type} is now: {said.status}, reason: {said.reason}"
    return AgentEvent(reason=said.reason, message=message, component=COMPONENT, api_version="v1")
