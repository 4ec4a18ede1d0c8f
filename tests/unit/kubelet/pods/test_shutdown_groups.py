"""Which group of a shutdown a pod belongs to, and how Go writes how long ago something was."""

import pytest

from fleet.clock import NS_PER_S
from fleet.kubelet.node.node_shutdown import group_of
from fleet.kubelet.node.runtime_state import go_duration

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


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (180 * NS_PER_S, "3m0s"),
        (181 * NS_PER_S + 1, "3m1.000000001s"),
        (NS_PER_S, "1s"),
        (3600 * NS_PER_S, "1h0m0s"),
        (10 * NS_PER_S + 500_000_000, "10.5s"),
    ],
)
def test_durations_are_written_as_go_does(ns: int, text: str) -> None:
    assert go_duration(ns) == text
