"""`capacity.html`: what `fleet capacity` found, in the style of a run's report, one file as well.

Its curve is the size against each service level, as a share of its limit: what is above 1 is
broken. Sizes that failed are marked. A size that was tried several times shows its last try.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet.errors import Exit, FleetError
from fleet.report.curves import Plot
from fleet.report.findings import SIMULATED
from fleet.report.html_report import REPORT, about_parts, drawn, whole
from fleet.report.report import Outcome
from fleet.report.run_directory import SUMMARY, RunRecord, read_run, write_whole
from fleet.report.service_levels import share_of_limit
from fleet.report.summary_text import duration

CAPACITY_REPORT = "capacity.html"
LEVELS_SHOWN = 5  # and the sizes that failed, each in a colour of its own
NOT_PROVEN = (
    SIMULATED,
    "Longer runs: each run lasted as long as --hold says.",
    "Other sizes, or the same size on another day: results may differ.",
)

IDLE = "no pods: idle kubelets, their agents and the control plane's own controllers"

HEADS = {Outcome.PASS: "HELD", Outcome.FAIL: "NONE HELD"}  # of any other verdict its own words
MARKS = {Outcome.PASS: "met", Outcome.NOT_JUDGED: "unjudged"}


@dataclass(slots=True, kw_only=True)
class Probe:
    """How one size fared."""

    nodes: int
    attempt: int = 1
    verdict: Outcome
    told: str  # the run in one sentence
    ready_s: float | None = None  # until all were Ready
    nearest: str = ""  # the service level that came nearest to its limit, "" for none
    share: float | None = None  # how much of the limit it used: 1 is all
    shown: str = ""  # the same in words
    directory: str
    exit_code: int = 0  # of the run: 4 of one that was not judged on what the user asked for
    ended: str = ""
    """Why the search ends with it: `--stop-if`, or a limit of fleet's own. It broke nothing."""

    @property
    def words(self) -> str:
        """Say what broke, or which service level came nearest to its limit."""
        return self.shown if self.shown and self.verdict in MARKS else self.told


@dataclass(slots=True, kw_only=True)
class Search:
    """What a search found; `capacity.json` has it as it is."""

    verdict: Outcome
    exit_code: Exit = Exit.OK
    held: int  # the largest size that held, 0 for none
    broke: int | None = None  # the smallest that did not
    what_broke: str = ""
    problem: str = ""  # why the search ended early, or why no larger size can be tried
    took_s: float
    command: list[str] = field(default_factory=list)
    load: str = IDLE  # what the nodes did, in words
    probes: list[Probe] = field(default_factory=list)

    @property
    def end(self) -> str:
        if self.problem:
            is_cut = self.verdict in {Outcome.INCOMPLETE, Outcome.INVALID}
            return "the search ended early" if is_cut else "a larger one cannot be tried"
        return f"{self.broke:,} did not" if self.broke else "the most that was asked"

    @property
    def unjudged(self) -> str:
        """Say what to do if the largest size was not judged, "" if it was."""
        if self.verdict is not Outcome.NOT_JUDGED:
            return ""
        how = "hold each size for longer, for example with --hold 5m, or try larger sizes"
        if self.command[:1] == ["run"]:
            how = "give the scenario a longer phase, or try larger sizes"
        return f"the largest size was not judged: {how}"


def write_capacity(search: Search, directory: Path) -> Path:
    """Write the page of a search, and return where it is.

    Raises SetupError if it cannot be written. A run whose files are gone is left out of the curve.
    """
    probes = sorted(search.probes, key=lambda each: (each.nodes, each.attempt))
    records = {each.directory: _read(each.directory) for each in probes}
    known = [run for each in probes if (run := records[each.directory]) is not None]
    versions = (str(run.get("server_version") or "") for run in known)
    server = f"Kubernetes {next(filter(None, versions), 'of unknown version')}"
    held, broke = search.held, search.broke
    words = f"{held:,} nodes held on {server}" if held else f"No size held on {server}"
    advice = search.unjudged and f"{search.unjudged[0].upper()}{search.unjudged[1:]}."
    told = [advice, search.problem, search.what_broke]
    if any(each.nodes == broke and each.verdict is Outcome.INVALID for each in probes):
        told.append(
            "That run is INVALID: fleet, or the machine that both share, was the limit, and not "
            "the control plane."
        )
    plots = [each for each in (_shares(probes, records), _ready(probes)) if each.lines]
    # The configuration of the largest that held, or of any.
    described = ([run for run in known if run.verdict in MARKS] or known)[-1:]
    values = {
        "search": search,
        "head": HEADS.get(search.verdict, search.verdict.words),
        "words": f"{words}{';' if broke else ','} {search.end}.",
        "took": duration(search.took_s),
        "told": [each for each in told if each],
        "figures": [
            (f"{held:,}", "nodes held, the largest size"),
            (f"{broke:,}" if broke else "-", "nodes did not, the smallest"),
            (f"{len({each.nodes for each in probes}):,}", "sizes tried"),
            (duration(search.took_s), "the search took"),
        ],
        "runs": [
            (
                each,
                "unjudged" if each.ended else MARKS.get(each.verdict, "broken"),
                (path := Path(each.directory)).name,
                (path / REPORT).exists() and path.parent == directory,
            )
            for each in probes
        ],
        "not_proven": NOT_PROVEN,
        "parts": [part for run in described for part in about_parts(run)],
        **drawn(plots),
    }
    title = f"fleet capacity: {held:,} nodes held"
    page = whole("capacity.html", title, search.verdict, values)
    return write_whole(directory / CAPACITY_REPORT, page.encode())


def _read(directory: str) -> RunRecord | None:
    try:
        return read_run(Path(directory)) if (Path(directory) / SUMMARY).exists() else None
    except FleetError:
        return None


def _shares(probes: Sequence[Probe], runs: dict[str, RunRecord | None]) -> Plot:
    """Show how much of its limit each service level used; those that came nearest first."""
    found: dict[str, dict[float, float]] = {}
    failed: dict[float, float] = {}
    for probe in probes:
        run = runs[probe.directory]
        for level in run.levels if run is not None else ():
            if (share := share_of_limit(level)) is not None:
                found.setdefault(level.sli, {})[probe.nodes] = share
        failed.pop(probe.nodes, None)
        if probe.verdict not in MARKS and not probe.ended:  # by a level, or by another expectation
            failed[probe.nodes] = max(1.0, probe.share or 0.0)
    highest = sorted(found, key=lambda name: -max(found[name].values()))[:LEVELS_SHOWN]
    lines = {name: [*found[name].items()] for name in highest}
    if found and failed:
        lines["size failed"] = [*failed.items()]
    return Plot("capacity", "of the limit", "measured", lines, "sizes", limits={"the limit": 1.0})


def _ready(probes: Sequence[Probe]) -> Plot:
    points = {float(each.nodes): each.ready_s for each in probes if each.ready_s is not None}
    lines = {"until all were Ready": [*points.items()]} if points else {}
    return Plot("ready", "s", "measured", lines, "sizes")
