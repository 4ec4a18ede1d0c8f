"""What the comparison leaves out: rows of differences.md, each with its side and its count.

A row of five cells names what is left out, on which side, how often at most and of what. What is
beyond its count stays, so that the comparison finds it.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from support.listed_differences import cells_of

from oracle.oracle_limits import PAGE

EITHER = "either"
_COUNT = re.compile(r"(\d+) of (an? [\w ]+|the run)")

CGROUP_OF_AN_ENDED_POD = "cgroup_of_an_ended_pod"
LEASE_IN_AN_OUTAGE = "lease_in_an_outage"
LIMIT_OF_V1 = "limit_of_v1"
PATCH_OF_AN_ADDRESS = "patch_of_a_removed_address"
PATCH_OF_A_CGROUP = "patch_of_a_removed_cgroup"
PATCH_WITHOUT_LIMIT = "patch_of_no_limit_of_v1"
READ_AT_A_START = "read_of_the_node_at_a_start"
READ_FOR_A_DRIVER = "read_of_the_node_for_a_driver"
READ_OF_A_GONE_POD = "read_of_a_gone_pod"
READY_OF_A_NODE = "ready_of_a_node_that_exists"
REFUSAL = "refusal_in_an_outage"
REPEAT_OF_A_LEASE = "repeat_of_a_lease_request"
REPORT = "report_of_nothing_new"
REQUEST_OF_FLEET = "request_of_fleet_itself"
SNAPSHOT = "snapshot_after_an_outage"
UNNOTED = "request_without_headers"
WATCH = "watch_that_goes_on"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One row."""

    name: str
    side: str
    most: int
    of: str
    reason: str
    source: str


def read_left_out(page: Path) -> dict[str, LeftOut]:
    """Read the rows of a differences.md that have five cells."""
    found = {}
    for cells in cells_of(page):
        if len(cells) == COLUMNS:
            name, side, count, reason, source = cells
            match = _COUNT.fullmatch(count)
            assert match is not None, cells
            row = LeftOut(name.strip("`"), side, int(match[1]), match[2], reason, source)
            found[row.name] = row
    return found


COLUMNS = 5
LEFT_OUT = read_left_out(PAGE)


class Ledger:
    """Counts what is left out of what one node asked."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._counts: Counter[tuple[str, str]] = Counter()

    def takes(self, name: str, about: str = "") -> bool:
        """Return whether a row allows to leave out one more, and count it."""
        row = LEFT_OUT[name]
        if row.side not in (EITHER, self._side) or self._counts[name, about] >= row.most:
            return False
        self._counts[name, about] += 1
        return True

    @property
    def totals(self) -> Counter[str]:
        """Return how many each row left out."""
        found: Counter[str] = Counter()
        for (name, _), count in self._counts.items():
            found[name] += count
        return found


def used(real: Counter[str], fleet: Counter[str]) -> list[str]:
    """Return a line for each row that left out something, with both counts."""
    return [
        f"left out: {name}: real {real[name]}, fleet {fleet[name]}"
        for name in sorted({*real, *fleet})
    ]
