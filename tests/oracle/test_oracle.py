"""The short half of `make oracle`: what a node of fleet asks, against the real kubelet."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.listed_differences import too_often

from oracle import scenes_admission, scenes_lifecycle, scenes_objects
from oracle.halves import SHORT, judged, marks, played, rows
from oracle.judge import Recording
from oracle.oracle_limits import LIMITS

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = marks(900)

TOGETHER = (
    scenes_objects.failing_pulls,
    scenes_objects.missing_objects,
    scenes_lifecycle.crash_loop,
    scenes_lifecycle.sidecar_crashes,
    scenes_objects.readiness,
    scenes_lifecycle.plain,
    scenes_lifecycle.three_containers,
    scenes_lifecycle.init_containers,
    scenes_lifecycle.failing_init,
    scenes_lifecycle.failed_init_never,
    scenes_lifecycle.sidecars,
    scenes_lifecycle.completes,
    scenes_lifecycle.changed_image,
    scenes_lifecycle.changed_init_image,
    scenes_lifecycle.hooks,
    scenes_lifecycle.failing_hooks,
    scenes_lifecycle.stops,
    scenes_lifecycle.shortened,
    scenes_lifecycle.forced,
    scenes_lifecycle.deadline,
    scenes_lifecycle.start_failures,
    scenes_lifecycle.jobs,
    scenes_lifecycle.ephemeral,
    scenes_lifecycle.restart_rules,
    scenes_objects.pulls,
    scenes_objects.invalid_image,
    scenes_objects.pull_secrets,
    scenes_objects.volumes,
    scenes_objects.http_failures,
    scenes_objects.liveness,
    scenes_objects.startup,
    scenes_admission.refused,
    scenes_admission.evicted,
    scenes_lifecycle.deleted_early,
)
"""They do not heed each other; those that take longest come first.

A kubelet pulls one image at a time: the slow pull of the last scene would hold up other pulls.
"""
LISTED = rows(SHORT, TOGETHER)


@pytest.fixture(scope="module")
def recording(environment: Path) -> Recording:
    """Play the scenes, once for all tests."""
    return played(environment / "oracle", LISTED, TOGETHER)


def test_every_difference_is_listed(
    recording: Recording, record_property: Callable[[str, object], None]
) -> None:
    said, found = judged(recording, LISTED)
    record_property("compared", f"short half: {said}")
    assert not found, "\n".join(found)


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
