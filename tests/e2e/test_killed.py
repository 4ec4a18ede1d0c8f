"""A test run that is killed with SIGKILL, of which nothing may stay."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import guard, markdown
from support.guard import MARK, marked_processes

from e2e.e2e_world import eventually
from fleet.controlplane.options import COMPONENTS

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

SLEEPS = """
import pathlib, subprocess, time
pytest_plugins = ("e2e.e2e_fixtures",)

def test_something(environment):
    subprocess.Popen(("sleep", "600"), start_new_session=True)
    pathlib.Path("has_begun").touch()
    time.sleep(600)
"""
SPAWNS = """
import pathlib, signal, time
from e2e.forking_proxy import forking_proxy
pytest_plugins = ("e2e.e2e_fixtures",)

def test_something(world):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stuck, for xdist's own farewell
    with world.spawn("orphan", 2) as run, forking_proxy(world.info.ports["kube-apiserver"]):
        run.until_ready()
        pathlib.Path("has_begun").touch()
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("script", "workers", "programs"),
    [
        pytest.param(SLEEPS, 0, {"sleep 600"}, id="alone"),
        pytest.param(
            SPAWNS,
            1,
            {"fleet spawn", "forking_proxy.py", "controlplane.standing", *COMPONENTS},
            id="worker",
            marks=pytest.mark.slow,  # a session of its own, with a control plane
        ),
    ],
)
def test_a_killed_run_leaves_no_process(
    script: str, workers: int, programs: set[str], tmp_path: Path
) -> None:
    mark = str(tmp_path)
    (tmp_path / "test_it.py").write_text(script)
    command = (
        *(sys.executable, "-m", "pytest", f"--config-file={markdown.ROOT / 'pyproject.toml'}"),
        *("-p", "no:cacheprovider", f"--numprocesses={workers}"),
        *(f"--basetemp={tmp_path / 'base'}", "test_it.py"),
    )
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)

    def has_begun() -> bool:
        assert run.poll() is None, (tmp_path / "log").read_text()
        return (tmp_path / "has_begun").exists()

    try:
        eventually(has_begun, "the test has begun")
        left = [*marked_processes(mark), *psutil.Process(run.pid).children(recursive=True)]
        commands = "\n".join(" ".join(each.cmdline()) for each in left)
        assert not {each for each in programs if each not in commands}, commands
    finally:
        run.kill()  # not its group
        run.wait()
    eventually(
        lambda: not any(map(psutil.Process.is_running, left)) and not marked_processes(mark),
        "its processes have ended, the workers and the guard too",
    )


def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    """What the benches and the conformance tests begin with: guard.py COMMAND."""
    script = "setsid sleep 600 & touch has_begun; wait"
    run = subprocess.Popen((sys.executable, guard.__file__, "sh", "-c", script), cwd=tmp_path)
    try:
        eventually((tmp_path / "has_begun").exists, "the command has begun")
        left = psutil.Process(run.pid).children(recursive=True)
        [sleep] = [each for each in left if each.name() == "sleep"]
        assert sleep.environ()[MARK] != os.environ[MARK]
    finally:
        run.kill()
        run.wait()
    eventually(lambda: not any(map(psutil.Process.is_running, left)), "gone")
