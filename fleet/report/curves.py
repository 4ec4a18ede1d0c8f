"""What the plots of a report show: series over time, from a run's files.

Points are at most `POINTS_MAX`: of more, those that fall together become one, rates by their mean
and latencies by their highest, so that no spike is lost.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Literal, NamedTuple, cast

from fleet.controlplane.options import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from fleet.report.appearance import CHARTS
from fleet.report.control_plane import REQUESTS, Exposition, added, quantile
from fleet.report.figure import Json
from fleet.report.run_directory import RunRecord
from fleet.report.service_levels import MUTATING, calls_of

POINTS_MAX = 300
KINDS_SHOWN = 5

Point = tuple[float, float]
Points = list[Point]
Lines = Mapping[str, Points]
"""The lines of a plot by their labels."""
Join = Callable[[list[float]], float]
Kind = Literal["lines", "stack", "bars", "sizes"]
SHARES: Mapping[str, Join] = {"p50": fmean, "p99": max}


class Plot(NamedTuple):
    """One plot; `CHARTS` has its title. `source` says whose figures these are."""

    name: str
    unit: str
    source: str
    lines: Lines
    kind: Kind = "lines"
    is_log: bool = False

    @property
    def title(self) -> str:
        """Return what stands above it."""
        return CHARTS[self.name].title

    def with_points(self) -> "Plot":
        """Return the plot with what can be drawn of it: a logarithm has no 0."""
        least = 0 if self.is_log else -inf
        lines = {key: [at for at in points if at[1] > least] for key, points in self.lines.items()}
        return self._replace(lines={key: points for key, points in lines.items() if points})


def thin(points: Sequence[Point], join: Join) -> Points:
    """Return at most `POINTS_MAX` points."""
    if len(points) <= POINTS_MAX:
        return list(points)
    begin, end = points[0][0], points[-1][0]
    width = (end - begin) / POINTS_MAX or 1.0
    bins: dict[int, Points] = {}
    for point in points:
        bins.setdefault(min(int((point[0] - begin) / width), POINTS_MAX - 1), []).append(point)
    return [(each[-1][0], join([value for _, value in each])) for each in bins.values()]


# ---- from the time series ----


def value_at(line: Json, path: str) -> float | None:
    """Return a number of a line of the time series, None if it has none: `nodes.ready`."""
    at: object = line
    for key in path.split("."):
        at = at.get(key) if isinstance(at, dict) else None
    return float(at) if isinstance(at, int | float) else None


def series(run: RunRecord, path: str) -> Iterator[Point]:
    """Yield times and values of one figure."""
    for line in run.lines:
        value = value_at(line, path)
        if value is not None:
            yield cast("float", line["wall_s"]), value


def _own(run: RunRecord, path: str, join: Join = fmean, factor: float = 1.0) -> Points:
    return thin([(at_s, value * factor) for at_s, value in series(run, path)], join)


def _request_rates(run: RunRecord) -> Lines:
    rates = []
    for line in run.lines:
        rate: dict[str, float] = {}
        for row in cast("list[Json]", line.get("requests") or []):
            name = f"{row['verb']} {row['resource']}"
            rate[name] = rate.get(name, 0) + cast("float", row["count"])
        rates.append((cast("float", line["wall_s"]), rate))
    named = _most(rate for _, rate in rates)
    found = {name: thin([(at, rate.get(name, 0)) for at, rate in rates], fmean) for name in named}
    if any(rate.keys() - found.keys() for _, rate in rates):
        rest = [(at, sum(rate[key] for key in rate if key not in named)) for at, rate in rates]
        found["others"] = thin(rest, fmean)
    return found


def _most(counted: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the names that have most in all."""
    totals: Counter[str] = Counter()
    for each in counted:
        totals.update(each)
    return [name for name, count in totals.most_common(KINDS_SHOWN) if count]


def _not_ready(run: RunRecord) -> Points:
    registered = dict(series(run, "nodes.registered"))
    ready = series(run, "nodes.ready")
    return thin([(at, max(0.0, registered[at] - n)) for at, n in ready if at in registered], max)


def _pods(run: RunRecord) -> Lines:
    """Add the rates of the time series up: it has no phases."""
    started = gone = failed = before_s = 0.0
    running: Points = []
    ended: Points = []
    for line in run.lines:
        at_s = cast("float", line["wall_s"])
        span_s, before_s = at_s - before_s, at_s
        started += (value_at(line, "pods.started") or 0) * span_s
        gone += (value_at(line, "pods.deleted") or 0) * span_s
        failed += (value_at(line, "pods.failed") or 0) * span_s
        running.append((at_s, max(0.0, round(started - gone - failed))))
        ended.append((at_s, round(gone)))
    if not started:
        return {}
    found = {"Running": thin(running, fmean), "gone": thin(ended, max)}
    if failed:
        found["Failed, per second"] = _own(run, "pods.failed")
    return found


