"""What a run measured, from its counters: for the summary, the time series, the display."""

import contextlib
import gc
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from typing import NamedTuple

import psutil

from fleet.metrics import FleetCounts, Histogram, is_failure, merged
from fleet.report.display import LiveFigures
from fleet.report.figure import filled
from fleet.report.figures import (
    ConnectionFigures,
    EventFigures,
    HostState,
    LeaseFigures,
    NodeFigures,
    PodFigures,
    ProcessFigures,
    WatchFigures,
    request_figures,
)
from fleet.report.report import RunFigures

BURST_S = 5.0
SPAN_NS_MIN = 500_000_000
"""Of rates: a phase that begins is shown at once, and CPU is counted in ticks of 10 ms."""


@dataclass(eq=False)
class Meter:
    """Gathers the figures of one run. CPU is counted from its making."""

    _run: RunFigures
    _counts: FleetCounts
    _state: Callable[[], HostState]
    pids: InitVar[Mapping[str, int]]
    _clock_ns: Callable[[], int] = time.monotonic_ns
    _rss_bytes: int = 0

    def __post_init__(self, pids: Mapping[str, int]) -> None:
        self._own = psutil.Process()
        self._processes = [psutil.Process(pid) for pid in pids.values()]
        self._started_ns = self._clock_ns()
        self._cpu_before_s = _cpu_s()
        self._before = self._last = self._sample(self._state(), _latency(self._counts).buckets)
        self._burst = 0.0, 0, 0.0  # when it was looked at, pods started by then, the most a second

    def elapsed_s(self) -> float:
        """Return the seconds since the run's figures began."""
        return (self._clock_ns() - self._started_ns) / 1e9

    def controlplane_cpu_s(self) -> float:
        """Return the CPU seconds of the local control plane, 0 when there is none."""
        total = 0.0
        for process in self._processes:
            try:
                times = process.cpu_times()
            except (psutil.Error, OSError):  # it was restarted, is gone, or no file can be opened
                continue
            total += times.user + times.system
        return total

    def _rss(self) -> int:
        """Return the resident memory of this process, the last known if no file can be opened."""
        with contextlib.suppress(OSError):
            self._rss_bytes = int(self._own.memory_info().rss)
        return self._rss_bytes

    def count_requests(self) -> None:
        """Bring the counts of requests alone up to date: the last answers come to silent nodes."""
        self._run.requests = request_figures(self._counts.requests)

    def figures(self) -> RunFigures:
        """Bring the run's figures up to date and return them."""
        run, counts, state = self._run, self._counts, self._state()
        run.nodes = filled(NodeFigures, counts)
        run.nodes.requested = state.requested
        run.nodes.ready = state.ready
        run.nodes.time_to_ready_s = state.time_to_ready_s
        run.nodes.time_to_settled_s = state.time_to_settled_s
        run.nodes.ever_not_ready = state.ever_not_ready
        run.lease = filled(LeaseFigures, counts)
        run.pods = filled(PodFigures, counts)
        run.pods.started_per_s_max = self._steepest(counts.pods_running)
        self.count_requests()
        run.events = filled(EventFigures, counts)
        run.events.sent = sum(_answered(counts, (verb, "events")) for verb in ("POST", "PATCH"))
        run.watch = filled(WatchFigures, counts)
        run.watch.closed_slow = state.closed_slow
        run.connections = filled(ConnectionFigures, state.connections)
        run.agents = state.agents
        run.unregistered = state.unregistered
        run.rejected = state.rejected
        run.own_limits = state.own_limits
        run.process = filled(ProcessFigures, counts)
        run.process.cpu_s = _cpu_s() - self._cpu_before_s
        run.process.rss_bytes = self._rss()
        run.process.gc_collections = sum(each["collections"] for each in gc.get_stats())
        run.wall_s = self.elapsed_s()
        return run

    def _steepest(self, started: int) -> float:
        """Return the most pods that were started in a second, over at least `BURST_S`."""
        (at_s, before, most), now_s = self._burst, self.elapsed_s()
        if now_s - at_s >= BURST_S:
            most = max(most, (started - before) / (now_s - at_s))
            self._burst = now_s, started, most
        return most

    def live(self) -> LiveFigures:
        """Return how the run stands, with rates since the last call, or since one before it."""
        counts, state = self._counts, self._state()
        latency = _latency(counts)
        now = self._sample(state, latency.buckets)
        if now.at_ns - self._last.at_ns >= SPAN_NS_MIN:
            self._before, self._last = self._last, now
        before = self._before
        span_s = max(now.at_ns - before.at_ns, 1) / 1e9
        recent = latency.since(before.latency)
        late = counts.lease_late.since(before.late)
        return LiveFigures(
            elapsed_s=(now.at_ns - self._started_ns) / 1e9,
            nodes_requested=state.wanted,
            nodes_registered=counts.registered,
            nodes_ready=state.ready,
            held_by=state.held_by,
            own_limits=state.own_limits,
            pods=_pods(counts),
            requests_per_s=(now.requests - before.requests) / span_s,
            request_p99_ms=recent.percentile_us(0.99) / 1e3 if recent.count else None,
            lease_late_p99_ms=late.percentile_us(0.99) / 1e3 if late.count else None,
            api_errors=_errors(counts),
            watches=counts.watches_open,
            agents=sum(each.running for each in state.agents.values()),
            agent_watches=sum(each.watches_open for each in state.agents.values()),
            agent_bytes_per_s=(now.agent_bytes - before.agent_bytes) / span_s,
            fleet_cpu=(now.cpu_s - before.cpu_s) / span_s,
            controlplane_cpu=(now.controlplane_cpu_s - before.controlplane_cpu_s) / span_s
            if self._processes
            else None,
            rss_bytes=self._rss(),
        )

    def _sample(self, state: HostState, latency: dict[int, int]) -> "_Sample":
        return _Sample(
            at_ns=self._clock_ns(),
            requests=self._counts.requests.total,
            agent_bytes=sum(each.received_bytes for each in state.agents.values()),
            latency=latency,
            late=self._counts.lease_late.snapshot(),
            cpu_s=_cpu_s(),
            controlplane_cpu_s=self.controlplane_cpu_s(),
        )


class _Sample(NamedTuple):
    """The counters that rates are computed from."""

    at_ns: int
    requests: int
    agent_bytes: int
    latency: dict[int, int]
    late: dict[int, int]
    cpu_s: float
    controlplane_cpu_s: float


def _latency(counts: FleetCounts) -> Histogram:
    """Return the latencies of all requests but watches, which wait for nothing but their start."""
    return merged(
        histogram
        for (verb, _), codes in counts.requests.rows.items()
        if verb != "WATCH"
        for histogram in codes.values()
    )


def _pods(counts: FleetCounts) -> dict[str, int]:
    present = counts.pods_added - counts.pods_removed
    if not counts.pods_added:
        return {}
    return {
        "on nodes": present,
        "started": counts.pods_running,
        "removed": counts.pods_removed,
        **({"Failed": counts.pods_failed} if counts.pods_failed else {}),
    }


def _errors(counts: FleetCounts) -> int:
    """Count what a healthy API server does not answer."""
    return sum(
        histogram.count
        for (_, resource), codes in counts.requests.rows.items()
        for code, histogram in codes.items()
        if is_failure(resource, code)
    )


def _answered(counts: FleetCounts, row: tuple[str, str]) -> int:
    codes = counts.requests.rows.get(row, {})
    return sum(histogram.count for code, histogram in codes.items() if 200 <= code < 300)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
