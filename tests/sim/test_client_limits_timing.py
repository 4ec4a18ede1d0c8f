"""Client-side limits in virtual time: what a kubelet with much to do sends, and when."""

import itertools
from collections.abc import Iterable

from world.api_server import TOO_MANY
from world.pod_world import model_of
from world.simulation import Simulation
from world.transport import Sent

from fleet.clock import NS_PER_MS, NS_PER_S

pytest_plugins = ("sim_encodings",)

PODS = 110
HEARTBEAT = ("/leases/", "/status?timeout=")


def main_client(sent: Iterable[Sent]) -> list[int]:
    """Return when the requests of the main client left, watches apart."""
    return [
        each.t_ns
        for each in sent
        if each.verb != "WATCH"
        and "/events" not in each.path
        and not any(part in each.path for part in HEARTBEAT)
    ]


def crowd(sim: Simulation, pods: int = PODS) -> float:
    """Bind many pods to a settled node at once; return when."""
    sim.run_for(60)
    began_s = sim.now_s
    for number in range(pods):
        sim.create_pod(f"web-{number}")
    return began_s


def test_a_node_with_110_pods_sends_100_requests_and_then_50_a_second() -> None:
    sim = Simulation(seed=3)
    began_s = crowd(sim)
    sim.run_for(60)
    times = main_client(sim.calls("n-0", since_s=began_s))
    assert len(times) > 350
    # Any 100 + n requests take n * 20 ms at least, whichever they are.
    for width in (101, 150, 300):
        shortest_ns = min(
            after - before for before, after in zip(times, times[width - 1 :], strict=False)
        )
        assert shortest_ns >= (width - 100) * 20 * NS_PER_MS - 1
    # The bucket is empty while there is work: then one request leaves every 20 ms.
    busy = [after - before for before, after in itertools.pairwise(times[150:350])]
    assert set(busy) == {20 * NS_PER_MS}
    assert all(sim.phase(f"web-{number}") == "Running" for number in range(PODS))
    waited = sim.reactor.counts.throttled
    assert waited.count > 250
    assert waited.max_us > 900 * NS_PER_MS // 1000


def test_heartbeats_do_not_wait_behind_pods() -> None:
    sim = Simulation(seed=3)
    began_s = crowd(sim)
    sim.run_for(30)
    renewals = [each.t_ns for each in sim.calls("n-0", "PUT", "/leases/", since_s=began_s - 15)]
    gaps_s = [(after - before) / NS_PER_S for before, after in itertools.pairwise(renewals)]
    assert max(gaps_s) < 10.5


def test_an_idle_node_keeps_no_bucket() -> None:
    sim = Simulation(nodes=3, seed=1).run_for(600)
    assert not len(sim.reactor.calls.limits)
    assert not sim.reactor.counts.throttled.count


def test_light_nodes_are_not_limited() -> None:
    sim = Simulation(seed=3, light=True)
    began_s = crowd(sim, 300)
    sim.run_for(2)
    assert len(sim.calls("n-0", "PATCH", "/status", since_s=began_s)) >= 300
    assert not sim.reactor.counts.throttled.count


def test_a_second_try_needs_a_token_too() -> None:
    """Source: with_retry.go, Before: after Retry-After the limiter is asked again."""
    sim = Simulation(
        seed=2, model=model_of(kubeletConfiguration={"kubeAPIQPS": 1, "kubeAPIBurst": 2})
    )
    sim.run_for(60)
    sim.server.throttles["GET"] = 2
    began_s = sim.now_s
    sim.create_pod("web")
    sim.run_for(30)
    gets = sim.calls("n-0", "GET", "/pods/web", since_s=began_s)
    assert [each.code for each in gets[:3]] == [TOO_MANY.code, TOO_MANY.code, 200]
    times = main_client(sim.calls("n-0", since_s=began_s))
    for before, after in zip(times, times[2:], strict=False):
        assert after - before >= NS_PER_S - 1
