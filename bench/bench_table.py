"""The table of the bench: figures of runs that were valid, and of the others why they were not."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
VALID = "valid"
ROWS = (
    ("all_ready_s", "all Ready after", "s"),
    ("bring_up_fleet_cpu_s", "CPU of fleet until then, start of the process included", "s"),
    ("bring_up_controlplane_cpu_s", "CPU of the control plane until then", "s"),
    ("bring_up_requests", "requests until then", ""),
    ("idle_cpu_percent", "CPU of fleet, idle", "% of a core"),
    ("idle_renewals_per_s", "lease renewals, idle", "/s"),
    ("idle_rss_mb", "memory of fleet, idle", "MB"),
    ("lease_late_p99_ms", "lease lateness p99, idle", "ms"),
    ("lease_interval_max_s", "longest renew interval", "s"),
    ("ever_not_ready", "nodes that went NotReady", ""),
    ("idle_apiserver_cpu_percent", "CPU of the API server, idle", "% of a core"),
    ("apiserver_rss_mb", "memory of the API server", "MB"),
    ("pods_running_s", "bound pods all Running after", "s"),
    ("pods_gone_s", "all gone after", "s"),
)
NO_FIGURE = "-"


def invalid(*reasons: str) -> Json:
    """Return what is known of a run that is no measurement."""
    return {VALID: False, "invalid_reasons": list(reasons)}


def result_of(
    code: int,
    summary: Json | None,
    inside: Json | None,
    series: Sequence[Sequence[Json]],
) -> Json:
    """Return the figures of a run, or why there are none.

    `code` is what it ended with, `inside` what the command in it measured, `series` the time series
    of each of its processes, the first one's first.
    """
    if summary is not None and not summary[VALID]:
        return invalid(*summary["invalid_reasons"])
    if code or summary is None:
        return invalid(f"ended with exit code {code}")
    if inside is None or not series or not all(series):
        return invalid("left no figures")
    return {VALID: True, "invalid_reasons": [], **figures(summary, series, inside)}


def figures(summary: Json, series: Sequence[Sequence[Json]], inside: Json) -> Json:
    """Put the figures of one run together."""
    begin_s, end_s = inside["idle_from_s"], inside["idle_to_s"]
    idle = [[each for each in lines if begin_s <= each["wall_s"] <= end_s] for lines in series]
    late = sorted(each["lease"]["late_ms"]["p99"] or 0.0 for lines in idle for each in lines)
    renewals = [statistics.mean(each["lease"]["renewals"] for each in lines) for lines in idle]
    return {
        "all_ready_s": round(summary["nodes"]["time_to_ready_s"], 1),
        "bring_up_fleet_cpu_s": inside["fleet_cpu_s_at_start"],
        "bring_up_controlplane_cpu_s": inside["controlplane_cpu_s_at_start"],
        "bring_up_requests": round(sum(map(requests_until_ready, series))),
        "idle_cpu_percent": inside["idle_fleet_cpu_percent"],
        "idle_renewals_per_s": round(sum(renewals), 1),
        "idle_rss_mb": inside["idle_fleet_rss_mb"],
        "lease_late_p99_ms": late[int(len(late) * 0.99)],
        "lease_interval_max_s": summary["lease"]["interval_max_s"],
        "ever_not_ready": summary["nodes"]["ever_not_ready"],
        "idle_apiserver_cpu_percent": inside["idle_apiserver_cpu_percent"],
        "apiserver_rss_mb": inside["apiserver_rss_mb"],
        "pods_running_s": inside["pods_running_s"],
        "pods_gone_s": inside["pods_gone_s"],
        "pods": inside["pods"],
        "requests": summary["requests"],
    }


def requests_until_ready(lines: Sequence[Json]) -> float:
    """Return how many requests one process sent until its nodes were Ready."""
    ready = max(each["nodes"]["ready"] for each in lines)
    return float(sum(each["requests_total"] for each in lines if each["nodes"]["ready"] < ready))


def table(results: Mapping[str, Json], nodes: int) -> str:
    """Return the figures as a Markdown table; a run that was not valid has none."""
    columns = list(results.values())
    lines = [
        f"| {nodes:,} nodes | " + " | ".join(f"`{name}`" for name in results) + " |",
        "|---|" + "---|" * len(columns),
        "| valid | " + " | ".join(map(validity, columns)) + " |",
    ]
    for key, label, unit in ROWS:
        cells = [cell(column, key, unit) for column in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def validity(column: Json) -> str:
    """Say whether a run was valid, and if not why."""
    reasons = "; ".join(column["invalid_reasons"]).replace("|", "/")
    return "yes" if column[VALID] else f"no: {reasons}"


def cell(column: Json, key: str, unit: str) -> str:
    if not column[VALID]:
        return NO_FIGURE
    value = column[key]
    return "not in time" if value is None else f"{value:,} {unit}".strip()
