"""What a run measured: `summary.json`, a line of `timeseries.jsonl`, and whether to believe it.

The keys of the summary are fixed (design 4). It is built from `RunFigures`, which whoever ran the
nodes fills in; nothing here asks a server or a clock. A run whose own instrument lagged is invalid,
and says so on its first line.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from typing import NamedTuple, TypeVar

from fleet.errors import Exit
from fleet.metrics import Histogram, merged
from fleet.report.agent_figures import ByName, agent_rates, agents_json, merge_agents
from fleet.report.connection_figures import ConnectionFigures

SCHEMA_VERSION = 1

TIMER_LAG_LIMIT_MS = 100.0
"""A reactor whose 99th percentile is later than this is no instrument: 1 % of a lease's interval.

An unloaded one turns every 20 ms, which is the least lag there is.
"""

Json = dict[str, object]


@dataclass(slots=True, kw_only=True)
class NodeFigures:
    """Nodes of the run. `ready` is what another client's watch has seen."""

    requested: int = 0
    registered: int = 0
    ready: int = 0
    time_to_ready_s: float | None = None
    ever_not_ready: int = 0


@dataclass(slots=True, kw_only=True)
class LeaseFigures:
    """Heartbeats. `late` is how long after its due time a renewal was sent."""

    renewals: int = 0
    interval_max_s: float = 0.0
    late: Histogram = field(default_factory=Histogram)
    missed: int = 0


@dataclass(slots=True, kw_only=True)
class PodFigures:
    """Pods. `start` is from first seen to the server's answer to the Running status."""

    started: int = 0
    deleted: int = 0
    start: Histogram = field(default_factory=Histogram)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """All requests of one kind. `code` is 0 for those that got no answer."""

    verb: str
    resource: str
    code: int
    count: int
    latency: Histogram


@dataclass(slots=True, kw_only=True)
class EventFigures:
    """Events that kubelets recorded."""

    sent: int = 0
    dropped: int = 0


@dataclass(slots=True, kw_only=True)
class WatchFigures:
    """Watches of all nodes. `closed_slow` were ended by the server because we read too slowly."""

    open: int = 0
    restarts: int = 0
    events: int = 0
    closed_slow: int = 0


@dataclass(slots=True, kw_only=True)
class ProcessFigures:
    """Fleet itself."""

    cpu_s: float = 0.0
    rss_bytes: int = 0
    timer_lag: Histogram = field(default_factory=Histogram)
    gc_collections: int = 0


MOMENTS = frozenset({"time_to_ready_s", "interval_max_s"})
"""Figures that are no counters."""

Figures = TypeVar(
    "Figures",
    NodeFigures,
    LeaseFigures,
    PodFigures,
    EventFigures,
    WatchFigures,
    ConnectionFigures,
    ProcessFigures,
)


class Expectation(NamedTuple):
    """One thing that the run was to show."""

    name: str
    is_met: bool
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class RunFigures:
    """Everything that a run measured; the counters only grow."""

    run_id: str
    server_version: str = ""
    etcd_fsync: bool | None = None
    """None on a cluster that fleet did not start."""
    fidelity: str = "kubelet"
    identity: str = "impersonate"
    encoding: str = "json"
    watches: str = "per-node"
    nodes: NodeFigures = field(default_factory=NodeFigures)
    lease: LeaseFigures = field(default_factory=LeaseFigures)
    pods: PodFigures = field(default_factory=PodFigures)
    requests: Sequence[RequestFigures] = ()
    events: EventFigures = field(default_factory=EventFigures)
    watch: WatchFigures = field(default_factory=WatchFigures)
    connections: ConnectionFigures = field(default_factory=ConnectionFigures)
    process: ProcessFigures = field(default_factory=ProcessFigures)
    rejected: Mapping[str, int] = field(default_factory=dict)
    """What the server sent and nobody can read, agents included, by what it was."""
    agents: ByName = field(default_factory=dict)
    """What ran beside the kubelets, which the other figures do not count."""
    expectations: Sequence[Expectation] = ()
    invalid_reasons: Sequence[str] = ()
    """Why the figures cannot be trusted, beyond what they show by themselves."""
    incomplete_reasons: Sequence[str] = ()
    """Why the run did not get to its end."""
    wall_s: float = 0.0

    def verdict(self) -> str:
        """Return `pass`, `fail`, `invalid` or `incomplete`: the gravest that applies."""
        if self.incomplete_reasons:
            return "incomplete"
        if self.all_invalid_reasons():
            return "invalid"
        if not all(expectation.is_met for expectation in self.expectations):
            return "fail"
        return "pass"

    def exit_code(self) -> Exit:
        """Return what the process ends with."""
        return {
            "pass": Exit.OK,
            "fail": Exit.EXPECTATION_FAILED,
            "invalid": Exit.INVALID,
            "incomplete": Exit.INVALID,
        }[self.verdict()]

    def all_invalid_reasons(self) -> list[str]:
        """Return what was reported, and what the instrument says of itself."""
        reasons = list(self.invalid_reasons)
        lag_ms = _ms(self.process.timer_lag, 0.99)
        if lag_ms is not None and lag_ms > TIMER_LAG_LIMIT_MS:
            reasons.append(
                f"fleet itself lagged: timers fired {lag_ms:.0f} ms late (p99), more than "
                f"{TIMER_LAG_LIMIT_MS:.0f} ms"
            )
        if self.watch.closed_slow:
            reasons.append(
                f"fleet read too slowly: the server closed {self.watch.closed_slow:,} watches"
            )
        return reasons

    def request_count(self) -> int:
        """Return all requests of all kinds."""
        return sum(request.count for request in self.requests)


