"""The control plane of one run of `make bench-peers`, whose API server can be gone for a while."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from fleet.controlplane.options import APISERVER, ControlPlaneInfo
from fleet.controlplane.process import bound_to_us
from fleet.controlplane.standing import attach

from .accounting import cpu_s

FLEET = (sys.executable, "-m", "fleet.cli")


class Plane:
    """A standing control plane and the processes of it.

    Its supervisor notes in its log that the API server was killed, and starts none: the new one is
    a child of this process, with the same command line, environment, directory, port and log.
    """

    def __init__(self, info: ControlPlaneInfo) -> None:
        self.info = info
        self.processes = {name: psutil.Process(pid) for name, pid in info.pids.items()}
        apiserver = self.apiserver
        self._command = apiserver.cmdline()
        self._environment = apiserver.environ()
        self._directory = apiserver.cwd()
        self._revived: subprocess.Popen[bytes] | None = None

    @property
    def apiserver(self) -> psutil.Process:
        """The API server that runs, or ran last."""
        return self.processes[APISERVER]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all components so far."""
        return cpu_s(self.processes.values())

    def kill_apiserver(self) -> None:
        """End the API server as a crash does: its connections are reset, its port refuses."""
        self.apiserver.kill()
        self.apiserver.wait(10)

    def revive_apiserver(self) -> None:
        """Start the API server again, as it was; it is not ready yet."""
        assert self._revived is None, "one outage a run"
        with self.info.logs[APISERVER].open("ab") as log:
            self._revived = subprocess.Popen(
                bound_to_us(self._command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._directory,
                start_new_session=True,
            )
        self.processes[APISERVER] = psutil.Process(self._revived.pid)

    def close(self) -> None:
        """End what the supervisor does not know."""
        if self._revived is not None:
            self._revived.kill()
            self._revived.wait()


@contextlib.contextmanager
def control_plane(scratch: Path, environment: Mapping[str, str]) -> Iterator[Plane]:
    """Start a control plane of its own, whose state lies below `scratch`."""
    told = subprocess.run(
        (*FLEET, "controlplane", "up"),
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        cwd=scratch,
        text=True,
    )
    try:
        info = attach(Path(told.stdout.strip().partition("=")[2]).parent)
        assert info is not None, told.stdout
        with contextlib.closing(Plane(info)) as plane:
            yield plane
    finally:
        down = (*FLEET, "controlplane", "down")
        subprocess.run(down, env=environment, check=True, cwd=scratch, stdout=subprocess.DEVNULL)
