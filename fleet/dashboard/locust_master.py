"""Processes of Locust: the master as a child of a run, API users next to it, and either alone.

A master is started with fleet's locustfile, never imported. It prints one line of JSON with the
ports that it found (port 0 works for both), and dies with us. What Locust reads from its own
variables ($LOCUST_MASTER_BIND_HOST, $LOCUST_MASTER_NODE_HOST ...) is not repeated here.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.controlplane.flags import LOOPBACK
from fleet.controlplane.process import Component
from fleet.dashboard.door import TOKEN_VARIABLE, token_from
from fleet.dashboard.load_credentials import KUBECONFIG, NAMESPACE, RUN, LoadCredentials
from fleet.errors import SetupError, UsageError
from fleet.profile.loader import shipped_directory
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
    hosts: tuple[str, ...] = ()  # by which names browsers know the dashboard, besides loopback
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
        return f"http://{LOOPBACK}:{self.ports.web}/fleet?token={self.options.token}"

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


USERS_END_S_MAX = 10.0


def find_loads(names: Sequence[Path]) -> tuple[Path, ...]:
    """Return the locustfiles that were named, shipped ones by their bare name. UsageError."""
    found = []
    for name in names:
        shipped = shipped_directory() / "loads" / f"{name}.py"
        path = name if name.is_file() else shipped
        if not path.is_file():
            known = ", ".join(sorted(each.stem for each in shipped.parent.glob("*.py")))
            raise UsageError(
                f"--load {name}: no such file, and no shipped load; there are: {known}"
            )
        found.append(path.absolute())
    return tuple(found)


class LoadWorker:
    """One plain Locust worker process."""

    def __init__(
        self, loads: Sequence[Path], kubeconfig: Path, directory: Path, run: str, namespace: str
    ) -> None:
        self._loads = loads
        self._told = {KUBECONFIG: str(kubeconfig), RUN: run, NAMESPACE: namespace}
        self._log = directory / "locust-users.log"

    async def serve(self, port: int) -> None:
        """Run it for the master on a port of loopback. Raises SetupError if it ends by itself."""
        command = [
            *locust_with(self._loads),
            *("--worker", "--master-host", LOOPBACK, "--master-port", str(port)),
        ]
        # A locustfile of others has no business with the dashboard's token, nor with the nodes'.
        environment = {**without_secrets(os.environ), **self._told}
        process = Component("API users", command, self._log, environment=environment)
        await process.start()
        try:
            death = await process.wait()
        finally:
            await process.stop(USERS_END_S_MAX)
        raise SetupError(str(death))


HOSTS = ("--master-bind-host", "--web-host")
"""The port for workers has no authentication, and Locust opens both to everyone by default."""
PORTS = {"--master-bind-port": "5557", "--web-port": "8089"}  # and what Locust takes by default


def master_of_its_own(
    loads: Sequence[Path], arguments: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the command of a master.

    Raises UsageError for a load that is not there or a token that is none, SetupError for a port
    that is taken: Locust itself ends with a traceback.
    """
    token_from(environ)
    given = _given(arguments, environ)
    for flag, default in PORTS.items():
        port = given[flag] or default
        is_used = flag != "--web-port" or not given["--headless"]
        if port.isdecimal() and is_used:
            check_port(flag, int(port))
    closed = [word for flag in HOSTS if not given[flag] for word in (flag, LOOPBACK)]
    return [*locust_with(find_loads(loads)), "--master", *closed, *arguments]


def _given(arguments: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return options of Locust's as it would read them, "" for those that are not given."""
    parser = argparse.ArgumentParser(prog="fleet locust master", add_help=False, allow_abbrev=False)
    flags = [
        *(parser.add_argument(flag) for flag in (*HOSTS, "--master-bind-port")),
        parser.add_argument("--web-port", "-P"),
        parser.add_argument("--headless", action="store_const", const="true"),
    ]
    found, _others = parser.parse_known_args(arguments)
    return {
        flag.option_strings[0]: getattr(found, flag.dest)
        or environ.get(f"LOCUST_{flag.dest.upper()}", "")
        for flag in flags
    }


def users_of_their_own(
    loads: Sequence[Path], arguments: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the command of a worker of API users. Raises UsageError if they could not begin."""
    if not loads:
        raise UsageError("--load: name a locustfile, or api_users")
    LoadCredentials.from_environment(environ)
    return [*locust_with(find_loads(loads)), "--worker", *arguments]
