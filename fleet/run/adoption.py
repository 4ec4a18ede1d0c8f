"""Taking over the nodes that an earlier process under our names has left.

A kubelet that finds its Node leaves the taints as they are. On a shared cluster, nodes without the
taint (of a run with `--no-taint`, or of one that took it for fleet's own) are therefore given it
before their kubelets start.

Shards whose pod was killed while its StatefulSet was scaled down: their nodes are removed.

A pod that is scaled away removes its nodes before it ends. One that is killed before (deleted by
force, its machine gone) cannot, and no pod follows it that would. The pod of ordinal 0, which is
scaled away last, looks for Leases of the run that nobody renews and whose ordinal the StatefulSet
does not want any more. It takes such a Lease before it removes what is left: a pod that is scaled
up again before that waits for it, and then starts with none of the nodes.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from fleet.cluster.api_client import Api, Cluster, Json, each, expect
from fleet.cluster.cleanup import clean_run, remove_nodes
from fleet.cluster.daemonsets import EXCLUDE_FROM_BALANCERS, FAKE_TAINT
from fleet.cluster.leftovers import delete_applied, find_applied
from fleet.cluster.ownership import NODES, PREFIX_LABEL, SHARD_LABEL, FoundNode, adopt
from fleet.cluster.preflight import TargetFacts
from fleet.cluster.runs import RunLease, find_holders
from fleet.cluster.statefulset import home_api, is_wanted
from fleet.errors import FleetError
from fleet.profile.settings import Settings
from fleet.report.display import Display

CONFLICTS_MAX = 5  # of writing one Node; controllers add and remove taints of their own


async def adopt_nodes(
    cluster: Cluster, facts: TargetFacts, settings: Settings, lease: RunLease, display: Display
) -> int:
    """Make what an earlier process left ours, and remove what this one does not host.

    Return how many slots the adopted ones fill.
    """
    api = cluster.api("adopt")
    mine, surplus = share_of(facts.existing, settings, lease.run_id)
    if surplus:
        await remove_nodes(api, surplus)
        display.tell(f"removed {len(surplus)} nodes of a larger shard before this one")
    if mine:
        display.phase(f"adopting {len(mine)} nodes")
        adopted = await adopt(api, mine, lease.run_id, lease.uid)
        if facts.is_shared:
            selector = f"{PREFIX_LABEL}={settings.name_prefix}"
            if settings.shard is not None:
                selector += f",{SHARD_LABEL}={settings.shard:04d}"
            await protect(api, selector, adopted, with_taint=not settings.no_taint)
        display.tell(f"adopted {len(mine)} nodes that an earlier run left")
    return max((settings.slot_of(node.name) or 0 for node in mine), default=-1) + 1


async def remove_applied(cluster: Cluster, lease: RunLease, display: Display) -> None:
    """Delete what the scenario of a dead run has applied, whose names this one has taken over.

    Its pods end when the nodes have kubelets again. The Lease goes on naming them until then.
    """
    api = cluster.api("adopt")
    earlier = {run: listed for run, listed in lease.noted.items() if run != lease.run_id}
    going, left = await delete_applied(api, (await find_applied(api, earlier)).owned)
    if going:
        display.tell(f"deleting {len(going)} objects that the scenario of an earlier run left")
    for each_left in left:
        display.note(f"still there, of an earlier run: {each_left}")


async def protect(api: Api, selector: str, nodes: Sequence[FoundNode], *, with_taint: bool) -> int:
    """Keep load balancers, and with the taint pods, off nodes; return how many lacked that."""
    uids = {node.uid for node in nodes}
    bare: list[Json] = []
    async for page in api.pages(NODES, "nodes", labelSelector=selector):
        bare += [
            node
            for node in page
            if node["metadata"]["uid"] in uids and _lacks(node, with_taint=with_taint)
        ]

    async def mend(node: Json) -> None:
        await _protect_one(api, node, with_taint=with_taint)

    await each(bare, mend)
    return len(bare)


async def _protect_one(api: Api, node: Json, *, with_taint: bool) -> None:
    path = f"{NODES}/{node['metadata']['name']}"
    for _ in range(CONFLICTS_MAX):
        metadata = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
        patch: Json = {"metadata": {**metadata, "labels": {EXCLUDE_FROM_BALANCERS: ""}}}
        if with_taint and not _is_tainted(node):
            patch["spec"] = {"taints": [*_taints(node), FAKE_TAINT._asdict()]}
        answer = await api.request("PATCH", path, body=patch)
        if answer.code != 409:
            break
        found = await api.request("GET", path)
        if found.code == 404 or found.body["metadata"]["uid"] != metadata["uid"]:
            return  # it is gone, or is another one by now
        node = found.body
    if answer.code != 404:
        expect(answer, f"cannot taint node {node['metadata']['name']}")


def _lacks(node: Json, *, with_taint: bool) -> bool:
    is_excluded = EXCLUDE_FROM_BALANCERS in node["metadata"].get("labels", {})
    return not is_excluded or (with_taint and not _is_tainted(node))


def _is_tainted(node: Json) -> bool:
    return any(taint["key"] == FAKE_TAINT.key for taint in _taints(node))


def _taints(node: Json) -> list[Json]:
    found: list[Json] = node.get("spec", {}).get("taints") or []
    return found


def share_of(
    existing: Sequence[FoundNode], settings: Settings, run_id: str
) -> tuple[list[FoundNode], list[FoundNode]]:
    """Divide the nodes that are there: those to adopt, and those that nobody hosts now.

    The latter are of this very run and in this shard, beyond its number of nodes: that was lowered.
    A dashboard may have asked for more than --nodes: up to --max-nodes they are adopted.
    """
    mine, surplus = [], []
    for node in existing:
        slot = settings.slot_of(node.name)
        if slot is not None and slot < settings.most:
            mine.append(node)
        elif slot is not None and settings.shard is not None and node.run == run_id:
            surplus.append(node)
    return mine, surplus


LOOK_EVERY_S = 30.0

logger = logging.getLogger(__name__)


async def clear_lost_shards(
    cluster: Cluster, settings: Settings, note: Callable[[str], None]
) -> None:
    """Look every 30 s until cancelled; only in the pod of ordinal 0 of a StatefulSet."""
    if settings.statefulset is None or settings.shard != 0:
        return
    api = cluster.api("cleanup")
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            async with home_api() as home:
                for prefix in await remove_lost_shards(api, home, settings):
                    note(f"removed the nodes {prefix}-*: their pod died while it was scaled away")
        except FleetError as error:  # the next look may do better
            logger.warning("shards that were scaled away: %s", error)


async def remove_lost_shards(api: Api, home: Api, settings: Settings) -> list[str]:
    """Remove what is left of shards that nobody holds or wants; return their name prefixes.

    `api` asks the cluster under test, `home` the one of the StatefulSet. Raises FleetError.
    """
    assert settings.statefulset is not None
    cleared = []
    for holder in await find_holders(api, settings.run_id):
        digits = holder.prefix.removeprefix(f"{settings.name_prefix}-")
        if holder.is_alive or not digits.isdecimal():
            continue
        shard = int(digits)
        if await is_wanted(home, settings.statefulset, shard // settings.processes):
            continue
        lease = RunLease(api, holder.prefix, settings.run_id, holder=settings.holder)
        await lease.acquire()
        await clean_run(api, settings.run_id, shards=[shard])
        await lease.release()
        cleared.append(holder.prefix)
    return cleared
