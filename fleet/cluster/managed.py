"""Which Nodes of others fleet may be the kubelet of: those that nobody else serves.

A kubelet shows by the Lease of its node's name. Of a Node that matches the selector

    no Lease                      it was only created: ours, unless its status says that a machine
                                  runs, which may be about to make its Lease: looked at twice
    a Lease, and our annotation   of an earlier run, or of one that goes on: looked at twice
    a Lease without it            a machine's, though it may be down: never ours

Looked at twice means that nobody renews the Lease, or makes one, in more than two of a kubelet's
intervals. No clock is compared. Nodes with the label of a run are that run's, and never ours here.
"""

from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

from fleet.cluster.api_client import Api, Json
from fleet.cluster.cleanup import NODE_LEASES
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.objects.addresses import node_ips
from fleet.objects.well_known import MANAGED_ANNOTATION

LOOK_AGAIN_S = 25.0
"""A kubelet renews every 10 s, and is a little late where the server is slow."""
ASKED_BY_NAME_MAX = 20
"""For more Nodes all Leases are listed at once."""


class Claim(Enum):
    """Whose a Node is."""

    OURS = auto()
    UNSURE = auto()
    OTHERS = auto()


class Judged(NamedTuple):
    """What is known of a Node, and why it is another's."""

    claim: Claim
    why: str = ""


def judge(node: Json, lease: Json | None) -> Judged:
    """Return whose a Node is, by itself and the Lease of its name."""
    metadata = node["metadata"]
    run = (metadata.get("labels") or {}).get(RUN_LABEL)
    if run is not None:
        return Judged(Claim.OTHERS, f"of run {run} of fleet")
    if lease is None:
        return Judged(Claim.UNSURE if _has_machine(node) and not _is_marked(node) else Claim.OURS)
    if _is_marked(node):
        return Judged(Claim.UNSURE)
    holder = (lease.get("spec") or {}).get("holderIdentity", "")
    return Judged(Claim.OTHERS, f"its Lease is held by {holder or 'nobody'}")


def judge_again(node: Json, before: Json | None, now: Json | None) -> Judged:
    """Return whose a Node is that was not sure, by its Lease then and `LOOK_AGAIN_S` later."""
    if _renewed(before) != _renewed(now):
        return Judged(Claim.OTHERS, "another kubelet renews its Lease")
    first = judge(node, now)
    return first if first.claim is Claim.OTHERS else Judged(Claim.OURS)


async def node_leases(api: Api, names: Collection[str]) -> dict[str, Json]:
    """Return the Leases of these nodes, of those that have one."""
    found: dict[str, Json] = {}
    selectors = [""]
    if len(names) <= ASKED_BY_NAME_MAX:
        selectors = [f"metadata.name={name}" for name in names]
    for selector in selectors:
        async for page in api.pages(NODE_LEASES, "leases of nodes", fieldSelector=selector):
            for lease in page:
                if lease["metadata"]["name"] in names:
                    found[lease["metadata"]["name"]] = lease
    return found


async def matching_names(api: Api, selector: str) -> frozenset[str]:
    """Return the names of the Nodes that a selector finds."""
    names: set[str] = set()
    async for page in api.pages(NODES, "nodes", labelSelector=selector):
        names.update(item["metadata"]["name"] for item in page)
    return frozenset(names)


def addresses_of(node: Json) -> str:
    """Return the addresses that a Node says it has, "" for none."""
    listed = (node.get("status") or {}).get("addresses") or ()
    kinds = ("InternalIP", "ExternalIP")
    return node_ips([each["address"] for kind in kinds for each in listed if each["type"] == kind])


def _is_marked(node: Json) -> bool:
    return MANAGED_ANNOTATION in (node["metadata"].get("annotations") or {})


def _has_machine(node: Json) -> bool:
    """Return whether a kubelet has said on which machine it runs."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return bool(info.get("bootID") or info.get("machineID"))


def _renewed(lease: Json | None) -> tuple[str, str]:
    if lease is None:
        return "", ""
    return lease["metadata"]["uid"], (lease.get("spec") or {}).get("renewTime", "")
