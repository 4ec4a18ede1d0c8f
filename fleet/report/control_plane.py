"""What components of the control plane tell at `/metrics`, and the file `controlplane.jsonl`.

Of 2 to 5 MB of text a run needs a tenth. Lines of other families are dropped by their first bytes
as they arrive; what is left goes through the official parser, each series once: from then on its
labels are known, and only its value is read. Series that differ only in labels that nobody looks at
are added up.

    text --Wanted.keep--> lines --Wanted.read--> Exposition --since--> Exposition of a period

The file has a line for each sample of a component:

    {"wall_s": 15.2, "component": "kube-apiserver", "took_ms": 41, "bytes": 2007430,
     "values": {"apiserver_request_total": {"GET|nodes|200": 1240}},
     "histograms": {"etcd_disk_wal_fsync_duration_seconds": {"": [0, 3, 9]}},
     "bounds": {"etcd_disk_wal_fsync_duration_seconds": [0.001, 0.002, null]}}

Counters are reported as the component has them. A line has only what changed since the last one of
its component, null for what is gone; `Samples` reads the file back. A sample costs the API server
CPU, 0.1 s where there are 5,000 nodes, so the next one waits a hundred times as long as the answer
took, but not so long that the moment is missed in which a busy server answers late.
"""

import asyncio
import contextlib
import math
import time
import tomllib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import orjson
from prometheus_client.parser import text_string_to_metric_families

from fleet.cluster.api_client import Cluster, describe_failure
from fleet.cluster.identity import may_read
from fleet.controlplane.options import APISERVER, ETCD, ControlPlaneInfo
from fleet.errors import FleetError, SetupError
from fleet.report.figure import Json

BUCKET = "_bucket"
REQUESTS = "apiserver_request_sli_duration_seconds"
WAITS = "apiserver_flowcontrol_request_wait_duration_seconds"
REJECTED = "apiserver_flowcontrol_rejected_requests_total"
NODE_LEVELS = ("node-high", "system")
NODE_SCHEMAS = ("system-node-high|", "system-nodes|")
"""Of kubelets. Source: apiserver/pkg/apis/flowcontrol/bootstrap/default.go."""
SERIES_MAX = 50_000  # remembered of one component; a busy API server has some 5,000 that are of use
SLICE_CREDIT = 1_000
PARSE_COST = 40
"""Of a series that is new, in lines that are known: 30 us, where those take less than one."""
SEPARATOR = "|"  # between the values of labels in a key; no verb, resource or name has one


class Family(NamedTuple):
    """One family that is kept, as the component calls it."""

    name: str
    labels: Sequence[str] = ()
    """What distinguishes series; over all other labels they are added up."""
    is_histogram: bool = False
    only: Sequence[str] = ("", "")  # a label and the value that it must have


def _families() -> dict[str, tuple[Family, ...]]:
    """Read the families of each component."""
    found = tomllib.loads(Path(__file__).with_name("components.toml").read_text(encoding="utf-8"))
    of_all = found.pop("process")
    return {
        component: tuple(Family(**each) for each in (*own, *of_all))
        for component, own in found.items()
    }


FAMILIES = _families()

Key = tuple[str, str]  # the name of a family, and the values of its labels


@dataclass(slots=True)
class Exposition:
    """What one component reported at one time. Buckets are cumulative, as reported."""

    values: dict[Key, float] = field(default_factory=dict)
    buckets: dict[Key, list[float]] = field(default_factory=dict)
    bounds: dict[str, list[float]] = field(default_factory=dict)
    """Of the buckets of each histogram; the last one is infinite."""

    def since(self, before: "Exposition") -> "Exposition":
        """Return what was counted in between. Gauges make no sense in it.

        A counter that fell began again, in a component that was started again.
        """
        values = {
            key: now - base if now >= (base := before.values.get(key, 0)) else now
            for key, now in self.values.items()
        }
        buckets: dict[Key, list[float]] = {}
        for key, now in self.buckets.items():
            then = before.buckets.get(key)
            if then is None or len(then) != len(now) or then[-1] > now[-1]:
                buckets[key] = list(now)
            else:
                buckets[key] = [b - a for a, b in zip(then, now, strict=True)]
        return Exposition(values, buckets, self.bounds)

    def plus(self, more: "Exposition") -> "Exposition":
        """Return what was counted in two times together."""
        values, buckets = dict(self.values), dict(self.buckets)
        for key, count in more.values.items():
            values[key] = values.get(key, 0) + count
        for key, counts in more.buckets.items():
            buckets[key] = added((buckets[key], counts)) if key in buckets else counts
        return Exposition(values, buckets, {**self.bounds, **more.bounds})

    def of(self, family: str) -> dict[str, float]:
        return {labels: value for (name, labels), value in self.values.items() if name == family}

    def total(self, family: str) -> float | None:
        """Return the sum of one family; None if the component has none, which is not 0."""
        found = self.of(family)
        return sum(found.values()) if found else None


