"""Probes in virtual time: thresholds and periods, what status and events show, what they cost."""

import pytest
from world.simulation import Simulation, started

pytest_plugins = ("sim_encodings",)

HTTP = {"httpGet": {"path": "/healthz", "port": 8080}}
READINESS = "fleet.emulator/readiness-probe"
LIVENESS = "fleet.emulator/liveness-probe"


def container(sim: Simulation, pod: str = "web") -> dict[str, object]:
    [found] = sim.status(pod)["containerStatuses"]
    return dict(found)


def is_ready(sim: Simulation, pod: str = "web") -> bool:
    """Return the Ready condition, which says the same as its sister and the container."""
    status = sim.status(pod)
    found = {each["type"]: each["status"] for each in status["conditions"]}
    assert found["Ready"] == found["ContainersReady"]
    assert container(sim, pod)["ready"] is (found["Ready"] == "True")
    return bool(found["Ready"] == "True")


def ready_after_s(
    sim: Simulation, limit_s: float, *, ready: bool = True, step_s: float = 0.1
) -> float:
    """Run until the pod is, or is not, Ready; return how long that took."""
    since_s = sim.now_s
    while is_ready(sim) is not ready:
        sim.run_for(step_s)
        assert sim.now_s - since_s <= limit_s, "too late"
    return sim.now_s - since_s


@pytest.mark.parametrize("light", [False, True])
def test_a_probe_of_which_nothing_is_said_succeeds_at_once(light: bool) -> None:  # noqa: FBT001
    sim = started(light=light)
    sim.create_pod("web", readinessProbe=HTTP, livenessProbe=HTTP)
    sim.run_for(seconds=3)
    assert is_ready(sim)
    assert container(sim)["started"]
    assert sim.said("Unhealthy", "web") == {}


def test_a_healthy_pod_with_probes_costs_nothing() -> None:
    sim = started()
    sim.create_pod("web", readinessProbe=HTTP, livenessProbe=HTTP, startupProbe=HTTP)
    sim.run_for(seconds=60)
    assert is_ready(sim)
    before = len(sim.calls())
    timers = sim.reactor._wheel.size
    sim.run_for(seconds=3000)
    sent = sim.calls()[before:]
    assert {each.path.partition("?")[0] for each in sent if "pods/web" in each.path} <= {
        "/api/v1/namespaces/default/pods/web"
    }
    assert not [each for each in sent if each.verb in {"PATCH", "POST"} and "pods" in each.path]
    assert sim.reactor._wheel.size <= timers


def test_readiness_follows_its_timeline() -> None:
    sim = started()
    probe = {**HTTP, "periodSeconds": 2, "failureThreshold": 3}
    notes = {READINESS: "Success after 5s, Failure after 30s, Success after 50s"}
    sim.create_pod("web", readinessProbe=probe, annotations=notes)
    sim.run_for(seconds=3)
    assert not is_ready(sim)
    assert container(sim)["started"]
    came_s = 3 + ready_after_s(sim, 6)
    assert 5 < came_s < 9
    at, refused = f"{sim.status('web')['podIP']}:8080", "connect: connection refused"
    [said] = sim.said("Unhealthy", "web")
    assert said == f'Readiness probe failed: Get "http://{at}/healthz": dial tcp {at}: {refused}'
    sim.run_for(seconds=29 - came_s)
    assert is_ready(sim)
    left_s = 29 + ready_after_s(sim, 10, ready=False)
    assert 34 < left_s < 38  # the third failure in a row, 2 s apart
    [failures] = [
        count for text, count in sim.said("Unhealthy", "web").items() if text.endswith("code: 503")
    ]
    assert failures in {3, 4}  # the sync that the third one calls for triggers another
    assert 14 < ready_after_s(sim, 30) < 18  # one success is enough
    assert container(sim)["restartCount"] == 0


def test_an_unready_container_is_probed_twice_at_its_start_then_each_period() -> None:
    """The first failure makes the pod sync, and a sync triggers a probe that has not succeeded.

    What somebody says of a gate has no pod synced that is not ready anyway.
    """
    sim = started()
    gate, notes = "example.com/gate", {READINESS: "Failure"}
    gates = [{"conditionType": gate}]
    sim.create_pod("web", readinessProbe=HTTP, readinessGates=gates, annotations=notes)
    sim.run_for(seconds=4)
    assert list(sim.said("Unhealthy", "web").values()) == [2]
    said = [*sim.status("web")["conditions"], {"type": gate, "status": "False"}]
    sim.server.update("pods", "web", {"status": {"conditions": said}}, "default")
    sim.run_for(seconds=2)
    assert list(sim.said("Unhealthy", "web").values()) == [2]
    sim.run_for(seconds=8)
    assert list(sim.said("Unhealthy", "web").values()) == [3]
    sim.run_for(seconds=20)
    assert list(sim.said("Unhealthy", "web").values()) == [5]
    assert not is_ready(sim)


