"""How containers start, end, restart and stop, in virtual time: kubelet-reference 5.9 and 5.10."""

import itertools

import pytest
from world.simulation import Simulation, started
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

PREFIX = "fleet.emulator/"


def container(name: str = "c", script: str = "", **fields: object) -> Object:
    spec: Object = {"name": name, "image": "agnhost:2", **fields}
    if script:
        spec["command"] = ["sh", "-c", script]
    return spec


def create(
    sim: Simulation, *containers: Object, notes: dict[str, str] | None = None, **spec: object
) -> str:
    """Create the pod `web`; notes are annotations under fleet.emulator/."""
    annotations = {PREFIX + key: value for key, value in (notes or {}).items()}
    return sim.create_pod(
        "web", "n-0", containers=[*containers] or [container()], annotations=annotations, **spec
    )


def status(sim: Simulation) -> Object:
    found: Object = sim.status("web")
    return found


def state(sim: Simulation, name: str = "c", field: str = "containerStatuses") -> Object:
    found: Object = next(each for each in status(sim)[field] if each["name"] == name)
    return found


def events(sim: Simulation, reason: str) -> list[tuple[str, int]]:
    """Return what was said for a reason, and how often."""
    return [(str(each["message"]), int(each.get("count", 1))) for each in sim.events(reason)]


def restarts(sim: Simulation, seconds: float, name: str = "c") -> list[float]:
    """Run for a while; return when, from now on, the restart count rose."""
    found = []
    count = 0
    since_s = sim.now_s
    while sim.now_s - since_s < seconds:
        sim.run_for(0.5)
        now = sum(
            each.get("restartCount", 0)
            for field in ("containerStatuses", "initContainerStatuses")
            for each in status(sim).get(field, ())
            if each["name"] == name
        )
        if now > count:
            count = now
            found.append(sim.now_s - since_s)
    return found


# ---- restarts ----


def test_the_ladder_of_the_crash_loop() -> None:
    """At once, then 10, 20, 40, 80, 160, 300, 300 s after each exit, up to half of it later."""
    for seed in (1, 2, 3):
        sim = started(seed)
        create(sim, container(script="exit 1"))
        found = restarts(sim, 1800)
        gaps = [after - before for before, after in itertools.pairwise(found)]
        for gap, delay in zip(gaps, (10, 20, 40, 80, 160, 300, 300), strict=False):
            # The retry waits for the back-off, at most 60 s, times U[1, 1.5], and a tick.
            assert delay - 1 <= gap <= delay + 33, (gaps, delay)
        assert len(gaps) >= 7


