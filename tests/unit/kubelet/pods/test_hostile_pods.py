"""Pods that cost too much: their containers fail with one event, and the node goes on."""

import pytest
from world.pod_world import UID, World, container, make_pod

from fleet.k8s.effects import EventObject, Op
from fleet.k8s.pods import (
    ContainerSpec,
    MountSpec,
    RunningState,
    ScriptSpec,
    Variable,
    WaitingState,
)

GROWS = ("sh", "-c", "echo a > /tmp/a; while true; do cat /tmp/a /tmp/a >> /tmp/a; done")
CHAIN = tuple(Variable(f"A{n}", f"$(A{n - 1})" * 10 or "a") for n in range(12))
CHAINED = ScriptSpec(variables=(Variable("A0", "a" * 1000), *CHAIN[1:]))


def failures(world: World) -> list[str]:
    found = [call.payload for call in world.calls if call.op is Op.CREATE_EVENT]
    return [
        each.message for each in found if isinstance(each, EventObject) and each.reason == "Failed"
    ]


HOSTILE = {
    "variables that multiply": container("c", "sh", "-c", "echo $(A11)", script=CHAINED),
    "variables that nobody reads": container("c", "/server", script=CHAINED),
    "variables of a container with volumes": container(
        "c", "/server", script=CHAINED._replace(mounts=(MountSpec("/data", "token", ""),))
    ),
}


@pytest.mark.parametrize("spec", HOSTILE.values(), ids=HOSTILE)
def test_a_container_over_its_budget_fails_and_waits(spec: ContainerSpec) -> None:
    world = World()
    world.create(make_pod(spec, container("good")))
    world.run(8)
    states = {each.name: each.state for each in world.pods[UID].status.containers}
    (message,) = failures(world)
    assert "costs more than fleet spends on a container" in message
    assert isinstance(states["good"], RunningState)
    bad = states["c"]
    assert isinstance(bad, WaitingState)
    assert bad.reason in {"RunContainerError", "CrashLoopBackOff"}


def test_a_container_that_writes_without_end_runs_on() -> None:
    world = World()
    world.create(make_pod(container("c", *GROWS)))
    world.run(8)
    assert isinstance(world.container(UID).state, RunningState)
    assert not failures(world)
