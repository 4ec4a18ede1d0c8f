"""The other processes of one run: a shard each, started, followed and restarted.

Their records are added up by `report/record.py`.

This process is the first shard and has the run's cluster, display and clean-up; its siblings are
`fleet spawn --shard N --run-id RUN --keep` on the same cluster. They die with it.

    started --> up --dies--> started again, later each time; it adopts its nodes, being of the run
    started --usage or set-up error--> the run ends with that line: the next start would fail, too

Of one that was up before, a set-up error may be an API server that is away: it has some tries more.
"""

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path

import orjson

from fleet.background import BACKOFF_FIRST_S, BACKOFF_MAX_S, STEADY_S, Background, give_up
from fleet.controlplane.options import ComponentDeath
from fleet.controlplane.process import Component
from fleet.errors import Exit, FleetError, SetupError, UsageError
from fleet.profile.option_types import rate_text
from fleet.profile.settings import ServeMode, Settings, flags_of
from fleet.report.display import LiveFigures
from fleet.report.run_directory import write_whole

POLL_S = 0.25
SETUP_TRIES_MAX = 5  # of a process that was up before: within a minute
END_S_MAX = 150.0
SAYS = "fleet: "
"""How the last line of a process begins that could not run."""
LIVE = ".live.json"
"""How a process stands, for the one that shows the whole run."""

Note = Callable[[str], None]


def keep_live(directory: Path, live: LiveFigures) -> None:
    """Write how this process stands. Raises SetupError."""
    write_whole(directory / LIVE, orjson.dumps(live))


class Sibling:
    """One other process."""

    def __init__(self, arguments: Sequence[str], directory: Path) -> None:
        self.directory = directory
        self.live: LiveFigures | None = None
        self._arguments = tuple(arguments)
        self._attempt = 0
        self._process: Component | None = None

    @property
    def run_directory(self) -> Path:
        """Where the present process writes."""
        return self.directory / f"{self._attempt}"

    async def start(self) -> None:
        """Start the process, or another one in its place."""
        self._attempt += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        command = (sys.executable, "-m", "fleet.cli", "spawn", *self._arguments)
        run_directory = f"--run-dir={self.run_directory}"
        log = self.directory / "log"
        self._process = Component(
            self.directory.name,
            [*command, run_directory],
            log,
            environment=without_options(os.environ),
        )
        await self._process.start()

    async def wait(self) -> ComponentDeath:
        assert self._process is not None
        return await self._process.wait()

    def look(self) -> None:
        """Read how it stands; a process that has just been started has not said so yet."""
        self.live = None
        with contextlib.suppress(OSError, ValueError):
            self.live = LiveFigures(**orjson.loads((self.run_directory / LIVE).read_bytes()))

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(END_S_MAX, politely=signal.SIGINT)


@dataclass(eq=False)
class Siblings:
    """All other processes of a run."""

    commands: InitVar[Sequence[Sequence[str]]]
    directory: InitVar[Path]
    _note: Note
    _end: Callable[[FleetError], None]  # takes the reason why the run cannot go on
    _: KW_ONLY
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now_s: Callable[[], float] = time.monotonic
    restarts: int = 0
    _work: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self, commands: Sequence[Sequence[str]], directory: Path) -> None:
        self._siblings = [
            Sibling(command, directory / f"process-{number:04d}")
            for number, command in enumerate(commands, start=1)
        ]

    async def start(self, background: Background) -> None:
        """Start all of them, and keep them going."""
        for sibling in self._siblings:
            await sibling.start()
            name = sibling.directory.name
            self._work.append(background.need(name, functools.partial(self._keep, sibling)))

    async def wait_ready(self, nodes: int, stalled_s: float | None = None) -> None:
        """Wait until so many of their nodes are Ready, or no more became so for `stalled_s`."""
        seen, since_s = -1, self.now_s()
        while (ready := self.ready()) < nodes:
            if ready > seen:
                seen, since_s = ready, self.now_s()
            elif stalled_s is not None and self.now_s() - since_s > stalled_s:
                return
            await self.sleep(POLL_S)

    def ready(self) -> int:
        return sum(each.nodes_ready for each in self.live())

    def live(self) -> list[LiveFigures]:
        """Return how those that have begun stand."""
        for sibling in self._siblings:
            sibling.look()
        return [each.live for each in self._siblings if each.live is not None]

    async def stop(self) -> None:
        """End all of them, at the same time."""
        await give_up(*self._work)
        await asyncio.gather(*(sibling.stop() for sibling in self._siblings))

    def run_directories(self) -> list[Path]:
        """Return where the present processes write."""
        return [each.run_directory for each in self._siblings]

    async def _keep(self, sibling: Sibling) -> None:
        name, tries, was_up = sibling.directory.name, 0, False
        while True:
            begun_s = self.now_s()
            death = await sibling.wait()
            sibling.look()
            is_up = sibling.live is not None
            was_up = was_up or is_up
            if is_up and self.now_s() - begun_s > STEADY_S:
                tries = 0
            tries += 1
            error = refusal(death)
            if isinstance(error, UsageError) or (
                error is not None and (not was_up or tries > SETUP_TRIES_MAX)
            ):
                self._end(error)
                return
            self.restarts += 1
            why = f": {error}" if error is not None else ""
            wait_s = min(BACKOFF_FIRST_S * 2.0 ** (tries - 1), BACKOFF_MAX_S)
            again = f"starting it again in {wait_s:.0f} s"
            self._note(f"{name} ended with {death.returncode}; {again}{why}")
            await self.sleep(wait_s)
            await sibling.start()