def merge(runs: Sequence[RunFigures]) -> RunFigures:
    """Return the figures of several processes of one run as one; the first one's name it."""
    first = runs[0]
    requests: dict[tuple[str, str, int], Histogram] = {}
    for run in runs:
        for each in run.requests:
            key = (each.verb, each.resource, each.code)
            requests.setdefault(key, Histogram()).merge(each.latency)
    return replace(
        first,
        nodes=_sum([run.nodes for run in runs]),
        lease=_sum([run.lease for run in runs]),
        pods=_sum([run.pods for run in runs]),
        requests=[
            RequestFigures(verb, resource, code, latency.count, latency)
            for (verb, resource, code), latency in requests.items()
        ],
        events=_sum([run.events for run in runs]),
        watch=_sum([run.watch for run in runs]),
        connections=_sum([run.connections for run in runs]),
        rejected=sum((Counter(run.rejected) for run in runs), Counter()),
        agents=merge_agents(run.agents for run in runs),
        process=_sum([run.process for run in runs]),
        invalid_reasons=_distinct(run.invalid_reasons for run in runs),
        incomplete_reasons=_distinct(run.incomplete_reasons for run in runs),
    )


def _sum(parts: Sequence[Figures]) -> Figures:
    """Add figures up: counters, histograms; of the times of single moments the latest."""
    total = replace(parts[0])
    for name in (each.name for each in fields(total)):
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Histogram):
            setattr(total, name, merged(values))
        elif name in MOMENTS:
            setattr(total, name, max((v for v in values if v is not None), default=None))
        else:
            setattr(total, name, sum(values))
    return total


def _distinct(reasons: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(reasons)))


def summary(figures: RunFigures) -> Json:
    """Return what `summary.json` holds: the keys are fixed."""
    reasons = [*figures.incomplete_reasons, *figures.all_invalid_reasons()]
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": figures.run_id,
        "verdict": figures.verdict(),
        "valid": not reasons,
        "invalid_reasons": reasons,
        "expectations": [
            {"name": e.name, "met": e.is_met, "detail": e.detail} for e in figures.expectations
        ],
        "server_version": figures.server_version,
        "etcd_fsync": figures.etcd_fsync,
        "fidelity": figures.fidelity,
        "identity": figures.identity,
        "encoding": figures.encoding,
        "watches": figures.watches,
        "nodes": _nodes(figures.nodes),
        "lease": {
            "renewals": figures.lease.renewals,
            "interval_max_s": round(figures.lease.interval_max_s, 3),
            "late_ms": _percentiles(figures.lease.late) | {"max": _max_ms(figures.lease.late)},
            "missed": figures.lease.missed,
        },
        "pods": {
            "started": figures.pods.started,
            "deleted": figures.pods.deleted,
            "start_ms": _percentiles(figures.pods.start),
            "failed": figures.pods.failed,
        },
        "requests": [_request(request) for request in _sorted(figures.requests)],
        "events": {"sent": figures.events.sent, "dropped": figures.events.dropped},
        "watch": _watch(figures.watch),
        "connections": asdict(figures.connections),
        "rejected": dict(figures.rejected),
        "agents": agents_json(figures.agents),
        "process": _process(figures),
        "wall_s": round(figures.wall_s, 3),
    }


def _nodes(nodes: NodeFigures) -> Json:
    time_to_ready_s = nodes.time_to_ready_s
    return {
        "requested": nodes.requested,
        "registered": nodes.registered,
        "ready": nodes.ready,
        "time_to_ready_s": None if time_to_ready_s is None else round(time_to_ready_s, 3),
        "ever_not_ready": nodes.ever_not_ready,
    }


def _watch(watch: WatchFigures) -> Json:
    return {
        "open": watch.open,
        "restarts": watch.restarts,
        "events": watch.events,
        "closed_slow": watch.closed_slow,
    }


