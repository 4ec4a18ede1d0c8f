"""Runs `fleet` in forks of one process that has imported it: a command costs a third of the CPU.

    test --request, stdin, stdout, stderr, pipe--> server --fork--> keeper --fork--> fleet
         <---------- PID, then exit code ---------------------------+

Of the 2.4 s of CPU that a `fleet spawn` of three nodes takes, 1.6 s go into imports. A fork has
these behind it and is otherwise a process as any: it has its own PID, directory, environment and
files, and ends as Python ends. The keeper waits for it, so that the server can take the next one.
Processes of a run, pods of the chart, the probes of `fleet capacity`, the tests of terminals and
of the wheel start the program itself.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

REQUEST_MAX = 1 << 17
"""Bytes; an environment is most of it, and a message of a socket may have twice as many."""
IMPORTED = (
    "fleet.run.run",
    "fleet.run.scenario_player",
    "fleet.run.clean_command",
    "fleet.wire.api.decode_protobuf",
)
"""What commands import when they need it, and most of them do."""
LOST = -signal.SIGKILL
"""The exit code of a fleet whose keeper was killed, as guard.py does at the end of a session."""


class Forked:
    """A fleet that runs in a fork: what tests use of a Popen."""

    def __init__(self, replies: IO[str], command: tuple[str, ...], printed: Path | None) -> None:
        self._replies = replies
        self._command = command
        self._printed = printed
        self.pid = int(replies.readline())
        self.returncode: Any = None  # as Popen has it

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float) -> int:
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(self._command, timeout)
        return code

    def _look(self, for_s: float) -> int | None:
        if self.returncode is None and select.select([self._replies], [], [], for_s)[0]:
            self.returncode = int(self._replies.readline() or LOST)
        code: int | None = self.returncode
        return code

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait until it has ended; return what it printed. Its log is a file."""
        assert self._printed is not None
        self.wait(timeout)
        return self._printed.read_text(), ""

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._replies.close()


DOOR = "FLEET_E2E_DOOR"
"""Names the descriptor of the session's server; who starts a shim passes it on."""


def door() -> int:
    return int(os.environ[DOOR])


def start(
    command: tuple[str, ...],
    *,
    cwd: Path,
    stdin: int | None,
    stdout: Path,
    stderr: Path,
    **more: str,
) -> Forked:
    """Start a command of fleet that prints into files; `more` are variables of its own."""
    with (
        stdout.open("wb") as out,
        stderr.open("wb") as err,
        Path(os.devnull).open("rb") as nothing,
    ):
        files = (nothing.fileno() if stdin is None else stdin, out.fileno(), err.fileno())
        return start_on(command, cwd, files, printed=stdout, **more)


def start_on(
    command: tuple[str, ...],
    cwd: Path,
    files: tuple[int, int, int],
    printed: Path | None = None,
    **more: str,
) -> Forked:
    """Start a command of fleet, whose first word is the program's path, on three descriptors."""
    ours, theirs = os.pipe()
    variables = {**os.environ, **more}
    del variables[DOOR]
    request = {"command": command, "cwd": str(cwd), "env": variables}
    with os.fdopen(theirs, "wb"), socket.socket(fileno=os.dup(door())) as asked:
        message = json.dumps(request).encode()
        assert len(message) < REQUEST_MAX, len(message)
        socket.send_fds(asked, [message], [*files, theirs])
    return Forked(os.fdopen(ours), command, printed)


@contextlib.contextmanager
def fork_server() -> Iterator[None]:
    """Have a server for a session; what it has started goes on when it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        theirs,
        subprocess.Popen(
            (sys.executable, __file__, str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        ) as server,
        ours,
    ):
        theirs.close()
        os.environ[DOOR] = str(ours.fileno())
        yield
        del os.environ[DOOR]
        server.terminate()  # a shim that was left may keep the door open


def serve(door: socket.socket) -> None:
    """Fork for each request; return only in such a fork."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the test run's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a keeper
    while True:
        request, files, _, _ = socket.recv_fds(door, REQUEST_MAX, 4)
        if not request:
            sys.exit()  # the session was killed
        if not os.fork():
            door.close()
            if fork_and_keep(files):
                become(**json.loads(request), files=files)
                return
        for each in files:
            os.close(each)


def fork_and_keep(files: list[int]) -> bool:
    """Fork once more: true in the child. Say who it is and how it ends, then end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not (pid := os.fork()):
        return True
    *theirs, replies = files
    for each in theirs:
        os.close(each)
    os.write(replies, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # the test has forgotten it
        os.write(replies, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(command: list[str], cwd: str, env: dict[str, str], files: list[int]) -> None:
    """Take the arguments, directory, environment and files of a command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, each in enumerate(files[:3]):
        os.dup2(each, target)
    for each in files:
        os.close(each)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)


if __name__ == "__main__":
    from fleet.cli import main

    for each in IMPORTED:
        importlib.import_module(each)
    serve(socket.socket(fileno=int(sys.argv[1])))
    main()
