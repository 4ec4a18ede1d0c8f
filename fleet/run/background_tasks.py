"""What goes on beside the nodes of a run; see `Background` for what becomes of a failure."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterable

from fleet.background import Background
from fleet.cluster.api_client import Cluster, Sleep
from fleet.cluster.runs import RunLease
from fleet.faults.injector import attach_problem
from fleet.host.node_host import NodeHost
from fleet.k8s.effects import NodeId
from fleet.profile.node_model import NodeModel
from fleet.profile.settings import Settings
from fleet.run.adoption import clear_lost_shards
from fleet.run.server_health import watch_health
from fleet.storage.csi_controller import simulate_csi

UNREGISTERED_LOOK_S = 5.0
REASONS_MAX = 10
LEASE_TRIES_MAX = 4
"""Within seven seconds: whoever cannot renew a Lease must end before another fleet takes it."""


def start_background_tasks(
    background: Background,
    node_host: NodeHost,
    cluster: Cluster,
    lease: RunLease,
    models: Iterable[NodeModel],
    settings: Settings,
    *,
    stop: Callable[[], None],
    stop_early: Callable[[str], None],
    is_shared: bool,
    note: Callable[[str], None],
) -> None:
    """Begin all of it. `settings` are those of the whole run; `stop` ends it in order."""

    async def keep_lease() -> None:
        """Hold the names; without them the run must end and delete nothing."""
        await lease.keep()
        stop()

    own, keep = node_host.settings, background.keep
    keep("the renewal of credentials", node_host.refresh_credentials)
    keep("the Lease of the run", keep_lease, tries_max=LEASE_TRIES_MAX)
    keep("what keeps nodes from registering", lambda: tell_unregistered(node_host, note))
    keep("static pods", node_host.read_static_sources)
    if (labels := node_host.admin_labels) is not None:
        keep("labels of Nodes", lambda: labels.run(cluster.api("labels", patience_s=60.0), note))
    problem = functools.partial(attach_problem, node_host.reactor)
    run = lease.run_id
    keep("simulated CSI", lambda: simulate_csi(cluster, models, own, background, run, problem))
    rules = own.stop_rules(is_shared=is_shared)
    if rules.are_on and own.shared is None:  # the first process looks for all of a run
        api, now_s = cluster.api("health"), asyncio.get_running_loop().time
        keep(
            "the look at the server's health",
            lambda: watch_health(api, node_host, rules, stop_early, now_s),
        )
    keep("the search for lost shards", lambda: clear_lost_shards(cluster, settings, note))


async def tell_unregistered(
    node_host: NodeHost, note: Callable[[str], None], sleep: Sleep = asyncio.sleep
) -> None:
    """Say why nodes cannot register, once for each reason, until cancelled.

    What is over at the next look was an API server that had just begun, or was busy.
    """
    before: dict[NodeId, str] = {}
    told: set[str] = set()
    while True:
        await sleep(UNREGISTERED_LOOK_S)
        now = node_host.unregistered()
        lasting = Counter(why for node, why in now.items() if before.get(node) == why)
        for why, count in lasting.most_common():
            if why not in told and len(told) < REASONS_MAX:
                told.add(why)
                note(f"{nodes_text(count)} cannot register so far: {why}")
        before = now


def nodes_text(count: int) -> str:
    """Return a number of nodes in words."""
    return "1 node" if count == 1 else f"{count:,} nodes"


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


def failures(background: Background, cluster: Cluster) -> list[str]:
    """Say what has failed beside the nodes in a way that makes the run invalid."""
    reasons = background.reasons()
    if cluster.renewal.has_failed:
        reasons.append("for some time no valid credentials were to be had, see the log")
    return reasons
