"""What controllers would give a Node."""

import ipaddress

import pytest

from fleet.profile.controller_preset import ControllerPreset

PRESET = ControllerPreset(ipaddress.IPv4Network("10.0.0.0/22"), 24)


def test_ranges_are_taken_from_the_end_until_there_are_no_more() -> None:
    given = [PRESET.pod_cidr(index) for index in range(5)]
    assert given == ["10.0.3.0/24", "10.0.2.0/24", "10.0.1.0/24", "10.0.0.0/24", ""]
    whole = ControllerPreset(ipaddress.IPv4Network("10.0.3.0/24"), 24)
    assert [whole.pod_cidr(index) for index in range(2)] == ["10.0.3.0/24", ""]


@pytest.mark.parametrize(
    ("nodes", "ttl"),
    [(0, "0"), (99, "0"), (100, "15"), (499, "15"), (999, "30"), (1999, "60"), (2000, "300")],
)
def test_the_larger_the_cluster_the_longer_secrets_are_kept(nodes: int, ttl: str) -> None:
    assert PRESET.ttl(nodes) == ttl
