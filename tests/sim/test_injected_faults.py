"""Each fault that a run can inject: trouble for whom it hits and nobody else, then recovery."""

from itertools import pairwise

import pytest
from pydantic import ValidationError
from world.pod_world import model_of
from world.simulation import GRACE_S, Simulation, seeded
from world.strategic_merge import Object

from fleet.clock import NS_PER_S, Draws
from fleet.errors import UsageError
from fleet.faults.fault import FAULTS, FaultType
from fleet.k8s.effects import NodeId, Op
from fleet.k8s.times import parse_rfc3339

pytest_plugins = ("sim_encodings",)

HOUR_S = 3600
LIGHT = pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
UNKNOWN_WITHIN_S = GRACE_S + 10 + 10 + 5  # since the last renewal; a request out; the monitor


def started(nodes: int = 10, seed: int = 7, **more: object) -> Simulation:
    sim = Simulation(nodes=nodes, seed=seed, monitored=True, **more)  # type: ignore[arg-type]
    sim.run_for(seconds=60)
    assert sim.ready() == nodes
    return sim


def ready_of(sim: Simulation) -> dict[str, str]:
    return {name: sim.condition(name) for name in sim.names}


def expected(sim: Simulation, hit: list[str], status: str) -> dict[str, str]:
    return {name: status if name in hit else "True" for name in sim.names}


@LIGHT
def test_lost_heartbeats_make_nodes_unknown_until_they_are_healed(*, light: bool) -> None:
    sim = started(light=light)
    hit = sim.go_wrong(type="HeartbeatLoss", share=0.3, seconds=150)
    assert len(hit) == 3
    sim.run_for(seconds=30)
    assert ready_of(sim) == expected(sim, [], "")
    sim.run_for(seconds=UNKNOWN_WITHIN_S - 30)
    assert ready_of(sim) == expected(sim, hit, "Unknown")
    sim.run_for(seconds=150 - UNKNOWN_WITHIN_S)
    assert ready_of(sim) == expected(sim, hit, "Unknown")
    sim.run_for(seconds=45)  # a status that was under way times out; then the next tick
    assert sim.ready() == 10
    others = [name for name in sim.names if name not in hit]
    assert sim.longest_gap_s(Op.RENEW_LEASE, since_s=50, nodes=others) < 11
    assert not sim.reactor.calls.hindrances


def test_a_node_that_only_loses_its_lease_is_put_right_by_its_status() -> None:
    """The controller takes either for a sign of life; the kubelet patches what is Unknown."""
    sim = started()
    [hit] = sim.go_wrong(type="HeartbeatLoss", heartbeats=["Lease"], nodes=["n-4"], seconds=200)
    begun_s = sim.now_s
    sim.run_for(seconds=200)
    puts = sim.calls(hit, "PUT", "/leases/", since_s=begun_s)
    assert not puts
    statuses = sim.calls(hit, "PATCH", "/status", code=200, since_s=begun_s)
    assert 2 <= len(statuses) <= 4  # after each 50 s without
    sim.run_for(seconds=30)
    assert sim.ready() == 10
    assert sim.calls(hit, "PUT", "/leases/", since_s=begun_s + 200)


def test_late_heartbeats_widen_the_interval_and_no_more() -> None:
    sim = started()
    hit = sim.go_wrong(
        type="LateHeartbeats", by="20s", heartbeats=["Lease"], share=0.2, seconds=300
    )
    begun_s = sim.now_s
    sim.run_for(seconds=300)
    assert sim.ready() == 10
    assert 29 < sim.longest_gap_s(Op.RENEW_LEASE, begun_s, hit) < 35
    others = [name for name in sim.names if name not in hit]
    assert sim.longest_gap_s(Op.RENEW_LEASE, begun_s, others) < 11
    sim.run_for(seconds=30)
    assert sim.longest_gap_s(Op.RENEW_LEASE, sim.now_s - 20, hit) < 11


