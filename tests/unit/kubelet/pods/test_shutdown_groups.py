"""Which group of a shutdown a pod belongs to, and how Go writes how long ago something was."""

import pytest

from fleet.kubelet.node.node_shutdown import group_of

GROUPS = ((0, 20), (1000, 10), (2_000_000_000, 5))


@pytest.mark.parametrize(
    ("priority", "group"),
    [
        (-5, 0),  # below the lowest: the lowest
        (0, 0),
        (999, 0),
        (1000, 1),
        (1_999_999_999, 1),
        (2_000_000_000, 2),
        (2_000_001_000, 2),  # above the highest: the highest
    ],
)
def test_a_pod_belongs_to_the_highest_group_not_above_it(priority: int, group: int) -> None:
    assert group_of(GROUPS, priority) == group
