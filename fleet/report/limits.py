"""What limited a run: how near each part of the control plane came to its limit, and what to try.

Values are averages between two samples of the control plane (5 to 15 s), so a shorter peak is
higher. The bring-up is kept apart: its storm says little about a fleet that is up.
Source: kubernetes/community sig-scalability/slos/slos.md: calls within 1 s, pod starts within 5 s.
"""

from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from fleet.controlplane.options import APISERVER, ETCD, SCHEDULER
from fleet.report.curves import (
    COMMIT,
    COMPONENTS,
    CPU,
    ETCD_COMMIT_LIMIT_S,
    FLOW,
    Point,
    Points,
    cores,
    gauges,
    periods,
    quantiles,
    rates,
    series,
    value_at,
)
from fleet.report.display import clock
from fleet.report.report import TIMER_LAG_LIMIT_MS
from fleet.report.run_directory import RunRecord
from fleet.report.service_levels import SCHEDULING
from fleet.report.summary_text import size

NEAR = 0.8
"""Of a limit: from here on it is what holds the run back."""
CALL_LIMIT_S, POD_START_LIMIT_S = 1.0, 5.0
REFUSED_LIMIT = 0.01
"""Requests per second; a server at rest refuses none."""


class Resource(NamedTuple):
    """A part that may limit a run: what was used of it over time, and how much there is."""

    name: str
    unit: str
    points: Points
    limit: float | None
    """None where nobody says how much there is: the value is shown, and limits nothing."""
    advice: str

    def words(self, value: float) -> str:
        """Return a value with its unit."""
        match self.unit:
            case "bytes":
                return size(int(value))
            case "s":
                return f"{value * 1e3:,.3g} ms" if value < 1 else f"{value:,.3g} s"
            case unit:
                return f"{value:,.3g} {unit}"

    def share(self, value: float) -> float:
        """Return how much of the limit a value is: 1 is all."""
        return value / self.limit if self.limit else 0.0


class Use(NamedTuple):
    """The highest use of a resource: in the bring-up, and after it."""

    resource: Resource
    bring_up: Point | None
    after: Point | None

    @property
    def highest(self) -> Point:
        """Return the higher of both."""
        return max(filter(None, (self.bring_up, self.after)), key=lambda at: at[1])

    @property
    def share(self) -> float:
        """Return how much of its limit was used."""
        return self.resource.share(self.highest[1])


def uses(run: RunRecord) -> list[Use]:
    """Return what is known of each resource, the one nearest to its limit first."""
    ready_s = run.steady.from_s if run.steady is not None else run.wall_s
    found = []
    for each in _resources(run):
        before = [at for at in each.points if at[0] <= ready_s]
        after = [at for at in each.points if at[0] > ready_s]
        most = [max(part, key=lambda at: at[1], default=None) for part in (before, after)]
        if any(most):
            found.append(Use(each, *most))
    return sorted(found, key=lambda use: -use.share)


def limited_by(run: RunRecord, found: list[Use]) -> tuple[str, str]:
    """Return what limited the run, and what to try next: a sentence each."""
    lag_ms = run.number("process.timer_lag_ms.p99") or 0.0
    if lag_ms > TIMER_LAG_LIMIT_MS:
        lag = f"{lag_ms:,.0f} ms late (p99); the limit is {TIMER_LAG_LIMIT_MS:.0f} ms"
        return f"fleet itself limited the run: its timers fired {lag}.", ADVICE_OWN
    known = [each for each in found if each.resource.limit is not None]
    if not known:
        why = run.get("controlplane.problem") or "the run was too short for two samples of metrics"
        return f"What limited the run is not known: {why}.", ADVICE_UNKNOWN
    first = known[0]
    (at_s, value), words = first.highest, first.resource.words
    used = f"{words(value)} at {clock(at_s)}; the limit is {words(first.resource.limit or 0.0)}"
    name = first.resource.name
    if first.share < NEAR:
        return f"Nothing reached its limit. Nearest came the {name}: {used}.", ADVICE_LARGER
    is_after = first.after is not None and first.resource.share(first.after[1]) >= NEAR
    when = "" if is_after else " during the bring-up"
    return f"The {name} limited the run{when}: {used}.", first.resource.advice