@pytest.mark.parametrize(("by", "ahead_s"), [("1h", HOUR_S), ("-1h", -HOUR_S)])
@LIGHT
def test_a_skewed_clock_shows_in_what_a_node_writes(by: str, ahead_s: int, *, light: bool) -> None:
    sim = started(nodes=4, light=light)
    for name in sim.names:
        sim.create_pod(f"before-{name}", name)
    sim.run_for(seconds=20)
    hit = sim.go_wrong(type="ClockSkew", by=by, nodes=["n-1"], seconds=120)
    for name in sim.names:
        sim.create_pod(f"during-{name}", name)
    sim.run_for(seconds=100)
    now_s = sim.clock.wall_ns() // NS_PER_S
    for name in sim.names:
        lease = sim.server.get("leases", name, "kube-node-lease")
        renewed_s = parse_rfc3339(lease["spec"]["renewTime"])
        off_s = ahead_s if name in hit else 0
        assert now_s + off_s - 15 < renewed_s <= now_s + off_s + 1
        assert sim.phase(f"during-{name}") == "Running"
    assert sim.ready() == 4  # the controller goes by its own clock
    sim.run_for(seconds=60)
    for name in sim.names:
        sim.create_pod(f"after-{name}", name)
        sim.server.delete_pod(f"before-{name}")
    sim.run_for(seconds=60)
    assert {sim.phase(f"after-{name}") for name in sim.names} == {"Running"}
    assert {sim.phase(f"before-{name}") for name in sim.names} == {""}
    assert {id(each) for each in sim.reactor.environments.in_use()} == {id(sim.env)}


def zone_lost(seconds: float, **fault: str) -> tuple[Simulation, list[str], float]:
    sim = started(nodes=9)
    for name in sim.names:
        sim.create_pod(f"old-{name}", name)
    sim.run_for(seconds=20)
    hit = sim.go_wrong(seconds, zone="zone-b", **fault)
    assert hit == ["n-1", "n-4", "n-7"]
    begun_s = sim.now_s
    for name in sim.names:
        sim.create_pod(f"new-{name}", name)
    sim.run_for(seconds=100)
    assert ready_of(sim) == expected(sim, hit, "Unknown")
    return sim, hit, begun_s


@pytest.mark.parametrize("mode", ["Reset", "BlackHole"])
def test_a_zone_that_is_cut_off_is_unknown_and_comes_back(mode: str) -> None:
    sim, hit, begun_s = zone_lost(type="Partition", mode=mode, seconds=180)
    for name in hit:
        assert not [each for each in sim.calls(name, since_s=begun_s) if each.code]
        assert sim.phase(f"new-{name}") == "Pending"
    for name in hit:
        sim.server.delete_pod(f"old-{name}")
    sim.run_for(seconds=80 + 90)
    assert sim.ready() == 9
    assert {sim.phase(f"new-{name}") for name in sim.names} == {"Running"}
    assert {sim.phase(f"old-{name}") for name in hit} == {""}
    others = [name for name in sim.names if name not in hit]
    assert sim.longest_gap_s(Op.RENEW_LEASE, 60, others) < 11


def test_nodes_whose_token_is_over_are_refused_until_they_have_another() -> None:
    """What is open goes on; whoever asks for something hears 401."""
    sim, hit, begun_s = zone_lost(type="TokenExpired", seconds=900)
    for name in hit:
        assert {each.code for each in sim.calls(name, since_s=begun_s)} == {401}
        assert not sim.calls(name, verb="WATCH", since_s=begun_s)
        assert sim.phase(f"new-{name}") == "Pending"
        sim.server.delete_pod(f"old-{name}")
    sim.run_for(seconds=700)
    for name in hit:  # a watch ends after 5 to 10 minutes, and is asked for again and again
        assert {each.code for each in sim.calls(name, verb="WATCH", since_s=begun_s)} == {401}
    sim.run_for(seconds=100 + 90)
    assert sim.ready() == 9
    assert {sim.phase(f"new-{name}") for name in sim.names} == {"Running"}
    assert {sim.phase(f"old-{name}") for name in hit} == {""}
    others = [name for name in sim.names if name not in hit]
    assert sim.longest_gap_s(Op.RENEW_LEASE, 60, others) < 11
    sim.transport.has_token = False
    with pytest.raises(UsageError, match="TokenExpired: the nodes of this run speak with certif"):
        sim.go_wrong(type="TokenExpired")


@pytest.mark.parametrize("shared", ["light", "watches"])
def test_nodes_that_share_connections_cannot_be_cut_off(shared: str) -> None:
    sim = started(light=shared == "light", own_watches=False)
    for kind in ("Partition", "TokenExpired"):
        with pytest.raises(UsageError, match=f"{kind}: the nodes of this run share connections"):
            sim.go_wrong(type=kind)
    with pytest.raises(UsageError, match="have no certificates of their own; it needs --identity"):
        sim.go_wrong(type="CertificateExpired")
    assert not sim.injector.active


