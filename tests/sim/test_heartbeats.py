"""Leases and node status: when all is well, and when the API server is not."""

from collections import deque
from functools import partial
from itertools import pairwise

import pytest
from world.sim_faults import (
    AnswersSlow,
    ApiServerAnswers,
    ConnectionsDropped,
    ConnectionsRefused,
    RequestsVanish,
    Throttled,
    WatchesEnded,
)
from world.simulation import LEASE_DURATION_S, RUN, WATCHES, Simulation

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Op

pytest_plugins = ("sim_encodings",)

LEASES = "/namespaces/kube-node-lease/leases"


def test_an_idle_fleet_sends_leases_and_status_reports_only() -> None:
    """Ten virtual minutes of 100 nodes: kubelet-reference 10.1."""
    sim = Simulation(nodes=100, seed=7).run_for(seconds=30)
    assert sim.ready() == 100
    sim.trace.clear()
    sim.run_for(seconds=600)
    assert {each.verb for each in sim.trace} == {"PUT", "PATCH", "WATCH"}
    assert all(each.code == 200 for each in sim.trace)
    for name in sim.names:
        times = [each.t_ns for each in sim.calls(name, "PUT")]
        gaps = [(after - before) / 1e9 for before, after in pairwise(times)]
        assert min(gaps) >= 10.0
        assert max(gaps) <= 10.42
        reports = [each.t_ns / 1e9 for each in sim.calls(name, "PATCH")]
        assert 140 <= reports[0] <= 470  # 5 min x U[0.5, 1.5) and one tick
        assert all(299 < after - before < 312 for before, after in pairwise(reports))
    first = [sim.calls(name, "PATCH")[0].t_ns / 1e9 for name in sim.names]
    assert max(first) - min(first) > 250
    assert sim.reactor.counts.leases_missed == 0


def test_leases_outlive_an_apiserver_outage() -> None:
    """25 s of 503 must not let any of 100 leases expire."""
    sim = Simulation(nodes=100, seed=7).run_for(seconds=30)
    sim.inject(ApiServerAnswers(503), seconds=25)
    sim.run_for(seconds=60)
    assert sim.longest_gap_s(Op.RENEW_LEASE) < LEASE_DURATION_S


def test_an_outage_is_met_with_five_tries_then_get_and_back_off() -> None:
    sim = Simulation(seed=3).run_for(seconds=40)
    before_s = sim.now_s
    sim.inject(ApiServerAnswers(503), seconds=30)
    sim.run_for(seconds=30)
    puts = sim.calls(verb="PUT", since_s=before_s)
    gets = [each.t_ns / 1e9 for each in sim.calls(verb="GET", path=LEASES, since_s=before_s)]
    assert [each.code for each in puts] == [503] * 5
    gaps = [round(after - before, 1) for before, after in pairwise(gets)]
    assert gaps[:5] == [0.2, 0.4, 0.8, 1.6, 3.2]
    sim.run_for(seconds=20)
    assert sim.longest_gap_s(Op.RENEW_LEASE) < 30 + 10.4 + 7


def test_nodes_recover_from_a_long_outage_within_a_tick() -> None:
    sim = Simulation(nodes=20, seed=11, monitored=True).run_for(seconds=60)
    sim.inject(ConnectionsRefused(), seconds=120)
    sim.run_for(seconds=119)
    assert {sim.condition(name) for name in sim.names} == {"Unknown"}
    sim.run_for(seconds=1 + 7 + 30 + 10.4 + 1)  # lease back-off, watch back-off, one tick
    assert sim.ready() == 20
    for name in sim.names:
        assert sim.condition(name, "MemoryPressure") == "False"
    assert sim.reactor.counts.leases_missed == 20
    rows = sim.reactor.counts.requests.rows.items()
    unsent = [codes[0] for (verb, _), codes in rows if verb != "WATCH" and 0 in codes]
    assert max(each.percentile_us(1) for each in unsent) <= 10_100_000  # not since the start
    again = sim.events("NodeReady")
    assert sum(each["count"] for each in again) == 40  # posted once, then counted


def test_unknown_conditions_flip_back_within_a_tick() -> None:
    sim = Simulation(seed=12).run_for(seconds=60)
    conditions = [{"type": kind, "status": "Unknown"} for kind in ("Ready", "DiskPressure")]
    sim.server.update("nodes", "n-0", {"status": {"conditions": conditions}})
    sim.run_for(seconds=10.5)
    assert sim.condition("n-0") == "True"
    assert sim.condition("n-0", "DiskPressure") == "False"


