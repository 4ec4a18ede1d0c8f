"""From the first kubelet until all nodes of a run are Ready, in all of its processes."""

import gc
import time
from collections import Counter

from fleet.background import Background
from fleet.cluster.api_client import Cluster
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.profile.settings import Settings
from fleet.report.display import Display
from fleet.run.interrupts import Interrupts
from fleet.run.node_keeper import NodeKeeper

READY_STALLED_S = 180.0
"""Without one more Ready node for this long, a run that waits for all of them is given up."""


async def bring_up(
    node_host: NodeHost,
    cluster: Cluster,
    whole: Settings,
    siblings: Siblings | None,
    interrupts: Interrupts,
    background: Background,
    display: Display,
) -> str:
    """Start the nodes and wait for them; return what is lacking, "" if nothing is.

    Once the run is told to stop it returns at once. `whole` are the settings of all processes.
    """

    def stopped() -> str:
        ready = len(readiness.ready) + (siblings.ready() if siblings is not None else 0)
        all_of_it = whole.nodes if node_host.managed is None else readiness.wanted
        return f"it was stopped when {ready} of {all_of_it} nodes were Ready"

    settings, readiness = node_host.settings, node_host.readiness
    if node_host.managed is not None:
        display.phase(f"looking for Nodes that match {settings.manage}")
        keeper = NodeKeeper(cluster, node_host, display.note)
        background.keep("the Nodes of others", keeper.run)
        await interrupts.until_stopped(keeper.is_settled.wait())
    else:
        display.phase(f"bringing {whole.nodes:,} nodes up")
        await interrupts.until_stopped(node_host.bring_up())
    stalled_s = READY_STALLED_S if settings.until_ready or settings.command else None
    await interrupts.until_stopped(readiness.wait(stalled_s))
    if node_host.admin_labels is not None:
        await interrupts.until_stopped(node_host.admin_labels.settled())
    if interrupts.stop.is_set():
        return stopped()
    gc.collect()
    gc.freeze()
    wanted = readiness.wanted
    if not readiness.all_ready.is_set():
        reasons = Counter(node_host.unregistered().values()).most_common(1)
        why = "".join(f"; {count:,} could not register: {text}" for text, count in reasons)
        return f"only {len(readiness.ready)} of {wanted} nodes became Ready{why}"
    if siblings is not None:
        rest = whole.nodes - settings.nodes
        await interrupts.until_stopped(siblings.wait_ready(rest, stalled_s))
        if interrupts.stop.is_set():
            return stopped()
        if (ready := siblings.ready()) < rest:
            return f"only {settings.nodes + ready} of {whole.nodes} nodes became Ready"
        readiness.ready_at_ns = time.monotonic_ns()
        wanted = whole.nodes
    took_s = (readiness.ready_at_ns - node_host.started_ns) / 1e9
    display.tell(f"all {wanted} nodes are Ready after {took_s:.1f} s")
    return ""