@LIGHT
def test_kubelets_that_are_down_leave_their_containers_running(*, light: bool) -> None:
    sim = started(light=light)
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
    sim.run_for(seconds=20)
    before = {name: sim.status(f"pod-{name}")["containerStatuses"] for name in sim.names}
    hit = sim.go_wrong(type="KubeletDown", share=0.2, seconds=120)
    begun_s = sim.now_s
    sim.run_for(seconds=1)
    for name in hit:
        sim.create_pod(f"late-{name}", name)
    sim.run_for(seconds=99)
    assert ready_of(sim) == expected(sim, hit, "Unknown")
    assert not [each for name in hit for each in sim.calls(name, since_s=begun_s + 1)]
    sim.run_for(seconds=20 + 60)
    assert sim.ready() == 10
    for name in sim.names:
        pod = sim.server.get("pods", f"pod-{name}", "default")
        assert pod["status"]["containerStatuses"] == before[name]
    assert {sim.phase(f"late-{name}") for name in hit} == {"Running"}


def test_a_restart_of_a_share_is_a_storm_of_lists_and_nothing_else() -> None:
    sim = started(nodes=20)
    begun_s = sim.now_s
    hit = sim.go_wrong(type="KubeletRestart", share=0.5)
    assert len(hit) == 10
    assert not sim.injector.active
    sim.run_for(seconds=60)
    watched = {each.node for each in sim.calls(verb="WATCH", since_s=begun_s)}
    assert watched == set(hit)
    assert sim.ready() == 20
    assert sim.reactor.counts.restarts == 10


@LIGHT
@pytest.mark.parametrize(
    ("kind", "within_s", "message"),
    [
        ("RuntimeDown", 50, "container runtime is down"),
        ("PLEGStall", 200, "PLEG is not healthy: pleg was last seen active"),
        ("NetworkNotReady", 20, "cni plugin not initialized"),
        ("RuntimeNotReady", 50, "container runtime not ready: RuntimeReady=false"),
    ],
)
def test_a_runtime_out_of_order_makes_its_node_not_ready(
    kind: str, within_s: int, message: str, *, light: bool
) -> None:
    sim = started(nodes=4, light=light)
    hit = sim.go_wrong(type=kind, nodes=["n-2"])
    sim.run_for(seconds=1)
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
    sim.run_for(seconds=within_s)
    assert ready_of(sim) == expected(sim, hit, "False")
    conditions = sim.server.get("nodes", "n-2")["status"]["conditions"]
    told = next(each["message"] for each in conditions if each["type"] == "Ready")
    assert message in told
    assert sim.phase("pod-n-0") == "Running"
    assert sim.phase("pod-n-2") == "Pending"
    sim.injector.heal(1)
    sim.run_for(seconds=60)
    assert sim.ready() == 4
    assert sim.phase("pod-n-2") == "Running"


@LIGHT
def test_no_image_comes_from_a_registry_that_is_out(*, light: bool) -> None:
    sim = started(nodes=2, light=light)
    sim.go_wrong(type="RegistryOutage", nodes=["n-1"], seconds=100)
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
    sim.run_for(seconds=30)
    assert sim.phase("pod-n-0") == "Running"
    status = sim.status("pod-n-1")
    waiting = status["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] in {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"}
    sim.run_for(seconds=70 + 170)  # back-off doubles up to 160 s in that time
    assert sim.phase("pod-n-1") == "Running"


@LIGHT
@pytest.mark.parametrize("kind", ["MemoryPressure", "DiskPressure"])
def test_a_resource_that_something_uses_up_puts_its_node_under_pressure(
    kind: str, *, light: bool
) -> None:
    sim = started(nodes=4, light=light)
    hit = sim.go_wrong(type=kind, nodes=["n-3"], seconds=60)
    sim.run_for(seconds=40)
    found = {name: sim.condition(name, kind) for name in sim.names}
    assert found == {name: "True" if name in hit else "False" for name in sim.names}
    assert sim.ready() == 4
    sim.run_for(seconds=20 + 330)  # evictionPressureTransitionPeriod is 5 minutes
    assert {sim.condition(name, kind) for name in sim.names} == {"False"}
    kubelet = sim.kubelet(3)
    assert kubelet.pods is None  # as before


