"""What the nodes differ in twice is no chance, whichever play of a scene counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
from support.header_tap import Noted
from support.listed_differences import Listed

from oracle import judge
from oracle.built_traces import BEGIN_S, HOSTS, NODES, Log, recording
from oracle.judge import Recording, load, made_up, save, without_measure
from oracle.normalisation import Json
from oracle.scene import SIDES, Play


def play(
    suffix: str, phase: str = "Running", *, late_s: float = 0.0, refused: bool = False
) -> list[Log]:
    """Play a scene in which fleet's node reports a phase, and comes late."""
    logs = [Log("real", suffix), Log("fleet", suffix)]
    logs[0].reports("web", {"phase": "Running"})
    logs[1].at_s += late_s
    logs[1].reports("web", {"phase": phase})
    if refused:
        for log in logs:
            log.ask("create", "serviceaccounts/token", "default", {}, code=403)
    return logs


def played(*plays: list[Log]) -> Recording:
    return recording([log for logs in plays for log in logs])


def test_a_line_of_two_plays_is_found_though_the_last_play_has_none() -> None:
    twice = played(play(""), play("-1", "Unknown"), play("-2", "Unknown"), play("-3"))
    assert not [line for line in twice.compare().lines if line.startswith("scene: value")]
    found = twice.repeated([])
    assert found
    assert all(line.startswith("in plays 2, 3: scene: ") for line in found)
    assert any("status.phase" in line for line in found)


def test_a_line_of_one_play_is_chance() -> None:
    assert not played(play(""), play("-1", "Unknown"), play("-2")).repeated([])
    assert not played(play("", "Failed"), play("-1", "Unknown"), play("-2")).repeated([])


def test_the_play_that_counts_is_one_of_them() -> None:
    assert played(play("", "Unknown"), play("-1", "Unknown")).repeated([])


def test_what_is_listed_may_occur_in_each_play() -> None:
    rows = [Listed("scene: .+", "it is so", "x.go")]
    assert not played(play("", "Unknown"), play("-1", "Unknown"), play("-2")).repeated(rows)


def test_how_late_a_request_was_does_not_make_it_another_line() -> None:
    found = played(play("", late_s=7), play("-1", late_s=8.5), play("-2")).repeated([])
    assert any("fleet later by N s" in line for line in found)
    assert without_measure("a: time: get web-1: later by 3.1 s") == (
        "a: time: get web-1: later by N s"
    )


def test_a_play_in_which_the_api_server_refused_something_does_not_count() -> None:
    """The node authorizer was slower than the nodes: what follows from that is chance."""
    refused = play("", "Unknown", refused=True)
    assert not played(refused, play("-1", "Unknown"), play("-2")).repeated([])
    assert played(refused, play("-1", "Unknown"), play("-2", "Unknown")).repeated([])


def test_what_a_node_asks_in_a_namespace_of_no_play_is_compared_as_the_nodes() -> None:
    def asking(namespace: str) -> list[str]:
        logs = play("")
        logs[1].ask("get", "configmaps", "config", namespace=namespace)
        return recording(logs).compare().lines

    assert any("node: only fleet: get configmaps" in line for line in asking("elsewhere"))
    again = played(play("", "Unknown"), play("-1"))
    assert not [line for line in again.compare().lines if line.startswith("node: only")]


@dataclass(slots=True)
class PlayedStage:
    """A stage on which each play of a scene adds to the logs of both nodes."""

    phases: list[str]
    """What fleet's node reports in each play."""
    info: None = None
    nodes: Mapping[str, str] = field(default_factory=lambda: dict(NODES))
    started_s: Mapping[str, Sequence[float]] = field(
        default_factory=lambda: {side: [BEGIN_S] for side in SIDES}
    )
    noted: Mapping[str, Noted] = field(default_factory=dict)
    outages_s: Sequence[tuple[float, float]] = ()
    logs: list[Log] = field(default_factory=list)

    def audit(self) -> list[Json]:
        return [event for each in self.logs for event in each.events]

    def play(self, name: str, _body: object, _stage: object, _admin: object, suffix: str) -> Play:
        """Play the next one, a minute after the one before."""
        began_s = BEGIN_S + 60 * len(self.logs)
        for side, phase in zip(SIDES, ("Running", self.phases.pop(0)), strict=True):
            log = Log(side, suffix, began_s)
            if not suffix:
                log.registers()
            log.reports("web", {"phase": phase, "hostIP": HOSTS[side]})
            self.logs.append(log)
        namespaces = {side: f"{name}{suffix}-{side}" for side in SIDES}
        return Play(began_s, began_s + 60, namespaces, (), frozenset({"web"}))


@pytest.mark.parametrize(
    ("phases", "plays", "is_found"),
    [
        (["Running"], 1, False),
        (["Unknown", "Running"], 2, False),
        (["Unknown", "Failed", "Running"], 3, False),
        (["Unknown", "Unknown"], 2, True),
        (["Unknown", "Failed", "Unknown"], 3, True),
    ],
)
def test_a_scene_is_played_until_the_nodes_agree_or_differ_twice_in_one_thing(
    phases: list[str], plays: int, *, is_found: bool
) -> None:
    stage = PlayedStage([*phases])
    with mock.patch.multiple(judge, Admin=mock.Mock(), play=stage.play, NOTED_S=0):
        player = judge.Judge(cast("judge.RecordedStage", stage), [])
        player.play("scene", mock.Mock())
        made = player.recording()
    assert stage.phases == []
    assert len(made.earlier.get("scene", ())) == plays - 1
    assert made.replays == {"scene": plays - 1}
    assert bool(made.repeated([])) is is_found
    # Also in a later play the node's address is known as the node's.
    for play in (*made.earlier.get("scene", ()), made.plays["scene"]):
        assert not [line for line in made.of_play("scene", play)[0] if "hostIP" in line]


@pytest.mark.parametrize("kept", ["earlier", "plays"])
def test_a_recording_keeps_all_plays(tmp_path: Path, kept: str) -> None:
    made = played(play("", "Unknown"), play("-1", "Unknown"), play("-2"))
    path = tmp_path / "recording.json.gz"
    save(made, path)
    assert getattr(load(path), kept) == getattr(made, kept)
    assert load(path).repeated([]) == made.repeated([])


def test_pods_of_a_deployment_have_equal_names_though_its_templates_name_other_nodes() -> None:
    def asked(second: int, name: str) -> Json:
        return {
            "requestReceivedTimestamp": f"2026-01-01T00:00:{second:02}.000000Z",
            "objectRef": {"resource": "pods", "namespace": "ns", "name": name},
            "user": {"username": "system:node:a"},
        }

    names = ["web-57f57b4447-abcde", "web-57f57b4447-fghij", "web-59f8b975c-klmno", "plain-abcde"]
    events = [asked(at, name) for at, name in enumerate(names)]
    assert [*made_up(events, "a", {"ns": ()}).values()] == [
        "web-HASH-0-GENERATED-0",
        "web-HASH-0-GENERATED-1",
        "web-HASH-1-GENERATED-0",
        "plain-GENERATED-0",
    ]
