"""The other processes of one run: a shard each, started, followed, restarted and summed up.

This process is the first shard and has the run's cluster, display and clean-up; its siblings are
`fleet spawn --shard N --run-id RUN --keep` on the same cluster. They die with it, and one that dies
alone is started again and adopts its nodes, since it is of the same run.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson

from fleet.config import Settings
from fleet.controlplane.process import Component
from fleet.display import LiveFigures
from fleet.report import FIGURES, RunFigures, merge
from fleet.settings import flag_of

POLL_S = 0.25
RESTART_S = 1.0
END_S_MAX = 150.0
LIVE = ".live.json"
"""How a process stands, for the one that shows the whole run."""

Note = Callable[[str], None]


def keep_live(directory: Path, live: LiveFigures) -> None:
    """Write how this process stands, whole or not at all."""
    partial = directory / f"{LIVE}.part"
    partial.write_bytes(orjson.dumps(live))
    partial.replace(directory / LIVE)


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

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or minus the signal that ended it."""
        assert self._process is not None
        return (await self._process.wait()).returncode

    def look(self) -> None:
        """Read how it stands; a process that has just been started has not said so yet."""
        self.live = None
        with contextlib.suppress(OSError, ValueError):
            self.live = LiveFigures(**orjson.loads((self.run_directory / LIVE).read_bytes()))

    async def stop(self) -> None:
        """Let it end in order."""
        if self._process is not None:
            await self._process.stop(END_S_MAX, politely=signal.SIGINT)

    def restart_kubelets(self) -> None:
        """Pass SIGHUP on, to a process that is far enough not to die of it."""
        self.look()
        if self._process is not None and self.live is not None:
            self._process.signal(signal.SIGHUP)

    def figures(self) -> list[RunFigures]:
        """Return what its processes measured; one that was killed has left nothing."""
        found = []
        for path in sorted(self.directory.glob(f"*/{FIGURES}")):
            figures = pickle.loads(path.read_bytes())  # noqa: S301 - our own process wrote it
            assert isinstance(figures, RunFigures), path
            found.append(figures)
        return found


class Siblings:
    """All other processes of a run."""

    def __init__(self, commands: Sequence[Sequence[str]], directory: Path, note: Note) -> None:
        self._note = note
        self._siblings = [
            Sibling(command, directory / f"process-{number:04d}")
            for number, command in enumerate(commands, start=1)
        ]
        self._work: list[asyncio.Task[None]] = []
        self.restarts = 0

    async def start(self) -> None:
        """Start all of them, and keep them going."""
        for sibling in self._siblings:
            await sibling.start()
            self._work.append(asyncio.create_task(self._keep(sibling)))

    async def wait_ready(self, nodes: int) -> None:
        """Wait until so many of their nodes are Ready."""
        while self.ready() < nodes:  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(POLL_S)

    def ready(self) -> int:
        """Return how many of their nodes are Ready."""
        return sum(each.nodes_ready for each in self.live())

    def live(self) -> list[LiveFigures]:
        """Return how those that have begun stand."""
        for sibling in self._siblings:
            sibling.look()
        return [each.live for each in self._siblings if each.live is not None]

    async def stop(self) -> None:
        """End all of them, at the same time."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await asyncio.gather(*(sibling.stop() for sibling in self._siblings))

    def restart_kubelets(self) -> None:
        """Tell those that have nodes to restart a share of their kubelets."""
        for sibling in self._siblings:
            sibling.restart_kubelets()

    def merged(self, own: RunFigures) -> RunFigures:
        """Return our figures with theirs."""
        others = [figures for sibling in self._siblings for figures in sibling.figures()]
        if self.restarts:
            reason = f"{self.restarts} times a process of the fleet died and was started again"
            own.invalid_reasons = [*own.invalid_reasons, reason]
        return merge([own, *others])

    async def _keep(self, sibling: Sibling) -> None:
        while True:
            code = await sibling.wait()
            self.restarts += 1
            self._note(f"{sibling.directory.name} ended with {code}; starting it again")
            await asyncio.sleep(RESTART_S)
            await sibling.start()


PASSED_ON = (
    "name_prefix",
    "profiles",
    "fidelity",
    "encoding",
    "watches",
    "identity",
    "bootstrap_kubeconfig",
    "approve_csrs",
    "in_cluster",
    "context",
    "no_taint",
    "zone_labels",
    "simulate_csi",
    "seed",
    "story",
    "restart_share",
    "metrics_host",
)
"""Fields of Settings that every process of a run has the same."""

OWN = frozenset(
    {
        *("nodes", "shard", "shard_stride", "nodes_total", "rate"),  # its part of the whole
        *("processes", "run_id", "holder", "run_dir", "keep"),  # of one run, whose end is ours
        *("kubeconfig", "confirm_cluster", "yes"),  # the cluster that we have found, and asked for
        *("metrics_port", "locust_master", "on_master_quit"),
    }
)
"""Those of which each process is told something else; see `sibling_arguments`."""

INHERITED = frozenset({"bootstrap_token", "cert_dir"})
"""Those that go by the environment, as set by `open_bootstrap`: a token is nobody's to read."""

FIRST_ONLY = frozenset(
    {
        *("duration_ns", "until_ready", "command", "statefulset", "manage"),
        *("output", "kubeconfig_out", "dashboard", "dashboard_port", "load", "api_users"),
        "dashboard_hosts",
        *("controlplane_bin", "fsync", "audit_log", "etcd_flags", "apiserver_flags"),
        *("scheduler_flags", "controller_manager_flags"),
    }
)
"""Those that only the first process needs: it has the end, the output and the control plane."""


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
    """Return the options of process `number` of a run. `kubeconfig` is a local control plane's."""
    share = settings.share(number)
    arguments = [
        f"--nodes={share.nodes}",
        f"--shard={share.shard}",
        f"--shard-stride={share.shard_stride}",
        f"--run-id={run_id}",
        f"--holder={settings.holder or run_id}",
        "--processes=1",
        "--keep",
        *(each for field in PASSED_ON for each in _passed_on(settings, field)),
    ]
    if share.rate:
        arguments.append(f"--rate={share.rate}")
    if settings.metrics_port:
        arguments.append(f"--metrics-port={settings.metrics_port + number}")
    if settings.locust_master:
        arguments += [f"--locust-master={settings.locust_master}", "--on-master-quit=hold"]
    if confirmation:
        arguments.append(f"--confirm-cluster={confirmation}")
    config = kubeconfig or settings.kubeconfig
    if config is not None:
        arguments.append(f"--kubeconfig={config}")
    return arguments


def _passed_on(settings: Settings, field: str) -> list[str]:
    """Return the options that give a process the value of a field, none for the default."""
    value, flag = getattr(settings, field), flag_of(field)
    if value == Settings.model_fields[field].default:
        return []
    if value is True:
        return [flag]
    if field == "profiles":
        return [f"{flag}={choice.source}={choice.weight}" for choice in value]
    return [f"{flag}={each}" for each in (value if isinstance(value, tuple) else (value,))]
