"""The record that each process of a run leaves, and the one result that all of them make.

A record is what can be added up: counts, histograms with all their buckets, what one process saw of
the control plane, and what the run is held to. `--processes`, shards on several machines, pods of a
StatefulSet and Locust workers all leave one; `judged` makes one set of figures and one verdict of
them, also where there is only one.

    record, each second --> record, each second --the run ends--> record, whole
                                 --the process is killed--> what the last one had

A shard that was started again leaves a record for each start: their counts add up, and the last one
says how things stand. A shard that has no record, or whose last one is not whole, makes the run
INCOMPLETE, and so does one that was late: it lacked Ready nodes for more than a tenth of the steady
part, which is judged, and for more than 10 s.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import msgspec

from fleet.metrics import Histogram, Requests, merged
from fleet.report.figure import Json, combined
from fleet.report.figures import RequestFigures
from fleet.report.report import Expectation, Outcome, Phase, RunFigures, ShardFigures, ms
from fleet.report.service_levels import (
    STEADY,
    Evidence,
    Objective,
    expectations,
    measure,
    tell_scheduling,
)

LATE_SHARE, LATE_LEAST_S = 0.1, 10.0
"""Of the steady part that a shard may lack; clocks of machines differ by less than 10 s."""
ENDED, LOST, LATE = "ended", "lost", "late"


@dataclass(slots=True, kw_only=True)
class Record:
    """What one process of a run measured."""

    shard: int = 0
    name: str = ""
    """What the names of its nodes begin with."""
    shards: int = 0
    """How many the run has, 0 if this process does not know."""
    began_s: float = 0.0
    """By the clock of its machine, in seconds since 1970."""
    ready_s: float | None = None
    """When all of its nodes were first Ready; None: they were not, or a dashboard decides."""
    is_over: bool = False
    """The process ended in order."""
    is_leader: bool = False
    """It looked at the control plane."""
    figures: RunFigures
    evidence: Evidence = field(default_factory=Evidence)
    objectives: tuple[Objective, ...] = ()
    waited: tuple[Expectation, ...] = ()
    """What a scenario waited for."""
    about: Json = field(default_factory=dict)
    """Options, versions and machine."""


def merge(runs: Sequence[RunFigures], *, in_turn: bool = False) -> RunFigures:
    """Return the figures of several processes of one run as one; the first one's name it.

    `in_turn` they ran one after another, each in the place of the one before it.
    """
    rows: dict[tuple[str, str, int], list[RequestFigures]] = {}
    for each in chain.from_iterable(run.requests for run in runs):
        rows.setdefault((each.verb, each.resource, each.code), []).append(each)
    total = combined(runs, in_turn=in_turn)
    return replace(total, requests=[combined(each) for each in rows.values()])


def judged(records: Sequence[Record], restarts: int = 0, *, is_whole: bool = True) -> RunFigures:
    """Return the figures of a run with its verdict; no record is changed.

    `restarts` are those that are known of, also of a process that left no record. If it is not the
    whole run, nothing is said of shards that are not there.
    """
    assert records, "a run has a process"
    leader = leader_of(records)
    shards: dict[int, list[Record]] = {}
    for each in sorted(records, key=lambda each: (each.shard, each.began_s)):
        shards.setdefault(each.shard, []).append(each)
    parts = {number: _of_one(starts) for number, starts in shards.items()}
    asked = [each.figures.controlplane.asked_by_fleet for each in records]
    total = {name: sum(each.get(name, 0) for each in asked) for name in sorted(set().union(*asked))}
    of_leader = leader.figures
    led = shards[leader.shard]
    began_s = led[0].began_s
    figures = replace(
        merge([parts[leader.shard], *(parts[each] for each in parts if each != leader.shard)]),
        phases=_phases(led),
        controlplane=replace(of_leader.controlplane, asked_by_fleet=total),
        how_longer=of_leader.how_longer,
        wall_s=max(each.began_s - began_s + each.figures.wall_s for each in records),
    )
    restarts = max(restarts, len(records) - len(shards))
    if restarts:
        often = f", {restarts} times" if restarts > 1 else ""
        reason = f"a process of the fleet died and was started again{often}"
        figures.invalid_reasons = [*figures.invalid_reasons, reason]
    missing = _missing(shards) if is_whole else []
    late = _late(leader, shards)
    lost = {number: _lost(starts[-1]) or late.get(number, "") for number, starts in shards.items()}
    reasons = [*missing, *filter(None, lost.values())]
    figures.incomplete_reasons = [*figures.incomplete_reasons, *reasons]
    if len(shards) > 1:
        figures.shards = [_row(shards[each], parts[each], lost[each]) for each in shards]
        slowest = max(figures.shards, key=lambda each: each.request_p99_ms or 0.0)
        figures.slowest_shard = slowest.name
    client = list(chain.from_iterable(each.evidence.client for each in records))
    evidence = replace(leader.evidence, client=client)
    if evidence.pod_starts is not None:
        evidence.pod_starts = merged(
            each.evidence.pod_starts for each in records if each.evidence.pod_starts is not None
        )
    tell_scheduling(figures, evidence.scheduler)
    figures.slis = measure(figures, evidence, leader.objectives)
    figures.expectations = [*expectations(figures.slis), *leader.waited]
    return figures


def leader_of(records: Iterable[Record]) -> Record:
    """Return the record of the process whose look at the control plane is the run's."""
    return max(records, key=lambda each: (each.is_leader, each.evidence.steady_s, -each.shard))


