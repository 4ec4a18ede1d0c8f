"""More of `make oracle`: what is done to a Node, to what it has to give, and to its static pods."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.listed_differences import read_listed, too_often

from oracle import scenes_claims, scenes_lifecycle, scenes_node, scenes_resources, scenes_static
from oracle.halves import judged, marks, played
from oracle.judge import Recording
from oracle.oracle_limits import LIMITS, PAGE

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = marks(900)

LISTED = read_listed(PAGE)
TOGETHER = (
    scenes_static.static,
    scenes_static.static_troubles,
    scenes_claims.claims,
    scenes_claims.unbound_claims,
    scenes_resources.resized,
    scenes_resources.whole_resized,
    scenes_resources.disrupted_job,
    scenes_resources.pod_resources,
    scenes_lifecycle.plain,
    scenes_lifecycle.three_containers,
    scenes_lifecycle.init_containers,
    scenes_lifecycle.completes,
)
"""The last ones are scenes of the short half, which plays them half a second held."""
ALONE = (
    scenes_resources.preempted,
    scenes_resources.deferred_resize,
    scenes_resources.critical_resize,
    scenes_node.relabelled,
    scenes_node.cordoned,
    scenes_node.tainted,
)
"""Each needs both nodes for itself."""


@pytest.fixture(scope="module")
def recording(environment: Path) -> Recording:
    """Play the scenes, once for all tests.

    A kubelet that does not see the mirror pod that it made makes it again, so that nothing is held.
    """
    return played(environment / "oracle-nodes", LISTED, TOGETHER, ALONE, hold_s=0)


def test_every_difference_is_listed(
    recording: Recording, record_property: Callable[[str, object], None]
) -> None:
    """The rows of the list are those of the other scenes, too: not each is needed here."""
    said, found = judged(recording, LISTED, needs_all=False)
    record_property("compared", f"nodes: {said}")
    assert not found, "\n".join(found)


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
