"""Taking over the nodes that an earlier process under our names has left."""

from collections.abc import Sequence

from fleet.cleanup import remove_nodes
from fleet.cluster import Cluster
from fleet.config import Settings
from fleet.display import Display
from fleet.runs import FoundNode, adopt


async def adopt_nodes(
    cluster: Cluster,
    existing: Sequence[FoundNode],
    settings: Settings,
    run_id: str,
    display: Display,
) -> int:
    """Make what an earlier process left ours, and remove what this one does not host.

    Return how many slots the adopted ones fill.
    """
    mine, surplus = share_of(existing, settings, run_id)
    if surplus:
        await remove_nodes(cluster.api("adopt"), surplus)
        display.note(f"removed {len(surplus)} nodes of a larger shard before this one")
    if mine:
        display.phase(f"adopting {len(mine)} nodes")
        await adopt(cluster.api("adopt"), mine, run_id)
        display.note(f"adopted {len(mine)} nodes that an earlier run left")
    return max((settings.slot_of(node.name) or 0 for node in mine), default=-1) + 1


def share_of(
    existing: Sequence[FoundNode], settings: Settings, run_id: str
) -> tuple[list[FoundNode], list[str]]:
    """Divide the nodes that are there: those to adopt, and names of those that nobody hosts now.

    The latter are of this very run and in this shard, beyond its number of nodes: that was lowered.
    Where a dashboard steers, all are adopted: it may have asked for more than --nodes.
    """
    limit = settings.room if settings.is_on_dashboard else settings.nodes
    mine, surplus = [], []
    for node in existing:
        slot = settings.slot_of(node.name)
        if slot is not None and slot < limit:
            mine.append(node)
        elif slot is not None and settings.shard is not None and node.run == run_id:
            surplus.append(node.name)
    return mine, surplus
