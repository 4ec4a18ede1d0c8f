"""Containers and sandboxes that cannot be killed: what each try says, and when the next one is."""

from dataclasses import replace

from world.pod_world import UID, World, container, make_pod

from fleet.clock import NS_PER_S
from fleet.k8s.effects import EventObject, Op
from fleet.k8s.pods import Pod, RunningState, TerminatedState
from fleet.profile.container_behavior import HANGS

REFUSED = "fleet.emulator/stop-error"
NO_ANSWER = '"rpc error: code = DeadlineExceeded desc = context deadline exceeded"'
GRACE_S = 5
HUNG = (("fleet.emulator/stop-time", "hangs"),)


def started(pod: Pod) -> World:
    world = World()
    kubelet = world.env.model.kubelet.model_copy(
        update={"runtime_request_timeout_ns": 20 * NS_PER_S}
    )
    world.env.model = replace(world.env.model, kubelet=kubelet)
    world.create(replace(pod, spec=pod.spec._replace(termination_grace_s=GRACE_S)))
    world.run(10)
    assert world.pods[UID].status.phase == "Running"
    world.take_log()
    return world


def told(world: World) -> list[str]:
    """Return the events of kills that failed, each with its count, and forget them."""
    found = [
        f"{each.payload.times} {each.payload.message}"
        for each in world.calls
        if isinstance(each.payload, EventObject) and each.payload.reason == "FailedKillPod"
    ]
    world.calls.clear()
    return found


def fail(world: World, **broken: str) -> None:
    """Have the machine fail so from now on; without a word it is in order."""
    model = replace(world.env.model, broken=world.env.model.broken._replace(**broken))  # type: ignore[arg-type]
    world.env.model = model
    out: list[object] = []
    world.loop.on_machine_changed(world.turn(out))  # type: ignore[arg-type]
    world.execute(out)  # type: ignore[arg-type]


def test_one_container_of_two_survives_and_the_next_try_is_for_it_alone() -> None:
    pod = make_pod(container("a"), container("b"), annotations=((f"{REFUSED}.b", "no"),))
    world = started(pod)
    world.delete(grace_s=GRACE_S)
    world.run(GRACE_S + 1.1)  # a relist more, which has seen the end of the first
    [message] = told(world)
    assert 'failed to "KillContainer" for "b" with KillContainerError' in message
    assert 'for "a"' not in message
    assert f'failed to "KillPodSandbox" for "{UID}" with KillPodSandboxError' in message
    log = world.take_log()
    assert [log.count(f"{verb}_EVENT Killing") for verb in ("CREATE", "PATCH")] == [2, 1]
    assert "DELETE_POD" not in log
    first, second = world.pods[UID].status.containers
    assert isinstance(first.state, TerminatedState)
    assert isinstance(second.state, RunningState)
    world.run(GRACE_S + 9)
    assert len(told(world)) == 1
    assert "PATCH_EVENT Killing" not in world.take_log()  # 10 to 15 s before the next try
    world.change(annotations=(), fingerprint=2)
    world.run(6 + 2)
    assert UID not in world.pods


def test_a_machine_that_is_healed_answers_what_is_waited_for() -> None:
    """In the time of the container nothing has failed; in that of the sandbox the former has."""
    error = f'failed to "KillContainer" for "c" with KillContainerError: {NO_ANSWER}'
    for waited_s, errors in (
        (GRACE_S + 10, []),
        (GRACE_S + 30, [f"1 error killing pod: {error}"]),
    ):
        world = started(make_pod())
        fail(world, kills=HANGS)
        world.delete(grace_s=GRACE_S)
        world.run(waited_s)
        assert told(world) == []
        fail(world, kills="")
        world.run(0.1)
        assert told(world) == errors
        world.run(2.5)
        assert UID not in world.pods
        [ended] = world.statuses[-1].containers
        assert isinstance(ended.state, TerminatedState)
        assert ended.state.exit_code == 137


def test_within_the_grace_period_a_healed_container_heeds_its_signal() -> None:
    world = started(make_pod())
    fail(world, kills=HANGS)
    world.delete(grace_s=GRACE_S)
    world.run(2)
    fail(world, kills="")
    world.run(4)
    assert UID not in world.pods
    [ended] = world.statuses[-1].containers
    assert isinstance(ended.state, TerminatedState)
    assert ended.state.exit_code == 0


def test_a_container_that_ends_by_itself_was_killed_all_the_same() -> None:
    pod = make_pod(container("c", "sleep", "30"), restart_policy="Never", annotations=HUNG)
    world = started(pod)
    world.delete(grace_s=GRACE_S)
    world.run(26)
    assert told(world) == []
    assert UID not in world.pods


def test_less_grace_has_it_tried_again_at_once() -> None:
    world = started(make_pod(annotations=((REFUSED, "no"),)))
    world.delete(grace_s=GRACE_S)
    world.run(GRACE_S + 0.5)
    assert len(told(world)) == 1
    world.delete(grace_s=1)
    world.run(1 + 2 + 0.5)  # a relist; a process always gets 2 s
    assert len(told(world)) == 1


def test_pods_of_the_hosts_network_have_none_to_take_down() -> None:
    world = started(make_pod(host_network=True))
    fail(world, sandbox_kills="no plugin")
    world.delete(grace_s=GRACE_S)
    world.run(5)
    assert told(world) == []
    assert UID not in world.pods
    assert Op.DELETE_POD not in {each.op for each in world.calls}
