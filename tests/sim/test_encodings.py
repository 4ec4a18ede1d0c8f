"""Every simulation runs in both encodings, and in protobuf nothing but patches is JSON."""

import ast
from functools import partial
from pathlib import Path

import pytest
from world.sim_faults import ConnectionsRefused, Throttled
from world.simulation import ENCODING, Simulation
from world.transport import Sent, SimTransport

from fleet.k8s.effects import NodeId
from fleet.wire.api.framing import MAGIC
from fleet.wire.http2.messages import ContentType, Request

pytest_plugins = ("sim_encodings",)

HERE = Path(__file__).parent
PLUGIN = 'pytest_plugins = ("sim_encodings",)'


def test_every_module_of_simulations_has_the_plug_in() -> None:
    modules = {each.name: each.read_text() for each in sorted(HERE.glob("test_*.py"))}
    assert len(modules) > 25
    simulate = {name: text for name, text in modules.items() if "Simulation(" in text}
    assert not [name for name, text in simulate.items() if PLUGIN not in text.splitlines()]


def test_a_test_that_says_nothing_of_encodings_runs_in_each(request: pytest.FixtureRequest) -> None:
    assert Simulation().encoding == request.node.callspec.params["encoding"]


def test_the_story_is_the_same_in_each_encoding() -> None:
    """Request by request: whatever one codec reads otherwise than the other parts the two."""

    def create(sim: Simulation, index: int) -> None:
        sim.create_pod(f"p-{index}", f"n-{index % 4}")

    def story(name: str) -> list[Sent]:
        before = ENCODING.set(name)
        sim = Simulation(nodes=4, seed=9)
        ENCODING.reset(before)
        for index in range(12):
            sim.after(3 * index, partial(create, sim, index))
        sim.run_for(seconds=30)
        sim.inject(ConnectionsRefused(frozenset({1, 2})), seconds=12)
        sim.inject(Throttled("PATCH", 5), seconds=8)
        sim.run_for(seconds=30)
        sim.reactor.restart([NodeId(3)])
        sim.run_for(seconds=60)
        return sim.trace

    assert story("json") == story("protobuf")


def test_no_simulation_chooses_its_encoding() -> None:
    """One that did would run twice in the same."""
    for module in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Simulation":
                assert "encoding" not in {each.arg for each in node.keywords}, module.name


def test_kubelets_speak_what_their_server_speaks(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Request] = []
    send = SimTransport.send

    def note(self: SimTransport, pool: int, request: Request, token: object) -> None:
        sent.append(request)
        send(self, pool, request, token)

    monkeypatch.setattr(SimTransport, "send", note)
    sim = Simulation()
    sim.create_pod("web")
    sim.run_for(seconds=30)
    assert sim.encoding == encoding
    assert sim.phase("web") == "Running"
    bodies = [each for each in sent if each.body]
    assert {each.method for each in bodies} >= {b"POST", b"PUT", b"PATCH"}
    for each in bodies:
        is_protobuf = each.body.startswith(MAGIC)
        is_patch = each.content_type is ContentType.STRATEGIC_MERGE_PATCH
        assert is_protobuf is (encoding == "protobuf" and not is_patch), each
    stored = sim.server.objects["pods", "default", "web"]
    assert stored.body.startswith(MAGIC) is (encoding == "protobuf")
