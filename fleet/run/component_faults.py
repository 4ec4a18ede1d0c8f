"""Faults of the run's own control plane: components that are killed, or stand still.

    down --end--> started again on the same port, until it is ready     stalled --end--> goes on

A control plane that is not this run's is never touched.
"""

from collections.abc import Callable, Mapping
from signal import SIGCONT, SIGSTOP, Signals
from typing import Protocol

from fleet.controlplane import COMPONENTS
from fleet.errors import UsageError
from fleet.faults.fault import FaultSpec, FaultType


class Plane(Protocol):
    """A control plane whose components can be made to fail: by name."""

    @property
    def pids(self) -> Mapping[str, int]:
        """The components that run."""
        ...

    async def kill(self, component: str) -> None:
        """End a component."""
        ...

    async def revive(self, component: str) -> None:
        """Start a component that was killed, until it is ready."""
        ...

    def signal(self, component: str, number: Signals) -> None:
        """Have a component stand still, or go on."""
        ...


class ComponentFaults:
    """Begins and ends them; one at a time of each component. `plane`: None if it is not ours."""

    def __init__(self, plane: Callable[[], Plane | None]) -> None:
        self.active: dict[int, FaultSpec] = {}
        self._plane = plane
        self._off: set[int] = set()  # of those that come and go: that are off now

    async def begin(self, number: int, spec: FaultSpec) -> None:
        """Let a component fail. Raises UsageError if it cannot be."""
        name, kind = _name(spec), spec.type.value
        plane = self._plane()
        if plane is None:
            raise UsageError(f"{kind}: it needs a local control plane that the run has started")
        if name not in plane.pids:
            raise UsageError(f"{kind}: {name} does not run")
        for other, each in self.active.items():
            if each.component is spec.component:
                raise UsageError(f"{kind}: {name} has fault {other} ({each.type.value}) already")
        self.active[number] = spec
        await self._switch(plane, spec, is_on=True)

    async def turn(self, number: int) -> None:
        """Let one that comes and goes do so. Raises SetupError if it does not start again."""
        plane, spec = self._plane(), self.active[number]
        assert plane is not None, spec
        self._off ^= {number}
        await self._switch(plane, spec, is_on=number not in self._off)

    async def end(self, number: int) -> None:
        """Have a component work again. Raises SetupError if it does not come up."""
        spec, plane = self.active.pop(number), self._plane()
        was_off = number in self._off
        self._off.discard(number)
        if plane is not None and not was_off:
            await self._switch(plane, spec, is_on=False)

    def in_order(self) -> list[int]:
        """Return their numbers as they are to end: what others need is first."""
        return sorted(self.active, key=lambda number: COMPONENTS.index(_name(self.active[number])))

    async def _switch(self, plane: Plane, spec: FaultSpec, *, is_on: bool) -> None:
        if spec.type is FaultType.COMPONENT_STALL:
            plane.signal(_name(spec), SIGSTOP if is_on else SIGCONT)
        elif is_on:
            await plane.kill(_name(spec))
        else:
            await plane.revive(_name(spec))


def _name(spec: FaultSpec) -> str:
    assert spec.component is not None, spec
    return spec.component.value
