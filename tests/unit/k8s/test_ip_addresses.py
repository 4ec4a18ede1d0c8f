"""Addresses of one family or of both."""

import pytest

from fleet.k8s.addresses import by_family, each_of, first_of, node_ips, with_second

FOUR, SIX = "10.0.0.5", "fd00::5"
BOTH, SIX_FIRST = f"{FOUR},{SIX}", f"{SIX},{FOUR}"


@pytest.mark.parametrize(("ips", "listed"), [("", []), (FOUR, [FOUR]), (BOTH, [FOUR, SIX])])
def test_one_by_one(ips: str, listed: list[str]) -> None:
    assert each_of(ips) == listed
    assert first_of(ips) == (listed or [""])[0]


@pytest.mark.parametrize(
    ("ips", "of_node", "sorted_ips"),
    [
        (BOTH, "192.0.2.1", BOTH),
        (BOTH, "2001:db8::1,192.0.2.1", SIX_FIRST),
        (SIX_FIRST, "192.0.2.1", BOTH),
        (SIX, "192.0.2.1", SIX),
        (f"{BOTH},10.0.0.6,fd00::6", "192.0.2.1", BOTH),
        (f"{FOUR},10.0.0.6", "2001:db8::1", FOUR),
        (BOTH, "", BOTH),
        ("", "192.0.2.1", ""),
    ],
)
def test_the_family_of_the_node_comes_first(ips: str, of_node: str, sorted_ips: str) -> None:
    assert by_family(ips, of_node) == sorted_ips


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ([], ""),
        (["node-1"], ""),
        (["10.0.0.5", "10.0.0.6", "fd00::5", "fd00::6"], BOTH),
        (["node-1", SIX, FOUR], SIX_FIRST),
    ],
)
def test_a_node_has_one_of_each_family(listed: list[str], found: str) -> None:
    assert node_ips(listed) == found


@pytest.mark.parametrize(
    ("ips", "of_node", "found"),
    [
        ("", BOTH, BOTH),
        (FOUR, f"192.0.2.1,{SIX}", BOTH),
        (FOUR, f"{SIX},192.0.2.1", FOUR),
        (BOTH, "192.0.2.1,2001:db8::1", BOTH),
        (FOUR, "192.0.2.1", FOUR),
    ],
)
def test_a_second_address_is_added_to_the_first(ips: str, of_node: str, found: str) -> None:
    assert with_second(ips, of_node) == found