def test_a_back_off_beyond_a_minute_is_shown_by_the_sync_that_finds_it() -> None:
    """What a sync puts into the reason cache is shown by the next one, after 60 to 90 s at most.

    So it is chance whether a back-off of 80 s is shown before it is over.
    """
    sim = started()
    uid = create(sim, container(script="exit 3"))
    shown: list[str] = []
    for _ in range(400):
        sim.run_for(1)
        found = state(sim)
        if "waiting" in found["state"] and found["state"]["waiting"]["message"] not in shown:
            shown.append(found["state"]["waiting"]["message"])
            last = found["lastState"]["terminated"]
            assert last["containerID"] == found["containerID"]
            assert found["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    text = "back-off {} restarting failed container=c pod=web_default({})"
    both = [text.format(delay, uid) for delay in ("1m20s", "2m40s")]
    assert shown in (both, both[1:])


def test_a_long_run_resets_the_back_off() -> None:
    sim = started()
    create(sim, container(script="sleep 700; exit 1"))
    found = restarts(sim, 3000)
    gaps = [after - before for before, after in itertools.pairwise(found)]
    # The last bump was more than 600 s before the exit: it starts anew, without a wait.
    assert len(gaps) == 3
    assert all(699 <= gap <= 703 for gap in gaps), gaps


@pytest.mark.parametrize(
    ("pod_policy", "code", "phase", "runs"),
    [
        ("Never", 0, "Succeeded", 1),
        ("Never", 1, "Failed", 1),
        ("OnFailure", 0, "Succeeded", 1),
        ("OnFailure", 1, "Running", 2),
        ("Always", 0, "Running", 2),
    ],
)
def test_policies_of_the_pod(pod_policy: str, code: int, phase: str, runs: int) -> None:
    sim = started()
    create(sim, container(script=f"sleep 1; exit {code}"), restartPolicy=pod_policy)
    sim.run_for(6)
    assert status(sim)["phase"] == phase
    assert state(sim)["restartCount"] == runs - 1


def rules(action: str, operator: str, *values: int) -> list[Object]:
    return [{"action": action, "exitCodes": {"operator": operator, "values": [*values]}}]


def test_a_rule_restarts_what_the_policy_would_not() -> None:
    sim = started()
    ruled = container(
        script="sleep 1; exit 42",
        restartPolicy="Never",
        restartPolicyRules=rules("Restart", "In", 42, 43),
    )
    create(sim, ruled, restartPolicy="Never")
    sim.run_for(6)
    assert status(sim)["phase"] == "Running"
    assert state(sim)["restartCount"] == 1


def test_exit_codes_by_run_fail_twice_then_succeed() -> None:
    sim = started()
    create(
        sim, container(), restartPolicy="OnFailure", notes={"run-time": "1s", "exit-code": "7,7,0"}
    )
    sim.run_for(40)
    assert status(sim)["phase"] == "Succeeded"
    found = state(sim)
    assert found["restartCount"] == 2
    assert found["state"]["terminated"]["exitCode"] == 0
    assert found["lastState"]["terminated"]["exitCode"] == 7


def test_all_containers_restart_in_place() -> None:
    sim = started()
    source = container(
        "source",
        script="sleep 2; exit 88",
        restartPolicy="Never",
        restartPolicyRules=rules("RestartAllContainers", "In", 88),
    )
    uid = create(
        sim,
        source,
        container("other"),
        initContainers=[container("init", script="exit 0")],
        ephemeralContainers=[container("e")],
        restartPolicy="Never",
    )
    ran: Object = {}
    for _ in range(200):  # until the runtime has none of them any more
        sim.run_for(0.02)
        if "RestartingAllContainers" in str(state(sim, "other")["state"]):
            break
        ran = {name: state(sim, name) for name in ("source", "other")}
    init = state(sim, "init", "initContainerStatuses")
    assert (init["ready"], bool(init["imageID"]), "user" in init) == (True, True, True)
    source, other = state(sim, "source"), state(sim, "other")
    for field in ("image", "imageID", "containerID", "user"):
        assert source[field] == ran["source"][field]
    assert "containerID" in ran["other"]
    assert ("containerID" in other, "user" in other, other["imageID"]) == (False, False, "")
    assert [state(sim, "e", "ephemeralContainerStatuses")["restartCount"]] == [0]
    sim.run_for(1)
    assert "running" in state(sim, "e", "ephemeralContainerStatuses")["state"]
    sim.run_for(4)
    assert "AllContainersRestarting" in [each["type"] for each in status(sim)["conditions"]]
    for name in ("source", "other"):
        found = state(sim, name)
        assert found["restartCount"] >= 1, found
    assert state(sim, "other")["lastState"]["terminated"]["reason"] == "RestartingAllContainers"
    assert state(sim, "init", "initContainerStatuses")["restartCount"] >= 1
    assert ("killing", 1) in [(text, min(count, 1)) for text, count in events(sim, "Killing")]
    assert sim.server.phases[uid][-1] in {"Pending", "Running"}


# ---- how a start fails ----


def test_a_container_that_cannot_run() -> None:
    sim = started()
    create(sim, container(), notes={"start-failure": "RunContainerError: no such file"})
    sim.run_for(2.5)
    found = state(sim)
    assert found["state"]["waiting"] == {"reason": "RunContainerError", "message": "no such file"}
    last = found["lastState"]["terminated"]
    said = (last["exitCode"], last["reason"], last["message"])
    assert said == (128, "StartError", "no such file")
    assert last["startedAt"] == "1970-01-01T00:00:00Z"
    assert events(sim, "Failed")[0][0] == "Error: no such file"
    assert events(sim, "Created")
    assert not events(sim, "Started")
    sim.run_for(5)  # it was tried again at once, and backs off: the next sync will tell
    assert state(sim)["state"]["waiting"]["reason"] == "RunContainerError"
    assert state(sim)["restartCount"] == 1
    assert [count for _, count in events(sim, "BackOff")] == [1]


def test_a_container_that_cannot_run_is_an_end_for_a_job() -> None:
    sim = started()
    create(sim, container(), notes={"start-failure": "RunContainerError"}, restartPolicy="Never")
    sim.run_for(15)
    assert status(sim)["phase"] == "Failed"
    assert state(sim)["state"]["terminated"]["reason"] == "StartError"


def test_a_container_that_cannot_be_created_is_tried_again() -> None:
    sim = started()
    notes = {"start-failure": "CreateContainerError", "start-failure-times": "1"}
    create(sim, container(), notes=notes)
    sim.run_for(3)
    found = state(sim)
    assert found["state"]["waiting"] == {
        "reason": "CreateContainerError",
        "message": "context deadline exceeded",
    }
    assert "containerID" not in found
    assert status(sim)["phase"] == "Pending"
    assert not events(sim, "Created")


def test_one_container_of_several_behaves_in_its_own_way() -> None:
    sim = started()
    notes = {"exit-code.b": "5", "run-time.b": "2s", "exit-reason.b": "OOMKilled"}
    create(sim, container("a"), container("b"), notes=notes, restartPolicy="Never")
    sim.run_for(6)
    assert "running" in state(sim, "a")["state"]
    ended = state(sim, "b")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (5, "OOMKilled")


# ---- hooks, deadlines, stops ----


def sleeps(seconds: int) -> Object:
    return {"sleep": {"seconds": seconds}}


def runs(*command: str) -> Object:
    return {"exec": {"command": [*command]}}


def deleted_after_s(sim: Simulation, grace_s: int | None = None) -> float:
    """Delete the pod; return how long it took to vanish."""
    since_s = sim.now_s
    sim.server.delete_pod("web", grace_s=grace_s)
    while sim.phase("web"):
        sim.run_for(0.25)
        assert sim.now_s - since_s < 200
    return sim.now_s - since_s


def test_a_post_start_hook_that_fails_shows_what_it_wrote() -> None:
    sim = started()
    script = "echo out; echo err >&2; exit 4"
    uid = create(sim, container(lifecycle={"postStart": runs("sh", "-c", script)}))
    sim.run_for(20)
    assert state(sim)["state"]["waiting"]["message"] == (
        f'Exec lifecycle hook ([sh -c {script}]) for Container "c" in Pod "web_default({uid})" '
        f"failed - error: command 'sh -c {script}' exited with 4: err\n"
        ', message: "out\\nerr\\n"'
    )


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            {"httpGet": {"path": "x", "port": 80, "host": "::1"}},
            'Get "http://[::1]:80/x": dial tcp ',
        ),
        ({"tcpSocket": {"port": 80}}, "TCPSocket:&TCPSocketAction{Port:{0 80 },Host:,},Sleep:nil"),
    ],
)
def test_what_is_said_of_a_hook_that_fails(hook: Object, message: str) -> None:
    """Declared or not, a kubelet runs no tcpSocket: lifecycle/handlers.go, Run."""
    sim = started()
    notes = {"post-start": "1s fail"} if "httpGet" in hook else None
    create(sim, container(lifecycle={"postStart": hook}), notes=notes)
    sim.run_for(20)
    assert message in state(sim)["state"]["waiting"]["message"]


