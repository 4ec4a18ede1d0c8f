"""One agent as a machine: what it sends when, and what a node with agents costs."""

import gc
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from world.agents import agent_model

from fleet.agents.agent import (
    Agent,
    AgentEffect,
    AgentReflector,
    Open,
    Send,
    Turn,
    Wake,
)
from fleet.clock import NS_PER_S, Draws
from fleet.errors import UsageError
from fleet.k8s.pods import EventType, NodeCondition
from fleet.profile.agent_behavior import AgentModel
from fleet.profile.loader import load_mix
from fleet.profile.option_types import ProfileChoice
from fleet.wire.api.decode_json import decode_list, decode_watch_event
from fleet.wire.api.watch import WatchPhase
from fleet.wire.http2.messages import Response

DRAWS = Draws(1)
WALL_NS = 1_800_000_000 * NS_PER_S
STATE_BYTES_MAX = 1024


class Play:
    """An agent on node `n`, and a wheel for its timers."""

    def __init__(self, model: AgentModel) -> None:
        self.agent = Agent(3, "n", model, 1 << 16)
        self.now_ns = 0
        self.problems: dict[str, NodeCondition] = {}
        self.due: list[Wake] = []
        self.sent: list[tuple[float, Send]] = []
        self.opened: list[AgentReflector] = []
        turn = self.turn()
        self.agent.start(turn)
        self.take(turn.out)

    def turn(self) -> Turn:
        return Turn(DRAWS, self.now_ns, WALL_NS + self.now_ns, [], self.problems)

    def find(self, *problems: NodeCondition) -> None:
        self.problems = {each.type: each for each in problems}

    def take(self, out: list[AgentEffect]) -> None:
        for effect in out:
            if isinstance(effect, Wake):
                self.due.append(effect)
            elif isinstance(effect, Send):
                self.sent.append((self.now_ns / NS_PER_S, effect))
            else:
                effect.reflector.open(DRAWS, self.now_ns)
                self.opened.append(effect.reflector)

    def run(self, until_s: float, code: int = 200) -> None:
        """Answer everything with one code."""
        answered = 0
        while True:
            while answered < len(self.sent):
                _, each = self.sent[answered]
                answered += 1
                turn = self.turn()
                self.agent.on_reply(each.key, Response(code, b"", 0, 0), turn)
                self.take(turn.out)
            due = [each for each in self.due if each.due_ns <= until_s * NS_PER_S]
            if not due:
                return
            first = min(due)
            self.due.remove(first)
            self.now_ns = max(self.now_ns, first.due_ns)
            turn = self.turn()
            self.agent.on_timer(first.key, turn)
            self.take(turn.out)

    def times(self, verb: str, resource: str) -> list[float]:
        return [at for at, each in self.sent if (each.verb, each.resource) == (verb, resource)]


CONDITION = {"type": "Deadlock", "reason": "None", "message": "fine"}


def test_a_condition_that_a_fault_turned_is_said_instead() -> None:
    play = Play(
        agent_model(conditions=[CONDITION, {**CONDITION, "type": "B"}], conditionPeriod="5m")
    )
    since_s = WALL_NS // NS_PER_S + 60
    play.find(NodeCondition("Deadlock", "True", 0, since_s, "Hung", "task x"))
    play.run(310)
    for _, sent in play.sent:
        found = orjson.loads(sent.request.body)["status"]["conditions"]
        assert [each["status"] for each in found] == ["True", "False"]
        assert [each["message"] for each in found] == ["task x", "fine"]
    assert play.times("PATCH", "nodes/status") == [0, 300]


def test_conditions_are_said_every_period() -> None:
    play = Play(agent_model(conditions=[CONDITION], conditionPeriod="5m"))
    play.run(1000)
    assert play.times("PATCH", "nodes/status") == [0, 300, 600, 900]
    body = play.sent[1][1].request.body
    assert body == (
        b'{"status":{"conditions":[{"type":"Deadlock","status":"False",'
        b'"lastHeartbeatTime":"2027-01-15T08:05:00Z","lastTransitionTime":"2027-01-15T08:00:00Z",'
        b'"reason":"None","message":"fine"}]}}'
    )


def test_a_problem_comes_and_goes_with_its_event() -> None:
    problem = {"from": "100s", "for": "50s", "every": "400s", "reason": "Stuck", "message": "bad"}
    play = Play(agent_model(conditions=[{**CONDITION, "problem": problem}], conditionPeriod="5m"))
    play.run(700)
    assert play.times("PATCH", "nodes/status") == [0, 100, 150, 450, 500, 550]
    assert play.times("POST", "events") == [100, 150, 500, 550]
    bodies = [each.request.body for _, each in play.sent if each.resource == "nodes/status"]
    assert [b'"status":"True"' in body for body in bodies] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert b'"lastTransitionTime":"2027-01-15T08:02:30Z"' in bodies[3]
    event = next(each for _, each in play.sent if each.resource == "events").request.body
    assert b"Node condition Deadlock is now: True, reason: Stuck" in event


