"""The HTML report of a run: one file that needs no network, for readers who decide and who debug.

The verdict, the sentence, what limited the run, the service levels with their limits, recovery, and
what the run does not prove come first. A figure that was not measured says what it is. Contents
stand on the left; on a narrow screen long sections are folded.

Jinja2 fills the templates in `assets`. It escapes every text from a file, a cluster or an option.
The page's Content-Security-Policy allows one style and one script, both by their hash, and forbids
everything else. The script is uPlot with `plots.js`, which draws the series that the page holds as
JSON. Where scripts do not run, a table under each plot shows the range of each series.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import cast

import orjson

from fleet.metrics import is_failure
from fleet.report.appearance import places, variable, variables
from fleet.report.curves import Plot, plots_of, pods
from fleet.report.display import clock
from fleet.report.figure import Json
from fleet.report.findings import first_broken, not_proven, of_unit, recoveries, sentence
from fleet.report.limits import NEAR, limited_by, resources, stored
from fleet.report.report import Outcome, Phase
from fleet.report.run_directory import Request, RunRecord, write_whole
from fleet.report.service_levels import INDICATORS, level_words
from fleet.report.summary_text import duration, refused_words, size

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("uplot/LICENSE", "uplot/uPlot.iife.min.js", "plots.js")
POLICY = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; "
    "base-uri 'none'; form-action 'none'"
)
IN_SCRIPT = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
"""What could end the script element that holds JSON, or a line of it."""
LABEL_MAX = 36  # characters of a series' or phase's name; longer ones would leave the plot no room


def whole(template: str, title: str, verdict: Outcome, values: Mapping[str, object]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - 30 ms
    from markupsafe import Markup  # noqa: PLC0415

    templates = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {"clock": clock, "of_unit": of_unit}
    plots = {"content": Markup(values["content"])}  # noqa: S704 - `drawn` has escaped it
    body = templates.get_template(template).render({**values, **plots})
    shades = {"light": variables(dark=False), "dark": variables(dark=True)}
    own_style = Template((ASSETS / "page.css").read_text("utf-8")).substitute(shades)
    style = (ASSETS / "uplot/uPlot.min.css").read_text("utf-8") + own_style
    licence, *scripts = ((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
    script = "/*\n{}\n*/\n{}\n{}".format(licence, *scripts)
    return templates.get_template("page.html").render(
        title=title,
        verdict=verdict,
        policy=Markup(POLICY.format(style=_hash(style), script=_hash(script))),  # noqa: S704
        style=Markup(style),  # noqa: S704 - our own files
        script=Markup(script),  # noqa: S704
        contents=re.findall(r'<section id="([\w-]+)">\s*(?:<.*>)?<h2>([\w ]+)', body),
        body=Markup(body),  # noqa: S704 - of a template that escapes
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def drawn(plots: Sequence[Plot], phases: Sequence[Phase] = (), until_s: float = 0.0) -> Json:
    """Return plots for a template: each with its ranges, and the JSON that the script draws.

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
    return {
        "drawn": [(plot, list(_ranges(plot))) for plot in plots],
        "content": content.translate(IN_SCRIPT),
    }


def _ranges(plot: Plot) -> Iterable[tuple[str, ...]]:
    """Yield the lowest, the highest and the last value of each series."""
    for label, points in plot.lines.items():
        values = [value for _, value in points]
        yield label, *(f"{value:,.4g}" for value in (min(values), max(values), values[-1]))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _short(name: str) -> str:
    return name if len(name) <= LABEL_MAX else f"{name[: LABEL_MAX - 3]}..."


REPORT = "report.html"
SHARD_COLUMNS = {
    "nodes": "nodes",
    "Ready": "ready",
    "after s": "time_to_ready_s",
    "pods": "pods_started",
    "requests": "requests",
    "p99 ms": "request_p99_ms",
    "pod start": "pod_start_p99_ms",
    "Lease late": "lease_late_p99_ms",
    "timer lag": "timer_lag_p99_ms",
    "CPU s": "cpu_s",
}
ROWS_SHOWN = 15


def write_report(run: RunRecord, path: Path | None = None) -> Path:
    """Write the page and return where it is. Raises SetupError if that is not possible."""
    return write_whole(path or run.path / REPORT, page(run).encode())


