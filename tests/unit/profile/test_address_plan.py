"""Which addresses nodes have, and which are free."""

import ipaddress

import pytest

from fleet.profile.addresses import AddressPlan, pod_cidrs, range_of

BOTH = (ipaddress.ip_network("198.18.0.0/15"), ipaddress.ip_network("fd00:c6:12::/108"))


def test_a_position_is_an_address_of_each_pool_and_a_block_for_pods() -> None:
    plan = AddressPlan(BOTH)
    assert list(map(str, plan.ranges(0, 100))) == [
        "198.18.0.1-198.18.0.100",
        "fd00:c6:12::1-fd00:c6:12::64",
        "127.128.0.1-127.128.0.100",
        "240.0.0.0-240.1.143.255",
        "fd00:10::-fd00:10:0:63:ffff:ffff:ffff:ffff",
    ]
    assert plan.room == 2**17 - 2
    for position in (0, 7, 2**17 - 3):
        for each in plan.ranges(position, 1)[:3]:
            assert plan.position_of([str(each).partition("-")[0]]) == position
    assert plan.position_of(["10.0.0.1", "x"]) is None


@pytest.mark.parametrize(
    ("taken", "at"),
    [
        ([], 5),
        (["198.18.0.3"], 5),
        (["198.18.0.6"], 6),
        (["198.18.0.6-198.18.0.9", "fd00:c6:12::c"], 12),
        (["10.244.0.0/16", "2001:db8::/64"], 5),
        (["240.0.16.0/24"], 5),
        (["240.0.20.0/24"], 6),
        (["198.18.0.0/16"], 2**16 - 1),
        (["198.18.0.6-198.19.255.255"], 0),  # nothing behind: what is in front
        (["198.18.0.0/15"], None),
        (["0.0.0.0/0"], None),
    ],
)
def test_a_process_begins_at_the_first_position_that_is_free(
    taken: list[str], at: int | None
) -> None:
    ranges = [found for each in taken if (found := range_of(each)) is not None]
    assert AddressPlan(BOTH).free(5, 4, ranges) == at


def test_a_node_without_pod_cidrs_has_a_block_of_each_of_its_families() -> None:
    assert pod_cidrs(258, "192.0.2.1") == "240.4.8.0/22"
    assert pod_cidrs(258, "2001:db8::1") == "fd00:10:0:102::/64"
    assert pod_cidrs(258, "2001:db8::1,192.0.2.1") == "fd00:10:0:102::/64,240.4.8.0/22"
    assert pod_cidrs(-1, "192.0.2.1") == "255.255.252.0/22"  # of a Node of others


@pytest.mark.parametrize("text", ["", "x", "1.2.3.4-::1", "1.2.3.4-1.2.3.3", "1.2.3.4/40", "1-2-3"])
def test_what_is_no_range_is_none(text: str) -> None:
    assert range_of(text) is None
