"""The HTML report of a run: one file that needs no network, for readers who decide and who debug.

The verdict, the sentence, what limited the run, the service levels with their limits, recovery, and
what the run does not prove come first. A figure that was not measured says what it is. Contents
stand on the left; on a narrow screen long sections are folded.

The page's Content-Security-Policy allows one style and one script, both by their hash, and forbids
everything else. Every text from a file, a cluster or an option is escaped. The script is uPlot with
`plots.js`, which draws the series that the page holds as JSON. Where scripts do not run, a table
under each plot shows the range of each series.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import cast

import orjson

from fleet.errors import SetupError
from fleet.metrics import is_failure
from fleet.report.appearance import places, variable, variables
from fleet.report.curves import Plot, Point, plots_of, pods
from fleet.report.display import clock
from fleet.report.figure import Json
from fleet.report.findings import (
    first_broken,
    not_proven,
    of_unit,
    recoveries,
    refused,
    sentence,
)
from fleet.report.limits import NEAR, Use, limited_by, stored, uses
from fleet.report.report import Outcome, Phase, ServiceLevel
from fleet.report.run_directory import RunRecord
from fleet.report.service_levels import INDICATORS, level_words
from fleet.report.summary_text import duration, size

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("uplot/LICENSE", "uplot/uPlot.iife.min.js", "plots.js")
POLICY = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; "
    "base-uri 'none'; form-action 'none'"
)
MEASURED, SIMULATED, INPUT = "", "simulated", "input"
IN_SCRIPT = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
"""What could end the script element that holds JSON, or a line of it."""
LABEL_MAX = 36
"""Characters of a series' or phase's name; longer ones would leave the plot no room."""


def write(path: Path, text: str) -> Path:
    """Write a page whole or not at all. Raises SetupError."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SetupError(f"{path}: {error.strerror or error}") from error
    return path