def test_processes_run_out_where_the_profile_has_a_threshold() -> None:
    sim = started(nodes=2)
    with pytest.raises(UsageError, match=r"profile default has no threshold pid\.available"):
        sim.go_wrong(type="PIDPressure")
    hard = {"memory.available": "100Mi", "pid.available": "10%"}
    sim = started(nodes=2, model=model_of(kubeletConfiguration={"evictionHard": hard}))
    sim.go_wrong(type="PIDPressure", nodes=["n-1"], seconds=60)
    sim.run_for(seconds=40)
    assert [sim.condition(name, "PIDPressure") for name in sim.names] == ["False", "True"]
    sim.run_for(seconds=350)
    assert [sim.condition(name, "PIDPressure") for name in sim.names] == ["False", "False"]


def test_overlapping_faults_heal_one_by_one() -> None:
    sim = started(nodes=3)
    sim.go_wrong(type="Partition", mode="Reset", nodes=["n-0", "n-1"], seconds=100)
    sim.go_wrong(type="Partition", mode="BlackHole", nodes=["n-1", "n-2"], seconds=250)
    sim.go_wrong(type="ClockSkew", by="10m", nodes=["n-1"], seconds=300)
    sim.go_wrong(type="RuntimeDown", nodes=["n-1"], seconds=400)
    sim.run_for(seconds=90)
    assert ready_of(sim) == dict.fromkeys(sim.names, "Unknown")
    sim.run_for(seconds=100)
    assert ready_of(sim) == expected(sim, ["n-1", "n-2"], "Unknown")
    sim.run_for(seconds=150)
    assert ready_of(sim) == expected(sim, ["n-1"], "False")
    sim.run_for(seconds=120)
    assert sim.ready() == 3
    assert not sim.injector.active


@LIGHT
def test_a_machine_without_power_boots_as_another_one(*, light: bool) -> None:
    sim = started(light=light)
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
    sim.create_pod("once", "n-4", restartPolicy="Never")
    sim.run_for(seconds=20)
    before = {name: boot_id(sim, name) for name in sim.names}
    hit = sim.go_wrong(type="NodeDown", nodes=["n-4"], seconds=120)
    begun_s = sim.now_s
    sim.run_for(seconds=100)
    assert ready_of(sim) == expected(sim, hit, "Unknown")
    assert not sim.calls("n-4", since_s=begun_s + 1)
    sim.run_for(seconds=20 + 90)
    assert sim.ready() == 10
    assert [name for name in sim.names if boot_id(sim, name) != before[name]] == hit
    assert sim.phase("once") == "Failed"
    for name in sim.names:
        pod = sim.server.get("pods", f"pod-{name}", "default")
        [status] = pod["status"]["containerStatuses"]
        assert status["restartCount"] == (1 if name in hit else 0), name
        assert "running" in status["state"]
        if name in hit:
            last = status["lastState"]["terminated"]
            assert (last["exitCode"], last["reason"]) == (255, "Unknown")
    if not light:
        [told] = sim.events("Rebooted")
        booted = boot_id(sim, "n-4")
        assert told["message"] == f"Node n-4 has been rebooted, boot id: {booted}"
        changed = sim.events("SandboxChanged")
        assert [each["involvedObject"]["name"] for each in changed] == ["pod-n-4"]
    sim.go_wrong(type="NodeDown", nodes=["n-4"], seconds=30)
    first = boot_id(sim, "n-4")
    sim.run_for(seconds=100)
    assert boot_id(sim, "n-4") not in {first, before["n-4"]}
    assert sim.ready() == 10


def boot_id(sim: Simulation, name: str) -> str:
    return str(sim.server.get("nodes", name)["status"]["nodeInfo"]["bootID"])


