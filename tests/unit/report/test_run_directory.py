"""What a run does when its disk is full: on one that is, and where writing is not allowed."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from support.full_disk import FullDisk, file_size_limit, small_file_system

from fleet.errors import SetupError, UsageError
from fleet.report.display import Display
from fleet.report.figures import LeaseFigures
from fleet.report.report import RunFigures
from fleet.report.run_directory import SUMMARY, TIMESERIES, RunDirectory, read_run
from fleet.run.control_socket import ask

FLEET = (sys.executable, "-m", "fleet.cli")
FULL = Path("/dev/full")


@pytest.fixture(params=["file system", "limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    """Both ways; where no file system may be mounted, the limit stands for it."""
    if request.param == "file system":
        with small_file_system(tmp_path / "small") as small:
            if small is not None:
                yield small
                return
    with file_size_limit(tmp_path / "limited") as limited:
        yield limited


def at(second: int) -> RunFigures:
    lease = LeaseFigures(renewals=10 * second, missed=second)
    return RunFigures(run_id="r", lease=lease, wall_s=float(second))


def test_the_time_series_pauses_once_and_goes_on_without_losing_a_count(disk: FullDisk) -> None:
    directory = RunDirectory("r", disk.path / "run")
    assert directory.sample(at(1)) == ""
    disk.fill()
    paused = next(second for second in range(2, 100) if (told := directory.sample(at(second))))
    assert [directory.sample(at(paused + more)) for more in (1, 2, 3)] == [""] * 3
    disk.empty()
    assert directory.sample(at(paused + 4)) == "the time series goes on"
    assert directory.sample(at(paused + 5)) == ""
    directory.finish(at(paused + 5))
    path = disk.path / "run" / TIMESERIES
    assert told.startswith(f"the time series pauses: {path}: ")
    counts, before_s = [], 0.0
    for line in map(json.loads, path.read_text().splitlines()):
        counts.append(line["lease"]["renewals"] * (line["wall_s"] - before_s))
        before_s = line["wall_s"]
    assert counts == [*[10] * paused, 40, 10]  # the pause is one line


def test_a_long_run_writes_fewer_lines_that_count_as_much(tmp_path: Path) -> None:
    directory = RunDirectory("r", tmp_path / "run")
    for second in range(1, 7201):
        assert directory.sample(at(second)) == ""
    directory.close()
    run = read_run(tmp_path / "run")
    ends_s = [cast("float", line["wall_s"]) for line in run.lines]
    steps_s = [end_s - before_s for before_s, end_s in pairwise(ends_s)]
    assert ends_s[:2] == [1.0, 2.0]
    assert sorted(set(steps_s)) == [1.0, 2.0, 3.0, 4.0]
    assert steps_s == sorted(steps_s)
    assert len(ends_s) < 4_500
    assert run.number("lease.missed") == ends_s[-1] > 7_190


def test_a_summary_that_cannot_be_kept_leaves_no_part_of_it(disk: FullDisk) -> None:
    directory = RunDirectory("r", disk.path / "run")
    disk.fill()
    with pytest.raises(SetupError, match=rf"{SUMMARY}: "):
        directory.finish(at(1))
    assert [path.name for path in (disk.path / "run").iterdir()] == [TIMESERIES]


def test_a_run_directory_that_cannot_be_used_is_one_line_and_goes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(SetupError, match=r"^run directory .*/deep/run: No space left on device$"):
        RunDirectory("r", tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"), [(("profiles", "schema"), 3), (("spawn", "--nodes=0"), 2)]
)
@pytest.mark.parametrize("streams", ["stdout", "stderr", "both"])
def test_output_that_cannot_be_written_is_one_line_and_its_code(
    arguments: tuple[str, ...], code: int, streams: str
) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            (*FLEET, *arguments),
            stdout=subprocess.PIPE if streams == "stderr" else full,
            stderr=subprocess.PIPE if streams == "stdout" else full,
            text=True,
            check=False,
        )
    if streams == "stderr" and code == 3:
        code = 0  # nothing is said there
    assert done.returncode == code
    if streams == "stdout":
        [line] = done.stderr.splitlines()
        assert line.startswith("fleet: ")
        assert code == 2 or line.endswith("No space left on device")


def test_a_display_whose_log_is_full_goes_on() -> None:
    with FULL.open("w", buffering=1) as full:
        display = Display(stream=full)
        display.note("one")
        display.phase("running")
        assert not os.isatty(full.fileno())  # of a terminal it would draw a block
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_run_directory_that_is_a_link_or_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, link = tmp_path / "ours", tmp_path / "link"
    ours.mkdir()
    link.symlink_to(ours)
    with pytest.raises(UsageError, match="is a symbolic link"):
        RunDirectory("r", link)
    foreign = tmp_path / "foreign"
    RunDirectory("r", foreign).finish(at(1))
    RunDirectory("r", ours).finish(at(1))
    if os.geteuid() == 0:
        os.chown(foreign, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(UsageError, match="belongs to user"):
        RunDirectory("r", foreign)
    for path, why in ((foreign, "belongs to user"), (link, "is a symbolic link")):
        with pytest.raises(UsageError, match=why):
            read_run(path)
        with pytest.raises(UsageError, match=why):
            asyncio.run(ask(path, {}))
    if os.geteuid() == 0:
        assert read_run(ours).name == "r"