def whole(title: str, verdict: Outcome, body: str) -> str:
    """Return a page of a title, a verdict and what is below it."""
    shades = {"light": variables(dark=False), "dark": variables(dark=True)}
    own_style = Template((ASSETS / "page.css").read_text("utf-8")).substitute(shades)
    style = (ASSETS / "uplot/uPlot.min.css").read_text("utf-8") + own_style
    script = ""
    if 'id="plots"' in body:  # no text of a record has a quotation mark left
        script = "/*\n{}\n*/\n{}\n{}".format(
            *((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
        )
    return Template((ASSETS / "page.html").read_text("utf-8")).substitute(
        title=escaped(title),
        verdict=verdict,
        policy=POLICY.format(style=_hash(style), script=_hash(script)),
        style=style,
        script=script,
        contents=contents(body),
        body=body,
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def escaped(value: object) -> str:
    """Return a value as HTML."""
    return html.escape(str(value))


def tag(words: str) -> str:
    """Return a word about a figure that was not measured: simulated or input."""
    return f' <span class="tag">{escaped(words)}</span>' if words else ""


def section(title: str, body: str, *, kind: str = "", folds: bool = False) -> str:
    """Return a part of the page with its title; one that `folds` is closed on a narrow screen."""
    if not body:
        return ""
    head = f"<h2>{escaped(title)}{tag(kind)}</h2>"
    if folds:
        head = f'<details class="fold" open><summary>{head}</summary>'
    name = re.sub(r"\W+", "-", title.lower())
    rest = "</details>" if folds else ""
    return f'<section id="{name}" data-title="{escaped(title)}">{head}{body}{rest}</section>'


def contents(body: str) -> str:
    """Return links to the sections of a page."""
    found = re.findall(r'<section id="([\w-]+)" data-title="([^"]*)">', body)
    return "".join(f'<a href="#{name}">{title}</a>' for name, title in found)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[int] = (),
    *,
    reflows: bool = False,
) -> str:
    """Return a table; its cells are HTML already, its head is not. `numbers` are columns.

    One that `reflows` has a block for each row on a narrow screen, else it scrolls.
    """
    names = list(map(escaped, head))
    marks = [' class="n"' if at in set(numbers) else "" for at in range(len(names))]
    told = [f'{mark} data-name="{name}"' for name, mark in zip(names, marks, strict=True)]

    def cells(row: Sequence[str], tag: str, attributes: Sequence[str]) -> str:
        each = zip(row, attributes, strict=True)
        return "".join(f"<{tag}{mark}>{cell}</{tag}>" for cell, mark in each)

    lines = "".join(f"<tr>{cells(row, 'td', told if reflows else marks)}</tr>" for row in rows)
    kind = ' class="slis"' if reflows else ""
    made = f"<thead><tr>{cells(names, 'th', marks)}</tr></thead><tbody>{lines}</tbody>"
    made = f"<table{kind}>{made}</table>"
    return made if reflows else f'<div class="scroll">{made}</div>'


def listed(texts: Iterable[str]) -> str:
    """Return a list."""
    return f"<ul>{''.join(f'<li>{escaped(each)}</li>' for each in texts)}</ul>"


def tiles(shown: Iterable[tuple[str, str, str]]) -> str:
    """Return boxes with a figure each: its value, what it is, and whose."""
    boxes = "".join(
        f'<div class="tile"><b>{escaped(value)}</b><span>{escaped(words)}</span>{tag(kind)}</div>'
        for value, words, kind in shown
    )
    return f'<div class="tiles">{boxes}</div>'


def plotted(plots: Sequence[Plot], phases: Sequence[Phase] = (), until_s: float = 0.0) -> str:
    """Return a figure for each plot, and the JSON that the script of the page draws.

    Phases and faults are marked on each axis of time.
    """
    found = []
    for plot in plots:
        series = [
            {
                "label": _short(label),
                "colour": variable(place),
                "x": [_rounded(at) for at, _ in points],
                "y": [_rounded(value) for _, value in points],
            }
            for place, (label, points) in zip(
                places(plot.name, list(plot.lines)), plot.lines.items(), strict=True
            )
        ]
        shown = {key: getattr(plot, key) for key in ("name", "unit", "kind", "is_log", "limits")}
        found.append(shown | {"series": series})
    marks = [replace(each, name=_short(each.name)) for each in phases]
    content = orjson.dumps({"plots": found, "phases": marks, "until_s": until_s}).decode()
    figures = "".join(
        f'<figure id="plot-{plot.name}"><figcaption>{escaped(plot.title)}'
        f"<small>{escaped(plot.unit)}, {escaped(plot.source)}</small></figcaption>"
        f'<div class="plot"></div>{_ranges(plot)}</figure>'
        for plot in plots
    )
    wide = "" if phases else " wide"
    return (
        '<p id="zoom" class="about" hidden>Drag over a plot to zoom in, double-click to zoom out; '
        "click on a name to hide its line.</p>"
        f'<div class="plots{wide}">{figures}</div>'
        f'<script type="application/json" id="plots">{content.translate(IN_SCRIPT)}</script>'
    )


def _ranges(plot: Plot) -> str:
    """Return the lowest, the highest and the last value of each series."""
    rows = []
    for label, points in plot.lines.items():
        values = [value for _, value in points]
        shown = (f"{value:,.4g}" for value in (min(values), max(values), values[-1]))
        rows.append((escaped(label), *shown))
    return table(("", "lowest", "highest", "last"), rows, (1, 2, 3))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _short(name: str) -> str:
    return name if len(name) <= LABEL_MAX else f"{name[: LABEL_MAX - 3]}..."


REPORT = "report.html"
ROWS_SHOWN = 15


def write_report(run: RunRecord, path: Path | None = None) -> Path:
    """Write the page and return where it is. Raises SetupError if that is not possible."""
    return write(path or run.path / REPORT, page(run))


def page(run: RunRecord) -> str:
    """Return the whole page."""
    parts = (
        _head(run),
        _tiles(run),
        _limits(run),
        _levels(run),
        _starts(run),
        _recovery(run),
        section("What this run does not prove", listed(not_proven(run))),
        section("Over time", _plots(run), folds=True),
        section("Requests of the nodes", _requests(run), folds=True),
        about(run),
    )
    body = "\n".join(filter(None, parts))
    return whole(f"{run.title}: {run.verdict.words}", run.verdict, body)


def _head(run: RunRecord) -> str:
    cluster, is_local = run.about.get("cluster"), run.about.get("local_control_plane")
    about = [
        "local control plane" if is_local else f"cluster {cluster}" if cluster else "",
        str(run.about.get("started") or ""),
        f"{duration(run.wall_s)} long",
        f"fleet {run.about['fleet_version']}" if "fleet_version" in run.about else "",
    ]
    return (
        f'<header><p class="title">{escaped(run.title)}</p>'
        f'<p class="verdict">{escaped(run.verdict.words)}</p><h1>{escaped(sentence(run))}</h1>'
        f'<p class="about">{escaped(" · ".join(filter(None, about)))}</p></header>'
        + (f'<p class="over">{escaped(refused(run))}</p>' if refused(run) else "")
        + (listed(run.reasons) if len(run.reasons) > 1 else "")
    )


def _tiles(run: RunRecord) -> str:
    def ms(path: str) -> str:
        value = run.number(path)
        return "-" if value is None else _in_ms(value)

    def count(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    ready_s, nodes = run.number("nodes.time_to_ready_s"), run.number("nodes.requested")
    requests = sum(cast("int", row["count"]) for row in run.rows("requests"))
    requests = requests or int(run.number("requests_total") or 0)
    running = max((value for _, value in pods(run).get("Running", [])), default=0.0)
    kept = stored(run)
    shown = [
        (
            f"{count(run.number('nodes.ready'))} / {count(nodes)}",
            "nodes Ready at the end",
            MEASURED,
        ),
        (duration(ready_s) if ready_s is not None else "-", "until all were Ready", MEASURED),
        (count(run.number("nodes.ever_not_ready")), "nodes Ready, then not", MEASURED),
        (count(run.number("pods.started")), "pods started", MEASURED),
        (f"{running / nodes:,.1f}" if nodes else "-", "pods per node, at most", MEASURED),
        (size(int(kept[-1][1])) if kept else "-", "size of etcd at the end", MEASURED),
        (f"{requests:,}", "requests of the nodes", MEASURED),
        (f"{requests / run.wall_s:,.0f}/s" if run.wall_s else "-", "requests, mean", MEASURED),
        (count(run.number("lease.missed")), "Leases missed", MEASURED),
        (ms("process.timer_lag_ms.p99"), "timer lag p99, fleet's own error", MEASURED),
    ]
    return tiles(shown)


def _limits(run: RunRecord) -> str:
    """Return what limited the run, and how much was used of what may limit one."""
    found = uses(run)
    what, advice = limited_by(run, found)

    def cell(use: Use, at: Point | None) -> str:
        if at is None:
            return ""
        near = ' class="over"' if use.resource.share(at[1]) >= NEAR else ""
        value = f"<b{near}>{use.resource.words(at[1])}</b>"
        return f"<span>{value} <small>at {clock(at[0])}</small></span>"

    rows = [
        (
            escaped(use.resource.name),
            cell(use, use.bring_up),
            cell(use, use.after),
            use.resource.words(limit) if (limit := use.resource.limit) else "",
        )
        for use in found
    ]
    head = ("highest mean of 5 to 15 s", "bring-up", "after", "limit")
    made = f"<p>{escaped(what)}</p><p><b>Try next:</b> {escaped(advice)}</p>"
    made += table(head, rows, (1, 2, 3)) if rows else ""
    return section("What limited the run", made)


def _levels(run: RunRecord) -> str:
    if not run.levels:
        return ""
    names = ("indicator", "measured", "as nodes saw it", "limit", "")
    rows = []
    for level in run.levels:
        sli = level.sli
        words = INDICATORS[sli].words if sli in INDICATORS else ""
        if level.worst:
            words += f" ({level.worst})"
        name = f"<b>{escaped(sli)}</b>{level_words(sli, level.percentile).removeprefix(sli)}"
        limit = of_unit(sli, level.limit) if level.limit is not None else ""
        rows.append(
            (
                f"{name}<small>{escaped(words)}</small>",
                _noted(of_unit(sli, level.measured), f"{level.samples:,} samples"),
                escaped(of_unit(sli, level.client)) if level.client is not None else "",
                _noted(limit, level.source) if limit else "",
                _mark(level),
            )
        )
    made = table(names, rows, (1, 2, 3), reflows=True)
    return section("Service levels", f'{made}<p class="about">{escaped(LATENCIES)}</p>')


def _noted(value: str, note: str) -> str:
    return f"<span>{escaped(value)} <small>{escaped(note)}</small></span>"


LATENCIES = (
    "API calls: measured by the server, for the slowest kind of request, without the wait in its "
    "queues. What nodes saw includes queues and network, for all kinds together. Plots show p99 "
    "second by second."
)
"""Why one page has several figures called p99."""


def _mark(level: ServiceLevel) -> str:
    note = f"<small>{escaped(level.note)}</small>" if level.note else ""
    if level.met is None:
        return note or "<small>no limit</small>"
    if not level.judged:
        side = "within its limit" if level.met else "over its limit"
        return f'<span class="unjudged">{side}</span>{note or "<small>not judged</small>"}'
    mark = '<span class="met">✓ met</span>' if level.met else '<span class="broken">✗ broken</span>'
    return f"<span>{mark}{note}</span>"


SHARES = ("p50", "p99")
STARTS = (
    ("scheduler", "start_scheduler_ms", MEASURED, "from its queue to the binding"),
    ("API server", "start_api_ms", MEASURED, "requests that the start waited for"),
    ("kubelet", "start_fleet_ms", MEASURED, "its sync loop, and delays of fleet itself"),
    ("machine", "start_simulated_ms", SIMULATED, "sandbox, image pulls, container starts, hooks"),
    ("in all, without the scheduler", "start_ms", SIMULATED, "percentiles do not add up"),
)
"""What a pod's start is made of, in the order in which it passes them."""


def _starts(run: RunRecord) -> str:
    """Return where pods spent the time of their start; "" of a run without pods."""
    if run.number("pods.start_ms.p50") is None:
        return ""
    rows = []
    for part, key, kind, words in STARTS:
        values = [run.number(f"pods.{key}.{share}") for share in SHARES]
        shown = ["not available" if value is None else _in_ms(value) for value in values]
        rows.append((f"{escaped(part)}{tag(kind)}<small>{escaped(words)}</small>", *shown))
    return section("Start of pods", table(("part", *SHARES), rows, (1, 2)))


def _in_ms(value: float) -> str:
    return f"{value:,.0f} ms" if value < 1e4 else f"{value / 1e3:,.1f} s"


def _recovery(run: RunRecord) -> str:
    rows = [
        (
            escaped(each.fault),
            clock(each.from_s),
            clock(each.until_s),
            f"{each.lost:,}",
            duration(each.took_s) if each.took_s is not None else "not seen",
        )
        for each in recoveries(run)
    ]
    head = ("fault", "from", "until", "nodes lost", "until as many were Ready again")
    return section("Recovery", table(head, rows, (1, 2, 3, 4), reflows=True) if rows else "")


def _plots(run: RunRecord) -> str:
    marks = list(run.phases)
    broken = first_broken(run)
    if broken is not None and broken.at_s is not None:
        marks.append(Phase(name="first over its limit", kind="broken", from_s=broken.at_s))
    parts = ", ".join(
        f"{escaped(each.name)} {clock(each.from_s)}"
        + (f" to {clock(each.until_s)}" if each.until_s else "")
        for each in marks
    )
    legend = "A dashed line marks the start of a phase, a shaded band a fault"
    legend += ", a red line what broke first" if broken is not None else ""
    told = f'<p class="about">{legend}: {parts}.</p>' if parts else ""
    return told + plotted(plots_of(run), marks, run.wall_s)


def _requests(run: RunRecord) -> str:
    """Return all kinds of requests: errors first, and of these what the server refused."""
    rows = run.rows("requests")
    if not rows:
        return ""

    def is_error(row: Json) -> bool:
        return is_failure(str(row["resource"]), cast("int", row["code"]))

    failed = sorted(filter(is_error, rows), key=lambda row: row["code"] != 429)
    fine = [row for row in rows if not is_error(row)]
    made = "<h3>Errors</h3>" + (
        _request_table(failed) if failed else "<p>None that a healthy server would not give.</p>"
    )
    made += f"<h3>Others</h3>{_request_table(fine[:ROWS_SHOWN])}"
    if rest := fine[ROWS_SHOWN:]:
        more = f"<summary>{len(rest)} more kinds</summary>{_request_table(rest)}"
        made += f"<details>{more}</details>"
    return made


def _request_table(rows: Sequence[Json]) -> str:
    cells = [
        (
            escaped(row["verb"]),
            escaped(row["resource"]),
            escaped(row["code"] or "none"),
            f"{row['count']:,}",
            _ms(row, "p50"),
            _ms(row, "p99"),
        )
        for row in rows
    ]
    return table(("verb", "resource", "code", "count", "p50 ms", "p99 ms"), cells, (3, 4, 5))


def _ms(row: Json, share: str) -> str:
    value = cast("dict[str, float | None]", row["ms"])[share]
    return "-" if value is None else f"{value:,.1f}"


def about(run: RunRecord) -> str:
    """Say with what and where a run was made."""
    machine = cast("Json", run.about.get("machine") or {})
    options = cast("Json", run.about.get("options") or {})
    asked = cast("Json", run.get("controlplane.asked_by_fleet") or {})
    took_ms = run.number("controlplane.took_ms")
    a_request = run.number("process.cpu_us_per_request")
    cost = ""
    if took_ms is not None:
        cost = (
            f"{run.number('controlplane.samples') or 0:,.0f} samples, one of the API server "
            f"{size(int(run.number('controlplane.bytes') or 0))} in {took_ms:,.0f} ms"
        )
    versions: Json = {
        "server": run.get("server_version"),
        "fidelity": run.get("fidelity"),
        "identity": run.get("identity"),
        "encoding": run.get("encoding"),
        "watches": run.get("watches"),
        "start": run.get("start"),
        "etcd fsync": {True: "on", False: "off"}.get(
            cast("bool", run.get("etcd_fsync")), "unknown"
        ),
        "fleet": run.about.get("fleet_version"),
        "Python": run.about.get("python"),
        "command": run.about.get("command"),
    }
    own: Json = {
        "CPU": f"{run.number('process.cpu_s') or 0:,.1f} s",
        "memory": size(int(run.number("process.rss_bytes") or 0)),
        "CPU a request": f"{a_request:,.0f} us" if a_request is not None else None,
        "metrics of the control plane": cost,
        "asked for itself": ", ".join(f"{name} {count}" for name, count in asked.items()),
    }
    versions |= {f"--{key.replace('_', '-')}": value for key, value in options.items()}
    return "".join(
        section(title, _pairs(rows), kind=kind, folds=True)
        for title, kind, rows in (
            ("Configuration", INPUT, versions),
            ("Machine", "", machine),
            ("fleet itself", "", own),
        )
    )


def _pairs(rows: Json) -> str:
    shown = ((escaped(key), escaped(each)) for key, each in rows.items() if each not in (None, ""))
    made = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in shown)
    return f"<dl>{made}</dl>" if made else ""
