"""`fleet report --merge`: one summary, one page and one verdict of all shards of a run."""

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from fleet.errors import Exit, UsageError
from fleet.report import run_directory
from fleet.report.figure import Json
from fleet.report.html_report import write_report
from fleet.report.record import Record, judged, leader_of
from fleet.report.report import RunFigures
from fleet.report.report_command import one_run
from fleet.report.summary_text import summary_text


def find_records(paths: Sequence[Path]) -> dict[Path, Record]:
    """Return the records in run directories, and in what they hold, by where each is.

    A directory may be that of a run, or hold those of several shards. Raises UsageError if there is
    none, or if they are of several runs.
    """
    found: dict[tuple[int, float], tuple[Path, Record]] = {}
    for path in paths:
        records = run_directory.read_records(path)
        if not records and path.is_dir():
            for inside in sorted(each for each in path.iterdir() if each.is_dir()):
                records |= run_directory.read_records(inside)
        if not records:
            raise UsageError(
                f"{path} holds no {run_directory.RECORD}: name the run directory of a shard"
            )
        for at, record in records.items():  # one that is named twice counts once
            found.setdefault((record.shard, record.began_s), (at, record))
    runs = {record.figures.run_id: at for at, record in found.values()}
    if len(runs) > 1:
        words = ", ".join(f"{run} ({at})" for run, at in runs.items())
        raise UsageError(f"these are shards of several runs: {words}; give all shards one --run-id")
    return dict(found.values())


def merge_runs(
    records: Mapping[Path, Record],
    form: str | None,
    out: Path | None,
    title: str = "",
    *,
    has_page: bool = True,
) -> tuple[str, Exit]:
    """Write the directory of a whole run; return what to print, and the verdict's exit code."""
    figures = judged([*records.values()])
    directory = out or run_directory.RUNS_DIRECTORY / f"{figures.run_id}-merged"
    _write(directory, records, figures, title)
    run = run_directory.read_run(directory)
    report = str(write_report(run)) if has_page else ""
    code = figures.judgement().exit_code
    if form in {None, "html"}:
        return summary_text(figures, directory, (), report), code
    return one_run(run, form or "", None), code


def _write(
    directory: Path, records: Mapping[Path, Record], figures: RunFigures, title: str
) -> None:
    """Write summary, time series and samples as a run leaves them, over those of an earlier merge.

    Raises UsageError for a directory that holds anything else.
    """
    first = leader_of(records.values())
    leader = next(at for at, each in records.items() if each is first)
    options = dict(cast("Json", first.about.get("options") or {}))
    about = first.about | {"options": options | ({"title": title} if title else {})}
    made = run_directory.RunDirectory(figures.run_id, directory, is_merged=True)
    made.describe(about | {run_directory.MERGED: [str(at) for at in records]})
    for line in run_directory.lines_of({leader: first} | dict(records)):
        made.add(line)
    with contextlib.suppress(FileNotFoundError):  # nobody may have read the metrics
        shutil.copyfile(leader / run_directory.CONTROLPLANE, directory / run_directory.CONTROLPLANE)
    made.finish(figures)