def page(run: RunRecord) -> str:
    about, found, broken = run.about, resources(run), first_broken(run)
    cluster = f"cluster {about['cluster']}" if "cluster" in about else ""
    version = f"fleet {about['fleet_version']}" if "fleet_version" in about else ""
    marks = list(run.phases)
    if broken is not None and broken.at_s is not None:
        marks.append(Phase(name="first over its limit", kind="broken", from_s=broken.at_s))
    errors = [each for each in run.requests if is_failure(each.resource, each.code)]
    others = [each for each in run.requests if not is_failure(each.resource, each.code)]
    values = {
        "run": run,
        "sentence": sentence(run),
        "made": (
            "local control plane" if about.get("local_control_plane") else cluster,
            str(about.get("started", ""))[:16].replace("T", " "),
            f"{duration(run.wall_s)} long",
            version,
        ),
        "refused": refused_words(run.requests),
        "figures": _figures(run),
        "limited": limited_by(run, found),
        "resources": found,
        "near": NEAR,
        "levels": [
            (
                each,
                INDICATORS[each.sli].words if each.sli in INDICATORS else "",
                level_words(each.sli, each.percentile).removeprefix(each.sli),
            )
            for each in run.levels
        ],
        "starts": _starts(run),
        "shards": _shards(run),
        "shard_columns": ("shard", "state", *SHARD_COLUMNS),
        "recoveries": [
            (
                each.fault,
                clock(each.from_s),
                clock(each.until_s),
                f"{each.lost:,}",
                duration(each.took_s) if each.took_s is not None else "not seen",
            )
            for each in recoveries(run)
        ],
        "not_proven": not_proven(run),
        "has_broken": broken is not None,
        "marks": [
            f"{each.name} {clock(each.from_s)}"
            + (f" to {clock(each.until_s)}" if each.until_s else "")
            for each in marks
        ],
        "errors": [_cells(each) for each in sorted(errors, key=lambda each: each.code != 429)],
        "others": [_cells(each) for each in others],
        "shown": ROWS_SHOWN,
        "parts": about_parts(run),
        **drawn(plots_of(run), marks, run.wall_s),
    }
    return whole("report.html", f"{run.title}: {run.verdict.words}", run.verdict, values)


def _figures(run: RunRecord) -> list[tuple[str, str]]:
    """Return the size of the run, and what became of it."""

    def count(path: str) -> str:
        value = run.number(path)
        return "-" if value is None else f"{value:,.0f}"

    ready_s, nodes = run.number("nodes.time_to_ready_s"), run.number("nodes.requested")
    lag_ms = run.number("process.timer_lag_ms.p99")
    requests = sum(each.count for each in run.requests)
    requests = requests or int(run.number("requests_total") or 0)
    running = max((value for _, value in pods(run).get("Running", [])), default=0.0)
    kept = stored(run)
    return [
        (f"{count('nodes.ready')} / {count('nodes.requested')}", "nodes Ready at the end"),
        (duration(ready_s) if ready_s is not None else "-", "until all were Ready"),
        (count("nodes.ever_not_ready"), "nodes that lost Ready"),
        (count("pods.started"), "pods started"),
        (f"{running / nodes:,.1f}" if nodes else "-", "pods per node, at most"),
        (size(int(kept[-1][1])) if kept else "-", "size of etcd at the end"),
        (f"{requests:,}", "requests of the nodes"),
        (f"{requests / run.wall_s:,.0f}/s" if run.wall_s else "-", "requests, mean"),
        (count("lease.missed"), "Leases missed"),
        ("-" if lag_ms is None else _in_ms(lag_ms), "timer lag p99, fleet's own error"),
    ]


SIMULATED, INPUT = "simulated", "input"
STARTS = (
    ("scheduler", "start_scheduler_ms", "", "from its queue to the binding"),
    ("API server", "start_api_ms", "", "requests that the start waited for"),
    ("kubelet", "start_fleet_ms", "", "its sync loop, and delays of fleet itself"),
    ("machine", "start_simulated_ms", SIMULATED, "sandbox, image pulls, container starts, hooks"),
    ("in all, without the scheduler", "start_ms", SIMULATED, "percentiles do not add up"),
)
"""What a pod's start is made of, in the order in which it passes them."""


def _starts(run: RunRecord) -> list[tuple[str, ...]]:
    """Return where pods spent the time of their start; nothing of a run without pods."""
    if run.number("pods.start_ms.p50") is None:
        return []
    found = []
    for part, key, kind, words in STARTS:
        values = [run.number(f"pods.{key}.{share}") for share in ("p50", "p99")]
        shown = ["not available" if value is None else _in_ms(value) for value in values]
        found.append((part, kind, words, *shown))
    return found


def _shards(run: RunRecord) -> list[tuple[object, ...]]:
    """Return a row for each process that shared the nodes."""
    found = []
    for row in run.rows("shards"):
        starts = f", {row['starts']} starts" if row.get("starts") != 1 else ""
        slowest = ", slowest" if row["name"] == run.get("slowest_shard") else ""
        values = (row.get(key) for key in SHARD_COLUMNS.values())
        cells = ("-" if each is None else f"{each:,.1f}".removesuffix(".0") for each in values)
        found.append((row["name"], f"{row['state']}{slowest}{starts}", *cells))
    return found


def _in_ms(value: float) -> str:
    return f"{value:,.0f} ms" if value < 1e4 else f"{value / 1e3:,.1f} s"


def _cells(kind: Request) -> tuple[object, ...]:
    """Return a kind of request as a row of a table."""
    shown = ("-" if (value := kind.ms[key]) is None else f"{value:,.1f}" for key in ("p50", "p99"))
    return (kind.verb, kind.resource, kind.code or "none", f"{kind.count:,}", *shown)


def about_parts(run: RunRecord) -> list[tuple[str, str, Json]]:
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
        "CPU per request": f"{a_request:,.0f} us" if a_request is not None else None,
        "metrics of the control plane": cost,
        "requests for itself": ", ".join(f"{name} {count}" for name, count in asked.items()),
    }
    for key, value in options.items():
        name = f"--{key.removesuffix('_ns').replace('_', '-')}"
        is_time = key.endswith("_ns") and isinstance(value, int)
        versions[name] = duration(cast("int", value) / 1e9) if is_time else value
    return [("Configuration", INPUT, versions), ("Machine", "", machine), ("fleet itself", "", own)]