def test_a_container_that_becomes_ready_has_the_others_of_its_pod_probed() -> None:
    """Its result has the pod synced, too."""
    sim = started()
    late = {**HTTP, "initialDelaySeconds": 15, "periodSeconds": 1}
    never = {"exec": {"command": ["false"]}, "periodSeconds": 50}
    sim.run_for(seconds=50)  # probes of a kubelet that has just started begin at a random time
    first = {"name": "a", "image": "nginx:1", "readinessProbe": late}
    sim.create_pod("web", containers=[first, {**first, "name": "b", "readinessProbe": never}])
    sim.run_for(seconds=10)
    [before] = sim.said("Unhealthy").values()
    sim.run_for(seconds=10)
    assert list(sim.said("Unhealthy").values()) == [before + 1]


def test_the_success_threshold_counts_successes_in_a_row() -> None:
    sim = started()
    probe = {**HTTP, "periodSeconds": 5, "successThreshold": 3}
    sim.create_pod("web", readinessProbe=probe)
    # At the start, once more by the sync that follows, and a period later.
    assert is_ready_times(sim) == pytest.approx(6, abs=1.5)


def is_ready_times(sim: Simulation) -> float:
    sim.run_for(seconds=2)
    return 2 + ready_after_s(sim, 30)


def test_the_initial_delay_is_waited_for() -> None:
    sim = started()
    probe = {**HTTP, "periodSeconds": 2, "initialDelaySeconds": 9}
    sim.create_pod("web", readinessProbe=probe, annotations={READINESS: "Success after 1s"})
    assert 9 < is_ready_times(sim) < 14
    assert sim.said("Unhealthy", "web") == {}


def test_liveness_failures_of_a_pod_that_is_never_restarted_end_it() -> None:
    sim = started()
    uid = sim.create_pod(
        "web",
        livenessProbe={**HTTP, "periodSeconds": 2, "failureThreshold": 1},
        restartPolicy="Never",
        annotations={LIVENESS: "Failure after 5s"},
    )
    sim.run_for(seconds=20)
    assert sim.server.phases[uid][:2] == ["Pending", "Running"]
    assert sim.phase("web") in {"Failed", "Succeeded"}
    assert list(sim.said("Killing", "web")) == ["Stopping container c"]  # nothing is left to keep
    assert container(sim)["restartCount"] == 0


@pytest.mark.parametrize(("grace_s", "limits_s"), [(None, (9.5, 12)), (3, (2.5, 5))])
def test_the_grace_period_of_the_probe_counts(
    grace_s: int | None, limits_s: tuple[float, float]
) -> None:
    """The container does not heed SIGTERM, and its pod grants ten seconds."""
    sim = started()
    probe = {**HTTP, "periodSeconds": 1, "failureThreshold": 1}
    if grace_s is not None:
        probe["terminationGracePeriodSeconds"] = grace_s
    sim.create_pod(
        "web",
        livenessProbe=probe,
        terminationGracePeriodSeconds=10,
        annotations={LIVENESS: "Failure after 5s", "fleet.emulator/stop-time": "never"},
    )
    while not sim.said("Killing", "web"):
        sim.run_for(seconds=0.1)
    since_s = sim.now_s
    while container(sim)["restartCount"] == 0:
        sim.run_for(seconds=0.1)
    assert limits_s[0] < sim.now_s - since_s < limits_s[1]
    assert container(sim)["lastState"]["terminated"]["exitCode"] == 137  # type: ignore[index]


