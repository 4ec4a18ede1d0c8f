"""One agent on one node, as a machine: what it asks, keeps saying of its Node, and when.

    start --delay--> reads, conditions, events, and its watches
    due, reply ----> the next period, or the same again after a failure

A key names what a timer or an answer is about: a letter, a place in the profile's list, and how
often it has failed, so that an agent keeps nothing of it. What a list-watch brings is counted and
dropped. Byte templates make path and body of what agents write, in JSON throughout.

Source: client-go/tools/cache/reflector.go, tools/events/event_recorder.go, tools/record/event.go,
makeEvent; kubernetes/node-problem-detector pkg/exporters/k8sexporter/problemclient, SetConditions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.events import ObjectRef, Report, event_json
from fleet.k8s.pods import NodeCondition
from fleet.k8s.schema import shown
from fleet.k8s.times import rfc3339, rfc3339_micro
from fleet.profile.agent_behavior import (
    NODE,
    WATCHES_MAX,
    AgentCondition,
    AgentEvent,
    AgentModel,
    AgentProblem,
    AgentWatch,
    Method,
)
from fleet.wire.api.framing import Partial
from fleet.wire.api.requests import CALL_TIMEOUT_NS
from fleet.wire.api.watch import ListWatch
from fleet.wire.http2.messages import ContentType, Request, Response

START, READ, CONDITIONS, EVENT, TURNED, WATCH = "s", "r", "c", "e", "t", "w"
COMPONENT = "node-problem-detector"  # who reports that a condition turned
READ_RETRY_FIRST_NS = NS_PER_S
READ_RETRY_DOUBLINGS_MAX = 5
CONDITIONS_RETRY_NS = 10 * NS_PER_S
"""Source: node-problem-detector, pkg/exporters/k8sexporter/condition, resyncPeriod."""
EVENT_RETRY_NS = 10 * NS_PER_S
EVENT_TRIES_MAX = 12
"""Source: client-go/tools/events/event_broadcaster.go, defaultSleepDuration, maxTriesPerEvent."""
NEW_EVENT = (
    b'{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"%b",'
    b'"namespace":"default"},"eventTime":"%b","reportingController":"%b",'
    b'"reportingInstance":"%b-%b","action":"%b","reason":"%b",'
    b'"regarding":{"kind":"Node","name":"%b","apiVersion":"v1"},%b"type":"%b"}'
)
_DELAY, _EVENT, _PROBLEM, _RETRY, _SHARE = range(WATCHES_MAX, WATCHES_MAX + 5)


class AgentReflector(ListWatch):
    """One list-watch of one agent. `at` is its place among the agent's watches."""

    __slots__ = ("at", "model", "name")

    def __init__(self, node: int, name: str, model: AgentModel, at: int, seed: int) -> None:
        super().__init__(node, seed + at)
        self.name = name  # of the node
        self.model = model
        self.at = at
        self.lists_first = self.watch.method is Method.LIST_WATCH

    @property
    def watch(self) -> AgentWatch:
        return self.model.watches[self.at]

    @property
    def resource(self) -> str:
        """What it is about, as the API server's metrics name it."""
        return self.watch.resource

    @property
    def is_generic(self) -> bool:
        """Whether the client asks by a generic list-watch, not by that of its type."""
        return not self.watch.typed_client

    def target(self) -> tuple[bytes, bytes]:
        """Return path and encoded selector, b"" for none."""
        watch = self.watch
        return watch.path, watch.selector.replace(NODE, self.name.encode())

    def timeouts_s(self) -> tuple[int, int]:
        """Return between which ages the server is to end a watch."""
        return self.watch.timeouts_s

    def backoff_ns(self) -> tuple[int, int]:
        """Return the first and the longest back-off."""
        return self.model.backoff_ns

    def begun(self, data: bytes) -> Partial:
        """Return the event that these bytes of the stream go on with, or begin."""
        return self._partial or data


NO_PROBLEMS: Mapping[str, NodeCondition] = {}


class Turn(NamedTuple):
    """What an agent works with: seeded draws, the time, and where its effects go."""

    draws: Draws
    now_ns: int
    wall_ns: int
    out: "list[AgentEffect]"
    problems: Mapping[str, NodeCondition] = NO_PROBLEMS
    """Conditions that are otherwise than the profile says, by type."""


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


