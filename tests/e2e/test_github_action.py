"""`action.yml`: its steps as GitHub's runner would run them, but for those that are actions."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from junitparser import JUnitXml
from support.summary_schema import read_summary

from e2e.e2e_world import DEDICATED, WAIT_MAX_S, Json, World
from e2e.lateness import assert_done

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
ACTION: Json = yaml.safe_load((ROOT / "action.yml").read_text())
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


class Runner:
    """Keeps what steps write, and fills in `${{ inputs.NAME }}`."""

    def __init__(self, world: World, root: Path, **inputs: str) -> None:
        self._world = world
        self.root = root
        known = ACTION["inputs"]
        defaults = {name: each["default"] for name, each in known.items() if "default" in each}
        self._inputs = defaults | inputs
        assert self._inputs.keys() == known.keys()

    def run(self, name: str) -> tuple[int, dict[str, str], str]:
        """Run the step of a name; return its code, its outputs and its part of the summary."""
        [step] = [each for each in ACTION["runs"]["steps"] if each.get("name") == name]
        outputs, told = self.root / "outputs", self.root / "told"
        for each in (outputs, told):
            each.write_text("")
        done = subprocess.run(
            (*SHELL, step["run"]),
            cwd=self.root,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(told),
                "GITHUB_ACTION_PATH": str(ROOT),
                "RUNNER_OS": "Linux",
                "RUNNER_ARCH": "X64",
                **{key: self._filled(each) for key, each in step.get("env", {}).items()},
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_MAX_S,
            check=False,
        )
        written = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        return done.returncode, written, told.read_text() + done.stderr

    def _filled(self, text: str) -> str:
        return re.sub(r"\${{ inputs\.([\w-]+) }}", lambda found: self._inputs[found[1]], text)


def test_the_action_runs_fleet_and_reports(world: World, tmp_path: Path) -> None:
    named = f"--kubeconfig={world.info.kubeconfig} {' '.join(DEDICATED)}"
    args = f"spawn --nodes=2 --name-prefix=action --fidelity=light {named} -- sh -c 'exit 7'"
    runner = Runner(world, tmp_path, args=args)
    code, outputs, _ = runner.run("Name the control plane")
    assert code == 0
    assert re.fullmatch(r"fleet-Linux-X64-v1\.\d+\.\d+-[0-9a-f]{16}", outputs["key"])
    code, _, told = runner.run("Run fleet")
    summary = read_summary(tmp_path / "fleet-results/summary.json")
    # The code of the command, whose quotes were kept.
    assert_done(code, json.dumps(summary), told, expected=7)
    code, outputs, told = runner.run("Report")
    assert code == 0, told
    assert outputs == {"verdict": summary["verdict"]}
    assert told.startswith("## ")
    assert len(JUnitXml.fromstring((tmp_path / "fleet-results/junit.xml").read_bytes())) == 1
    world.assert_nothing_left("action")


def test_a_run_that_could_not_start_has_no_report(world: World, tmp_path: Path) -> None:
    runner = Runner(world, tmp_path, args="run no-such-scenario")
    code, _, told = runner.run("Run fleet")
    assert (code, "no-such-scenario" in told) == (2, True)
    assert runner.run("Report") == (0, {}, "")


def test_every_input_is_used() -> None:
    text = json.dumps(ACTION["runs"])
    assert all(f"inputs.{name}" in text for name in ACTION["inputs"])