def test_a_pre_stop_hook_comes_out_of_the_grace_period() -> None:
    sim = started()
    hooked = container(lifecycle={"preStop": sleeps(8)})
    create(sim, hooked, notes={"stop-time": "never"})
    sim.run_for(5)
    assert 30 <= deleted_after_s(sim) <= 33
    assert not events(sim, "FailedPreStopHook")


def test_a_pre_stop_hook_may_end_the_wait() -> None:
    sim = started()
    create(sim, container(lifecycle={"preStop": sleeps(8)}))
    sim.run_for(5)
    assert 8 <= deleted_after_s(sim) <= 11


def test_a_failed_pre_stop_hook_is_told_when_it_fails() -> None:
    sim = started()
    create(sim, container(lifecycle={"preStop": runs("false")}), notes={"pre-stop": "4s fail"})
    sim.run_for(5)
    sim.server.delete_pod("web")
    sim.run_for(3)
    assert not events(sim, "FailedPreStopHook")
    sim.run_for(2)
    assert events(sim, "FailedPreStopHook") == [("PreStopHook failed", 1)]


def test_a_hook_that_outlives_the_grace_period_fails_with_its_container() -> None:
    sim = started()
    create(sim, container(lifecycle={"preStop": runs("sleep", "60")}), notes={"stop-time": "never"})
    sim.run_for(5)
    assert 6 <= deleted_after_s(sim, grace_s=4) <= 9  # the last two seconds are always given
    assert events(sim, "FailedPreStopHook") == [("PreStopHook failed", 1)]


