"""The buckets in which connections wait until they are looked at."""

from fleet.clock import NS_PER_S
from fleet.wire.sockets.connection import Deadlines

S = NS_PER_S


def test_what_is_due_comes_earliest_second_first_and_once() -> None:
    deadlines = Deadlines()
    assert deadlines.due(0) == []
    assert [deadlines.set(number, due_s * S) for number, due_s in ((7, 5), (8, 3), (9, 5))] == [
        5,
        3,
        5,
    ]
    assert deadlines.due(3 * S - 1) == []
    assert deadlines.due(5 * S) == [(3, [8]), (5, [7, 9])]
    assert deadlines.due(100 * S) == []


def test_what_is_due_within_this_second_or_was_long_ago_comes_next_time() -> None:
    """Whoever looks at it and finds that it is early sets it again: it is not lost, nor a loop."""
    deadlines = Deadlines()
    second = deadlines.set(7, 5 * S + 900_000_000)
    assert deadlines.due(5 * S) == [(5, [7])]
    assert deadlines.set(7, 5 * S + 900_000_000) == second
    assert deadlines.set(8, 0) == 0
    assert deadlines.due(5 * S + 950_000_000) == [(0, [8]), (5, [7])]
