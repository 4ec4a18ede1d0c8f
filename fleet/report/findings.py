"""What a run says in words: its sentence, what broke first, recovery, what it does not prove."""

from typing import NamedTuple

from fleet.controlplane.options import APISERVER
from fleet.report.control_plane import REQUESTS
from fleet.report.curves import SAMPLES_LEAST, periods, series
from fleet.report.display import clock
from fleet.report.report import Outcome, ServiceLevel
from fleet.report.run_directory import RunRecord
from fleet.report.service_levels import (
    INDICATORS,
    POD_STARTUP,
    STEADY,
    WATCH_DELAY,
    calls_of,
    level_words,
    slowest,
    words,
)
from fleet.report.summary_text import duration

SIMULATED = (
    "Containers, images, volumes and devices are simulated: no kubelet, runtime or network of a "
    "real node was loaded, and how long they take is an input."
)

GRACE_S = 60.0
"""So long after its last heartbeat the controller manager has taken Ready from a node (50 s)."""


class Break(NamedTuple):
    """When an objective was first seen broken. `at_s` is None where no moment stands out."""

    sli: str
    at_s: float | None
    words: str


class Recovery(NamedTuple):
    """What became of the nodes after a fault had ended."""

    fault: str
    from_s: float
    until_s: float
    lost: int
    took_s: float | None  # until as many nodes were Ready as before; None if that was not seen


def of_unit(sli: str, value: float | None) -> str:
    """Say a value of the summary in the unit of its indicator."""
    return "-" if value is None else words(sli, value)


def sentence(run: RunRecord) -> str:
    """Say the run in one sentence: server, size held, and what the verdict rests on."""
    reason = run.reasons[0] if run.reasons else "?"
    server = f"Kubernetes {run.get('server_version') or 'of unknown version'}"
    if run.verdict is Outcome.INCOMPLETE:
        return f"The run on {server} did not get to its end: {reason}."
    if run.verdict is Outcome.INVALID:
        return f"Do not use these figures of {server}: {reason}."
    ready, wanted = run.number("nodes.ready") or 0, run.number("nodes.requested") or 0
    if (peak := _peak_of_dashboard(run)) is not None:
        ready = wanted = peak
    held = f"{server} held {_of(ready, wanted)} nodes"
    if steady := _steady_s(run):
        held += f" for {duration(steady)}"
    if started := run.number("pods.started"):
        held += f" and started {started:,.0f} pods"
    if run.verdict is Outcome.NOT_JUDGED:
        reasons = [each.removeprefix("not judged: ") for each in run.reasons] or ["?"]
        return f"{held}; not judged: {'; '.join(reasons)}."
    if run.verdict is Outcome.PASS:
        if not any(each.judged for each in run.levels):
            held += "; no service level was judged"
        return f"{held}; it met all that was expected of it."
    broken = first_broken(run)
    if broken is None:  # a scenario waited for something
        return f"{held}; {reason}."
    when = f", at {clock(broken.at_s)}" if broken.at_s is not None else ""
    return f"{held}; what broke first{when}: {broken.words}."


def _peak_of_dashboard(run: RunRecord) -> float | None:
    """Return how many nodes the judged part of a dashboard's run had; it removes them at its end.

    None of other runs, whose last number of nodes is the one that counts.
    """
    options = run.about.get("options")
    if not isinstance(options, dict) or not options.keys() & {"dashboard", "locust_master"}:
        return None
    if run.steady is None:
        return None
    from_s, until_s = run.steady.from_s, run.steady.until_s or run.wall_s
    ready = (value for at_s, value in series(run, "nodes.ready") if from_s <= at_s <= until_s)
    return max(ready, default=None)


def _of(ready: float, wanted: float) -> str:
    return f"{ready:,.0f}" if ready >= wanted else f"{ready:,.0f} of {wanted:,.0f}"


def _steady_s(run: RunRecord) -> float:
    if run.steady is None or run.steady.until_s is None:
        return 0.0
    return run.steady.until_s - run.steady.from_s


def first_broken(run: RunRecord) -> Break | None:
    """Return which judged objective was seen broken first, None unless the run failed by one."""
    if run.verdict is not Outcome.FAIL:
        return None
    broken = [each for each in run.levels if each.judged and each.met is False]
    found = [Break(each.sli, _first_s(run, each), _words(each)) for each in broken]
    return min(found, key=lambda each: (each.at_s is None, each.at_s or 0.0), default=None)