def so_far(records: Sequence[Record], *, is_whole: bool = True) -> Outcome:
    """Return the verdict on a run that goes on, as if it ended now."""
    ended = [replace(each, is_over=True) for each in records]
    return judged(ended, is_whole=is_whole).judgement().outcome


def _of_one(starts: Sequence[Record]) -> RunFigures:
    """Return what one shard measured, over all its starts."""
    figures = merge([each.figures for each in starts], in_turn=True)
    figures.nodes.ever_not_ready = max(each.figures.nodes.ever_not_ready for each in starts)
    return figures


def _phases(starts: Sequence[Record]) -> list[Phase]:
    """Return the phases of all starts of a shard, by the time of the first.

    One that it was started again in ends when the later start says.
    """
    found: list[Phase] = []
    for each in starts:
        late_s = each.began_s - starts[0].began_s
        told: list[Phase] = []
        for phase in each.figures.phases:
            until_s = None if phase.until_s is None else phase.until_s + late_s
            told.append(replace(phase, from_s=phase.from_s + late_s, until_s=until_s))
        known = {(phase.kind, phase.name, round(phase.from_s)) for phase in told}
        found = [one for one in found if (one.kind, one.name, round(one.from_s)) not in known]
        found += told
    return found


def _missing(shards: Mapping[int, Sequence[Record]]) -> list[str]:
    known = [each.shards for starts in shards.values() for each in starts if each.shards]
    wanted = max(min(known, default=0), max(shards) + 1)
    return [f"shard {at} of {wanted} left no record" for at in range(wanted) if at not in shards]


def _lost(last: Record) -> str:
    if last.is_over:
        return ""
    return f"shard {last.name} has not ended: it was killed, or it still runs"


def _late(leader: Record, shards: Mapping[int, Sequence[Record]]) -> dict[int, str]:
    """Say which shards lacked Ready nodes during the steady part that is judged."""
    part = next((each for each in leader.figures.phases if each.name == STEADY), None)
    if part is None or part.until_s is None or leader.ready_s is None:
        return {}
    begin_s = leader.began_s + part.from_s
    most_s = max((part.until_s - part.from_s) * LATE_SHARE, LATE_LEAST_S)
    found = {}
    for number, starts in shards.items():
        ready_s = min((each.ready_s for each in starts if each.ready_s), default=math.inf)
        if ready_s - begin_s > most_s:
            after = f"{ready_s - begin_s:.0f} s after the steady part began"
            after = after if ready_s < math.inf else "never"
            found[number] = f"shard {starts[0].name} was late: all its nodes were Ready {after}"
    return found


