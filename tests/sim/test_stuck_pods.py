"""Pods that cannot be killed, and volumes that do not unmount: they stay, and go when it is healed.

Nobody else's do, and the API server is sent no DELETE before its time.
"""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

LIGHT = pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
REFUSED = "unknown error after kill: operation not permitted"
NO_ANSWER = '"rpc error: code = DeadlineExceeded desc = context deadline exceeded"'
GRACE_S = 5
RETRY_S = 15 + 2  # backOffPeriod with its jitter; the work queue and the relist
STATUS_SYNC_S = 10 + 1  # syncPeriod of the status manager
UNMOUNT_S = 122 + 1  # maxDurationBeforeRetry, and the loops


def started(nodes: int = 2, **more: object) -> Simulation:
    sim = Simulation(nodes=nodes, seed=7, monitored=True, **more)  # type: ignore[arg-type]
    sim.run_for(seconds=60)
    return sim


def run_pods(sim: Simulation, **spec: object) -> None:
    """Run a pod on each node, by the name of the node."""
    for node in sim.names:
        sim.create_pod(f"web-{node}", node, terminationGracePeriodSeconds=GRACE_S, **spec)
    sim.run_for(seconds=20)
    assert left(sim) == dict.fromkeys((f"web-{node}" for node in sim.names), "Running")


def left(sim: Simulation) -> dict[str, str]:
    """Return the phases of the pods that there are."""
    return {each["metadata"]["name"]: each["status"]["phase"] for each in sim.server.all("pods")}


def pod(sim: Simulation, name: str) -> Object:
    return sim.server.get("pods", name, "default")


def told(sim: Simulation, reason: str) -> dict[str, list[str]]:
    """Return the messages of the events with a reason, by whom they are about."""
    found: dict[str, list[str]] = {}
    for each in sim.events():
        if each["reason"] == reason:
            found.setdefault(each["involvedObject"]["name"], []).append(each["message"])
    return found


def count(sim: Simulation, name: str, reason: str) -> int:
    return sum(int(each["count"]) for each in sim.events(reason, name))


def runs(sim: Simulation, node: int = 1) -> int:
    """Return how many pods the runtime of a node has."""
    kubelet = sim.kubelet(node)
    return 0 if kubelet.pods is None else len(list(kubelet.pods.runtime))


@LIGHT
def test_containers_that_cannot_be_killed_keep_their_pods(*, light: bool) -> None:
    sim = started(light=light)
    run_pods(sim)
    sim.go_wrong(type="KillFailure", nodes=["n-1"], message=REFUSED, seconds=100)
    for node in sim.names:
        sim.server.delete_pod(f"web-{node}")
    sim.run_for(seconds=90)
    assert left(sim) == {"web-n-1": "Running"}
    assert not sim.calls("n-1", "DELETE", "/pods/")
    if not light:
        [found] = told(sim, "FailedKillPod").values()
        [message] = set(found)
        identity = pod(sim, "web-n-1")["status"]["containerStatuses"][0]["containerID"]
        who = f'failed to kill container \\"{identity.removeprefix("containerd://")}\\": {REFUSED}'
        rpc = "rpc error: code = Unknown desc ="
        who_else = who.replace("kill", "stop", 1).replace(REFUSED, who)
        uid = pod(sim, "web-n-1")["metadata"]["uid"]
        assert message == (
            f'error killing pod: [failed to "KillContainer" for "c" with KillContainerError: '
            f'"{rpc} {who}", failed to "KillPodSandbox" for "{uid}" with KillPodSandboxError: '
            f'"{rpc} {who_else}"]'
        )
        # Each try waits for the grace period, and for 10 to 15 s and a relist before the next.
        assert 4 <= count(sim, "web-n-1", "FailedKillPod") <= 6
        assert count(sim, "web-n-1", "Killing") - count(sim, "web-n-1", "FailedKillPod") in {0, 1}
    sim.run_for(seconds=10 + RETRY_S + GRACE_S)
    assert left(sim) == {}
    assert [each.node for each in sim.calls(verb="DELETE", path="/pods/")] == ["n-0", "n-1"]
    assert not sum(runs(sim, node) for node in range(2))


