"""The control plane's side of a run: `controlplane.jsonl`, a line for each sample of a component.

    {"wall_s": 15.2, "component": "kube-apiserver", "took_ms": 41, "bytes": 2007430,
     "values": {"apiserver_request_total": {"GET|nodes|200": 1240}},
     "histograms": {"etcd_disk_wal_fsync_duration_seconds": {"": [0, 3, 9]}},
     "bounds": {"etcd_disk_wal_fsync_duration_seconds": [0.001, 0.002, null]}}

Counters are told as the component tells them. A line has only what changed since the last one of
its component, null for what is gone; `Samples` reads the file back. A sample costs the API server
CPU, 0.1 s where there are 5,000 nodes, so the next one waits a hundred times as long as the answer
took, but not so long that the moment is missed in which a busy server answers late.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

import aiohttp
import orjson

from fleet.cluster.api_client import Cluster, describe_failure
from fleet.cluster.identity import may_read
from fleet.controlplane import APISERVER, ETCD, ControlPlaneInfo
from fleet.errors import FleetError, SetupError
from fleet.report.exposition import FAMILIES, Exposition, Key, Wanted
from fleet.report.figure import Json

INTERVAL_S = 5.0
INTERVAL_MAX_S = 15.0
SHARE = 100
"""Of the time that an answer takes is waited until the next sample."""
TIMEOUT_S = 10.0
BYTES_MAX = 64 << 20
PAUSE_S = 0.004
"""Between slices of a millisecond: a turn of the reactor or two."""
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
    """One component and what it told last."""

    __slots__ = (
        "_fetch",
        "_wanted",
        "first",
        "last",
        "lost",
        "name",
        "problem",
        "samples",
        "written",
    )

    def __init__(self, name: str, fetch: Fetch) -> None:
        self.name = name
        self._fetch = fetch
        self._wanted = Wanted(FAMILIES[name])
        self.first: Sample | None = None
        self.last: Sample | None = None
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
        reading = self._wanted.reading()
        for _ in reading.slices(kept):
            await asyncio.sleep(PAUSE_S)
        return Sample(self.name, at_s, took_ms, size, reading.told())


class ControlPlaneSampler:
    """Samples every component that can be reached until it is stopped."""

    def __init__(
        self,
        cluster: Cluster,
        local: ControlPlaneInfo | None,
        elapsed_s: Callable[[], float],
        write: Callable[[bytes], bool],
    ) -> None:
        self._cluster = cluster
        self._elapsed_s = elapsed_s
        self._write = write  # a whole line, or False
        self._session: aiohttp.ClientSession | None = None
        self._asking = asyncio.Lock()
        self.has_looked = asyncio.Event()  # every component was asked once
        self._api = cluster.api(PURPOSE)
        self._may_read: bool | None = None
        self.components = [Component(APISERVER, self._of_apiserver)]
        for name, port in (local.ports if local is not None else {}).items():
            if name != APISERVER and name in FAMILIES:
                self.components.append(Component(name, self._of_port(name, port)))

    @property
    def apiserver(self) -> Component:
        """The one that every cluster has."""
        return self.components[0]

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            took_s = await self.sample()
            await asyncio.sleep(min(max(INTERVAL_S, took_s * SHARE), INTERVAL_MAX_S))

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
        except (FleetError, OSError, ValueError, aiohttp.ClientError) as error:
            component.lost += 1
            is_ours = isinstance(error, FleetError | ValueError)
            component.problem = str(error) if is_ours else describe_failure(error)
            return time.monotonic() - begun
        component.problem = ""
        component.samples += 1
        component.first = component.first or sample
        component.last = sample
        if self._write(line_of(sample, component.written)):
            component.written = sample.told
        return sample.took_ms / 1e3

    async def close(self) -> None:
        """Close the connections to the local components."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _of_apiserver(self) -> AsyncGenerator[bytes]:
        """Ask for what the user may read, and only then: a refusal is noise in an audit log."""
        if self._may_read is None:
            self._may_read = await may_read(self._api, PATH)
        if not self._may_read:
            raise SetupError(f"no permission (RBAC) to get {PATH}: bind system:monitoring")
        async for chunk in self._api.text(PATH):
            yield chunk

    def _of_port(self, name: str, port: int) -> Fetch:
        """Return what asks a component of our own control plane; its etcd speaks plain HTTP."""
        scheme = "http" if name == ETCD else "https"

        async def fetch() -> AsyncGenerator[bytes]:
            headers = {"Accept-Encoding": "identity"}
            authorization = self._cluster.credentials.authorization()
            if scheme == "https" and authorization is not None:
                headers["Authorization"] = authorization.decode()
            url = f"{scheme}://127.0.0.1:{port}{PATH}"
            async with self._local().get(url, headers=headers) as response:
                if response.status != 200:
                    raise SetupError(f"{name}: HTTP {response.status} for {PATH}")
                async for chunk in response.content.iter_any():
                    yield chunk

        return fetch

    def _local(self) -> aiohttp.ClientSession:
        if self._session is None:
            context = self._cluster.credentials.ssl_context(("http/1.1",))
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))
        return self._session


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
