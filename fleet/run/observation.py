"""What is seen of a run besides its nodes: the control plane's metrics, phases, and its record.

    begin --all nodes are Ready--> steady --drain--> over

Where a dashboard changes the number of nodes, the steady part ends with each change, and another
begins when as many nodes as it asks for are Ready: the longest part is judged. Only the first
process of a run looks at the control plane: the others would ask the same again.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fleet.background import Background
from fleet.controlplane.options import APISERVER, SCHEDULER
from fleet.host.node_host import NodeHost
from fleet.metrics import Histogram
from fleet.profile.settings import Settings
from fleet.report.control_plane import ControlPlaneSampler, Exposition
from fleet.report.display import LiveFigures, clock
from fleet.report.meter import Meter
from fleet.report.record import Record
from fleet.report.report import ControlPlaneFigures, Phase, RunFigures
from fleet.report.service_levels import STEADY, Evidence, Objective
from fleet.run.control_socket import Json
from fleet.run.fault_control import FaultControl, reach_words
from fleet.run.scenario_player import ScenarioPlayer

LAST_SAMPLE_S = 5.0
"""Begin and end of a run wait no longer for an API server that answers late."""

FOLLOW_S = 1.0
"""How often a change of the number of nodes is looked for: as often as the display is drawn."""

Snapshots = dict[tuple[str, str], dict[int, dict[int, int]]]


class SteadyPart(NamedTuple):
    """A time during which all nodes that were asked for had become Ready, and stayed so many."""

    from_s: float
    until_s: float
    server: Exposition | None
    """What the API server reported of it, None if it did not answer often enough."""
    client: list[tuple[str, str, int, Histogram]]
    """What the nodes saw."""
    pod_starts: Histogram
    scheduler: Exposition | None

    @property
    def length_s(self) -> float:
        return self.until_s - self.from_s


@dataclass(eq=False)
class Observation:
    """See the top of this file. `objectives` are what the run is held to.

    `sampler` is None in a process that leaves the control plane to another one.
    """

    _objectives: tuple[Objective, ...]
    _node_host: NodeHost
    _meter: Meter
    _faults: FaultControl
    _player: ScenarioPlayer | None
    _sampler: ControlPlaneSampler | None
    _asked: Mapping[str, int]  # requests that fleet makes for itself, by purpose
    _first_s: float | None = None  # when all nodes were first Ready
    _steady_s: float | None = None  # since when the present part is
    _over_s: float | None = None
    _told: Exposition | None = None  # by the API server before that part
    _scheduled: Exposition | None = None  # by the scheduler
    _pods_before: dict[int, int] = field(default_factory=dict)
    _before: Snapshots = field(default_factory=dict)
    _part: SteadyPart | None = None  # the longest that is over
    latest: LiveFigures = field(default_factory=LiveFigures)  # as the terminal shows it

    def __post_init__(self) -> None:
        self._began_s = time.time() - self._meter.elapsed_s()

    async def begun(self) -> None:
        """Wait for the first look at the control plane: what nodes do is measured from there."""
        if self._sampler is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sampler.has_looked.wait(), LAST_SAMPLE_S)

    def tell(self, live: LiveFigures) -> None:
        """Add what is on, and what is played, to what the terminal shows."""
        self.latest = live
        live.faults = [_fault_words(each) for each in self._faults.on()]
        if self._player is not None:
            live.scenario = self._player.progress(live.elapsed_s)

    async def follow(self) -> None:
        """Begin and end steady parts as a dashboard changes the number of nodes."""
        wanted = 0
        while True:
            await asyncio.sleep(FOLLOW_S)
            live = self.latest
            if live.nodes_requested != wanted:
                wanted = live.nodes_requested
                await self.unsteady()
            elif wanted and self._steady_s is None and live.nodes_ready == wanted:
                await self.steady()

    async def steady(self) -> None:
        """Note that all nodes are Ready: from here on the run is what it is for."""
        await self._sample()
        self._steady_s = self._meter.elapsed_s()
        self._first_s = self._first_s or self._steady_s
        self._told = self._counted(APISERVER)
        self._scheduled = self._counted(SCHEDULER)
        self._pods_before = self._node_host.counts.pod_start_sli.snapshot()
        rows = self._node_host.counts.requests.rows
        self._before = {
            row: {code: each.snapshot() for code, each in codes.items()}
            for row, codes in rows.items()
        }

    async def unsteady(self) -> None:
        """Note that the steady part is over, if there is one; the longest is judged."""
        if self._steady_s is None:
            return
        until_s = self._meter.elapsed_s()
        await self._sample()
        self._part = self._longest(until_s)
        self._steady_s = None

    def _longest(self, until_s: float) -> SteadyPart | None:
        """Return the longest steady part, of which the present one lasted until `until_s`."""
        if self._steady_s is None:
            return self._part
        client = []
        for row, codes in self._node_host.counts.requests.rows.items():
            before = self._before.get(row, {})
            for code, histogram in codes.items():
                client.append((*row, code, histogram.since(before.get(code, {}))))
        server = _between(self._told, self._counted(APISERVER))
        scheduler = _between(self._scheduled, self._counted(SCHEDULER))
        pods = self._node_host.counts.pod_start_sli.since(self._pods_before)
        part = SteadyPart(self._steady_s, until_s, server, client, pods, scheduler)
        is_longest = self._part is None or part.length_s > self._part.length_s
        return part if is_longest else self._part

    async def over(self) -> None:
        """Note that the run is over, before its nodes fall silent."""
        self._over_s = self._meter.elapsed_s()
        is_steady = self._steady_s is not None
        await (self.unsteady() if is_steady else self._sample())

    async def _sample(self) -> None:
        if self._sampler is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sampler.sample(), LAST_SAMPLE_S)

    def record(
        self, figures: RunFigures, settings: Settings, about: Json, *, is_over: bool
    ) -> Record:
        """Return what this process has measured so far; `settings` are those of all processes."""
        now_s, player = self._meter.elapsed_s(), self._player
        part = self._longest(now_s)
        played = player.phases if player is not None else []
        phases = [*self._phases(part, self._over_s or now_s), *played, *self._faults.phases()]
        is_ready = self._first_s is not None and not settings.is_on_dashboard
        own = self._node_host.settings
        return Record(
            shard=own.shard or 0,
            name=own.lease_prefix,
            shards=settings.shards_wanted,
            began_s=self._began_s,
            ready_s=self._began_s + (self._first_s or 0.0) if is_ready else None,
            is_over=is_over,
            is_leader=self._sampler is not None,
            figures=replace(figures, phases=phases, controlplane=self._cost()),
            evidence=self._evidence(part),
            objectives=self._objectives,
            waited=tuple(player.expectations) if player is not None else (),
            about=about,
        )

    def _phases(self, part: SteadyPart | None, now_s: float) -> list[Phase]:
        found = [Phase(name="bring-up", until_s=part.from_s if part else now_s)]
        if part is not None:
            found.append(Phase(name=STEADY, from_s=part.from_s, until_s=part.until_s))
        return found

    def _cost(self) -> ControlPlaneFigures:
        asked = dict(sorted(self._asked.items()))
        if self._sampler is None:
            return ControlPlaneFigures(asked_by_fleet=asked)
        listed, apiserver = self._sampler.components, self._sampler.apiserver
        last = apiserver.last
        return ControlPlaneFigures(
            samples=sum(each.samples for each in listed),
            lost=sum(each.lost for each in listed),
            bytes=last.size if last is not None else 0,
            took_ms=last.took_ms if last is not None else None,
            problem=apiserver.problem if last is None else "",
            asked_by_fleet=asked,
        )

    def _evidence(self, part: SteadyPart | None) -> Evidence:
        evidence = Evidence(client=part.client if part is not None else ())
        if self._sampler is None:
            evidence.problem = "another process looks at it"
            evidence.pod_starts = part.pod_starts if part is not None else None
            return evidence
        if part is not None:
            evidence.steady_s, evidence.steady = part.length_s, part.server
        for each in self._sampler.components:
            if each is self._sampler.apiserver:
                if each.last is None:
                    evidence.problem = f"no metrics of the API server: {each.problem}"
                else:
                    evidence.whole = each.counted
            elif each.name == SCHEDULER and each.last is not None:
                evidence.scheduler = each.counted
        if part is not None and self._player is not None and self._player.prepares:
            evidence.pod_starts, evidence.scheduler = part.pod_starts, part.scheduler
        return evidence

    def _counted(self, name: str) -> Exposition | None:
        listed = self._sampler.components if self._sampler is not None else ()
        return next((each.counted for each in listed if each.name == name and each.last), None)


def _between(before: Exposition | None, after: Exposition | None) -> Exposition | None:
    """Return what a component reported of a time, None if it was asked but once."""
    if before is None or after is None or after is before:
        return None
    return after.since(before)


def _fault_words(fault: Json) -> str:
    left_s = fault["left_s"]
    left = "until it is healed" if left_s is None else f"{clock(left_s)} left"
    return f"{fault['fault']}{reach_words(fault['nodes'], fault['of'])}, {left}"


async def serve_metrics(background: Background, node_host: NodeHost) -> None:
    """Answer scrapes and probes.

    Ready means that all nodes once were, or that a dashboard says how many there are.
    """
    from fleet.report.prometheus import FleetCollector, MetricsServer  # noqa: PLC0415 - 3 MB

    settings, all_ready = node_host.settings, node_host.readiness.all_ready
    server = MetricsServer(
        [
            FleetCollector(
                node_host.counts, node_host.state, node_host.reactor.kubelets.pods_by_phase
            )
        ],
        settings.metrics_host,
        settings.metrics_port,
        is_ready=lambda: settings.is_on_dashboard or all_ready.is_set(),
    )
    await server.start()
    background.keep("the metrics server", server.serve)
