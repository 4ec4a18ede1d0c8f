"""Which fleets of this user run on this machine, wherever their run directories are.

Each run keeps a file about itself in one directory that only its user may enter:

    listed --the run ends--> the file is removed
           --it is killed--> the file names a process that is gone; whoever looks next removes it

A process is known by its number, its start time and the boot that it began in, since numbers are
used again. A home that several machines share keeps the files of each apart by the host's name.
"""

import contextlib
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from fleet.controlplane import state_home
from fleet.controlplane.process import boot_id, start_ticks


class Listed(NamedTuple):
    """One fleet that runs."""

    directory: Path
    run_id: str
    nodes: int


@contextlib.contextmanager
def listed(fleet: Listed) -> Iterator[None]:
    """List a fleet of this process for as long as this is open; without a home it is not listed."""
    path = None
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: of a user without a home
        directory = _directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        if _is_private(directory):
            path = directory / f"{platform.node()}-{os.getpid()}.json"
            partial = path.with_suffix(".part")
            partial.write_bytes(
                orjson.dumps(
                    {
                        "process": process_mark(os.getpid()),
                        "directory": str(fleet.directory.absolute()),
                        "run_id": fleet.run_id,
                        "nodes": fleet.nodes,
                    }
                )
            )
            partial.replace(path)
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def running() -> list[Listed]:
    """Return the fleets that run, and remove the files of those that were killed."""
    found: list[Listed] = []
    with contextlib.suppress(OSError, RuntimeError):
        directory = _directory()
        if _is_private(directory):
            paths = sorted(directory.glob(f"{platform.node()}-*.json"))
            found = [fleet for path in paths if (fleet := _look(path)) is not None]
    return found


def process_mark(pid: int) -> str:
    """Return what no other process has, before or after: boot, number, start time; "" of none."""
    boot, ticks = boot_id(), start_ticks(pid)
    return "" if ticks is None or not boot else f"{boot} {pid} {ticks}"


def _look(path: Path) -> Listed | None:
    pid = path.stem.rpartition("-")[2]
    try:
        entry = orjson.loads(path.read_bytes())
        mark = process_mark(int(pid))
        if mark and entry["process"] == mark:
            return Listed(Path(entry["directory"]), str(entry["run_id"]), int(entry["nodes"]))
    except (ValueError, KeyError, TypeError):  # nothing that fleet has written
        pass
    path.unlink(missing_ok=True)
    return None


def _directory() -> Path:
    return state_home() / "running"


def _is_private(directory: Path) -> bool:
    """Return whether a directory is this user's, and no other user may write into it."""
    found = directory.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not found.st_mode & 0o077
