"""`make oracle-recorded`: scenes on fleet's node in virtual time, against the real kubelet's.

No root, no API server and no kubelet are needed: `recorded/` has what the real kubelet asked.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.listed_differences import read_listed, unlisted
from world.encodings import ENCODINGS

from fleet.profile.image_behavior import digest_name
from fleet.profile.node_model import NodeModel
from oracle.both_nodes import HOLD_S, OWN
from oracle.both_nodes import REAL as REAL_NODE
from oracle.exchange import NODE_SCOPE, Trace
from oracle.halves import HALVES, UNRECORDED, Half
from oracle.judge import Body, Recording
from oracle.mutations import MUTATIONS
from oracle.normalisation import Json
from oracle.oracle_limits import PAGE
from oracle.recorded_scenes import DIRECTORY, path_of, record, recorded
from oracle.replay import (
    ScriptChangedError,
    beyond_chance,
    model_of,
    played,
    replayed,
    started,
)
from oracle.scene import FLEET, REAL, Scene
from oracle.value_comparison import Comparison

SCENES: dict[str, Body] = {
    body.__name__: body for half in HALVES for body in half.scenes if body not in UNRECORDED
}
"""What the live judge plays."""
ALONE = {body.__name__ for half in HALVES for body in half.alone}
"""These had both nodes for themselves."""
HALF_OF: dict[str, Half] = {
    name: half for half in HALVES for name in (half.node, *(body.__name__ for body in half.scenes))
}
"""The half of a scene, or of a start."""
RECORDED = sorted(path.name.partition(".")[0] for path in DIRECTORY.glob("*.json.gz"))
NODES = list(dict.fromkeys(HALF_OF[name].node for name in SCENES))
COMPARED = [name for name in RECORDED if name not in NODES]
LISTED = read_listed(PAGE)
OTHER_SEED = 11
MUTATED = ("plain", "crash_loop", "completes", "pulls", "readiness", "host_paths", NODE_SCOPE)
"""Scenes of which one has what a mutation changes."""
OF_EACH_KIND = ("plain", "jobs", "claims", "static", "tainted", "kubelet_restarts")
"""Scenes with what a recording must keep: generated names, volumes, mirrors, Nodes, and starts."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], NodeModel]:
    """Return what gives the nodes that a scene, or a start, is played on."""

    @cache
    def of_node(node: str) -> NodeModel:
        told = HALF_OF[node].told
        return model_of(tmp_path_factory.mktemp("node"), path_of(node), told)

    return lambda name: of_node(HALF_OF[name].node)


@pytest.fixture
def model(request: pytest.FixtureRequest, models: Callable[[str], NodeModel]) -> NodeModel:
    """Return the node of the scene, or the start, that a test is about; else the usual one."""
    about = getattr(request.node, "callspec", None)
    return models(about.params.get("name", NODE_SCOPE) if about else NODE_SCOPE)


def lines(recording: Recording, name: str) -> list[str]:
    """Return in what a scene differs, without what is listed.

    While other scenes are played, what a node says of itself depends on them, too.
    """
    scopes = [NODE_SCOPE, name] if name in ALONE else [name]
    compared = Comparison(*recording.traces([name])).run(scopes)
    compared.add(name, recording.plays[name].failures)
    return unlisted(compared.lines, LISTED)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", COMPARED)
def test_fleet_does_in_a_scene_what_the_real_kubelet_did(
    name: str, encoding: str, model: NodeModel
) -> None:
    recording = recorded(name)

    def found_with(seed: int) -> list[str]:
        return lines(replayed(recording, SCENES[name], model, encoding, seed=seed), name)

    found = beyond_chance(found_with)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", NODES)
def test_fleets_node_starts_as_the_real_kubelet_did(
    name: str, encoding: str, model: NodeModel
) -> None:
    traces = started(recorded(name), model, encoding).traces()
    found = unlisted(Comparison(*traces).run([NODE_SCOPE]).lines, LISTED)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", sorted({*SCENES} - {*COMPARED} | {"plain"}))
def test_a_scene_comes_about_without_a_recording(
    name: str, encoding: str, model: NodeModel
) -> None:
    """So a new one can be compared as soon as the live judge has recorded it."""
    play, _ = played(name, SCENES[name], model, encoding)
    assert not play.failures


def test_each_recording_is_of_a_scene() -> None:
    assert {*COMPARED} <= {*SCENES}
    assert {*NODES} <= {*RECORDED}


# ---- the comparison finds what it should, also here ----


@cache
def both(name: str, model: NodeModel) -> tuple[Recording, Trace, Trace, frozenset[str]]:
    """Return what both nodes did in a scene, or at their start, and in what they differ."""
    recording = recorded(name)
    recording = (
        started(recording, model, "protobuf")
        if name == NODE_SCOPE
        else replayed(recording, SCENES[name], model, "protobuf")
    )
    real, fleet = recording.traces()
    return recording, real, fleet, frozenset(recording.compare_traces(real, fleet).lines)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found_where_there_is_what_it_changes(
    mutation: str, model: NodeModel
) -> None:
    for name in MUTATED:
        recording, real, fleet, before = both(name, model)
        try:
            mutated = MUTATIONS[mutation](fleet)
        except (IndexError, StopIteration, ValueError):
            continue
        if mutated is not fleet:
            assert {*recording.compare_traces(real, mutated).lines} - before, name
            return
    pytest.skip("no scene has what it changes")


