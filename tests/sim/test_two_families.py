"""Nodes of both address families, and of IPv6 alone, in virtual time."""

import copy

import pytest
from world.api_server import SimApiServer
from world.pod_world import model_of
from world.simulation import Simulation, default_model
from world.strategic_merge import Object

from fleet.k8s.effects import NodeId
from fleet.profile.node_model import NodeModel

pytest_plugins = ("sim_encodings",)

FOUR, SIX = "198.18.0.0/15", "fd00:c6:12::/64"
CIDRS = {4: "10.9.0.0/24", 6: "fd00:9::/64"}
KEPT = (("nodes", "", "n-0"), ("pods", "default", "web"), ("pods", "default", "host"))


def dual(pools: str = f"{FOUR},{SIX}") -> NodeModel:
    return model_of(addressPool=pools)


def give(sim: Simulation, *cidrs: str) -> None:
    """Be the controller that allocates."""
    spec = {"podCIDR": cidrs[0], "podCIDRs": list(cidrs)}
    sim.server.update("nodes", "n-0", {"spec": spec})
    sim.run_for(5)


def settled(model: NodeModel, *cidrs: str, light: bool = False) -> Simulation:
    sim = Simulation(seed=21, model=model, light=light).run_for(30)
    give(sim, *cidrs)
    return sim


def run_pods(sim: Simulation) -> None:
    sim.create_pod("web")
    sim.create_pod("host", hostNetwork=True)
    sim.run_for(20)


def ips(sim: Simulation, pod: str, of: str = "pod") -> list[str]:
    """Return the addresses of a pod, of which the first one stands alone as well."""
    status = sim.status(pod)
    listed = [each["ip"] for each in status[f"{of}IPs"]]
    assert status[f"{of}IP"] == listed[0]
    return listed


def node_ips(sim: Simulation) -> list[str]:
    node = sim.server.get("nodes", "n-0")
    addresses = [each for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
    return [each["address"] for each in addresses]


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize(
    ("pools", "of_node", "of_pod"),
    [
        (f"{FOUR},{SIX}", ["198.18.0.1", "fd00:c6:12::1"], ["10.9.0.2", "fd00:9::2"]),
        (f"{SIX},{FOUR}", ["fd00:c6:12::1", "198.18.0.1"], ["fd00:9::2", "10.9.0.2"]),
    ],
)
def test_the_family_of_the_node_comes_first(
    pools: str,
    of_node: list[str],
    of_pod: list[str],
    light: bool,  # noqa: FBT001
) -> None:
    sim = settled(dual(pools), CIDRS[4], CIDRS[6], light=light)
    run_pods(sim)
    assert node_ips(sim) == of_node
    for pod in ("web", "host"):
        assert sim.phase(pod) == "Running"
        assert ips(sim, pod, "host") == of_node
    assert ips(sim, "web") == of_pod
    assert ips(sim, "host") == of_node


def test_nodes_and_pods_may_have_ipv6_alone() -> None:
    sim = settled(dual(SIX), CIDRS[6])
    run_pods(sim)
    assert node_ips(sim) == ips(sim, "web", "host") == ips(sim, "host") == ["fd00:c6:12::1"]
    assert ips(sim, "web") == ["fd00:9::2"]


def test_a_node_of_one_family_gives_pods_what_its_ranges_are() -> None:
    sim = settled(default_model(), CIDRS[6], CIDRS[4])
    run_pods(sim)
    assert node_ips(sim) == ips(sim, "host") == ["198.18.0.1"]
    assert ips(sim, "web") == ["10.9.0.2", "fd00:9::2"]


@pytest.mark.parametrize("light", [False, True])
def test_a_kubelet_that_restarts_finds_the_addresses_again(light: bool) -> None:  # noqa: FBT001
    sim = settled(dual(), CIDRS[4], CIDRS[6], light=light)
    run_pods(sim)
    before = [ips(sim, "web"), ips(sim, "host"), node_ips(sim)]
    assert sim.reactor.restart([NodeId(0)]) == 1
    sim.run_for(30)
    assert [ips(sim, "web"), ips(sim, "host"), node_ips(sim)] == before
    sim.create_pod("next")
    sim.run_for(20)
    assert ips(sim, "next") == ["10.9.0.3", "fd00:9::3"]


def resumed(before: Simulation, model: NodeModel) -> Simulation:
    """Let another process take over what the server has."""
    objects = [(key, copy.deepcopy(before.server.objects[key].obj)) for key in KEPT]

    def setup(server: SimApiServer) -> None:
        for key, obj in objects:
            server.create(key, obj)

    return Simulation(seed=22, model=model, setup=setup).run_for(60)


def container_ids(sim: Simulation) -> list[str]:
    statuses: list[Object] = [sim.status(pod)["containerStatuses"][0] for pod in ("web", "host")]
    return [str(each["containerID"]) for each in statuses]


def test_another_process_adopts_both_addresses_of_a_pod() -> None:
    first = settled(dual(), CIDRS[4], CIDRS[6])
    run_pods(first)
    then = resumed(first, dual())
    assert container_ids(then) == container_ids(first)
    for pod in ("web", "host"):
        assert ips(then, pod) == ips(first, pod)
    assert node_ips(then) == node_ips(first)
    then.create_pod("next")
    then.run_for(20)
    assert ips(then, "next") == ["10.9.0.3", "fd00:9::3"]


def test_a_node_that_becomes_one_of_both_families() -> None:
    """Pods keep what they have; only those in the node's network get the second address."""
    first = settled(default_model(), CIDRS[4])
    run_pods(first)
    then = resumed(first, dual())
    assert container_ids(then) == container_ids(first)
    both = ["198.18.0.1", "fd00:c6:12::1"]
    assert node_ips(then) == ips(then, "web", "host") == ips(then, "host") == both
    assert ips(then, "web") == ips(first, "web") == ["10.9.0.2"]


def test_a_range_of_one_family_that_is_full_holds_a_pod_up_until_another_goes() -> None:
    sim = settled(dual(), CIDRS[4], "fd00:9::/126")
    names = [f"pod-{index}" for index in range(3)]
    for name in names:
        sim.create_pod(name, terminationGracePeriodSeconds=1)
    sim.run_for(60)
    [starved] = [name for name in names if sim.phase(name) == "Pending"]
    told = [each["message"] for each in sim.events("FailedCreatePodSandBox")]
    assert told
    end = "range 1: no IP addresses available in range set: fd00:9::1-fd00:9::3"
    assert all(message.endswith(end) for message in told)
    gone = next(name for name in names if name != starved)
    six = ips(sim, gone)[1]
    now = sim.server.now()
    meta = {"deletionTimestamp": now, "deletionGracePeriodSeconds": 1}
    sim.server.update("pods", gone, {"metadata": meta}, namespace="default")
    sim.run_for(60)
    assert sim.phase(gone) == ""
    assert sim.phase(starved) == "Running"
    assert ips(sim, starved)[1] == six
