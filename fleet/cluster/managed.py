"""Which Nodes of others fleet may be the kubelet of: those that nobody else serves.

A kubelet shows by the Lease of its node's name. Of a Node that matches the selector

    no Lease                      it was only created: ours, unless its status says that a machine
                                  runs, which may be about to make its Lease: looked at twice
    a Lease, and our annotation   of an earlier run, or of one that goes on: looked at twice
    a Lease without it            a machine's, though it may be down: never ours

Looked at twice means that nobody renews the Lease, or makes one, in more than two of a kubelet's
intervals. No clock is compared. Nodes with the label of a run are that run's, and never ours here.
On a shared cluster the Node's own label must allow it, too (`OPT_IN`).
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple

from fleet.cluster.api_client import Answer, Api, Json
from fleet.cluster.cleanup import NODE_LEASES
from fleet.cluster.ownership import NODES, RUN_LABEL, first_of
from fleet.errors import SetupError
from fleet.k8s.addresses import node_ips
from fleet.k8s.events import ObjectRef, Report, event_json
from fleet.k8s.holds import MACHINE_IDS, Hold
from fleet.k8s.well_known import MANAGED_ANNOTATION, OPT_IN_LABEL

LOOK_AGAIN_S = 25.0  # a kubelet renews every 10 s, and is a little late where the server is slow
SHOWN_MAX = 8
ASKED_BY_NAME_MAX = 20  # for more Nodes all Leases are listed at once


OPT_IN = f"{OPT_IN_LABEL}=true"
"""The label by which the owner of a Node allows fleet to serve it, on a shared cluster."""
EVENTS = "/api/v1/namespaces/default/events"
LEFT = "FleetLeft"  # reason of the event on a Node that fleet leaves to another kubelet


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
        info = (node.get("status") or {}).get("nodeInfo") or {}  # a kubelet says its machine there
        has_machine = info.get("bootID") or info.get("machineID")
        return Judged(Claim.UNSURE if has_machine and not _is_marked(node) else Claim.OURS)
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
    names: set[str] = set()
    async for page in api.pages(NODES, "nodes", labelSelector=selector):
        names.update(item["metadata"]["name"] for item in page)
    return frozenset(names)


def hold_of(node: Json, lease: Json | None) -> Hold:
    """Return what is not another kubelet's doing on a Node that fleet takes over."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    machine = (info[member] for member in MACHINE_IDS if info.get(member))
    return Hold(node["metadata"]["uid"], _renewed(lease)[1], machine)


async def leave_to_others(api: Api, name: str, uid: str, why: str, now: str) -> None:
    """Tell of a Node that fleet has left, by an event, and take fleet's mark from it.

    With the mark a next run would take the Node for one that fleet may serve while its machine is
    down. Raises SetupError if the server does not do it.
    """
    mark: Json = {"metadata": {"uid": uid, "annotations": {MANAGED_ANNOTATION: None}}}
    path = f"{NODES}/{name}"
    _check(await api.request("PATCH", path, body=mark))
    message = f"fleet is no longer the kubelet of this Node: {why}"
    report = Report("Normal", LEFT, message, "fleet")
    about = ObjectRef("Node", "", name, uid)
    event = event_json(f"fleet-left.{uid}", about, report, (now, now, 1))
    _check(await api.request("POST", EVENTS, body=event))


def _check(answer: Answer) -> None:
    """Raise SetupError for a refusal, but for that of a Node that is gone and what is done."""
    if not answer.ok and answer.code not in {404, 409}:
        raise SetupError(answer.message)


def opted_in(selector: str) -> str:
    """Return the selector of those Nodes that match and whose owner allows it."""
    return f"{selector},{OPT_IN}"


def not_opted_in(names: Sequence[str], selector: str) -> str:
    """Return what to say of Nodes that match the selector of a run and lack the label."""
    return (
        f"{len(names):,} Nodes match {selector} without the label {OPT_IN}, which a shared cluster "
        f"needs: {first_of(names, SHOWN_MAX)} left alone (kubectl label node {names[0]} {OPT_IN})"
    )


def addresses_of(node: Json) -> str:
    """Return the addresses that a Node says it has, "" for none."""
    listed = (node.get("status") or {}).get("addresses") or ()
    kinds = ("InternalIP", "ExternalIP")
    return node_ips([each["address"] for kind in kinds for each in listed if each["type"] == kind])


def _is_marked(node: Json) -> bool:
    return MANAGED_ANNOTATION in (node["metadata"].get("annotations") or {})


def _renewed(lease: Json | None) -> tuple[str, str]:
    if lease is None:
        return "", ""
    return lease["metadata"]["uid"], (lease.get("spec") or {}).get("renewTime", "")
