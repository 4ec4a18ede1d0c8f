"""Pods come and go at random while the server fails; then all is well and everything settles."""

import copy
import random

import pytest
from world.pod_world import UID, World, container, make_pod

from fleet.k8s.effects import Milestone, Op, Reply, ReplyKind, WatchEvent, WatchKind
from fleet.k8s.pods import (
    ContainerSpec,
    EventType,
    PodStatus,
    ProbeSpec,
    RunningState,
    TerminatedState,
)

PROBES = [f"fleet.emulator/{kind}-probe" for kind in ("startup", "readiness", "liveness")]
COMMANDS = (
    (),
    ("true",),
    ("false",),
    ("sleep", "3"),
    ("sh", "-c", "sleep 1; exit 2"),
)
REFUSALS = (
    Reply(ReplyKind.LOST),
    Reply(ReplyKind.REFUSED, None, 500, "boom"),
    Reply(ReplyKind.FORBIDDEN, None, 403, "no"),
    Reply(ReplyKind.CONFLICT, None, 409, "later"),
)
POD_OPS = (Op.GET_POD, Op.PATCH_POD_STATUS, Op.DELETE_POD, Op.CREATE_TOKEN)
TIMELINES = (
    "Success after 2s",
    "Failure after 3s, Success after 5s",
    "Timeout after 1s",
    "Error, Success after 4s",
    "[{result: Success, failureRate: 0.5, latency: 300ms}]",
)
TERMINAL = ("Succeeded", "Failed")


def random_container(draw: random.Random, name: str, *commands: str, **more: str) -> ContainerSpec:
    """Return a container that may have probes, which are quick."""
    probes = {
        f"{kind}_probe": ProbeSpec(
            draw.choice(("exec", "httpGet", "tcpSocket", "grpc")),
            initial_delay_s=draw.choice((0, 0, 2)),
            period_s=draw.randint(1, 3),
            failure_threshold=draw.randint(1, 3),
        )
        for kind in ("startup", "readiness", "liveness")
        if draw.random() < 0.3
    }
    return container(name, *commands, **probes, **more)


def random_pod(draw: random.Random, index: int) -> object:
    inits = [container("i", *draw.choice(COMMANDS[1:]))]
    if draw.random() < 0.5:
        inits.append(random_container(draw, "s", *draw.choice(COMMANDS), restart_policy="Always"))
    names = "cd"[: draw.randint(1, 2)]
    return make_pod(
        *(random_container(draw, name, *draw.choice(COMMANDS)) for name in names),
        annotations=tuple((key, draw.choice(TIMELINES)) for key in PROBES if draw.random() < 0.5),
        uid=f"{UID}-{index}",
        name=f"p{index}",
        init_containers=tuple(inits) if draw.random() < 0.3 else (),
        restart_policy=draw.choice(("Always", "OnFailure", "Never")),
        **({"volumes": ()} if draw.random() < 0.3 else {}),
    )


def relist(world: World) -> None:
    world.loop.on_relist_started(world.env)
    for pod in list(world.pods.values()):
        world.deliver(WatchEvent(WatchKind.PODS, EventType.ADDED, copy.copy(pod)))
    world.deliver(WatchEvent(WatchKind.PODS, EventType.SYNCED))


def check(world: World, ended: dict[str, str]) -> None:
    """No pod leaves a terminal phase, and none that ended is ready."""
    for uid, pod in world.pods.items():
        status: PodStatus = pod.status
        if uid in ended:
            assert status.phase == ended[uid], uid
        elif status.phase in TERMINAL:
            ended[uid] = status.phase
        ready = {each.type: each.status for each in status.conditions}.get("Ready")
        assert not (status.phase in TERMINAL and ready == "True"), uid


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_churn_then_calm(seed: int, light: bool) -> None:  # noqa: FBT001
    draw = random.Random(seed)
    world = World(light=light)
    ended: dict[str, str] = {}
    for step in range(60):
        action = draw.random()
        alive = [uid for uid, pod in world.pods.items() if not pod.deleting]
        if action < 0.4:
            world.create(random_pod(draw, step))  # type: ignore[arg-type]
        elif action < 0.6 and alive:
            world.delete(draw.choice(alive), grace_s=draw.choice((0, 1, 30)))
        elif action < 0.75:
            world.refuse = {draw.choice(POD_OPS): draw.choice(REFUSALS)}
        elif action < 0.8:
            relist(world)
        elif action < 0.85:
            world.objects.symmetric_difference_update(
                {(WatchKind.CONFIG_MAP, "default", "kube-root-ca.crt")}
            )
        else:
            world.refuse = {}
        world.run(draw.random() * 2)
        check(world, ended)
    world.refuse = {}
    world.objects.add((WatchKind.CONFIG_MAP, "default", "kube-root-ca.crt"))
    world.run(30)
    for uid in [uid for uid, pod in world.pods.items() if not pod.deleting]:
        world.delete(uid, grace_s=draw.choice((0, 30)))
    world.run(60)
    assert world.pods == {}
    assert world.loop.is_idle()
    assert world.watched == set()
    assert world.loop._syncer.probes._pods == {}
    assert world.counts(Milestone.POD_ADDED) == world.counts(Milestone.POD_REMOVED)


def test_a_container_that_ends_at_once_is_never_told_to_run() -> None:
    """The relist that its sync asks for finds it ended."""
    world = World()
    world.create(make_pod(container("c", "sh", "-c", "exit 3")))
    world.run(8)
    shown = [status.containers[0].state for status in world.statuses]
    assert any(isinstance(each, TerminatedState) for each in shown)
    assert not any(isinstance(each, RunningState) for each in shown)
