"""The pod path as a whole: what one kubelet asks of the server, in order."""

import copy
import gc
import itertools

import pytest
from world.admission_world import container as decoded_container
from world.admission_world import make_pod as decoded
from world.node_world import view
from world.pod_world import LATENCY_NS, TOKEN_VOLUME, UID, World, container, make_pod, replaced

from fleet.clock import NS_PER_S
from fleet.k8s.admission import NodeState
from fleet.k8s.effects import Milestone, Op, Reply, ReplyKind, TokenRequest, WatchEvent, WatchKind
from fleet.k8s.pods import EventType, Pod, PodUid, TerminatedState
from fleet.k8s.selectors import Toleration

START = [
    "WATCH kube-root-ca.crt",
    "GET_POD",
    "PATCH_POD_STATUS Pending",
    "CREATE_TOKEN",
    "CREATE_EVENT Pulling",
    "GET_POD",
    "PATCH_POD_STATUS Pending",
    "CREATE_EVENT Pulled",
    "CREATE_EVENT Created",
    "CREATE_EVENT Started",
    "GET_POD",
    "PATCH_POD_STATUS Running",
]


def running(*containers: object, light: bool = False, **fields: object) -> World:
    world = World(light=light)
    world.create(make_pod(*containers, **fields))  # type: ignore[arg-type]
    world.run(2)
    world.take_log()
    return world


def test_a_pod_start_is_what_a_kubelet_sends() -> None:
    world = World()
    world.create(make_pod())
    world.run(3)
    assert world.log == START
    token = next(call.payload for call in world.calls if call.op is Op.CREATE_TOKEN)
    volume = "kube-api-access-9zkmg"
    assert token == TokenRequest("default", "default", "", 3607, "web", UID, volume)


def test_the_token_is_renewed_at_four_fifths_of_its_life() -> None:
    world = running()
    world.run(3607 * 0.79)
    assert world.take_log() == []
    world.run(3607 * 0.05)
    assert world.take_log() == ["CREATE_TOKEN"]


def test_a_pod_deleted_while_its_volumes_are_awaited_ends_as_failed() -> None:
    world = World()
    world.objects.clear()
    world.create(make_pod())
    world.run(1)
    world.delete()
    world.run(5)
    assert world.loop.is_idle()
    assert "CREATE_EVENT Killing" not in world.log
    last = world.statuses[-1]
    assert last.phase == "Failed"
    assert isinstance(last.containers[0].state, TerminatedState)
    assert last.containers[0].state.reason == "ContainerStatusUnknown"


def test_light_ends_where_kubelet_ends() -> None:
    finals = []
    for light in (False, True):
        world = running(light=light)
        finals.append(world.pods[UID].status)
    assert finals[0] == finals[1]


def test_light_reports_a_pod_that_starts_slowly_as_pending() -> None:
    world = World(light=True)
    slow = (("fleet.emulator/start-delay", "5s"),)
    world.create(make_pod(annotations=slow))
    world.run(0.9)
    assert world.log == []
    world.run(1)
    assert world.log == ["PATCH_POD_STATUS Pending"]
    assert world.pods[UID].status.start_time_s == world.env.wall_s(0)
    world.run(5)
    assert world.log == ["PATCH_POD_STATUS Pending", "PATCH_POD_STATUS Running"]


def test_light_needs_nothing_for_a_forced_deletion() -> None:
    world = running(light=True)
    world.delete(grace_s=0)
    world.run(1)
    assert world.take_log() == []
    assert world.loop.is_idle()


def test_a_finished_job_that_is_deleted_late_gets_its_delete_at_the_full_pass() -> None:
    world = World()
    world.create(make_pod(container("c", "true"), restart_policy="Never"))
    world.run(8)
    world.take_log()
    world.delete()  # a finalizer keeps the object
    world.run(11)
    assert world.take_log() == ["GET_POD", "DELETE_POD"]
    assert world.loop.is_idle()


