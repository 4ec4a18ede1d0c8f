"""A scenario in virtual time, against the simulated control plane: `fleet run --simulate`.

    nodes -> Ready -> the phases of the file -> clean up -> summary, trace.jsonl

What happens, and when, is a function of the file, the options and the seed alone. How long it takes
is up to the machine; so of the figures those of the process are measured, all others are simulated.
"""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import orjson

from fleet.cluster.run_id import new_run_id
from fleet.errors import SetupError
from fleet.profile.loader import NodeMix
from fleet.profile.settings import Settings
from fleet.report.meter import Meter
from fleet.report.report import Phase, RunFigures
from fleet.report.run_directory import RunDirectory
from fleet.report.service_levels import Evidence, expectations, measure
from fleet.run.applied import Applied
from fleet.run.fault_control import FaultControl
from fleet.run.outcome import RunOutcome, how_longer
from fleet.run.page import about_run, report_of
from fleet.run.scenario_player import ScenarioPlayer, Stage
from fleet.run.simulated_host import ENCODING, RUN, SimulatedHost
from fleet.run.simulated_plane import SimulatedApi, SimulatedPlane
from fleet.run.virtual_loop import VirtualLoop
from fleet.simulation.components import Asked
from fleet.simulation.transport import Sent

TRACE = "trace.jsonl"
SAMPLE_S = 10.0
"""Of virtual time, between two lines of the time series."""
READY_WITHIN_S = 600.0
GC_THRESHOLD = 50_000
BUFFER_BYTES = 1 << 20
NO_METRICS = "the API server is simulated: it has no latency of its own"


class Trace:
    """The lines of `trace.jsonl`, in the order in which requests were answered."""

    def __init__(self, path: Path | None) -> None:
        self.lines = 0
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = path.open("wb", buffering=BUFFER_BYTES)
            except OSError as error:
                raise SetupError(f"{path}: {error.strerror}") from error

    def request(self, sent: Sent | Asked) -> None:
        """Write a request: when it was made, by whom, what it asked, its status (0: none)."""
        if isinstance(sent, Sent):
            self._write(
                b'{"t":%d.%09d,"client":"%b","verb":"%b","path":"%b","code":%d}\n'
                % (
                    *divmod(sent.t_ns, 10**9),
                    sent.node.encode(),
                    sent.verb.encode(),
                    sent.path.encode(),
                    sent.code,
                )
            )
        else:
            self._write(
                b'{"t":%d.%09d,"client":"%b","verb":"%b","path":"%b","code":200}\n'
                % (
                    *divmod(sent.t_ns, 10**9),
                    sent.client.encode(),
                    sent.verb.encode(),
                    sent.path.encode(),
                )
            )

    def note(self, now_ns: int, words: str) -> None:
        """Write what the run did: a phase, a fault."""
        told = orjson.dumps(words)
        self._write(b'{"t":%d.%09d,"note":%b}\n' % (*divmod(now_ns, 10**9), told))

    def _write(self, line: bytes) -> None:
        self.lines += 1
        if self._file is not None:
            self._file.write(line)

    def close(self) -> None:
        """Write what is left, and close it."""
        if self._file is not None:
            self._file.close()


