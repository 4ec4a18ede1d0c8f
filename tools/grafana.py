"""Writes the Grafana dashboard of the chart, charts/fleet/files/dashboard.json (`make docs`).

Its panels name metrics of fleet/report/figures.py; tests/unit/test_grafana.py holds them to it.
What a report plots too has its name and colours (fleet/report/appearance.py).
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from fleet.report.appearance import CHARTS, FAINT, GREY, PALETTE

ROOT = Path(__file__).resolve().parent.parent
DASHBOARD = ROOT / "charts/fleet/files/dashboard.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
COLUMNS, WIDTH, HEIGHT = 3, 8, 8
OURS = 'job=~"$job"'
PACE = "[$__rate_interval]"


class Panel(NamedTuple):
    """One graph: queries by the legend of their lines."""

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""
    lines: dict[str, int] = {}  # noqa: RUF012 - never changed
    """The place in the palette of lines that a report has, too."""


def plot(name: str, unit: str, queries: dict[str, str], text: str = "") -> Panel:
    """Return the panel of a plot that a report has, too."""
    is_any = any("{{" in legend for legend in queries)
    lines = {k: place for k, place in CHARTS[name].lines.items() if is_any or k in queries}
    return Panel(CHARTS[name].title, unit, queries, text, lines)


def quantile(share: float, metric: str, by: str = "", where: str = OURS) -> str:
    """Return the query for a percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    inner = f"sum by ({labels}) (rate({metric}_bucket{{{where}}}{PACE}))"
    return f"histogram_quantile({share:g}, {inner})"


def rate(metric: str, by: str = "", where: str = OURS) -> str:
    """Return the query for the growth of a counter."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}{PACE}))"


def total(metric: str, by: str = "") -> str:
    """Return the query for a state."""
    return f"sum{f' by ({by})' if by else ''} ({metric}{{{OURS}}})"


KIND = "{{verb}} {{resource}}"
FLEET = (
    plot("nodes", "short", {"{{condition}}": total("fleet_nodes", "condition")}),
    plot("pods", "short", {"{{phase}}": total("fleet_pods", "phase")}),
    Panel(
        "Figures are sound",
        "short",
        {"valid": f"min(fleet_valid{{{OURS}}})"},
        "0 after a bug in fleet: its figures are worth nothing then",
    ),
    plot("requests", "reqps", {KIND: rate("fleet_requests_total", "verb, resource")}),
    Panel(
        "Latency p99, as nodes see it",
        "s",
        {KIND: quantile(0.99, "fleet_request_duration_seconds", "verb, resource")},
    ),
    Panel(
        "Answers that are no 2xx",
        "reqps",
        {
            "{{code}} {{verb}} {{resource}}": rate(
                "fleet_requests_total", "code, verb, resource", f'{OURS},code!~"2.."'
            )
        },
        "0 is no answer; 404 and 409 are part of a registration",
    ),
    plot(
        "leases",
        "s",
        {
            "p50": quantile(0.5, "fleet_lease_lateness_seconds"),
            "p99": quantile(0.99, "fleet_lease_lateness_seconds"),
        },
    ),
    Panel("Leases missed", "short", {"missed/s": rate("fleet_leases_missed_total")}),
    plot(
        "starts",
        "s",
        {
            "p50, without simulated time": quantile(0.5, "fleet_pod_start_sli_seconds"),
            "p99, without simulated time": quantile(0.99, "fleet_pod_start_sli_seconds"),
            "p99 in all": quantile(0.99, "fleet_pod_start_seconds"),
        },
    ),
    Panel(
        "Watches",
        "short",
        {
            "open": total("fleet_watches"),
            "opened again/s": rate("fleet_watch_restarts_total"),
        },
    ),
    plot("watches", "short", {"events to the nodes": rate("fleet_watch_events_total")}),
    plot(
        "lag",
        "s",
        {
            "p50": quantile(0.5, "fleet_timer_lag_seconds"),
            "p99": quantile(0.99, "fleet_timer_lag_seconds"),
        },
        "a run whose p99 is over 100 ms is invalid",
    ),
    plot("own", "short", {"fleet": rate("process_cpu_seconds_total")}),
    Panel("Waits of fleet's own clients", "s", {"p99": quantile(0.99, "fleet_throttling_seconds")}),
    plot("memory", "bytes", {"fleet": total("process_resident_memory_bytes")}),
    Panel(
        "Node agents",
        "short",
        {
            "{{agent}} running": total("fleet_agents", "agent"),
            "{{agent}} events/s": rate("fleet_agent_watch_events_total", "agent"),
        },
    ),
)
SERVER = (
    Panel(
        "API latency p99, as the server sees it",
        "s",
        {
            "{{verb}} {{resource}} ({{scope}})": quantile(
                0.99,
                "apiserver_request_sli_duration_seconds",
                "verb, resource, scope",
                'subresource!~"log|exec|attach|portforward|proxy"',
            )
        },
        "SIG Scalability: 1 s for single objects, 30 s for lists",
    ),
    plot(
        "clients",
        "reqps",
        {
            "{{flow_schema}}": rate(
                "apiserver_flowcontrol_dispatched_requests_total", "flow_schema", ""
            )
        },
    ),
    plot(
        "inflight",
        "short",
        {
            "executing": "sum(apiserver_flowcontrol_current_executing_requests)",
            "queued": "sum(apiserver_flowcontrol_current_inqueue_requests)",
        },
    ),
)


def panels() -> Iterator[dict[str, object]]:
    """Yield rows and panels with their places."""
    top = number = 0
    rows = (("Fleet", FLEET), ("Control plane, if this Prometheus scrapes it", SERVER))
    for title, listed in rows:
        number += 1
        place = {"h": 1, "w": COLUMNS * WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place}
        top += 1
        for at, panel in enumerate(listed):
            number += 1
            x, y = at % COLUMNS * WIDTH, top + at // COLUMNS * HEIGHT
            yield _panel(number, panel, {"h": HEIGHT, "w": WIDTH, "x": x, "y": y})
        top += -(-len(listed) // COLUMNS) * HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, object]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0},
            "overrides": [_coloured(*line) for line in panel.lines.items()],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": DATASOURCE,
                "expr": expr,
                "legendFormat": legend,
            }
            for at, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


def _coloured(label: str, place: int) -> dict[str, object]:
    """Return what gives a line its colour: one that neither light nor dark paper hides."""
    hue = FAINT.dark if place == GREY else PALETTE[place].light
    return {
        "matcher": {"id": "byName", "options": label},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": hue}}],
    }


def dashboard() -> dict[str, object]:
    """Return what Grafana imports."""
    job = {
        "name": "job",
        "type": "query",
        "label": "fleet",
        "datasource": DATASOURCE,
        "query": "label_values(fleet_kubelets, job)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data"}
    return {
        "uid": "fleet-emulator",
        "title": "fleet",
        "tags": ["fleet", "kubernetes"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [source, job]},
        "panels": list(panels()),
    }


def text() -> str:
    """Return the file."""
    return orjson.dumps(dashboard(), option=orjson.OPT_INDENT_2).decode() + "\n"


def main() -> None:
    """Write it."""
    DASHBOARD.write_text(text())
    sys.stdout.write(f"{DASHBOARD}\n")


if __name__ == "__main__":
    main()
