"""Which addresses a process of a fleet has for itself among all Nodes of its cluster.

    look at the Nodes -> choose -> write the claim into the run's Lease -> look at all Leases
      ^                                                                          |
      +---- another process claimed some of them: choose elsewhere --------------+

A claim counts once its process has read all Leases after it wrote its own: of two processes that
claim the same, at least the later writer sees both, and moves. A Node that an earlier run left
keeps its address, so its position decides where the claim of its successor begins.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fleet.cluster.api_client import Api, Json
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.cluster.runs import ADDRESSES_ANNOTATION, RunLease, find_leases
from fleet.errors import SetupError
from fleet.k8s.addresses import each_of
from fleet.k8s.well_known import MANAGED_ANNOTATION
from fleet.profile.addresses import AddressPlan, AddressRange, range_of
from fleet.profile.settings import Settings

TRIES_MAX = 20


class Claim(NamedTuple):
    """What a process got."""

    shift: int  # of its nodes' positions against their indices
    moved_from: int | None = None  # where its Nodes' addresses were until now, if not here


async def claim_addresses(
    api: Api, lease: RunLease, plan: AddressPlan, settings: Settings
) -> Claim:
    """Claim the addresses of all nodes that a process may have; its Lease is held.

    Raises SetupError if a pool has no room, or if the server refuses an answer.
    """
    first, count = settings.node_index(0), settings.most
    taken, kept = await _look(api, plan, settings, lease.run_id)
    start, claimed = first if kept is None else kept, -1
    for attempt in range(TRIES_MAX):
        others = [*taken, *await _claimed(api, lease)]
        if claimed >= 0 and plan.free(claimed, count, others) == claimed:
            return Claim(claimed - first, kept if kept not in (None, claimed) else None)
        if attempt:  # two that met look in different places
            start = _scattered(lease.prefix, attempt, plan.room - count)
        found = plan.free(start, count, others)
        if found is None:
            raise SetupError(
                f"addressPool {plan}: no {count:,} addresses in a row are free in this cluster: "
                "choose another addressPool in the profile, or end another fleet"
            )
        claimed = found
        lease.addresses = ",".join(map(str, plan.ranges(claimed, count)))
        if not await lease.renew():
            raise SetupError(f"another process wrote the Lease of {lease.prefix} meanwhile")
    raise SetupError(f"addressPool {plan}: other fleets claim the same addresses: try again")


def _scattered(prefix: str, attempt: int, room: int) -> int:
    digest = hashlib.sha256(f"{prefix}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8]) % max(room, 1)


async def _claimed(api: Api, own: RunLease) -> list[AddressRange]:
    """Return what the other processes of all fleets have claimed, living or not."""
    owned, _, _ = await find_leases(api)
    found: list[AddressRange] = []
    for lease in owned:
        if lease["metadata"]["uid"] != own.uid:
            claim = (lease["metadata"].get("annotations") or {}).get(ADDRESSES_ANNOTATION, "")
            found += filter(None, map(range_of, each_of(claim)))
    return found


async def _look(
    api: Api, plan: AddressPlan, settings: Settings, run_id: str
) -> tuple[list[AddressRange], int | None]:
    """Return what Nodes have, and where the claim of the process began whose Nodes are ours now.

    Nodes of this very run are left to the claims of its processes.
    """
    taken: list[AddressRange] = []
    kept: int | None = None
    selector = f"{RUN_LABEL}!={run_id}"
    async for page in api.pages(NODES, "nodes", labelSelector=selector):
        for node in page:
            slot = settings.slot_of(node["metadata"]["name"])
            if settings.manage and MANAGED_ANNOTATION in (
                node["metadata"].get("annotations") or {}
            ):
                continue  # it has what an earlier run with --manage gave it, and may be ours again
            if slot is None or settings.manage:
                taken += filter(None, map(range_of, _addresses(node)))
            elif kept is None:
                kept = _start(node, slot, plan, settings)
    if kept is None and not settings.manage:
        kept = await _own_start(api, plan, settings)
    return taken, kept


async def _own_start(api: Api, plan: AddressPlan, settings: Settings) -> int | None:
    """Return the same of a process of this run that was here before, by its first Node."""
    found = await api.request("GET", f"{NODES}/{settings.node_name(0)}")
    return _start(found.body, 0, plan, settings) if found.ok else None


def _start(node: Json, slot: int, plan: AddressPlan, settings: Settings) -> int | None:
    """Return the position of slot 0, by a Node of another slot."""
    position = plan.position_of(_internal(node))
    if position is None:
        return None
    start = position - slot
    return start if start >= 0 and start + settings.most <= plan.room else None


def _internal(node: Json) -> Iterator[str]:
    for each in (node.get("status") or {}).get("addresses") or ():
        if each.get("type") in ("InternalIP", "ExternalIP"):
            yield each.get("address", "")


def _addresses(node: Json) -> Sequence[str]:
    spec = node.get("spec") or {}
    cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    return [*_internal(node), *cidrs]
