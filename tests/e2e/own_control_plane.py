"""Control planes of tests: the one that all tests of a worker share, and those of one module."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.go_program import TESTED

from e2e.e2e_world import FLEET, WAIT_MAX_S, World
from e2e.leftovers import leftovers
from fleet.controlplane.binaries import find_binaries
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.options import APISERVER, ControlPlaneOptions
from fleet.controlplane.standing import attach

START_S_MAX = 270.0
"""Of a control plane: without it, every test of a worker would fail."""

NICE = 5
"""A control plane yields to the fleets, whose timers must be in time, when several share a core."""


@contextlib.contextmanager
def own_control_plane(
    root: Path, flags: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[World, asyncio.Runner, ControlPlane]]:
    """Run a control plane in this process, with flags of its own; a test may restart its parts."""
    plane = ControlPlane(ControlPlaneOptions(release=TESTED, extra_flags=flags))
    with asyncio.Runner() as runner:
        info = runner.run(plane.start())
        try:
            with leftovers.watched(World(root, info, root / "none")) as world:
                yield world, runner, plane
        finally:
            runner.run(plane.stop())


@contextlib.contextmanager
def standing(root: Path, release: str) -> Iterator[World]:
    """Bring a control plane of a release up as a user would; it is gone afterwards."""
    assert find_binaries(None, release) is not None, (
        f"run `fleet controlplane build --kubernetes-version {release}` first"
    )
    directory, audit_log = root / "controlplane", root / "audit.jsonl"
    where = (f"--dir={directory}", f"--audit-log={audit_log}")
    up = ("controlplane", "up", f"--kubernetes-version={release}", *where)
    subprocess.run(
        ("nice", f"--adjustment={NICE}", *FLEET, *up),
        check=True,
        timeout=START_S_MAX,
        stdout=subprocess.DEVNULL,
    )
    info = attach()
    assert info is not None
    for pid in (info.owner_pid, *info.pids.values()):
        yield_to_others(pid)
    try:
        yield World(root, info, audit_log)
    finally:
        down = (*FLEET, "controlplane", "down")
        subprocess.run(down, check=True, timeout=2 * WAIT_MAX_S, stdout=subprocess.DEVNULL)


async def restart_apiserver(plane: ControlPlane, *, down_s: float = 0.0) -> None:
    """Kill the API server and start it again on the same port after so many seconds."""
    await plane.kill(APISERVER)
    await asyncio.sleep(down_s)
    await plane.revive(APISERVER)


def yield_to_others(pid: int) -> None:
    """Lower the priority of a session: between sessions, Linux heeds no other niceness.

    Source: sched(7), the autogroup feature.
    """
    with contextlib.suppress(OSError):  # a kernel without it; or asked twice in 0.1 s, not as root
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))