@dataclass(slots=True, eq=False)
class Agent:
    """What differs by node. `seed` keeps its draws apart from other agents' and the kubelet's."""

    node: int
    name: str  # of the node
    model: AgentModel
    seed: int
    reflectors: tuple[AgentReflector, ...] = ()
    _said_ns: int = 0
    _started_ns: int = 0
    _is_watching: bool = False  # all watches were opened once

    @staticmethod
    def runs_on(node: int, model: AgentModel, seed: int, draws: Draws) -> bool:
        """Return whether a node is of the share that has the agent."""
        return draws.uniform(node, seed + _SHARE, 0) < model.share

    def start(self, turn: Turn) -> None:
        """Begin after the delay."""
        share = turn.draws.uniform(self.node, self.seed + _DELAY, 0)
        turn.out.append(Wake(turn.now_ns + self.model.start_delay.sample(share), f"{START}0/0"))

    def on_timer(self, key: str, turn: Turn) -> None:
        what, at, tries = parse(key)
        if what == START:
            self._begin(turn)
        elif what == READ:
            each = self.model.reads[at]
            path = each.full_path.replace(NODE, self.name.encode())
            request = Request(b"GET", path, timeout_ns=CALL_TIMEOUT_NS)
            turn.out.append(Send(request, each.verb, each.resource, key))
        elif what == CONDITIONS:
            self._say_conditions(tries, turn)
        elif what == EVENT:
            self._send_event(self.model.events[at], key, turn)
        elif what == TURNED:
            said, _, _ = self._state(at, turn)
            self._send_event(_turned(self.model.conditions[at], said), key, turn)
        elif what == WATCH and self.reflectors:
            turn.out.append(Open(self.reflectors[at]))

    def on_reply(self, key: str, response: Response, turn: Turn) -> None:
        """Take an answer: again after a failure, else when the next one is due."""
        what, at, tries = parse(key)
        is_lost = not response.code or response.code == 429 or response.code >= 500
        is_final = bool(response.code) and response.retry_after_s < 0  # for events
        if what == READ:
            every_ns = self.model.reads[at].every_ns
            if is_lost:
                wait_ns = READ_RETRY_FIRST_NS << min(tries, READ_RETRY_DOUBLINGS_MAX)
                self._again(key, wait_ns, response, turn)
            elif every_ns:
                turn.out.append(Wake(turn.now_ns + every_ns, f"{READ}{at}/0"))
        elif what == CONDITIONS:
            if not 200 <= response.code < 300:
                self._again(key, CONDITIONS_RETRY_NS, response, turn)
            else:
                # The heartbeat is due, or a condition turns before.
                turns = (self._state(at, turn)[2] for at in range(len(self.model.conditions)))
                due_ns = min((turn.now_ns + self.model.condition_period, *filter(None, turns)))
                turn.out.append(Wake(due_ns, f"{CONDITIONS}0/0"))
        elif is_lost and not is_final and tries + 1 < EVENT_TRIES_MAX:
            # An event that was refused is repeated by the REST client, if the server says when.
            # Source: recordEvent, IsNextRetry. Differs: `Retry-After: 0` is half a second.
            self._again(key, NS_PER_S // 2 if response.code else EVENT_RETRY_NS, response, turn)
        elif what == EVENT and self.model.events[at].every_ns:
            every_ns = self.model.events[at].every_ns
            turn.out.append(Wake(turn.now_ns + every_ns, f"{EVENT}{at}/0"))

    def on_synced(self, at: int, turn: Turn) -> None:
        """Open the watches that waited for this one to sync."""
        if self.model.watches[at].wait_for_sync and not self._is_watching:
            self._open_from(at + 1, turn)

    def _begin(self, turn: Turn) -> None:
        self._said_ns = self._started_ns = turn.now_ns
        model = self.model
        self.reflectors = tuple(
            AgentReflector(self.node, self.name, model, at, self.seed)
            for at in range(len(model.watches))
        )
        for at in range(len(model.reads)):
            self.on_timer(f"{READ}{at}/0", turn)
        self._open_from(0, turn)
        if model.conditions:
            self._say_conditions(0, turn)

    def _open_from(self, first: int, turn: Turn) -> None:
        """Open watches; events follow the last one. Source: kube-proxy, Run and birthCry."""
        for reflector in self.reflectors[first:]:
            if reflector.opens:
                return  # after a relist: the others go on by themselves
            turn.out.append(Open(reflector))
            if reflector.watch.wait_for_sync:
                return
        self._is_watching = True
        for at, event in enumerate(self.model.events):
            share = turn.draws.uniform(self.node, self.seed + _EVENT, at)
            turn.out.append(Wake(turn.now_ns + event.after.sample(share), f"{EVENT}{at}/0"))

    def _again(self, key: str, wait_ns: int, response: Response, turn: Turn) -> None:
        """Try once more, when the server says so or after a wait with a quarter of jitter."""
        what, at, tries = parse(key)
        count = (ord(what) << 32) + (at << 16) + tries
        jitter = 1 + turn.draws.uniform(self.node, self.seed + _RETRY, count) / 4
        wait_ns = max(int(wait_ns * jitter), response.retry_after_s * NS_PER_S)
        turn.out.append(Wake(turn.now_ns + wait_ns, f"{what}{at}/{tries + 1}"))

    # ---- what it says of its Node ----

    def _say_conditions(self, tries: int, turn: Turn) -> None:
        """Patch all conditions; one that turned is an event too."""
        offset_ns = turn.wall_ns - turn.now_ns
        conditions = []
        for at, each in enumerate(self.model.conditions):
            if each.type in turn.problems:
                conditions.append(turn.problems[each.type])
                continue
            said, since_ns, _ = self._state(at, turn)
            since_s = (since_ns + offset_ns) // NS_PER_S
            conditions.append(
                NodeCondition(each.type, said.status, 0, since_s, said.reason, said.message)
            )
            if each.problem is not None and since_ns > self._said_ns:
                self._send_event(_turned(each, said), f"{TURNED}{at}/0", turn)
        self._said_ns = turn.now_ns
        request = patch_conditions(self.name.encode(), conditions, turn.wall_ns)
        turn.out.append(Send(request, "PATCH", "nodes/status", f"{CONDITIONS}0/{tries}"))

    def _send_event(self, event: AgentEvent, key: str, turn: Turn) -> None:
        request = create_event(self.name.encode(), event, turn.wall_ns)
        turn.out.append(Send(request, "POST", "events", key))

    def _state(self, at: int, turn: Turn) -> tuple[AgentCondition | AgentProblem, int, int]:
        """Return what a condition says now, since when and until when; 0 for ever."""
        condition = self.model.conditions[at]
        problem, draws, now_ns = condition.problem, turn.draws, turn.now_ns
        is_hit = problem and draws.uniform(self.node, self.seed + _SHARE, at + 1) < problem.share
        if problem is None or not is_hit:
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


def patch_conditions(node: bytes, conditions: Sequence[NodeCondition], wall_ns: int) -> Request:
    """Return the patch that says all conditions again, without a look at those of others."""
    seen = [shown(each._replace(heartbeat_s=wall_ns // NS_PER_S)) for each in conditions]
    return Request(
        b"PATCH",
        b"/api/v1/nodes/%b/status" % node,
        orjson.dumps({"status": {"conditions": seen}}),
        ContentType.STRATEGIC_MERGE_PATCH,
        timeout_ns=CALL_TIMEOUT_NS,
    )


def create_event(node: bytes, event: AgentEvent, wall_ns: int) -> Request:
    name = b"%b.%x" % (node, wall_ns)
    if event.is_legacy:
        path = b"/api/v1/namespaces/default/events"
        stamp, host = rfc3339(wall_ns // NS_PER_S).decode(), node.decode()
        report = Report(
            event.type, event.reason, event.message, event.component, host, event.component
        )
        # With the name in place of the uid, without apiVersion. Source: problemclient, getNodeRef.
        about = ObjectRef("Node", "", host, host, api_version="")
        body = orjson.dumps(event_json(name.decode(), about, report, (stamp, stamp, 1)))
    else:
        path = b"/apis/events.k8s.io/v1/namespaces/default/events"
        note = b'"note":%b,' % orjson.dumps(event.message) if event.message else b""
        at = rfc3339_micro(wall_ns)
        reason, component = event.reason.encode(), event.component.encode()
        kind, action = event.type.encode(), event.action.encode()
        who = (component, component, node, action, reason)
        body = NEW_EVENT % (name, at, *who, node, note, kind)
    return Request(b"POST", path, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)
