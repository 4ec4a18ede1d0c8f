"""Leaves no process of a test run behind, however the run ends: also `guard.py COMMAND...`.

A standing control plane is nobody's child, proxies and browsers fork, and a killed run cannot clean
up. So what belongs to a run carries a mark in its environment, which children inherit, and a
process outside of the run waits for the run's end and kills what has the mark then. A mark is a
path; what lies below it belongs to it, too. Source: pidfd_open(2), Linux 5.3.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import psutil

MARK = "FLEET_E2E"
XDIST_WORKER = "PYTEST_XDIST_WORKER"
WATCH = "--watch"
SWEEP_S = 0.2
SWEEP_S_MAX = 60.0


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return what was started with a mark and still runs."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            theirs = process.environ().get(MARK)
            is_ours = theirs is not None and Path(theirs).is_relative_to(mark)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextlib.contextmanager
def guarded(mark: str) -> Iterator[None]:
    """Mark what this process starts from now on; nothing of it outlives this process.

    A worker of xdist ends with its controller, which would leave it a quarter of a minute.
    """
    controller = [os.getppid()] if XDIST_WORKER in os.environ else []
    guard = _start_guard(mark, os.getpid(), *controller)
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK)
        if before is not None:
            os.environ[MARK] = before
        sweep(mark)
        guard.kill()
        guard.wait()


def become(*command: str) -> NoReturn:
    """Become a command, whose processes end with it."""
    mark = f"/guarded/{uuid.uuid4()}"  # no directory of that name is needed
    _start_guard(mark, os.getpid())
    os.execvpe(command[0], command, {**os.environ, MARK: mark})


def _start_guard(mark: str, *watched: int) -> subprocess.Popen[bytes]:
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    return subprocess.Popen(
        (sys.executable, __file__, WATCH, mark, *map(str, watched)),
        env=unmarked,  # of another run's guard, too
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C and the end of a terminal are for the run
    )


def watch(mark: str, run: int, *others: int) -> None:
    """Wait until one of the processes has ended, then end the run and what has its mark."""
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        end_of_run = os.pidfd_open(run)
        select.select([end_of_run, *map(os.pidfd_open, others)], [], [])
        signal.pidfd_send_signal(end_of_run, signal.SIGKILL)
    sweep(mark)


def sweep(mark: str) -> None:
    """Kill what is marked until nothing is: a process may have started another meanwhile."""
    deadline = time.monotonic() + SWEEP_S_MAX
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        found = marked_processes(mark)
        quiet = 0 if found else quiet + 1
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(SWEEP_S)


if __name__ == "__main__":
    if sys.argv[1] == WATCH:
        watch(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        become(*sys.argv[1:])
