"""`make versions`: what users do first, on the control plane of each minor.

`make test` plays it on the oldest and the newest minor, with few nodes; all its other tests are of
the default one.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from e2e.e2e_world import TOLD_MAX
from e2e.own_control_plane import standing
from support.go_program import TESTED

from fleet.controlplane.binaries import BUILT
from fleet.profile.release import minor_of
from versions.smoke import JUDGED, PROPERTY, smoke

pytest_plugins = ("e2e.e2e_fixtures", "versions.version_table")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
RELEASES = [*BUILT.values()]
OUTERMOST = {RELEASES[0], RELEASES[-1]}
NODES = int(os.environ.get("FLEET_VERSIONS_NODES", "20"))
OTHER = pytest.mark.slow
RECORDED = Path(__file__).parents[1] / "oracle" / "recorded"


@pytest.mark.parametrize(
    "release",
    [pytest.param(each, marks=() if each in OUTERMOST else OTHER) for each in RELEASES],
    ids=minor_of,
)
def test_users_begin_well_on_each_minor(
    release: str,
    environment: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    root = environment / minor_of(release)
    root.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))  # others have a control plane, too
    with standing(root, release) as world:
        figures = smoke(world, release, NODES)
    record_property(PROPERTY, orjson.dumps(figures).decode())
    assert not figures.refused, figures.refused


@pytest.mark.slow  # `make check` does it
@pytest.mark.parametrize(
    "release", [each for each in RELEASES if (RECORDED / minor_of(each)).exists()], ids=minor_of
)
def test_the_kubelet_of_each_minor_judges_fleets_node(
    release: str, record_property: Callable[[str, object], None]
) -> None:
    judge: tuple[str, ...] = ("test_recorded_minors.py", f"-k={minor_of(release)}-")
    if release == TESTED:
        judge = ("test_recorded.py",)
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", *judge),
        cwd=RECORDED.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    summed = done.stdout.splitlines()[-1]
    record_property(JUDGED, f"{release}: {summed}")
    assert done.returncode == 0, done.stdout[-TOLD_MAX:]
