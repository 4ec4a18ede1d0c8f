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
from fleet.report.control_plane import REJECTED, REQUESTS, Exposition, Samples, added, quantile
from fleet.report.figure import Json
from fleet.report.report import TIMER_LAG_LIMIT_MS
from fleet.report.run_directory import RunRecord
from fleet.report.service_levels import MUTATING, POD_STARTUP, calls_of, words

POINTS_MAX = 300
KINDS_SHOWN = 5
SAMPLES_LEAST = 10  # between two samples of the control plane, for a percentile to say anything

Point = tuple[float, float]
Points = list[Point]
Lines = Mapping[str, Points]  # the lines of a plot by their labels
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
    limits: Mapping[str, float] = {}  # lines across the plot, by their labels

    @property
    def title(self) -> str:
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


def pods(run: RunRecord) -> Lines:
    """Return how many pods ran over time: the rates of the time series, added up."""
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


class Period(NamedTuple):
    """What a component counted between two samples."""

    at_s: float
    span_s: float
    told: Exposition


def periods(samples: Samples, component: str) -> list[Period]:
    """Return what a component counted between each two samples."""
    return [
        Period(now.at_s, now.at_s - before.at_s, now.told.since(before.told))
        for before, now in pairwise(samples.of.get(component, []))
        if now.at_s - before.at_s >= 0.5
    ]


def rates(found: Iterable[Period], family: str) -> Points:
    """Return how much a family of counters grew per second."""
    return [
        (each.at_s, total / each.span_s)
        for each in found
        if (total := each.told.total(family)) is not None
    ]


def gauges(samples: Samples, component: str, family: str, factor: float = 1.0) -> Points:
    """Return the sum of a family of gauges at each sample."""
    return [
        (each.at_s, total * factor)
        for each in samples.of.get(component, [])
        if (total := each.told.total(family)) is not None
    ]


def quantiles(found: Iterable[Period], family: str, factor: float = 1.0) -> Points:
    """Return the 99th percentile of each period; of a family's series the highest."""
    points: Points = []
    for at_s, _, told in found:
        values = [
            quantile(0.99, told.bounds.get(family, []), buckets) or 0.0
            for (name, _), buckets in told.buckets.items()
            if name == family and buckets[-1] >= SAMPLES_LEAST
        ]
        points += [(at_s, max(values) * factor)] if values else []
    return points


def _server_p99(found: Iterable[Period], *, is_write: bool) -> Points:
    points: Points = []
    for at_s, _, told in found:
        calls = [each for each in calls_of(told) if each.scope == "resource"]
        rows = [each.buckets for each in calls if (each.verb in MUTATING) is is_write]
        value = quantile(0.99, told.bounds.get(REQUESTS, []), added(rows)) if rows else None
        if value is not None:
            points.append((at_s, value * 1e3))
    return points


def _etcd_mean(found: Iterable[Period]) -> Points:
    points: Points = []
    for at_s, _, told in found:
        if count := told.total("etcd_request_duration_seconds_count"):
            total_s = told.total("etcd_request_duration_seconds_sum") or 0.0
            points.append((at_s, total_s / count * 1e3))
    return points


COMPONENTS = {
    "API server": APISERVER,
    "etcd": ETCD,
    "scheduler": SCHEDULER,
    "controllers": CONTROLLER_MANAGER,
}
CPU = "process_cpu_seconds_total"
COMMIT = "etcd_disk_backend_commit_duration_seconds"
FLOW = "apiserver_flowcontrol_"


def server_lines(samples: Samples) -> dict[str, dict[str, Points]]:
    """Return what the control plane measured of itself, by plot and line.

    A report plots all of it, and a dashboard the last point of each line.
    """
    found = {name: periods(samples, name) for name in COMPONENTS.values()}
    apiserver, memory = found[APISERVER], "process_resident_memory_bytes"
    return {
        "latency": {
            "writes p99, server": _server_p99(apiserver, is_write=True),
            "reads p99, server": _server_p99(apiserver, is_write=False),
        },
        "cpu": {label: rates(found[name], CPU) for label, name in COMPONENTS.items()},
        "memory": {
            label: gauges(samples, name, memory, 1e-6) for label, name in COMPONENTS.items()
        },
        "inflight": {
            "executing": gauges(samples, APISERVER, f"{FLOW}current_executing_requests"),
            "queued": gauges(samples, APISERVER, f"{FLOW}current_inqueue_requests"),
            "rejected/s": rates(apiserver, REJECTED),
        },
        "etcd": {
            "commit p99, etcd": quantiles(found[ETCD], COMMIT, 1e3),
            "mean of a request, API server": _etcd_mean(apiserver),
        },
        "watches": {"events of all watches": rates(apiserver, "apiserver_watch_events_total")},
    }


