"""A run whose disk is full goes on, tells so once, and prints what it cannot keep."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.full_disk import FullDisk, small_file_system

from e2e.e2e_world import WAIT_MAX_S, World, eventually

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "full"
PAUSED = "the time series pauses: "
LIMITED = ("sh", "-c", 'ulimit -f 2; exec "$@"', "sh")
"""Files of a KiB at most: what a machine allows on which nothing may be mounted."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullDisk | None]:
    with small_file_system(tmp_path / "small") as small:
        yield small


def test_a_full_disk_ends_no_run_and_its_summary_is_printed(
    world: World, tmp_path: Path, disk: FullDisk | None
) -> None:
    run_directory = (disk.path if disk is not None else tmp_path) / "run"
    log = tmp_path / "log"
    command = (
        *(LIMITED if disk is None else ()),
        *(sys.executable, "-m", "fleet.cli", "spawn", "--nodes=3", f"--name-prefix={PREFIX}"),
        *(f"--run-dir={run_directory}", "--output=json", world.quick()),
    )
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, cwd=world.root, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            if disk is not None:
                eventually(lambda: "all 3 nodes are Ready" in log.read_text(), "nodes are Ready")
                disk.fill()
            eventually(lambda: PAUSED in log.read_text(), "the time series pauses")
            if disk is not None:
                disk.empty()
                eventually(lambda: "the time series goes on" in log.read_text(), "it goes on")
                disk.fill()
                eventually(lambda: log.read_text().count(PAUSED) >= 2, "it pauses again")
            eventually(lambda: len(world.nodes(PREFIX)) == 3, "its nodes are there")
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=2 * WAIT_MAX_S)
        finally:
            process.kill()
    said = log.read_text()
    assert process.returncode == 3, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"fleet: the summary is not kept: {run_directory}/")
    assert json.loads(printed)["nodes"]["requested"] == 3
    assert not (run_directory / "summary.json").exists()
    world.assert_nothing_left(PREFIX)
