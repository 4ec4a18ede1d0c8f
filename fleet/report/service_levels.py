"""How a run did against what it is held to: service level indicators, and verdicts on them.

API latency is the server's own `apiserver_request_sli_duration_seconds`: the growth of its
histograms over the steady part of the run, which begins when all nodes are Ready and ends with the
drain. It has neither the wait in priority-and-fairness queues nor webhooks in it. A latency is that
of the slowest kind of request (verb, resource, scope) that was asked often enough.
Source: kubernetes/community sig-scalability/slos/api_call_latency.md, pod_startup_latency.md;
kubernetes/perf-tests clusterloader2 pkg/measurement/common/slos/api_responsiveness_prometheus.go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fleet.metrics import Histogram, merged
from fleet.report.exposition import REQUESTS, SEPARATOR, Exposition, added, quantile
from fleet.report.report import Expectation, RunFigures, ServiceLevel
from fleet.report.slo_file import (
    INDICATORS,
    PODS_PER_S_MAX,
    STEADY,
    STEADY_LEAST_S,
    Objective,
    is_asked,
)

SCHEDULING = "scheduler_pod_scheduling_sli_duration_seconds"

POD_STARTUP = "PodStartupLatency"
WATCH_DELAY = "WatchDelay"
MUTATING = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
READING = frozenset({"GET", "LIST"})
STREAMS = frozenset({"log", "exec", "attach", "portforward", "proxy"})
"""Subresources whose answers last as long as the user likes."""


class Calls(NamedTuple):
    """The calls of one kind over some time."""

    verb: str
    resource: str
    scope: str
    buckets: list[float]

    @property
    def sli(self) -> str:
        """Return what they count for, "" for none."""
        if self.verb in MUTATING:
            return "MutatingApiCallLatency" if self.scope == "resource" else ""
        if self.verb not in READING:
            return ""
        return "SingleObjectReadLatency" if self.scope == "resource" else "ListLatency"

    def __str__(self) -> str:
        """Say which they are."""
        where = "" if self.scope == "resource" else f" ({self.scope})"
        return f"{self.verb} {self.resource}{where}"


def calls_of(period: Exposition) -> list[Calls]:
    """Return the calls of API objects in a period, those that last as long as they like not."""
    found = []
    for (name, labels), buckets in period.buckets.items():
        if name != REQUESTS or not buckets[-1]:
            continue
        verb, resource, subresource, scope = labels.split(SEPARATOR)
        if resource and subresource not in STREAMS:
            whole = f"{resource}/{subresource}" if subresource else resource
            found.append(Calls(verb, whole, scope, buckets))
    return found


class Latency(NamedTuple):
    """A percentile of the slowest kind of call, and the median of that kind."""

    seconds: float | None
    samples: int
    worst: str
    median: float | None = None


def slowest(calls: Sequence[Calls], bounds: list[float], percentile: float, least: int) -> Latency:
    """Return the slowest kind that was called often enough; if none was, of all kinds together."""
    often = [each for each in calls if each.buckets[-1] >= least]
    rows = [(quantile(percentile / 100, bounds, each.buckets), each) for each in often]
    known = [
        (value, int(each.buckets[-1]), str(each), each) for value, each in rows if value is not None
    ]
    if known:
        found = max(known, key=lambda row: row[:3])
        return Latency(*found[:3], quantile(0.5, bounds, found[3].buckets))
    if not calls:
        return Latency(None, 0, "")
    together = added(each.buckets for each in calls)
    value = quantile(percentile / 100, bounds, together)
    return Latency(value, int(together[-1]), "all kinds", quantile(0.5, bounds, together))


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What the control plane told, as periods; None where it was not to be had."""

    steady_s: float = 0.0
    steady: Exposition | None = None
    whole: Exposition | None = None
    scheduler: Exposition | None = None
    client: Sequence[tuple[str, str, Histogram]] = ()
    """Verb, resource and latency of the nodes' own requests in the steady part."""
    problem: str = ""
    """Why the API server's metrics could not be read."""