def newest(samples: Samples) -> dict[str, float]:
    """Return the last value of each line, by `plot/line`."""
    found = {
        f"{plot}/{label}": round(points[-1][1], 3)
        for plot, lines in server_lines(samples).items()
        for label, points in lines.items()
        if points
    }
    if "inflight/executing" in found:  # a counter that nothing has counted yet is not there
        found.setdefault("inflight/rejected/s", 0.0)
    return found


def cores(run: RunRecord) -> float | None:
    """Return how many cores the API server may use, None if nobody says it."""
    told = gauges(run.samples, APISERVER, "go_sched_gomaxprocs_threads")
    if told:
        return told[-1][1]
    return value_at(run.about, "machine.cores") if run.about.get("local_control_plane") else None


def _clients(run: RunRecord) -> Lines:
    found = [
        (at_s, span_s, told.of(f"{FLOW}dispatched_requests_total"))
        for at_s, span_s, told in periods(run.samples, APISERVER)
    ]
    return {
        name: [(at_s, values.get(name, 0.0) / span_s) for at_s, span_s, values in found]
        for name in _most(values for _, _, values in found)
    }


# ---- the plots ----

OURS, THEIRS = "measured by fleet", "measured by the API server"
ETCD_COMMIT_LIMIT_S = 0.025
"""Source: etcd.io/docs/v3.6/faq, what the warning about slow applies means: p99 of a commit."""


def _limits(run: RunRecord, factor: float, *slis: str) -> dict[str, float]:
    """Return the limits that a run was held to, in the unit of a plot; equal ones are one line."""
    found = {each.limit for each in run.levels if each.sli in slis and each.limit}
    return {f"limit {words(slis[0], limit)}": limit * factor for limit in sorted(found)}


def plots_of(run: RunRecord) -> list[Plot]:
    """Return what there is to show, in the order of the report."""
    own = partial(_own, run)
    server = {
        plot: {label: thin(points, max) for label, points in lines.items()}
        for plot, lines in server_lines(run.samples).items()
    }
    server["latency"] |= {
        "all p99, nodes": own("requests_ms.p99", max),
        "all p50, nodes": own("requests_ms.p50"),
    }
    server["memory"]["fleet"] = own("process.rss_bytes", factor=1e-6)
    server["watches"]["events to the nodes"] = own("watch.events")
    clients = {label: thin(points, fmean) for label, points in _clients(run).items()}
    nodes = {
        "registered": own("nodes.registered"),
        "Ready": own("nodes.ready", min),
        "NotReady": _not_ready(run),
        "lost Ready so far": own("nodes.ever_not_ready", max),
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
    leases = {name: own(f"lease.late_ms.{name}", join) for name, join in SHARES.items()}
    lag = {name: own(f"process.timer_lag_ms.{name}", join) for name, join in SHARES.items()}
    limits = {
        "latency": _limits(run, 1e3, "MutatingApiCallLatency", "SingleObjectReadLatency"),
        "leases": _limits(run, 1e3, "LeaseLateness"),
        "starts": _limits(run, 1.0, POD_STARTUP),
        "cpu": {f"{most:g} cores": most} if (most := cores(run)) else {},
        "etcd": {"advised for commits": ETCD_COMMIT_LIMIT_S * 1e3},
        "lag": {"limit": TIMER_LAG_LIMIT_MS},
    }
    found = (
        Plot("latency", "ms", f"{THEIRS} and by the nodes", server["latency"], is_log=True),
        Plot("requests", "per second", OURS, _request_rates(run), "stack"),
        Plot("cpu", "cores", "measured by its components", server["cpu"]),
        Plot("inflight", "requests", THEIRS, server["inflight"]),
        Plot("clients", "requests/s", THEIRS, clients, "stack"),
        Plot("etcd", "ms", "measured by etcd and API server", server["etcd"], is_log=True),
        Plot("nodes", "nodes", "measured by another client's watch", nodes),
        Plot("pods", "pods", OURS, pods(run)),
        Plot("starts", "s", "of each second", starts),
        Plot("spread", "% of pods", "of the whole run", spread, "bars"),
        Plot("leases", "ms after due", OURS, leases),
        Plot("memory", "MB", "measured", server["memory"]),
        Plot("watches", "per second", "measured by fleet and API server", server["watches"]),
        Plot("own", "cores", OURS, {"fleet": own("process.cpu_s")}),
        Plot("lag", "ms", OURS, lag),
    )
    drawn = (each._replace(limits=limits.get(each.name, {})).with_points() for each in found)
    return [each for each in drawn if each.lines]
