"""`make oracle`: what a node of fleet asks of the API server, against the real kubelet."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import scenes_admission
import scenes_lifecycle
import scenes_objects
from both_nodes import IMAGES, Told, both_nodes
from judge import Body, Judge, Recording, summary
from listed_differences import judge, read_listed, too_often
from mutations import MUTATIONS
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

HAS_CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
LISTED = [
    each
    for each in read_listed(PAGE)
    if not (HAS_CGROUP_V2 and each.reason.startswith("cgroup v1:"))
]
SHELL_IMAGE = {
    "names": [SHELL.replace(":1.36", "@sha256:" + "5e" * 32), SHELL],
    "sizeBytes": 4261550,
}
TOGETHER = (
    scenes_lifecycle.deleted_early,
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
)
"""They do not heed each other; those that take longest come first."""
MUTATED = ("plain", "crash_loop", "readiness", "completes", "pulls")


def named(bodies: tuple[Body, ...]) -> Mapping[str, Body]:
    return {body.__name__: body for body in bodies}


@pytest.fixture(scope="module")
def recording(environment: Path) -> Iterator[Recording]:
    """Play the scenes, once for all tests."""
    kubelet = asyncio.run(build_kubelet())
    root = environment / "oracle"
    manifests = root / "manifests"
    manifests.mkdir(parents=True)
    told = Told(kubelet={"staticPodPath": str(manifests)}, images=[*IMAGES, SHELL_IMAGE])
    with both_nodes(root, kubelet, told) as both:
        played = Judge(OracleStage(both), LISTED)
        played.play_at_once(named(TOGETHER))
        played.close()
        both.real.assert_runs()
        yield played.recording()


def test_every_difference_is_listed(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = recording.compare()
    with capsys.disabled():
        print(f"\n{summary(recording, compared.counts, len(LISTED))}")
    found = judge(compared.lines, LISTED)
    assert not found, "\n".join(found)


def test_mutations_of_it_are_found(recording: Recording) -> None:
    """What one scene has, changed in one thing each, makes the comparison red."""
    real, fleet = recording.traces(MUTATED)
    before = set(recording.compare_traces(real, fleet).lines)
    missed = [
        name
        for name, mutate in MUTATIONS.items()
        if not set(recording.compare_traces(real, mutate(fleet)).lines) - before
    ]
    assert not missed


def test_scenes_are_seldom_played_again(recording: Recording) -> None:
    assert not too_often(recording.replays, LIMITS)
