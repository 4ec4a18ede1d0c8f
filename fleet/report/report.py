"""What a run measured: `summary.json`, a line of `timeseries.jsonl`, and the verdict on it.

The keys of the summary are fixed (design 4). It is built from `RunFigures`, which the process that
runs the nodes fills in; nothing here asks a server or a clock. A run whose own instrument lagged is
invalid, and says so on its first line.

The verdict is decided in one place, `judgement`. The exit code, the terminal, `summary.json`,
`report.html`, Markdown, JUnit, `fleet capacity` and comparisons all read what it returns; none of
them judges again. The gravest verdict that applies wins:

    INCOMPLETE  the run did not get to its end
    INVALID     fleet itself was not sound: the figures say nothing of the server
    FAIL        a judged level was not met
    NOT JUDGED  nothing could be judged, or not all that the user asked for
    PASS        every judged level was met
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, cast

from fleet.errors import Exit
from fleet.metrics import Histogram, Requests
from fleet.report import figures
from fleet.report.figure import Json, Kind, figure, figures_of, is_record, made

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LONGER = "run it longer, for example with --duration 5m"
NOTHING_ASKED = "no service level was set for the run"


class Outcome(enum.StrEnum):
    """What `verdict` in summary.json can be."""

    PASS = "pass"  # noqa: S105 - it is no password
    FAIL = "fail"
    NOT_JUDGED = "not-judged"
    INVALID = "invalid"
    INCOMPLETE = "incomplete"

    @property
    def words(self) -> str:
        """Return the verdict as people read it: `NOT JUDGED`."""
        return self.replace("-", " ").upper()


class Verdict(NamedTuple):
    """What a run is worth, and why."""

    outcome: Outcome
    reasons: list[str]
    """Why, in words; nothing for PASS. The last one of NOT JUDGED says what to do."""
    exit_code: Exit


def _words(what: str, expectations: Sequence["Expectation"]) -> list[str]:
    return [
        f"{what}: {each.name}{f' ({each.detail})' if each.detail else ''}" for each in expectations
    ]


SCHEMA_VERSION = 1

TIMER_LAG_LIMIT_MS = 100.0
"""A reactor whose 99th percentile is later than this is no instrument: 1 % of a lease's interval.

An unloaded one turns every 20 ms, which is the least lag there is.
"""
LAG_LEAST_S = 10.0
"""A run that is shorter is no measure of fleet's lag: a control plane may just have started."""
LAG_TIMERS_LEAST = 100
"""A 99th percentile of fewer timers is their latest."""

