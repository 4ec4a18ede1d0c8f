"""The pod path as a whole: what one kubelet asks of the server, in order."""

import copy

import pytest
from world.admission_world import container as decoded_container
from world.admission_world import make_pod as decoded
from world.node_world import view
from world.pod_world import LATENCY_NS, UID, World, container, make_pod, replaced

from fleet.clock import NS_PER_S
from fleet.k8s.admission import NodeState
from fleet.k8s.effects import Op, Reply, ReplyKind
from fleet.k8s.pods import RunningState, TerminatedState
from fleet.k8s.selectors import Toleration


def running(*containers: object, light: bool = False, **fields: object) -> World:
    world = World(light=light)
    world.create(make_pod(*containers, **fields))  # type: ignore[arg-type]
    world.run(2)
    world.take_log()
    return world


def test_the_token_is_renewed_at_four_fifths_of_its_life() -> None:
    world = running()
    world.run(3607 * 0.79)
    assert world.take_log() == []
    world.run(3607 * 0.05)
    assert world.take_log() == ["CREATE_TOKEN"]


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


@pytest.mark.parametrize("light", [False, True])
def test_another_process_takes_running_pods_over_without_a_word(*, light: bool) -> None:
    pod = running(light=light).pods[UID]
    after = World(light=light)
    after.env.wall_offset_ns += 100 * NS_PER_S
    after.create(copy.copy(pod))
    after.run(60)
    assert [each for each in after.log if "PATCH" in each or "EVENT" in each] == []
    assert after.pods[UID].status == pod.status
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


def test_a_container_that_ends_at_once_is_never_told_to_run() -> None:
    """The relist that its sync asks for finds it ended."""
    world = World()
    world.create(make_pod(container("c", "sh", "-c", "exit 3")))
    world.run(8)
    shown = [status.containers[0].state for status in world.statuses]
    assert any(isinstance(each, TerminatedState) for each in shown)
    assert not any(isinstance(each, RunningState) for each in shown)
