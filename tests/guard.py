"""Leaves no process of a test run behind, however the run ends: `guarded` starts this as a program.

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
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "FLEET_E2E"
XDIST_WORKER = "PYTEST_XDIST_WORKER"
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
    watched = [os.getpid(), *([os.getppid()] if XDIST_WORKER in os.environ else [])]
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    guard = subprocess.Popen(
        (sys.executable, __file__, mark, *map(str, watched)),
        env=unmarked,  # of another run's guard, too
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C and the end of a terminal are for the run
    )
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


def main(mark: str, run: str, *others: str) -> None:
    """Wait until one of the processes has ended, then end the run and what has its mark."""
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        end_of_run = os.pidfd_open(int(run))
        select.select([end_of_run, *(os.pidfd_open(int(each)) for each in others)], [], [])
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
    main(*sys.argv[1:])
