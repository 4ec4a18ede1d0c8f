"""The files of one run: a line a second for the time series, and the summary at the end.

    WRITES --the disk is full--> PAUSED --there is room again--> WRITES

A line is written whole or not at all. The first that did not fit is kept; the next one after it
covers the whole pause, so no count is lost.
"""

import contextlib
import itertools
import os
import stat
from itertools import chain
from pathlib import Path

import orjson

from fleet.errors import SetupError, UsageError
from fleet.report.figure import Json
from fleet.report.report import RunFigures, Totals, dump, histograms, rates, summary

RUNS_DIRECTORY = Path("runs")
SUMMARY = "summary.json"
TIMESERIES = "timeseries.jsonl"
CONTROLPLANE = "controlplane.jsonl"
HISTOGRAMS = "histograms.json"
RUN = "run.json"
FIGURES = ".figures.json"
"""The figures with their histograms, for the process that started this one."""


def refuse_foreign(path: Path) -> None:
    """Raise UsageError for a symbolic link, and for a directory of another user than root.

    Its owner could put links in place of the files that fleet writes, and answer for its fleet.
    """
    try:
        found = path.lstat()
    except OSError:  # whoever writes or reads there says it
        return
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(f"run directory {path} is a symbolic link; name the directory itself")
    if found.st_uid not in {os.geteuid(), 0}:
        raise UsageError(
            f"run directory {path} belongs to user {found.st_uid}; name one of your own, or copy it"
        )


def _holds_run(path: Path) -> bool:
    return (path / SUMMARY).exists() or (path / TIMESERIES).exists()


def _free_directory(path: Path) -> Path:
    """Return the path, or a numbered one beside it: a run with a fixed name is started again."""
    candidates = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in chain((path,), candidates) if not _holds_run(each))


class LineFile:
    """A file of lines, each there whole or not at all."""

    def __init__(self, path: Path) -> None:
        # Without a buffer: whoever follows the file sees whole lines, and a crash loses none.
        self._file = path.open("wb", buffering=0)
        self._bytes = 0  # of whole lines

    def append(self, line: bytes) -> str:
        """Write a line, whole; return why that was not possible, "" if it was."""
        try:
            size = self._file.write(line)
            if size == len(line):
                self._bytes += size
                return ""
            problem = "only a part of a line fitted"
        except OSError as error:
            problem = error.strerror or str(error)
        with contextlib.suppress(OSError):
            self._file.truncate(self._bytes)
            self._file.seek(self._bytes)
        return problem

    def close(self) -> None:
        """Close it."""
        self._file.close()


class RunDirectory:
    """See the top of this file."""

    def __init__(self, run_id: str, path: Path | None = None) -> None:
        self.path = path if path is not None else _free_directory(RUNS_DIRECTORY / run_id)
        refuse_foreign(self.path)
        if _holds_run(self.path):
            raise UsageError(f"--run-dir {self.path} already holds a run; name another directory")
        self._made = [each for each in (self.path, *self.path.parents) if not each.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_foreign(self.path)  # somebody may have been faster
            self._file = LineFile(self.path / TIMESERIES)
        except OSError as error:
            self._remove()
            raise SetupError(f"run directory {self.path}: {error.strerror}") from error
        self._before = Totals()
        self._unwritten = b""  # the line that did not fit
        self._controlplane: LineFile | None = None

    def sample(self, figures: RunFigures) -> str:
        """Append one line: the counters as rates since the last one. Return what is worth telling.

        That is the beginning and the end of a pause, "" otherwise.
        """
        was_paused = bool(self._unwritten)
        if was_paused and (problem := self._append()):
            return ""
        elapsed_s = figures.wall_s - self._before.wall_s
        if elapsed_s > 0:
            line = rates(figures, self._before, elapsed_s)
            self._before.wall_s = figures.wall_s
            self._unwritten = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
            if problem := self._append():
                path = self.path / TIMESERIES
                return "" if was_paused else f"the time series pauses: {path}: {problem}"
        return "the time series goes on" if was_paused else ""

    def _append(self) -> str:
        """Write the line that is due, whole; return why that was not possible."""
        problem = self._file.append(self._unwritten)
        if not problem:
            self._unwritten = b""
        return problem

    def keep_control_plane(self, line: bytes) -> bool:
        """Append a line of what the control plane told; return whether there was room for it."""
        try:
            self._controlplane = self._controlplane or LineFile(self.path / CONTROLPLANE)
        except OSError:
            return False
        return not self._controlplane.append(line)

    def describe(self, about: Json) -> None:
        """Write what the run is: options, versions, machine. A full disk is told later."""
        with contextlib.suppress(SetupError):
            self._write(RUN, orjson.dumps(about, option=orjson.OPT_INDENT_2) + b"\n")

    def finish(self, figures: RunFigures) -> Json:
        """Write the summary, whole or not at all, and return it. Raises SetupError."""
        self.close()
        content = summary(figures)
        self._write(SUMMARY, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
        with contextlib.suppress(SetupError):  # the report has one plot less
            self._write(HISTOGRAMS, orjson.dumps(histograms(figures)))
        return content

    def keep_figures(self, figures: RunFigures) -> None:
        """Write the figures for the process that sums several up. Raises SetupError."""
        self._write(FIGURES, dump(figures))

    def _write(self, name: str, content: bytes) -> None:
        partial = self.path / f".{name}.part"
        try:
            partial.write_bytes(content)
            partial.replace(self.path / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise SetupError(f"{self.path / name}: {error.strerror or error}") from error

    def discard(self) -> None:
        """Remove what a run that was refused has written: nothing was measured."""
        self.close()
        for name in (TIMESERIES, CONTROLPLANE, RUN):
            (self.path / name).unlink(missing_ok=True)
        self._remove()

    def _remove(self) -> None:
        """Remove the directories that we made."""
        for directory in self._made:
            with contextlib.suppress(OSError):  # somebody else has put something there
                directory.rmdir()

    def close(self) -> None:
        """Close the time series."""
        self._file.close()
        if self._controlplane is not None:
            self._controlplane.close()