@LIGHT
def test_a_sandbox_that_dies_takes_its_containers_along(*, light: bool) -> None:
    sim = started(nodes=2, light=light)
    init: Object = {"name": "first", "image": "nginx:1", "command": ["true"]}
    script = "trap 'exit 0' TERM; sleep 9d & wait"
    job = {"name": "c", "image": "busybox", "command": ["sh", "-c", script]}
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name, initContainers=[init])
        sim.create_pod(f"never-{name}", name, restartPolicy="Never")
        sim.create_pod(f"job-{name}", name, restartPolicy="OnFailure", containers=[job])
    sim.run_for(seconds=30)
    assert {sim.phase(f"pod-{name}") for name in sim.names} == {"Running"}
    hit = sim.go_wrong(type="SandboxDeath", nodes=["n-1"])
    assert not sim.injector.active
    sim.run_for(seconds=60)
    for name in sim.names:
        status = sim.status(f"pod-{name}")
        anew = int(name in hit)
        assert status["containerStatuses"][0]["restartCount"] == anew
        assert status["initContainerStatuses"][0]["restartCount"] == anew
        assert "running" in status["containerStatuses"][0]["state"]
        assert sim.phase(f"never-{name}") == ("Failed" if anew else "Running")
        assert sim.phase(f"job-{name}") == "Running"  # when it ended with 0, it was already due
    assert sim.ready() == 2
    if not light:
        told, _ = sim.events("SandboxChanged")
        assert told["message"] == "Pod sandbox changed, it will be killed and re-created."
        for _ in range(2):
            sim.go_wrong(type="SandboxDeath", nodes=["n-1"])
            sim.run_for(seconds=8)
        assert any("failed container first" in each for each in sim.said("BackOff"))


@LIGHT
def test_no_sandbox_is_made_while_the_network_plugin_fails(*, light: bool) -> None:
    sim = started(nodes=2, light=light)
    sim.create_pod("old", "n-1")
    sim.run_for(seconds=20)
    sim.go_wrong(type="SandboxFailure", message="no route", nodes=["n-1"], seconds=100)
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
        sim.create_pod(f"host-{name}", name, hostNetwork=True)
    sim.run_for(seconds=60)
    phases = {name: sim.phase(f"pod-{name}") for name in sim.names}
    assert phases == {"n-0": "Running", "n-1": "Pending"}
    assert {sim.phase(f"host-{name}") for name in sim.names} == {"Running"}
    assert sim.phase("old") == "Running"
    assert sim.ready() == 2
    if not light:
        told = sim.events("FailedCreatePodSandBox")
        assert {each["involvedObject"]["name"] for each in told} == {"pod-n-1"}
        assert all(each["message"].endswith(": no route") for each in told)
        assert "failed to setup network for sandbox" in told[0]["message"]
    sim.run_for(seconds=120)
    assert sim.phase("pod-n-1") == "Running"
    failed = [
        sim.kubelet_metrics(at).split(b"\nkubelet_started_pods_errors_total ")[1] for at in (0, 1)
    ]
    assert failed[0].startswith(b"0\n")
    assert not failed[1].startswith(b"0\n")


@LIGHT
def test_containers_that_crash_again_and_again_back_off(*, light: bool) -> None:
    sim = started(nodes=2, light=light)
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
    sim.run_for(seconds=20)
    sim.go_wrong(type="ContainerCrash", every="20s", nodes=["n-1"], seconds=110)
    sim.run_for(seconds=100)
    status = sim.status("pod-n-1")["containerStatuses"][0]
    assert 2 <= status["restartCount"] <= 5
    assert status["lastState"]["terminated"]["exitCode"] == 137
    sim.run_for(seconds=400)
    status = sim.status("pod-n-1")["containerStatuses"][0]
    assert "running" in status["state"]
    calm = sim.status("pod-n-0")["containerStatuses"][0]
    assert calm["restartCount"] == 0
    if not light:
        assert sim.events("BackOff")


def test_a_fault_that_comes_and_goes_flaps() -> None:
    sim = started(nodes=3)
    sim.go_wrong(type="NetworkNotReady", every="60s", nodes=["n-1"], seconds=290)
    seen = []
    for _ in range(29):
        sim.run_for(seconds=10)
        seen.append(sim.condition("n-1"))
    flips = [after for before, after in pairwise(seen) if before != after]
    assert 7 <= len(flips) <= 9, seen
    sim.run_for(seconds=60)
    assert sim.ready() == 3
    assert not sim.injector.active


@LIGHT
def test_a_node_out_of_memory_kills_and_comes_to_rest(*, light: bool) -> None:
    sim = started(nodes=2, light=light)
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name, annotations={"fleet.emulator/memory-usage": "100Mi"})
    sim.run_for(seconds=20)
    sim.go_wrong(type="OutOfMemory", nodes=["n-1"], seconds=30)
    sim.run_for(seconds=25)
    assert sim.condition("n-1", "MemoryPressure") == "True"
    if not light:
        assert sim.events("SystemOOM")
    sim.run_for(seconds=600)
    assert sim.condition("n-1", "MemoryPressure") == "False"
    assert sim.phase("pod-n-0") == "Running"
    sim.create_pod("after", "n-1")
    sim.run_for(seconds=30)
    assert sim.phase("after") == "Running"


