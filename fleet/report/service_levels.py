"""What a run is held to, and how it did: objectives, service level indicators, and what met them.

SIG Scalability's objectives and fleet's own are the default; `--slo FILE` changes them:

    apiVersion: fleet.emulator/v1alpha1
    kind: ServiceLevelObjectives
    metadata: {name: strict}
    spec:
      defaults: true
      expectations:
      - {sli: MutatingApiCallLatency, percentile: 99, max: 200ms}
      - {sli: FalseNotReadyNodes, max: 0}

An entry takes the place of the default of the same SLI. What a file names is judged however short
the run was, as soon as there is one sample. What fleet expects by itself is judged only after a
minute with all nodes Ready, and with at least 100 samples: a look at 100 nodes on a slow laptop
does not fail.

API latency is the server's own `apiserver_request_sli_duration_seconds`: the growth of its
histograms over the steady part of the run, which begins when all nodes are Ready and ends with the
drain. It has neither the wait in priority-and-fairness queues nor webhooks in it. A latency is that
of the slowest kind of request (verb, resource, scope) that was asked often enough.
Source: kubernetes/community sig-scalability/slos/api_call_latency.md, pod_startup_latency.md;
kubernetes/perf-tests clusterloader2 pkg/measurement/common/slos/api_responsiveness_prometheus.go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fleet.errors import UsageError
from fleet.metrics import Histogram, merged
from fleet.profile.loader import read_text, yaml_mappings
from fleet.profile.schema import API_VERSION, Metadata, Spec, explain
from fleet.quantity import parse_duration
from fleet.report.control_plane import REQUESTS, SEPARATOR, Exposition, added, quantile
from fleet.report.report import Expectation, RunFigures, ServiceLevel

KIND = "ServiceLevelObjectives"
FILE_BYTES_MAX = 1 << 20

SIG = "SIG Scalability"
OWN = "fleet"

STEADY = "steady"
WHOLE = "run"

FAILED = "FailedRequests"


PODS_PER_S_MAX = 20
"""What SIG Scalability's SLO of pod starts is about; a burst is another experiment.

Source: kubernetes/community sig-scalability/configs-and-limits/thresholds.md, pod churn.
"""


class Indicator(NamedTuple):
    """What can be expected of a run."""

    words: str
    phase: str = WHOLE
    """Which part of the run it is taken from, unless a file says another."""
    unit: Literal["s", "nodes", "%"] = "s"
    has_percentile: bool = True


INDICATORS = {
    "MutatingApiCallLatency": Indicator(
        "writes of single objects, the slowest kind of request", STEADY
    ),
    "SingleObjectReadLatency": Indicator(
        "reads of single objects, the slowest kind of request", STEADY
    ),
    "ListLatency": Indicator(
        "lists of a namespace or the cluster, the slowest kind of request", STEADY
    ),
    "PodStartupLatency": Indicator(
        "from the scheduler's queue to Running at the API server, without simulated time"
    ),
    "LeaseLateness": Indicator("how long after its due time a renewal was sent"),
    "WatchDelay": Indicator("from a status write to its event on the node's watch: an upper bound"),
    "TimeToNodesReady": Indicator(
        "from the first kubelet's start until all were Ready", has_percentile=False
    ),
    "FalseNotReadyNodes": Indicator(
        "nodes that lost Ready during the run", unit="nodes", has_percentile=False
    ),
    FAILED: Indicator(
        "requests of nodes that were refused (429), failed (5xx) or had no answer",
        STEADY,
        unit="%",
        has_percentile=False,
    ),
}
"""By name, in the order of the report."""

MIN_SAMPLES = 100
"""A 99th percentile of fewer is their maximum."""
STEADY_LEAST_S = 60.0
"""fleet judges no shorter steady part unless a file asks for it."""


class Objective(NamedTuple):
    """One bound that a run is held to."""

    sli: str
    percentile: float
    limit: float
    """Seconds, a count, or percent of all."""
    source: str
    is_judged: bool = True
    """Whether it decides the verdict, or is only shown."""
    min_samples: int = MIN_SAMPLES
    phase: str = STEADY


def is_asked(source: str) -> bool:
    """Return whether the user set a limit, by --slo or in a scenario, and not fleet."""
    return source not in {SIG, OWN}


DEFAULTS = (
    Objective("MutatingApiCallLatency", 99, 1.0, SIG),
    Objective("SingleObjectReadLatency", 99, 1.0, SIG),
    Objective("ListLatency", 99, 30.0, SIG),
    Objective("PodStartupLatency", 99, 5.0, SIG, phase=WHOLE),
    # Stopping fleet or the control plane on purpose loses nodes: shown, no verdict.
    Objective("FalseNotReadyNodes", 100, 0.0, OWN, is_judged=False, min_samples=0, phase=WHOLE),
    # Latencies know only of calls that were answered, and not of those of a server that was killed.
    Objective(FAILED, 100, 1.0, OWN),
)
"""Source: kubernetes/community sig-scalability/slos/slos.md; fleet's own has no upstream."""


