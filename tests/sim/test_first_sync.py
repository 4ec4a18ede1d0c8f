"""When a kubelet asks for a pod that is new to it."""

from world.simulation import Simulation

from fleet.clock import NS_PER_MS, NS_PER_S

pytest_plugins = ("sim_encodings",)

SETTLED_S = 60
NODES = 100


def first_requests_ms(sim: Simulation) -> list[float]:
    """Return, of each node, when its first request about its pod left, sorted."""
    first: dict[str, int] = {}
    for each in sim.calls(since_s=SETTLED_S):
        if "/namespaces/default/" in each.path and "/events" not in each.path:
            first[each.node] = min(each.t_ns, first.get(each.node, each.t_ns))
    return sorted((t_ns - SETTLED_S * NS_PER_S) / NS_PER_MS for t_ns in first.values())


def test_a_new_pod_is_asked_for_after_a_kubelets_latency() -> None:
    sim = Simulation(nodes=NODES, seed=1).run_for(seconds=SETTLED_S)
    for name in sim.names:
        sim.create_pod(f"on-{name}", name)
    sim.run_for(seconds=1)
    took_ms = first_requests_ms(sim)
    assert len(took_ms) == NODES
    assert took_ms[0] > 1.5  # the watch alone takes 0.5 to 1.5
    assert 3 < took_ms[NODES // 2] < 6
    assert took_ms[-1] > 7


def test_a_pod_that_is_deleted_before_its_first_sync_never_runs() -> None:
    sim = Simulation(seed=1).run_for(seconds=SETTLED_S)
    sim.create_pod("brief")
    sim.server.delete_pod("brief")
    sim.run_for(seconds=10)
    assert not sim.phase("brief")
    assert not sim.calls(path="/token")
    assert not sim.events("Started")
