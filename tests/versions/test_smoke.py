"""`make versions`: what users do first, on the control plane of each minor.

`make test` plays it on the default minor, with few nodes.
"""

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from e2e.own_control_plane import standing

from fleet import KUBERNETES_VERSION
from fleet.controlplane.binaries import BUILT, minor_of
from versions.smoke import PROPERTY, smoke

pytest_plugins = ("e2e.e2e_fixtures", "versions.version_table")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
RELEASES = [*BUILT.values()]
NODES = int(os.environ.get("FLEET_VERSIONS_NODES", "20"))
OTHER = pytest.mark.slow


@pytest.mark.parametrize(
    "release",
    [pytest.param(each, marks=() if each == KUBERNETES_VERSION else OTHER) for each in RELEASES],
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
    assert not figures.refused, figures.refused
    record_property(PROPERTY, orjson.dumps(figures).decode())
