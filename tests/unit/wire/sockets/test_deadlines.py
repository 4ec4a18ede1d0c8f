"""The buckets in which connections wait until they are looked at."""

from unittest.mock import Mock

from fleet.clock import NS_PER_S
from fleet.wire.sockets.connection import Connection, Descriptors

S = NS_PER_S


def waiting(*due: tuple[int, int]) -> Descriptors:
    """Return descriptors with connections of some numbers, and when each is looked at."""
    found = Descriptors(Mock())
    for number, due_ns in due:
        found.add(Connection(0, Mock(), fd=number, limit_ns=due_ns))
    return found


def numbers(descriptors: Descriptors, now_ns: int) -> list[int]:
    return [each.fd for each in descriptors.due(now_ns)]


def test_what_is_due_comes_earliest_second_first_and_once() -> None:
    descriptors = waiting((7, 5 * S), (8, 3 * S), (9, 5 * S))
    assert numbers(descriptors, 3 * S - 1) == []
    assert numbers(descriptors, 5 * S) == [8, 7, 9]
    assert numbers(descriptors, 100 * S) == []


def test_what_is_found_to_be_early_comes_next_time() -> None:
    """A caller sets it into the same second again: it is not lost, nor a loop."""
    due_ns = 5 * S + 900_000_000
    descriptors = waiting((7, due_ns))
    for _ in range(2):
        found = []
        for connection in descriptors.due(5 * S):
            found.append(connection.fd)
            descriptors.look_at(connection, due_ns)
        assert found == [7]