def _shares(run: RunRecord, name: str) -> Points:
    """Return how a histogram is spread, cumulative, in percent."""
    buckets = run.histograms.get(name, {})
    total, seen = sum(buckets.values()), 0
    points: Points = []
    for us in sorted(buckets):
        seen += buckets[us]
        points.append((us / 1e6, 100 * seen / total))
    return points[:: max(1, len(points) // POINTS_MAX)]


# ---- from the samples of the control plane ----


def periods(run: RunRecord, component: str) -> Iterable[tuple[float, float, Exposition]]:
    """Yield time, length and what was counted between two samples."""
    listed = run.samples.of.get(component, [])
    for before, now in pairwise(listed):
        span_s = now.at_s - before.at_s
        if span_s >= 0.5:
            yield now.at_s, span_s, now.told.since(before.told)


def _rate(run: RunRecord, component: str, family: str) -> Points:
    found = [
        (at_s, total / span_s)
        for at_s, span_s, period in periods(run, component)
        if (total := period.total(family)) is not None
    ]
    return thin(found, fmean)


def _gauge(run: RunRecord, component: str, family: str, factor: float = 1.0) -> Points:
    found = [
        (each.at_s, total * factor)
        for each in run.samples.of.get(component, [])
        if (total := each.told.total(family)) is not None
    ]
    return thin(found, max)


def _server_p99(run: RunRecord, *, is_write: bool) -> Points:
    found: Points = []
    for at_s, _, period in periods(run, APISERVER):
        calls = [each for each in calls_of(period) if each.scope == "resource"]
        rows = [each.buckets for each in calls if (each.verb in MUTATING) is is_write]
        value = quantile(0.99, period.bounds.get(REQUESTS, []), added(rows)) if rows else None
        if value is not None:
            found.append((at_s, value * 1e3))
    return thin(found, max)


def _clients(run: RunRecord) -> Lines:
    family = "apiserver_flowcontrol_dispatched_requests_total"
    rows = [(at_s, span_s, period.of(family)) for at_s, span_s, period in periods(run, APISERVER)]
    return {
        name: thin([(at_s, v.get(name, 0.0) / span_s) for at_s, span_s, v in rows], fmean)
        for name in _most(values for _, _, values in rows)
    }


def _commit_p99(run: RunRecord) -> Points:
    name = "etcd_disk_backend_commit_duration_seconds"
    found: Points = []
    for at_s, _, period in periods(run, ETCD):
        value = quantile(0.99, period.bounds.get(name, []), period.buckets.get((name, ""), []))
        if value is not None:
            found.append((at_s, value * 1e3))
    return thin(found, max)


def _etcd_mean(run: RunRecord) -> Points:
    found: Points = []
    for at_s, _, period in periods(run, APISERVER):
        if count := period.total("etcd_request_duration_seconds_count"):
            total_s = period.total("etcd_request_duration_seconds_sum") or 0.0
            found.append((at_s, total_s / count * 1e3))
    return thin(found, max)


COMPONENTS = {
    "API server": APISERVER,
    "etcd": ETCD,
    "scheduler": SCHEDULER,
    "controllers": CONTROLLER_MANAGER,
}
OURS, THEIRS = "measured by fleet", "measured by the API server"
FLOW = "apiserver_flowcontrol_"


def plots_of(run: RunRecord) -> list[Plot]:
    """Return what there is to show, in the order of the report."""
    own, rate, gauge = partial(_own, run), partial(_rate, run), partial(_gauge, run)
    latency = {
        "writes p99, server": _server_p99(run, is_write=True),
        "reads p99, server": _server_p99(run, is_write=False),
        "all p99, nodes": own("requests_ms.p99", max),
        "all p50, nodes": own("requests_ms.p50"),
    }
    nodes = {
        "registered": own("nodes.registered"),
        "Ready": own("nodes.ready", min),
        "NotReady": _not_ready(run),
        "were Ready, then not": own("nodes.ever_not_ready", max),
    }
    starts = {
        "p99, without simulated time": own("pods.start_sli_ms.p99", max, 1e-3),
        "p50, without simulated time": own("pods.start_sli_ms.p50", factor=1e-3),
        "p99 in all": own("pods.start_ms.p99", max, 1e-3),
    }
    spread = {
        "without simulated time": _shares(run, "pods.start_sli"),
        "in all": _shares(run, "pods.start"),
    }
    cpu = {label: rate(name, "process_cpu_seconds_total") for label, name in COMPONENTS.items()}
    memory = {
        label: gauge(name, "process_resident_memory_bytes", 1e-6)
        for label, name in COMPONENTS.items()
    }
    memory["fleet"] = own("process.rss_bytes", factor=1e-6)
    inflight = {
        "executing": gauge(APISERVER, f"{FLOW}current_executing_requests"),
        "queued": gauge(APISERVER, f"{FLOW}current_inqueue_requests"),
        "rejected/s": rate(APISERVER, f"{FLOW}rejected_requests_total"),
    }
    etcd = {"commit p99, etcd": _commit_p99(run), "mean of a request, API server": _etcd_mean(run)}
    watches = {
        "events to the nodes": own("watch.events"),
        "events of all watches": rate(APISERVER, "apiserver_watch_events_total"),
    }
    leases = {name: own(f"lease.late_ms.{name}", join) for name, join in SHARES.items()}
    lag = {name: own(f"process.timer_lag_ms.{name}", join) for name, join in SHARES.items()}
    found = (
        Plot("requests", "per second", OURS, _request_rates(run), "stack"),
        Plot("latency", "ms", f"{THEIRS} and by the nodes", latency, is_log=True),
        Plot("clients", "requests/s", THEIRS, _clients(run), "stack"),
        Plot("leases", "ms after due", OURS, leases),
        Plot("nodes", "nodes", "measured by another client's watch", nodes),
        Plot("pods", "pods", OURS, _pods(run)),
        Plot("starts", "s", "of each second, measured; the rest simulated", starts),
        Plot("spread", "% of pods", "measured", spread, "bars"),
        Plot("cpu", "cores", "measured by its components", cpu),
        Plot("memory", "MB", "measured", memory),
        Plot("inflight", "requests", THEIRS, inflight),
        Plot("etcd", "ms", "measured by etcd and API server", etcd, is_log=True),
        Plot("watches", "per second", "measured by fleet and API server", watches),
        Plot("own", "cores", OURS, {"fleet": own("process.cpu_s")}),
        Plot("lag", "ms", OURS, lag),
    )
    return [shown for each in found if (shown := each.with_points()).lines]
