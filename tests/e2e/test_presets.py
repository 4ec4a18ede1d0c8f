"""Nodes of `light` and settled ones register with what the controllers of their own would give."""

import ipaddress
import json

import pytest

from e2e.e2e_world import FOREIGN_NODE, Json, World, eventually
from fleet.controlplane.flags import POD_CIDR
from fleet.wire.api.requests import LEASES

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LIGHT = "--fidelity=light"


def cidrs(nodes: list[Json]) -> list[str]:
    return sorted(each["spec"].get("podCIDR", "") for each in nodes)


def managed_leases(world: World, prefix: str) -> list[bool]:
    """Say of each Lease of a fleet whether it has managedFields; kubectl shows them only raw."""
    found = json.loads(world.kubectl("get", "--raw", LEASES.decode()))["items"]
    metadata = [each["metadata"] for each in found]
    return ["managedFields" in each for each in metadata if each["name"].startswith(f"{prefix}-")]


@pytest.mark.parametrize("fidelity", [LIGHT, "--fidelity=kubelet"])
def test_what_is_given_at_once_is_given_to_nobody_else(world: World, fidelity: str) -> None:
    last = list(ipaddress.ip_network(POD_CIDR).subnets(new_prefix=24))[-3:]
    with world.spawn("preset", 3, fidelity, world.quick()) as first:
        first.until_ready()
        names = set(world.nodes("preset"))
        assert cidrs(world.items("nodes")) == [str(each) for each in last]
        with world.spawn("after", 3, fidelity, world.quick()) as second:
            second.until_ready()
            world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": FOREIGN_NODE}})
            try:
                eventually(lambda: all(cidrs(world.items("nodes"))), "all have ranges")
                given = cidrs(world.items("nodes"))
                assert len(given) == len(set(given)) == 7
                mine = set(map(str, last))
                assert not mine.intersection(cidrs([*world.nodes("after").values()]))
            finally:
                world.kubectl("delete", "node", FOREIGN_NODE)
            # The first renewal of `light` clears them; a kubelet sends back what it got.
            is_kept = fidelity != LIGHT
            eventually(lambda: managed_leases(world, "preset") == [is_kept] * 3, "their Leases")
            second.end_well_or_late()
        first.end_well_or_late()
    patches = [
        each["user"]["username"]
        for each in world.audit()
        if each["verb"] == "patch" and each["objectRef"].get("name") in names
    ]
    assert patches  # the taint of a Node that is new
    assert not [each for each in patches if each.endswith(":ttl-controller")]
    world.assert_nothing_left("preset")
    world.assert_nothing_left("after")
