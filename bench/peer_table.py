"""The table of `make bench-peers`: medians, ranges, and what a small column would be if it grew."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .inside import Json

DEPLOYMENT, OUTAGE = "deployment", "outage"
"""The parts of a run that may be left out, or lack if a tool ends by itself."""
OUTAGE_FROM = "outage_from_s"
"""When the outage began by the clock of fleet's run."""
READ_SLOWLY, LAGGED = "fleet read too slowly", "fleet itself lagged"
"""How reasons of fleet's summary begin that an outage may bring. Source: fleet/report/report.py."""
LAG_LIMIT_MS = 100.0
"""Of a run's timers, p99. Source: fleet/report/report.py."""
SAME = ("machine", "nodes", "replicas")
"""What reports must agree in to be one table."""
ENDED, UNSOUND = "ended", "unsound"
"""What a run has of parts that lack figures, and the reason of each; one word of a cell."""
Rounds = dict[str, list[Json]]


class Row(NamedTuple):
    """A figure of each run."""

    key: str
    label: str
    unit: str
    part: str = ""
    grows: bool = False
    """Whether it grows with the number of nodes, so that it can be extrapolated."""


ROWS = (
    Row("ready_s", "all Ready and without the not-ready taint", "s"),
    Row("lost", "nodes that turned NotReady on the way", ""),
    Row("refused", "requests refused (429) until then, of all clients", ""),
    Row("settled_s", "all watches of nodes open", "s"),
    Row("node_requests", "requests of a node until then", ""),
    Row("tool_cpu_s", "CPU of the tool until all are Ready", "s", grows=True),
    Row("plane_cpu_s", "CPU of the control plane until then", "s"),
    Row("idle_percent", "idle CPU of the tool", "% of a core", grows=True),
    Row("idle_apiserver_percent", "CPU of the API server meanwhile", "% of a core"),
    Row("rss_mb", "memory of the tool", "MB", grows=True),
    Row("pods_running_s", "bound pods all Running", "s"),
    Row("pods_gone_s", "all gone", "s"),
    Row("deployment_running_s", "pods of a Deployment all Running", "s", DEPLOYMENT),
    Row("deployment_gone_s", "all gone", "s", DEPLOYMENT),
    Row("outage_renewed_s", "Leases all renewed after an outage of 45 s", "s", OUTAGE),
    Row("outage_lost", "nodes NotReady from the outage on", "", OUTAGE),
    Row("outage_back_s", "all back after the API server was", "s", OUTAGE),
    Row("outage_cpu_s", "CPU of the tool in the 30 s after", "s", OUTAGE, grows=True),
)


class DifferentReportsError(Exception):
    """Why reports are no one table."""


class Column(NamedTuple):
    """The runs of one tool."""

    tool: str
    runs: Sequence[Json]
    nodes: int
    table_nodes: int

    @property
    def is_small(self) -> bool:
        """Whether it has fewer nodes than the table, so that most figures compare with none."""
        return self.nodes != self.table_nodes

    @property
    def sound(self) -> list[Json]:
        """The runs that are measurements."""
        return [run for run in self.runs if "problem" not in run]

    def title(self) -> str:
        """Return the header."""
        return f"{self.tool}, {self.nodes:,} nodes" if self.is_small else self.tool

    def soundness(self) -> str:
        """Say how many runs were sound, and what was wrong with the others."""
        reasons = [run["problem"] for run in self.runs if "problem" in run]
        for run in self.sound:
            for word in (ENDED, UNSOUND):
                reasons += [f"no {part}: {why}" for part, why in run.get(word, {}).items()]
        text = "; ".join(dict.fromkeys(reasons)).replace("|", "/")
        return f"{len(self.sound)} of {len(self.runs)}" + (f": {text}" if text else "")

    def known(self, row: Row) -> list[float]:
        """Return the figures of a row; what took too long is none."""
        return [run[row.key] for run in self.sound if run.get(row.key) is not None]

    def late(self, row: Row) -> int:
        """Count the runs in which what a row tells did not happen in time."""
        return sum(row.key in run and run[row.key] is None for run in self.sound)

    def lacking(self, row: Row, word: str) -> int:
        """Count the runs in which the tool had ended, or the part of the row was unsound."""
        return sum(row.part in run.get(word, ()) for run in self.sound)

    def has(self, row: Row) -> bool:
        """Whether a row was asked for."""
        is_there = any(row.key in run for run in self.sound)
        return is_there or any(self.lacking(row, word) for word in (ENDED, UNSOUND))

    def cell(self, row: Row, base: float | None) -> str:
        """Return the median and range of a row, its ratio to `base`, and what has no figure."""
        values = self.known(row)
        lacking = [(self.late(row), "not in time")]
        lacking += [(self.lacking(row, word), word) for word in (ENDED, UNSOUND)]
        if not values:
            return ", ".join(word for count, word in lacking if count) or "-"
        middle = statistics.median(values)
        digits = ",.1f" if row.unit else ",g"
        text = f"{middle:{digits}} {row.unit}".strip()
        if len(values) > 1:
            text += f" ({min(values):{digits}} to {max(values):{digits}})"
        if base:
            text += f", {middle / base:.2f}"
        if row.grows and self.is_small:
            factor = self.table_nodes / self.nodes
            grown = f"{middle * factor:,.1f} {row.unit}"
            text += f", x{factor:,.4g} = {grown} extrapolated"
        return text + "".join(f", {count} {word}" for count, word in lacking if count)


