"""What each kubelet's API client is counted to have asked."""

import sys

from fleet.clock import NS_PER_S
from fleet.reactor.process import RequestColumns, RequestCounts

BYTES_MAX = 200
"""Of a node that nobody asks."""


def requests(columns: RequestColumns, counts: RequestCounts) -> dict[tuple[str, str], int]:
    return {(code, method): count for code, method, count in columns.rows(counts)}


def test_each_node_has_its_own() -> None:
    columns, one, other = RequestColumns(), RequestCounts(), RequestCounts()
    for verb, code in (("GET", 200), ("LIST", 200), ("WATCH", 200), ("GET", 404), ("PUT", 0)):
        columns.count(one, verb, code)
    columns.count(other, "PUT", 0)
    columns.count(other, "DELETECOLLECTION", 200)
    assert requests(columns, one) == {
        ("200", "GET"): 3, ("404", "GET"): 1, ("<error>", "PUT"): 1
    }  # fmt: skip
    assert requests(columns, other) == {("<error>", "PUT"): 1, ("200", "DELETE"): 1}
    assert requests(columns, RequestCounts()) == {}


def test_durations_are_kept_once_somebody_asks() -> None:
    columns, counts = RequestColumns(), RequestCounts()
    columns.count(counts, "PUT", 200, 3_000)
    assert counts.took is None
    counts.took = {}
    columns.count(counts, "PUT", 200, 30_000)
    columns.count(counts, "WATCH", 200)
    assert list(counts.took) == ["PUT"]
    assert counts.took["PUT"].total_ns * 100 == 3 * NS_PER_S
    assert list(columns.rows(counts)) == [("200", "PUT", 2), ("200", "GET", 1)]


def test_a_node_that_nobody_asks_holds_little() -> None:
    """With as many pairs of method and code as a bring-up has that sees a server refuse."""
    columns, counts = RequestColumns(), RequestCounts()
    for verb in ("GET", "POST", "PUT", "PATCH"):
        for code in (0, 200, 201, 404):
            columns.count(counts, verb, code, 5_000)
    assert sys.getsizeof(counts) + sys.getsizeof(counts.asked) < BYTES_MAX
