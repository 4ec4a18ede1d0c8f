"""The HTML report of a run: one file that needs no network, for readers who decide and who debug.

The sentence, the verdict, the service levels with their limits, recovery, and what the run does not
prove come first. Each figure says whether it was measured, is simulated, or was an input.

The page's Content-Security-Policy allows one style and one script, both by their hash, and forbids
everything else. Every text from a file, a cluster or an option is escaped. The script is uPlot with
`plots.js`, which draws the series that the page holds as JSON. Where scripts do not run, a table
under each plot shows the range of each series.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import cast

import orjson

from fleet.errors import SetupError
from fleet.metrics import is_failure
from fleet.report.appearance import places, variable, variables
from fleet.report.curves import Plot, plots_of
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
MEASURED, SIMULATED, INPUT = "measured", "simulated", "input"
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
        body=body,
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def escaped(value: object) -> str:
    """Return a value as HTML."""
    return html.escape(str(value))


def tag(words: str) -> str:
    """Return a word about a figure: measured, simulated or input."""
    return f'<span class="tag">{escaped(words)}</span>'


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
        f'<div class="tile"><b>{escaped(value)}</b><span>{escaped(words)}</span> {tag(kind)}</div>'
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
        shown = {key: getattr(plot, key) for key in ("name", "unit", "kind", "is_log")}
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
        _levels(run),
        _starts(run),
        _recovery(run),
        f"<h2>What this run does not prove</h2>{listed(not_proven(run))}",
        _plots(run),
        _requests(run),
        about(run),
    )
    body = "\n".join(filter(None, parts))
    return whole(f"fleet run {run.name}: {run.verdict.words}", run.verdict, body)


def _head(run: RunRecord) -> str:
    about = [f"run {run.name}", str(run.about.get("started") or ""), f"{duration(run.wall_s)} long"]
    about.append(f"fleet {run.about['fleet_version']}" if "fleet_version" in run.about else "")
    return (
        f'<header><p class="verdict">{escaped(run.verdict.words)}</p>'
        f"<h1>{escaped(sentence(run))}</h1>"
        f'<p class="about">{escaped(" · ".join(filter(None, about)))}</p></header>'
        + (f'<p class="broken">{escaped(refused(run))}</p>' if refused(run) else "")
        + (listed(run.reasons) if len(run.reasons) > 1 else "")
    )


def _tiles(run: RunRecord) -> str:
    def ms(path: str) -> str:
        value = run.number(path)
        return "-" if value is None else _in_ms(value)

    def count(path: str) -> str:
        value = run.number(path)
        return "-" if value is None else f"{value:,.0f}"

    ready_s = run.number("nodes.time_to_ready_s")
    requests = sum(cast("int", row["count"]) for row in run.rows("requests"))
    requests = requests or int(run.number("requests_total") or 0)
    ready = f"{count('nodes.ready')} / {count('nodes.requested')}"
    shown = [
        (ready, "nodes Ready, at the end", MEASURED),
        (duration(ready_s) if ready_s is not None else "-", "until all were Ready", MEASURED),
        (count("nodes.ever_not_ready"), "nodes Ready, then not", MEASURED),
        (count("pods.started"), "pods started", MEASURED),
        (ms("pods.start_ms.p99"), "pod start p99, in all", SIMULATED),
        (f"{requests:,}", "requests of the nodes", MEASURED),
        (count("lease.missed"), "Leases missed", MEASURED),
        (ms("process.timer_lag_ms.p99"), "timer lag p99: fleet's own error", MEASURED),
    ]
    return tiles(shown)


def _levels(run: RunRecord) -> str:
    if not run.levels:
        return ""
    names = ("indicator", "measured", "as nodes saw it", "limit", "by", "samples", "")
    rows = []
    for level in run.levels:
        sli = level.sli
        words = INDICATORS[sli].words if sli in INDICATORS else ""
        if level.worst:
            words += f" ({level.worst})"
        name = f"<b>{escaped(sli)}</b>{level_words(sli, level.percentile).removeprefix(sli)}"
        rows.append(
            (
                f"{name} {tag(MEASURED)}<small>{escaped(words)}</small>",
                escaped(of_unit(sli, level.measured)),
                escaped(of_unit(sli, level.client)) if level.client is not None else "",
                escaped(of_unit(sli, level.limit)) if level.limit is not None else "",
                escaped(level.source),
                f"{level.samples:,}",
                _mark(level),
            )
        )
    return f"<h2>Service levels</h2>{table(names, rows, (1, 2, 3, 5), reflows=True)}"


def _mark(level: ServiceLevel) -> str:
    note = f"<small>{escaped(level.note)}</small>" if level.note else ""
    if level.met is None:
        return note or "<small>no limit</small>"
    if not level.judged:
        side = "within its limit" if level.met else "over its limit"
        return f'<span class="unjudged">{side}</span>{note or "<small>not judged</small>"}'
    mark = '<span class="met">✓ met</span>' if level.met else '<span class="broken">✗ broken</span>'
    return f"<span>{mark}{note}</span>"


STARTS = (
    ("scheduler", "pods.start_scheduler_ms", MEASURED, "as the scheduler tells itself"),
    ("API server", "pods.start_api_ms", MEASURED, "requests that the start waited for"),
    ("kubelet and fleet", "pods.start_fleet_ms", MEASURED, "relists, syncs, and fleet's own queue"),
    ("machine", "pods.start_simulated_ms", SIMULATED, "sandbox, pulls, starts, hooks: an input"),
)
"""What a pod's start is made of, in the order in which it passes them."""