class SimulatedRun:
    """Plays one; see the top of this file. Without a directory nothing is written."""

    def __init__(
        self,
        settings: Settings,
        mix: NodeMix,
        player: ScenarioPlayer,
        tell: Callable[[str], None],
        *,
        keeps: bool = True,
    ) -> None:
        self._settings = settings
        self._player = player
        self._tell = tell
        self._directory: RunDirectory | None = None
        seed = os.getpid() ^ time.monotonic_ns()
        run_id = settings.run_id or new_run_id(time.time_ns(), seed)
        if keeps:
            self._directory = RunDirectory(run_id, settings.run_dir)
            self._directory.describe(about_run(settings, is_local=False))
        path = self._directory.path / TRACE if self._directory is not None else None
        self._trace = Trace(path)
        self._host = SimulatedHost(settings, mix, self._trace.request)
        self._figures = RunFigures(
            run_id=run_id,
            server_version="simulated",
            fidelity=settings.fidelity,
            pace=settings.pace,
            identity=settings.identity,
            encoding=ENCODING,
            simulated_seed=settings.seed,
            how_longer=how_longer(settings, has_scenario=True),
        )
        host = self._host
        self._meter = Meter(self._figures, host.counts, host.state, {}, host.clock.now_ns)
        self._steady_s: float | None = None

    def run(self) -> RunOutcome:
        """Play it. Raises FleetError when it cannot be played."""
        begun_s = time.monotonic()
        gc.set_threshold(GC_THRESHOLD, 20, 50)
        try:
            with asyncio.Runner(loop_factory=lambda: VirtualLoop(self._host.world)) as runner:
                faults = runner.run(self._play())
        finally:
            gc.unfreeze()
            self._trace.close()
        figures = self._judge(faults)
        took_s = time.monotonic() - begun_s
        self._tell(f"{figures.wall_s:.0f} s of virtual time in {took_s:.1f} s")
        outcome = RunOutcome(figures, None, figures.exit_code())
        if self._directory is not None:
            outcome.run_directory = self._directory.path
            self._directory.finish(figures)
            outcome.report = report_of(self._settings, self._directory.path)
        return outcome

    async def _play(self) -> list[Phase]:
        host, settings = self._host, self._settings
        host.start()
        sampler = asyncio.ensure_future(self._sample())
        faults = FaultControl(
            host,
            self._meter.elapsed_s,
            self._note,
            lambda: None,
            lambda: SimulatedPlane(host.components),
        )
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(host.readiness.all_ready.wait(), READY_WITHIN_S)
            if not host.readiness.all_ready.is_set():
                ready = len(host.readiness.ready)
                words = f"only {ready} of {settings.nodes} nodes became Ready"
                self._figures.incomplete_reasons = [words]
                return []
            gc.freeze()
            self._steady_s = self._meter.elapsed_s()
            self._note(f"all {settings.nodes} nodes are Ready after {self._steady_s:.1f} s")
            await self._play_on(faults)
            return faults.phases()
        finally:
            sampler.cancel()
            self._sample_once()

    async def _play_on(self, faults: FaultControl) -> None:
        host = self._host
        api = SimulatedApi(host.requests, host.components, host.draws, self._asked)
        stage = Stage(
            faults,
            self._meter.elapsed_s,
            lambda: len(host.readiness.ready),
            lambda: self._settings.nodes,
            self._note,
            lambda _words: None,
            Applied(api, RUN),
        )
        try:
            await self._player.play(stage)
        finally:
            await faults.close()
            await self._player.clean_up(stage)
        if unplayed := self._player.unplayed():
            self._figures.incomplete_reasons = [unplayed]

    def _judge(self, faults: list[Phase]) -> RunFigures:
        """Write into the figures what was seen and how the run did."""
        figures, over_s = self._meter.figures(), self._meter.elapsed_s()
        steady_s = self._steady_s
        phases = [Phase(name="bring-up", until_s=steady_s if steady_s is not None else over_s)]
        evidence = Evidence(problem=NO_METRICS)
        if steady_s is not None:
            phases.append(Phase(name="steady", from_s=steady_s, until_s=over_s))
            evidence.steady_s = over_s - steady_s
        figures.phases = [*phases, *self._player.phases(), *faults]
        figures.slis = measure(figures, evidence, self._player.objectives())
        figures.expectations = [*expectations(figures.slis), *self._player.expectations()]
        return figures

    def _note(self, words: str) -> None:
        self._trace.note(self._host.clock.now_ns(), words)
        self._tell(words)

    def _asked(self, method: str, path: str, code: int) -> None:
        sent = Sent(self._host.clock.now_ns(), "fleet", method, path, code)
        self._trace.request(sent)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._sample_once()

    def _sample_once(self) -> None:
        if self._directory is not None and (news := self._directory.sample(self._meter.figures())):
            self._tell(news)