def test_a_container_that_ignores_sigterm_is_killed() -> None:
    sim = started()
    uid = create(sim, container(), notes={"stop-time": "never"}, terminationGracePeriodSeconds=6)
    sim.run_for(5)
    assert 6 <= deleted_after_s(sim) <= 9
    assert sim.server.phases[uid][-1] == "Failed"


def test_sidecars_stop_after_the_others_in_reverse() -> None:
    sim = started()
    side = {"restartPolicy": "Always"}
    create(
        sim,
        container("main"),
        initContainers=[container("first", **side), container("second", **side)],
        notes={"stop-time": "3s"},
    )
    sim.run_for(8)
    assert status(sim)["phase"] == "Running"
    assert 9 <= deleted_after_s(sim) <= 12


def test_a_deadline_may_be_set_later() -> None:
    sim = started()
    create(sim, container())
    sim.run_for(30)
    sim.server.update("pods", "web", {"spec": {"activeDeadlineSeconds": 40}}, "default")
    sim.run_for(5)
    assert status(sim)["phase"] == "Running"
    sim.run_for(10)
    assert status(sim)["reason"] == "DeadlineExceeded"


# ---- init containers, sidecars, ephemeral containers ----


def test_a_sidecar_restarts_also_in_a_pod_that_never_does() -> None:
    sim = started()
    side = container("side", script="sleep 3; exit 1", restartPolicy="Always")
    create(sim, container("main"), initContainers=[side], restartPolicy="Never")
    sim.run_for(12)
    assert state(sim, "side", "initContainerStatuses")["restartCount"] >= 1
    assert status(sim)["phase"] == "Running"


def test_a_sidecar_is_started_once_its_startup_probe_succeeds() -> None:
    sim = started()
    probe = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1, "failureThreshold": 30}
    side = container("side", restartPolicy="Always", startupProbe=probe)
    notes = {"startup-probe": "Success after 10s"}
    create(sim, container("main"), initContainers=[side], notes=notes)
    sim.run_for(6)
    assert "running" in state(sim, "side", "initContainerStatuses")["state"]
    assert not state(sim, "side", "initContainerStatuses")["started"]
    assert "waiting" in state(sim, "main")["state"]
    assert status(sim)["phase"] == "Pending"
    sim.run_for(12)
    assert state(sim, "side", "initContainerStatuses")["started"]
    assert status(sim)["phase"] == "Running"


def test_a_sidecar_without_readiness_probe_is_ready_while_a_later_init_container_runs() -> None:
    sim = started()
    probe = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1, "failureThreshold": 30}
    side = container("side", restartPolicy="Always", startupProbe=probe)
    late = container("late", script="sleep 20")
    notes = {"startup-probe.side": "Success after 4s"}
    create(sim, container("main"), initContainers=[side, late], notes=notes)
    sim.run_for(3)
    assert not state(sim, "side", "initContainerStatuses")["ready"]
    sim.run_for(5)
    found = state(sim, "side", "initContainerStatuses")
    assert (found["started"], found["ready"]) == (True, True)
    found = state(sim, "late", "initContainerStatuses")
    assert ("running" in found["state"], found["ready"]) == (True, False)
    unready = [each.get("message", "") for each in status(sim)["conditions"]]
    assert "containers with unready status: [main]" in unready


