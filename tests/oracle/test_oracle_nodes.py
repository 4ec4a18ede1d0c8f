"""More of `make oracle`: what is done to a Node, to what it has to give, and to its static pods."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import scenes_claims
import scenes_node
import scenes_resources
import scenes_static
from both_nodes import IMAGES, Told, both_nodes
from judge import Judge, Recording, summary
from listed_differences import read_listed, too_often, unlisted
from objects_of_scenes import SHELL
from oracle_limits import LIMITS, PAGE
from oracle_stage import OracleStage
from real_kubelet import why_not

from fleet.controlplane.build import build_kubelet

pytest_plugins = ("e2e_fixtures",)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can"),
]

LISTED = read_listed(PAGE)
SHELL_IMAGE = {
    "names": [SHELL.replace(":1.36", "@sha256:" + "5e" * 32), SHELL],
    "sizeBytes": 4261550,
}
TOGETHER = (
    scenes_static.static,
    scenes_static.static_troubles,
    scenes_claims.claims,
    scenes_claims.unbound_claims,
    scenes_resources.resized,
    scenes_resources.disrupted_job,
    scenes_resources.pod_resources,
)
ALONE = (
    scenes_resources.preempted,
    scenes_resources.deferred_resize,
    scenes_node.relabelled,
    scenes_node.cordoned,
    scenes_node.tainted,
)
"""Each needs both nodes for itself."""


@pytest.fixture(scope="module")
def recording(environment: Path) -> Iterator[Recording]:
    """Play the scenes, once for all tests."""
    kubelet = asyncio.run(build_kubelet())
    told = Told(images=[*IMAGES, SHELL_IMAGE])
    with both_nodes(environment / "oracle-nodes", kubelet, told) as both:
        played = Judge(OracleStage(both), LISTED)
        played.play_at_once({body.__name__: body for body in TOGETHER})
        for body in ALONE:
            played.play(body.__name__, body)
        played.close()
        both.real.assert_runs()
        yield played.recording()


def test_every_difference_is_listed(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of the list are those of the other scenes, too: not each is needed here."""
    compared = recording.compare()
    with capsys.disabled():
        print(f"\n{summary(recording, compared.counts, len(LISTED))}")
    found = unlisted(compared.lines, LISTED)
    assert not found, "\n".join(found)


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
