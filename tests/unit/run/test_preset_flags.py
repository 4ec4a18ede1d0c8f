"""What is read of a controller manager's flags."""

import pytest

from fleet.run.bring_up import cluster_ranges

FOUR, SIX = "10.128.0.0/9", "fd00:10::/48"


@pytest.mark.parametrize(
    ("flags", "ranges"),
    [
        ({"cluster-cidr": FOUR}, [(FOUR, 24)]),
        ({"cluster-cidr": FOUR, "node-cidr-mask-size": "25"}, [(FOUR, 25)]),
        ({"cluster-cidr": FOUR, "node-cidr-mask-size-ipv4": "26"}, [(FOUR, 26)]),
        ({"cluster-cidr": SIX}, [(SIX, 64)]),
        ({"cluster-cidr": f"{FOUR},{SIX}"}, [(FOUR, 24), (SIX, 64)]),
        (
            {"cluster-cidr": f"{SIX},{FOUR}", "node-cidr-mask-size-ipv6": "60"},
            [(SIX, 60), (FOUR, 24)],
        ),
    ],
)
def test_each_family_has_a_mask(flags: dict[str, str], ranges: list[tuple[str, int]]) -> None:
    assert [(str(each.whole), each.mask) for each in cluster_ranges(flags)] == ranges


def test_what_is_no_range_is_refused() -> None:
    with pytest.raises(ValueError, match="does not appear"):
        cluster_ranges({"cluster-cidr": "here"})
