"""The files of one run: lines of the time series, the summary at the end, and both read.

    WRITES --the disk is full--> PAUSED --there is room again--> WRITES

A line is written whole or not at all. The first that did not fit is kept; the next one after it
covers the whole pause, so no count is lost. Lines come a second apart at first; later on each
covers a share of the run, one in `FINE_S`. So a run of eight hours writes less than four times as
much as one of half an hour.

A record may come from another machine, another version or another person: its texts are escaped
where they are shown, and what is shown as a number is one, or the record is refused in one line.
Keys that this version does not know stay as they are.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, TypeVar, cast

import msgspec
import orjson

from fleet.cluster.kept_records import packed
from fleet.errors import SetupError, UsageError
from fleet.report import report
from fleet.report.control_plane import FINE_S, Samples
from fleet.report.figure import Json
from fleet.report.record import Record, dump, load, merged_lines
from fleet.report.service_levels import STEADY

T = TypeVar("T")
RUNS_DIRECTORY = Path("runs")
SUMMARY = "summary.json"
TIMESERIES = "timeseries.jsonl"
CONTROLPLANE = "controlplane.jsonl"
HISTOGRAMS = "histograms.json"
RUN = "run.json"
RECORD = "record.msgpack"
"""What adds up with the records of the other processes of the run, see record.py."""
MERGED = "merged"
"""In `RUN`: the directories that a merged run was made of."""


def refuse_foreign(path: Path) -> None:
    """Raise UsageError for a symbolic link, and for a directory of another user than root.

    Its owner could put links in place of the files that fleet writes, and answer for its fleet.
    """
    try:
        found = path.lstat()
    except OSError:  # the next write or read there says it
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
    """Return the path, or a numbered one next to it: a run with a fixed name is started again."""
    candidates = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in chain((path,), candidates) if not _holds_run(each))


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all, and return where it is. Raises SetupError."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise SetupError(f"{path}: {error.strerror or error}") from error
    return path


class LineFile:
    """A file of lines, each there whole or not at all."""

    def __init__(self, path: Path) -> None:
        # Without a buffer: a reader who follows the file sees whole lines, and a crash loses none.
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
        self._file.close()


class RunDirectory:
    """See the top of this file."""

    def __init__(self, run_id: str, path: Path | None = None, *, is_merged: bool = False) -> None:
        """Make the directory of a run. One that `is_merged` is written over by the next merge."""
        self.path = path if path is not None else _free_directory(RUNS_DIRECTORY / run_id)
        refuse_foreign(self.path)
        if _holds_run(self.path) and not (is_merged and MERGED in _json(self.path / RUN)):
            flag = "--out" if is_merged else "--run-dir"
            raise UsageError(f"{flag} {self.path} already holds a run; name another directory")
        self._made = [each for each in (self.path, *self.path.parents) if not each.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_foreign(self.path)  # somebody may have been faster
            self._file = LineFile(self.path / TIMESERIES)
        except OSError as error:
            self._remove()
            raise SetupError(f"run directory {self.path}: {error.strerror}") from error
        self._before = report.Totals()
        self._unwritten = b""  # the line that did not fit
        self._controlplane: LineFile | None = None

    def sample(self, figures: report.RunFigures) -> str:
        """Append a line if one is due: the counters as rates since the last one.

        Return the beginning and the end of a pause, in words, "" otherwise.
        """
        was_paused = bool(self._unwritten)
        if was_paused and (problem := self._append()):
            return ""
        elapsed_s = figures.wall_s - self._before.wall_s
        if elapsed_s > max(0.0, figures.wall_s / FINE_S - 0.5):  # to the nearest second
            line = report.rates(figures, self._before, elapsed_s)
            self._before.wall_s = figures.wall_s
            self._unwritten = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
            if problem := self._append():
                path = self.path / TIMESERIES
                return "" if was_paused else f"the time series pauses: {path}: {problem}"
        return "the time series goes on" if was_paused else ""

    def add(self, line: Json) -> None:
        """Append a line of a time series that was made already. Raises SetupError."""
        if problem := self._file.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)):
            raise SetupError(f"{self.path / TIMESERIES}: {problem}")

    def _append(self) -> str:
        """Write the line that is due, whole; return why that was not possible."""
        problem = self._file.append(self._unwritten)
        if not problem:
            self._unwritten = b""
        return problem

    def keep_control_plane(self, line: bytes) -> bool:
        """Append a line of the control plane's metrics; return whether there was room for it."""
        try:
            self._controlplane = self._controlplane or LineFile(self.path / CONTROLPLANE)
        except OSError:
            return False
        return not self._controlplane.append(line)

    def describe(self, about: Json) -> None:
        """Write what the run is: options, versions, machine. A full disk is reported later."""
        with contextlib.suppress(SetupError):
            write_whole(self.path / RUN, orjson.dumps(about, option=orjson.OPT_INDENT_2) + b"\n")

    def finish(self, figures: report.RunFigures) -> Json:
        """Write the summary, whole or not at all, and return it. Raises SetupError."""
        self.close()
        content = report.summary(figures)
        write_whole(self.path / SUMMARY, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
        with contextlib.suppress(SetupError):  # the report has one plot less
            write_whole(self.path / HISTOGRAMS, orjson.dumps(report.histograms(figures)))
        return content

    def keep(self, record: Record) -> None:
        """Write the record of this process, whole or not at all. Raises SetupError."""
        write_whole(self.path / RECORD, dump(record))

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
        self._file.close()
        if self._controlplane is not None:
            self._controlplane.close()


Number = int | float  # in this order: a count stays one
Shares = dict[str, Number | None]


class Request(msgspec.Struct):
    """A kind of request, as the summary has it."""

    verb: str
    resource: str
    code: int
    count: Number
    ms: Shares


class _Expectation(msgspec.Struct):
    name: str
    met: bool | None
    detail: str


class _Summary(msgspec.Struct):
    schema_version: Literal[1] = 1
    verdict: report.Outcome = report.Outcome.INCOMPLETE
    valid: bool = False
    invalid_reasons: list[str] = []
    verdict_reasons: list[str] = []
    expectations: list[_Expectation] = []
    slis: list[report.ServiceLevel] = []
    phases: list[report.Phase] = []
    requests: list[Request] = []
    shards: list[report.ShardFigures] = []
    slowest_shard: str = ""


class _About(msgspec.Struct):
    machine: Json = {}
    options: Json = {}


class _Line(msgspec.Struct):
    wall_s: Number
    nodes: dict[str, Number | None] | None = None
    lease: dict[str, Shares | Number | None] | None = None
    pods: dict[str, Shares | Number | None] | None = None
    process: dict[str, Shares | Number | None] | None = None
    requests: list[Request] | None = None
    requests_total: Number = 0


def _checked(kind: type[T], content: object, path: Path) -> T:
    """Return the keys of a file that reports read. Raises UsageError."""
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: is not as fleet writes it: {error}") from error


Buckets = dict[str, dict[int, int]]
KILLED = "the run left no summary: it was killed, or it is still going on"


@dataclass(slots=True)
class RunRecord:
    """One run. What a run that was killed did not write is empty."""

    path: Path
    summary: Json
    about: Json
    """Options, versions and machine."""
    lines: list[Json]
    """Of the time series."""
    samples: Samples
    histograms: Buckets = field(default_factory=dict)
    """Microseconds (the lower end of each bucket) and counts, by figure."""
    levels: list[report.ServiceLevel] = field(default_factory=list)
    phases: list[report.Phase] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Of the summary."""

    @property
    def name(self) -> str:
        """The run's id."""
        return str(self.summary.get("run_id") or self.path.name)

    @property
    def title(self) -> str:
        """Return what the user calls it, else `fleet run` and its id."""
        options = cast("Json", self.about.get("options") or {})
        return str(options.get("title") or f"fleet run {self.name}")

    @property
    def verdict(self) -> report.Outcome:
        """Return what the run was worth when it ended."""
        return report.Outcome(str(self.summary.get("verdict", report.Outcome.INCOMPLETE)))

    @property
    def reasons(self) -> list[str]:
        """Return why that is the verdict."""
        found = self.get("verdict_reasons") or self.get("invalid_reasons")
        return list(map(str, found)) if isinstance(found, list) else []

    def get(self, path: str) -> object:
        """Return a value of the summary, None if it has none: `nodes.ready`."""
        at: object = self.summary
        for key in path.split("."):
            at = at.get(key) if isinstance(at, dict) else None
        return at

    def number(self, path: str) -> float | None:
        found = self.get(path)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        return float(cast("float", found)) if is_number else None

    def rows(self, path: str) -> list[Json]:
        found = self.get(path)
        return cast("list[Json]", found) if isinstance(found, list) else []

    @property
    def wall_s(self) -> float:
        last = cast("float", self.lines[-1]["wall_s"]) if self.lines else 0.0
        return self.number("wall_s") or last

    @property
    def steady(self) -> report.Phase | None:
        """Return when all nodes were Ready: the first such part of a dashboard's run."""
        return next((each for each in self.phases if each.name == STEADY), None)


def read_run(path: Path) -> RunRecord:
    """Read a run directory. Raises UsageError in one line if it holds no run."""
    refuse_foreign(path)
    try:
        if not _holds_run(path):
            raise UsageError(f"{path} holds no run: neither {SUMMARY} nor {TIMESERIES} is in it")
        lines = list(_lines(path / TIMESERIES))
        if len(records := read_records(path)) > 1 and path in records:
            lines = lines_of(records)
        told = _json(path / SUMMARY) or _of_killed(lines)
        try:
            samples = Samples.read(_raw_lines(path / CONTROLPLANE))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UsageError(f"{path / CONTROLPLANE}: is not as fleet writes it") from error
        found, about = _checked(_Summary, told, path / SUMMARY), _json(path / RUN)
        _checked(_About, about, path / RUN)
        buckets = _checked(Buckets, _json(path / HISTOGRAMS), path / HISTOGRAMS)
        of_summary = (found.slis, found.phases, found.requests)
        return RunRecord(path, told, about, lines, samples, buckets, *of_summary)
    except OSError as error:
        raise UsageError(f"{error.filename or path}: {error.strerror or error}") from error


def read_records(path: Path) -> dict[Path, Record]:
    """Return the records of all processes of a run directory, by where each is.

    Raises UsageError for what is no record.
    """
    found = {}
    for file in (path / RECORD, *sorted(path.glob(f"process-*/*/{RECORD}"))):
        refuse_foreign(file.parent)
        if file.exists():
            try:
                found[file.parent] = load(file.read_bytes())
            except ValueError as error:
                raise UsageError(f"{file}: {error}") from error
    return found


def bundle(path: Path, record: Record, bytes_max: int) -> dict[str, bytes]:
    """Return the compressed files of a process that others need, with no more bytes than that.

    Time series and samples are there once the process has ended; they are thinned until they fit.
    """
    files = {RECORD: packed(dump(record))}
    room = (bytes_max - len(files[RECORD])) // 2
    if record.is_over and room > 0:
        lines = list(_raw_lines(path / TIMESERIES))
        files[TIMESERIES] = _fitting(lambda step: lines[::step], room)
        samples = Samples.read(_raw_lines(path / CONTROLPLANE))
        files[CONTROLPLANE] = _fitting(samples.lines, room)
    return files


def _fitting(lines: Callable[[int], Iterable[bytes]], bytes_max: int) -> bytes:
    """Return every so many lines, compressed; none of them if not even the first ones fit."""
    step, before = 1, b""
    while (content := b"".join(lines(step))) != before:  # it is when only the first ones are left
        if len(found := packed(content)) <= bytes_max:
            return found
        step, before = step * 2, content
    return packed(b"")


def lines_of(records: Mapping[Path, Record]) -> list[Json]:
    """Return the time series of several processes as one; seconds count from the first of them."""
    parts = [(each.began_s, list(_lines(at / TIMESERIES))) for at, each in records.items()]
    return merged_lines(parts)


def _of_killed(lines: Sequence[Json]) -> Json:
    """Return what the time series has of a run that could not write its summary."""
    found: Json = {"verdict": "incomplete", "valid": False, "invalid_reasons": [KILLED]}
    if not lines:
        return found

    ends_s = [cast("float", line["wall_s"]) for line in lines]
    lasted_s = [end_s - before_s for before_s, end_s in pairwise((0.0, *ends_s))]

    def total(part: str, name: str) -> float:
        rates = (cast("Json", line.get(part) or {}).get(name) for line in lines)
        return summed(rates)

    def summed(rates: Iterable[object]) -> float:
        return sum(cast("float", rate or 0) * s for rate, s in zip(rates, lasted_s, strict=True))

    last = lines[-1]
    return found | {
        "wall_s": last["wall_s"],
        "nodes": last.get("nodes"),
        "lease": {"missed": round(total("lease", "missed"))},
        "pods": {name: round(total("pods", name)) for name in ("started", "deleted", "failed")},
        "requests_total": round(summed(line.get("requests_total") for line in lines)),
        "process": {
            "cpu_s": round(total("process", "cpu_s"), 3),
            "rss_bytes": cast("Json", last.get("process") or {}).get("rss_bytes"),
        },
    }


def _json(path: Path) -> Json:
    if not path.exists():
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: no JSON object")
    return found


def _raw_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file


def _lines(path: Path) -> Iterator[Json]:
    for line in _raw_lines(path):
        try:
            content = orjson.loads(line)
        except orjson.JSONDecodeError:  # cut off by a crash
            return
        _checked(_Line, content, path)
        yield content
