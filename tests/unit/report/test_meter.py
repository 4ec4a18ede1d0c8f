"""What the meter and a scrape make of counters and of how the nodes of a host stand."""

import os
import resource
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from world.sim_clock import SimClock

from fleet.clock import NS_PER_S
from fleet.metrics import FleetCounts
from fleet.report.figures import AgentFigures, HostState, request_figures
from fleet.report.meter import Meter, _answered, _errors, _latency, _pods
from fleet.report.prometheus import FleetCollector
from fleet.report.report import RunFigures
from fleet.wire.sockets.dials import TransportStats

STATE = HostState(
    requested=5,
    wanted=4,
    running=3,
    present=3,
    ready=2,
    ever_not_ready=1,
    time_to_ready_s=1.5,
    time_to_settled_s=2.5,
    held_by="the API server",
    own_limits=Counter({"open files": 3}),
    connections=TransportStats(dials=7, closed_slow=1),
    closed_slow=9,
    agents={"kube-proxy": AgentFigures(running=3, watches_open=12, received_bytes=4_000)},
    unregistered=Counter({"NODE is refused": 2}),
    rejected=Counter({"a LIST that cannot be read": 2}),
)


def test_figures_are_the_counters_and_the_state_of_the_host() -> None:
    counts = FleetCounts()
    counts.registered, counts.watches_open = 3, 14
    run = Meter(RunFigures(run_id="r"), counts, lambda: STATE, {}).figures()
    assert (run.nodes.requested, run.nodes.ready, run.nodes.registered) == (5, 2, 3)
    assert (run.nodes.time_to_ready_s, run.nodes.ever_not_ready) == (1.5, 1)
    assert (run.watch.closed_slow, run.connections.dials) == (9, 7)
    assert run.agents == STATE.agents
    assert run.unregistered == {"NODE is refused": 2}
    assert run.rejected == {"a LIST that cannot be read": 2}
    assert run.own_limits == {"open files": 3}
    assert run.process.rss_bytes > 1 << 20


def test_figures_come_when_no_file_can_be_opened() -> None:
    meter = Meter(RunFigures(run_id="r"), FleetCounts(), lambda: STATE, {"etcd": os.getpid()})
    before = meter.live().rss_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        live, figures = meter.live(), meter.figures()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert live.rss_bytes == figures.process.rss_bytes == before


def test_live_figures_have_rates_since_the_last_look() -> None:
    counts, clock = FleetCounts(), SimClock()
    meter = Meter(RunFigures(run_id="r"), counts, lambda: STATE, {}, clock.now_ns)
    counts.requests.record(("GET", "pods"), 200, 4_000)
    clock.advance_to(2 * NS_PER_S)
    live = meter.live()
    assert (live.nodes_requested, live.nodes_ready, live.held_by) == (4, 2, "the API server")
    assert (live.agents, live.agent_watches, live.agent_bytes_per_s) == (3, 12, 0)
    assert live.own_limits == {"open files": 3}
    assert live.requests_per_s == 0.5
    assert live.request_p99_ms is not None
    clock.advance_to(3 * NS_PER_S)
    again = meter.live()
    assert again.requests_per_s == 0
    assert again.request_p99_ms is None


def test_rates_of_a_moment_after_the_last_look_are_those_of_a_longer_time() -> None:
    counts, clock = FleetCounts(), SimClock()
    meter = Meter(RunFigures(run_id="r"), counts, lambda: STATE, {}, clock.now_ns)
    clock.advance_to(NS_PER_S)
    meter.live()
    clock.advance_to(11 * NS_PER_S // 10)
    counts.requests.record(("GET", "pods"), 200, 4_000)
    assert meter.live().requests_per_s == pytest.approx(1 / 1.1)
    clock.advance_to(2 * NS_PER_S)
    assert meter.live().requests_per_s == 1


def test_a_scrape_tells_how_the_nodes_stand() -> None:
    registry = CollectorRegistry()
    registry.register(FleetCollector(FleetCounts(), lambda: STATE, lambda: {"Running": 6}))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'fleet_nodes{condition="Ready"} 2.0',
        'fleet_nodes{condition="NotReady"} 1.0',
        'fleet_pods{phase="Running"} 6.0',
        "fleet_kubelets 3.0",
        'fleet_own_limits_total{limit="open files"} 3.0',
        "fleet_valid 0.0",
    ):
        assert line in lines, lines


def counted() -> FleetCounts:
    counts = FleetCounts()
    for row, code in (
        (("GET", "pods"), 200),
        (("GET", "pods"), 404),
        (("GET", "pods"), 0),
        (("POST", "events"), 201),
        (("POST", "events"), 429),
        (("WATCH", "pods"), 200),
    ):
        counts.requests.record(row, code, 100)
    return counts


def test_figures_leave_out_watches_and_expected_refusals() -> None:
    counts = counted()
    assert _errors(counts) == 2  # no answer, and the 429
    assert _latency(counts).count == 5
    assert _answered(counts, ("POST", "events")) == 1
    assert [(each.verb, each.code, each.count) for each in request_figures(counts.requests)] == [
        ("GET", 0, 1),
        ("GET", 200, 1),
        ("GET", 404, 1),
        ("POST", 201, 1),
        ("POST", 429, 1),
        ("WATCH", 200, 1),
    ]


def test_figures_of_pods_are_empty_without_pods() -> None:
    counts = FleetCounts()
    assert _pods(counts) == {}
    counts.pods_added, counts.pods_running, counts.pods_removed = 3, 2, 1
    assert _pods(counts) == {"on nodes": 2, "started": 2, "removed": 1}
    counts.pods_failed = 1
    assert _pods(counts)["Failed"] == 1
