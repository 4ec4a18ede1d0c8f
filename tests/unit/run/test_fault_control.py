"""Faults of a run's own control plane whose ends meet."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from world.sim_clock import SimClock

from fleet.clock import Draws
from fleet.controlplane.controlplane import ControlPlane
from fleet.errors import SetupError
from fleet.faults.fault import FaultSpec, read_fault
from fleet.host.node_host import NodeHost
from fleet.reactor.reactor import Reactor
from fleet.run.fault_control import FaultControl


class Plane:
    """Components that take a few turns of the loop to end and to start."""

    def __init__(self) -> None:
        self.pids = {"etcd": 1, "kube-apiserver": 2}
        self.down: set[str] = set()

    async def kill(self, component: str) -> None:
        await asyncio.sleep(0)
        self.down.add(component)

    async def revive(self, component: str) -> None:
        self.down.remove(component)
        for _ in range(3):
            await asyncio.sleep(0)


def control_of(plane: Plane) -> FaultControl:
    reactor = Reactor(SimClock(), Draws(1))
    host = SimpleNamespace(
        reactor=reactor,
        draws=Draws(1),
        has_own_connections=True,
        certificates=None,
        settings=SimpleNamespace(shard=None, seed=0, follows=False),
        size=0,
    )
    return FaultControl(
        cast("NodeHost", host),
        lambda: 0.0,
        lambda _: None,
        None,
        lambda: cast("ControlPlane", plane),
    )


def down(component: str, **more: str) -> FaultSpec:
    return read_fault("ComponentDown", {"component": component, **more})


async def test_a_component_whose_fault_ends_as_it_turns_runs() -> None:
    """A busy loop finds both timers due at once; what has ended must not come again."""
    plane = Plane()
    control = control_of(plane)
    await control.inject(down("etcd", every="2s"), for_ns=1_000_000_000)
    assert plane.down == {"etcd"}
    loop, time = asyncio.get_running_loop(), asyncio.get_running_loop().time
    loop.time = lambda: time() + 1.5  # type: ignore[method-assign]
    for _ in range(20):
        await asyncio.sleep(0)
    await control.close()
    assert not plane.down
    assert not control.on()


async def test_a_fault_that_is_healed_as_the_run_ends_leaves_the_end_alone() -> None:
    plane = Plane()
    control = control_of(plane)
    await control.inject(down("etcd"))
    await control.inject(down("kube-apiserver"))
    await asyncio.gather(control.close(), control.heal(2))
    assert not plane.down


@pytest.mark.parametrize(
    ("error", "bugs"), [(SetupError("etcd does not start"), []), (LookupError("etcd"), ["etcd"])]
)
async def test_what_goes_wrong_outside_of_an_order_is_logged_and_a_bug_is_counted(
    error: Exception, bugs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def fails() -> None:
        raise error

    seen: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(*context["exception"].args))
    control_of(Plane()).soon(fails())
    for _ in range(3):
        await asyncio.sleep(0)
    assert seen == bugs
    logged = [] if bugs else ["a fault could not be healed: etcd does not start"]
    assert [each.getMessage() for each in caplog.records] == logged
