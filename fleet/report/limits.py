"""What limited a run: how near each part of the control plane came to its limit, and what to try.

Values are averages between two samples of the control plane (5 to 15 s), so a shorter peak is
higher. The bring-up is kept apart: its storm says little about a fleet that is up.
Source: kubernetes/community sig-scalability/slos/slos.md: calls within 1 s, pod starts within 5 s.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fleet.controlplane.options import APISERVER, ETCD, SCHEDULER
from fleet.report.control_plane import REJECTED, WAITS
from fleet.report.curves import (
    COMMIT,
    COMPONENTS,
    CPU,
    ETCD_COMMIT_LIMIT_S,
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
from fleet.report.service_levels import SCHEDULING, words_of_s
from fleet.report.summary_text import size

NEAR = 0.8  # of a limit: from here on it is what holds the run back
CALL_LIMIT_S, POD_START_LIMIT_S = 1.0, 5.0
REFUSED_LIMIT = 0.01  # requests per second; a server at rest refuses none


class Resource(NamedTuple):
    """A part that may limit a run, and the most that was used of it: in the bring-up, and after."""

    name: str
    unit: str
    limit: float | None
    """None where nobody says how much there is: the value is shown, and limits nothing."""
    bring_up: Point | None
    after: Point | None
    advice: str

    @property
    def highest(self) -> Point:
        """Return when most was used, and how much."""
        return max(filter(None, (self.bring_up, self.after)), key=lambda at: at[1])

    def share(self, value: float) -> float:
        """Return how much of the limit a value is: 1 is all."""
        return value / self.limit if self.limit else 0.0

    def words(self, value: float) -> str:
        """Return a value with its unit."""
        if self.unit == "bytes":
            return size(int(value))
        return words_of_s(value) if self.unit == "s" else f"{value:,.3g} {self.unit}"


def limited_by(run: RunRecord, found: list[Resource]) -> tuple[str, str]:
    """Return what limited the run, and what to try next: a sentence each."""
    lag_ms = run.number("process.timer_lag_ms.p99") or 0.0
    if lag_ms > TIMER_LAG_LIMIT_MS:
        lag = f"{lag_ms:,.0f} ms late (p99); the limit is {TIMER_LAG_LIMIT_MS:.0f} ms"
        return f"fleet itself limited the run: its timers fired {lag}.", ADVICE["own"]
    known = [each for each in found if each.limit is not None]
    if not known:
        why = run.get("controlplane.problem") or "the run was too short for two samples of metrics"
        return f"What limited the run is not known: {why}.", ADVICE["unknown"]
    first = known[0]
    at_s, value = first.highest
    limit = first.words(first.limit or 0.0)
    used = f"{first.words(value)} at {clock(at_s)}; the limit is {limit}"
    if first.share(value) < NEAR:
        return f"Nothing reached its limit. Nearest came the {first.name}: {used}.", ADVICE[
            "larger"
        ]
    is_after = first.after is not None and first.share(first.after[1]) >= NEAR
    when = "" if is_after else " during the bring-up"
    return f"The {first.name} limited the run{when}: {used}.", first.advice


ADVICE = tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))


def resources(run: RunRecord) -> list[Resource]:
    """Return what is known of each resource, the one nearest to its limit first."""
    ready_s = run.steady.from_s if run.steady is not None else run.wall_s
    found = []
    for name, unit, limit, points, advice in _used(run):
        before = max((at for at in points if at[0] <= ready_s), key=lambda at: at[1], default=None)
        after = max((at for at in points if at[0] > ready_s), key=lambda at: at[1], default=None)
        if before or after:
            found.append(Resource(name, unit, limit, before, after, advice))
    return sorted(found, key=lambda each: -each.share(each.highest[1]))


def _used(run: RunRecord) -> Iterable[tuple[str, str, float | None, Points, str]]:
    """Yield name, unit and limit of each resource, its use over time, and advice."""
    samples, is_local = run.samples, run.about.get("local_control_plane")
    apiserver, etcd = periods(samples, APISERVER), periods(samples, ETCD)
    quota = gauges(samples, ETCD, "etcd_server_quota_backend_bytes")
    waited, refused = quantiles(apiserver, WAITS), rates(apiserver, REJECTED)
    together = "CPU of the control plane and fleet together"
    yield "CPU of the API server", "cores", cores(run), rates(apiserver, CPU), ADVICE["cpu"]
    if is_local:
        machine = value_at(run.about, "machine.cores")
        yield together, "cores", machine, _machine_cpu(run), ADVICE["machine"]
    yield "wait in the queues of the API server (p99)", "s", CALL_LIMIT_S, waited, ADVICE["queues"]
    yield "rate of refused requests", "per second", REFUSED_LIMIT, refused, ADVICE["refused"]
    commits = quantiles(etcd, COMMIT)
    yield "commit time of etcd (p99)", "s", ETCD_COMMIT_LIMIT_S, commits, ADVICE["etcd"]
    most = quota[-1][1] if quota else None
    yield "size of etcd", "bytes", most, stored(run), ADVICE["size"]
    scheduled = quantiles(periods(samples, SCHEDULER), SCHEDULING)
    yield "scheduling time of pods (p99)", "s", POD_START_LIMIT_S, scheduled, ADVICE["scheduler"]


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
