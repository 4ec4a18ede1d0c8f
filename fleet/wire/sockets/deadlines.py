"""When which connection is to be looked at: buckets of a second, so that nobody visits all.

    set -> the bucket of the second in which it is due -> due -> looked at, and set anew

Thousands of connections are up, and each second a few are due: one that was read from lately is
put off by as long as it may be silent. Nothing is cancelled: a connection remembers the bucket
that it waits in (`look_s`), and what is found in another one is stale. What the buckets hold are
numbers (descriptors), so that a closed connection is not kept.
"""

import heapq

from fleet.clock import NS_PER_S

NEVER = -1


class Deadlines:
    """Numbers by the second in which they are due; see the top of this file."""

    __slots__ = ("_buckets", "_seconds")

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}
        self._seconds: list[int] = []  # heap of the buckets there are

    def set(self, number: int, due_ns: int) -> int:
        """Put a number into the bucket of its second; return that, to be remembered."""
        second = due_ns // NS_PER_S
        bucket = self._buckets.get(second)
        if bucket is None:
            self._buckets[second] = bucket = []
            heapq.heappush(self._seconds, second)
        bucket.append(number)
        return second

    def due(self, now_ns: int) -> list[tuple[int, list[int]]]:
        """Take the buckets whose second has begun, earliest first.

        So a number comes up to a second early: who looks decides, and may set it again.
        """
        found = []
        last = now_ns // NS_PER_S
        while self._seconds and self._seconds[0] <= last:
            second = heapq.heappop(self._seconds)
            found.append((second, self._buckets.pop(second)))
        return found