def quantile(fraction: float, bounds: list[float], cumulative: list[float]) -> float | None:
    """Return a quantile of a histogram in its own unit; None without samples.

    Within a bucket samples are taken as spread evenly, and what lies beyond the last bound is
    reported as that bound.
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


def node_queues(told: Exposition) -> tuple[float, float]:
    """Return how long requests of nodes waited in queues (p90), and how many were refused."""
    rows = [told.buckets[WAITS, each] for each in NODE_LEVELS if (WAITS, each) in told.buckets]
    waited_s = quantile(0.9, told.bounds[WAITS], added(rows)) if rows else None
    rejected = told.of(REJECTED).items()
    refused = sum(count for labels, count in rejected if labels.startswith(NODE_SCHEMAS))
    return waited_s or 0.0, refused


class Place(NamedTuple):
    """Where the value of one series goes."""

    key: Key
    bound: float | None  # of the bucket; None of what is no histogram


NOWHERE = Place(("", ""), None)  # of a series that nobody looks at


class Wanted:
    """The families of one component."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = {
            each.name + (BUCKET if each.is_histogram else ""): each for each in families
        }
        self._places: dict[bytes, Place] = {}  # by all of a line but its value
        self._prefixes = tuple(f"{name}{end}".encode() for name in self._families for end in "{ ")

    def keep(self, lines: Iterable[bytes]) -> list[bytes]:
        return [line for line in lines if line.startswith(self._prefixes)]

    def read(self, kept: Iterable[bytes]) -> Exposition:
        """Parse what was kept. Raises ValueError for what is no exposition."""
        found = Exposition()
        for _ in self.slices(kept, found):
            pass
        return found

    def slices(self, lines: Iterable[bytes], found: Exposition) -> Iterator[None]:
        """Read lines that were kept into `found`; yield after each millisecond's work.

        Others have their turn in between. Raises ValueError for what is no exposition.
        """
        places, values = self._places, found.values
        counts: dict[Key, dict[float, float]] = {}
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
        for key, histogram in counts.items():
            bounds = found.bounds.setdefault(key[0], sorted(histogram))
            found.buckets[key] = [histogram.get(bound, 0.0) for bound in bounds]

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


INTERVAL_S = 5.0
INTERVAL_MAX_S = 15.0
FINE_S = 1800.0
"""After so long the files of a run say less often how it goes, see run_directory.py."""
SHARE = 100  # of the time that an answer takes is waited until the next sample
TIMEOUT_S = 10.0
BYTES_MAX = 64 << 20
PAUSE_S = 0.004  # between slices of a millisecond: a turn of the reactor or two
PURPOSE = "metrics"
PATH = "/metrics"

Fetch = Callable[[], AsyncGenerator[bytes]]


@dataclass(slots=True)
class Sample:
    """One answer of one component, and what it cost."""

    component: str
    at_s: float
    took_ms: float
    size: int
    told: Exposition


class Component:
    """One component and what it reported last."""

    def __init__(self, name: str, fetch: Fetch) -> None:
        self.name = name
        self._fetch = fetch
        self._wanted = Wanted(FAMILIES[name])
        self.before: Sample | None = None  # the last one
        self.last: Sample | None = None
        self.counted = Exposition()
        """Since the first sample, whenever the component was started again."""
        self.written = Exposition()
        self.samples = 0
        self.lost = 0  # samples without an answer
        self.problem = ""  # of the last one

    async def sample(self, elapsed_s: Callable[[], float]) -> Sample:
        """Ask once. Raises SetupError or OSError."""
        begun = time.monotonic()
        kept: list[bytes] = []
        rest, size = b"", 0
        async with asyncio.timeout(TIMEOUT_S), contextlib.aclosing(self._fetch()) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > BYTES_MAX:
                    raise SetupError(f"{self.name}: more than {BYTES_MAX >> 20} MiB of metrics")
                *lines, rest = (rest + chunk).split(b"\n")
                kept += self._wanted.keep(lines)
        took_ms = (time.monotonic() - begun) * 1e3
        at_s = elapsed_s()
        # A thread would keep the lock for 5 ms at each system call of a turn.
        told = Exposition()
        for _ in self._wanted.slices(kept, told):
            await asyncio.sleep(PAUSE_S)
        return Sample(self.name, at_s, took_ms, size, told)

    def take(self, sample: Sample) -> Exposition:
        """Keep a sample, and return what was counted since the one before."""
        gained = sample.told.since(self.last.told) if self.last is not None else Exposition()
        self.counted = self.counted.plus(gained)
        self.before, self.last = self.last, sample
        return gained


