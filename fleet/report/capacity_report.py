"""`capacity.html`: what `fleet capacity` found, in the style of a run's report, one file as well.

Its curve is the size against each service level, as a share of its limit: what is above 1 is
broken. A size that was tried several times shows its last try.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from fleet.errors import FleetError
from fleet.report.curves import Plot
from fleet.report.figure import Json
from fleet.report.findings import SIMULATED, of_unit, search_end, search_longer
from fleet.report.html_report import (
    INPUT,
    MEASURED,
    about,
    escaped,
    plotted,
    table,
    tag,
    tiles,
    whole,
    write,
)
from fleet.report.report import Outcome
from fleet.report.run_directory import SUMMARY, RunRecord, read_run
from fleet.report.summary_text import duration

CAPACITY_REPORT = "capacity.html"
LEVELS_SHOWN = 6
NOT_PROVEN = (
    SIMULATED,
    "Each run lasted as long as --hold says: what breaks later was not seen.",
    "Sizes between those that were tried may fare otherwise, and so may the same size tomorrow.",
)

HEADS = {Outcome.PASS: "HELD", Outcome.FAIL: "NONE HELD"}
"""Of any other verdict its own words."""
MARKS = {Outcome.PASS: "met", Outcome.NOT_JUDGED: "unjudged"}

Probe = Json


def write_capacity(content: Json, directory: Path) -> Path:
    """Write the page of a search, of what `capacity.json` has, and return where it is.

    Raises SetupError if it cannot be written. A run whose files are gone is left out of the curve.
    """
    probes = sorted(cast("list[Probe]", content["probes"]), key=_place)
    runs = {str(each["directory"]): _read(str(each["directory"])) for each in probes}
    held = cast("int", content["held"])
    body = "\n".join(
        filter(
            None,
            (
                _head(content, probes, runs),
                _tiles(content),
                _plots(probes, runs),
                _sizes(probes, directory),
                _limits(),
                _about(content, probes, runs),
            ),
        )
    )
    title = f"fleet capacity: {held:,} nodes held"
    return write(directory / CAPACITY_REPORT, whole(title, _outcome(content), body))


def _outcome(content: Json) -> Outcome:
    """Return the verdict on the answer; of an older file it follows from what held."""
    known = Outcome.PASS if content["held"] else Outcome.FAIL
    return Outcome(str(content.get("verdict", known)))


def _place(probe: Probe) -> tuple[int, int]:
    return cast("int", probe["nodes"]), cast("int", probe["attempt"])


def _read(directory: str) -> RunRecord | None:
    try:
        return read_run(Path(directory)) if (Path(directory) / SUMMARY).exists() else None
    except FleetError:
        return None


def _server(runs: dict[str, RunRecord | None]) -> str:
    versions = (str(run.get("server_version") or "") for run in runs.values() if run is not None)
    return f"Kubernetes {next(filter(None, versions), 'of unknown version')}"


def _head(content: Json, probes: Sequence[Probe], runs: dict[str, RunRecord | None]) -> str:
    held, broke = cast("int", content["held"]), cast("int | None", content["broke"])
    server = _server(runs)
    words = f"{held:,} nodes held on {server}" if held else f"No size held on {server}"
    words += f"{';' if broke else ','} {search_end(content)}."
    outcome = _outcome(content)
    advice = ""
    if outcome is Outcome.NOT_JUDGED:
        advice = f"The largest size was not judged: {search_longer(content)}."
    told = (advice, content.get("problem"), content["what_broke"])
    broken = "".join(f"<p>{escaped(each)}</p>" for each in told if each)
    is_ours = any(each["nodes"] == broke and each["verdict"] == "invalid" for each in probes)
    if is_ours:
        broken += (
            "<p>That run is INVALID: fleet, or the machine that both share, was the limit, and "
            "not the control plane.</p>"
        )
    took = duration(cast("float", content["took_s"]))
    return (
        f'<header><p class="verdict">{HEADS.get(outcome, outcome.words)}</p>'
        f'<h1>{escaped(words)}</h1><p class="about">{len(probes)} runs in {took}</p></header>'
        f"{broken}"
    )


def _tiles(content: Json) -> str:
    broke = cast("int | None", content["broke"])
    probes = cast("list[Probe]", content["probes"])
    listed = [
        (f"{content['held']:,}", "nodes held, the largest size", MEASURED),
        (f"{broke:,}" if broke else "-", "nodes did not, the smallest size", MEASURED),
        (f"{len({each['nodes'] for each in probes}):,}", "sizes tried", INPUT),
        (duration(cast("float", content["took_s"])), "the search took", MEASURED),
    ]
    return tiles(listed)


def _plots(probes: Sequence[Probe], runs: dict[str, RunRecord | None]) -> str:
    plots = [each for each in (_shares(probes, runs), _ready(probes)) if each.lines]
    return f"<h2>By size</h2>{plotted(plots)}"


def _shares(probes: Sequence[Probe], runs: dict[str, RunRecord | None]) -> Plot:
    """Show how much of its limit each service level used; those that came nearest first."""
    found: dict[str, dict[int, float]] = {}
    for probe in probes:
        run = runs[str(probe["directory"])]
        for level in run.rows("slis") if run is not None else ():
            limit, measured = level["limit"], level["measured"]
            if not isinstance(limit, int | float) or not isinstance(measured, int | float):
                continue
            share = measured / limit if limit else float(measured > 0)
            found.setdefault(str(level["sli"]), {})[cast("int", probe["nodes"])] = share
    highest = sorted(found, key=lambda name: -max(found[name].values()))[:LEVELS_SHOWN]
    lines = {
        name: [(float(nodes), share) for nodes, share in sorted(found[name].items())]
        for name in highest
    }
    if lines:
        most = float(max(cast("int", each["nodes"]) for each in probes))
        lines["the limit"] = [(0.0, 1.0), (most, 1.0)]
    return Plot("capacity", "of the limit", "measured", lines, "sizes")


def _ready(probes: Sequence[Probe]) -> Plot:
    points = {
        cast("int", each["nodes"]): each["ready_s"]
        for each in probes
        if isinstance(each["ready_s"], int | float)
    }
    line = [(float(nodes), cast("float", ready_s)) for nodes, ready_s in sorted(points.items())]
    lines = {"until all were Ready": line} if line else {}
    return Plot("ready", "s", "measured", lines, "sizes")


def _sizes(probes: Sequence[Probe], directory: Path) -> str:
    rows = []
    for each in probes:
        verdict, ready_s = Outcome(str(each["verdict"])), cast("float | None", each["ready_s"])
        mark = "unjudged" if each.get("ended") else MARKS.get(verdict, "broken")
        name, share = str(each["nearest"]), cast("float | None", each["share"])
        near = f"{escaped(each['shown'])}" if name else escaped(each["told"])
        path = Path(str(each["directory"])) / "report.html"
        run = escaped(path.parent.name)
        if path.exists() and path.parent.parent == directory:
            run = f'<a href="{run}/report.html">{run}</a>'
        rows.append(
            (
                f"{each['nodes']:,}",
                str(each["attempt"]),
                f'<span class="{mark}">{escaped(verdict.words)}</span>',
                of_unit("TimeToNodesReady", ready_s),
                "-" if share is None else f"{share:.0%}",
                near,
                run,
            )
        )
    head = ("nodes", "try", "verdict", "all Ready", "of the limit", "nearest to its limit", "run")
    return f"<h2>Runs {tag(MEASURED)}</h2>{table(head, rows, (0, 1, 3, 4))}"


def _limits() -> str:
    listed = "".join(f"<li>{escaped(each)}</li>" for each in NOT_PROVEN)
    return f"<h2>What this search does not prove</h2><ul>{listed}</ul>"


def _about(content: Json, probes: Sequence[Probe], runs: dict[str, RunRecord | None]) -> str:
    """Say what each run was: the configuration of the largest that held, or of any."""
    command = " ".join(cast("list[str]", content["command"]))
    told = f"<h2>Each run {tag(INPUT)}</h2><p><code>fleet {escaped(command)}</code></p>"
    known = [run for each in probes if (run := runs[str(each["directory"])]) is not None]
    held = [run for run in known if run.verdict in MARKS]
    return told + (about((held or known)[-1]) if known else "")