def refusal(death: ComponentDeath) -> FleetError | None:
    """Return why a process would not run, in its own line; None if it died of something else."""
    if death.returncode not in (Exit.USAGE, Exit.SETUP):
        return None
    kind = UsageError if death.returncode == Exit.USAGE else SetupError
    said = [line for line in death.last_lines if line.startswith(SAYS)]
    line = said[-1].removeprefix(SAYS) if said else f"no reason given, see {death.log}"
    return kind(f"{death.component}: {line}")


OWN = frozenset(
    {
        # Its part of the whole.
        *("nodes", "max_nodes", "shard", "shard_stride", "nodes_total", "rate"),
        # One run, whose end is ours.
        *("processes", "run_id", "holder", "run_dir", "keep", "record"),
        # The cluster that we have found, and asked for.
        *("kubeconfig", "confirm_cluster", "shared"),
        *("serve", "serve_at", "metrics_port", "locust_master", "on_master_quit"),
    }
)
"""Fields of Settings of which each process gets its own value; see `sibling_arguments`."""

INHERITED = frozenset({"bootstrap_token", "cert_dir"})
"""Those that go by the environment, as set by `open_bootstrap`: a token is nobody's to read."""

FIRST_ONLY = frozenset(
    {
        *("duration_ns", "until_ready", "command", "statefulset", "manage"),
        *("slo", "no_report", "title", "quiet", "stop_if", "dry_run"),
        *("output", "kubeconfig_out", "dashboard", "dashboard_port", "dashboard_hosts"),
        *("load", "api_users", "load_cluster_role", "real_nodes"),
        *("controlplane_bin", "kubernetes_version", "fsync", "audit_log", "etcd_flags"),
        *("apiserver_flags", "scheduler_flags", "controller_manager_flags"),
    }
)
"""Those that only the first process needs: it has the end, the output and the control plane."""

PASSED_ON = tuple(
    each for each in Settings.model_fields if each not in OWN | INHERITED | FIRST_ONLY
)
"""All others, of which every process of a run has the same."""


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without options of `fleet spawn`, but for those that are INHERITED."""
    fields = Settings.model_fields.items()
    options = {
        f"FLEET_{(field.alias or name).upper()}" for name, field in fields if name not in INHERITED
    }
    return {name: value for name, value in environ.items() if name not in options}


def sibling_arguments(
    settings: Settings, number: int, run_id: str, kubeconfig: Path | None, confirmation: str
) -> list[str]:
    """Return the options of process `number` of a run. `kubeconfig` is a local control plane's.

    `confirmation` is of a shared cluster, "" for one that is fleet's own.
    """
    share = settings.share(number)
    serve, serve_at = settings.serve, settings.serve_at
    if serve is ServeMode.AUTO and kubeconfig is not None:
        serve = ServeMode.LOOPBACK  # to the process it is a cluster that was named
    if serve_at:
        address, port = settings.serve_address
        before = sum(settings.share(each).most for each in range(number))
        serve_at = f"{address}:{port + before}"
    arguments = flags_of(
        settings.stated(PASSED_ON)
        | {
            "nodes": share.nodes,
            "shard": share.shard,
            "shard_stride": share.shard_stride,
            "run_id": run_id,
            "holder": settings.holder or run_id,
            "processes": 1,
            "keep": True,
            "record": "cluster" if settings.keeps_records else "files",
            "max_nodes": share.max_nodes or None,
            "rate": rate_text(share.rate) if share.rate else None,
            "serve": serve,
            "serve_at": serve_at,
            "metrics_port": settings.metrics_port + number if settings.metrics_port else None,
            "locust_master": settings.locust_master,
            "on_master_quit": "hold" if settings.locust_master else None,
            "confirm_cluster": confirmation,
            "kubeconfig": kubeconfig or settings.kubeconfig,
        }
    )
    return [*arguments, "--shared" if confirmation else "--not-shared"]
