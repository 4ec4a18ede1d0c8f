"""The processes of one run, and how soon one that was killed has its nodes again."""

import os
import signal
import time
from pathlib import Path

import psutil
from e2e_world import Running, World, eventually

from fleet.controlplane.options import APISERVER

ADOPTED_WITHIN_S = 10.0


def children(run: Running, word: str) -> list[psutil.Process]:
    """Return the processes of a run in whose command a word stands."""
    return [each for each in psutil.Process(run.process.pid).children() if word in each.cmdline()]


def slowness(process: psutil.Process) -> float:
    """Return how many times longer a process takes because others have the cores too."""
    ran, waited, _ = map(int, Path(f"/proc/{process.pid}/schedstat").read_text().split())
    return (ran + waited) / ran


def assert_killed_and_adopted(world: World, run: Running, nodes: int) -> None:
    """Kill the second process of a run; the one in its place soon has its nodes."""
    [killed] = children(run, "spawn")
    os.kill(killed.pid, signal.SIGKILL)
    log = run.directory / "process-0001" / "log"
    adopted = f"adopted {nodes} nodes that an earlier run left"
    eventually(lambda: adopted in log.read_text(), adopted)
    [process] = children(run, "spawn")
    took_s = time.time() - process.create_time()
    # Both are slowed, and one waits for the other.
    times = slowness(process) * slowness(psutil.Process(world.info.pids[APISERVER]))
    print(f"adopted {took_s:.1f} s after the start of a process that was slowed {times:.1f} times")
    assert took_s / times < ADOPTED_WITHIN_S