def test_the_example_of_the_documentation_fails_after_half_a_minute() -> None:
    """Nothing is declared: the container's script removes the file that the probe reads."""
    sim = started()
    script = "touch /tmp/healthy; sleep 30; rm -f /tmp/healthy; sleep 600"
    probe = {"exec": {"command": ["cat", "/tmp/healthy"]}, "initialDelaySeconds": 5}
    sim.create_pod(
        "web",
        command=["/bin/sh", "-c", script],
        livenessProbe={**probe, "periodSeconds": 5},
    )
    sim.run_for(seconds=29)
    assert sim.said("Unhealthy", "web") == {}
    sim.run_for(seconds=15)
    missing = "cat: can't open '/tmp/healthy': No such file or directory"
    assert sim.said("Unhealthy", "web") == {f"Liveness probe failed: {missing}\n": 3}
    sim.run_for(seconds=32)
    assert container(sim)["restartCount"] == 1


def test_a_container_that_keeps_failing_its_liveness_probe_backs_off() -> None:
    sim = started()
    sim.create_pod(
        "web",
        livenessProbe={**HTTP, "periodSeconds": 2, "failureThreshold": 1},
        annotations={LIVENESS: "Failure after 3s"},
    )
    sim.run_for(seconds=40)
    assert container(sim)["restartCount"] in {2, 3}
    sim.run_for(seconds=60)
    assert container(sim)["restartCount"] in {3, 4}
    assert sim.said("BackOff", "web")


def test_a_slow_answer_is_a_timeout_and_comes_that_much_later() -> None:
    sim = started()
    sim.create_pod(
        "web",
        readinessProbe={**HTTP, "periodSeconds": 10, "timeoutSeconds": 3, "failureThreshold": 1},
        annotations={READINESS: "[{result: Success, latency: 2s}, {after: 20s, result: Timeout}]"},
    )
    assert 2 < is_ready_times(sim) < 5
    sim.run_for(seconds=20)
    ready_after_s(sim, 12, ready=False)
    [text] = sim.said("Unhealthy", "web")
    assert text.endswith("deadline exceeded (Client.Timeout exceeded while awaiting headers)")


def test_a_tick_that_falls_into_a_slow_attempt_is_kept() -> None:
    """With a period of a second and a time-out of as much, one attempt follows the other."""
    sim = started()
    probe = {**HTTP, "periodSeconds": 1, "timeoutSeconds": 1}
    sim.create_pod("web", readinessProbe=probe, annotations={READINESS: "Timeout"})
    sim.run_for(seconds=23)
    assert sum(sim.said("Unhealthy", "web").values()) in range(19, 23)


def test_an_error_of_the_prober_changes_no_result() -> None:
    sim = started()
    sim.create_pod(
        "web",
        readinessProbe={**HTTP, "periodSeconds": 5, "failureThreshold": 1},
        annotations={READINESS: "Success, Error after 20s"},
    )
    sim.run_for(seconds=60)
    assert is_ready(sim)
    [(text, count)] = sim.said("Unhealthy", "web").items()
    assert text.startswith("Readiness probe errored and resulted in unknown state: ")
    assert count == pytest.approx(8, abs=1)


def test_random_failures_are_repeatable_and_as_frequent_as_declared() -> None:
    found = []
    for _ in range(2):
        sim = started(seed=4)
        sim.create_pod(
            "web",
            readinessProbe={**HTTP, "periodSeconds": 10},
            annotations={READINESS: "[{result: Success, failureRate: 0.02}]"},
        )
        sim.run_for(seconds=10_000)
        found.append(sum(sim.said("Unhealthy", "web").values()))
    assert found[0] == found[1]
    assert 8 < found[0] < 40  # of 1000 attempts


def test_an_annotation_that_changes_is_followed() -> None:
    sim = started()
    probe, usual = {**HTTP, "periodSeconds": 2}, {READINESS: "Success, Failure after 1h"}
    sim.create_pod("web", readinessProbe={**probe, "failureThreshold": 1}, annotations=usual)
    sim.run_for(seconds=10)
    assert is_ready(sim)
    notes = {"metadata": {"annotations": {READINESS: "Failure"}}}
    sim.server.update("pods", "web", notes, "default")
    assert ready_after_s(sim, 3, ready=False) > 0
    notes = {"metadata": {"annotations": {READINESS: "Success"}}}
    sim.server.update("pods", "web", notes, "default")
    ready_after_s(sim, 3)


def test_light_shows_the_same_without_events() -> None:
    sim = started(light=True)
    sim.create_pod(
        "web",
        readinessProbe={**HTTP, "periodSeconds": 2},
        livenessProbe={**HTTP, "periodSeconds": 2},
        annotations={
            READINESS: "Success after 5s, Failure after 20s",
            LIVENESS: "Failure after 40s",
        },
    )
    sim.run_for(seconds=3)
    assert not is_ready(sim)
    ready_after_s(sim, 6)
    sim.run_for(seconds=15)
    ready_after_s(sim, 10, ready=False)
    sim.run_for(seconds=28)
    assert container(sim)["restartCount"] == 1
    assert sim.events() == []


