"""Kubelets whose processes restart, in virtual time: start-up against what is there already."""

import pytest
from world.pod_world import model_of
from world.simulation import EVERY_WATCH, WATCHES, Simulation

from fleet.k8s.effects import NodeId
from fleet.server.node_usage import node_usage

pytest_plugins = ("sim_encodings",)


def settled(nodes: int = 1, *, light: bool = False, seed: int = 5) -> Simulation:
    return Simulation(nodes=nodes, seed=seed, light=light).run_for(60)


def restart(sim: Simulation, *nodes: int) -> float:
    """Restart kubelets; return when."""
    assert sim.reactor.restart([NodeId(node) for node in nodes]) == len(nodes)
    return sim.now_s


def shape(sim: Simulation, since_s: float) -> dict[str, int]:
    """Count the requests of n-0, events and time-outs apart."""
    found: dict[str, int] = {}
    for each in sim.calls("n-0", since_s=since_s):
        where = each.path.partition("?")[0].rpartition("/v1")[2]
        key = f"{each.verb} {where} {each.code}"
        if "events" not in where:
            found[key] = found.get(key, 0) + 1
    return dict(sorted(found.items()))


def test_the_requests_of_a_kubelet_that_restarts() -> None:
    sim = settled()
    since_s = restart(sim, 0)
    sim.run_for(8)
    lease = "/namespaces/kube-node-lease/leases/n-0"
    found = shape(sim, since_s)
    # A report of its status is due by chance at any time within the first minutes.
    assert found.pop("PATCH /nodes/n-0/status 200") >= 1
    assert found == {
        "DELETECOLLECTION /resourceslices 200": 1,
        "GET /csinodes/n-0 200": 2,
        f"GET {lease} 200": 1,
        "GET /nodes/n-0 200": 2,
        "POST /nodes 409": 1,
        f"PUT {lease} 200": 1,
        **{f"WATCH /{each} 200": 1 for each in EVERY_WATCH},
    }
    assert sim.transport.hung_up == [0]
    assert sim.server.open_watches == WATCHES
    assert sim.reactor.counts.watches_open == WATCHES


@pytest.mark.parametrize("path", ["", "/etc/kubernetes/manifests"])
def test_the_node_is_read_for_what_is_attached_of_the_volumes_of_pods(path: str) -> None:
    sim = Simulation(model=model_of(kubeletConfiguration={"staticPodPath": path}))
    sim.create_pod("web")
    sim.run_for(60)
    since_s = restart(sim, 0)
    sim.run_for(8)
    assert shape(sim, since_s)["GET /nodes/n-0 200"] == 3


def test_the_start_is_told_again_and_the_node_stays_ready() -> None:
    sim = settled()
    node = sim.server.get("nodes", "n-0")
    since_s = restart(sim, 0)
    sim.run_for(30)
    told = [each["reason"] for each in sim.events("Starting")]
    assert len(told) == 2
    assert sim.calls("n-0", "POST", "/events", since_s=since_s)
    after = sim.server.get("nodes", "n-0")
    assert after["metadata"]["uid"] == node["metadata"]["uid"]
    assert sim.condition("n-0") == "True"
    assert sim.reactor.counts.ready == 1
    assert sim.reactor.counts.not_ready == 0
    assert sim.reactor.counts.registered == 1
    assert sim.reactor.counts.restarts == 1


@pytest.mark.parametrize("light", [False, True])
def test_pods_are_found_again_as_they_run(light: bool) -> None:  # noqa: FBT001
    sim = settled(light=light)
    sim.create_pod("web")
    sim.create_pod("job", command=["sleep", "40"], restartPolicy="Never")
    sim.run_for(20)
    before = sim.status("web")
    added = sim.reactor.counts.pods_added
    since_s = restart(sim, 0)
    sim.run_for(10)
    assert sim.status("web")["containerStatuses"] == before["containerStatuses"]
    assert sim.status("web")["podIP"] == before["podIP"]
    assert sim.phase("job") == "Running"
    sim.run_for(20)
    assert sim.phase("job") == "Succeeded"
    assert not sim.calls("n-0", "DELETE", since_s=since_s)
    assert sim.reactor.counts.pods_added == added
    sim.server.delete_pod("web")
    sim.run_for(40)
    assert sim.phase("web") == ""


def test_what_ran_but_was_not_told_of_yet_is_not_started_twice() -> None:
    """The runtime outlives the kubelet: a container keeps its id and its time."""
    sim = settled()
    sim.create_pod("web")
    while not _running(sim):
        sim.run_for(0.001)
    assert "running" not in str(sim.status("web"))
    [container] = _running(sim)
    restart(sim, 0)
    sim.run_for(10)
    [told] = sim.status("web")["containerStatuses"]
    assert told["containerID"] == container
    assert told["restartCount"] == 0
    assert told["ready"]


def _running(sim: Simulation) -> list[str]:
    pods = sim.kubelet().pods
    return [each.id for _, box in pods.runtime for each in box.containers] if pods else []