def test_a_failing_container_backs_off_as_upstream() -> None:
    """Restarts at once, then 10, 20, 40 s after the exit, times 1 to 1.5, at a tick of 1 s."""
    world = World()
    world.create(make_pod(container("c", "false")))
    starts: list[float] = []
    for _ in range(1500):
        world.run(0.1)
        if not world.pods[UID].status.containers:
            continue
        shown = world.container()
        if shown.restart_count == len(starts):
            starts.append(world.now_ns / NS_PER_S)
    gaps = [later - sooner for sooner, later in itertools.pairwise(starts)]
    assert gaps[0] < 2
    for gap, delay in zip(gaps[1:], (10, 20, 40), strict=False):
        assert delay <= gap <= delay * 1.5 + 3, gaps
    assert len(gaps) >= 4
    assert world.counts(Milestone.POD_FAILED) == 0


def test_a_sidecar_does_not_keep_a_job_from_ending() -> None:
    world = World()
    world.create(
        make_pod(
            container("c", "sleep", "1"),
            init_containers=(container("side", restart_policy="Always"),),
            restart_policy="Never",
        )
    )
    world.run(8)
    assert world.pods[UID].status.phase == "Succeeded"
    assert "CREATE_EVENT Killing" in world.log


def test_a_pod_that_does_not_tolerate_the_emulator_never_becomes_ready() -> None:
    everything = (Toleration("", "Exists", "", ""),)
    world = World(tolerate_key="fleet.emulator/fake")
    world.create(make_pod(tolerations=everything))
    world.run(3)
    assert world.pods[UID].status.phase == "Running"
    assert not world.container().ready
    ready = world.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "EmulatedNodeNotTolerated")
    assert "fleet.emulator/fake" in ready.message
    assert world.condition("ContainersReady").status == "False"
    by_name = (Toleration("fleet.emulator/fake", "Exists", "", ""),)
    world.create(make_pod(uid="two", name="two", tolerations=by_name))
    world.run(3)
    assert world.condition("Ready", "two").status == "True"


def test_a_restarted_fleet_takes_running_pods_over() -> None:
    before = running(container("c", "sleep", "600"))
    pod = before.pods[UID]
    after = World()
    after.env.wall_offset_ns += 100 * NS_PER_S
    after.create(copy.copy(pod))
    after.run(5)
    assert "PATCH_POD_STATUS Running" not in after.log
    assert [each for each in after.log if "EVENT" in each] == []
    assert after.pods[UID].status == pod.status
    after.run(510)
    assert after.container().restart_count == 1
    last = after.container().last_state
    assert last is not None
    assert last.container_id == pod.status.containers[0].container_id
    assert last.finished_s - last.started_s == 600


def test_light_takes_running_pods_over_without_a_word() -> None:
    pod = running(light=True).pods[UID]
    after = World(light=True)
    after.env.wall_offset_ns += 100 * NS_PER_S
    after.create(copy.copy(pod))
    after.run(60)
    assert after.log == []
    after.create(make_pod(uid="two", name="two"))
    after.run(2)
    assert after.pods["two"].status.pod_ip not in ("", pod.status.pod_ip)


def test_a_pod_that_had_ended_before_the_restart_is_only_deleted() -> None:
    world = World()
    world.create(make_pod(container("c", "true"), restart_policy="Never"))
    world.run(8)
    ended = replaced(
        world.pods[UID], deletion_s=world.env.wall_s(world.now_ns), deletion_grace_s=30
    )
    after = World()
    after.create(ended)
    after.run(3)
    assert after.log[-1] == "DELETE_POD"
    assert after.loop.is_idle()


def test_a_relist_removes_what_it_does_not_mention() -> None:
    world = running()
    world.create(make_pod(uid="two", name="two"))
    world.run(2)
    world.take_log()
    del world.pods[UID]
    world.loop.on_relist_started(world.env)
    world.deliver(WatchEvent(WatchKind.PODS, EventType.ADDED, copy.copy(world.pods["two"])))
    world.deliver(WatchEvent(WatchKind.PODS, EventType.SYNCED))
    world.run(3)
    assert world.take_log() == ["CREATE_EVENT Killing", "GET_POD", "GET_POD"]
    assert [pod.uid for pod in world.loop] == ["two"]
    assert world.loop.phases() == {"Running": 1}


