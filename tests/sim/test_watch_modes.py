"""Whose watches serve the kubelets: `--watches per-node` and `shared` in both fidelities."""

import pytest
from world.simulation import EVERY_WATCH, WATCHES, Simulation, pod_json

from fleet.k8s.effects import NodeId

pytest_plugins = ("sim_encodings",)

NODES = 6
SHARED = {"nodes": 1, "pods": 1, "services": 1, "csidrivers": 1, "runtimeclasses": 1}


def settled(*, light: bool, own_watches: bool, seed: int = 4) -> Simulation:
    return Simulation(nodes=NODES, seed=seed, light=light, own_watches=own_watches).run_for(60)


def opened(sim: Simulation, *, by_nodes: bool) -> dict[str, int]:
    """Count the watches by resource that were opened, by the nodes or by fleet itself."""
    found: dict[str, int] = {}
    for each in (sim.transport if by_nodes else sim.observer).trace:
        if each.verb == "WATCH":
            resource = each.path.partition("?")[0].rpartition("/")[2]
            found[resource] = found.get(resource, 0) + 1
    return found


def test_kubelets_without_watches_of_their_own_send_all_else() -> None:
    own, shared = (settled(light=False, own_watches=is_own) for is_own in (True, False))
    for sim in (own, shared):
        for number in range(12):
            sim.create_pod(f"web-{number}", f"n-{number % NODES}")
        sim.run_for(60)
        assert all(sim.phase(f"web-{number}") == "Running" for number in range(12))
        assert sim.ready() == NODES
    each = dict.fromkeys(EVERY_WATCH, NODES)
    assert opened(own, by_nodes=True) == {**each, "configmaps": NODES}
    assert opened(shared, by_nodes=True) == {}
    assert opened(shared, by_nodes=False) == {**SHARED, "configmaps": 1}
    assert shared.server.open_watches == 6
    assert own.server.open_watches == (WATCHES + 1) * NODES

    def posts(sim: Simulation, verb: str, path: str) -> int:
        return len(sim.calls(verb=verb, path=path))

    for verb, path in (("POST", "/token"), ("POST", "/events"), ("POST", "/csinodes")):
        assert posts(own, verb, path) == posts(shared, verb, path) > 0
    assert posts(shared, "GET", "/pods/") == posts(own, "GET", "/pods/") > 0


def test_light_nodes_with_watches_of_their_own() -> None:
    sim = settled(light=True, own_watches=True)
    for number in range(12):
        sim.create_pod(f"web-{number}", f"n-{number % NODES}")
    sim.run_for(30)
    assert all(sim.phase(f"web-{number}") == "Running" for number in range(12))
    assert opened(sim, by_nodes=True) == dict.fromkeys(EVERY_WATCH, NODES)
    assert opened(sim, by_nodes=False) == {"nodes": 1}  # to see which are Ready
    assert {each.node for each in sim.transport.trace if each.verb == "WATCH"} == set(sim.names)
    sim.server.delete_pod("web-0")
    sim.run_for(40)
    assert sim.phase("web-0") == ""


@pytest.mark.parametrize("light", [False, True])
def test_pods_that_are_there_before_their_kubelet_are_found(light: bool) -> None:  # noqa: FBT001
    """As after a restart of fleet: the shared watch brings them before the nodes start."""
    sim = Simulation(nodes=2, seed=1, light=light, own_watches=False)
    late = sim.reactor.kubelets.by_name.pop("n-1")
    entry = sim.reactor.entries[late]
    kubelet, entry.kubelet = entry.kubelet, None
    sim.reactor._forget({late})
    sim.run_for(5)
    sim.server.create(("pods", "default", "web"), pod_json("web", "n-1"))
    sim.server.create(("pods", "default", "gone"), pod_json("gone", "n-1"))
    sim.run_for(5)
    sim.server.delete_pod("gone", grace_s=0)
    sim.run_for(5)
    sim.reactor.kubelets.by_name["n-1"] = late
    entry.kubelet = kubelet
    sim.reactor.start(late)
    sim.run_for(30)
    assert sim.phase("web") == "Running"
    assert kubelet is not None
    assert kubelet.pods is not None
    assert [pod.name for pod in kubelet.pods] == ["web"]


def test_an_object_that_changes_reaches_all_that_refer_to_it_and_its_watch_ends_with_them() -> None:
    sim = settled(light=False, own_watches=False)
    volume = {"name": "cfg", "configMap": {"name": "cfg"}}
    for number in range(3):
        sim.create_pod(f"web-{number}", f"n-{number}", volumes=[volume])
    sim.run_for(20)
    assert {sim.phase(f"web-{number}") for number in range(3)} == {"Pending"}
    sim.server.create(("configmaps", "default", "cfg"), {"data": {"a": "b"}})
    sim.run_for(120)
    assert {sim.phase(f"web-{number}") for number in range(3)} == {"Running"}
    sim.create_pod("web-3", "n-3", volumes=[volume])  # it is known: nothing is waited for
    sim.run_for(5)
    assert sim.phase("web-3") == "Running"
    assert sim.server.open_watches == 5 + 2
    for number in range(4):
        sim.server.delete_pod(f"web-{number}")
    sim.run_for(60)
    assert sim.server.open_watches == 5
    assert sim.reactor.counts.watches_open == 5


def test_kubelets_restart_without_watches_of_their_own() -> None:
    sim = settled(light=False, own_watches=False)
    for number in range(12):
        sim.create_pod(f"web-{number}", f"n-{number % NODES}")
    sim.run_for(30)
    before = sim.server.all("pods")
    assert sim.reactor.restart([NodeId(node) for node in range(4)]) == 4
    sim.run_for(30)
    assert sim.ready() == NODES
    for old, new in zip(before, sim.server.all("pods"), strict=True):
        assert old["status"]["containerStatuses"] == new["status"]["containerStatuses"]
    sim.create_pod("late", "n-0")
    sim.run_for(10)
    assert sim.phase("late") == "Running"
    assert sim.reactor.counts.watches_open == 6


def test_a_node_that_is_removed_leaves_the_shared_watches() -> None:
    sim = settled(light=False, own_watches=False)
    sim.create_pod("web", "n-0")
    sim.run_for(20)
    assert sim.server.open_watches == 6
    sim.reactor.silence(NodeId(0))
    sim.reactor.turn()
    assert sim.server.open_watches == 5


@pytest.mark.parametrize("light", [False, True])
def test_a_lost_connection_of_fleets_own_is_made_good(light: bool) -> None:  # noqa: FBT001
    sim = settled(light=light, own_watches=False)
    sim.observer.drop()
    for number in range(NODES):
        sim.create_pod(f"web-{number}", f"n-{number}")
    sim.run_for(40)
    assert all(sim.phase(f"web-{number}") == "Running" for number in range(NODES))
