"""Ctrl-C and SIGTERM: the first ends the run in order, the second at once.

PREPARING --first kubelet--> RUNNING
    | first: what is under way is cancelled, and what was begun is undone
                                | first: `stop` is set, and what waits for it goes on

timeout(1) and process managers signal a process and then its group: what follows within half a
second is no second wish.

A terminal that is closed sends SIGHUP: the run ends as by Ctrl-C, unless nohup(1) has it ignored.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine, Iterator

from fleet.background import give_up

ONE_WISH_S = 0.5


class Interrupts:
    """What the signals do to the task that plays a run."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """The run is over: by a signal, or for a reason of its own."""
        self.is_preparing = True  # no kubelet was started
        self.is_terminated = False  # by SIGTERM, as pods are
        self._count = 0
        self._first_s = 0.0
        self._task: asyncio.Task[object] | None = None

    @property
    def is_second(self) -> bool:
        """Return whether the user would not wait for the end."""
        return self._count > 1

    @property
    def is_early(self) -> bool:
        """Return whether one signal came, before there was a kubelet."""
        return self.is_preparing and self._count == 1

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Take the signals for the task that runs now."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def until_stopped(self, work: Coroutine[object, object, object]) -> None:
        """Do something, unless the run shall stop first."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            await give_up(task, stopped)

    def on_signal(self, number: int = signal.SIGINT) -> None:
        now_s = time.monotonic()
        if self._count == 1 and now_s - self._first_s < ONE_WISH_S:
            return
        self._count += 1
        self._first_s = self._first_s or now_s
        self.is_terminated = number == signal.SIGTERM
        self.stop.set()
        if (self.is_preparing or self.is_second) and self._task is not None:
            # A handshake that is cut off half-way would show a traceback.
            asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
            self._task.cancel()