def test_a_kill_that_hangs_is_over_as_soon_as_the_runtime_answers() -> None:
    sim = started(nodes=3)
    run_pods(sim)
    sim.go_wrong(type="KillFailure", nodes=["n-1"], seconds=60)
    sim.go_wrong(type="KillFailure", nodes=["n-2"], seconds=400)
    for node in sim.names:
        sim.server.delete_pod(f"web-{node}")
    sim.run_for(seconds=59)
    assert left(sim) == {"web-n-1": "Running", "web-n-2": "Running"}
    assert told(sim, "FailedKillPod") == {}
    sim.run_for(seconds=4)
    assert left(sim) == {"web-n-2": "Running"}
    sim.run_for(seconds=GRACE_S + 240 - 63)  # two time-outs: of the container, of the sandbox
    assert told(sim, "FailedKillPod") == {}
    sim.run_for(seconds=5)
    uid = pod(sim, "web-n-2")["metadata"]["uid"]
    message = (
        f'error killing pod: [failed to "KillContainer" for "c" with KillContainerError: '
        f'{NO_ANSWER}, failed to "KillPodSandbox" for "{uid}" with KillPodSandboxError: '
        f"{NO_ANSWER}]"
    )
    assert told(sim, "FailedKillPod") == {"web-n-2": [message]}
    sim.run_for(seconds=400 - 250 + 5)
    assert left(sim) == {}


