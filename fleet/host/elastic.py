"""A number of nodes that changes, as a dashboard or `fleet scale` asks, a step at a time.

Slots stay dense: growth takes the lowest free one, shrinking the highest, so that a name says how
large the fleet is. A node that goes falls silent first; then its objects are deleted, as the owner
of a machine that is gone would do it. What exists without a kubelet goes too: a node whose creation
was still on its way when it fell silent, or one that could not be removed at once.
"""

import asyncio
import contextlib
import logging
import time

from fleet.cluster.api_client import Api
from fleet.cluster.cleanup import remove_named
from fleet.errors import FleetError
from fleet.host.node_host import NodeHost
from fleet.metrics import FleetCounts, Histogram
from fleet.report.report import lag_reasons

STEP_S = 0.05
SPREAD_S = 0.9  # a master steps once a second; its step is spread over this much of it
REMOVED_AT_ONCE_MAX = 200
RESUME_S_MAX = 10.0
STRAYS_S = 1.0  # after so long without a change we look for nodes that nobody hosts

log = logging.getLogger(__name__)


class ElasticFleet:
    """Keeps `aim` and the nodes of an node_host equal. `run` does the work until cancelled."""

    def __init__(self, node_host: NodeHost, api: Api, nodes: int = 0) -> None:
        self._node_host = node_host
        self.counts: FleetCounts = node_host.counts
        self.nodes_max = node_host.nodes_max
        self.zones = node_host.zones
        self._api = api
        node_host.wanted = nodes
        self._changed = asyncio.Event()

    @property
    def existing(self) -> int:
        """Return how many nodes exist, as another client sees it."""
        return len(self._node_host.readiness.present)

    @property
    def aimed(self) -> int:
        """Return how many nodes were asked for last."""
        return self._node_host.wanted

    def aim(self, nodes: int) -> None:
        """Have so many nodes from now on; the newest number counts."""
        assert nodes <= self.nodes_max, (nodes, self.nodes_max)
        self._node_host.wanted = nodes
        self._changed.set()

    async def resume(self, nodes: int) -> None:
        """Run the kubelets of nodes that exist already, before any master asks for them.

        A master that has just come up learns how many there are, so they are waited for.
        """
        self.aim(min(nodes, self.nodes_max))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESUME_S_MAX):
                while self.existing < nodes:  # noqa: ASYNC110 - the observer notifies nobody
                    await asyncio.sleep(STEP_S)

    async def run(self) -> None:
        """Start and remove nodes as asked."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), STRAYS_S)
            self._changed.clear()
            missing = self.aimed - self._node_host.size
            if missing > 0:
                await self._grow(missing)
            elif missing < 0:
                await self._shrink()
            elif self.existing > self._node_host.size:
                await self._remove(self._node_host.strays())

    def figures(self) -> dict[str, object]:
        """Return what the Fleet tab shows of this process."""
        counts, readiness = self.counts, self._node_host.readiness
        for_s = (time.monotonic_ns() - self._node_host.started_ns) / 1e9
        is_slow = bool(lag_reasons(counts.timer_lag, for_s))
        is_slow = is_slow or self._node_host.transport.stats.closed_slow > 0
        return {
            "target": self.aimed,
            "registered": self.existing,
            "ready": len(readiness.ready),
            "notReady": self.existing - len(readiness.ready),
            "podsRunning": counts.pods_running - counts.pods_removed,
            "podsFailed": counts.pods_failed,
            "leaseLateP99": _p99_ms(counts.lease_late),
            "podStartP99": _p99_ms(counts.pod_start),
            "timerLagP99": _p99_ms(counts.timer_lag),
            "watches": counts.watches_open,
            "valid": not (counts.bugs or counts.quarantined or is_slow),
        }

    async def _grow(self, missing: int) -> None:
        per_step = max(1, round(missing * STEP_S / SPREAD_S))
        while self._node_host.size < self.aimed:
            room = self._node_host.room()
            for _ in range(min(per_step, room, self.aimed - self._node_host.size)):
                self._node_host.start_next()
            await asyncio.sleep(STEP_S)

    async def _shrink(self) -> None:
        while self._node_host.size > self.aimed:
            count = min(REMOVED_AT_ONCE_MAX, self._node_host.size - self.aimed)
            await self._remove([self._node_host.stop_last() for _ in range(count)])

    async def _remove(self, names: list[str]) -> None:
        """Remove nodes without a kubelet; what cannot be removed now is a stray later."""
        try:
            refused = await remove_named(self._api, names, self._node_host.run_id)
        except FleetError as error:
            log.warning("%d nodes could not be removed: %s", len(names), error)
        else:
            if refused:
                shown = ", ".join(node.name for node in refused)
                log.warning("%d nodes are not this run's, and stay: %s", len(refused), shown)


def _p99_ms(histogram: Histogram) -> float | None:
    value_us = histogram.percentile_us(0.99)
    return round(value_us / 1000, 1) if value_us else None