def measure(
    figures: RunFigures, evidence: Evidence, objectives: Iterable[Objective]
) -> list[ServiceLevel]:
    """Return every indicator, with its objective where it has one."""
    wanted = {each.sli: each for each in objectives}
    return [_level(name, figures, evidence, wanted.get(name)) for name in INDICATORS]


def expectations(levels: Iterable[ServiceLevel]) -> list[Expectation]:
    """Return what decides the verdict: judged levels, and those that the user asked for."""
    found = []
    for level in levels:
        if level.judged or (level.unjudged and is_asked(level.source)):
            name = f"{level.sli}{percentile_words(level)} <= {words(level.sli, level.limit)}"
            is_met = bool(level.met) if level.judged else None
            found.append(Expectation(name, is_met, detail(level)))
    return found


def detail(level: ServiceLevel) -> str:
    """Say what was measured, and of what."""
    text = words(level.sli, level.measured)
    if level.worst:
        text += f", {level.worst}"
    if level.samples and INDICATORS[level.sli].has_percentile:
        text += f", {level.samples:,} samples"
    return f"{text}; {level.note}" if level.note else text


def percentile_words(level: ServiceLevel) -> str:
    """Return ` p99`, nothing for a single figure."""
    return f" p{level.percentile:g}" if INDICATORS[level.sli].has_percentile else ""


def words(sli: str, value: float | None) -> str:
    """Say a value in its unit."""
    if value is None:
        return "not measured"
    if sli not in INDICATORS or INDICATORS[sli].unit != "s":  # of another version
        return f"{value:,.0f}"
    return f"{value * 1e3:,.3g} ms" if value < 1 else f"{value:,.3g} s"


def _level(
    name: str, figures: RunFigures, evidence: Evidence, objective: Objective | None
) -> ServiceLevel:
    indicator = INDICATORS[name]
    percentile = objective.percentile if objective else (99.0 if indicator.has_percentile else 100)
    phase = objective.phase if objective else indicator.phase
    least = objective.min_samples if objective else 0
    found, client, note = _found(name, figures, evidence, phase, percentile, least)
    met, unjudged = None, ""
    if objective is not None:
        if found.seconds is not None:
            met = found.seconds <= objective.limit
        if objective.is_judged:
            unjudged = _unjudged(objective, found, note, figures, evidence)
    if unjudged:
        rest = f"; {note}" if note not in {"", unjudged} else ""
        note = f"not judged: {unjudged}{rest}"
    return ServiceLevel(
        sli=name,
        phase=phase,
        percentile=percentile,
        measured=found.seconds,
        p50=found.median if indicator.has_percentile else None,
        samples=found.samples,
        worst=found.worst,
        client=client,
        limit=objective.limit if objective else None,
        source=objective.source if objective else "",
        judged=objective is not None and objective.is_judged and not unjudged,
        met=met,
        note=note,
        unjudged=unjudged,
    )


def _unjudged(
    objective: Objective, found: Latency, note: str, figures: RunFigures, evidence: Evidence
) -> str:
    """Return why a level cannot be judged in this run, "" if it can.

    The user's own levels need one sample. fleet's own need enough of them, and enough time.
    """
    if not is_asked(objective.source):
        if evidence.steady_s < STEADY_LEAST_S:
            return f"all nodes were Ready for less than {STEADY_LEAST_S:.0f} s"
        burst = figures.pods.started_per_s_max
        if objective.sli == POD_STARTUP and burst > PODS_PER_S_MAX:
            return f"{burst:.0f} pods a second at times, and the SLO is of {PODS_PER_S_MAX}"
    if found.seconds is None:
        return note or "there were no samples"
    if found.samples < objective.min_samples:
        return f"fewer than {objective.min_samples} samples"
    return ""