# ---- recording and replaying themselves ----


@pytest.mark.parametrize(
    ("plays", "expected"),
    [
        ([[]], []),
        ([["a: fleet later by 3.1 s"], []], []),
        ([["a"], ["b"], []], []),
        ([["a: fleet +3.1 s"], ["a: fleet -2.9 s"]], ["a: fleet N s"]),
        ([["a"], ["b"], ["b", "c"]], ["b"]),
        ([["a"], ["b"], ["c"], ["d"]], ["d"]),
    ],
)
def test_what_occurs_in_two_plays_is_no_chance(plays: list[list[str]], expected: list[str]) -> None:
    left = iter(plays)
    assert beyond_chance(lambda _: next(left)) == expected
    assert not list(left)


def test_a_step_that_a_scene_takes_otherwise_is_named(model: NodeModel) -> None:
    def other(scene: Scene) -> None:
        SCENES["plain"](scene)
        scene.ask_to_delete("nobody")

    with pytest.raises(
        ScriptChangedError, match="step 2 was 'nothing' and is 'delete pods nobody'"
    ):
        replayed(recorded("plain"), other, model, "json")


def test_a_step_comes_when_the_live_judge_took_it(model: NodeModel) -> None:
    recording = recorded("plain")
    steps = recording.plays["plain"].steps
    later = tuple(dataclasses.replace(each, after_s=each.after_s + 7) for each in steps)
    recording.plays["plain"] = dataclasses.replace(recording.plays["plain"], steps=later)
    late = replayed(recording, SCENES["plain"], model, "json")
    assert any("fleet later by 7" in line for line in lines(late, "plain"))


def test_a_node_has_the_images_that_scenes_before_had_left(model: NodeModel) -> None:
    """The kubelet that comes back in this scene reads them; the node does not begin with them."""
    recording = recorded("kubelet_restarts")
    name = "registry.k8s.io/oracle/left:1"
    left = {"names": [digest_name(name), name], "sizeBytes": 12345}
    for event in recording.events:
        if event["objectRef"]["resource"] != "nodes":
            continue
        if event["responseStatus"]["code"] == 409:
            event["requestObject"]["status"]["images"].append(left)
        elif event["verb"] == "patch":  # it was there all the time
            event["responseObject"]["status"]["images"].append(left)
    replay = replayed(recording, SCENES["kubelet_restarts"], model, "json")
    _, fleet = replay.traces()
    having = [str(each.code) for each in fleet.exchanges if name in str(each.body)]
    assert having[0] == "409"
    assert not any("oracle/left" in line for line in lines(replay, "kubelet_restarts"))


def test_what_is_recorded_is_what_was_loaded(tmp_path: Path, model: NodeModel) -> None:
    """Both sides of a play go in; the real one's comes out."""
    recording, *_ = both("plain", model)
    assert record(recording, tmp_path) == ["plain"]
    assert recorded("plain", tmp_path) == recorded("plain")
    assert path_of(NODE_SCOPE, tmp_path).exists()


@pytest.mark.parametrize("name", sorted({*SCENES} - {*COMPARED} | {*OF_EACH_KIND}))
def test_a_scene_can_be_recorded_and_replayed(name: str, model: NodeModel, tmp_path: Path) -> None:
    """A node of fleet takes the part of the real kubelet, with draws of its own."""
    assert record(taken_for_real(name, model), tmp_path) == [name]
    recording = recorded(name, tmp_path)

    def found_with(seed: int) -> list[str]:
        return lines(replayed(recording, SCENES[name], model, "protobuf", seed=seed), name)

    assert not beyond_chance(found_with)


def taken_for_real(name: str, model: NodeModel) -> Recording:
    """Play a scene, and return what was recorded as if it were of the real kubelet."""
    play, node = played(name, SCENES[name], model, "protobuf", seed=OTHER_SEED)
    ours = play.namespaces[FLEET]
    theirs = f"{name}-{REAL}".replace("_", "-")

    def renamed(value: object) -> Any:
        text = orjson.dumps(value).decode()
        return orjson.loads(text.replace(OWN, REAL_NODE).replace(ours, theirs))

    noted: dict[str, tuple[Json, Json, int]] = {
        key: (renamed(asked), {}, 0) for key, (asked, _, _) in node.server.noted.items()
    }
    of_real = dataclasses.replace(
        play,
        namespaces={REAL: theirs},
        named=frozenset(renamed([*play.named])),
        hold_s=HOLD_S,
    )
    return Recording(
        [{**event, "auditID": f"real {event['auditID']}"} for event in renamed(node.server.audit)],
        {f"real {key}": value for key, value in noted.items()},
        {REAL: REAL_NODE},
        {REAL: [*node.starts_s]},
        {name: of_real},
    )


def test_a_scene_that_failed_on_the_real_kubelet_is_not_recorded(tmp_path: Path) -> None:
    recording = recorded("plain")
    play = recording.plays["plain"]
    recording.plays["plain"] = dataclasses.replace(play, failures=("real never: it runs",))
    assert not record(recording, tmp_path)