def _starts(run: RunRecord) -> str:
    """Return where pods spent the time of their start; "" of a run without pods."""
    rows = [
        (
            f"{escaped(part)} {tag(kind)}",
            escaped(words),
            *(_duration_ms(run, path, s) for s in SHARES),
        )
        for part, path, kind, words in STARTS
    ]
    if run.number("pods.start_ms.p50") is None:
        return ""
    return f"<h2>Start of pods</h2>{table(('part', '', *SHARES), rows, (2, 3))}"


SHARES = ("p50", "p99")


def _duration_ms(run: RunRecord, path: str, share: str) -> str:
    value = run.number(f"{path}.{share}")
    return "not told" if value is None else _in_ms(value)


def _in_ms(value: float) -> str:
    return f"{value:,.0f} ms" if value < 1e4 else f"{value / 1e3:,.1f} s"


def _recovery(run: RunRecord) -> str:
    found = recoveries(run)
    if not found:
        return ""
    rows = [
        (
            escaped(each.fault),
            clock(each.from_s),
            clock(each.until_s),
            f"{each.lost:,}",
            duration(each.took_s) if each.took_s is not None else "not seen",
        )
        for each in found
    ]
    head = ("fault", "from", "until", "nodes lost", "until as many were Ready again")
    return f"<h2>Recovery {tag(MEASURED)}</h2>{table(head, rows, (1, 2, 3, 4))}"


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
    legend = "A dashed line is the begin of a phase, a shaded band a fault"
    legend += ", a red line what broke first" if broken is not None else ""
    told = f'<p class="about">{legend}: {parts}.</p>' if parts else ""
    return f"<h2>Over time</h2>{told}{plotted(plots_of(run), marks, run.wall_s)}"


def _requests(run: RunRecord) -> str:
    rows = run.rows("requests")
    if not rows:
        return ""
    failed = [row for row in rows if is_failure(str(row["resource"]), cast("int", row["code"]))]
    made = f"<h2>Requests of the nodes {tag(MEASURED)}</h2>" + _request_table(rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        rest = rows[ROWS_SHOWN:]
        made += (
            f"<details><summary>{len(rest)} more kinds</summary>{_request_table(rest)}</details>"
        )
    made += f"<h2>Errors {tag(MEASURED)}</h2>"
    return made + (
        _request_table(failed) if failed else "<p>None that a healthy server would not give.</p>"
    )


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
    versions = {
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
    parts = (
        (
            f"Configuration {tag(INPUT)}",
            versions | {f"--{k.replace('_', '-')}": v for k, v in options.items()},
        ),
        ("Machine", machine),
        (
            f"Fleet itself {tag(MEASURED)}",
            {
                "CPU": f"{run.number('process.cpu_s') or 0:,.1f} s",
                "memory": size(int(run.number("process.rss_bytes") or 0)),
                "CPU a request": f"{a_request:,.0f} us" if a_request is not None else None,
                "metrics of the control plane": cost,
                "asked for itself": ", ".join(f"{name} {count}" for name, count in asked.items()),
            },
        ),
    )
    return "".join(
        f"<h2>{title}</h2><dl>"
        + "".join(
            f"<dt>{escaped(key)}</dt><dd>{escaped(value)}</dd>"
            for key, value in rows.items()
            if value not in (None, "")
        )
        + "</dl>"
        for title, rows in parts
        if rows
    )