def _words(level: ServiceLevel) -> str:
    sli = level.sli
    what = INDICATORS[sli].words if sli in INDICATORS else sli
    of = f", {level.worst}" if level.worst else ""
    name, measured = level_words(sli, level.percentile), of_unit(sli, level.measured)
    return f"{name} was {measured}{of}, over its limit of {of_unit(sli, level.limit)} ({what})"


def _first_s(run: RunRecord, level: ServiceLevel) -> float | None:
    """Return the first moment at which an indicator was over its limit."""
    sli, limit = level.sli, level.limit or 0.0
    path = {
        POD_STARTUP: ("pods.start_sli_ms.p99", 1e3),
        "LeaseLateness": ("lease.late_ms.p99", 1e3),
        WATCH_DELAY: ("watch.delay_ms.p99", 1e3),
        "FalseNotReadyNodes": ("nodes.ever_not_ready", 1.0),
    }.get(sli)
    if path is not None:
        over = (at_s for at_s, value in series(run, path[0]) if value > limit * path[1])
        return next(over, None)
    if sli == "TimeToNodesReady":
        return limit
    since_s = run.steady.from_s if run.steady and level.phase == STEADY else 0.0
    share = level.percentile
    lone_s = None  # the first moment at which a rare call was slow, the worst of all
    for at_s, span_s, period in periods(run.samples, APISERVER):
        if at_s - span_s / 2 < since_s:  # most of it was before
            continue
        from_s = max(at_s - span_s, since_s)
        calls = [each for each in calls_of(period) if each.sli == sli]
        bounds = period.bounds.get(REQUESTS, [])
        if (slowest(calls, bounds, share, SAMPLES_LEAST).seconds or 0.0) > limit:
            return from_s
        worst = [each for each in calls if str(each) == level.worst]
        if lone_s is None and (slowest(worst, bounds, share, 1).seconds or 0.0) > limit:
            lone_s = from_s
    return lone_s


def recoveries(run: RunRecord) -> list[Recovery]:
    """Return what became of the nodes after each fault."""
    ends_s = [each.until_s for each in run.phases if each.kind == "phase"]
    over_s = ends_s[-1] if ends_s and ends_s[-1] is not None else run.wall_s
    known = [(at_s, int(count)) for at_s, count in series(run, "nodes.ready") if at_s <= over_s]
    found = []
    for each in run.phases:
        if each.kind != "fault":
            continue
        from_s = each.from_s
        until_s = each.until_s if each.until_s is not None else run.wall_s
        before = max((count for at_s, count in known if at_s <= from_s), default=0)
        back = (at_s for at_s, count in known if at_s >= until_s and count >= before)
        at_s = next(back, None)
        took_s = None if at_s is None else max(0.0, at_s - until_s)
        end_s = over_s if at_s is None else max(at_s, until_s + GRACE_S)
        during = [count for at_s, count in known if from_s <= at_s <= end_s]
        lost = max(0, before - min(during, default=before))
        found.append(Recovery(each.name, from_s, until_s, lost, took_s))
    return found


def not_proven(run: RunRecord) -> list[str]:
    """Say what must not be concluded from the run."""
    found = [SIMULATED, "Larger fleets: the run measured this size only."]
    if run.get("etcd_fsync") is False:
        found.append(
            "Writes to a disk: etcd ran without fsync, faster than any disk (--fsync turns it on)."
        )
    if run.about.get("local_control_plane"):
        found.append(
            "A replicated control plane on its own machines: here one API server, etcd, scheduler "
            "and controller-manager shared this machine with fleet."
        )
    if run.get("fidelity") == "light":
        found.append(
            "The traffic of real kubelets: fidelity light sends fewer requests, over shared "
            "connections and watches."
        )
    if not run.number("pods.started"):
        found.append("Pods: none was started.")
    steady = _steady_s(run)
    if steady < 300:
        length = f"Ready for {duration(steady)}" if steady else "never all Ready"
        found.append(f"Endurance: the nodes were {length}; SIG Scalability measures over 5 min.")
    unjudged = [each.sli for each in run.levels if each.limit is not None and not each.judged]
    if unjudged:
        found.append(f"{', '.join(unjudged)}: not judged, see the table.")
    if run.get("controlplane.problem"):
        found.append(f"The server's own latencies: {run.get('controlplane.problem')}.")
    return found
