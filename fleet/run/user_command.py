"""The command behind `--`: run once, ended when the run is told to stop."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from fleet.errors import SetupError

TERMINATE_S = 10.0


async def run_command(
    command: Sequence[str], environment: Mapping[str, str], stop: asyncio.Event
) -> int:
    """Run the command; return its exit code, 128 + N if a signal N ended it.

    Raises SetupError if it cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
    except OSError as error:
        raise SetupError(f"cannot run {command[0]!r}: {error.strerror}") from error
    finished = asyncio.ensure_future(process.wait())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((finished, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not finished.done():
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(finished), TERMINATE_S)
        if not finished.done():
            process.kill()
    code = await finished
    return code if code >= 0 else 128 - code
