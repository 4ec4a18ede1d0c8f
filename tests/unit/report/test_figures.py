"""The table of figures: it is complete, and several processes are told as one."""

from collections import Counter
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from fleet.metrics import FleetCounts, Histogram, Requests
from fleet.report.figure import combined, figures_of, filled
from fleet.report.figures import (
    AgentFigures,
    ConnectionFigures,
    EventFigures,
    LeaseFigures,
    NodeFigures,
    PodFigures,
    ProcessFigures,
    WatchFigures,
    metrics,
    of_counts,
    request_figures,
)
from fleet.report.record import merge
from fleet.report.report import RunFigures, as_json, summary
from fleet.wire.sockets.dials import TransportStats

RECORDS = (
    *(NodeFigures, LeaseFigures, PodFigures, EventFigures, WatchFigures, ConnectionFigures),
    *(AgentFigures, ProcessFigures),
)
INTERNAL = {"requests", "ready", "not_ready", "gone", "pods_added"}
"""Told by the rows of requests, by another client's watch, and by the display."""
REASONS = {"quarantined", "foreign", "foreign_names", "rejected", "bugs", "own_limits"}
"""Why a run is invalid, and what it could not read."""


def test_every_counter_is_a_figure_or_named_here() -> None:
    counters = {each.name for each in fields(FleetCounts)}
    told = {figure.counter for figure in of_counts()}
    assert told <= counters
    assert counters - told == INTERNAL | REASONS


def test_every_field_of_a_record_is_a_figure() -> None:
    for record in RECORDS:
        assert list(figures_of(record)) == [each.name for each in fields(record)]
        assert all(each.words for each in figures_of(record).values())
    names = [each.name for each in fields(RunFigures)]
    reasons = ["expectations", "invalid_reasons", "incomplete_reasons", "how_longer"]
    assert names == ["run_id", *figures_of(RunFigures), *reasons]


def test_no_two_metrics_have_one_name() -> None:
    names = [figure.metric for figure in metrics()]
    assert len(names) == len(set(names))
    assert "throttling_seconds" in names


def test_a_record_is_filled_from_what_counts_it() -> None:
    counts = FleetCounts()
    counts.renewals, counts.lease_interval_ns_max = 3, 10_500_000_000
    lease = filled(LeaseFigures, counts)
    assert (lease.renewals, lease.interval_max_s) == (3, 10.5)
    assert lease.late is counts.lease_late  # which goes on
    assert filled(ConnectionFigures, TransportStats()) == ConnectionFigures()


counters = st.integers(0, 10**9)
names = st.sampled_from(["a", "b", "c"])


@st.composite
def processes(draw: st.DrawFn) -> RunFigures:
    """Make what one process measured."""
    run = RunFigures(run_id="r")
    for record in (run.nodes, run.lease, run.pods, run.events, run.watch, run.process):
        for name in (each.name for each in fields(record)):
            value = getattr(record, name)
            if isinstance(value, Histogram):
                for us in draw(st.lists(counters, max_size=5)):
                    value.record(us)
            elif value is not None or name == "time_to_ready_s":
                setattr(record, name, draw(counters))
    requests = Requests()
    for name, us in draw(st.lists(st.tuples(names, counters), max_size=5)):
        requests.record(("GET", name), 200, us)
    run.requests = request_figures(requests)
    run.rejected = draw(st.dictionaries(names, st.integers(1, 9)))
    run.agents = {draw(names): AgentFigures(running=draw(counters), requests=requests)}
    run.invalid_reasons = draw(st.lists(names, max_size=2))
    return run


@given(st.lists(processes(), min_size=1, max_size=4))
def test_processes_add_up_in_any_order_and_grouping(runs: list[RunFigures]) -> None:
    total = merge(runs)
    assert total.lease.renewals == sum(run.lease.renewals for run in runs)
    assert total.lease.interval_max_s == max(run.lease.interval_max_s for run in runs)
    assert total.nodes.time_to_ready_s == max(run.nodes.time_to_ready_s or 0 for run in runs)
    assert total.pods.start.count == sum(run.pods.start.count for run in runs)
    assert total.request_count() == sum(run.request_count() for run in runs)
    assert total.rejected == sum((Counter(run.rejected) for run in runs), Counter())
    reasons = {why for run in runs for why in run.invalid_reasons}
    assert sorted(total.invalid_reasons) == sorted(reasons), "each once"
    rows = [(each.verb, each.resource, each.code) for each in total.requests]
    assert len(rows) == len(set(rows))
    told = summary(total)
    for others in (merge(runs[::-1]), merge([merge(runs[:1]), *runs[1:]])):
        found = summary(others)
        for key in ("invalid_reasons", "verdict_reasons"):
            found[key] = told[key]  # as they come
        assert found == told


def test_what_is_combined_is_left_as_it_was() -> None:
    parts = [AgentFigures(running=1), AgentFigures(running=2)]
    for part in parts:
        part.requests.record(("GET", "nodes"), 200, 1500)
    assert combined(parts).requests.total == 2
    assert [part.requests.total for part in parts] == [1, 1]


def test_agents_of_processes_add_up() -> None:
    runs = []
    for count in (1, 2):
        figures = AgentFigures(running=count, received_bytes=10 * count)
        for _ in range(count):
            figures.requests.record(("GET", "nodes"), 200, 1500)
        runs.append(figures)
    assert as_json(combined(runs)) == {
        "running": 3,
        "requests": [
            {
                "verb": "GET",
                "resource": "nodes",
                "code": 200,
                "count": 3,
                "ms": {"p50": 1.5, "p99": 1.5},
            }
        ],
        "watch": {"open": 0, "restarts": 0, "events": 0},
        "bytes": {"received": 30, "sent": 0},
    }
