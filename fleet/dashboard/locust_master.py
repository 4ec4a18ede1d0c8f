"""The Locust master as a child process: started with fleet's locustfile, never imported.

It prints one line of JSON with the ports that it found (port 0 works for both). It dies with us.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.controlplane.flags import LOOPBACK
from fleet.controlplane.process import Component
from fleet.dashboard.door import TOKEN_VARIABLE
from fleet.errors import SetupError
from fleet.profile.secret_variables import without_secrets

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
START_S_MAX = 60.0
INTERRUPTS_MAX = 4
END_S_MAX = 5.0
POLL_S = 0.05
DEFAULT_RATE = 100.0


class Ports(NamedTuple):
    """Where a master listens: for workers, and for browsers."""

    master: int
    web: int


class MasterOptions(NamedTuple):
    """What a master is started with."""

    nodes: int
    rate: float
    workers: int
    directory: Path  # where its report, CSV files and log go
    token: str  # opens its dashboard; by the environment, which is nobody's to read but ours
    web_port: int = 0
    hosts: tuple[str, ...] = ()  # by which names browsers know the dashboard, beside loopback
    load: tuple[Path, ...] = ()
    api_users: int = 0


def locust_with(loads: Sequence[Path]) -> list[str]:
    """Return the command of a Locust that has loaded fleet's locustfile, and those of API users."""
    files = ",".join(str(each) for each in (LOCUSTFILE, *loads))
    return [sys.executable, "-m", "locust", "-f", files]


def master_command(options: MasterOptions, ports: Ports) -> list[str]:
    """Return the command of a master on loopback that starts its run by itself.

    One that comes back gets the ports that it had: workers and browsers know them.
    """
    prefix = options.directory / "locust"
    return [
        *locust_with(options.load),
        *("--master", "--master-bind-host", LOOPBACK, "--master-bind-port", str(ports.master)),
        *("--web-host", LOOPBACK, "--web-port", str(ports.web or options.web_port)),
        *(word for host in options.hosts for word in ("--dashboard-host", host)),
        *("--autostart", "--expect-workers", str(options.workers)),
        *("--users", str(options.nodes + options.api_users), "--fleet-nodes", str(options.nodes)),
        *("--spawn-rate", f"{options.rate:g}"),
        *("--html", f"{prefix}.html", "--csv", str(prefix), "--json-file", str(prefix)),
        *("--exit-code-on-error", "0"),
    ]


def check_port(flag: str, port: int) -> None:
    """Raise SetupError if a port of loopback is taken; 0 never is."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise SetupError(f"{flag} {port}: {error.strerror}") from error


class LocustMaster:
    """One master process, started again if it ends by itself."""

    def __init__(self, options: MasterOptions) -> None:
        self.options = options
        self.ports = Ports(0, 0)
        self.log = options.directory / "locust.log"
        self._process: Component | None = None

    @property
    def url(self) -> str:
        """Where the dashboard is, with what opens it."""
        return f"http://{LOOPBACK}:{self.ports.web}/?token={self.options.token}"

    async def start(self) -> None:
        """Start it and learn its ports. Raises SetupError with its last words."""
        check_port("--dashboard-port", self.options.web_port)
        command = master_command(self.options, self.ports)
        environment = {**without_secrets(os.environ), TOKEN_VARIABLE: self.options.token}
        self._process = process = Component(
            "the Locust master", command, self.log, environment=environment
        )
        await process.start()
        try:
            self.ports = await asyncio.wait_for(_read_ports(process), START_S_MAX)
        except (TimeoutError, EOFError) as error:
            words = " ".join(process.last_lines())
            await process.stop(0)
            raise SetupError(f"the Locust master did not start, see {self.log}: {words}") from error

    async def wait(self) -> int:
        """Wait until it ends; return its exit code, or minus the signal that ended it."""
        assert self._process is not None
        return (await self._process.wait()).returncode

    async def stop(self) -> None:
        """Let it write its reports and end.

        Ctrl-C is repeated for a master that was not set up yet when the first came; on SIGTERM,
        the last resort but one, Locust writes no HTML.
        """
        process = self._process
        if process is None:
            return
        for _ in range(INTERRUPTS_MAX):
            process.signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_S_MAX)
                return
        await process.stop(END_S_MAX)


async def _read_ports(process: Component) -> Ports:
    """Wait for the line of JSON. Raises EOFError if the master ends before."""
    while process.is_running:
        for line in process.output().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(line)["fleet"]
                return Ports(found["master"], found["web"])
        await asyncio.sleep(POLL_S)
    raise EOFError
