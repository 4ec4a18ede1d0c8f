"""`--metrics-port`: what a fleet does, in Prometheus' text format, at `/metrics`.

Computed when it is asked for, from the counters that the summary is made of; nothing is counted
twice. The number of series is bounded: verbs, resources and codes, never nodes or pods.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from fleet.errors import SetupError
from fleet.metrics import FleetCounts, Histogram, Requests, merged
from fleet.report import figures
from fleet.report.figure import Figure, Kind, figures_of

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Samples = Sequence[tuple[Sequence[str], float | Histogram]]  # values by the values of the labels


@dataclass(eq=False)
class FleetCollector(Collector):
    """Reads the counters of one process at each scrape, how its nodes stand, and its pods."""

    _counts: FleetCounts
    _state: Callable[[], figures.HostState]
    _pods_by_phase: Callable[[], dict[str, int]]

    def collect(self) -> Iterator[Metric]:
        counts, state = self._counts, self._state()
        absent = state.present - state.ready
        yield _metric(figures.NODES, [(["Ready"], state.ready), (["NotReady"], absent)])
        yield _metric(figures.KUBELETS, [([], state.running)])
        yield _metric(
            figures.PODS, [([phase], count) for phase, count in self._pods_by_phase().items()]
        )
        is_valid = not (counts.bugs or counts.quarantined or state.own_limits)
        yield _metric(figures.VALID, [([], is_valid)])
        yield _metric(
            figures.OWN_LIMITS, [([name], count) for name, count in state.own_limits.items()]
        )
        yield _metric(figures.ANSWERS, _answers(counts.requests))
        rows = counts.requests.rows.items()
        yield _metric(figures.LATENCIES, [(row, merged(codes.values())) for row, codes in rows])
        for figure in figures.of_counts():
            if figure.metric:
                yield _metric(figure, [([], getattr(counts, figure.counter))])
        yield from agent_metrics(state.agents)


def agent_metrics(agents: figures.ByName) -> Iterator[Metric]:
    """Yield what ran next to the kubelets; the names are those of the profiles."""
    for field, figure in figures_of(figures.AgentFigures).items():
        if agents and figure.metric:
            values = [(name, getattr(each, field)) for name, each in agents.items()]
            yield _metric(figure, [row for name, each in values for row in _rows(name, each)])


def _rows(agent: str, value: int | Requests) -> Samples:
    if isinstance(value, Requests):
        return [((agent, *labels), count) for labels, count in _answers(value)]
    return [([agent], value)]


def _answers(requests: Requests) -> Samples:
    return [
        ((*row, str(code)), histogram.count)
        for row, codes in requests.rows.items()
        for code, histogram in codes.items()
    ]


def _metric(figure: Figure, samples: Samples) -> Metric:
    """Return what a figure is in a scrape, with the values by label."""
    name, text = f"fleet_{figure.metric}", f"{figure.words[:1].upper()}{figure.words[1:]}."
    if figure.kind is Kind.HISTOGRAM:
        times = HistogramMetricFamily(name, text, labels=figure.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram), figure
            times.add_metric(labels, *prometheus_histogram(value))
        return times
    is_counter = figure.kind is Kind.COUNTER
    made = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
        name, text, labels=figure.labels
    )
    for labels, value in samples:
        assert not isinstance(value, Histogram), figure
        made.add_metric(labels, value)
    return made


def prometheus_histogram(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets and the sum, in seconds; a sample counts where its bucket ends."""
    rest = sorted(histogram.buckets.items())
    buckets: list[tuple[str, float]] = []
    at = seen = 0
    for bound in BOUNDS_S:
        limit_us = bound * 1e6
        while at < len(rest) and rest[at][0] < limit_us:
            seen += rest[at][1]
            at += 1
        buckets.append((str(bound), seen))
    buckets.append(("+Inf", histogram.count))
    return buckets, histogram.sum_us / 1e6


@dataclass(eq=False)
class MetricsServer:
    """Serves `/metrics`, `/healthz` (the loop turns) and `/readyz` (`is_ready`) during a run."""

    collectors: InitVar[Iterable[Collector]]
    _host: str
    _port: int
    _: KW_ONLY
    is_ready: Callable[[], bool] = lambda: True
    _runner: web.AppRunner | None = None

    def __post_init__(self, collectors: Iterable[Collector]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in collectors:
            self._registry.register(collector)

    async def start(self) -> None:
        """Listen. Raises SetupError if the port is taken."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self.stop()
            reason = error.strerror or str(error)
            raise SetupError(f"--metrics-port {self._port}: {reason}") from error

    async def serve(self) -> None:
        """Answer until cancelled; listen first, unless that is done."""
        if self._runner is None:
            await self.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.stop()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not all nodes are Ready\n")

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")