STANDSTILL_LIMIT_MS = 3_000.0
"""Fleet that stood still so long was stopped or starved; in a long run no percentile shows it."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that the run was to show."""

    name: str = figure("", "what the run was held to: an indicator and its limit")
    is_met: bool | None = figure(
        default=False, words="whether it did; `null`: it could not be judged", key="met"
    )
    detail: str = figure("", "what it showed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """One indicator as it was measured; a row of the report's first table."""

    sli: str = figure("", "which indicator ([all of them](slo.md))")
    phase: str = figure("", "`steady` or `run`: which part of the run it is of")
    percentile: float = figure(99.0, "of the samples; 100 for single figures")
    measured: float | None = figure(None, "seconds, nodes or percent")
    p50: float | None = figure(
        None, "seconds: the median of the same, of the slowest kind of request; `null`: none"
    )
    samples: int = figure(0, "how many it was taken from")
    worst: str = figure("", "the slowest kind of request")
    client: float | None = figure(
        None, "seconds: the same as the nodes saw it, network and queues of the server included"
    )
    limit: float | None = figure(None, "the most there may be, as `measured`; `null`: none")
    source: str = figure("", "who set the limit: `SIG Scalability`, `fleet` or a file")
    judged: bool = figure(default=False, words="whether it counts for the verdict")
    met: bool | None = figure(None, "whether it was within its limit; `null`: not known")
    note: str = figure("", "why it is not judged, or not known")
    unjudged: str = ""
    """Why a level that decides verdicts decides none in this run; "" if it does, or never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run, or a fault; plots mark it on their axis."""

    name: str = figure("", "`bring-up`, `steady`, ..., or the name of a fault")
    kind: str = figure("phase", "`phase` or `fault`")
    from_s: float = figure(0.0, "when it began, from the start of the run")
    until_s: float | None = figure(None, "when it ended; `null`: it did not")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneFigures:
    """What was asked of the control plane's metrics, and at what cost."""

    samples: int = figure(0, "answers of all components")
    lost: int = figure(0, "how often one did not answer")
    bytes: int = figure(0, "size of the API server's last answer")
    took_ms: float | None = figure(None, "how long the API server took for it")
    problem: str = figure("", "why there is none")
    asked_by_fleet: Mapping[str, int] = made(
        dict[str, int],
        "fleet's own requests, in no other figure, by the purpose in their user agent",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a run is worth."""

    schema_version: int = figure(SCHEMA_VERSION, f"{SCHEMA_VERSION}")
    run_id: str = figure("", "the run, as in the label `fleet.emulator/run` of its nodes")
    verdict: str = figure(
        "",
        "`pass`, `fail`, `not-judged`, `invalid` or `incomplete` "
        "([what they mean](../explain/verdict.md))",
    )
    verdict_reasons: Sequence[str] = figure(
        (), "why, in words; the last one of `not-judged` says what to do"
    )
    valid: bool = figure(default=False, words="whether the figures can be used")
    invalid_reasons: Sequence[str] = figure((), "why not, in words")
    expectations: Sequence[Expectation] = figure(())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFigures:
    """One of the processes that shared the nodes of a run."""

    name: str = figure("", "what the names of its nodes begin with; a row for each process")
    state: str = figure(
        "", "`ended`, `lost` (it has not ended), or `late` (not Ready in the steady part)"
    )
    starts: int = figure(1, "how often its process was started")
    nodes: int = figure(0, "nodes that it was to host")
    ready: int = figure(0, "nodes that were Ready at its end")
    time_to_ready_s: float | None = figure(None, "from its start until all of them were")
    pods_started: int = figure(0, "pods that started on its nodes")
    requests: int = figure(0, "requests of its nodes")
    request_p99_ms: float | None = figure(None, "their latency, without watches")
    pod_start_p99_ms: float | None = figure(None, "the start of its pods")
    lease_late_p99_ms: float | None = figure(None, "the lateness of its Leases")
    timer_lag_p99_ms: float | None = figure(None, "its own error")
    cpu_s: float = figure(0.0, "CPU that it used")


AS_MADE = "as the run was made"


@dataclass(slots=True, kw_only=True)
class RunFigures:
    """Everything that a run measured; the counters only grow."""

    run_id: str
    server_version: str = figure("", "of the API server")
    etcd_fsync: bool | None = figure(
        None,
        "whether the local etcd waits for the disk; `null` on a cluster that fleet did not start",
        kind=Kind.FACT,
    )
    fidelity: str = figure("kubelet", AS_MADE)
    identity: str = figure("impersonate", AS_MADE)
    encoding: str = figure("json", AS_MADE)
    watches: str = figure("per-node", AS_MADE)
    pace: str = figure(
        "adaptive",
        "how nodes were started: `adaptive`, `max` (all at once), or at a rate such as `50/s`",
    )
    start: str = figure(
        "settled",
        "how nodes came to be: `settled` (as if they had been up for long) or `cold` (with all "
        "that a kubelet sends when it starts)",
    )
    nodes: figures.NodeFigures = made(figures.NodeFigures)
    lease: figures.LeaseFigures = made(figures.LeaseFigures)
    pods: figures.PodFigures = made(figures.PodFigures)
    requests: Sequence[figures.RequestFigures] = figure((), kind=Kind.FACT)  # `merge` adds them up
    events: figures.EventFigures = made(figures.EventFigures)
    watch: figures.WatchFigures = made(figures.WatchFigures)
    connections: figures.ConnectionFigures = made(figures.ConnectionFigures, in_series=False)
    unregistered: Mapping[str, int] = made(
        dict[str, int],
        "nodes that could not register until the end, by the reason that their last try got",
    )
    rejected: Mapping[str, int] = made(
        dict[str, int],
        "how often fleet gave up an [answer beyond its limits](#answers-beyond-limits), by kind",
    )
    own_limits: Mapping[str, int] = made(
        dict[str, int],
        "how often [limits of fleet or its machine](#own-limits) were hit: the run is invalid",
    )
    agents: figures.ByName = made(dict[str, figures.AgentFigures])
    """What ran next to the kubelets, which the other figures do not count."""
    process: figures.ProcessFigures = made(figures.ProcessFigures)
    wall_s: float = figure(0.0, "from the start of the run to its end", kind=Kind.FACT)
    slis: Sequence[ServiceLevel] = figure((), kind=Kind.FACT)
    stop_reason: str = figure("", "why `--stop-if` ended the run; empty: it did not")
    phases: Sequence[Phase] = figure((), kind=Kind.FACT)
    controlplane: ControlPlaneFigures = made(ControlPlaneFigures, kind=Kind.FACT, in_series=False)
    slowest_shard: str = figure(
        "", "the name of the shard whose requests had the highest p99; empty: there is one process"
    )
    shards: Sequence[ShardFigures] = figure((), kind=Kind.FACT)
    expectations: Sequence[Expectation] = ()
    invalid_reasons: Sequence[str] = ()
    """Why the figures cannot be trusted, beyond what they show by themselves."""
    incomplete_reasons: Sequence[str] = ()
    """Why the run did not get to its end."""

    how_longer: str = LONGER
    """What to do so that a run of this kind can be judged."""

    def judgement(self) -> Verdict:
        """Return the verdict on the run.

        A level is judged or not by `service_levels.measure`. What the user asked for (`--slo`, a
        scenario) and could not be judged is an expectation whose `is_met` is None: that run exits
        with 4, so that a gate in CI does not pass on what nobody has measured.
        """
        invalid = self.all_invalid_reasons()
        if self.incomplete_reasons:
            reasons = [*self.incomplete_reasons, *invalid]
            return Verdict(Outcome.INCOMPLETE, reasons, Exit.INVALID)
        if invalid:
            return Verdict(Outcome.INVALID, invalid, Exit.INVALID)
        unmet = [each for each in self.expectations if each.is_met is False]
        if unmet:
            return Verdict(Outcome.FAIL, _words("not met", unmet), Exit.EXPECTATION_FAILED)
        open_ = [each for each in self.expectations if each.is_met is None]
        if open_:
            reasons = [*_words("not judged", open_), self.how_longer]
            return Verdict(Outcome.NOT_JUDGED, reasons, Exit.INVALID)
        if not self.expectations:
            why = dict.fromkeys(each.unjudged for each in self.slis if each.unjudged)
            reasons = [*why, self.how_longer] if why else [NOTHING_ASKED]
            return Verdict(Outcome.NOT_JUDGED, reasons, Exit.OK)
        return Verdict(Outcome.PASS, [], Exit.OK)

    def all_invalid_reasons(self) -> list[str]:
        """Return what was reported, and what the instrument says of itself."""
        reasons = [*self.invalid_reasons, *lag_reasons(self.process.timer_lag, self.wall_s)]
        if self.watch.closed_slow:
            reasons.append(
                f"fleet read too slowly: watches that the server closed: {self.watch.closed_slow:,}"
            )
        if self.own_limits:
            reasons.append(
                "fleet hit its own limits, the API server did not: "
                f"{own_limit_words(self.own_limits)}"
            )
        return reasons

    def request_count(self) -> int:
        return sum(request.count for request in self.requests)


def lag_reasons(timer_lag: Histogram, wall_s: float) -> list[str]:
    """Return why fleet itself was too late to measure anything; nothing of a short run."""
    if wall_s < LAG_LEAST_S:
        return []
    reasons = []
    lag_ms, longest_ms = ms(timer_lag, 0.99) or 0.0, timer_lag.max_us / 1000
    if lag_ms > TIMER_LAG_LIMIT_MS and timer_lag.count >= LAG_TIMERS_LEAST:
        reasons.append(
            f"fleet itself lagged: timers fired {lag_ms:,.0f} ms late (p99), more than "
            f"{TIMER_LAG_LIMIT_MS:.0f} ms"
        )
    if longest_ms > STANDSTILL_LIMIT_MS:
        reasons.append(
            f"fleet itself lagged: it stood still, timers fired up to {longest_ms / 1000:.1f} s "
            "late; give it a core of its own, or fewer nodes a process (--processes)"
        )
    return reasons


def own_limit_words(own_limits: Mapping[str, int]) -> str:
    """Say which limits of fleet's own were hit, the most frequent one first."""
    ordered = sorted(own_limits.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{what} ({count:,} times)" for what, count in ordered)


def summary(figures: RunFigures) -> Json:
    """Return what `summary.json` holds: the keys are fixed."""
    reasons = [*figures.incomplete_reasons, *figures.all_invalid_reasons()]
    decided = figures.judgement()
    process, nodes, requests = figures.process, figures.nodes, figures.request_count()
    judgement = Judgement(
        run_id=figures.run_id,
        verdict=decided.outcome.value,
        verdict_reasons=decided.reasons,
        valid=not reasons,
        invalid_reasons=reasons,
        expectations=figures.expectations,
    )
    whole = replace(
        figures,
        requests=sorted(figures.requests, key=lambda r: (-r.count, r.resource, r.verb, r.code)),
        agents=dict(sorted(figures.agents.items())),
        process=replace(
            process,
            rss_bytes_per_node=process.rss_bytes // nodes.registered if nodes.registered else None,
            cpu_us_per_request=round(process.cpu_s * 1e6 / requests, 1) if requests else None,
        ),
    )
    return as_json(judgement) | as_json(whole)


def as_json(record: "DataclassInstance") -> Json:
    """Return a record as it stands in the summary."""
    made: Json = {}
    for name, mark in figures_of(type(record)).items():
        group, _, key = (mark.key or name).rpartition(".")
        inside = cast("Json", made.setdefault(group, {})) if group else made
        inside[key] = shown(getattr(record, name), has_max=mark.has_max)
    return made


def shown(value: object, *, has_max: bool = False) -> object:
    """Return a value as it stands in the summary."""
    match value:
        case float():
            return round(value, 6)  # microseconds: every form says the same figure
        case Histogram():
            shares = {"p50": ms(value, 0.5), "p99": ms(value, 0.99)}
            return shares | ({"max": ms(value, 1)} if has_max else {})
        case Requests():
            return shown(figures.request_figures(value))
        case Mapping():
            return {key: shown(inside) for key, inside in value.items()}
        case list() | tuple():
            return [shown(inside) for inside in value]
    return as_json(value) if is_record(value) else value


def histograms(figures: RunFigures) -> dict[str, dict[str, int]]:
    """Return the buckets of what the summary has percentiles of: microseconds and counts."""
    found: dict[str, dict[str, int]] = {}
    for part in figures_of(RunFigures):
        record = getattr(figures, part)
        for name in figures_of(type(record)) if is_record(record) else ():
            value = getattr(record, name)
            if isinstance(value, Histogram) and value.count:
                buckets = sorted(value.buckets.items())
                found[f"{part}.{name}"] = {str(us): count for us, count in buckets}
    return found


def ms(histogram: Histogram, fraction: float) -> float | None:
    """Return a percentile in milliseconds; None without samples, which is not 0."""
    return histogram.percentile_us(fraction) / 1000 if histogram.count else None


@dataclass(slots=True)
class Totals:
    """The counters as they stood at the last line of the time series."""

    wall_s: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, dict[int, int]] = field(default_factory=dict)
    requests: dict[tuple[str, str, int], tuple[int, dict[int, int]]] = field(default_factory=dict)

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

    def part(self, part: str, record: "DataclassInstance", elapsed_s: float) -> Json:
        """Return a record as one line of the time series has it."""
        line: Json = {}
        for field_name, mark in figures_of(type(record)).items():
            value, key = getattr(record, field_name), mark.key or field_name
            if mark.kind is Kind.HISTOGRAM:
                gained = self.since(f"{part}.{key}", value)
                line[key] = shown(gained, has_max=mark.has_max)
            elif mark.kind is Kind.COUNTER:
                line[key] = self.rate(f"{part}.{key}", value, elapsed_s)
            elif mark.kind is Kind.STATE and mark.in_series:
                line[key] = value
        return line

    def agent(self, name: str, agent: figures.AgentFigures, elapsed_s: float) -> Json:
        """Return events, requests and bytes of the agents of one name per second."""
        counted = {
            "requests": agent.requests.total,
            "events": agent.watch_events,
            "received_bytes": agent.received_bytes,
        }
        return {
            key: self.rate(f"agents {name} {key}", value, elapsed_s)
            for key, value in counted.items()
        }

    def requests_since(self, figures: RunFigures, elapsed_s: float) -> tuple[list[Json], Histogram]:
        """Return a row for each kind of request that was made in between, and all latencies.

        A watch waits for nothing but its start and is not in them.
        """
        rows: list[Json] = []
        total = Histogram()
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
                    "ms": shown(gained := request.latency.since(buckets)),
                }
            )
            if request.verb != "WATCH":
                total.merge(gained)
            self.requests[key] = (request.count, request.latency.snapshot())
        return rows, total


def rates(figures: RunFigures, before: Totals, elapsed_s: float) -> Json:
    """Return the summary's figures with counters per second; states stay as they are."""
    line: Json = {"wall_s": round(figures.wall_s, 3)}
    for name, mark in figures_of(RunFigures).items():
        part = getattr(figures, name)
        if name == "requests":
            count = figures.request_count()
            line["requests_total"] = before.rate("requests", count, elapsed_s)
            line[name], latency = before.requests_since(figures, elapsed_s)
            line["requests_ms"] = shown(latency)
        elif name == "agents":
            line[name] = {
                agent: before.agent(agent, each, elapsed_s)
                for agent, each in sorted(figures.agents.items())
            }
        elif is_record(part) and mark.in_series:
            line[name] = before.part(name, part, elapsed_s)
    return line