def _row(starts: Sequence[Record], figures: RunFigures, why: str) -> ShardFigures:
    latency = merged(each.latency for each in figures.requests if each.verb != "WATCH")
    return ShardFigures(
        name=starts[-1].name,
        state=LOST if not starts[-1].is_over else LATE if why else ENDED,
        starts=len(starts),
        nodes=figures.nodes.requested,
        ready=figures.nodes.ready,
        time_to_ready_s=figures.nodes.time_to_ready_s,
        pods_started=figures.pods.started,
        requests=figures.request_count(),
        request_p99_ms=ms(latency, 0.99),
        pod_start_p99_ms=ms(figures.pods.start, 0.99),
        lease_late_p99_ms=ms(figures.lease.late, 0.99),
        timer_lag_p99_ms=ms(figures.process.timer_lag, 0.99),
        cpu_s=figures.process.cpu_s,
    )


def dump(record: Record) -> bytes:
    """Return a record as the file has it, with all buckets."""
    return msgspec.msgpack.encode(record, enc_hook=_rows)


def load(content: bytes) -> Record:
    """Return what `dump` wrote. Raises ValueError for anything else."""
    try:
        return msgspec.msgpack.decode(content, type=Record, dec_hook=_requests)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError("this is no record of a process") from error


Rows = dict[tuple[str, str], dict[int, Histogram]]


def _rows(value: object) -> Rows:
    assert isinstance(value, Requests), value
    return value.rows


def _requests(kind: type, value: object) -> object:
    if kind is not Requests:  # of options and machine anything will do
        return value
    made = Requests()
    made.rows = msgspec.convert(value, Rows)
    return made


def merged_lines(parts: Iterable[tuple[float, Sequence[Json]]]) -> list[Json]:
    """Return the time series of several processes as one, a line a second.

    `parts` are when each began and its lines; seconds count from the first part's begin. Of
    percentiles the highest stands for all.
    """
    begun = list(parts)
    base_s = begun[0][0]
    seconds: dict[int, list[Json]] = {}
    for began_s, lines in begun:
        of: dict[int, Json] = {}
        before: int | None = None
        for line in lines:  # each covers all the time since the one before it
            at = round(began_s - base_s + float(str(line["wall_s"])))
            of |= dict.fromkeys(range(at if before is None else min(before + 1, at), at + 1), line)
            before = at
        for at, line in of.items():
            seconds.setdefault(at, []).append(line)
    return [_sum(seconds[at]) | {"wall_s": float(at)} for at in sorted(seconds) if at >= 0]


SHARES = {"p50", "p99", "max"}


def _sum(values: Sequence[Json]) -> Json:
    found: Json = {}
    for key in dict.fromkeys(chain.from_iterable(values)):
        known = [each[key] for each in values if each.get(key) is not None]
        found[key] = _one(known, is_share=key in SHARES) if known else None
    return found


def _one(known: list[object], *, is_share: bool) -> object:
    if isinstance(known[0], dict):
        return _sum([each for each in known if isinstance(each, dict)])
    if isinstance(known[0], list):  # of kinds of requests
        rows: dict[tuple[object, ...], list[Json]] = {}
        for row in chain.from_iterable(each for each in known if isinstance(each, list)):
            rows.setdefault((row["verb"], row["resource"], row["code"]), []).append(row)
        return [
            dict(zip(("verb", "resource", "code"), kind, strict=True))
            | _sum([{"count": row["count"], "ms": row["ms"]} for row in each])
            for kind, each in rows.items()
        ]
    if isinstance(known[0], int | float):
        numbers = [each for each in known if isinstance(each, int | float)]
        return max(numbers) if is_share else round(sum(numbers), 3)
    return known[0]
