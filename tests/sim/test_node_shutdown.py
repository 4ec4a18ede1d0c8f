"""A machine that is told to shut down: groups by priority, statuses, silence, Unknown."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation, pod_json
from world.strategic_merge import Object

from fleet.profile.node_model import NodeModel

pytest_plugins = ("sim_encodings",)

MESSAGE = "Pod was terminated in response to imminent node shutdown."
CRITICAL = 2_000_000_000


def graceful(**configuration: object) -> NodeModel:
    grace = configuration or {
        "shutdownGracePeriod": "30s",
        "shutdownGracePeriodCriticalPods": "10s",
    }
    return model_of(kubeletConfiguration=grace, shutdown={"after": "60s", "powerOffDelay": "3s"})


def status(sim: Simulation, pod: str) -> Object:
    found = sim.status(pod)
    assert isinstance(found, dict)
    return found


def create_killed(sim: Simulation, name: str, **spec: object) -> None:
    """Create a pod whose container does not end well: the phase is as its manager says."""
    pod = pod_json(name, "n-0", annotations={"fleet.emulator/stop-exit-code": "143"}, **spec)
    assert sim.server.create(("pods", "default", name), pod) is not None


def ready(sim: Simulation) -> tuple[str, str]:
    conditions = sim.server.get("nodes", "n-0")["status"]["conditions"]
    found = next(each for each in conditions if each["type"] == "Ready")
    return found["status"], found["message"]


def test_no_group_waits_for_a_pod_whose_object_is_gone() -> None:
    """Source: nodeshutdown_manager_linux.go, processShutdownEvent, getPods."""
    sim = Simulation(seed=1, model=graceful()).run_for(seconds=20)
    notes = {"fleet.emulator/stop-time": "29s"}
    sim.create_pod("gone", annotations=notes)
    create_killed(sim, "dns", priority=CRITICAL)
    sim.run_for(seconds=35)
    sim.server.delete_pod("gone", grace_s=0)
    sim.run_for(seconds=10)
    assert status(sim, "dns")["reason"] == "Terminated"


def test_a_graceful_shutdown_ends_ordinary_pods_before_critical_ones() -> None:
    sim = Simulation(seed=1, monitored=True, model=graceful()).run_for(seconds=20)
    create_killed(sim, "web")
    create_killed(sim, "dns", priority=CRITICAL)
    sim.create_pod("done")
    over = {"name": "c", "image": "busybox", "command": ["sleep", "39"]}  # until just before it
    sim.create_pod("over", restartPolicy="Never", containers=[over])
    sim.run_for(seconds=39)
    assert ready(sim)[0] == "True"
    sim.run_for(seconds=1.05)
    assert ready(sim) == ("False", "node is shutting down")
    [event] = sim.events("Shutdown")
    assert event["message"] == "Shutdown manager detected shutdown event"
    assert event["involvedObject"]["kind"] == "Node"
    assert event["type"] == "Normal"
    sim.create_pod("late")
    sim.run_for(seconds=10)
    for name in ("web", "dns"):
        assert status(sim, name)["phase"] == "Failed"
        assert status(sim, name)["reason"] == "Terminated"
        assert status(sim, name)["message"] == MESSAGE
        target = status(sim, name)["conditions"][0]
        assert (target["type"], target["status"]) == ("DisruptionTarget", "True")
        assert (target["reason"], target["message"]) == ("TerminationByKubelet", MESSAGE)
        [container] = status(sim, name)["containerStatuses"]
        assert container["state"]["terminated"]["exitCode"] == 143
    assert status(sim, "done")["phase"] == "Succeeded"  # it exits with 0
    assert "reason" not in status(sim, "done")
    found = status(sim, "over")
    assert (found["phase"], found["reason"]) == ("Succeeded", "Terminated")
    assert status(sim, "late")["phase"] == "Failed"
    assert status(sim, "late")["reason"] == "NodeShutdown"
    assert status(sim, "late")["message"] == (
        "Pod was rejected: Pod was rejected as the node is shutting down."
    )
    patched = sim.calls("n-0", "PATCH", "/pods/", since_s=60)
    firsts = [each.path.split("/")[-2] for each in patched]
    assert firsts.index("web") < firsts.index("dns")
    silent_s = sim.now_s
    sim.run_for(seconds=100)
    assert sim.calls("n-0", since_s=silent_s) == []
    assert sim.condition("n-0") == "Unknown"  # the Lease lapsed
    assert sim.reactor.counts.quarantined == 0


def test_the_time_of_a_group_is_limited() -> None:
    """An empty group is not waited for; a pod that does not heed SIGTERM holds its group up."""
    sim = Simulation(
        seed=2,
        model=graceful(
            shutdownGracePeriodByPodPriority=[
                {"priority": 0, "shutdownGracePeriodSeconds": 20},
                {"priority": 1000, "shutdownGracePeriodSeconds": 300},
                {"priority": 2000, "shutdownGracePeriodSeconds": 5},
            ]
        ),
    )
    sim.run_for(seconds=20)
    create_killed(sim, "low")
    create_killed(sim, "high", priority=5000)
    sim.run_for(seconds=60)
    assert status(sim, "low")["phase"] == status(sim, "high")["phase"] == "Failed"
    assert sim.reactor.entries[0].kubelet is None


def test_without_grace_periods_the_power_is_just_off() -> None:
    sim = Simulation(seed=3, monitored=True, model=model_of(shutdown={"after": "60s"}))
    sim.run_for(seconds=20)
    sim.create_pod("web")
    sim.run_for(seconds=39)
    sim.trace.clear()
    sim.run_for(seconds=120)
    assert len(sim.trace) <= 1
    assert status(sim, "web")["phase"] == "Running"
    assert sim.condition("n-0") == "Unknown"


def test_a_share_of_the_fleet_is_shut_down() -> None:
    model = model_of(
        kubeletConfiguration={"shutdownGracePeriod": "10s"},
        shutdown={"after": {"distribution": "Uniform", "min": "1m", "max": "3m"}, "share": 0.25},
    )
    sim = Simulation(nodes=40, seed=4, monitored=True, model=model).run_for(seconds=50)
    assert sim.ready() == 40
    sim.run_for(seconds=250)
    gone = [name for name in sim.names if sim.condition(name) == "Unknown"]
    assert 4 <= len(gone) <= 17
    assert sim.ready() == 40 - len(gone)


def test_light_nodes_shut_down_too() -> None:
    model = model_of(kubeletConfiguration={"shutdownGracePeriod": "10s"}, shutdown={"after": "60s"})
    sim = Simulation(seed=5, light=True, model=model).run_for(seconds=20)
    create_killed(sim, "web")
    sim.run_for(seconds=60)
    assert ready(sim) == ("False", "node is shutting down")
    assert status(sim, "web")["phase"] == "Failed"
    assert status(sim, "web")["reason"] == "Terminated"


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@pytest.mark.parametrize("grace", ["10s", "0s"])
def test_a_machine_that_comes_back_has_booted(grace: str, *, light: bool) -> None:
    model = model_of(
        kubeletConfiguration={"shutdownGracePeriod": grace},
        shutdown={"after": "60s", "offFor": "90s"},
    )
    sim = Simulation(seed=3, light=light, monitored=True, model=model).run_for(seconds=20)
    create_killed(sim, "web")
    sim.create_pod("once", restartPolicy="Never")
    sim.run_for(seconds=15)
    before = boot_id(sim)
    sim.run_for(seconds=60)
    off_s = sim.now_s
    sim.run_for(seconds=40)
    assert sim.condition("n-0") == "Unknown"
    assert not sim.calls("n-0", since_s=off_s)
    sim.run_for(seconds=60)
    assert sim.condition("n-0") == "True"
    assert boot_id(sim) != before
    assert sim.reactor.counts.quarantined == 0
    if grace == "0s":  # what ran was lost with the power
        [container] = status(sim, "web")["containerStatuses"]
        assert container["restartCount"] == 1
        assert status(sim, "once")["phase"] == "Failed"
    else:
        assert status(sim, "web")["reason"] == "Terminated"
    if not light:
        assert [each["reason"] for each in sim.events()].count("Rebooted") == 1
    sim.run_for(seconds=60)
    assert sim.condition("n-0") != "True"  # it is told to shut down again


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_a_shutdown_that_is_cancelled_has_ended_the_pods_all_the_same(*, light: bool) -> None:
    model = model_of(
        kubeletConfiguration={
            "shutdownGracePeriod": "60s",
            "shutdownGracePeriodCriticalPods": "50s",
        },
        shutdown={"after": "60s", "powerOffDelay": "10s", "cancelAfter": "5s"},
    )
    sim = Simulation(seed=3, light=light, monitored=True, model=model).run_for(seconds=20)
    create_killed(sim, "web")
    sim.run_for(seconds=42)
    assert ready(sim) == ("False", "node is shutting down")
    sim.run_for(seconds=20)
    assert ready(sim)[0] == "True"
    assert status(sim, "web")["reason"] == "Terminated"
    if not light:
        told = [each["message"] for each in sim.events("Shutdown")]
        assert told == [
            "Shutdown manager detected shutdown event",
            "Shutdown manager detected shutdown cancellation",
        ]
    sim.create_pod("next")
    sim.run_for(seconds=120)  # past the deadlines of the groups
    assert status(sim, "next")["phase"] == "Running"
    assert sim.condition("n-0") == "True"
    assert sim.reactor.counts.quarantined == 0


def test_a_cancellation_after_the_power_is_off_is_none() -> None:
    model = model_of(
        kubeletConfiguration={"shutdownGracePeriod": "10s"},
        shutdown={"after": "60s", "powerOffDelay": "3s", "cancelAfter": "30s"},
    )
    sim = Simulation(seed=3, model=model).run_for(seconds=150)
    assert sim.reactor.entries[0].kubelet is None


def boot_id(sim: Simulation) -> str:
    return str(sim.server.get("nodes", "n-0")["status"]["nodeInfo"]["bootID"])
