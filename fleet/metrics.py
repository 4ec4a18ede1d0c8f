"""Counters and histograms that cost next to nothing: plain integers, no locks.

One latency sample is one dict increment at two significant digits from 0.1 ms (locust.md 3), so a
histogram of any load has at most about 600 keys, and percentiles are within 5 %.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

EXPECTED_CODES = frozenset({404, 409, 410})
"""Answers of a healthy server that are no errors: what is looked for before it is created."""
QUICK_US = 200_000  # less than this: where 20 ms more or less would be a tenth and more
POD_RESOURCES = frozenset(
    {"pods", "configmaps", "secrets", "serviceaccounts", "serviceaccounts/token"}
)
"""What a node may ask for once the node authorizer knows the pod that needs it.

It learns of a binding by a watch of its own, often a moment after the kubelet: the 403 that real
kubelets log as "no relationship found between node and this object", and get over by a retry.
"""


def is_failure(resource: str, code: int) -> bool:
    """Return whether an answer is one that a healthy server would not give; 0 is no answer."""
    if code == 403:
        return resource not in POD_RESOURCES
    return not code or (code >= 400 and code not in EXPECTED_CODES)


def is_refused_renewal(verb: str, resource: str, code: int) -> bool:
    """Return whether an answer is the one that costs nodes: a Lease was not renewed (429)."""
    return code == 429 and resource == "leases" and verb in {"PUT", "PATCH"}


@dataclass(slots=True, eq=False)
class Histogram:
    """Durations in microseconds, kept at two significant digits; of answers also their bytes."""

    bytes: int = 0
    count: int = 0
    sum_us: int = 0
    min_us: int = 0
    max_us: int = 0
    timed_us: int = 0  # what a quick answer took whose end was seen at once; see `Requests`
    buckets: dict[int, int] = field(default_factory=dict)

    def record(self, us: int) -> None:
        """Add one duration."""
        if us < 0:
            us = 0
        if not self.count or us < self.min_us:
            self.min_us = us
        if us > self.max_us:
            self.max_us = us
        self.count += 1
        self.sum_us += us
        if us < 10_000:
            key = us - us % 100
        elif us < 100_000:
            key = us - us % 1_000
        elif us < 1_000_000:
            key = us - us % 10_000
        else:
            key = us - us % 100_000
        buckets = self.buckets
        buckets[key] = buckets.get(key, 0) + 1

    def merge(self, other: "Histogram") -> None:
        """Add another's samples to this one's."""
        if not other.count:
            return
        self.min_us = other.min_us if not self.count else min(self.min_us, other.min_us)
        self.max_us = max(self.max_us, other.max_us)
        self.bytes += other.bytes
        self.count += other.count
        self.sum_us += other.sum_us
        for key, count in other.buckets.items():
            self.buckets[key] = self.buckets.get(key, 0) + count

    def percentile_us(self, fraction: float) -> int:
        """Return the upper end of the bucket that holds the fraction; 0 without samples."""
        if not self.count:
            return 0
        rank = max(1, round(self.count * fraction))
        seen = 0
        for key in sorted(self.buckets):
            seen += self.buckets[key]
            if seen >= rank:
                return min(self.max_us, key + _width(key))
        return self.max_us

    def snapshot(self) -> dict[int, int]:
        """Return a copy of the buckets; the difference of two is a period's histogram."""
        return dict(self.buckets)

    def since(self, before: dict[int, int]) -> "Histogram":
        """Return what came after `before` was taken. Its extremes are bucket bounds."""
        delta = Histogram()
        for key, count in self.buckets.items():
            more = count - before.get(key, 0)
            if more:
                delta.buckets[key] = more
                delta.count += more
        if delta.count:
            delta.min_us = min(delta.buckets)
            last = max(delta.buckets)
            delta.max_us = min(self.max_us, last + _width(last))
        return delta


def _width(key: int) -> int:
    if key < 10_000:
        return 100
    if key < 100_000:
        return 1_000
    return 10_000 if key < 1_000_000 else 100_000


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return one histogram of all samples."""
    total = Histogram()
    for histogram in histograms:
        total.merge(histogram)
    return total


class Requests:
    """Latencies of requests by row: `(verb, resource)`, then by HTTP code, 0 for no answer."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[int, Histogram]] = {}

    def record(
        self, row: tuple[str, str], code: int, us: int, size: int = 0, *, timed: bool = True
    ) -> None:
        """Count one answer of so many bytes; of a watch the stream's are not known.

        One that was read late (not `timed`) counts as taking what the last timed one took, if both
        were quick. Of slow ones some 20 ms more are no matter, and all are counted as they are.
        """
        codes = self.rows.get(row)
        if codes is None:
            codes = self.rows[row] = {}
        histogram = codes.get(code)
        if histogram is None:
            histogram = codes[code] = Histogram()
        if us < QUICK_US:
            if timed:
                histogram.timed_us = us
            elif histogram.timed_us:
                us = histogram.timed_us
        histogram.record(us)
        histogram.bytes += size

    @property
    def total(self) -> int:
        """Return how many answers were counted."""
        return sum(each.count for codes in self.rows.values() for each in codes.values())

    @staticmethod
    def merged(parts: Iterable["Requests"]) -> "Requests":
        """Return one of all samples."""
        total = Requests()
        for row, codes in ((row, codes) for part in parts for row, codes in part.rows.items()):
            mine = total.rows.setdefault(row, {})
            for code, histogram in codes.items():
                mine.setdefault(code, Histogram()).merge(histogram)
        return total


@dataclass(slots=True, eq=False)
class FleetCounts:
    """What the kubelets of the process did. `report.figures` names what is reported of it."""

    requests: Requests = field(default_factory=Requests)
    registered: int = 0
    ready: int = 0  # times that a node became so in the server's view
    not_ready: int = 0
    gone: int = 0
    renewals: int = 0
    lease_interval_ns_max: int = 0
    leases_missed: int = 0  # renewals that came later than the Lease's duration
    lease_late: Histogram = field(default_factory=Histogram)  # from due to the flush that sent it
    throttled: Histogram = field(default_factory=Histogram)  # waits for a client-side limit
    timer_lag: Histogram = field(default_factory=Histogram)
    node_start: Histogram = field(default_factory=Histogram)
    pod_start: Histogram = field(default_factory=Histogram)
    pod_start_sli: Histogram = field(default_factory=Histogram)  # without what is simulated
    pod_start_api: Histogram = field(default_factory=Histogram)  # requests that it waited for
    pod_start_fleet: Histogram = field(default_factory=Histogram)  # what is left of it
    pod_start_simulated: Histogram = field(default_factory=Histogram)
    pods_added: int = 0
    pods_running: int = 0  # reached Running, in all
    pods_failed: int = 0
    pods_removed: int = 0
    events_dropped: int = 0
    watch_events: int = 0
    watch_restarts: int = 0
    watches_open: int = 0
    watch_delay: Histogram = field(default_factory=Histogram)  # from a write's flush to its event
    watch_behind: Histogram = field(default_factory=Histogram)  # from its answer
    watch_delay_lost: int = 0
    restarts: int = 0  # of kubelets
    quarantined: int = 0
    foreign: int = 0  # nodes that are not this run's, though their names are
    foreign_names: list[str] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)  # what nobody can read
    own_limits: Counter[str] = field(default_factory=Counter)  # that the kubelets' servers hit
    bugs: int = 0  # exceptions that no single kubelet is to blame for