def test_a_pod_that_went_meanwhile_leaves_nothing_behind() -> None:
    sim = settled()
    for name in ("web", "other"):
        sim.create_pod(name)
    sim.run_for(10)
    sim.transport.slow.append((None, 10**9))
    restart(sim, 0)
    sim.server.delete_pod("web", grace_s=0)
    sim.transport.slow.clear()
    sim.run_for(10)
    assert len(_running(sim)) == 1


def test_nothing_of_the_old_process_reaches_the_new_one() -> None:
    """Requests on their way, second tries and timers are the old one's."""
    sim = settled(nodes=4)
    for number in range(40):
        sim.create_pod(f"web-{number}", f"n-{number % 4}")
    sim.server.throttles["PATCH"] = 30
    sim.run_for(0.3)
    restart(sim, 0, 1, 2)
    assert not [each for each in sim.reactor.calls.delayed.values() if each.call.node < 3]
    sim.run_for(90)
    assert all(sim.phase(f"web-{number}") == "Running" for number in range(40))
    assert sim.ready() == 4


@pytest.mark.parametrize("light", [False, True])
def test_a_storm_of_all_kubelets_is_over_soon(light: bool) -> None:  # noqa: FBT001
    sim = settled(nodes=30, light=light)
    for number in range(60):
        sim.create_pod(f"web-{number}", f"n-{number % 30}")
    sim.run_for(30)
    since_s = restart(sim, *range(30))
    assert sim.server.open_watches == (2 if light else 0)
    assert sim.reactor.counts.watches_open == (2 if light else 0)
    sim.run_for(15)
    assert len(sim.calls("", "POST", "/api/v1/nodes", since_s=since_s)) == 30
    assert sim.ready() == 30
    starts = [e.t_ns for e in sim.calls("", "POST", "/api/v1/nodes", since_s=since_s)]
    assert 0.5 < (max(starts) - min(starts)) / 10**9 < 1.0  # not all in one instant
    for number in range(60):
        [told] = sim.status(f"web-{number}")["containerStatuses"]
        assert (told["restartCount"], "running" in told["state"]) == (0, True)


def test_a_second_restart_while_the_first_is_on() -> None:
    sim = settled()
    sim.create_pod("web")
    sim.run_for(10)
    restart(sim, 0)
    assert sim.reactor.restart([NodeId(0)]) == 0  # there is no process to restart
    sim.run_for(1.5)
    restart(sim, 0)
    sim.run_for(10)
    assert sim.condition("n-0") == "True"
    assert sim.status("web")["containerStatuses"][0]["restartCount"] == 0
    assert sim.reactor.restart([NodeId(0), NodeId(0)]) == 1
    sim.run_for(10)
    used = node_usage(sim.kubelet(0), sim.clock.now_ns()).cgroup
    assert used.cpu_ns // used.cpu_nano > 60  # seconds: the machine's counters go on


def test_a_node_that_is_removed_does_not_come_back() -> None:
    sim = settled(nodes=2)
    restart(sim, 0)
    sim.reactor.silence(NodeId(0))
    since_s = sim.now_s
    sim.run_for(30)
    assert not sim.calls("n-0", since_s=since_s)
    assert sim.reactor.restart([NodeId(0)]) == 0


def label(sim: Simulation, value: str | None) -> None:
    sim.server.update("nodes", "n-0", {"metadata": {"labels": {"zone": value}}})
    sim.run_for(2)


def test_a_refused_pod_that_is_deleted_before_housekeeping_leaves_nothing_behind() -> None:
    sim = settled()
    label(sim, "here")
    sim.create_pod("picky", nodeSelector={"zone": "here"})
    sim.run_for(20)
    label(sim, None)
    restart(sim, 0)
    while not sim.events("NodeAffinity"):
        sim.run_for(0.01)
    sim.server.delete_pod("picky")
    sim.run_for(60)
    assert sim.phase("picky") == ""
    assert not _running(sim)


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_pods_that_run_are_admitted_anew(exit_code: int, phase: str) -> None:
    """One whose label has gone is refused, ended by housekeeping, and told as it ended."""
    sim = settled()
    label(sim, "here")
    sim.create_pod(
        "picky",
        nodeSelector={"zone": "here"},
        annotations={"fleet.emulator/stop-exit-code": str(exit_code)},
    )
    sim.create_pod("web")
    sim.run_for(20)
    assert sim.phase("picky") == "Running"
    label(sim, None)
    restart(sim, 0)
    sim.run_for(15)
    assert len(sim.events("NodeAffinity")) == 1
    [killing] = sim.events("Killing")
    assert killing["involvedObject"]["name"] == "picky"
    assert "resourceVersion" not in killing["involvedObject"]
    assert sim.phase("picky") == phase
    assert (sim.status("picky").get("reason") == "NodeAffinity") is (phase == "Failed")
    assert sim.phase("web") == "Running"
    sim.server.delete_pod("picky")
    sim.run_for(20)
    assert sim.phase("picky") == ""
