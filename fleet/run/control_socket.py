"""The local socket of a run, how a run is found, and what `fleet inject` and `heal` ask of it.

Who may write into a run's directory may let things go wrong. One JSON object in, one out, then the
connection ends. The socket is the user's alone (mode 0600) and bound by its directory's descriptor:
a path of a socket has room for 107 bytes only.

Each run also keeps a file about itself in one directory that only its user may enter:

    listed --the run ends--> the file is removed
           --it is killed--> the file names a process that is gone; the next look removes it

A process is known by its number, its start time and the boot that it began in, since numbers are
used again. A home that several machines share keeps the files of each apart by the host's name.
"""

import asyncio
import contextlib
import os
import platform
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from fleet.controlplane.directory import is_own, state_home
from fleet.controlplane.process import boot_id, start_ticks
from fleet.errors import FleetError, SetupError, UsageError
from fleet.faults.fault import document_of, read_fault, read_lasting
from fleet.report.run_directory import RUNS_DIRECTORY, refuse_foreign

SOCKET = "control.sock"
ORDER_BYTES_MAX = 1 << 16
ANSWER_S_MAX = 30.0

Json = dict[str, Any]
Answer = Callable[[Json], Awaitable[Json]]


class Listed(NamedTuple):
    """One fleet that runs."""

    directory: Path
    run_id: str
    nodes: int


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
    here = [path.parent for path in sorted(runs.glob(f"*/{SOCKET}"))]
    known = {path.absolute(): path for path in (*anywhere, *here)}  # as short as it can be
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
    """Bind or connect by a path that is short however deep the directory lies. Raises OSError.

    Without O_PATH (macOS) the path is as long as it is.
    """
    if not hasattr(os, "O_PATH"):
        return act(str(directory / SOCKET))
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        act(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)


# ---- which fleets of this user run on this machine ----


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
            entry = fleet._asdict() | {"directory": str(fleet.directory.absolute())}
            partial.write_bytes(orjson.dumps(entry | {"process": process_mark(os.getpid())}))
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
    return is_own(directory) and not directory.lstat().st_mode & 0o077


# ---- fleet inject and fleet heal ----


def order_of(kind: str, given: Mapping[str, object]) -> Json:
    """Return the order for a fault as the options describe it. Raises UsageError."""
    words = {key: value for key, value in given.items() if key != "for_"}
    spec = read_fault(kind, words, "--")
    order: Json = {"do": "inject", "fault": document_of(spec)}
    if read_lasting(spec, given["for_"], "--for"):
        order["for"] = given["for_"]
    return order


async def heal(directory: Path | None, what: str, *, is_all: bool) -> Json | list[Json]:
    """Heal faults of a run; without a word which ones, return the list of what is on."""
    if what and is_all:
        raise UsageError("name one fault, or --all of them")
    run = find_run(directory)
    if what or is_all:
        return await ask(run, {"do": "heal", "what": what})
    active: list[Json] = (await ask(run, {"do": "list"}))["active"]
    return active


def row_of(fault: Json) -> Json:
    """Return what people read of a fault that is on."""
    left_s = fault["left_s"]
    return {
        "number": fault["number"],
        "fault": fault["fault"],
        "nodes": f"{fault['nodes']} of {fault['of']}" if fault["of"] else "-",
        "on for": f"{fault['for_s']:.0f} s",
        "left": "until healed" if left_s is None else f"{left_s:.0f} s",
    }