@LIGHT
def test_sandboxes_that_cannot_be_stopped_keep_their_pods(*, light: bool) -> None:
    sim = started(light=light)
    run_pods(sim)
    address = pod(sim, "web-n-1")["status"]["podIP"]
    sim.go_wrong(type="SandboxKillFailure", nodes=["n-1"], message="no plugin", seconds=60)
    for node in sim.names:
        sim.server.delete_pod(f"web-{node}")
    sim.run_for(seconds=50)
    assert left(sim) == {"web-n-1": "Running"}
    if not light:
        [status] = pod(sim, "web-n-1")["status"]["containerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == 0
        conditions = {
            each["type"]: each["status"] for each in pod(sim, "web-n-1")["status"]["conditions"]
        }
        assert conditions["PodReadyToStartContainers"] == "False"
        assert pod(sim, "web-n-1")["status"]["podIP"] == address
        assert list(told(sim, "FailedKillPod")) == ["web-n-1"]
        [message] = told(sim, "FailedKillPod")["web-n-1"]
        assert 'failed to "KillPodSandbox" for' in message
        assert '\\": no plugin"' in message
        assert "KillContainer" not in message
        assert 4 <= count(sim, "web-n-1", "FailedKillPod") <= 6
        assert count(sim, "web-n-1", "Killing") == 1
    # Its address is not free, and is once it is gone.
    sim.create_pod("next", "n-1")
    sim.run_for(seconds=5)
    assert pod(sim, "next")["status"]["podIP"] not in {"", address}
    sim.server.delete_pod("next")
    sim.run_for(seconds=5 + RETRY_S)
    assert left(sim) == {}


def test_volumes_that_do_not_unmount_keep_their_pods_without_a_word() -> None:
    sim = started()
    run_pods(sim)
    sim.go_wrong(type="UnmountFailure", nodes=["n-1"], seconds=200)
    before = len(sim.events())
    for node in sim.names:
        sim.server.delete_pod(f"web-{node}")
    sim.run_for(seconds=190)
    assert left(sim) == {"web-n-1": "Succeeded"}
    assert not sim.calls("n-1", "DELETE", "/pods/")
    assert len(sim.events()) == before + 2  # Killing, of both
    sim.run_for(seconds=10 + UNMOUNT_S)
    assert left(sim) == {}
    assert [each.node for each in sim.calls(verb="DELETE", path="/pods/")] == ["n-0", "n-1"]


def test_a_pod_that_is_deleted_by_force_is_gone_and_its_containers_are_not() -> None:
    sim = started()
    run_pods(sim)
    sim.go_wrong(type="KillFailure", nodes=["n-1"], message=REFUSED, seconds=100)
    sim.server.delete_pod("web-n-1")
    sim.run_for(seconds=30)
    sim.server.delete_pod("web-n-1", grace_s=0)
    assert left(sim) == {"web-n-0": "Running"}
    before = count(sim, "web-n-1", "FailedKillPod")
    sim.run_for(seconds=60)
    # Housekeeping has it tried each 2 s, after a grace period that is at least that long.
    assert count(sim, "web-n-1", "FailedKillPod") > before + 4
    assert runs(sim) == 1
    sim.run_for(seconds=10 + RETRY_S)
    assert runs(sim) == 0
    assert not sim.calls("n-1", "DELETE", "/pods/")


@pytest.mark.parametrize("kind", ["KillFailure", "UnmountFailure"])
def test_a_kubelet_that_restarts_finds_what_is_stuck(kind: str) -> None:
    sim = started()
    run_pods(sim)
    message = {"message": REFUSED} if kind == "KillFailure" else {}
    sim.go_wrong(type=kind, nodes=["n-1"], seconds=100, **message)
    sim.server.delete_pod("web-n-1")
    sim.run_for(seconds=30)
    sim.go_wrong(type="KubeletRestart", nodes=["n-1"])
    sim.run_for(seconds=60)
    assert set(left(sim)) == {"web-n-0", "web-n-1"}
    assert not sim.calls("n-1", "DELETE", "/pods/")
    sim.run_for(seconds=10 + UNMOUNT_S)
    assert left(sim) == {"web-n-0": "Running"}


def test_terminating_pods_that_pile_up_keep_their_successors_out() -> None:
    """A node of 4 pods: what cannot be killed counts, and what comes is refused meanwhile."""
    model = model_of(kubeletConfiguration={"maxPods": 4})
    sim = started(nodes=1, model=model)
    old = [f"old-{number}" for number in range(4)]
    for name in old:
        sim.create_pod(name, terminationGracePeriodSeconds=GRACE_S)
    sim.run_for(seconds=20)
    sim.go_wrong(type="KillFailure", message=REFUSED, seconds=60)
    for name in old:
        sim.server.delete_pod(name)
    sim.run_for(seconds=50)
    assert left(sim) == dict.fromkeys(old, "Running")
    sim.create_pod("refused")
    sim.run_for(seconds=10)
    assert pod(sim, "refused")["status"]["reason"] == "OutOfpods"
    sim.run_for(seconds=RETRY_S + GRACE_S)
    assert left(sim) == {"refused": "Failed"}
    sim.create_pod("new")
    sim.run_for(seconds=10)
    assert sim.phase("new") == "Running"


def test_what_a_pod_declares_is_as_a_fault_of_its_own() -> None:
    """One container of two survives, one volume of two stays; the annotations go, and they do."""
    sim = started(nodes=1)
    notes = {"fleet.emulator/stop-error": REFUSED, "fleet.emulator/unmount-fails": "true"}
    sim.create_pod("odd", annotations=notes, terminationGracePeriodSeconds=GRACE_S)
    sim.create_pod("even", terminationGracePeriodSeconds=GRACE_S)
    sim.run_for(seconds=20)
    for name in ("odd", "even"):
        sim.server.delete_pod(name)
    sim.run_for(seconds=60)
    assert left(sim) == {"odd": "Running"}
    assert list(told(sim, "FailedKillPod")) == ["odd"]
    meta = {"metadata": {"annotations": {"fleet.emulator/stop-error": ""}}}
    sim.server.update("pods", "odd", meta, "default")
    sim.run_for(seconds=RETRY_S + GRACE_S)
    assert left(sim) == {"odd": "Succeeded"}
    meta = {"metadata": {"annotations": {"fleet.emulator/unmount-fails": "false"}}}
    sim.server.update("pods", "odd", meta, "default")
    sim.run_for(seconds=UNMOUNT_S)
    assert left(sim) == {}


def test_an_eviction_that_takes_too_long_is_told() -> None:
    """The pod stays, still Running; the manager gives up after 10 s, and begins with it anew."""
    model = model_of(template={"status": {"capacity": {"memory": "4Gi"}}})
    sim = started(nodes=1, model=model)
    sim.go_wrong(type="KillFailure", message=REFUSED, seconds=60)
    killed = {"fleet.emulator/stop-exit-code": "143"}
    for name, used in (("greedy", "2900Mi"), ("modest", "900Mi")):
        sim.create_pod(name, annotations={**killed, "fleet.emulator/memory-usage": used})
    sim.run_for(seconds=17)
    assert list(told(sim, "Evicted")) == ["greedy"]
    assert told(sim, "ExceededGracePeriod") == {}
    sim.run_for(seconds=40)
    assert list(told(sim, "Evicted")) == ["greedy"]
    assert told(sim, "ExceededGracePeriod") == {
        "greedy": ["Container runtime did not kill the pod within specified grace period."]
    }
    assert list(told(sim, "FailedKillPod")) == ["greedy"]
    assert left(sim) == {"greedy": "Running", "modest": "Running"}
    sim.run_for(seconds=RETRY_S + GRACE_S)
    assert left(sim) == {"greedy": "Failed", "modest": "Running"}
    assert pod(sim, "greedy")["status"]["reason"] == "Evicted"


def test_a_critical_pod_waits_no_longer_for_a_victim_that_cannot_be_killed() -> None:
    sim = started(nodes=1, model=model_of(kubeletConfiguration={"maxPods": 1}))
    killed = {"fleet.emulator/stop-exit-code": "143"}
    sim.create_pod("victim", annotations=killed, terminationGracePeriodSeconds=GRACE_S)
    sim.run_for(seconds=20)
    sim.go_wrong(type="KillFailure", message=REFUSED, seconds=60)
    sim.create_pod("critical", priority=2_000_000_000)
    sim.run_for(seconds=9)
    assert left(sim) == {"victim": "Running", "critical": "Pending"}
    sim.run_for(seconds=10)
    assert left(sim) == {"victim": "Running", "critical": "Running"}
    assert list(told(sim, "ExceededGracePeriod")) == ["victim"]
    sim.run_for(seconds=41 + RETRY_S + GRACE_S)
    assert left(sim) == {"victim": "Failed", "critical": "Running"}


def test_a_container_that_is_to_be_restarted_and_cannot_be_killed_runs_on() -> None:
    """A restart of one container that fails ends the sync, and tells nobody but Killing."""
    sim = started(nodes=1)
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 2, "failureThreshold": 1}
    notes = {"fleet.emulator/liveness-probe": "Success"}
    sim.create_pod("sick", livenessProbe=probe, annotations=notes, terminationGracePeriodSeconds=2)
    sim.run_for(seconds=20)
    sim.go_wrong(type="KillFailure", message=REFUSED, seconds=60)
    meta = {"metadata": {"annotations": {"fleet.emulator/liveness-probe": "Failure"}}}
    sim.server.update("pods", "sick", meta, "default")
    sim.run_for(seconds=55)

    def restarts() -> int:
        return int(pod(sim, "sick")["status"]["containerStatuses"][0]["restartCount"])

    assert restarts() == 0
    assert told(sim, "FailedKillPod") == {}
    assert 3 <= count(sim, "sick", "Killing") <= 6
    sim.run_for(seconds=5 + RETRY_S)
    assert restarts() >= 1


@LIGHT
def test_a_pod_is_deleted_again_that_a_server_did_not_find_as_it_started(*, light: bool) -> None:
    """Source: plugin/pkg/admission/noderestriction, admitPod: the informer has no pod yet."""
    sim = started(light=light)
    run_pods(sim)
    sim.server.has_just_started = True
    for node in sim.names:
        sim.server.delete_pod(f"web-{node}")
    sim.run_for(seconds=GRACE_S + 5)
    deletes = len(sim.calls("", "DELETE", "/pods/"))
    assert deletes >= len(sim.names)
    sim.server.has_just_started = False
    sim.run_for(seconds=STATUS_SYNC_S)
    assert left(sim) == {}
    assert len(sim.calls("", "DELETE", "/pods/")) == deletes + len(sim.names)