def _limit(value: object) -> float:
    """Read a duration or a count. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"{value!r} is negative")
        return float(value)
    return parse_duration(value) / 1e9


class ExpectationSpec(Spec):
    """One entry of a file."""

    sli: str
    percentile: Annotated[float, Field(gt=0, le=100)] | None = None
    max: Annotated[float, BeforeValidator(_limit, json_schema_input_type=float | str)]
    phase: Literal["steady", "run"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_unit(cls, value: object) -> object:
        if isinstance(value, dict) and (known := INDICATORS.get(str(value.get("sli")))):
            is_number = isinstance(value.get("max"), int | float)
            if known.unit == "s" and is_number:
                raise ValueError(f"max: {value['max']!r} has no unit; write it as 500ms or 1s")
            if known.unit != "s" and "max" in value and not is_number:
                raise ValueError(f"max: {value['max']!r} is not a number of {known.unit}")
        return value

    @model_validator(mode="after")
    def _is_known(self) -> "ExpectationSpec":
        known = INDICATORS.get(self.sli)
        if known is None:
            raise ValueError(f"sli: {self.sli!r} is not one of {', '.join(INDICATORS)}")
        if self.percentile is not None and not known.has_percentile:
            raise ValueError(f"percentile: {self.sli} is a single figure, it has none")
        if self.phase == STEADY and known.phase == WHOLE:
            raise ValueError(f"phase: {self.sli} is taken from the whole run")
        return self


class ObjectivesSpec(Spec):
    """What the file holds besides its name."""

    defaults: bool = True
    expectations: tuple[ExpectationSpec, ...] = ()


class ObjectivesManifest(Spec):
    """The document."""

    api_version: Literal["fleet.emulator/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["ServiceLevelObjectives"]
    metadata: Metadata
    spec: ObjectivesSpec


def load_objectives(path: Path | None) -> tuple[Objective, ...]:
    """Return what a run is held to. Raises UsageError that names file, path and what is allowed."""
    if path is None:
        return DEFAULTS
    try:
        text = read_text(path, FILE_BYTES_MAX)
        found = list(yaml_mappings(text, str(path)))
    except UsageError as error:
        raise UsageError(f"--slo {error}") from error
    if len(found) != 1:
        raise UsageError(f"--slo {path}: it must hold one {KIND} (apiVersion: {API_VERSION})")
    try:
        spec = ObjectivesManifest.model_validate(found[0], by_name=False).spec
    except ValidationError as error:
        raise UsageError(f"--slo {path}: {explain(error, ObjectivesManifest)}") from error
    return objectives_of(spec.expectations, str(path), with_defaults=spec.defaults)


def objectives_of(
    given: Iterable[ExpectationSpec], source: str, *, with_defaults: bool
) -> tuple[Objective, ...]:
    """Return the objectives of a file, on top of the defaults."""
    found = {each.sli: each for each in DEFAULTS} if with_defaults else {}
    for each in given:
        known = INDICATORS[each.sli]
        found[each.sli] = Objective(
            each.sli,
            each.percentile or (99 if known.has_percentile else 100),
            each.max,
            source,
            min_samples=1 if known.has_percentile else 0,
            phase=each.phase or known.phase,
        )
    return tuple(found.values())


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
    """The control plane's metrics, as periods; None where they were unavailable."""

    steady_s: float = 0.0
    steady: Exposition | None = None
    whole: Exposition | None = None
    scheduler: Exposition | None = None
    client: Sequence[tuple[str, str, int, Histogram]] = ()
    """Verb, resource, code (0: no answer) and latency of the nodes' requests in the steady part."""
    pod_starts: Histogram | None = None
    """Those of the steady part, if pods were started to prepare it; None: all of the run count."""
    problem: str = ""
    """Why the API server's metrics could not be read."""