def test_a_lost_answer_makes_a_conflict_that_a_get_resolves() -> None:
    """The server took a renewal whose answer was lost: 409, GET, PUT in the same tick."""
    sim = Simulation(nodes=50, seed=5).run_for(seconds=30)
    sim.inject(AnswersSlow(0.5), seconds=30)
    for seconds in range(0, 28, 3):
        sim.after(seconds, lambda: sim.inject(ConnectionsDropped()))
    sim.run_for(seconds=60)
    conflicts = sim.calls(verb="PUT", code=409)
    assert conflicts
    assert len(sim.calls(verb="GET", path=LEASES, since_s=30)) >= len(conflicts)
    assert sim.longest_gap_s(Op.RENEW_LEASE) < 25
    assert sim.ready() == 50


def test_requests_that_vanish_time_out_after_ten_seconds() -> None:
    sim = Simulation(nodes=5, seed=6).run_for(seconds=30)
    sim.inject(RequestsVanish(), seconds=15)
    sim.run_for(seconds=60)
    lost = sim.calls(verb="PUT", code=0)
    assert 5 <= len(lost) <= 10
    assert sim.longest_gap_s(Op.RENEW_LEASE) < LEASE_DURATION_S


def test_retry_after_is_honoured() -> None:
    sim = Simulation(seed=8).run_for(seconds=30)
    sim.inject(Throttled("PUT", 4), seconds=60)
    sim.run_for(seconds=30)
    puts = sim.calls(verb="PUT", since_s=30)
    codes = [each.code for each in puts[:5]]
    assert codes == [429, 429, 429, 429, 200]
    gaps = [round((after.t_ns - before.t_ns) / 1e9, 2) for before, after in pairwise(puts[:5])]
    assert 1 <= min(gaps) <= max(gaps) <= 1.04, gaps  # two edges of timers
    assert not sim.calls(verb="GET", path=LEASES, since_s=30)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@pytest.mark.parametrize("retry_after_s", [0, -1], ids=["at-once", "no-header"])
@pytest.mark.parametrize("code", [429, 503])
def test_a_server_that_refuses_everything_gets_rest(
    code: int, retry_after_s: int, *, light: bool
) -> None:
    """A loop of its own, or of a watch, asks once a second at most: tries are counted."""
    sim = Simulation(seed=8, light=light).run_for(seconds=60)
    began_s = sim.now_s
    sim.inject(ApiServerAnswers(code, retry_after_s), seconds=60)
    sim.inject(WatchesEnded())
    sim.run_for(seconds=60)
    asked = len(sim.calls(since_s=began_s))
    assert asked <= 60 * (1 + WATCHES) * len(sim.names), asked
    sim.run_for(seconds=60)
    assert sim.calls(verb="PUT", code=200, since_s=sim.now_s - 15)


def test_a_renewal_that_is_refused_for_ten_seconds_is_given_up_and_made_anew() -> None:
    """Source: client-go/rest/request.go: the time-out of a client is for all tries of a call."""
    sim = Simulation(seed=8).run_for(seconds=30)
    sim.inject(Throttled("PUT", 10), seconds=60)
    sim.run_for(seconds=21)
    puts = sim.calls(verb="PUT", since_s=30)
    assert [each.code for each in puts[:11]] == [429] * 10 + [200]
    assert 9.99 <= (puts[10].t_ns - puts[0].t_ns) / 1e9 <= 10.05  # at once, not a second later


@pytest.mark.parametrize("light", [False, True])
def test_both_ways_of_a_heartbeat_are_one_to_the_server(*, light: bool) -> None:
    """Nodes whose story is kept go the long way; through trouble all the same is sent and taken.

    In light many renew at one instant, and those of the long way leave last: so of one node there.
    """
    nodes, runs = 1 if light else 12, []
    for keeps_stories in (False, True):
        sim = Simulation(nodes=nodes, seed=21, light=light)
        for entry in sim.reactor.entries:
            entry.story = deque(maxlen=1) if keeps_stories else None
        sim.run_for(seconds=45)
        sim.inject(Throttled("PUT", 3), seconds=12)
        sim.run_for(seconds=20)
        sim.inject(ApiServerAnswers(503), seconds=20)
        sim.run_for(seconds=40)
        sim.inject(AnswersSlow(0.5), seconds=25)
        for seconds in range(24):
            sim.after(seconds, partial(sim.inject, ConnectionsDropped()))
        sim.run_for(seconds=40)
        sim.server.remove(("leases", "kube-node-lease", "n-0"))
        sim.run_for(seconds=60)
        runs.append(sim)
    short, long = runs
    assert {409, 429, 503, 0, 404} < {each.code for each in short.trace}
    assert short.trace == long.trace
    assert short.server.all("leases") == long.server.all("leases")
    counts = [each.reactor.counts for each in runs]
    assert counts[0].renewals == counts[1].renewals > nodes * 10
    for name in ("lease_interval_ns_max", "leases_missed"):
        assert getattr(counts[0], name) == getattr(counts[1], name)
    assert counts[0].lease_late.buckets == counts[1].lease_late.buckets