def test_a_refused_condition_is_said_again_after_ten_seconds() -> None:
    play = Play(agent_model(conditions=[CONDITION]))
    play.run(60, code=500)
    times = play.times("PATCH", "nodes/status")
    gaps = [after - before for before, after in pairwise(times)]
    assert 4 <= len(gaps) <= 6
    assert all(10 <= gap <= 12.5 for gap in gaps)


def test_an_event_is_given_up_after_twelve_tries() -> None:
    event = {"reason": "Starting", "action": "Start", "component": "a", "every": "1h"}
    play = Play(agent_model(events=[event]))
    play.run(600, code=0)
    assert len(play.times("POST", "events")) == 12


@pytest.mark.parametrize(("retry_after_s", "again"), [(-1, 0), (2, 1)])
def test_a_status_ends_an_event_unless_the_server_asks_for_it_again(
    retry_after_s: int, again: int
) -> None:
    """Source: event_broadcaster.go, recordEvent: *errors.StatusError; with_retry.go."""
    agent = Agent(0, "n", agent_model(events=[{"reason": "S", "action": "S", "component": "a"}]), 0)
    turn = Turn(DRAWS, 0, 0, [])
    agent.on_reply("e0/0", Response(503, b"", 0, 0, retry_after_s), turn)
    assert turn.out == [Wake(2 * NS_PER_S, "e0/1")] * again


def test_an_event_and_a_read_come_again() -> None:
    event = {"reason": "R", "component": "a", "apiVersion": "v1", "after": "5s", "every": "10s"}
    read = {"resource": "nodes", "name": "{{node}}", "every": "20s"}
    play = Play(agent_model(events=[event], reads=[read]))
    play.run(40)
    assert play.times("POST", "events") == [5, 15, 25, 35]
    assert play.times("GET", "nodes") == [0, 20, 40]
    assert play.sent[0][1].request.path == b"/api/v1/nodes/n"


def test_watches_wait_for_the_one_that_is_to_sync() -> None:
    kube_proxy = load_mix_agent("kube-proxy")
    play = Play(kube_proxy)
    play.run(60)
    assert [each.resource for each in play.opened] == ["nodes"]
    assert play.sent == [], "nor does it say that it starts. Source: NewNodeManager, birthCry"
    synced = play.turn()
    play.agent.on_synced(0, synced)
    rest = [each.reflector.resource for each in synced.out if isinstance(each, Open)]
    assert rest == ["services", "endpointslices", "servicecidrs"]
    assert synced.out[3:] == [Wake(play.now_ns, "e0/0")]
    play.take(synced.out)
    again = play.turn()
    play.agent.on_synced(0, again)  # after a relist
    assert again.out == []


def load_mix_agent(name: str) -> AgentModel:
    [model] = load_mix_agents(name)
    return model


def load_mix_agents(name: str) -> tuple[AgentModel, ...]:
    return load_mix((ProfileChoice(name),)).model_of(0).agents


def test_a_watch_asks_with_its_selectors() -> None:
    slices = AgentReflector(0, "n", load_mix_agent("kube-proxy"), 2, 0)
    request = slices.open(DRAWS, 0)
    path, _, query = request.path.partition(b"?")
    assert path == b"/apis/discovery.k8s.io/v1/endpointslices"
    assert b"&labelSelector=%21service.kubernetes.io%2Fheadless&" in query
    own = AgentReflector(0, "n", load_mix_agent("kube-proxy"), 0, 0)
    assert b"&fieldSelector=metadata.name%3Dn&" in own.open(DRAWS, 0).path


def test_a_watch_goes_on_from_the_version_that_went_by() -> None:
    reflector = AgentReflector(0, "n", agent_model(watches=[{"resource": "pods"}]), 0, 0)
    reflector.open(DRAWS, 0)
    read = partial(reflector.on_chunk, decode=decode_watch_event)
    end = b'"annotations":{"k8s.io/initial-events-end":"true"}'
    event = b'{"type":"%b","object":{"metadata":{"resourceVersion":"%d"%b}}}\n'
    assert read(event % (b"ADDED", 5, b"")) == [(EventType.ADDED, None)]
    assert reflector.version == ""
    assert read(event % (b"BOOKMARK", 7, b"," + end)) == [(EventType.SYNCED, None)]
    assert (reflector.version, reflector.phase) == ("7", WatchPhase.STREAM)
    read(event % (b"MODIFIED", 9, b""))
    assert b"&resourceVersion=9&" in reflector.open(DRAWS, 0).path