GPU = "nvidia.com/gpu"
ONE_GPU = {"resources": {"requests": {GPU: "1"}, "limits": {GPU: "1"}}}


def gpus(sim: Simulation, node: str) -> tuple[str, str]:
    status = sim.server.get("nodes", node)["status"]
    return status["capacity"][GPU], status["allocatable"][GPU]


def gpu_health(sim: Simulation, pod: str) -> list[str]:
    [status] = sim.status(pod)["containerStatuses"]
    [told] = status["allocatedResourcesStatus"]
    assert told["name"] == GPU
    return [each["health"] for each in told["resources"]]


@LIGHT
def test_devices_that_fail_are_told_and_not_given_out(*, light: bool) -> None:
    model = model_of(
        devices=[{"resource": GPU, "count": 4, "registrationDelay": "1s"}],
        template={"status": {"capacity": {GPU: "4"}}},
    )
    sim = started(nodes=2, light=light, model=model)
    with pytest.raises(UsageError, match=r"no device plugin for example\.com/nic; it has: nvidia"):
        sim.go_wrong(type="DeviceFailure", resource="example.com/nic")
    container: Object = {"name": "c", "image": "nginx:1", "imagePullPolicy": "IfNotPresent"}
    container |= ONE_GPU
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name, containers=[container])
    sim.run_for(seconds=30)
    assert [gpus(sim, name) for name in sim.names] == [("4", "4")] * 2
    sim.go_wrong(type="DeviceFailure", nodes=["n-1"], resource=GPU, count=3, seconds=200)
    sim.run_for(seconds=20)
    assert [gpus(sim, name) for name in sim.names] == [("4", "4"), ("4", "1")]
    assert [gpu_health(sim, f"pod-{name}") for name in sim.names] == [["Healthy"], ["Unhealthy"]]
    sim.create_pod("last", "n-1", containers=[container])
    sim.run_for(seconds=20)
    sim.create_pod("none", "n-1", containers=[container])
    sim.run_for(seconds=20)
    assert [sim.phase(each) for each in ("pod-n-1", "last", "none")] == [
        *("Running", "Running", "Failed")
    ]
    assert sim.status("none")["reason"] == "UnexpectedAdmissionError"
    assert sim.ready() == 2
    sim.run_for(seconds=200)
    assert [gpus(sim, name) for name in sim.names] == [("4", "4")] * 2
    assert gpu_health(sim, "pod-n-1") == ["Healthy"]
    sim.create_pod("after", "n-1", containers=[container])
    sim.run_for(seconds=20)
    assert sim.phase("after") == "Running"


def said(sim: Simulation, node: str, kind: str) -> tuple[str, str, str]:
    conditions = sim.server.get("nodes", node)["status"]["conditions"]
    found = [each for each in conditions if each["type"] == kind]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else ("", "", "")


@LIGHT
def test_a_condition_that_a_daemon_says_stays_until_it_is_healed(*, light: bool) -> None:
    sim = started(nodes=3, light=light)
    deadlock: dict[str, object] = {"type": "NodeCondition", "condition": "KernelDeadlock"}
    deadlock |= {"reason": "TaskHung", "message": "task docker:7 blocked"}
    sim.go_wrong(**deadlock, nodes=["n-1"], seconds=700)
    sim.go_wrong(type="NetworkUnavailable", nodes=["n-1", "n-2"], seconds=60)
    begun_s = sim.now_s
    sim.run_for(seconds=5)
    bad = ("True", "TaskHung", "task docker:7 blocked")
    found = [said(sim, name, "KernelDeadlock") for name in sim.names]
    assert found == [("", "", ""), bad, ("", "", "")]
    assert [said(sim, name, "NetworkUnavailable")[:2] for name in sim.names] == [
        ("", ""),
        ("True", "NoRouteCreated"),
        ("True", "NoRouteCreated"),
    ]
    sim.go_wrong(type="KubeletRestart", nodes=["n-1"])
    sim.run_for(seconds=95)
    assert said(sim, "n-1", "KernelDeadlock") == bad
    for name in ("n-1", "n-2"):
        assert said(sim, name, "NetworkUnavailable")[:2] == ("False", "RouteCreated")
    sim.run_for(seconds=590)
    conditions = sim.server.get("nodes", "n-1")["status"]["conditions"]
    [told] = [each for each in conditions if each["type"] == "KernelDeadlock"]
    since_s = sim.clock.wall_ns() // NS_PER_S - int(sim.now_s - begun_s)
    assert abs(parse_rfc3339(told["lastTransitionTime"]) - since_s) <= 1
    assert parse_rfc3339(told["lastHeartbeatTime"]) - since_s >= 600  # each five minutes
    sim.run_for(seconds=30)
    assert said(sim, "n-1", "KernelDeadlock")[:2] == ("False", "NoKernelDeadlock")
    assert sim.ready() == 3
    begun_s = sim.now_s
    sim.run_for(seconds=290)
    patches = sim.calls(verb="PATCH", path="/status", since_s=begun_s)
    assert len(patches) <= 6  # nobody says it any more; the kubelets report each five minutes


