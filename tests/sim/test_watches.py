"""Reflectors against a server that ends, expires and refuses watches."""

from itertools import pairwise

from world.api_server import refusal
from world.sim_faults import (
    ApiServerAnswers,
    ConnectionsDropped,
    Throttled,
    VersionsExpired,
    WatchesEnded,
)
from world.simulation import WATCHES, Simulation

pytest_plugins = ("sim_encodings",)


def test_a_watch_that_times_out_goes_on_from_its_version() -> None:
    sim = Simulation(nodes=10, seed=1).run_for(seconds=1200)
    again = sim.calls(verb="WATCH", since_s=30)
    assert len(again) >= 10 * WATCHES * 2
    assert all("sendInitialEvents" not in each.path for each in again)
    assert all("resourceVersion=" in each.path for each in again)
    assert not sim.calls(verb="GET", since_s=30)
    assert sim.server.open_watches == 10 * WATCHES


def test_a_watch_lives_five_to_ten_minutes() -> None:
    sim = Simulation(seed=2).run_for(seconds=3600)
    times = [each.t_ns / 1e9 for each in sim.calls(verb="WATCH", path="/api/v1/pods")]
    lives = [after - before for before, after in pairwise(times)]
    assert min(lives) >= 300
    assert max(lives) <= 600.1


def test_an_expired_version_is_met_with_back_off_and_a_new_snapshot() -> None:
    sim = Simulation(nodes=20, seed=3).run_for(seconds=60)
    sim.inject(VersionsExpired())
    sim.run_for(seconds=10)
    first = sim.calls("n-7", "WATCH", "/api/v1/pods", since_s=60)
    assert [("sendInitialEvents" in each.path) for each in first] == [False, True]
    delay_s = (first[1].t_ns - first[0].t_ns) / 1e9
    assert 0.8 <= delay_s <= 1.7
    assert sim.server.open_watches == 20 * WATCHES
    assert sim.calls(verb="WATCH", since_s=63) == []


def test_a_pod_that_came_while_versions_expired_is_seen() -> None:
    sim = Simulation(seed=4).run_for(seconds=60)
    sim.create_pod("old")
    sim.run_for(seconds=5)
    sim.inject(VersionsExpired())
    sim.create_pod("new")
    sim.server.remove(("pods", "default", "old"))
    sim.run_for(seconds=60)
    assert sim.phase("new") == "Running"
    kubelet = sim.kubelet()
    assert kubelet.pods is not None
    assert [pod.name for pod in kubelet.pods] == ["new"]


def test_watches_that_the_server_ends_reopen_at_once() -> None:
    sim = Simulation(nodes=3, seed=5).run_for(seconds=60)
    sim.inject(WatchesEnded())
    sim.run_for(seconds=1)
    again = sim.calls(verb="WATCH", since_s=60)
    assert len(again) == 3 * WATCHES
    assert all("sendInitialEvents" not in each.path for each in again)


def test_a_watch_that_keeps_ending_is_not_asked_for_at_once() -> None:
    """Source: client-go: a watch that ends within a second without events is an error."""
    sim = Simulation(seed=6).run_for(seconds=60)
    for tenth in range(100):
        sim.after(tenth / 10, lambda: sim.inject(WatchesEnded()))
    sim.run_for(seconds=10)
    assert len(sim.calls(verb="WATCH", path="/api/v1/pods", since_s=60)) <= 6
    sim.run_for(seconds=60)
    assert sim.server.open_watches == WATCHES


def test_lost_connections_resume_watches() -> None:
    sim = Simulation(nodes=5, seed=7).run_for(seconds=60)
    sim.inject(ConnectionsDropped())
    sim.run_for(seconds=1)
    again = sim.calls(verb="WATCH", code=200, since_s=60)
    assert len(again) == 5 * WATCHES
    assert all("sendInitialEvents" not in each.path for each in again)


def test_a_server_without_watch_lists_is_listed() -> None:
    sim = Simulation(nodes=2, seed=8, setup=lambda s: setattr(s, "takes_watch_lists", False))
    sim.run_for(seconds=30)
    lists = sim.calls("n-1", "GET", "/api/v1/pods?")
    assert [each.path.partition("?")[2] for each in lists] == [
        "fieldSelector=spec.nodeName%3Dn-1&limit=500&resourceVersion=0"
    ]
    assert sim.ready() == 2
    sim.create_pod("web", "n-1")
    sim.run_for(seconds=5)
    assert sim.phase("web") == "Running"


def test_a_refused_watch_backs_off_up_to_a_minute() -> None:
    sim = Simulation(nodes=4, seed=9).run_for(seconds=60)
    sim.inject(ApiServerAnswers(500), seconds=120)
    sim.inject(WatchesEnded())
    sim.run_for(seconds=120)
    tries = sim.calls("n-0", "WATCH", "/api/v1/pods", since_s=60)
    assert 4 <= len(tries) <= 12  # it begins anew every two minutes, the first time in here
    sim.run_for(seconds=61)
    assert sim.server.open_watches == 4 * WATCHES


def test_a_throttled_watch_waits_as_told() -> None:
    sim = Simulation(seed=10).run_for(seconds=60)
    sim.inject(Throttled("WATCH", 3), seconds=30)
    sim.inject(WatchesEnded())
    sim.run_for(seconds=2.5)
    codes = sorted(each.code for each in sim.calls(verb="WATCH", since_s=60))
    assert codes == [200] * WATCHES + [429] * 3


def test_an_error_event_ends_a_stream_once() -> None:
    """The server closes the stream right after an ERROR: one relist, not two."""
    sim = Simulation(seed=11).run_for(seconds=60)
    refused = sim.server.encoded(refusal(500, "InternalError"))
    error = sim.server.encoding.event(b"ERROR", refused.body)
    for watches in list(sim.server._watches.values()):
        for watch in list(watches):
            watch.push(error)
            watch.end()
            sim.server.close(watch)
    sim.run_for(seconds=5)
    again = sim.calls(verb="WATCH", since_s=60)
    assert len(again) == WATCHES
    assert all("sendInitialEvents" in each.path for each in again)
    assert min(each.t_ns for each in again) >= 60.8e9
