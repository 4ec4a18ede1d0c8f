"""How long the events of the kubelets' own writes take: on a far server, on a late watch."""

import pytest
from world.sim_faults import AnswersSlow, ApiServerAnswers, EventsLate
from world.simulation import Simulation

from fleet.k8s.effects import NodeId
from fleet.metrics import FleetCounts
from fleet.reactor.watch_delays import EVERY

pytest_plugins = ("sim_encodings",)
PODS = 24
"""Each has two statuses or more that are told, so several are looked for."""


def played(*faults: AnswersSlow | EventsLate, light: bool = False) -> Simulation:
    """Let pods start while something is wrong."""
    sim = Simulation(nodes=2, seed=3, light=light).run_for(seconds=60)
    for fault in faults:
        sim.inject(fault, seconds=1_000)
    for number in range(PODS):
        sim.create_pod(f"p{number}", f"n-{number % 2}")
    sim.run_for(seconds=120)
    assert not [each for each in range(PODS) if sim.phase(f"p{each}") != "Running"]
    return sim


def seconds(counts: FleetCounts) -> tuple[float, float]:
    """Return the medians: at most, at least."""
    return counts.watch_delay.percentile_us(0.5) / 1e6, counts.watch_behind.percentile_us(0.5) / 1e6


@pytest.mark.parametrize("light", [False, True])
def test_every_few_writes_are_looked_for_and_found(light: bool) -> None:  # noqa: FBT001
    sim = played(light=light)
    counts = sim.reactor.counts
    writes = sum(
        histogram.count
        for (verb, resource), codes in counts.requests.rows.items()
        for code, histogram in codes.items()
        if verb == "PATCH" and resource in {"pods/status", "nodes/status"} and code == 200
    )
    # Of those before a watch is open, and of a pod that is looked for already, none is.
    assert writes // (2 * EVERY) <= counts.watch_delay.count <= writes // EVERY
    assert counts.watch_behind.count == counts.watch_delay.count
    assert counts.watch_delay_lost == 0
    assert not sim.reactor.calls.delays.looked_for
    at_most, at_least = seconds(counts)
    assert 0 <= at_least < at_most < 0.05


def test_a_long_way_to_the_server_is_no_lag_of_its_watches() -> None:
    at_most, at_least = seconds(played(AnswersSlow(2)).reactor.counts)
    assert at_most == pytest.approx(2, rel=0.1)
    assert at_least < 0.05


def test_a_watch_that_lags_shows_in_both() -> None:
    at_most, at_least = seconds(played(EventsLate(2)).reactor.counts)
    assert at_most == pytest.approx(2, rel=0.1)
    assert at_least == pytest.approx(2, rel=0.1)


def starting() -> Simulation:
    """Return a node that knows its pods and is about to tell of them."""
    sim = Simulation(nodes=1, seed=3).run_for(seconds=60)
    for number in range(PODS):
        sim.create_pod(f"p{number}")
    sim.run_for(seconds=0.1)
    return sim


def test_what_does_not_come_within_a_minute_is_counted() -> None:
    sim = starting()
    sim.inject(EventsLate(1_000), seconds=2_000)
    sim.run_for(seconds=10)
    missing = len(sim.reactor.calls.delays.looked_for)
    assert missing
    sim.run_for(seconds=700)  # the node's own status is told every 5 minutes
    assert sim.reactor.counts.watch_delay_lost >= missing


def test_a_refusal_is_looked_for_no_more() -> None:
    sim = starting()
    found = sim.reactor.counts.watch_delay.count
    sim.inject(ApiServerAnswers(503), seconds=100)
    sim.run_for(seconds=60)
    assert not sim.reactor.calls.delays.looked_for
    assert sim.reactor.counts.watch_delay.count <= found + 1, "but for one that was under way"


def test_a_kubelet_that_ends_is_not_waited_for() -> None:
    sim = starting()
    sim.inject(EventsLate(1_000), seconds=2_000)
    sim.run_for(seconds=10)
    delays = sim.reactor.calls.delays
    assert delays.looked_for
    sim.reactor.restart([NodeId(0)])
    assert not delays.looked_for
