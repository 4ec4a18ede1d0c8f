"""What processes have used, with everything that they have started."""

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, Self, TypeVar

import psutil

PLANE = ("etcd", "kube-")
"""How the components of a control plane are called, which fleet starts and does not count."""


class CpuTimes(Protocol):
    """What is needed of what psutil tells of a process's time."""

    @property
    def user(self) -> float: ...
    @property
    def system(self) -> float: ...
    @property
    def children_user(self) -> float: ...
    @property
    def children_system(self) -> float: ...


class Process(Protocol):
    """What is needed of psutil.Process."""

    @property
    def pid(self) -> int: ...
    def children(self) -> Sequence[Self]: ...
    def cpu_times(self) -> CpuTimes: ...


AnyProcess = TypeVar("AnyProcess", bound=Process)


def components(fleet: psutil.Process) -> dict[str, psutil.Process]:
    """Return the components of the control plane that a run has started."""
    return {child.name(): child for child in fleet.children() if child.name().startswith(PLANE)}


def apiserver_of(fleet: psutil.Process) -> psutil.Process:
    """Return the API server of a run."""
    return next(each for name, each in components(fleet).items() if "apiserver" in name)


def tree(root: AnyProcess, without: Collection[int] = ()) -> list[AnyProcess]:
    """Return a process with its descendants, but for those of `without` and theirs."""
    found: list[AnyProcess] = []
    todo = [root]
    while todo:
        process = todo.pop()
        if process.pid in without:
            continue
        found.append(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            todo += process.children()
    return found


def cpu_s(processes: Iterable[Process]) -> float:
    """Return CPU seconds so far, those of children that have ended among them."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # its parent has its times
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def rss_mb(processes: Iterable[psutil.Process]) -> float:
    """Return their memory; pages that several share count in each."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / 1e6


def fleet_tree(fleet: psutil.Process, command: int) -> list[psutil.Process]:
    """Return the processes of a run: not its control plane, nor the command that it runs."""
    without = {command, *(each.pid for each in components(fleet).values())}
    return tree(fleet, without)
