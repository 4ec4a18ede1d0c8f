"""What the components of a control plane tell at `/metrics`: which families, and how they are read.

Of 2 to 5 MB of text a run needs a tenth. Lines of other families are dropped by their first bytes
as they arrive; what is left goes through the official parser, each series once: from then on its
labels are known, and only its value is read. Series that differ only in labels that nobody looks at
are added up.

    text --Wanted.keep--> lines --Wanted.read--> Exposition --since--> Exposition of a period
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from fleet.controlplane import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER

BUCKET = "_bucket"
REQUESTS = "apiserver_request_sli_duration_seconds"
SERIES_MAX = 50_000
"""Remembered of one component; a busy API server has some 5,000 that are of use."""
SLICE_CREDIT = 1_000
PARSE_COST = 40
"""Of a series that is new, in lines that are known: 30 us, where those take less than one."""
SEPARATOR = "|"
"""Between the values of labels in a key; no verb, resource or name has one."""


class Family(NamedTuple):
    """One family that is kept, as the component calls it."""

    name: str
    labels: tuple[str, ...] = ()
    """What series are told apart by; over all other labels they are added up."""
    is_histogram: bool = False
    only: tuple[str, str] = ("", "")
    """A label and the value that it must have."""


PROCESS = (
    Family("process_cpu_seconds_total"),
    Family("process_resident_memory_bytes"),
    Family("go_goroutines"),
    Family("go_gc_duration_seconds_sum"),
)
FAMILIES: Mapping[str, tuple[Family, ...]] = {
    APISERVER: (
        Family(
            REQUESTS,
            ("verb", "resource", "subresource", "scope"),
            is_histogram=True,
        ),
        Family("apiserver_request_total", ("verb", "resource", "code")),
        Family("apiserver_current_inflight_requests", ("request_kind",)),
        Family("apiserver_flowcontrol_dispatched_requests_total", ("flow_schema",)),
        Family("apiserver_flowcontrol_rejected_requests_total", ("flow_schema", "reason")),
        Family("apiserver_flowcontrol_current_inqueue_requests", ("priority_level",)),
        Family("apiserver_flowcontrol_current_executing_requests", ("priority_level",)),
        Family(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            ("priority_level",),
            is_histogram=True,
        ),
        Family("apiserver_longrunning_requests", ("resource",), only=("verb", "WATCH")),
        Family("apiserver_watch_events_total", ("resource",)),
        Family("apiserver_terminated_watchers_total", ("resource",)),
        Family("apiserver_resource_objects", ("resource",)),
        Family("etcd_request_duration_seconds_sum", ("operation",)),
        Family("etcd_request_duration_seconds_count", ("operation",)),
        *PROCESS,
    ),
    SCHEDULER: (
        Family("scheduler_schedule_attempts_total", ("result",)),
        Family("scheduler_pending_pods", ("queue",)),
        Family("scheduler_pod_scheduling_sli_duration_seconds", is_histogram=True),
        *PROCESS,
    ),
    CONTROLLER_MANAGER: (
        Family("workqueue_depth", ("name",)),
        Family("node_collector_evictions_total", ("zone",)),
        Family("node_collector_unhealthy_nodes_in_zone", ("zone",)),
        *PROCESS,
    ),
    ETCD: (
        Family("etcd_disk_wal_fsync_duration_seconds", is_histogram=True),
        Family("etcd_disk_backend_commit_duration_seconds", is_histogram=True),
        Family("etcd_mvcc_db_total_size_in_bytes"),
        *PROCESS,
    ),
}

Key = tuple[str, str]
"""The name of a family, and the values of its labels."""


@dataclass(slots=True)
class Exposition:
    """What one component told at one time. Buckets are cumulative, as they are told."""

    values: dict[Key, float] = field(default_factory=dict)
    buckets: dict[Key, list[float]] = field(default_factory=dict)
    bounds: dict[str, list[float]] = field(default_factory=dict)
    """Of the buckets of each histogram; the last one is infinite."""

    def since(self, before: "Exposition") -> "Exposition":
        """Return what was counted in between. Gauges make no sense in it.

        A counter that fell was begun anew, by a component that was started again.
        """
        values = {
            key: _gain(value, before.values.get(key, 0)) for key, value in self.values.items()
        }
        buckets: dict[Key, list[float]] = {}
        for key, now in self.buckets.items():
            then = before.buckets.get(key)
            if then is None or len(then) != len(now) or then[-1] > now[-1]:
                buckets[key] = list(now)
            else:
                buckets[key] = [b - a for a, b in zip(then, now, strict=True)]
        return Exposition(values, buckets, self.bounds)

    def of(self, family: str) -> dict[str, float]:
        """Return the values of one family by their labels."""
        return {labels: value for (name, labels), value in self.values.items() if name == family}

    def total(self, family: str) -> float | None:
        """Return the sum of one family; None if the component has none, which is not 0."""
        found = self.of(family)
        return sum(found.values()) if found else None


def _gain(now: float, then: float) -> float:
    return now - then if now >= then else now


def quantile(fraction: float, bounds: list[float], cumulative: list[float]) -> float | None:
    """Return a quantile of a histogram in its own unit; None without samples.

    Within a bucket samples are taken as spread evenly, and what lies beyond the last bound is
    told as that bound.
    Source: github.com/prometheus/prometheus promql/quantile.go, bucketQuantile.
    """
    total = cumulative[-1] if cumulative else 0
    if total <= 0:
        return None
    rank = fraction * total
    at = next(index for index, count in enumerate(cumulative) if count >= rank)
    if at == len(bounds) - 1:
        return bounds[-2] if len(bounds) > 1 else None
    low, below = (bounds[at - 1], cumulative[at - 1]) if at else (0.0, 0.0)
    inside = cumulative[at] - below
    return low + (bounds[at] - low) * ((rank - below) / inside if inside else 1.0)


def added(histograms: Iterable[list[float]]) -> list[float]:
    """Add histograms of the same bounds up."""
    return [sum(counts) for counts in zip(*histograms, strict=True)]


class Place(NamedTuple):
    """Where the value of one series goes."""

    key: Key
    bound: float | None
    """Of the bucket; None of what is no histogram."""


NOWHERE = Place(("", ""), None)
"""Of a series that nobody looks at."""


class Wanted:
    """The families of one component."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families: dict[str, Family] = {}
        self._places: dict[bytes, Place] = {}  # by all of a line but its value
        for family in families:
            name = family.name + BUCKET if family.is_histogram else family.name
            self._families[name] = family
        self._prefixes = tuple(
            chain.from_iterable(
                (f"{name}{{".encode(), f"{name} ".encode()) for name in self._families
            )
        )

    def keep(self, lines: Iterable[bytes]) -> list[bytes]:
        """Return the lines that are of use."""
        return [line for line in lines if line.startswith(self._prefixes)]

    def reading(self) -> "Reading":
        """Begin to read one answer."""
        return Reading(self._families, self._places)

    def read(self, kept: Iterable[bytes]) -> Exposition:
        """Parse what was kept. Raises ValueError for what is no exposition."""
        reading = self.reading()
        for _ in reading.slices(kept):
            pass
        return reading.told()