@dataclass(eq=False)
class ControlPlaneSampler:
    """Samples every component that can be reached until it is stopped."""

    cluster: InitVar[Cluster]
    local: InitVar[ControlPlaneInfo | None]
    _elapsed_s: Callable[[], float]
    _write: Callable[[bytes], bool]  # a whole line, or False
    _on_queues: Callable[[float, float], None]  # takes what `node_queues` finds
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    has_looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Every component was asked once."""
    _may_read: bool | None = None

    def __post_init__(self, cluster: Cluster, local: ControlPlaneInfo | None) -> None:
        self._api = cluster.api(PURPOSE)
        self.components = [Component(APISERVER, self._of_apiserver)]
        for name, port in (local.ports if local is not None else {}).items():
            if name != APISERVER and name in FAMILIES:
                server = f"{'http' if name == ETCD else 'https'}://127.0.0.1:{port}"
                self.components.append(Component(name, partial(self._api.text, PATH, server)))

    @property
    def apiserver(self) -> Component:
        """The one that every cluster has."""
        return self.components[0]

    def newest(self) -> "Samples":
        """Return the last two samples of each component that has as many."""
        found = Samples()
        for each in self.components:
            if each.before is not None and each.last is not None:
                found.of[each.name] = [each.before, each.last]
        return found

    async def run(self) -> None:
        """Sample until cancelled."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            took_s = await self.sample()
            interval_s = min(max(INTERVAL_S, took_s * SHARE), INTERVAL_MAX_S)
            await asyncio.sleep(interval_s * max(1.0, (loop.time() - began_s) / FINE_S))

    async def sample(self) -> float:
        """Ask each component once, and return for how many seconds the slowest answered."""
        async with self._asking:
            took_s = [
                await self._sample(each)
                for each in self.components
                if each is not self.apiserver or self._may_read is not False
            ]
        self.has_looked.set()
        return max(took_s, default=0.0)

    async def _sample(self, component: Component) -> float:
        begun = time.monotonic()
        try:
            sample = await component.sample(self._elapsed_s)
        except (FleetError, OSError, ValueError) as error:
            component.lost += 1
            is_ours = isinstance(error, FleetError | ValueError)
            component.problem = str(error) if is_ours else describe_failure(error)
            return time.monotonic() - begun
        component.problem = ""
        component.samples += 1
        gained = component.take(sample)
        if component is self.apiserver and component.before is not None:
            self._on_queues(*node_queues(gained))
        if self._write(line_of(sample, component.written)):
            component.written = sample.told
        return sample.took_ms / 1e3

    async def _of_apiserver(self) -> AsyncGenerator[bytes]:
        """Ask for what the user may read, and only then: a refusal is noise in an audit log."""
        if self._may_read is None:
            self._may_read = await may_read(self._api, PATH)
        if not self._may_read:
            raise SetupError(f"no permission (RBAC) to get {PATH}: bind system:monitoring")
        async for chunk in self._api.text(PATH):
            yield chunk


def line_of(sample: Sample, before: Exposition) -> bytes:
    """Return one line of the file: what changed."""
    told = sample.told
    values: dict[str, dict[str, float | None]] = {}
    for (name, labels), value in told.values.items():
        if before.values.get((name, labels)) != value:
            values.setdefault(name, {})[labels] = _short(value)
    for name, labels in before.values.keys() - told.values.keys():
        values.setdefault(name, {})[labels] = None
    histograms: dict[str, dict[str, list[float]]] = {}
    for (name, labels), counts in told.buckets.items():
        if before.buckets.get((name, labels)) != counts:
            histograms.setdefault(name, {})[labels] = [_short(count) for count in counts]
    line = {
        "wall_s": round(sample.at_s, 3),
        "component": sample.component,
        "took_ms": round(sample.took_ms, 1),
        "bytes": sample.size,
        "values": values,
        "histograms": histograms,
        "bounds": {
            name: [bound if math.isfinite(bound) else None for bound in told.bounds[name]]
            for name in histograms
        },
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _short(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)


@dataclass(slots=True)
class Samples:
    """What `controlplane.jsonl` holds, by component and in the order of time."""

    of: dict[str, list[Sample]] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[bytes]) -> "Samples":
        """Read the file back; a line that was cut off by a crash ends it."""
        found = cls()
        for line in lines:
            try:
                content = orjson.loads(line)
            except orjson.JSONDecodeError:
                break
            found._add(content)
        return found

    def lines(self, step: int) -> Iterator[bytes]:
        """Yield the lines of a file of every so many samples, of each component."""
        for listed in self.of.values():
            before = Exposition()
            for sample in listed[::step]:
                yield line_of(sample, before)
                before = sample.told

    def _add(self, line: Json) -> None:
        name = str(line["component"])
        listed = self.of.setdefault(name, [])
        before = listed[-1].told if listed else Exposition()
        told = Exposition(dict(before.values), dict(before.buckets), dict(before.bounds))
        for family, rows in cast("dict[str, dict[str, float | None]]", line["values"]).items():
            for labels, value in rows.items():
                key: Key = family, labels
                if value is None:
                    told.values.pop(key, None)
                else:
                    told.values[key] = value
        histograms = cast("dict[str, dict[str, list[float]]]", line["histograms"])
        for family, told_rows in histograms.items():
            told.buckets.update({(family, labels): row for labels, row in told_rows.items()})
        for family, bounds in cast("dict[str, list[float | None]]", line["bounds"]).items():
            told.bounds[family] = [math.inf if each is None else each for each in bounds]
        at_s, took_ms = cast("float", line["wall_s"]), cast("float", line["took_ms"])
        listed.append(Sample(name, at_s, took_ms, cast("int", line["bytes"]), told))
