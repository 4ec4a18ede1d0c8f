"""Shards whose pod was killed while its StatefulSet was scaled down: their nodes are removed.

A pod that is scaled away removes its nodes before it ends. One that is killed meanwhile (deleted by
force, its machine gone) cannot, and no pod follows it that would. The pod of ordinal 0, which is
scaled away last, looks for Leases of the run that nobody renews and whose ordinal the StatefulSet
does not want any more. It takes such a Lease before it removes what is left: a pod that is scaled
up again meanwhile waits for it, and then starts with none of the nodes.
"""

import asyncio
import logging
from collections.abc import Callable

from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.cleanup import clean_run
from fleet.cluster.runs import RunLease, find_holders
from fleet.cluster.statefulset import home_api, is_wanted
from fleet.errors import FleetError
from fleet.profile.settings import Settings

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
