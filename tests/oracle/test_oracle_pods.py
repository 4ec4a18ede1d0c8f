"""More of `make oracle`: what the spec of a pod may say, and what others change of a pod."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.listed_differences import too_often

from oracle import scenes_changes, scenes_restarts, scenes_specs
from oracle.halves import PODS, judged, marks, played, rows
from oracle.judge import Recording
from oracle.oracle_limits import LIMITS

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = marks(900)

TOGETHER = (
    scenes_changes.lost_keys,
    scenes_specs.too_much_dns,
    scenes_changes.foreign_statuses,
    scenes_changes.projected,
    scenes_changes.edited,
    scenes_changes.finalizers,
    scenes_changes.readiness_gates,
    scenes_changes.debuggers,
    scenes_specs.gating_sidecars,
    scenes_specs.own_grace,
    scenes_specs.all_restart,
    scenes_specs.named_ports,
    scenes_specs.host_paths,
    scenes_specs.image_volumes,
    scenes_specs.classes,
    scenes_specs.sysctls,
    scenes_specs.users,
    scenes_specs.last_words,
    scenes_specs.sub_paths,
    scenes_specs.environments,
    scenes_specs.long_names,
    scenes_specs.names_of_pods,
    scenes_specs.host_pods,
)
"""They do not heed each other; those that take longest come first."""

ALONE = (scenes_restarts.restarts_midway,)
"""It needs both nodes for itself."""
LISTED = rows(PODS, (*TOGETHER, *ALONE))


@pytest.fixture(scope="module")
def recording(environment: Path) -> Recording:
    """Play the scenes, once for all tests."""
    return played(environment / "oracle-pods", LISTED, TOGETHER, ALONE)


def test_every_difference_is_listed(
    recording: Recording, record_property: Callable[[str, object], None]
) -> None:
    said, found = judged(recording, LISTED)
    record_property("compared", f"pods: {said}")
    assert not found, "\n".join(found)


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
