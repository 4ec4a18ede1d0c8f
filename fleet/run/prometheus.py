"""`--metrics-port`: what a fleet does, in Prometheus' text format, at `/metrics`.

Computed when it is asked for, from the counters that the summary is made of; nothing is counted
twice. The number of series is bounded: verbs, resources and codes, never nodes or pods.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

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
from fleet.host.node_host import NodeHost
from fleet.metrics import FleetCounts, Histogram, merged
from fleet.profile.settings import Settings
from fleet.report.agent_figures import ByName

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class FleetCollector(Collector):
    """Reads the counters of one node_host at each scrape."""

    def __init__(self, node_host: NodeHost) -> None:
        self._node_host = node_host

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of fleet."""
        node_host = self._node_host
        counts, readiness = node_host.counts, node_host.readiness
        ready = len(readiness.ready)
        nodes = GaugeMetricFamily("fleet_nodes", "Nodes by condition.", labels=["condition"])
        nodes.add_metric(["Ready"], ready)
        nodes.add_metric(["NotReady"], len(readiness.present) - ready)
        yield nodes
        yield GaugeMetricFamily("fleet_kubelets", "Kubelets that run here.", value=node_host.size)
        yield self._pods()
        yield from _counters(counts)
        yield GaugeMetricFamily("fleet_watches", "Open watches.", value=counts.watches_open)
        is_valid = not (counts.bugs or counts.quarantined)
        yield GaugeMetricFamily("fleet_valid", "Whether fleet met no bug.", value=is_valid)
        yield from _requests(counts)
        yield from agent_metrics(node_host.agents())
        for name, text, histogram in (
            ("lease_lateness", "How late renewals were sent.", counts.lease_late),
            ("timer_lag", "How late timers fired: the instrument's own error.", counts.timer_lag),
            ("throttling", "How long requests waited for a client-side limit.", counts.throttled),
            ("pod_start", "From a pod first seen to Running at the server.", counts.pod_start),
            ("node_registration", "From a kubelet's start to its Node.", counts.node_start),
        ):
            family = HistogramMetricFamily(f"fleet_{name}_seconds", text)
            family.add_metric([], *prometheus_histogram(histogram))
            yield family

    def _pods(self) -> GaugeMetricFamily:
        phases: dict[str, int] = {}
        for entry in self._node_host.reactor.entries:
            loop = entry.kubelet.sync_loop if entry.kubelet is not None else None
            for phase, count in loop.phases().items() if loop is not None else ():
                phases[phase] = phases.get(phase, 0) + count
        family = GaugeMetricFamily("fleet_pods", "Pods on nodes by phase.", labels=["phase"])
        for phase in ("Pending", "Running", "Succeeded", "Failed"):
            family.add_metric([phase], phases.get(phase, 0))
        return family


def _counters(counts: FleetCounts) -> Iterator[CounterMetricFamily]:
    for name, text, value in (
        ("lease_renewals", "Renewals of Leases.", counts.renewals),
        ("leases_missed", "Renewals later than the Lease's duration.", counts.leases_missed),
        ("pods_started", "Pods that reached Running.", counts.pods_running),
        ("pods_removed", "Pods that are gone.", counts.pods_removed),
        ("pods_failed", "Pods that failed.", counts.pods_failed),
        ("events_dropped", "Events that the spam filter held back.", counts.events_dropped),
        ("watch_events", "Events of watches.", counts.watch_events),
        ("kubelet_restarts", "Kubelets that were restarted.", counts.restarts),
        ("watch_restarts", "Watches opened again.", counts.watch_restarts),
    ):
        yield CounterMetricFamily(f"fleet_{name}", text, value=value)


def agent_metrics(agents: ByName) -> Iterator[Metric]:
    """Yield what ran beside the kubelets; the names are those of the profiles."""
    if not agents:
        return
    running = GaugeMetricFamily("fleet_agents", "Node agents that run here.", labels=["agent"])
    watches = GaugeMetricFamily("fleet_agent_watches", "Their open watches.", labels=["agent"])
    events = CounterMetricFamily("fleet_agent_watch_events", "Their events.", labels=["agent"])
    received = CounterMetricFamily(
        "fleet_agent_received_bytes", "Bytes that they received.", labels=["agent"]
    )
    answers = CounterMetricFamily(
        "fleet_agent_requests", "Their answers.", labels=["agent", "verb", "resource", "code"]
    )
    for name, each in agents.items():
        running.add_metric([name], each.running)
        watches.add_metric([name], each.watches_open)
        events.add_metric([name], each.watch_events)
        received.add_metric([name], each.received_bytes)
        for (verb, resource), codes in each.requests.rows.items():
            for code, histogram in codes.items():
                answers.add_metric([name, verb, resource, str(code)], histogram.count)
    yield from (running, watches, events, received, answers)


def _requests(counts: FleetCounts) -> Iterator[Metric]:
    total = CounterMetricFamily(
        "fleet_requests", "Answers; code 0 is none.", labels=["verb", "resource", "code"]
    )
    latency = HistogramMetricFamily(
        "fleet_request_duration_seconds", "Latency of answers.", labels=["verb", "resource"]
    )
    for (verb, resource), codes in counts.requests.rows.items():
        for code, histogram in codes.items():
            total.add_metric([verb, resource, str(code)], histogram.count)
        latency.add_metric([verb, resource], *prometheus_histogram(merged(codes.values())))
    yield total
    yield latency


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


class MetricsServer:
    """Serves `/metrics`, `/healthz` (the loop turns) and `/readyz` (`is_ready`) during a run."""

    def __init__(
        self,
        collectors: Iterable[Collector],
        host: str,
        port: int,
        *,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_ready = is_ready
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in collectors:
            self._registry.register(collector)
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

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
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not all nodes are Ready\n")

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")


def metrics_server(node_host: NodeHost, settings: Settings) -> MetricsServer:
    """Return what answers scrapes and probes.

    Ready means that all nodes once were, or that a dashboard says how many there are.
    """
    return MetricsServer(
        [FleetCollector(node_host)],
        settings.metrics_host,
        settings.metrics_port,
        is_ready=lambda: settings.is_on_dashboard or node_host.readiness.all_ready.is_set(),
    )
