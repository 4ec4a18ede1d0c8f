"""Tasks alongside a run, and what becomes of the run when one of them fails.

    keep     starts it again, later each time; after `tries_max` failures in a row the run ends
    need     cannot be started again: the run ends with its reason

Nothing fails unheard: what the surroundings did is a warning, and what nobody foresaw is a bug in
fleet, which stands in the log with its traceback and makes the run invalid. A task that has worked
for long starts over with short waits.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import uvloop

from fleet.errors import FleetError

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
STEADY_S = 300.0  # after so long without a failure the next one is a first one again

Work = Callable[[], Coroutine[None, None, object]]
T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Background:
    """All tasks alongside one run. `end` takes the reason why the run cannot go on."""

    _end: Callable[[str], None]
    _: KW_ONLY
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now_s: Callable[[], float] = time.monotonic
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    bugs: Counter[str] = field(default_factory=Counter)

    def keep(self, name: str, work: Work, *, tries_max: int = 0) -> asyncio.Task[None]:
        """Begin `work` and begin it again whenever it fails: for ever, if `tries_max` is 0."""
        task = asyncio.create_task(self.persist(name, work, tries_max=tries_max), name=name)
        self._tasks.append(task)
        return task

    def need(self, name: str, work: Work) -> asyncio.Task[None]:
        """Begin what the run cannot go on without, and what cannot begin twice."""
        return self.keep(name, work, tries_max=1)

    async def persist(self, name: str, work: Work, *, tries_max: int = 0) -> None:
        """Do `work` until it returns; see `keep`."""
        tries = 0
        while True:
            begun_s = self.now_s()
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - the one who asked is not there any more
                reason = self._note(name, error)
            else:
                return
            if self.now_s() - begun_s > STEADY_S:
                tries = 0
            tries += 1
            if tries == tries_max:
                self._end(f"{name} failed: {reason}")
                return
            wait_s = min(BACKOFF_FIRST_S * 2.0 ** (tries - 1), BACKOFF_MAX_S)
            log.warning("%s: started again in %.0f s", name, wait_s)
            await self.sleep(wait_s)

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what a callback raised, or a task that nobody waited for: the loop's own handler."""
        error = context.get("exception")
        is_ours = "handle" in context or "task" in context or "future" in context
        if is_ours and isinstance(error, Exception) and not isinstance(error, OSError):
            self._note(context["message"], error)
        elif "transport" in context:  # a connection was cut; the request on it fails by itself
            log.debug("%s: %s", context["message"], " ".join(str(error).split()))
        else:
            loop.default_exception_handler(context)

    def reasons(self) -> list[str]:
        """Say which bugs have made the run invalid."""
        return [
            f"a bug in fleet: {name} failed {count} times, see the log"
            for name, count in self.bugs.items()
        ]

    async def stop(self) -> None:
        """Cancel everything and wait for it."""
        tasks, self._tasks = self._tasks, []
        await give_up(*tasks)

    def _note(self, name: str, error: Exception) -> str:
        """Log a failure and count it if it is a bug; return it in one line."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, FleetError | OSError):
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("%s failed: %s", name, reason)
            return reason
        self.bugs[name] += 1
        log.error("%s failed by a bug in fleet: %r", name, error, exc_info=error)
        return repr(error)


async def give_up(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their ends; one that fails as it ends is logged."""
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            log.error("a task failed at its end: %r", ended, exc_info=ended)


class Loop(uvloop.Loop):
    """uvloop, which alone closes the descriptor of a socket that it was given.

    Of a connection that is reset before TLS has written its first message, uvloop 0.23 closes the
    descriptor and leaves its number in the socket, which aiohttp's error keeps until the garbage
    collector closes that number once more. By then it may be another connection's.
    """

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect as asyncio does; a given socket has no descriptor afterwards."""
        try:
            return await super().create_connection(*args, **kwargs)
        finally:
            if kwargs.get("sock") is not None:
                kwargs["sock"].detach()


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Do it on a loop of its own, to its end."""
    return uvloop.run(work, loop_factory=Loop)