def table(rounds: Mapping[str, Sequence[Json]], nodes: int) -> str:
    """Return medians, ranges and what they are to the first column's, as a Markdown table.

    A column with nodes of its own has no ratios; what grows with nodes is extrapolated there, and
    says so.
    """
    columns = [
        Column(tool, runs, runs[0].get("nodes", nodes) if runs else nodes, nodes)
        for tool, runs in rounds.items()
    ]
    lines = [
        f"| {nodes:,} nodes | " + " | ".join(column.title() for column in columns) + " |",
        "|---|" + "---|" * len(columns),
        "| sound runs | " + " | ".join(column.soundness() for column in columns) + " |",
    ]
    first = next((column for column in columns if not column.is_small), None)
    for row in ROWS:
        if row.part and not any(column.has(row) for column in columns):
            continue
        known = first.known(row) if first else []
        base = statistics.median(known) if known else None
        cells = [
            column.cell(row, None if column is first or column.is_small else base)
            for column in columns
        ]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def is_sound(rounds: Mapping[str, Sequence[Json]]) -> bool:
    """Whether each run is a measurement, with all that was asked for."""
    words = {"problem", ENDED, UNSOUND}
    return not any(words & run.keys() for runs in rounds.values() for run in runs)


def judged(run: Json, reasons: Sequence[str], samples: Sequence[Json]) -> Json:
    """Take from a run of fleet what was no measurement by its own summary, for `reasons`.

    If all that was wrong is that fleet read too slowly or lagged, and until the outage it had not,
    only the outage has no figures. `samples` is the run's time series, one a second.
    """
    if not reasons:
        return run
    text = "; ".join(reasons)
    before = [each for each in samples if each["wall_s"] <= run.get(OUTAGE_FROM, float("inf"))]
    may_be_of_outage = all(reason.startswith((READ_SLOWLY, LAGGED)) for reason in reasons)
    if not may_be_of_outage or not _was_sound(before):
        return {"nodes": run["nodes"], "problem": text}
    lost = {row.key for row in ROWS if row.part == OUTAGE}
    kept = {key: value for key, value in run.items() if key not in lost}
    return {**kept, UNSOUND: {**run.get(UNSOUND, {}), OUTAGE: text}}


def settled(summary: Json, samples: Sequence[Json]) -> Json:
    """Return when all watches of fleet's nodes were open, and what a node had sent until then.

    `samples` is the run's time series, whose lines have rates since the line before.
    """
    settled_s = summary["nodes"]["time_to_settled_s"]
    if settled_s is None:  # nodes without watches of their own
        return {}
    sent, at_s = 0.0, 0.0
    for each in samples:
        if at_s >= settled_s:
            break
        sent += each["requests_total"] * (each["wall_s"] - at_s)
        at_s = each["wall_s"]
    return {"settled_s": settled_s, "node_requests": round(sent / summary["nodes"]["ready"], 1)}


def _was_sound(samples: Sequence[Json]) -> bool:
    """Whether fleet read in time and was on time, but for one second of a hundred."""
    lags_ms = [each["process"]["timer_lag_ms"]["p99"] or 0.0 for each in samples]
    late = sum(lag_ms > LAG_LIMIT_MS for lag_ms in lags_ms)
    return late <= len(samples) / 100 and not any(each["watch"]["closed_slow"] for each in samples)


def write(report: Json, path: Path) -> None:
    """Write a report as it is so far; an interruption leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(report, indent=2) + "\n")
    new.replace(path)


def read(paths: Sequence[Path]) -> Json:
    """Put reports together. Raises DifferentReportsError if they do not compare."""
    reports: list[Json] = [json.loads(path.read_bytes()) for path in paths]
    whole = {**reports[0], "rounds": {}}
    for path, report in zip(paths, reports, strict=True):
        for key in SAME:
            if report.get(key) != whole.get(key):
                ours, theirs = whole.get(key), report.get(key)
                raise DifferentReportsError(f"{path} has {key} {theirs}, {paths[0]} has {ours}")
        for tool, runs in report["rounds"].items():
            whole["rounds"].setdefault(tool, []).extend(runs)
    for tool, runs in whole["rounds"].items():
        if len(counts := {run.get("nodes", whole["nodes"]) for run in runs}) > 1:
            raise DifferentReportsError(f"{tool} had different numbers of nodes: {sorted(counts)}")
    return whole
