"""The local socket of a run: who may write into its directory may let things go wrong.

One JSON object in, one out, then the connection ends. The socket is the user's alone (mode 0600)
and bound by its directory's descriptor: a path of a socket has room for 107 bytes only.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from fleet.errors import FleetError, SetupError, UsageError
from fleet.report.run_directory import RUNS_DIRECTORY, refuse_foreign
from fleet.run.running import Listed, listed, running

SOCKET = "control.sock"
ORDER_BYTES_MAX = 1 << 16
ANSWER_S_MAX = 30.0

Json = dict[str, Any]
Answer = Callable[[Json], Awaitable[Json]]


@contextlib.asynccontextmanager
async def open_socket(
    directory: Path, answer: Answer, known: Listed | None = None
) -> AsyncIterator[None]:
    """Take orders in a run's directory as long as this is open. Raises SetupError.

    As `known` the run is found without its directory's name.
    """
    path = directory / SOCKET
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _with_short_path(directory, listener.bind)
        path.chmod(0o600)
        server = await asyncio.start_unix_server(
            _taking(answer), sock=listener, limit=ORDER_BYTES_MAX
        )
    except OSError as error:
        listener.close()
        raise SetupError(f"{path}: {error.strerror or error}") from error
    try:
        with listed(known) if known is not None else contextlib.nullcontext():
            yield
    finally:
        server.close()
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _taking(
    answer: Answer,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # who asks may be gone
            line = await asyncio.wait_for(reader.readline(), ANSWER_S_MAX)
            try:
                order = orjson.loads(line)
            except ValueError:
                order = None
            told = {"error": "an order is one JSON object in one line", "code": 2}
            if isinstance(order, dict):
                told = await answer(order)
            writer.write(orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE))
            await writer.drain()
        writer.close()

    return take


async def ask(directory: Path, order: Json) -> Json:
    """Give an order to the run of a directory; return its answer. Raises SetupError, UsageError."""
    refuse_foreign(directory)
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _with_short_path(directory, ours.connect)
    except OSError as error:
        ours.close()
        raise SetupError(f"no fleet runs in {directory}: {error.strerror or error}") from error
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        writer.write(orjson.dumps(order, option=orjson.OPT_APPEND_NEWLINE))
        line = await asyncio.wait_for(reader.readline(), ANSWER_S_MAX)
    except (OSError, TimeoutError) as error:
        raise SetupError(f"the fleet in {directory} does not answer") from error
    finally:
        writer.close()
    if not line:
        raise SetupError(f"the fleet in {directory} ended")
    answer: Json = orjson.loads(line)
    if "error" in answer:
        kind = UsageError if answer["code"] == UsageError.exit_code else FleetError
        raise kind(str(answer["error"]))
    return answer


def find_run(directory: Path | None, runs: Path = RUNS_DIRECTORY) -> Path:
    """Return the directory of the run that is meant: the user's only one, if none is named.

    `runs` is where a run is found that could not be listed. Raises SetupError if there is none,
    UsageError if there are several.
    """
    if directory is not None:
        return directory
    anywhere = [each.directory for each in running()]
    beside = [path.parent for path in sorted(runs.glob(f"*/{SOCKET}"))]
    known = {path.absolute(): path for path in (*anywhere, *beside)}  # as short as it can be told
    found = [path for path in known.values() if _is_alive(path)]
    if not found:
        raise SetupError(
            "no fleet of yours runs on this machine; name its directory with --run-dir"
        )
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise UsageError(f"several fleets run ({names}); name one with --run-dir")
    return found[0]


def _is_alive(directory: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
        try:
            _with_short_path(directory, ours.connect)
        except OSError:
            return False
    return True


def _with_short_path(directory: Path, act: Callable[[str], None]) -> None:
    """Bind or connect by a path that is short however deep the directory lies. Raises OSError."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        act(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)
