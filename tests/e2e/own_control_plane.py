"""A control plane for the tests of one module, beside the one that all of a worker share."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.go_program import TESTED

from e2e.e2e_world import World
from e2e.leftovers import leftovers
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.options import ControlPlaneOptions


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