def _found(
    name: str, figures: RunFigures, evidence: Evidence, phase: str, percentile: float, least: int
) -> tuple[Latency, float | None, str]:
    """Return what was measured of one indicator, what the client saw, and what is to be said."""
    if name == POD_STARTUP:
        return _pod_startup(figures, evidence, percentile)
    if name == WATCH_DELAY:
        return _watch_delay(figures, percentile)
    match name:
        case "LeaseLateness":
            return _of_histogram(figures.lease.late, percentile), None, ""
        case "TimeToNodesReady":
            took_s = figures.nodes.time_to_ready_s
            return Latency(took_s, figures.nodes.ready, ""), None, ""
        case "FalseNotReadyNodes":
            nodes = figures.nodes
            return Latency(float(nodes.ever_not_ready), nodes.registered, ""), None, ""
    return _api_latency(name, evidence, phase, percentile, least)


def _api_latency(
    name: str, evidence: Evidence, phase: str, percentile: float, least: int
) -> tuple[Latency, float | None, str]:
    """Return what the server told of one kind of calls, and what the nodes saw of them."""
    period = evidence.steady if phase == STEADY else evidence.whole
    if period is None:
        return Latency(None, 0, ""), None, evidence.problem or "there was no steady part"
    calls = [each for each in calls_of(period) if each.sli == name]
    found = slowest(calls, period.bounds.get(REQUESTS, []), percentile, least)
    asked = {(each.verb, each.resource) for each in calls}
    seen = merged(h for verb, resource, h in evidence.client if (verb, resource) in asked)
    return found, _of_histogram(seen, percentile).seconds, ""


def _pod_startup(
    figures: RunFigures, evidence: Evidence, percentile: float
) -> tuple[Latency, float | None, str]:
    """Add the scheduler's part to the nodes': at most so much, as quantiles do not add up."""
    own = _of_histogram(figures.pods.start_sli, percentile)
    if own.seconds is None:
        return own, None, ""
    scheduler = evidence.scheduler
    if scheduler is None:
        return own, None, "without the scheduler, whose metrics are out of reach"
    waited = scheduling_s(scheduler, percentile) or 0.0
    median = (own.median or 0.0) + (scheduling_s(scheduler, 50) or 0.0)
    return own._replace(seconds=own.seconds + waited, median=median), None, ""


def scheduling_s(scheduler: Exposition, percentile: float) -> float | None:
    """Return how long pods took through the scheduler, None if none did."""
    bounds = scheduler.bounds.get(SCHEDULING, [])
    counted = scheduler.buckets.get((SCHEDULING, ""), [])
    return quantile(percentile / 100, bounds, counted)


def tell_scheduling(figures: RunFigures, scheduler: Exposition | None) -> None:
    """Write into the figures what the scheduler said of its part of the pods' start."""
    if scheduler is not None and figures.pods.started:
        half, most = scheduling_s(scheduler, 50), scheduling_s(scheduler, 99)
        figures.pods.start_scheduler_p50_ms = None if half is None else half * 1e3
        figures.pods.start_scheduler_p99_ms = None if most is None else most * 1e3


def _watch_delay(figures: RunFigures, percentile: float) -> tuple[Latency, float | None, str]:
    """Tell the delay at most, and in words at least: the commit was in between."""
    least = _of_histogram(figures.watch.behind, percentile).seconds
    told = "" if least is None else f"at least {words(WATCH_DELAY, least)}"
    if figures.watch.delay_lost:
        told += f"; {figures.watch.delay_lost:,} events did not come within a minute"
    return _of_histogram(figures.watch.delay, percentile), None, told.removeprefix("; ")


def _of_histogram(histogram: Histogram, percentile: float) -> Latency:
    if not histogram.count:
        return Latency(None, 0, "")
    seconds = histogram.percentile_us(percentile / 100) / 1e6
    return Latency(seconds, histogram.count, "", histogram.percentile_us(0.5) / 1e6)
