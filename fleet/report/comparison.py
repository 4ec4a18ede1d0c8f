"""Two or more runs side by side: ratios, what of them can be compared, and a gate for CI.

Each figure says in which direction it is better, and what must be alike in two runs for it to say
anything: the memory of a node is another one in a fleet of half the size, however fast the machine
is. Where that differs the figure is shown with the reason, and not judged. A run is worse than its
baseline where a figure is worse by more than the tolerance, and by more than what two runs of the
same thing differ by anyway.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from fleet.k8s.schema import part_of
from fleet.report.run_directory import RunRecord
from fleet.report.service_levels import FAILED, WATCH_DELAY
from fleet.report.summary_text import duration

MACHINE = ("cpu", "cores", "memory")
MIX = ("profiles", "no_agents", "simulate_csi", "processes")
"""Options that decide what a node is, and which process it shares."""
SAMPLES_LEAST = 30  # a percentile of fewer samples is about their maximum
LENGTH_RATIO_MAX = 1.25
"""What is counted over a run that is longer by more than this is another count."""


class Alike(enum.Enum):
    """What must be the same in two runs; docs/explain/verdict.md says for which figures."""

    NODES = enum.auto()
    NODE = enum.auto()  # what one node sends: fidelity, identity, encoding, watches, profiles
    PACE = enum.auto()
    LOAD = enum.auto()  # the command, the phases of a scenario
    SERVER = enum.auto()  # version, fsync, local or not
    MACHINE = enum.auto()
    LENGTH = enum.auto()


ALL = frozenset(Alike) - {Alike.LENGTH}
COUNTED = frozenset(Alike)
FLEET = ALL - {Alike.SERVER, Alike.PACE}  # of what fleet itself does on a machine
MEMORY = frozenset({Alike.NODES, Alike.NODE, Alike.LOAD})


class Compared(NamedTuple):
    """One figure of the summary. `least` is a difference that means nothing, in its unit."""

    path: str
    words: str
    unit: str
    better: Literal["less", "more", ""]
    least: float = 0.0
    needs: frozenset[Alike] = ALL
    samples: str = ""  # where the summary has the number of samples of a percentile


FIGURES = (
    Compared("nodes.ready", "nodes Ready", "", "more"),
    Compared("nodes.time_to_ready_s", "until all were Ready", "s", "less", 1.0),
    Compared("nodes.time_to_settled_s", "until all watches were open", "s", "less", 1.0),
    Compared("nodes.ever_not_ready", "nodes that lost Ready", "", "less", needs=COUNTED),
    Compared(
        *("lease.late_ms.p99", "lateness of Leases p99", "ms", "less", 20.0),
        needs=FLEET,
        samples="lease.renewals",
    ),
    Compared("lease.missed", "Leases missed", "", "less", needs=COUNTED),
    Compared("pods.started", "pods started", "", ""),
    Compared(
        *("pods.start_sli_ms.p99", "pod start p99, without simulated time", "ms", "less", 50.0),
        samples="pods.started",
    ),
    Compared("process.cpu_s", "CPU of fleet", "s", ""),
    Compared("process.cpu_us_per_request", "CPU per request", "us", "less", 20.0, needs=FLEET),
    Compared(
        "process.rss_bytes_per_node", "memory per node", "bytes", "less", 4096.0, needs=MEMORY
    ),
    Compared("process.timer_lag_ms.p99", "timer lag p99", "ms", "", 10.0),
)
LEVEL_LEAST_S = 0.01
WATCH_LEAST_S = 0.05  # its samples are few: a 99th percentile is nearly their maximum


class Row(NamedTuple):
    """One figure of all runs; ratios are to the first one."""

    words: str
    unit: str
    values: list[float | None]
    ratios: list[float | None]
    worse: list[bool]
    better: str  # `less` or `more`; "" of a figure that is shown only
    unjudged: list[str]
    """Of each run, why the figure cannot be compared with that of the first one; "" if it can."""


class Comparison(NamedTuple):
    """What `fleet report A B` shows."""

    runs: Sequence[RunRecord]
    differences: list[str]
    """Why some of their figures, or all, cannot be compared; empty if all can."""
    rows: list[Row]
    tolerance: float

    @property
    def is_worse(self) -> bool:
        return any(any(row.worse) for row in self.rows)


def compare(runs: Sequence[RunRecord], tolerance: float) -> Comparison:
    """Compare runs with the first of them. `tolerance` is a share: 0.1 is 10 %."""
    first = runs[0]
    unlike = [differences(first, run) for run in runs]
    rows = []
    for each in FIGURES:
        values = [run.number(each.path) for run in runs]
        samples = [run.number(each.samples) if each.samples else None for run in runs]
        rows.append(_row(each, values, samples, unlike, tolerance))
    for level in first.levels:
        name = level.sli
        if name in {"TimeToNodesReady", "FalseNotReadyNodes", "LeaseLateness", FAILED}:
            continue  # they are above, or no durations
        least = WATCH_LEAST_S if name == WATCH_DELAY else LEVEL_LEAST_S
        figure = Compared("", f"{name} p{level.percentile:g}", "s", "less", least)
        same = [next((each for each in run.levels if each.sli == name), None) for run in runs]
        values = [each.measured if each else None for each in same]
        samples = [float(each.samples) if each else None for each in same]
        rows.append(_row(figure, values, samples, unlike, tolerance))
    found = [row for row in rows if any(value is not None for value in row.values)]
    unsound = [f"{run.name} is {run.verdict.words}" for run in runs if not run.get("valid")]
    words = [
        each
        for run in unlike
        for alike, listed in run.items()
        if alike is not Alike.LENGTH
        for each in listed
    ]
    return Comparison(runs, list(dict.fromkeys([*unsound, *words])), found, tolerance)


def _row(
    figure: Compared,
    values: list[float | None],
    samples: list[float | None],
    unlike: Sequence[Mapping[Alike, list[str]]],
    tolerance: float,
) -> Row:
    base = values[0]
    ratios = [value / base if base and value is not None else None for value in values]
    unjudged = [_why_not(figure, each, (samples[0], samples[at])) for at, each in enumerate(unlike)]
    worse = [
        not why and _is_worse(figure, base, value, tolerance)
        for value, why in zip(values, unjudged, strict=True)
    ]
    return Row(figure.words, figure.unit, values, ratios, worse, figure.better, unjudged)


def _why_not(
    figure: Compared, unlike: Mapping[Alike, list[str]], samples: tuple[float | None, float | None]
) -> str:
    """Return why a figure of two runs says nothing of one against the other, "" if it does."""
    if not figure.better:
        return ""
    found = [each for need, listed in unlike.items() if need in figure.needs for each in listed]
    if any(count is not None and count < SAMPLES_LEAST for count in samples):
        found.append(f"fewer than {SAMPLES_LEAST} samples")
    return "; ".join(found)


def _is_worse(figure: Compared, base: float | None, value: float | None, share: float) -> bool:
    if base is None or value is None or not figure.better:
        return False
    change = value - base if figure.better == "less" else base - value
    return change > max(share * abs(base), figure.least)


def differences(first: RunRecord, run: RunRecord) -> dict[Alike, list[str]]:
    """Say what two runs differ in. Of runs that are not valid nothing can be compared."""
    found: dict[Alike, list[str]] = {}

    def look(alike: Alike, name: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            found.setdefault(alike, []).append(f"{name}: {_said(ours)} and {_said(theirs)}")

    for each in (first, run):
        if not each.get("valid"):
            for alike in Alike:
                found.setdefault(alike, []).append(f"{each.name} is {each.verdict.words}")
            return found
    look(Alike.SERVER, "server_version", first.get("server_version"), run.get("server_version"))
    look(Alike.SERVER, "etcd_fsync", first.get("etcd_fsync"), run.get("etcd_fsync"))
    for key in ("fidelity", "identity", "encoding", "watches"):
        look(Alike.NODE, key, first.get(key), run.get(key))
    for key in ("pace", "start"):
        look(Alike.PACE, key, first.get(key), run.get(key))
    nodes = "nodes.requested"
    look(Alike.NODES, "nodes", first.number(nodes), run.number(nodes))
    look(Alike.LOAD, "phases", *(", ".join(at.name for at in each.phases) for each in (first, run)))
    name = "local_control_plane"
    if name in first.about and name in run.about:  # a run that was killed early has none
        look(Alike.SERVER, name, first.about.get(name), run.about.get(name))
        look(Alike.LOAD, "command", first.about.get("command"), run.about.get("command"))
        ours, theirs = part_of(first.about, "options"), part_of(run.about, "options")
        for key in MIX:
            look(Alike.NODE, key, ours.get(key), theirs.get(key))
        ours, theirs = part_of(first.about, "machine"), part_of(run.about, "machine")
        for key in MACHINE:
            look(Alike.MACHINE, f"{key} of the machine", ours.get(key), theirs.get(key))
    shorter, longer = sorted((first.wall_s, run.wall_s))
    if longer > shorter * LENGTH_RATIO_MAX:
        look(Alike.LENGTH, "length", duration(first.wall_s), duration(run.wall_s))
    return found


def _said(value: object) -> str:
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
