"""`fleet` that writes down each few seconds what its process holds, into a file of JSON lines.

A thread looks; the loop is only asked for its tasks. Pauses of the garbage collector are taken by
its callbacks, and the longest since the last look is written.
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop

SAMPLES = "FLEET_SOAK_SAMPLES"
"""Names the file."""
EVERY_S = 2.0
MS = 1000


class Observer:
    """Looks at its own process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = psutil.Process()
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._wheels: list[Any] = []
        self._began_s = 0.0
        self._longest_s = 0.0

    def install(self) -> None:
        """Learn of the loop and the wheel that are made, and of collections."""
        from fleet.clock import TimerWheel  # noqa: PLC0415 - it is changed before fleet is

        loops, make_wheel = self._loops, TimerWheel.__init__

        class ObservedLoop(uvloop.Loop):
            def __init__(self) -> None:
                super().__init__()
                loops.append(self)

        def made(wheel: TimerWheel) -> None:
            make_wheel(wheel)
            self._wheels.append(wheel)

        uvloop.Loop = ObservedLoop  # type: ignore[misc]
        TimerWheel.__init__ = made  # type: ignore[assignment,method-assign]
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._look, daemon=True).start()

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        now_s = time.thread_time()  # its own: others have the cores too
        if phase == "start":
            self._began_s = now_s
        else:
            self._longest_s = max(self._longest_s, now_s - self._began_s)

    def _look(self) -> None:
        with self._path.open("a", buffering=1) as file:
            while True:
                time.sleep(EVERY_S)
                longest_s, self._longest_s = self._longest_s, 0.0
                held: dict[str, float] = {
                    "rss_mb": self._process.memory_info().rss / 1e6,
                    "descriptors": self._process.num_fds(),
                    "threads": self._process.num_threads(),
                    "connections": len(self._process.net_connections("tcp")),
                    "timers": sum(each.size for each in self._wheels),
                    "tasks": self._tasks(),
                    "collected_ms": longest_s * MS,
                }
                file.write(json.dumps({"at_s": time.time(), **held}) + "\n")

    def _tasks(self) -> int:
        count = 0
        for loop in self._loops:
            with contextlib.suppress(RuntimeError):  # the set changed while it was read
                count += len(asyncio.all_tasks(loop))
        return count


def main() -> None:
    """Run fleet's command line under observation."""
    Observer(Path(os.environ[SAMPLES])).install()
    from fleet.cli import main as fleet_main  # noqa: PLC0415 - its clock is the observer's

    sys.argv[0] = "fleet"
    fleet_main()


if __name__ == "__main__":
    main()
