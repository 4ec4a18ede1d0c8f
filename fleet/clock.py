"""Time and chance: clocks, the timer wheel, seeded draws.

The wheel keeps plain tuples in coarse buckets of `TICK_NS`; a bucket is sorted when it fires, so
equal instants fire in the order in which they were set. Nothing is ever cancelled: the owner
remembers the due time that it waits for and ignores a stale entry.
"""

import heapq
import time
from bisect import bisect_right
from collections.abc import Container
from operator import itemgetter
from typing import Protocol

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
TICK_NS = 20 * NS_PER_MS
"""One bucket of the wheel, and one turn of the reactor: see design 2 for the measurement."""


class Clock(Protocol):
    """Where a reactor takes its time from."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds; decides what is due."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch; stamps objects."""
        ...


class SystemClock:
    """The machine's own clocks: the built-in functions themselves, for they are asked often."""

    __slots__ = ()

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)


TimerEntry = tuple[int, int, int, int, str]


class TimerWheel:
    """Due times of a whole fleet: `(due_ns, seq, node, timer, key)` in buckets of one tick."""

    __slots__ = ("_buckets", "_due", "_seq", "size")

    def __init__(self) -> None:
        self._buckets: dict[int, list[TimerEntry]] = {}
        self._due: list[int] = []  # heap of bucket numbers
        self._seq = 0
        self.size = 0

    def set(self, due_ns: int, node: int, timer: int, key: str = "") -> None:
        """Add one entry. A due time in the past fires at the next `expire`."""
        slot = due_ns // TICK_NS
        bucket = self._buckets.get(slot)
        if bucket is None:
            self._buckets[slot] = bucket = []
            heapq.heappush(self._due, slot)
        self._seq += 1
        self.size += 1
        bucket.append((due_ns, self._seq, node, timer, key))

    def forget(self, nodes: Container[int], kept: Container[int]) -> None:
        """Drop what is set for some nodes, but for some kinds of timers."""
        left = {
            slot: [each for each in bucket if each[2] not in nodes or each[3] in kept]
            for slot, bucket in self._buckets.items()
        }
        self._buckets = {slot: bucket for slot, bucket in left.items() if bucket}
        self._due = sorted(self._buckets)
        self.size = sum(map(len, self._buckets.values()))

    def next_ns(self) -> int | None:
        """Return the earliest due time, or None when nothing is set."""
        if not self._due:
            return None
        return min(self._buckets[self._due[0]])[0]

    def expire(self, now_ns: int, limit: int) -> list[TimerEntry]:
        """Take at most `limit` entries that are due, earliest first; the rest stays due."""
        taken: list[TimerEntry] = []
        last = now_ns // TICK_NS
        while self._due and self._due[0] <= last and len(taken) < limit:
            slot = self._due[0]
            bucket = self._buckets[slot]
            bucket.sort()
            if slot == last or len(taken) + len(bucket) > limit:
                most = min(limit - len(taken), len(bucket))
                count = bisect_right(bucket, now_ns, hi=most, key=itemgetter(0))
                if not count:
                    break
                taken += bucket[:count]
                del bucket[:count]
                if bucket:
                    break
            else:
                taken += bucket
            heapq.heappop(self._due)
            del self._buckets[slot]
        self.size -= len(taken)
        return taken


_MASK = (1 << 64) - 1


def mix(*words: int, state: int = 0x9E3779B97F4A7C15) -> int:
    """Mix integers into 64 well-spread bits (splitmix64), from `state` on; the same everywhere."""
    for word in words:
        state = (state ^ (word & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 27
        state = state * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


class Draws:
    """Randomness that is computed, not kept: a function of seed, node, stream and count."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = mix(seed)

    def uniform(self, node: int, stream: int, count: int) -> float:
        """Return a float in [0, 1)."""
        return (mix(node, stream, count, state=self._state) >> 11) * (1.0 / (1 << 53))

    def bits(self, node: int, stream: int, count: int) -> int:
        """Return 64 random bits."""
        return mix(node, stream, count, state=self._state)
