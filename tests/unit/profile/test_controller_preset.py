"""What controllers would give a Node."""

import ipaddress

import pytest

from fleet.profile.addresses import ClusterRange, ControllerPreset

FOUR = ClusterRange(ipaddress.IPv4Network("10.0.0.0/22"), 24)
SIX = ClusterRange(ipaddress.IPv6Network("fd00:10::/62"), 64)
PRESET = ControllerPreset((FOUR,))


def test_ranges_are_taken_from_the_end_until_there_are_no_more() -> None:
    given = [PRESET.pod_cidrs(index) for index in range(5)]
    assert given == [["10.0.3.0/24"], ["10.0.2.0/24"], ["10.0.1.0/24"], ["10.0.0.0/24"], []]
    whole = ClusterRange(ipaddress.IPv4Network("10.0.3.0/24"), 24)
    assert [whole.part_of(index) for index in range(2)] == ["10.0.3.0/24", ""]


def test_a_node_of_two_families_has_a_range_of_each_or_none() -> None:
    preset = ControllerPreset((SIX, FOUR))
    assert preset.pod_cidrs(0) == ["fd00:10:0:3::/64", "10.0.3.0/24"]
    assert preset.pod_cidrs(3) == ["fd00:10::/64", "10.0.0.0/24"]
    assert preset.pod_cidrs(4) == []
    small = FOUR._replace(mask=23)
    assert ControllerPreset((SIX, small)).pod_cidrs(2) == []


@pytest.mark.parametrize(
    ("nodes", "ttl"),
    [(0, "0"), (99, "0"), (100, "15"), (499, "15"), (999, "30"), (1999, "60"), (2000, "300")],
)
def test_the_larger_the_cluster_the_longer_secrets_are_kept(nodes: int, ttl: str) -> None:
    assert PRESET.ttl(nodes) == ttl
