"""What one hostile input may cost: 100 ms of CPU and 64 MB, held by the kernel.

A timer of the process's own CPU time interrupts what takes longer, wherever it is; a limit of the
address space refuses what takes more.
"""

import contextlib
import gc
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

CPU_S = 0.1
BYTES_MAX = 64 << 20
TRIES = 3
"""An input that is too slow is tried again: Python compiles and fills caches, the kernel pages."""
_PAGE = resource.getpagesize()
_STATM = Path("/proc/self/statm")


class TooSlowError(BaseException):
    """No `except Exception` may take it for something else."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Run a block within the limits. Raises TooSlowError, MemoryError."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlowError(f"it took over {CPU_S * 1000:.0f} ms of CPU")

    before = signal.signal(signal.SIGPROF, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(_STATM.read_text().split()[0]) * _PAGE
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES_MAX, hard))
    gc.disable()  # a collection of all that the tests keep would be of no input
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)
        gc.enable()


def within_limits(
    judge: Callable[[tuple[bytes, ...]], None],
) -> Callable[[tuple[bytes, ...]], None]:
    """Return a judge whose inputs are held to the limits."""

    def judged(pieces: tuple[bytes, ...]) -> None:
        for left in range(TRIES - 1, -1, -1):
            try:
                with limited():
                    judge(pieces)
            except TooSlowError as error:
                if not left:
                    raise RuntimeError(str(error)) from error
            else:
                return

    return judged
