"""`fleet capacity`: runs of growing size on a real control plane, and what breaks first."""

import json
from pathlib import Path

import pytest
from e2e_world import DEDICATED, Json, World

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NEVER = """\
apiVersion: fleet.emulator/v1alpha1
kind: ServiceLevelObjectives
metadata: {name: never}
spec:
  defaults: false
  expectations:
  - {sli: TimeToNodesReady, max: 1ms}
"""


def searched(world: World, name: str, *arguments: str) -> tuple[int, Json]:
    """Search from 3 to 6 nodes; return the exit code and `capacity.json`."""
    directory = world.root / f"capacity-{name}"
    done = world.fleet(
        *("capacity", "--max-nodes=6", "--first=3", "--hold=1s", f"--name-prefix={name}"),
        *(f"--kubeconfig={world.info.kubeconfig}", *DEDICATED, "--tries=1", "--output=json"),
        *(f"--run-dir={directory}", *arguments),
    )
    assert done.returncode in {0, 1}, done.stderr
    found: Json = json.loads((directory / "capacity.json").read_text())
    assert json.loads(done.stdout) == found
    for probe in found["probes"]:
        assert (Path(probe["directory"]) / "summary.json").exists()
    world.assert_nothing_left(name)
    return done.returncode, found


def test_what_holds_is_the_most_that_was_asked(world: World) -> None:
    code, found = searched(world, "holds")
    verdicts = {probe["nodes"]: probe["verdict"] for probe in found["probes"]}
    if set(verdicts.values()) == {"pass"}:
        assert (code, found["held"], found["broke"]) == (0, 6, None)
        assert list(verdicts) == [3, 6]
    else:  # on a machine that stood still meanwhile, and the run knows it
        assert "invalid" in verdicts.values()


def test_nothing_holds_what_cannot_be_kept(world: World, tmp_path: Path) -> None:
    slo = tmp_path / "never.yaml"
    slo.write_text(NEVER)
    code, found = searched(world, "never", f"--slo={slo}")
    assert (code, found["held"], found["broke"]) == (1, 0, 1)
    assert [probe["nodes"] for probe in found["probes"]] == [3, 1]
    for probe in found["probes"]:
        assert probe["verdict"] in {"fail", "invalid"}
        assert probe["nearest"] == "TimeToNodesReady"
        assert probe["share"] > 1
    if found["probes"][-1]["verdict"] == "fail":
        assert "TimeToNodesReady" in found["what_broke"]