def test_a_deleted_node_is_never_made_again() -> None:
    """Source: kubelet-reference 1.2: status and lease calls just fail until restart."""
    sim = Simulation(nodes=2, seed=9).run_for(seconds=60)
    sim.server.remove(("nodes", "", "n-0"))
    sim.server.remove(("leases", "kube-node-lease", "n-0"))
    sim.run_for(seconds=120)
    assert len(sim.calls("n-0", "POST", "/api/v1/nodes")) == 1
    assert sim.server.find("nodes", "n-0") is None
    assert sim.server.find("leases", "n-0", "kube-node-lease") is None
    reads = sim.calls("n-0", "GET", "/api/v1/nodes/n-0?timeout=10s", since_s=61)
    assert all(each.code == 404 for each in reads)
    assert 11 * 4 <= len(reads) <= 12 * 6  # four a status tick, one a lease tick
    assert sim.condition("n-1") == "True"
    assert sim.reactor.counts.gone == 1


def test_a_deleted_lease_is_made_again() -> None:
    sim = Simulation(seed=10).run_for(seconds=60)
    sim.server.remove(("leases", "kube-node-lease", "n-0"))
    sim.run_for(seconds=15)
    assert sim.server.find("leases", "n-0", "kube-node-lease") is not None


def test_a_quarantined_kubelet_harms_no_other() -> None:
    sim = Simulation(nodes=5, seed=13, raise_bugs=False).run_for(seconds=30)
    broken = sim.kubelet(2)
    broken.env = None  # type: ignore[assignment]
    sim.run_for(seconds=60)
    assert sim.reactor.counts.quarantined == 1
    assert sim.reactor.entries[2].kubelet is None
    assert not sim.calls("n-2", since_s=45)
    for name in ("n-0", "n-1", "n-3", "n-4"):
        assert len(sim.calls(name, "PUT", since_s=30)) == 6


def test_a_cordoned_node_says_so_once() -> None:
    sim = Simulation(seed=14).run_for(seconds=30)
    unknown = {"conditions": [{"type": "PIDPressure", "status": "Unknown"}]}
    sim.server.update("nodes", "n-0", {"spec": {"unschedulable": True}, "status": unknown})
    sim.run_for(seconds=30)
    sim.server.update("nodes", "n-0", {"spec": {"unschedulable": False}})
    sim.run_for(seconds=30)
    said = [each["reason"] for each in sim.events()][-3:]
    assert said == ["NodeHasSufficientPID", "NodeNotSchedulable", "NodeSchedulable"]


def test_labels_of_the_run_are_on_every_node() -> None:
    sim = Simulation(nodes=3, seed=15).run_for(seconds=5)
    label, _, run = RUN.partition("=")
    assert sim.ready() == 3
    assert all(each["metadata"]["labels"][label] == run for each in sim.server.all("nodes"))


def renewed(sim: Simulation) -> tuple[float, float]:
    """Return the longest of ten minutes' renewals: sent how late, answered after how long."""
    counts = sim.reactor.counts
    sim.run_for(seconds=60)
    answers = counts.requests.rows["PUT", "leases"][200]
    late, took = counts.lease_late.snapshot(), answers.snapshot()
    sim.run_for(seconds=600)
    found = counts.lease_late.since(late), answers.since(took)
    assert min(each.count for each in found) > 100
    return found[0].percentile_us(1) / 1e6, found[1].percentile_us(1) / 1e6


def test_what_fleet_takes_is_lateness_and_what_the_server_takes_is_latency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delay in one of them shows there, as it is, and not in the other."""
    delay_s = 0.4
    far = Simulation(nodes=5, seed=3)
    far.inject(AnswersSlow(delay_s), seconds=1_000)
    late_s, took_s = renewed(far)
    assert late_s < 0.1 * delay_s
    assert took_s == pytest.approx(delay_s, rel=0.1)

    slow = Simulation(nodes=5, seed=3)
    turn = slow.reactor.turn

    def late_turn() -> bool:
        end_ns = slow.clock.now_ns() + int(delay_s * NS_PER_S)
        # Meanwhile sockets are read: whoever reads them has no turn to wait for.
        while (due_ns := slow.transport.next_ns()) is not None and due_ns <= end_ns:
            slow.clock.advance_to(due_ns)
            slow.transport.advance()
        slow.clock.advance_to(end_ns)
        return turn()

    monkeypatch.setattr(slow.reactor, "turn", late_turn)
    late_s, took_s = renewed(slow)
    assert late_s == pytest.approx(delay_s, rel=0.1)
    assert took_s < 0.1 * delay_s
