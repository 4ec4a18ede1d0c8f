"""`make oracle`: what a node of fleet asks in each half, against the real kubelet."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.go_program import build_kubelet
from support.listed_differences import judge, too_often

from oracle.both_nodes import both_nodes
from oracle.halves import HALVES, UNRECORDED, Half
from oracle.judge import Judge, Recording, save, summary
from oracle.mutations import MUTATIONS, news
from oracle.oracle_limits import LIMITS
from oracle.oracle_stage import OracleStage
from oracle.real_kubelet import why_not
from oracle.recorded_scenes import record

RECORDING = "recording.json.gz"
"""Stays with what the test leaves, so that a red comparison can be repeated and looked at."""
RECORD = "FLEET_ORACLE_RECORD"
"""With this in the environment what the real kubelet did replaces what was recorded of it."""
REASON = why_not()

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(REASON), reason=REASON or "it can"),
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, id=each.name, marks=pytest.mark.xdist_group(f"oracle-{each.name}"))
        for each in HALVES
    ],
)
def half(request: pytest.FixtureRequest) -> Half:
    found: Half = request.param
    return found


@pytest.fixture(scope="module")
def recording(half: Half, environment: Path) -> Recording:
    """Play the scenes of a half, once for its tests."""
    root = environment / half.name
    kubelet = asyncio.run(build_kubelet())
    with both_nodes(root, kubelet, half.told, hold_s=half.hold_s) as both:
        player = Judge(OracleStage(both), half.listed())
        player.play_at_once({body.__name__: body for body in half.together})
        for body in half.alone:
            player.play(body.__name__, body)
        player.close()
        both.real.assert_runs()
        found = player.recording()
    found.plays = {name: replace(each, hold_s=half.hold_s) for name, each in found.plays.items()}
    save(found, root / RECORDING)
    if RECORD in os.environ and not {*UNRECORDED}.issuperset(half.scenes):
        record(found, node=half.node, without={each.__name__ for each in UNRECORDED})
    return found


def test_every_difference_is_listed(
    half: Half, recording: Recording, record_property: Callable[[str, object], None]
) -> None:
    """Rows are those of other halves, too, unless some are a half's own: then it needs all."""
    compared, listed = recording.compare(), half.listed()
    record_property("compared", f"{half.name}: {summary(recording, compared, listed)}")
    wrong = judge(compared.found, listed)
    if not half.own_rows:
        wrong = [line for line in wrong if not line.startswith("unused: ")]
    found = [*wrong, *recording.repeated(listed), *missed(recording, half.mutated)]
    assert not found, "\n".join(found)


def missed(recording: Recording, scenes: Sequence[str]) -> list[str]:
    """Return the mutations of what scenes recorded that change it and are not found."""
    if not scenes:
        return []
    real, fleet = recording.traces(scenes)
    before = {*recording.compare_traces(real, fleet).lines}
    mutated = {name: mutate(fleet) for name, mutate in MUTATIONS.items()}
    return [
        f"not found: {name}"
        for name, trace in mutated.items()
        if trace is not fleet
        and not news(name, before, recording.compare_traces(real, trace).lines)
    ]


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
