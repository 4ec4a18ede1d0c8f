"""`report.html`: one file about one run, for readers who decide and for readers who debug.

The sentence, the verdict, the service levels with their limits, recovery, and what the run does not
prove come first. Each figure says whether it was measured, is simulated, or was an input.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from fleet.metrics import is_failure
from fleet.report.comparison import Comparison
from fleet.report.curves import plots_of
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
from fleet.report.html_page import (
    INPUT,
    MEASURED,
    SIMULATED,
    escaped,
    plotted,
    table,
    tag,
    tiles,
    whole,
    write,
)
from fleet.report.report_formats import compared_rows, conclusion
from fleet.report.run_record import RunRecord
from fleet.report.slo_file import INDICATORS
from fleet.report.summary_text import duration, size
from fleet.report.verdict import Outcome

REPORT = "report.html"
ROWS_SHOWN = 15


def write_report(run: RunRecord, path: Path | None = None) -> Path:
    """Write the page and return where it is. Raises SetupError if that is not possible."""
    return write(path or run.path / REPORT, page(run))


def write_comparison(compared: Comparison, path: Path) -> Path:
    """Write the page of several runs."""
    head, rows = compared_rows(compared)
    verdict, words = Outcome.PASS, "COMPARABLE"
    if compared.is_worse:
        verdict, words = Outcome.FAIL, "WORSE"
    elif compared.differences:
        verdict, words = Outcome.NOT_JUDGED, "NOT COMPARABLE"
    cells = [[escaped(cell) for cell in row] for row in rows]
    runs = "".join(
        f"<li>{escaped(run.name)}: {escaped(sentence(run))}</li>" for run in compared.runs
    )
    body = (
        f'<header><p class="verdict">{words}</p><h1>{escaped(conclusion(compared))}</h1></header>'
        f"<ul>{runs}</ul>{table(head, cells, range(1, len(head) - 1))}"
    )
    return write(path, whole("fleet runs compared", verdict, body))


def page(run: RunRecord) -> str:
    """Return the whole page."""
    body = "\n".join(
        filter(
            None,
            (
                _head(run),
                _tiles(run),
                _levels(run),
                _starts(run),
                _recovery(run),
                _limits(run),
                _plots(run),
                _requests(run),
                about(run),
            ),
        )
    )
    return whole(f"fleet run {run.name}: {run.verdict.words}", run.verdict, body)


def _head(run: RunRecord) -> str:
    more = "".join(f"<li>{escaped(each)}</li>" for each in run.reasons)
    about = [f"run {run.name}", str(run.about.get("started") or ""), f"{duration(run.wall_s)} long"]
    about.append(f"fleet {run.about['fleet_version']}" if "fleet_version" in run.about else "")
    return (
        f'<header><p class="verdict">{escaped(run.verdict.words)}</p>'
        f"<h1>{escaped(sentence(run))}</h1>"
        f'<p class="about">{escaped(" · ".join(filter(None, about)))}</p></header>'
        + (f'<p class="broken">{escaped(refused(run))}</p>' if refused(run) else "")
        + (f"<ul>{more}</ul>" if len(run.reasons) > 1 else "")
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
    listed = [
        (
            f"{count('nodes.ready')} / {count('nodes.requested')}",
            "nodes Ready, at the end",
            MEASURED,
        ),
        (duration(ready_s) if ready_s is not None else "-", "until all were Ready", MEASURED),
        (count("nodes.ever_not_ready"), "nodes Ready, then not", MEASURED),
        (count("pods.started"), "pods started", MEASURED),
        (ms("pods.start_ms.p99"), "pod start p99, in all", SIMULATED),
        (f"{requests:,}", "requests of the nodes", MEASURED),
        (count("lease.missed"), "Leases missed", MEASURED),
        (ms("process.timer_lag_ms.p99"), "timer lag p99: fleet's own error", MEASURED),
    ]
    return tiles(listed)


def _levels(run: RunRecord) -> str:
    levels = run.rows("slis")
    if not levels:
        return ""
    names = ("indicator", "measured", "as nodes saw it", "limit", "by", "samples", "")
    rows = []
    for level in levels:
        sli = str(level["sli"])
        known = INDICATORS.get(sli)
        words = known.words if known is not None else ""
        if level["worst"]:
            words += f" ({level['worst']})"
        percentile = (
            f" p{level['percentile']:g}" if known is not None and known.has_percentile else ""
        )
        cells = (
            f"<b>{escaped(sli)}</b>{percentile} {tag(MEASURED)}<small>{escaped(words)}</small>",
            escaped(of_unit(sli, level["measured"])),
            escaped(of_unit(sli, level["client"])) if level["client"] is not None else "",
            escaped(of_unit(sli, level["limit"])) if level["limit"] is not None else "",
            escaped(level["source"]),
            f"{level['samples']:,}",
            _mark(level),
        )
        rows.append(
            "<tr>"
            + "".join(
                f'<td data-name="{name}"{" class=n" if name in NUMBERS else ""}>{cell}</td>'
                for name, cell in zip(names, cells, strict=True)
            )
            + "</tr>"
        )
    head = "".join(f"<th{' class=n' if name in NUMBERS else ''}>{name}</th>" for name in names)
    return (
        "<h2>Service levels</h2>"
        f'<table class="slis"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


NUMBERS = ("measured", "as nodes saw it", "limit", "samples")


def _mark(level: Json) -> str:
    note = f"<small>{escaped(level['note'])}</small>" if level["note"] else ""
    if level["met"] is None:
        return note or "<small>no limit</small>"
    if not level["judged"]:
        side = "within its limit" if level["met"] else "over its limit"
        return f'<span class="unjudged">{side}</span>{note or "<small>not judged</small>"}'
    mark = (
        '<span class="met">✓ met</span>' if level["met"] else '<span class="broken">✗ broken</span>'
    )
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


def _limits(run: RunRecord) -> str:
    listed = "".join(f"<li>{escaped(each)}</li>" for each in not_proven(run))
    return f"<h2>What this run does not prove</h2><ul>{listed}</ul>"


def _plots(run: RunRecord) -> str:
    marks = list(run.rows("phases"))
    broken = first_broken(run)
    if broken is not None and broken.at_s is not None:
        marks.append({"name": "first over its limit", "kind": "broken", "from_s": broken.at_s})
    parts = ", ".join(
        f"{escaped(each['name'])} {clock(cast('float', each['from_s']))}"
        + (f" to {clock(cast('float', each['until_s']))}" if each.get("until_s") else "")
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
