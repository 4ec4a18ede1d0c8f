"""The steady part of a run: that of a dashboard follows its number of nodes."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.controlplane.options import APISERVER
from fleet.host.node_host import NodeHost
from fleet.metrics import FleetCounts
from fleet.profile.settings import Settings
from fleet.report.control_plane import (
    REQUESTS,
    Component,
    ControlPlaneSampler,
    Exposition,
    Sample,
)
from fleet.report.display import LiveFigures
from fleet.report.meter import Meter
from fleet.report.record import judged
from fleet.report.report import RunFigures, ServiceLevel
from fleet.report.service_levels import DEFAULTS
from fleet.run.fault_control import FaultControl
from fleet.run.observation import Observation
from fleet.run.scenario_player import ScenarioPlayer

ON_DASHBOARD = Settings.from_options(dashboard=True)
BOUNDS = [0.1, 1.0, 2.0, math.inf]
Stand = tuple[int, int, float] | Callable[[], Awaitable[None]]
"""How many nodes are wanted and Ready for how many seconds, or what happens in between."""


class Server:
    """An API server that takes 100 writes of 1.5 s a minute, and is asked when it should be."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.began_s = 0.0  # it counts from then on
        self.apiserver = Component(APISERVER, cast("Any", None))
        self.components = [self.apiserver]

    async def sample(self) -> None:
        """Take what it tells now."""
        count = (self._now_s() - self.began_s) * 100 / 60
        rows = {(REQUESTS, "PUT|leases||resource"): [0.0, 0.0, count, count]}
        told = Exposition({}, rows, {REQUESTS: BOUNDS})
        self.apiserver.take(Sample(APISERVER, self._now_s(), 1.0, 9, told))


class Watched:
    """A run whose clock and number of nodes the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.server = Server(lambda: self.now_s)
        self.counts = FleetCounts()
        self._turn = asyncio.Event()
        self.seen = Observation(
            DEFAULTS,
            cast("NodeHost", SimpleNamespace(counts=self.counts, settings=ON_DASHBOARD)),
            cast("Meter", SimpleNamespace(elapsed_s=lambda: self.now_s)),
            cast("FaultControl", SimpleNamespace(on=list, phases=list)),
            None,
            cast("ControlPlaneSampler", self.server),
            {},
        )

        async def rest(_seconds: float) -> None:
            self._turn.clear()
            await self._turn.wait()

        monkeypatch.setattr(asyncio, "sleep", rest)

    async def stand(self, wanted: int, ready: int, seconds: float) -> None:
        """Let so many nodes be wanted and Ready for so long."""
        self.seen.tell(LiveFigures(nodes_requested=wanted, nodes_ready=ready))
        await self._look()
        self.now_s += seconds

    async def _look(self) -> None:
        for _ in range(2):  # one turn sees a change, the next one that all are Ready
            self._turn.set()
            for _ in range(20):
                await asyncio.get_running_loop().run_in_executor(None, lambda: None)

    def play(self, *stands: Stand) -> RunFigures:
        """Play a run on a dashboard, to its end; return how it was judged."""

        async def body() -> None:
            following = asyncio.ensure_future(self.seen.follow())
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
            for each in stands:
                await (self.stand(*each) if isinstance(each, tuple) else each())
            await self.seen.over()
            following.cancel()

        asyncio.run(body())
        figures = RunFigures(run_id="r", wall_s=self.now_s)
        return judged([self.seen.record(figures, ON_DASHBOARD, {}, is_over=True)])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def steady(figures: RunFigures) -> list[tuple[float, float | None]]:
    return [(each.from_s, each.until_s) for each in figures.phases if each.name == "steady"]


def level_of(figures: RunFigures, sli: str) -> ServiceLevel:
    [level] = [each for each in figures.slis if each.sli == sli]
    return level


def test_a_run_on_a_dashboard_has_a_steady_part_and_is_judged(run: Watched) -> None:
    """It had none, so that no run on a dashboard could fail."""
    figures = run.play((10, 4, 20), (10, 10, 90), (0, 10, 5), (0, 0, 600))  # Stop removes them
    assert steady(figures) == [(20.0, 110.0)]
    level = level_of(figures, "MutatingApiCallLatency")
    assert (level.samples, level.judged, level.met) == (150, True, False)
    assert figures.judgement().outcome == "fail"


def test_what_a_server_counted_before_it_was_started_again_is_judged(run: Watched) -> None:
    """A run passed by the calls after the last restart of its API server alone."""

    async def start_again() -> None:
        await run.server.sample()
        run.server.began_s = run.now_s

    figures = run.play((10, 4, 20), (10, 10, 60), start_again, (10, 10, 30))
    level = level_of(figures, "MutatingApiCallLatency")
    assert (level.samples, level.met) == (150, False)


def test_the_longest_of_several_numbers_of_nodes_is_judged(run: Watched) -> None:
    lost_one = (20, 19, 10)  # NotReady, which the server may be to blame for
    figures = run.play((5, 5, 30), (10, 5, 7), (10, 10, 70), (20, 20, 40), lost_one)
    assert steady(figures) == [(37.0, 107.0)]


def test_pods_that_prepare_a_run_are_no_samples_of_it(run: Watched) -> None:
    """200 slow starts in a burst load the nodes; 120 quick ones come in use."""
    player = SimpleNamespace(prepares=True, phases=[], expectations=[], progress=str)
    run.seen._player = cast("ScenarioPlayer", player)

    async def start_pods(count: int, us: int) -> None:
        for _ in range(count):
            run.counts.pod_start_sli.record(us)

    figures = run.play(
        partial(start_pods, 200, 9_000_000), (10, 10, 100), partial(start_pods, 120, 1_000_000)
    )
    level = level_of(figures, "PodStartupLatency")
    assert (level.samples, level.judged, level.met) == (120, True, True)


def test_a_dashboard_that_is_never_still_is_not_judged(run: Watched) -> None:
    figures = run.play(*((nodes, nodes - 1, 10) for nodes in range(1, 9)))
    assert [each.name for each in figures.phases] == ["bring-up"]
    assert figures.judgement().outcome == "not-judged"
