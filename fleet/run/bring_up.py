"""From the first kubelet until all nodes of a run are Ready, in all of its processes.

Whether the Nodes of a run may register with what the controllers would give them.

They may on a local control plane that nobody else uses: ranges of pods that two give out would
meet. A run that begins while another lives, or where any Node is, leaves it to the controllers.
"""

import asyncio
import gc
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Mapping

import psutil

from fleet.background import Background
from fleet.cluster.api_client import Cluster, Sleep
from fleet.cluster.ownership import NODES
from fleet.cluster.runs import find_holders
from fleet.controlplane.options import CONTROLLER_MANAGER, ControlPlaneInfo
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.k8s.effects import NodeId
from fleet.profile.addresses import ClusterRange, ControllerPreset
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

    Once the run shall stop it returns at once. `whole` are the settings of all processes.
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
        if settings.has_own_watches:
            background.keep("the time until all watches are open", node_host.note_settled)
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


UNREGISTERED_LOOK_S = 5.0
REASONS_MAX = 10


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
                nodes = "1 node" if count == 1 else f"{count:,} nodes"
                note(f"{nodes} cannot register so far: {why}")
        before = now


NODE_MASKS = {4: 24, 6: 64}
"""Source: cmd/kube-controller-manager/app/core.go, defaultNodeMaskCIDRIPv4 and its sister."""


async def find_preset(
    cluster: Cluster, local: ControlPlaneInfo | None, settings: Settings, run_id: str
) -> ControllerPreset | None:
    """Return what the controllers would do, None where it is theirs. The run holds its Lease."""
    if local is None or not settings.makes_settled or settings.shard is not None:
        return None
    preset = _preset_of(local.pids.get(CONTROLLER_MANAGER, 0))
    if preset is None:
        return None
    api = cluster.api("preflight")
    listed = await api.get(NODES, "nodes", limit=1)
    held = await find_holders(api)
    is_alone = all(each.run == run_id for each in held if each.is_alive)
    return preset if is_alone and not listed.get("items") else None


def _preset_of(pid: int) -> ControllerPreset | None:
    """Read it from the controller manager's flags; None if they say no ranges that it takes."""
    try:
        command = psutil.Process(pid).cmdline()
        flags = dict(each.lstrip("-").partition("=")[::2] for each in command)
        ranges = cluster_ranges(flags)
    except (psutil.Error, KeyError, ValueError):
        return None
    if flags.get("allocate-node-cidrs") != "true":
        return None
    if any(not each.whole.prefixlen <= each.mask < each.whole.max_prefixlen for each in ranges):
        return None
    return ControllerPreset(ranges)


def cluster_ranges(flags: Mapping[str, str]) -> tuple[ClusterRange, ...]:
    """Return how a controller manager gives ranges out. Raises KeyError or ValueError.

    Source: cmd/kube-controller-manager/app/core.go, setNodeCIDRMaskSizes.
    """
    wholes = [ipaddress.ip_network(each) for each in flags["cluster-cidr"].split(",")]
    found = []
    for whole in wholes:
        own = flags.get(f"node-cidr-mask-size-ipv{whole.version}")
        mask = flags.get("node-cidr-mask-size") or own or NODE_MASKS[whole.version]
        found.append(ClusterRange(whole, int(mask)))
    return tuple(found)
