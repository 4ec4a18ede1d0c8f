"""One component as a child process: its log, its end, and that it never outlives fleet."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import psutil

from fleet.controlplane.options import ComponentDeath
from fleet.profile.secret_variables import without_secrets

PROC = Path("/proc")
BOOT_ID = PROC / "sys/kernel/random/boot_id"
LAUNCHER = Path(__file__).with_name("launcher.py")
LAST_LINES = 12  # of the log of a component that died: klog writes a fatal error last
LAST_BYTES = 8192
LINE_CHARACTERS = 400  # klog prints whole objects in one line


def bound_to_us(command: Sequence[str]) -> tuple[str, ...]:
    """Give the command that runs `command` and dies with this process (see launcher.py)."""
    return (sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command)


def boot_id() -> str:
    """Return what this boot of the machine is called: by Linux, else by its time."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))


def start_ticks(pid: int) -> int | None:
    """Return when a process began, None if it is gone or a zombie.

    Source: Linux, Documentation/filesystems/proc.rst, table 1-4: state and start_time.
    """
    if not PROC.exists():  # macOS
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).create_time())
        return None
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # from the third on: the name may have spaces
    return None if fields[0] in "ZX" else int(fields[19])


class Component:
    """A child process that writes to a log file.

    It leads a session of its own: Ctrl-C in the terminal reaches fleet only, which may then still
    need the API server to clean up.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        # None: our own; etcd and its like need no secret of it.
        self._environment = environment if environment is not None else without_secrets(os.environ)
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process, or start it again after its end."""
        assert not self.is_running, self.name
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *bound_to_us(self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    async def wait(self) -> ComponentDeath:
        assert self._process is not None, self.name
        returncode = await self._process.wait()
        return ComponentDeath(self.name, returncode, self.log, self.last_lines())

    def signal(self, number: Signals) -> None:
        """Send a signal, if it runs."""
        if self.is_running:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, grace_s: float, *, politely: Signals = SIGTERM) -> None:
        """End the process: politely, and by SIGKILL after `grace_s`; at once if that is 0."""
        if self._process is None:
            return
        if grace_s > 0:
            self.signal(politely)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        self.signal(SIGKILL)
        await self._process.wait()

    def output(self) -> str:
        """Read the end of what the process wrote since its last start."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, size - LAST_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def last_lines(self) -> tuple[str, ...]:
        lines = self.output().splitlines()[-LAST_LINES:]
        return tuple(line[:LINE_CHARACTERS] for line in lines)
