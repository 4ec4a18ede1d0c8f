"""Outages of the simulated runtime: what the Node says, when, and what pods do meanwhile."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)


def ready(sim: Simulation, node: str = "n-0") -> Object:
    """Return the Ready condition of a node."""
    conditions = sim.server.get("nodes", node)["status"]["conditions"]
    return next(each for each in conditions if each["type"] == "Ready")


def outage(kind: str, start: str, duration: str, **more: object) -> Object:
    return {"outages": [{"kind": kind, "from": start, "for": duration, **more}]}


def version(sim: Simulation) -> str:
    return str(sim.server.get("nodes", "n-0")["status"]["nodeInfo"]["containerRuntimeVersion"])


def run_until(sim: Simulation, status: str, limit_s: int) -> float:
    """Run until the node's Ready has a status; return when that was."""
    for _ in range(limit_s * 10):
        if ready(sim)["status"] == status:
            return sim.now_s
        sim.run_for(seconds=0.1)
    raise AssertionError(f"Ready is not {status} after {limit_s} s")


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_a_runtime_that_is_down_makes_the_node_not_ready_after_30_s(*, light: bool) -> None:
    sim = Simulation(
        seed=3, light=light, model=model_of(runtime=outage("RuntimeDown", "100s", "90s"))
    )
    sim.run_for(seconds=99)
    said = version(sim)
    sim.run_for(seconds=2)
    sim.server.update("nodes", "n-0", {"metadata": {"labels": {"mine": "x"}}})
    sim.run_for(seconds=10)
    assert (ready(sim)["status"], version(sim)) == ("True", "containerd://Unknown")
    down_s = run_until(sim, "False", 60)
    assert 125 <= down_s < 142  # the last good check is up to 5 s old; then the next tick of 10 s
    assert ready(sim)["reason"] == "KubeletNotReady"
    assert ready(sim)["message"] == "container runtime is down"
    up_s = run_until(sim, "True", 90)
    assert 190 <= up_s < 206
    sim.run_for(seconds=11)
    assert version(sim) == said
    assert ready(sim)["message"] == "kubelet is posting ready status"
    if not light:
        [event] = sim.events("NodeNotReady")
        assert event["message"] == "Node n-0 status is now: NodeNotReady"
        assert [each["count"] for each in sim.events("NodeReady")] == [2]


def test_a_runtime_that_is_down_for_long_stalls_the_pleg_too() -> None:
    sim = Simulation(seed=1, model=model_of(runtime=outage("RuntimeDown", "60s", "1h")))
    sim.run_for(seconds=60 + 175)
    assert ready(sim)["message"] == "container runtime is down"
    sim.run_for(seconds=20)
    first = str(ready(sim)["message"])
    assert first.startswith("[container runtime is down, PLEG is not healthy: pleg was last seen")
    assert first.endswith(" ago; threshold is 3m0s]")
    sim.run_for(seconds=30)
    assert ready(sim)["message"] != first  # each status says anew how long ago
    [event] = sim.events("ContainerGCFailed")
    assert event["count"] == 4
    assert event["involvedObject"]["kind"] == "Node"
    assert str(event["message"]).startswith("rpc error: code = Unavailable desc = connection error")
    sim.run_for(seconds=400)  # images: a failure after 5 minutes, an Event after 10
    assert [each["message"] for each in sim.events("ImageGCFailed")] == [event["message"]]


def test_a_pleg_stall_shows_after_three_minutes_and_pods_wait() -> None:
    sim = Simulation(seed=2, model=model_of(runtime=outage("PLEGStall", "60s", "5m")))
    sim.run_for(seconds=55)
    sim.create_pod("before", command=["sleep", "60"], restartPolicy="Never")
    sim.run_for(seconds=120)
    assert ready(sim)["status"] == "True"
    not_ready_s = run_until(sim, "False", 90)
    assert 60 + 179 < not_ready_s < 60 + 195
    assert str(ready(sim)["message"]).startswith(
        "PLEG is not healthy: pleg was last seen active 3m"
    )
    assert sim.phase("before") == "Running"  # it has ended, but nobody looked
    sim.create_pod("during")
    sim.run_for(seconds=60)
    assert sim.phase("during") == "Pending"
    assert "startTime" not in sim.status("during")
    run_until(sim, "True", 90)
    sim.run_for(seconds=10)
    assert sim.phase("during") == "Running"
    assert sim.phase("before") == "Succeeded"


