"""What the plots of a report show: series over time, from a run's files.

Points are at most `POINTS_MAX`: of more, those that fall together become one, rates by their mean
and latencies by their highest, so that no spike is lost.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, cast

from fleet.controlplane.options import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from fleet.report.appearance import title_of
from fleet.report.control_plane import REQUESTS, Exposition, added, quantile
from fleet.report.figure import Json
from fleet.report.run_directory import RunRecord
from fleet.report.service_levels import MUTATING, calls_of

POINTS_MAX = 300
KINDS_SHOWN = 5

Point = tuple[float, float]


class Series(NamedTuple):
    """One line of a plot."""

    label: str
    points: list[Point]
    is_faint: bool = False


class Plot(NamedTuple):
    """One plot. `source` says whose figures these are: measured, simulated or input."""

    name: str
    title: str
    unit: str
    series: list[Series]
    source: str
    kind: Literal["lines", "stack", "bars", "sizes"] = "lines"
    is_log: bool = False


def plots_of(run: RunRecord) -> list[Plot]:
    """Return what there is to show, in the order of the report."""
    found = [
        _request_rate(run),
        _latency(run),
        _clients(run),
        _leases(run),
        _nodes(run),
        _pods(run),
        _pod_starts(run),
        _distribution(run),
        _cpu(run),
        _memory(run),
        _inflight(run),
        _etcd(run),
        _watches(run),
        _own(run),
        _lag(run),
    ]
    shown = []
    for plot in found:
        series = [
            each._replace(points=[at for at in each.points if at[1] > 0 or not plot.is_log])
            for each in plot.series
        ]
        if any(each.points for each in series):
            shown.append(plot._replace(series=[each for each in series if each.points]))
    return shown


def thin(points: Sequence[Point], join: Callable[[list[float]], float]) -> list[Point]:
    """Return at most `POINTS_MAX` points."""
    if len(points) <= POINTS_MAX:
        return list(points)
    begin, end = points[0][0], points[-1][0]
    width = (end - begin) / POINTS_MAX or 1.0
    bins: dict[int, list[Point]] = {}
    for point in points:
        bins.setdefault(min(int((point[0] - begin) / width), POINTS_MAX - 1), []).append(point)
    return [(each[-1][0], join([value for _, value in each])) for each in bins.values()]


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


# ---- from the time series ----


def _at(line: Json, path: str) -> float | None:
    at: object = line
    for key in path.split("."):
        at = at.get(key) if isinstance(at, dict) else None
    return float(at) if isinstance(at, int | float) else None


def _own_series(
    run: RunRecord,
    label: str,
    path: str,
    *,
    factor: float = 1.0,
    join: Callable[[list[float]], float] = mean,
    is_faint: bool = False,
) -> Series:
    points = [
        (cast("float", line["wall_s"]), value * factor)
        for line in run.lines
        if (value := _at(line, path)) is not None
    ]
    return Series(label, thin(points, join), is_faint)


def _request_rate(run: RunRecord) -> Plot:
    totals: Counter[str] = Counter()
    rates: list[tuple[float, Counter[str]]] = []
    for line in run.lines:
        rate: Counter[str] = Counter()
        for row in cast("list[Json]", line.get("requests") or []):
            rate[f"{row['verb']} {row['resource']}"] += cast("float", row["count"])  # type: ignore[assignment]
        totals.update(rate)
        rates.append((cast("float", line["wall_s"]), rate))
    named = [name for name, _ in totals.most_common(KINDS_SHOWN)]
    series = [
        Series(name, thin([(at_s, rate[name]) for at_s, rate in rates], mean)) for name in named
    ]
    if len(totals) > len(named):
        rest = [
            (at_s, sum(count for name, count in rate.items() if name not in named))
            for at_s, rate in rates
        ]
        series.append(Series("others", thin(rest, mean), is_faint=True))
    return Plot(
        "requests", title_of("requests"), "per second", series, "measured by fleet", "stack"
    )


def _leases(run: RunRecord) -> Plot:
    series = [
        _own_series(run, "p50", "lease.late_ms.p50", join=mean),
        _own_series(run, "p99", "lease.late_ms.p99", join=max),
    ]
    return Plot("leases", title_of("leases"), "ms after due", series, "measured by fleet")


def _nodes(run: RunRecord) -> Plot:
    series = [
        _own_series(run, "registered", "nodes.registered", is_faint=True),
        _own_series(run, "Ready", "nodes.ready", join=min),
        _not_ready(run),
        _own_series(run, "were Ready, then not", "nodes.ever_not_ready", join=max),
    ]
    return Plot("nodes", title_of("nodes"), "nodes", series, "measured by another client's watch")


def _not_ready(run: RunRecord) -> Series:
    points = []
    for line in run.lines:
        registered, ready = _at(line, "nodes.registered"), _at(line, "nodes.ready")
        if registered is not None and ready is not None:
            points.append((cast("float", line["wall_s"]), max(0.0, registered - ready)))
    return Series("NotReady", thin(points, max))


def _pods(run: RunRecord) -> Plot:
    """Add the rates of the time series up: it has no phases."""
    started = gone = failed = before_s = 0.0
    running: list[Point] = []
    ended: list[Point] = []
    for line in run.lines:
        at_s = cast("float", line["wall_s"])
        span_s, before_s = at_s - before_s, at_s
        started += (_at(line, "pods.started") or 0) * span_s
        gone += (_at(line, "pods.deleted") or 0) * span_s
        failed += (_at(line, "pods.failed") or 0) * span_s
        running.append((at_s, max(0.0, round(started - gone - failed))))
        ended.append((at_s, round(gone)))
    series = [
        Series("Running", thin(running, mean)),
        Series("gone", thin(ended, max), is_faint=True),
    ]
    if failed:
        series.append(_own_series(run, "Failed, per second", "pods.failed"))
    if not started:
        series = []
    return Plot("pods", title_of("pods"), "pods", series, "measured by fleet")


def _pod_starts(run: RunRecord) -> Plot:
    series = [
        _own_series(
            run, "p99, without simulated time", "pods.start_sli_ms.p99", factor=1e-3, join=max
        ),
        _own_series(run, "p50, without simulated time", "pods.start_sli_ms.p50", factor=1e-3),
        _own_series(run, "p99 in all", "pods.start_ms.p99", factor=1e-3, join=max, is_faint=True),
    ]
    return Plot(
        "starts", title_of("starts"), "s", series, "of each second, measured; the rest simulated"
    )


def _distribution(run: RunRecord) -> Plot:
    """Show how pod starts are spread, cumulative."""
    series = []
    for name, label in (
        ("pods.start_sli", "without simulated time"),
        ("pods.start", "in all"),
    ):
        buckets = run.histograms.get(name, {})
        total, seen = sum(buckets.values()), 0
        points: list[Point] = []
        for us in sorted(buckets):
            seen += buckets[us]
            points.append((us / 1e6, 100 * seen / total))
        series.append(
            Series(
                label, points[:: max(1, len(points) // POINTS_MAX)], is_faint=name == "pods.start"
            )
        )
    return Plot("spread", title_of("spread"), "% of pods", series, "measured", "bars")


def _watches(run: RunRecord) -> Plot:
    series = [
        _own_series(run, "events to the nodes", "watch.events"),
        Series(
            "events of all watches",
            _rate(run, APISERVER, "apiserver_watch_events_total"),
            is_faint=True,
        ),
    ]
    return Plot(
        "watches", title_of("watches"), "per second", series, "measured by fleet and API server"
    )


def _own(run: RunRecord) -> Plot:
    series = [_own_series(run, "fleet", "process.cpu_s")]
    return Plot("own", title_of("own"), "cores", series, "measured by fleet")


def _lag(run: RunRecord) -> Plot:
    series = [
        _own_series(run, "p99", "process.timer_lag_ms.p99", join=max),
        _own_series(run, "p50", "process.timer_lag_ms.p50"),
    ]
    return Plot("lag", title_of("lag"), "ms", series, "measured by fleet")


# ---- from the samples of the control plane ----


def periods(run: RunRecord, component: str) -> Iterable[tuple[float, float, Exposition]]:
    """Yield time, length and what was counted between two samples."""
    listed = run.samples.of.get(component, [])
    for before, now in pairwise(listed):
        span_s = now.at_s - before.at_s
        if span_s >= 0.5:
            yield now.at_s, span_s, now.told.since(before.told)


def _rate(run: RunRecord, component: str, family: str) -> list[Point]:
    found = [
        (at_s, total / span_s)
        for at_s, span_s, period in periods(run, component)
        if (total := period.total(family)) is not None
    ]
    return thin(found, mean)


def _gauge(run: RunRecord, component: str, family: str, factor: float = 1.0) -> list[Point]:
    found = [
        (each.at_s, total * factor)
        for each in run.samples.of.get(component, [])
        if (total := each.told.total(family)) is not None
    ]
    return thin(found, max)


def _latency(run: RunRecord) -> Plot:
    writes: list[Point] = []
    reads: list[Point] = []
    for at_s, _, period in periods(run, APISERVER):
        bounds = period.bounds.get(REQUESTS, [])
        calls = [each for each in calls_of(period) if each.scope == "resource"]
        for points, is_write in ((writes, True), (reads, False)):
            rows = [each.buckets for each in calls if (each.verb in MUTATING) is is_write]
            value = quantile(0.99, bounds, added(rows)) if rows else None
            if value is not None:
                points.append((at_s, value * 1e3))
    series = [
        Series("writes p99, server", thin(writes, max)),
        Series("reads p99, server", thin(reads, max)),
        _own_series(run, "all p99, nodes", "requests_ms.p99", join=max),
        _own_series(run, "all p50, nodes", "requests_ms.p50", is_faint=True),
    ]
    return Plot(
        "latency",
        title_of("latency"),
        "ms",
        series,
        "measured by the API server and by the nodes",
        is_log=True,
    )


def _clients(run: RunRecord) -> Plot:
    family = "apiserver_flowcontrol_dispatched_requests_total"
    rows = [(at_s, span_s, period.of(family)) for at_s, span_s, period in periods(run, APISERVER)]
    totals: Counter[str] = Counter()
    for _, _, values in rows:
        totals.update({name: int(value) for name, value in values.items()})
    named = [name for name, count in totals.most_common(KINDS_SHOWN) if count]
    series = [
        Series(name, thin([(at_s, v.get(name, 0.0) / span_s) for at_s, span_s, v in rows], mean))
        for name in named
    ]
    return Plot(
        "clients",
        title_of("clients"),
        "requests/s",
        series,
        "measured by the API server",
        "stack",
    )


COMPONENTS = (
    (APISERVER, "API server"),
    (ETCD, "etcd"),
    (SCHEDULER, "scheduler"),
    (CONTROLLER_MANAGER, "controllers"),
)


def _cpu(run: RunRecord) -> Plot:
    series = [
        Series(label, _rate(run, name, "process_cpu_seconds_total")) for name, label in COMPONENTS
    ]
    return Plot("cpu", title_of("cpu"), "cores", series, "measured by its components")


def _memory(run: RunRecord) -> Plot:
    series = [
        Series(label, _gauge(run, name, "process_resident_memory_bytes", 1e-6))
        for name, label in COMPONENTS
    ]
    series.append(_own_series(run, "fleet", "process.rss_bytes", factor=1e-6, is_faint=True))
    return Plot("memory", title_of("memory"), "MB", series, "measured")


def _inflight(run: RunRecord) -> Plot:
    series = [
        Series(
            "executing", _gauge(run, APISERVER, "apiserver_flowcontrol_current_executing_requests")
        ),
        Series("queued", _gauge(run, APISERVER, "apiserver_flowcontrol_current_inqueue_requests")),
        Series(
            "rejected/s", _rate(run, APISERVER, "apiserver_flowcontrol_rejected_requests_total")
        ),
    ]
    return Plot(
        "inflight",
        title_of("inflight"),
        "requests",
        series,
        "measured by the API server",
    )


def _etcd(run: RunRecord) -> Plot:
    commit: list[Point] = []
    for at_s, _, period in periods(run, ETCD):
        name = "etcd_disk_backend_commit_duration_seconds"
        value = quantile(0.99, period.bounds.get(name, []), period.buckets.get((name, ""), []))
        if value is not None:
            commit.append((at_s, value * 1e3))
    asked: list[Point] = []
    for at_s, _, period in periods(run, APISERVER):
        count = period.total("etcd_request_duration_seconds_count")
        if count:
            total_s = period.total("etcd_request_duration_seconds_sum") or 0.0
            asked.append((at_s, total_s / count * 1e3))
    series = [
        Series("commit p99, etcd", thin(commit, max)),
        Series("mean of a request, API server", thin(asked, max)),
    ]
    return Plot(
        "etcd", title_of("etcd"), "ms", series, "measured by etcd and API server", is_log=True
    )
