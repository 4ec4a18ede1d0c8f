"""Two or more runs side by side: ratios, whether they can be compared, and a gate for CI.

Each figure says in which direction it is better. A run is worse than its baseline where a figure is
worse by more than the tolerance, and by more than what two runs of the same thing differ by anyway.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from fleet.report.run_record import RunRecord
from fleet.report.service_levels import WATCH_DELAY

SAME = ("server_version", "etcd_fsync", "fidelity", "identity", "encoding", "watches", "pace")
"""What must be equal; docs/explain/verdict.md says why."""
MACHINE = ("cpu", "cores", "memory")


class Compared(NamedTuple):
    """One figure of the summary. `least` is a difference that means nothing, in its unit."""

    path: str
    words: str
    unit: str
    better: Literal["less", "more", ""]
    least: float = 0.0


FIGURES = (
    Compared("nodes.ready", "nodes Ready", "", "more"),
    Compared("nodes.time_to_ready_s", "until all were Ready", "s", "less", 1.0),
    Compared("nodes.ever_not_ready", "nodes Ready, then not", "", "less"),
    Compared("lease.late_ms.p99", "lateness of Leases p99", "ms", "less", 20.0),
    Compared("lease.missed", "Leases missed", "", "less"),
    Compared("pods.started", "pods started", "", ""),
    Compared("pods.start_sli_ms.p99", "pod start p99, without simulated time", "ms", "less", 50.0),
    Compared("process.cpu_s", "CPU of fleet", "s", ""),
    Compared("process.cpu_us_per_request", "CPU a request", "us", "less", 20.0),
    Compared("process.rss_bytes_per_node", "memory a node", "bytes", "less", 4096.0),
    Compared("process.timer_lag_ms.p99", "timer lag p99", "ms", "", 10.0),
)
LEVEL_LEAST = {"s": 0.01, "nodes": 0.0}
WATCH_LEAST_S = 0.05
"""Its samples are few: a 99th percentile is nearly their maximum."""


class Row(NamedTuple):
    """One figure of all runs; ratios are to the first one."""

    words: str
    unit: str
    values: list[float | None]
    ratios: list[float | None]
    worse: list[bool]


class Comparison(NamedTuple):
    """What `fleet report A B` shows."""

    runs: Sequence[RunRecord]
    differences: list[str]
    """Why the runs cannot be compared; empty if they can."""
    rows: list[Row]
    tolerance: float

    @property
    def is_worse(self) -> bool:
        """Return whether any figure of any run is worse than the first one's."""
        return any(any(row.worse) for row in self.rows)


def compare(runs: Sequence[RunRecord], tolerance: float) -> Comparison:
    """Compare runs with the first of them. `tolerance` is a share: 0.1 is 10 %."""
    first = runs[0]
    rows = [_row(each, [run.number(each.path) for run in runs], tolerance) for each in FIGURES]
    for level in first.rows("slis"):
        name = str(level["sli"])
        if name in {"TimeToNodesReady", "FalseNotReadyNodes", "LeaseLateness"}:
            continue  # they are above
        least = WATCH_LEAST_S if name == WATCH_DELAY else LEVEL_LEAST["s"]
        figure = Compared("", f"{name} p{level['percentile']:g}", "s", "less", least)
        rows.append(_row(figure, [_level(run, name) for run in runs], tolerance))
    found = [row for row in rows if any(value is not None for value in row.values)]
    return Comparison(runs, _differences(runs), found, tolerance)


def _level(run: RunRecord, name: str) -> float | None:
    for level in run.rows("slis"):
        if level["sli"] == name and isinstance(level["measured"], int | float):
            return float(level["measured"])
    return None


def _row(figure: Compared, values: list[float | None], tolerance: float) -> Row:
    base = values[0]
    ratios = [value / base if base and value is not None else None for value in values]
    worse = [_is_worse(figure, base, value, tolerance) for value in values]
    return Row(figure.words, figure.unit, values, ratios, worse)


def _is_worse(figure: Compared, base: float | None, value: float | None, share: float) -> bool:
    if base is None or value is None or not figure.better:
        return False
    change = value - base if figure.better == "less" else base - value
    return change > max(share * abs(base), figure.least)


def _differences(runs: Sequence[RunRecord]) -> list[str]:
    """Say what differs that must not."""
    first = runs[0]
    found: list[str] = []
    found += [f"{run.name} is {run.verdict}" for run in runs if not run.get("valid")]
    for run in runs[1:]:
        found += [
            f"{key}: {first.get(key)} and {run.get(key)}"
            for key in SAME
            if first.get(key) != run.get(key)
        ]
        ours, theirs = first.about.get("machine"), run.about.get("machine")
        if isinstance(ours, dict) and isinstance(theirs, dict):
            found += [
                f"{key} of the machine: {ours.get(key)} and {theirs.get(key)}"
                for key in MACHINE
                if ours.get(key) != theirs.get(key)
            ]
        nodes = first.number("nodes.requested"), run.number("nodes.requested")
        if nodes[0] != nodes[1]:
            found.append(f"nodes: {nodes[0]:g} and {nodes[1]:g}" if None not in nodes else "nodes")
    return list(dict.fromkeys(found))