def test_a_runtime_that_is_not_ready_says_why_at_the_next_check() -> None:
    runtime = outage("RuntimeNotReady", "50s", "60s", reason="Busy", message="being updated")
    sim = Simulation(seed=4, model=model_of(runtime=runtime)).run_for(seconds=50)
    not_ready_s = run_until(sim, "False", 30)
    assert not_ready_s < 50 + 5 + 10.5
    text = "container runtime not ready: RuntimeReady=false reason:Busy message:being updated"
    assert ready(sim)["message"] == text
    sim.run_for(seconds=35)
    assert ready(sim)["message"] == f"[container runtime is down, {text}]"


def test_a_late_network_holds_pods_back_but_for_the_host_network() -> None:
    sim = Simulation(seed=5, model=model_of(runtime={"networkReadyDelay": "40s"}))
    sim.run_for(seconds=14)
    assert ready(sim)["message"] == (
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
        "message:Network plugin returns error: cni plugin not initialized"
    )
    sim.server.update("nodes", "n-0", {"spec": {"podCIDRs": ["10.9.0.0/24"]}})
    sim.create_pod("web")
    sim.create_pod("cni", hostNetwork=True)
    sim.run_for(seconds=15)
    assert not sim.calls(verb="PATCH", path="/nodes/n-0/status", since_s=14)
    assert (sim.phase("web"), sim.phase("cni")) == ("Pending", "Running")
    [event] = sim.events("NetworkNotReady")
    assert (event["involvedObject"]["name"], event["type"]) == ("web", "Warning")
    assert event["count"] >= 5
    assert str(event["message"]).startswith(
        "network is not ready: container runtime network not ready: NetworkReady=false reason:"
    )
    assert run_until(sim, "True", 40) < 52
    sim.run_for(seconds=3)
    assert sim.phase("web") == "Running"


def test_a_share_of_the_fleet_flaps() -> None:
    flap = outage("RuntimeDown", "60s", "60s", every="5m", share=0.3)
    sim = Simulation(nodes=40, seed=6, model=model_of(runtime=flap))
    flapping: set[str] = set()
    for _ in range(3):
        sim.run_for(seconds=110 if not flapping else 50)
        down = {name for name in sim.names if sim.condition(name) == "False"}
        assert 5 <= len(down) <= 20
        assert down == (flapping or down)
        flapping = down
        sim.run_for(seconds=60)
        assert sim.ready() == 40
        sim.run_for(seconds=190)


def test_what_the_watch_said_in_a_pause_is_not_lost() -> None:
    """A pod is deleted and another one made while the sync loop rests."""
    sim = Simulation(seed=7, model=model_of(runtime=outage("RuntimeDown", "60s", "120s")))
    sim.run_for(seconds=30)
    sim.create_pod("old")
    sim.run_for(seconds=65)
    sim.server.delete_pod("old")
    sim.create_pod("new")
    sim.run_for(seconds=30)
    assert (sim.phase("old"), sim.phase("new")) == ("Running", "Pending")
    sim.server.end_watches()  # the reflector begins anew in the pause
    sim.run_for(seconds=120)
    assert (sim.phase("old"), sim.phase("new")) == ("", "Running")


def test_an_outage_that_no_check_sees_the_end_of_goes_on() -> None:
    flaps = outage("RuntimeDown", "60s", "29s", every="30s")
    assert not Simulation(seed=8, model=model_of(runtime=flaps)).run_for(seconds=150).ready()


def test_healthy_nodes_keep_nothing_of_it() -> None:
    sim = Simulation(seed=8).run_for(seconds=30)
    assert sim.kubelet()._runtime_state is None
