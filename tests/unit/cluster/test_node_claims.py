"""Whose a Node is that matches --manage."""

import asyncio
from typing import Any

import pytest
from world.cluster_fakes import FakeApi

from fleet.cluster.cleanup import NODE_LEASES
from fleet.cluster.managed import (
    ASKED_BY_NAME_MAX,
    Claim,
    addresses_of,
    judge,
    judge_again,
    node_leases,
    not_opted_in,
    opted_in,
)
from fleet.k8s.well_known import MANAGED_ANNOTATION

Json = dict[str, Any]


def node(*, marked: bool = False, run: str = "", boot: str = "") -> Json:
    metadata: Json = {"name": "n", "uid": "u"}
    if marked:
        metadata["annotations"] = {MANAGED_ANNOTATION: "true"}
    if run:
        metadata["labels"] = {"fleet.emulator/run": run}
    return {"metadata": metadata, "status": {"nodeInfo": {"bootID": boot}}}


def lease(renewed: str = "1", uid: str = "l") -> Json:
    return {"metadata": {"uid": uid}, "spec": {"holderIdentity": "h", "renewTime": renewed}}


@pytest.mark.parametrize(
    ("found", "held", "claim", "why"),
    [
        (node(), None, Claim.OURS, ""),
        (node(marked=True, boot="b"), None, Claim.OURS, ""),
        (node(boot="b"), None, Claim.UNSURE, ""),
        (node(marked=True), lease(), Claim.UNSURE, ""),
        (node(), lease(), Claim.OTHERS, "its Lease is held by h"),
        (node(boot="b"), lease(), Claim.OTHERS, "its Lease is held by h"),
        (node(run="r", marked=True), None, Claim.OTHERS, "of run r of fleet"),
    ],
)
def test_at_first_sight(found: Json, held: Json | None, claim: Claim, why: str) -> None:
    assert judge(found, held) == (claim, why)


@pytest.mark.parametrize(
    ("found", "before", "now", "claim"),
    [
        (node(marked=True), lease(), lease(), Claim.OURS),
        (node(marked=True), lease(), lease("2"), Claim.OTHERS),
        (node(marked=True), lease(), lease(uid="another"), Claim.OTHERS),
        (node(boot="b"), None, None, Claim.OURS),
        (node(boot="b"), None, lease(), Claim.OTHERS),
        (node(run="r"), None, None, Claim.OTHERS),
    ],
)
def test_at_the_second_look(
    found: Json, before: Json | None, now: Json | None, claim: Claim
) -> None:
    assert judge_again(found, before, now).claim is claim


@pytest.mark.parametrize("count", [1, ASKED_BY_NAME_MAX, ASKED_BY_NAME_MAX + 1])
def test_leases_are_found_by_name_and_as_a_whole(count: int) -> None:
    api = FakeApi()
    names = [f"n-{number}" for number in range(count)]
    for name in [*names[1:], "other"]:
        api.put(f"{NODE_LEASES}/{name}", spec={})
    found = asyncio.run(node_leases(api, names))
    assert set(found) == set(names[1:])
    assert len(api.log) == (count if count <= ASKED_BY_NAME_MAX else 1)


def test_the_address_of_a_node_is_its_internal_one() -> None:
    assert addresses_of({"status": {}}) == ""
    listed = [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.1"}]
    assert addresses_of({"status": {"addresses": listed}}) == "10.0.0.1"
    listed = [{"type": "ExternalIP", "address": "2001:db8::1"}, *listed]
    assert addresses_of({"status": {"addresses": listed}}) == "10.0.0.1,2001:db8::1"


def test_nodes_whose_owner_has_not_allowed_it_are_named_with_what_to_do() -> None:
    assert opted_in("pool=a") == "pool=a,fleet.emulator/managed=true"
    said = not_opted_in(["n-0", "n-1"], "pool=a")
    assert said.startswith("2 Nodes match pool=a without the label fleet.emulator/managed=true")
    assert "n-0, n-1 left alone" in said
    assert "kubectl label node n-0 fleet.emulator/managed=true" in said