def test_what_a_node_could_not_say_it_says_when_it_is_back() -> None:
    sim = started(nodes=2)
    sim.go_wrong(type="NodeCondition", condition="DiskBroken", nodes=["n-1"])
    sim.run_for(seconds=5)
    sim.go_wrong(type="Partition", mode="Reset", nodes=["n-1"], seconds=60)
    sim.injector.heal(1)
    sim.run_for(seconds=59)
    assert said(sim, "n-1", "DiskBroken")[0] == "True"
    sim.run_for(seconds=60)
    assert said(sim, "n-1", "DiskBroken")[0] == "False"
    sim.go_wrong(type="NodeCondition", condition="ok", status="False", nodes=["n-1"])
    sim.go_wrong(type="NodeCondition", condition="ok", status="Unknown", nodes=["n-1"], seconds=20)
    sim.run_for(seconds=10)
    assert said(sim, "n-1", "ok")[0] == "Unknown"
    sim.run_for(seconds=20)
    assert said(sim, "n-1", "ok")[0] == "False"  # the other one is still on
    sim.injector.heal(3)
    sim.run_for(seconds=5)
    assert said(sim, "n-1", "ok")[0] == "True"


def test_only_a_machine_with_storage_can_fail_to_attach() -> None:
    sim = started(nodes=1)
    with pytest.raises(UsageError, match="AttachFailure: profile default has no csiDrivers"):
        sim.go_wrong(type="AttachFailure")
    model = model_of(csiDrivers=[{"name": "csi.example.com"}])
    sim = started(nodes=2, model=model)
    sim.go_wrong(type="AttachFailure", nodes=["n-1"], message="no slot", seconds=30)

    def problems() -> list[str]:
        found = (sim.reactor.environments.of(NodeId(node)) for node in range(2))
        return [each.model.broken.attachments for each in found if each is not None]

    assert problems() == ["", "no slot"]
    sim.run_for(seconds=40)
    assert problems() == ["", ""]


@LIGHT
def test_a_slow_link_makes_everything_late_and_breaks_nothing(*, light: bool) -> None:
    sim = started(nodes=4, light=light)
    sim.go_wrong(type="SlowLink", by="3s", nodes=["n-2"], seconds=200)
    begun_s = sim.now_s
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
    sim.run_for(seconds=190)
    assert sim.ready() == 4
    assert {sim.phase(f"pod-{name}") for name in sim.names} == {"Running"}
    assert 12 < sim.longest_gap_s(Op.RENEW_LEASE, begun_s, ["n-2"]) < 20
    others = [name for name in sim.names if name != "n-2"]
    assert sim.longest_gap_s(Op.RENEW_LEASE, begun_s, others) < 11
    sim.run_for(seconds=40)
    assert sim.longest_gap_s(Op.RENEW_LEASE, sim.now_s - 25) < 11


@pytest.mark.parametrize("mode", ["Inbound", "Outbound"])
def test_a_partition_of_one_direction_is_one_all_the_same(mode: str) -> None:
    sim = started(nodes=3)
    hit = sim.go_wrong(type="Partition", mode=mode, nodes=["n-1"], seconds=200)
    before = renewed(sim, "n-1")
    sim.run_for(seconds=25)
    assert (renewed(sim, "n-1") > before) is (mode == "Inbound")  # without that it hears so
    sim.run_for(seconds=125)
    assert ready_of(sim) == expected(sim, hit, "Unknown")
    sim.create_pod("late", "n-1")
    sim.run_for(seconds=50 + 90)
    assert sim.ready() == 3
    assert sim.phase("late") == "Running"


