"""Nodes that start settled: what they send, and that nothing later tells them from cold ones."""

import re
from collections import Counter
from functools import partial

import orjson
import pytest
from world.sim_faults import ApiServerAnswers, ConnectionsDropped
from world.simulation import WATCHES, Simulation
from world.strategic_merge import Object

from fleet.k8s.effects import NodeId
from fleet.wire.api.framing import MAGIC
from fleet.wire.api.protobuf import object_to_json
from fleet.wire.http2.messages import Request

pytest_plugins = ("sim_encodings",)

NODES = 6
FROM_S, UNTIL_S = 300.0, 1_800.0
VARIES = {"uid", "resourceVersion", "generation", "managedFields", "creationTimestamp"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
NUMBERED = re.compile(r"\.[0-9a-f]{16}\b|containerd://[0-9a-f]+")
"""The end of an Event's name, which is the time at which it was made, and the id of a container."""
UNIT = "/api/v1/nodes"

Line = tuple[str, str, str]
Stream = Counter[Line]
"""How often a node sent what: verb, path and body, without times and what the server numbers."""


def without_numbers(value: object) -> object:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in VARIES}
        return {key: without_numbers(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [without_numbers(each) for each in value]
    return NUMBERED.sub("", TIME.sub("", value)) if isinstance(value, str) else value


def line(request: Request) -> Line:
    body = request.body
    obj = object_to_json(body) if body.startswith(MAGIC) else orjson.loads(body or b"null")
    shown = orjson.dumps(without_numbers(obj), option=orjson.OPT_SORT_KEYS).decode()
    path = re.sub(
        r"(resourceVersion|timeoutSeconds|sendInitialEvents)=\w+", "", request.path.decode()
    )
    return request.method.decode(), NUMBERED.sub("", path), shown


class Recorded(Simulation):
    """A simulation that keeps what each node sends."""

    def __init__(self, *, light: bool, settled: bool, seed: int = 3) -> None:
        super().__init__(nodes=NODES, seed=seed, light=light, settled=settled)
        self.streams: list[Stream] = []
        send = self.transport.send

        def keep(pool: int, request: Request, token: object) -> None:
            if self.streams:
                self.streams[pool][line(request)] += 1
            send(pool, request, token)

        self.transport.send = keep  # type: ignore[method-assign]

    def live(self) -> list[Stream]:
        """Let the fleet live for a while among pods, edits and a lost connection."""
        self.run_for(seconds=FROM_S)
        self.streams = [Counter() for _ in self.names]
        self.after(60, partial(self.bind, "web", "n-0"))
        self.after(400, lambda: self.server.delete_pod("web"))
        self.after(100, lambda: self.edit("n-1", {"spec": {"unschedulable": True}}))
        self.after(500, lambda: self.edit("n-1", {"spec": {"unschedulable": False}}))
        self.after(
            200, lambda: self.edit("n-2", {"metadata": {"labels": {"kubernetes.io/os": "x"}}})
        )
        self.after(300, lambda: self.inject(ConnectionsDropped(frozenset({3})), seconds=1))
        self.after(350, lambda: self.edit("n-4", {"status": {"capacity": {"cpu": "1"}}}))
        self.after(600, partial(self.restart, NodeId(5)))
        self.run_for(seconds=UNTIL_S - FROM_S)
        return self.streams

    def bind(self, pod: str, node: str) -> None:
        self.create_pod(pod, node)

    def restart(self, node: NodeId) -> None:
        self.reactor.restart([node])

    def edit(self, name: str, patch: Object) -> None:
        self.server.update("nodes", name, patch)


@pytest.mark.parametrize("light", [False, True])
def test_after_five_minutes_no_request_tells_a_settled_node_from_a_cold_one(*, light: bool) -> None:
    cold, settled = (Recorded(light=light, settled=each).live() for each in (False, True))
    for name, before, after in zip(range(NODES), cold, settled, strict=True):
        assert set(before) == set(after), name
        for each, count in before.items():
            # Each fleet draws its own jitter and phases; an uncommon request comes as often.
            assert abs(after[each] - count) <= max(2, 0.03 * count), (name, each)
    renewals = sum(count for each, count in settled[0].items() if each[0] == "PUT")
    assert renewals > 100


def test_a_settled_node_makes_three_objects_and_its_watches_until_all_is_open() -> None:
    sim = Simulation(nodes=20, seed=1, settled=True).run_for(seconds=9.9)
    for name in sim.names:
        sent = sim.calls(name)
        assert (sent[0].verb, sent[0].path) == ("POST", UNIT)
        assert Counter(each.verb for each in sent) == {"POST": 3, "WATCH": WATCHES}
    assert sim.ready() == 20
    assert sim.events() == []
    node, lease = sim.server.get("nodes", "n-7"), sim.server.get("leases", "n-7", "kube-node-lease")
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    owner = sim.server.get("csinodes", "n-7")["metadata"]["ownerReferences"][0]
    assert owner["uid"] == node["metadata"]["uid"]
    assert all(sim.reactor.watches.are_open(NodeId(index)) for index in range(20))


def test_the_first_ranges_for_pods_are_no_news_to_a_settled_node() -> None:
    for settled, patches in ((True, 0), (False, 1)):
        sim = Simulation(seed=1, settled=settled).run_for(seconds=5)
        cidrs: Object = {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}
        sim.server.update("nodes", "n-0", {"spec": cidrs})
        sim.run_for(seconds=60)
        assert len(sim.calls(verb="PATCH", path=UNIT, since_s=5)) == patches
        sim.create_pod("web")
        sim.run_for(seconds=30)
        assert str(sim.status("web")["podIP"]).startswith("10.1.0.")


def test_a_kubelet_that_restarts_starts_cold() -> None:
    sim = Simulation(seed=2, settled=True).run_for(seconds=60)
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=60)
    reasons = [each["reason"] for each in sim.events()]
    assert {"Starting", "NodeHasSufficientMemory", "NodeAllocatableEnforced"} <= set(reasons)
    assert len(sim.calls(verb="GET", path="/leases/", since_s=60)) == 1


def test_a_node_that_exists_is_taken_over_as_by_a_kubelet_that_starts() -> None:
    old = Simulation(seed=4)
    old.run_for(seconds=60)
    node = old.server.get("nodes", "n-0")

    def exists(server: object) -> None:
        server.create(("nodes", "", "n-0"), {**node, "metadata": {"labels": {}}})  # type: ignore[attr-defined]

    sim = Simulation(seed=4, settled=True, setup=exists).run_for(seconds=60)
    creations = sim.calls(verb="POST", path=UNIT)
    assert [each.code for each in creations if each.path == UNIT] == [409, 409]
    assert sim.condition("n-0") == "True"
    assert "Starting" in {each["reason"] for each in sim.events()}
    assert sim.server.get("nodes", "n-0")["metadata"]["labels"]["kubernetes.io/os"] == "linux"


def test_a_node_of_another_owner_is_left_alone() -> None:
    def exists(server: object) -> None:
        server.create(("nodes", "", "n-0"), {"spec": {}, "status": {}})  # type: ignore[attr-defined]

    sim = Simulation(seed=5, settled=True, setup=exists, is_ours=lambda _view: False)
    sim.run_for(seconds=60)
    writes = [each for each in sim.trace if each.verb not in {"GET", "WATCH"}]
    assert {each.code for each in writes if each.path == UNIT} == {409}
    assert not [each for each in writes if each.path != UNIT and "/events" not in each.path]
    assert sim.reactor.counts.foreign == 1


def test_a_settled_node_survives_refusals_of_all_its_requests() -> None:
    sim = Simulation(nodes=5, seed=6, settled=True)
    sim.inject(ApiServerAnswers(503), seconds=20)
    sim.run_for(seconds=120)
    assert sim.ready() == 5
    assert len(sim.server.all("csinodes")) == len(sim.server.all("leases")) == 5
    assert sim.events() == []


def test_a_csinode_that_is_refused_is_looked_for() -> None:
    sim = Simulation(seed=7, settled=True)
    sim.after(0.001, lambda: sim.inject(ApiServerAnswers(500), seconds=1))
    sim.run_for(seconds=60)
    assert len(sim.server.all("csinodes")) == len(sim.server.all("leases")) == 1
    assert sim.condition("n-0") == "True"
