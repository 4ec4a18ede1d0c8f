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
from fleet.report import FIGURES, TIMESERIES, RunFigures, merge

POLL_S = 0.25
RESTART_S = 1.0
END_S_MAX = 150.0
LAST_BYTES = 65_536  # more than two lines

Note = Callable[[str], None]


class Sibling:
    """One other process."""

    def __init__(self, arguments: Sequence[str], directory: Path) -> None:
        self.directory = directory
        self.nodes: dict[str, int] = {}
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
        """Read how its nodes stand."""
        path = self.run_directory / TIMESERIES
        with contextlib.suppress(OSError, ValueError, IndexError), path.open("rb") as lines:
            lines.seek(0, 2)
            lines.seek(max(0, lines.tell() - LAST_BYTES))
            self.nodes = orjson.loads(lines.read().splitlines()[-1])["nodes"]

    async def stop(self) -> None:
        """Let it end in order."""
        if self._process is not None:
            await self._process.stop(END_S_MAX, politely=signal.SIGINT)

    def restart_kubelets(self) -> None:
        """Pass SIGHUP on, to a process that is far enough not to die of it."""
        self.look()
        if self._process is not None and self.nodes:
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
        for sibling in self._siblings:
            sibling.look()
        return sum(sibling.nodes.get("ready", 0) for sibling in self._siblings)

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


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no option of `fleet spawn` is: a sibling is told its own."""
    fields = Settings.model_fields.items()
    options = {f"FLEET_{(field.alias or name).upper()}" for name, field in fields}
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
        f"--name-prefix={settings.name_prefix}",
        f"--fidelity={settings.fidelity}",
        f"--encoding={settings.wire_encoding}",
        f"--identity={settings.identity}",
        f"--seed={settings.seed}",
        f"--run-id={run_id}",
        f"--holder={settings.holder or run_id}",
        "--processes=1",
        "--keep",
        *(f"--profile={choice.source}={choice.weight}" for choice in settings.profiles),
    ]
    if share.rate:
        arguments.append(f"--rate={share.rate}")
    if settings.watches is not None:
        arguments.append(f"--watches={settings.watches}")
    if settings.restart_share < 1:
        arguments.append(f"--restart-share={settings.restart_share}")
    if settings.metrics_port:
        arguments.append(f"--metrics-port={settings.metrics_port + number}")
        arguments.append(f"--metrics-host={settings.metrics_host}")
    if settings.locust_master:
        arguments += [f"--locust-master={settings.locust_master}", "--on-master-quit=hold"]
    if confirmation:
        arguments.append(f"--confirm-cluster={confirmation}")
    flags = {"--no-taint": settings.no_taint, "--zone-labels": settings.zone_labels}
    flags["--in-cluster"] = settings.in_cluster
    flags["--approve-csrs"] = settings.approve_csrs
    arguments += [flag for flag, is_set in flags.items() if is_set]
    config = kubeconfig or settings.kubeconfig
    if config is not None:
        arguments.append(f"--kubeconfig={config}")
    if settings.context:
        arguments.append(f"--context={settings.context}")
    if settings.bootstrap_kubeconfig:
        arguments.append(f"--bootstrap-kubeconfig={settings.bootstrap_kubeconfig}")
    return arguments