def measure(
    figures: RunFigures, evidence: Evidence, objectives: Iterable[Objective]
) -> list[ServiceLevel]:
    """Return every indicator, with its objective where it has one."""
    wanted = {each.sli: each for each in objectives}
    found: list[ServiceLevel] = []
    for name in INDICATORS:
        level = _level(name, figures, evidence, wanted.get(name))
        is_lone = level.sli == FAILED and level.source == OWN and not any(x.judged for x in found)
        if is_lone and level.met:  # who answers may still be slow
            level = replace(level, judged=False, note="", unjudged="")
        found.append(level)
    return found


def expectations(levels: Iterable[ServiceLevel]) -> list[Expectation]:
    """Return what decides the verdict: judged levels, and those that the user asked for."""
    found = []
    for level in levels:
        if level.judged or (level.unjudged and is_asked(level.source)):
            name = f"{level_words(level.sli, level.percentile)} <= {words(level.sli, level.limit)}"
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


def level_words(sli: str, percentile: float) -> str:
    """Return an indicator with its percentile, if it has one and this version knows it."""
    known = INDICATORS.get(sli)
    return f"{sli} p{percentile:g}" if known is not None and known.has_percentile else sli


def words(sli: str, value: float | None) -> str:
    """Say a value in its unit."""
    if value is None:
        return "not measured"
    unit = INDICATORS[sli].unit if sli in INDICATORS else ""  # of another version
    if unit == "%":
        return f"{value:.2g} %"
    return words_of_s(value) if unit == "s" else f"{value:,.0f}"


def words_of_s(seconds: float) -> str:
    """Say a latency: 49.5 ms, 2 s."""
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def share_of_limit(level: ServiceLevel) -> float | None:
    """Return how much of its limit a level used, None if it has none: 1 is all."""
    if level.limit is None or level.measured is None:
        return None
    return level.measured / level.limit if level.limit else float(level.measured > 0)


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
        if objective.sli == FAILED and any(each.kind == "fault" for each in figures.phases):
            return "fleet injected faults, by which requests fail"
        burst = figures.pods.started_per_s_max
        if evidence.pod_starts is not None:
            burst = evidence.pod_starts.count / evidence.steady_s
        if objective.sli == POD_STARTUP and burst > PODS_PER_S_MAX:
            return f"up to {burst:.0f} pods started per second; the SLO covers {PODS_PER_S_MAX}"
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
    nodes = figures.nodes
    match name:
        case "LeaseLateness":
            found = _of_histogram(figures.lease.late, percentile)
        case "TimeToNodesReady":
            found = Latency(nodes.time_to_ready_s, nodes.ready, "")
        case "FalseNotReadyNodes":
            found = Latency(float(nodes.ever_not_ready), nodes.registered, "")
        case "FailedRequests":
            whole = [(each.code, each.count) for each in figures.requests]
            steady = [(code, each.count) for _, _, code, each in evidence.client]
            found = _failed(steady if phase == STEADY else whole)
        case _:
            return _api_latency(name, evidence, phase, percentile, least)
    return found, None, ""


def _api_latency(
    name: str, evidence: Evidence, phase: str, percentile: float, least: int
) -> tuple[Latency, float | None, str]:
    """Return what the server and what the nodes measured of one kind of calls."""
    period = evidence.steady if phase == STEADY else evidence.whole
    if period is None:
        return Latency(None, 0, ""), None, evidence.problem or "there was no steady part"
    calls = [each for each in calls_of(period) if each.sli == name]
    found = slowest(calls, period.bounds.get(REQUESTS, []), percentile, least)
    asked = {(each.verb, each.resource) for each in calls}
    seen = merged(h for verb, resource, _, h in evidence.client if (verb, resource) in asked)
    return found, _of_histogram(seen, percentile).seconds, ""


def _pod_startup(
    figures: RunFigures, evidence: Evidence, percentile: float
) -> tuple[Latency, float | None, str]:
    """Add the scheduler's part to the nodes': at most so much, as quantiles do not add up."""
    starts = evidence.pod_starts
    own = _of_histogram(figures.pods.start_sli if starts is None else starts, percentile)
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


def _failed(requests: Sequence[tuple[int, int]]) -> Latency:
    """Return which share of requests failed, in percent, of codes and counts."""
    total = sum(count for _, count in requests)
    failed = sum(count for code, count in requests if code in {0, 429} or code >= 500)
    return Latency(100 * failed / total if total else None, total, "")


def _of_histogram(histogram: Histogram, percentile: float) -> Latency:
    if not histogram.count:
        return Latency(None, 0, "")
    seconds = histogram.percentile_us(percentile / 100) / 1e6
    return Latency(seconds, histogram.count, "", histogram.percentile_us(0.5) / 1e6)
