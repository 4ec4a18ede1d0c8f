"""The long half of `make oracle`: restarts, back-off ladders, and two minutes of nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.listed_differences import too_often

from oracle import scenes_resources, scenes_restarts
from oracle.halves import LONG, judged, marks, missed, played, rows
from oracle.judge import Recording
from oracle.oracle_limits import LIMITS

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = marks(1200)

ALONE = (
    scenes_resources.resize_and_restart,
    scenes_restarts.kubelet_restarts,
    scenes_restarts.apiserver_restarts,
    scenes_restarts.deleted_node,
)
TOGETHER = (scenes_restarts.back_off_ladders, scenes_restarts.idle)


LISTED = rows(LONG, (*TOGETHER, *ALONE))
MUTATED = ("kubelet_restarts",)


@pytest.fixture(scope="module")
def recording(environment: Path) -> Recording:
    """Play the scenes, once for all tests."""
    return played(environment / "oracle-long", LISTED, TOGETHER, ALONE)


def test_every_difference_is_listed(
    recording: Recording, record_property: Callable[[str, object], None]
) -> None:
    said, found = judged(recording, LISTED)
    record_property("compared", f"long half: {said}")
    assert not found, "\n".join(found)


def test_mutations_of_it_are_found(recording: Recording) -> None:
    """What follows a restart, changed in one thing each, makes the comparison red."""
    assert not missed(recording, MUTATED, has_all=False)


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