class Reading:
    """Reads one answer, some lines at a time, so that others have their turn in between."""

    __slots__ = ("_counts", "_families", "_found", "_places")

    def __init__(self, families: Mapping[str, Family], places: dict[bytes, Place]) -> None:
        self._families = families
        self._places = places
        self._found = Exposition()
        self._counts: dict[Key, dict[float, float]] = {}

    def slices(self, lines: Iterable[bytes]) -> Iterator[None]:
        """Read the lines that were kept; yield after each millisecond's work.

        Raises ValueError for what are none.
        """
        places, counts, values = self._places, self._counts, self._found.values
        credit = SLICE_CREDIT
        for line in lines:
            series, _, text = line.rpartition(b" ")
            place = places.get(series)
            if place is None:
                place, value = self._parse(line)
                credit -= PARSE_COST
                is_whole = series.endswith(b"}") or b" " not in series  # no time behind the value
                if is_whole and len(places) < SERIES_MAX:
                    places[series] = place
            else:
                value = float(text)
            key, bound = place
            if bound is not None:
                histogram = counts.setdefault(key, {})
                histogram[bound] = histogram.get(bound, 0.0) + value
            elif place is not NOWHERE:
                values[key] = values.get(key, 0.0) + value
            credit -= 1
            if credit <= 0:
                credit = SLICE_CREDIT
                yield

    def _parse(self, line: bytes) -> tuple[Place, float]:
        """Let the official parser read a line. Raises ValueError."""
        for each in text_string_to_metric_families(line.decode(errors="replace") + "\n"):
            for sample in each.samples:
                family = self._families.get(sample.name)
                if family is None:
                    continue
                label, value = family.only
                if label and sample.labels.get(label) != value:
                    continue
                labels = SEPARATOR.join(sample.labels.get(name, "") for name in family.labels)
                bound = float(sample.labels["le"]) if family.is_histogram else None
                return Place((family.name, labels), bound), sample.value
        return NOWHERE, 0.0

    def told(self) -> Exposition:
        """Return what all of it tells."""
        found = self._found
        for key, histogram in self._counts.items():
            bounds = found.bounds.setdefault(key[0], sorted(histogram))
            found.buckets[key] = [histogram.get(bound, 0.0) for bound in bounds]
        return found