ADVICE_OWN = "Give fleet a core of its own, more processes (--processes), or fewer nodes."
ADVICE_UNKNOWN = (
    "Run for at least a minute, as a user who may read /metrics (ClusterRole system:monitoring)."
)
ADVICE_LARGER = (
    "Try more nodes or more pods per node. `fleet capacity` finds the largest number of nodes."
)


def _resources(run: RunRecord) -> Iterable[Resource]:
    samples, most = run.samples, cores(run)
    apiserver, etcd = periods(samples, APISERVER), periods(samples, ETCD)
    yield Resource(
        "CPU of the API server",
        "cores",
        rates(apiserver, CPU),
        most,
        "Give the API server more CPU or add replicas of it, then repeat the run.",
    )
    if run.about.get("local_control_plane"):
        yield Resource(
            "CPU of the control plane and fleet together",
            "cores",
            _machine_cpu(run),
            value_at(run.about, "machine.cores"),
            "The control plane and fleet share this machine: repeat the run on a larger one, or "
            "against a cluster on other machines (--context).",
        )
    yield Resource(
        "wait in the queues of the API server (p99)",
        "s",
        quantiles(apiserver, f"{FLOW}request_wait_duration_seconds"),
        CALL_LIMIT_S,
        "Raise --max-requests-inflight and --max-mutating-requests-inflight of the API server if "
        "its CPU has room, or the shares of the priority level whose requests wait.",
    )
    yield Resource(
        "rate of refused requests",
        "per second",
        rates(apiserver, f"{FLOW}rejected_requests_total"),
        REFUSED_LIMIT,
        "Raise the shares of the priority level that refuses requests, or start nodes more slowly "
        "(--rate).",
    )
    yield Resource(
        "commit time of etcd (p99)",
        "s",
        quantiles(etcd, COMMIT),
        ETCD_COMMIT_LIMIT_S,
        "Give etcd a faster disk or a machine of its own, or keep Events in another etcd "
        "(--etcd-servers-overrides).",
    )
    quota = gauges(samples, ETCD, "etcd_server_quota_backend_bytes")
    yield Resource(
        "size of etcd",
        "bytes",
        stored(run),
        quota[-1][1] if quota else None,
        "Raise --quota-backend-bytes of etcd, or keep Events for less time (--event-ttl).",
    )
    yield Resource(
        "scheduling time of pods (p99)",
        "s",
        quantiles(periods(samples, SCHEDULER), SCHEDULING),
        POD_START_LIMIT_S,
        "Create pods more slowly, or give the scheduler more CPU and a higher --kube-api-qps.",
    )


def stored(run: RunRecord) -> Points:
    """Return the size of etcd as etcd reports it, else as the API server does."""
    return gauges(run.samples, ETCD, "etcd_mvcc_db_total_size_in_bytes") or gauges(
        run.samples, APISERVER, "apiserver_storage_size_bytes"
    )


def _machine_cpu(run: RunRecord) -> Points:
    """Add up the CPU of all components and of fleet at the samples of the API server."""
    names = (each for each in COMPONENTS.values() if each != APISERVER)
    others = [rates(periods(run.samples, each), CPU) for each in names]
    own, found = list(series(run, "process.cpu_s")), []
    for at_s, span_s, period in periods(run.samples, APISERVER):
        total = (period.total(CPU) or 0.0) / span_s
        total += sum(min(each, key=lambda at: abs(at[0] - at_s))[1] for each in others if each)
        total += fmean([value for at, value in own if at_s - span_s < at <= at_s] or [0.0])
        found.append((at_s, total))
    return found