def test_a_client_without_watch_lists_lists_each_time() -> None:
    watch = {"resource": "pods", "method": "ListWatch"}
    reflector = AgentReflector(0, "n", agent_model(watches=[watch]), 0, 0)
    assert reflector.open(DRAWS, 0).path == b"/api/v1/pods?limit=500&resourceVersion=0"
    assert reflector.on_page(b'{"metadata":{"resourceVersion":"4"},"items":[]}', decode_list)
    assert b"watch=true" in reflector.open(DRAWS, 0).path
    reflector.is_open = True
    reflector.on_error_event(410, DRAWS, 0)
    assert reflector.open(DRAWS, 0).path == b"/api/v1/pods?resourceVersion=4"


def test_agents_of_profiles_can_be_left_out(tmp_path: Path) -> None:
    mine, probe = tmp_path / "mine.yaml", tmp_path / "probe.yaml"
    spec = "spec: {serviceAccount: a/b, userAgent: x/y, reads: [{resource: nodes}]}"
    agent = "apiVersion: fleet.emulator/v1alpha1\nkind: NodeAgent\nmetadata: {name: %s}\n%s\n"
    probe.write_text(agent % ("probe", spec))
    mine.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: NodeProfile\nmetadata: {name: mine}\n"
        "spec: {agents: [{name: log-agent}]}\n---\n" + agent % ("beside", spec)
    )
    choices = (ProfileChoice(str(mine)), ProfileChoice(str(probe)))
    [model] = load_mix(choices).models
    assert [each.name for each in model.agents] == ["beside", "log-agent", "probe"]
    mix = load_mix(choices, no_agents=True)
    assert [each.name for each in mix.models[0].agents] == ["probe"]  # that was asked for
    assert mix.agents_per_node == 1


def test_a_mistake_in_an_agent_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: NodeAgent\nmetadata: {name: wrong}\n"
        "spec: {userAgent: w/v1, user: u, watches: [{resource: pods, fieldSelektor: x}]}\n"
    )
    words = r"spec.watches\[0\]: unknown key 'fieldSelektor'; did you mean 'fieldSelector'\?"
    with pytest.raises(UsageError, match=words):
        load_mix((ProfileChoice(str(path)),))


def test_a_share_of_the_nodes_has_an_agent() -> None:
    model = agent_model(watches=[{"resource": "pods"}], share=0.25)
    count = sum(Agent.runs_on(node, model, 1 << 16, DRAWS) for node in range(4000))
    assert 900 <= count <= 1100


def test_an_agent_fits_its_budget() -> None:
    """kube-proxy with its four watches: state of fleet's own, the connection apart."""
    model = load_mix_agent("kube-proxy")
    gc.collect()
    agents = []
    names = [f"fleet-{i:05d}" for i in range(1000)]  # the kubelets'
    before = sys.getallocatedblocks()
    sizes = 0
    for node, name in enumerate(names):
        play = Agent(node, name, model, 1 << 16)
        play._begin(Turn(DRAWS, 0, WALL_NS, []))
        agents.append(play)
        sizes += sys.getsizeof(play) + sys.getsizeof(play.reflectors)
        sizes += sum(map(sys.getsizeof, play.reflectors))
    assert sizes / 1000 < STATE_BYTES_MAX
    assert (sys.getallocatedblocks() - before) / 1000 < 16


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"user": "u"}, "needs serviceAccount (NAMESPACE/NAME) or user, and not both"),
        ({"serviceAccount": "a"}, "serviceAccount: 'a' is not NAMESPACE/NAME"),
        ({}, "does nothing: give it watches, reads, conditions or events"),
        ({"userAgent": "{{nope}}"}, "'{{nope}}' is not one of version, os, arch"),
        ({"watches": [{"resource": "a b"}]}, "spec.watches[0].resource: 'a b': string should"),
        (
            {"watches": [{"resource": "pods", "fieldSelector": "{{name}}"}]},
            "spec.watches[0].fieldSelector: '{{name}}' is not '{{node}}'",
        ),
        (
            {"watches": [{"resource": "pods", "timeout": {"min": "5m", "max": "1m"}}]},
            "min is 1s or more, and at most max",
        ),
        ({"conditions": [CONDITION, CONDITION]}, "conditions name one type twice"),
        ({"conditions": [CONDITION], "conditionPeriod": "1ms"}, "are 1s or more"),
        ({"events": [{"reason": "R", "component": "c"}]}, "needs an action"),
    ],
)
def test_a_mistake_is_one_line(spec: dict[str, object], error: str) -> None:
    with pytest.raises(UsageError) as caught:
        agent_model(**spec)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)