def _process(figures: RunFigures) -> Json:
    process, nodes, requests = figures.process, figures.nodes, figures.request_count()
    return {
        "cpu_s": round(process.cpu_s, 3),
        "rss_bytes": process.rss_bytes,
        "rss_bytes_per_node": process.rss_bytes // nodes.registered if nodes.registered else None,
        "cpu_us_per_request": round(process.cpu_s * 1e6 / requests, 1) if requests else None,
        "timer_lag_ms": _percentiles(process.timer_lag),
        "gc_collections": process.gc_collections,
    }


def _request(request: RequestFigures) -> Json:
    return {
        "verb": request.verb,
        "resource": request.resource,
        "code": request.code,
        "count": request.count,
        "ms": _percentiles(request.latency),
    }


def _sorted(requests: Sequence[RequestFigures]) -> list[RequestFigures]:
    return sorted(requests, key=lambda r: (-r.count, r.resource, r.verb, r.code))


def _percentiles(histogram: Histogram) -> Json:
    return {"p50": _ms(histogram, 0.5), "p99": _ms(histogram, 0.99)}


def _ms(histogram: Histogram, fraction: float) -> float | None:
    """Return a percentile in milliseconds; None without samples, which is not 0."""
    return histogram.percentile_us(fraction) / 1000 if histogram.count else None


def _max_ms(histogram: Histogram) -> float | None:
    return histogram.max_us / 1000 if histogram.count else None


class Totals:
    """The counters as they stood at the last line of the time series."""

    __slots__ = ("counters", "histograms", "requests", "wall_s")

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.counters: dict[str, float] = {}
        self.histograms: dict[str, dict[int, int]] = {}
        self.requests: dict[tuple[str, str, int], tuple[int, dict[int, int]]] = {}

    def rate(self, name: str, value: float, elapsed_s: float) -> float:
        """Return a counter's growth per second, and remember where it stands."""
        before = self.counters.get(name, 0)
        self.counters[name] = value
        return round((value - before) / elapsed_s, 3)

    def since(self, name: str, histogram: Histogram) -> Histogram:
        """Return what a histogram gained, and remember where it stands."""
        gained = histogram.since(self.histograms.get(name, {}))
        self.histograms[name] = histogram.snapshot()
        return gained

    def requests_since(self, figures: RunFigures, elapsed_s: float) -> list[Json]:
        """Return a row for each kind of request that was made in between."""
        rows: list[Json] = []
        for request in figures.requests:
            key = (request.verb, request.resource, request.code)
            count, buckets = self.requests.get(key, (0, {}))
            if request.count == count:
                continue
            rows.append(
                {
                    "verb": request.verb,
                    "resource": request.resource,
                    "code": request.code,
                    "count": round((request.count - count) / elapsed_s, 3),
                    "ms": _percentiles(request.latency.since(buckets)),
                }
            )
            self.requests[key] = (request.count, request.latency.snapshot())
        return rows


def rates(figures: RunFigures, before: Totals, elapsed_s: float) -> Json:
    """Return the summary's figures with counters per second; states stay as they are."""
    lease, pods, events, watch = figures.lease, figures.pods, figures.events, figures.watch
    late = before.since("late", lease.late)
    nodes = figures.nodes
    return {
        "wall_s": round(figures.wall_s, 3),
        "nodes": {
            "registered": nodes.registered,
            "ready": nodes.ready,
            "ever_not_ready": nodes.ever_not_ready,
        },
        "lease": {
            "renewals": before.rate("renewals", lease.renewals, elapsed_s),
            "late_ms": _percentiles(late) | {"max": _max_ms(late)},
            "missed": before.rate("missed", lease.missed, elapsed_s),
        },
        "pods": {
            "started": before.rate("started", pods.started, elapsed_s),
            "deleted": before.rate("deleted", pods.deleted, elapsed_s),
            "start_ms": _percentiles(before.since("start", pods.start)),
            "failed": before.rate("failed", pods.failed, elapsed_s),
        },
        "requests_total": before.rate("requests", figures.request_count(), elapsed_s),
        "requests": before.requests_since(figures, elapsed_s),
        "events": {
            "sent": before.rate("sent", events.sent, elapsed_s),
            "dropped": before.rate("dropped", events.dropped, elapsed_s),
        },
        "watch": {
            "open": watch.open,
            "restarts": before.rate("restarts", watch.restarts, elapsed_s),
            "events": before.rate("events", watch.events, elapsed_s),
            "closed_slow": before.rate("closed_slow", watch.closed_slow, elapsed_s),
        },
        "agents": agent_rates(figures.agents, before.rate, elapsed_s),
        "process": {
            "cpu_s": before.rate("cpu", figures.process.cpu_s, elapsed_s),
            "rss_bytes": figures.process.rss_bytes,
            "timer_lag_ms": _percentiles(before.since("lag", figures.process.timer_lag)),
            "gc_collections": before.rate("gc", figures.process.gc_collections, elapsed_s),
        },
    }