@pytest.mark.parametrize(
    ("disk", "told"),
    [
        ("ssd", [("Running", ""), ("Failed", "NodePorts")]),
        ("hdd", [("Failed", "NodeAffinity"), ("Running", "")]),
    ],
)
def test_pods_wait_for_one_whose_node_is_read_anew(disk: str, told: list[tuple[str, str]]) -> None:
    """A kubelet's sync loop waits for the answer; both pods want the same port of the host."""
    world = World()
    state = NodeState(labels=(("disk", disk),))
    world.refuse[Op.GET_NODE_ADMISSION] = Reply(ReplyKind.OK, view(state=state), 200)
    ports = [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    for name, selector in (("first", {"disk": "ssd"}), ("second", {})):
        world.create(decoded(name, decoded_container(ports=ports), nodeSelector=selector))
    world.run(5)
    found = [world.pods[f"uid-{name}"].status for name in ("first", "second")]
    assert [(each.phase, each.reason) for each in found] == told


@pytest.mark.parametrize("delay_s", [0, LATENCY_NS / NS_PER_S / 2])
def test_a_pod_that_is_deleted_while_its_node_is_read_goes(delay_s: float) -> None:
    world = World()
    world.refuse[Op.GET_NODE_ADMISSION] = Reply(ReplyKind.OK, view(), 200)
    world.create(decoded("web", nodeSelector={"disk": "ssd"}))
    world.run(delay_s)
    world.delete("uid-web")
    world.run(30)
    assert world.pods == {}
    assert not world.loop.admission.is_holding


def test_a_burst_of_statuses_is_sent_as_one() -> None:
    world = World()
    there = container(image="registry.k8s.io/pause:3.10.1")
    many = [make_pod(there, uid=f"u{i}", name=f"p{i}") for i in range(20)]
    for pod in many:
        world.create(pod)
    world.run(10)
    # 20 pods, one request in flight: the statuses in between are skipped.
    assert world.log.count("GET_POD") < 3 * len(many)
    assert {pod.status.phase for pod in world.pods.values()} == {"Running"}


def test_milestones_tell_when_the_server_knew() -> None:
    world = World()
    world.create(make_pod())
    world.run(3)
    assert world.counts(Milestone.POD_ADDED) == 1
    started = [each for each in world.reports if each.milestone is Milestone.POD_RUNNING]
    assert len(started) == 1
    assert 300_000_000 < started[0].value_ns < 900_000_000


def test_no_cycle_is_left_for_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        world = World()
        for index in range(50):
            world.create(make_pod(uid=f"u{index}", name=f"p{index}"))
        world.run(10)
        for index in range(50):
            world.delete(f"u{index}")
        world.run(20)
        assert world.loop.is_idle()
        world._inbox.clear()
        assert gc.collect() < 20
    finally:
        gc.enable()


def test_a_stale_timer_and_a_late_reply_are_ignored() -> None:
    world = running()
    world.delete(grace_s=0)
    world.run(5)
    seen: Pod | None = world.pods.get(PodUid(UID))
    assert seen is None
    world.run(7200)  # the token's refresh was armed
    assert world.loop.is_idle()
    assert TOKEN_VOLUME.name not in world.log


@pytest.mark.parametrize(
    ("script", "phase", "reason"),
    [("sleep 3", "Succeeded", "Completed"), ("sleep 3; exit 4", "Failed", "Error")],
)
def test_a_job_ends_once_and_its_phase_is_held_back(script: str, phase: str, reason: str) -> None:
    world = World()
    world.create(make_pod(container("c", "sh", "-c", script), restart_policy="Never"))
    world.run(8)
    phases = [each.phase for each in world.statuses]
    assert phases == ["Pending", "Pending", "Running", "Running", phase]
    held = world.statuses[3].containers[0].state
    assert isinstance(held, TerminatedState)
    assert (held.reason, held.finished_s - held.started_s) == (reason, 3)
    assert "CREATE_EVENT Killing" not in world.log
    assert world.counts(Milestone.POD_FAILED) == (phase == "Failed")


@pytest.mark.parametrize("command", ["true", "false"])
def test_light_reports_the_end_of_a_job_once(command: str) -> None:
    world = World(light=True)
    world.create(make_pod(container("c", command), restart_policy="Never"))
    world.run(5)
    phase = "Succeeded" if command == "true" else "Failed"
    assert [each.phase for each in world.statuses][-1] == phase
    assert len(world.statuses) <= 2