def test_liveness_does_not_disturb_a_pod_that_is_being_deleted() -> None:
    sim = started()
    sim.create_pod(
        "web",
        livenessProbe={**HTTP, "periodSeconds": 1, "failureThreshold": 1},
        annotations={LIVENESS: "Failure after 10s"},
    )
    sim.run_for(seconds=8)
    sim.server.delete_pod("web")
    sim.run_for(seconds=30)
    assert sim.phase("web") == ""
    assert sim.said("Unhealthy", "web") == {}
    assert list(sim.said("Killing", "web")) == ["Stopping container c"]


ASKED_BY_A_COMMAND = {
    "name": "c",
    "image": "busybox",
    "command": ["sh", "-c", "sleep 900"],
    "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
}


def test_probes_end_with_a_pod_whose_status_says_that_it_failed() -> None:
    """Source: worker.go, doProbe: Worker should terminate if pod is terminated."""
    sim = started()
    sim.create_pod(
        "web",
        containers=[ASKED_BY_A_COMMAND],
        activeDeadlineSeconds=5,
        terminationGracePeriodSeconds=5,
    )
    sim.run_for(seconds=20)
    assert sim.phase("web") == "Failed"
    assert not sim.said("Unhealthy", "web")


def test_the_end_of_a_container_ends_the_command_of_a_probe() -> None:
    """It may crash, heed SIGTERM, or need SIGKILL; the command is not finished in time."""
    sim = started()
    asked = {"exec": {"command": ["sleep", "3"]}, "periodSeconds": 4, "timeoutSeconds": 4}
    crashes, trap = "sleep 8.5; exit 1", "trap exit TERM; while true; do sleep 1; done"
    scripts = {"crashes": crashes, "heeds": trap, "ignores": "sleep 900"}
    for name, script in scripts.items():
        made: dict[str, object] = {"name": "c", "image": "busybox", "readinessProbe": asked}
        made["command"] = ["sh", "-c", script]
        sim.create_pod(name, containers=[made], terminationGracePeriodSeconds=5)
    sim.run_for(seconds=10)
    assert sim.said("Unhealthy", "crashes") == {"Readiness probe failed: ": 1}
    sim.run_for(seconds=8)
    for name in ("heeds", "ignores"):
        assert sim.said("Unhealthy", name) == {}
        sim.server.delete_pod(name)
    sim.run_for(seconds=10)
    for name in ("heeds", "ignores"):
        assert sim.phase(name) == ""
        assert sim.said("Unhealthy", name) == {"Readiness probe failed: ": 1}


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("probe", [HTTP, {"exec": {"command": ["true"]}}])
def test_probes_go_on_until_the_last_container_of_a_pod_has_ended(
    probe: dict[str, object],
    light: bool,  # noqa: FBT001
) -> None:
    """No status says that the first one has ended; its port is closed, no command can be run."""
    sim = started(light=light)
    asked = {"name": "c", "image": "nginx:1", "readinessProbe": {**probe, "periodSeconds": 2}}
    stays = {"name": "stays", "image": "busybox", "command": ["sleep", "900"]}
    sim.create_pod("web", containers=[asked, stays], terminationGracePeriodSeconds=20)
    sim.run_for(seconds=20)
    sim.server.delete_pod("web")
    sim.run_for(seconds=15)
    ready = [each["ready"] for each in sim.status("web")["containerStatuses"]]
    assert ready == [light or probe is not HTTP, True]
    said = [(text.rpartition(": ")[2], n) for text, n in sim.said("Unhealthy", "web").items()]
    text = "connection refused" if probe is HTTP else "container is in CONTAINER_EXITED state"
    assert said == ([] if light else [(text, 8)])


def test_a_tick_between_a_crash_and_the_relist_finds_nothing_that_runs() -> None:
    sim = started()
    script = ["sh", "-c", "sleep 7; exit 1"]
    asked = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    sim.create_pod("web", command=script, readinessProbe=asked)
    sim.run_for(seconds=12)
    [text] = sim.said("Unhealthy", "web")
    assert text.endswith("failed to exec in container: container is in CONTAINER_EXITED state")