@pytest.mark.parametrize(
    ("code", "shown"), [(0, {"terminated", "running"}), (3, {"waiting", "running"})]
)
def test_a_sidecar_that_fails_its_startup_probe_shows_how_it_ended(
    code: int, shown: set[str]
) -> None:
    """With exit code 0 it never shows that it waits, as no init container does."""
    sim = started()
    probe = {"exec": {"command": ["sh", "-c", "exit 2"]}, "periodSeconds": 1, "failureThreshold": 2}
    side = container("side", restartPolicy="Always", startupProbe=probe)
    create(sim, container("main"), initContainers=[side], notes={"stop-exit-code": str(code)})
    sim.run_for(5)
    seen = set()
    for _ in range(60):
        sim.run_for(0.5)
        found = state(sim, "side", "initContainerStatuses")
        [now] = found["state"]
        seen.add(now)
        assert not found["ready"]
        if now == "terminated":
            assert found["state"][now]["reason"] == "Completed"
            assert found["state"][now]["containerID"] == found["containerID"]
    assert seen == shown
    assert events(sim, "BackOff")
    assert status(sim)["phase"] == "Pending"


def test_light_restarts_and_kills_too() -> None:
    sim = started(light=True)
    create(sim, container(script="sleep 1; exit 1"))
    sim.run_for(55)
    assert state(sim)["restartCount"] == 3
    sim.create_pod("late", activeDeadlineSeconds=5)
    sim.run_for(12)
    assert sim.status("late")["reason"] == "DeadlineExceeded"


def test_what_the_relist_reports_that_a_sync_waited_for_has_the_pod_synced_again() -> None:
    """While one container waits out its back-off each sync says so; another one ends by then."""

    def played(*changes_s: float) -> tuple[float, list[int]]:
        """Change labels at times; return when the end was seen, and BackOff events each 50 ms."""
        sim = started()
        create(sim, container("c", "exit 1"), container("d", "sleep 45"), restartPolicy="OnFailure")
        begin_s, seen_s, counts, left_s = sim.now_s, 0.0, [], list(changes_s)
        while sim.now_s - begin_s < 50:
            sim.run_for(0.05)
            if left_s and sim.now_s - begin_s >= left_s[0]:
                labels = {"changed": str(left_s.pop(0))}
                sim.server.update("pods", "web", {"metadata": {"labels": labels}}, "default")
            counts.append(sum(count for _, count in events(sim, "BackOff")))
            if not seen_s and sim.now_s - begin_s > 1 and "terminated" in state(sim, "d")["state"]:
                seen_s = sim.now_s - begin_s
        return seen_s, counts

    seen_s, alone = played()
    last = int((seen_s + 1.5) / 0.05)
    before = alone[last - 50]
    assert alone[last] == before + 1, "the relist that sees the end asks for a sync"
    # The first change is heeded at once, the second one waits for the relist that sees the end.
    seen_again_s, counts = played(seen_s - 0.5, seen_s - 0.4)
    assert seen_again_s == seen_s
    assert counts[last] == before + 3


def test_a_changed_image_restarts_its_container_alone() -> None:
    sim = started()
    create(sim, container(), container("d"))
    sim.run_for(seconds=30)
    pod = sim.server.get("pods", "web", "default")
    before = state(sim)
    containers = [container(image="agnhost:3"), container("d")]
    sim.server.update(
        "pods", "web", {**pod, "spec": {**pod["spec"], "containers": containers}}, "default"
    )
    sim.run_for(seconds=30)
    after = state(sim)
    assert after["restartCount"] == 1
    assert after["image"] == "docker.io/library/agnhost:3"
    assert after["imageID"] != before["imageID"]
    assert after["lastState"]["terminated"]["containerID"] == before["containerID"]
    assert state(sim, "d")["restartCount"] == 0
    assert events(sim, "Killing") == [("Container c definition changed, will be restarted", 1)]