def renewed(sim: Simulation, name: str) -> str:
    return str(sim.server.get("leases", name, "kube-node-lease")["spec"]["renewTime"])


@seeded(4)
def test_a_fleet_recovers_from_whatever_was_injected(seed: int) -> None:
    """Faults of all types on shares of the nodes while pods come and go; then all is well."""
    draws = Draws(seed)
    hard = {"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "5%"}
    devices = [{"resource": GPU, "count": 2}]
    drivers = [{"name": "csi.example.com"}]
    model = model_of(
        kubeletConfiguration={"evictionHard": hard}, devices=devices, csiDrivers=drivers
    )
    sim = Simulation(nodes=8, seed=seed, model=model).run_for(seconds=40)
    needs: dict[FaultType, dict[str, object]] = {
        FaultType.CLOCK_SKEW: {"by": "-90s"},
        FaultType.LATE_HEARTBEATS: {"by": "12s"},
        FaultType.SLOW_LINK: {"by": "2s"},
        FaultType.NODE_CONDITION: {"condition": "KernelDeadlock"},
    }
    kinds = tuple(
        kind
        for kind in FaultType
        if not FAULTS[kind].of_control_plane and kind is not FaultType.CERTIFICATE_EXPIRED
    )
    gone: list[str] = []
    for step in range(40):
        kind = kinds[draws.bits(8, 1, step) % len(kinds)]
        seconds = 0 if FAULTS[kind].is_instant else 5 + draws.uniform(8, 2, step) * 150
        share = 0.1 + draws.uniform(8, 3, step) * 0.9
        sim.go_wrong(type=kind.value, share=share, seconds=seconds, **needs.get(kind, {}))
        sim.create_pod(f"pod-{step}", sim.names[step % 8])
        if step % 4 == 3:  # some of them while they cannot be killed or unmounted
            gone.append(f"pod-{step - 3}")
            sim.server.delete_pod(gone[-1])
        sim.run_for(seconds=draws.uniform(8, 4, step) * 20)
    sim.run_for(seconds=160)
    assert not sim.injector.active
    sim.run_for(seconds=700)  # pressure lasts 5 minutes, back-offs as long
    assert sim.ready() == 8
    for condition in ("KernelDeadlock", "NetworkUnavailable"):
        assert {sim.condition(name, condition) for name in sim.names} <= {"False", ""}
    for pressure in ("MemoryPressure", "DiskPressure", "PIDPressure"):
        assert {sim.condition(name, pressure) for name in sim.names} == {"False"}
    for name in sim.names:
        sim.create_pod(f"last-{name}", name)
    sim.run_for(seconds=60)
    assert {sim.phase(f"last-{name}") for name in sim.names} == {"Running"}
    assert [sim.phase(name) for name in gone] == [""] * len(gone)
    phases = {each["status"]["phase"] for each in sim.server.all("pods")}
    assert phases <= {"Running", "Succeeded", "Failed"}  # evicted pods that end well succeed


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"type": "Earthquake"}, "Input should be"),
        ({"type": "ClockSkew"}, "ClockSkew needs by"),
        ({"type": "SlowLink"}, "SlowLink needs by"),
        ({"type": "SlowLink", "by": "-1s"}, "SlowLink: by must be above 0s"),
        ({"type": "NodeDown", "every": "0s"}, "every must be 1s or more"),
        ({"type": "ClockSkew", "by": "0s"}, "by must not be 0s"),
        ({"type": "LateHeartbeats", "by": "-5s"}, "by must be above 0s"),
        ({"type": "Partition", "by": "5s"}, "Partition takes no by; it takes mode"),
        ({"type": "KubeletDown", "mode": "Reset"}, "KubeletDown takes no mode; it takes nothing"),
        ({"type": "Partition", "share": 0}, "greater than 0"),
        ({"type": "NodeCondition"}, "needs condition, for example condition: KernelDeadlock"),
        ({"type": "NodeCondition", "condition": "Ready"}, "Ready is the kubelet's own"),
        ({"type": "NodeCondition", "condition": "a b"}, "should match pattern"),
    ],
)
def test_what_a_fault_is_not_is_told(spec: dict[str, object], told: str) -> None:
    sim = Simulation()
    with pytest.raises(ValidationError, match=told):
        sim.go_wrong(**spec)  # type: ignore[arg-type]
