"""The socket of a Locust worker: one DEALER, a dozen messages a second.

A message without a live connection is not queued (IMMEDIATE, NOBLOCK): a master that came back
would take a queued `client_ready` for a second worker. Every new socket has a new identity, since a
ROUTER ignores a second connection with one that is taken.

`LocustStats` is the table of the dashboard, made of fleet's own histograms: what came since the
last report. A row is a verb and a resource, as in the API server's metrics. The 404 before a create
and the 409 of a repeated one are requests, not failures (`is_failure`). Figures of nodes and pods
travel as rows outside Aggregated.

Source: locust/rpc/zmqrpc.py, DealerSocket; locust/rpc/protocol.py, Message.serialize;
locust/stats.py, StatsEntry.serialize, StatsError.to_dict, RequestStats.
"""

import asyncio
import contextlib
import hashlib
import http
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Protocol

import msgpack
import psutil
import zmq
import zmq.asyncio

from fleet.background import Background, give_up
from fleet.cluster.api_client import describe_failure
from fleet.dashboard.locust_protocol import (
    FAULT_ORDER,
    FAULT_TOLD,
    TICK_S,
    Json,
    Load,
    LocustWorker,
    Message,
)
from fleet.host.elastic import ElasticFleet
from fleet.metrics import FleetCounts, Histogram, is_failure
from fleet.report.control_plane import ControlPlaneSampler
from fleet.report.curves import newest
from fleet.report.figures import of_counts


@dataclass(slots=True)
class _Row:
    """One line of the table between two reports."""

    before: dict[int, tuple[dict[int, int], int, int, int]] = field(default_factory=dict)
    """By code: buckets, count, sum of times, sum of bytes."""
    per_second: dict[int, dict[int, int]] = field(default_factory=dict)  # second: code: answers
    seen: dict[int, int] = field(default_factory=dict)  # code: answers as of the last sample


class LocustStats:
    """Turns running histograms into reports. `sample` once a second, `report` every three."""

    def __init__(self, counts: FleetCounts, *, epoch_s: float) -> None:
        self._counts = counts
        self._rows: dict[tuple[str, str], _Row] = {}
        self._since_s = epoch_s
        self._first_s: dict[tuple[str, str, int], float] = {}

    def sample(self, epoch_s: float) -> None:
        """Note how many answers each row got by now, for the rates."""
        second = int(epoch_s)
        for key, codes in self._sources():
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = _Row()
            for code, histogram in codes.items():
                more = histogram.count - row.seen.get(code, 0)
                if more:
                    row.seen[code] = histogram.count
                    answers = row.per_second.setdefault(second, {})
                    answers[code] = answers.get(code, 0) + more

    def report(self, epoch_s: float) -> Json:
        """Return what came since the last report, as the master merges it."""
        self.sample(epoch_s)
        rows, errors = [], {}
        total = _entry("", "Aggregated", self._since_s)
        for (method, name), codes in self._sources():
            row = self._rows[method, name]
            entry = _entry(method, name, self._since_s)
            for code, histogram in codes.items():
                failed = _add(entry, row, code, histogram, epoch_s)
                if failed:
                    key, error = self._error(method, name, code, failed, epoch_s)
                    errors[key] = error
            _add_rates(entry, row)
            if entry["num_requests"]:
                rows.append(entry)
                if method not in _NODE_ROWS:
                    _merge(total, entry)
        self._since_s = epoch_s
        return {"stats": rows, "stats_total": total, "errors": errors}

    def _sources(self) -> list[tuple[tuple[str, str], dict[int, Histogram]]]:
        counts = self._counts
        own = [(row, {200: getattr(counts, counter)}) for row, counter in _OWN_ROWS.items()]
        return [*counts.requests.rows.items(), *own]

    def _error(
        self, method: str, name: str, code: int, count: int, epoch_s: float
    ) -> tuple[str, Json]:
        text = describe(code)
        first_s = self._first_s.setdefault((method, name, code), epoch_s)
        key = hashlib.sha256(f"{method}.{name}.{text!r}".encode()).hexdigest()
        return key, {
            "method": method,
            "name": name,
            "error": text,
            "occurrences": count,
            "first_seen": first_s,
            "last_seen": epoch_s,
        }


SUMS = (
    "num_requests",
    "num_none_requests",
    "num_failures",
    "total_response_time",
    "total_content_length",
)
_OWN_ROWS = {figure.locust: figure.counter for figure in of_counts() if figure.locust}
_NODE_ROWS = frozenset(method for method, _ in _OWN_ROWS)


def describe(code: int) -> str:
    """Return an HTTP code with its phrase; 0 is no answer at all."""
    if not code:
        return "no answer: connection lost or timed out"
    try:
        return f"{code} {http.HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


def _entry(method: str, name: str, since_s: float) -> Json:
    return {
        "name": name,
        "method": method,
        "last_request_timestamp": None,
        "start_time": since_s,
        "num_requests": 0,
        "num_none_requests": 0,
        "num_failures": 0,
        "total_response_time": 0.0,
        "max_response_time": 0,
        "min_response_time": None,
        "total_content_length": 0,
        "response_times": {},
        "num_reqs_per_sec": {},
        "num_fail_per_sec": {},
    }


def _add(entry: Json, row: _Row, code: int, now: Histogram, epoch_s: float) -> int:
    """Add the answers with one code since the last report; return how many were failures."""
    buckets, count, sum_us, size = row.before.get(code, ({}, 0, 0, 0))
    more = now.count - count
    if not more:
        return 0
    since = now.since(buckets)
    row.before[code] = (now.snapshot(), now.count, now.sum_us, now.bytes)
    entry["num_requests"] += more
    entry["last_request_timestamp"] = epoch_s
    entry["total_response_time"] += (now.sum_us - sum_us) / 1000
    entry["total_content_length"] += now.bytes - size
    least, most = since.min_us / 1000, since.max_us / 1000
    entry["min_response_time"] = min(least, entry["min_response_time"] or least)
    entry["max_response_time"] = max(most, entry["max_response_time"])
    times = entry["response_times"]
    for key, number in since.buckets.items():
        time_ms = round(key / 1000, 1)
        times[time_ms] = times.get(time_ms, 0) + number
    failed = more if is_failure(entry["name"], code) else 0
    entry["num_failures"] += failed
    return failed


def _add_rates(entry: Json, row: _Row) -> None:
    for second, answers in row.per_second.items():
        entry["num_reqs_per_sec"][second] = sum(answers.values())
        failed = sum(count for code, count in answers.items() if is_failure(entry["name"], code))
        if failed:
            entry["num_fail_per_sec"][second] = failed
    row.per_second = {}


def _merge(total: Json, entry: Json) -> None:
    for key in SUMS:
        total[key] += entry[key]
    total["last_request_timestamp"] = entry["last_request_timestamp"]
    total["max_response_time"] = max(total["max_response_time"], entry["max_response_time"])
    least = entry["min_response_time"]
    if least is not None:
        total["min_response_time"] = min(least, total["min_response_time"] or least)
    for key in ("response_times", "num_reqs_per_sec", "num_fail_per_sec"):
        merged = total[key]
        for each, count in entry[key].items():
            merged[each] = merged.get(each, 0) + count


LINGER_MS = 800
RECONNECT_MS = 500
RECONNECT_MAX_MS = 5000
HEARTBEAT_MS = 2000
DEAD_MS = 6000
LEAVE_S_MAX = 120.0
ZMQ_SIGNATURE = b"\xff"  # the first byte of a greeting
PROBE_S_MAX = 2.0

log = logging.getLogger(__name__)


class Faults(Protocol):
    """What goes wrong in the run of this process, on purpose."""

    def on(self) -> list[Json]: ...

    async def answer(self, order: Json) -> Json:
        """Carry out what a form asks: `told` is what to show, `error` why it cannot be."""
        ...


@dataclass(eq=False)
class LocustLink:
    """Binds the protocol machine to a socket, a clock and a fleet.

    It takes orders for `faults` too, unless another process of the run does. Figures of the control
    plane come from `sampler`, None in all processes but the first.
    """

    _fleet: ElasticFleet
    _: KW_ONLY
    host: str
    port: int
    shard: int
    holds: InitVar[bool]
    note: Callable[[str], None]
    background: Background
    faults: Faults | None = None
    sampler: ControlPlaneSampler | None = None
    _plane: tuple[int, Json] = (0, {})  # samples so far, and what the last ones show
    _answering: set[asyncio.Task[None]] = field(default_factory=set)
    _socket: zmq.asyncio.Socket | None = None
    _listening: asyncio.Task[None] | None = None
    _id: str = ""
    _aimed: int | None = None
    _step: asyncio.Event = field(default_factory=asyncio.Event)
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self, holds: bool) -> None:
        self.machine = LocustWorker(holds=holds, nodes_max=self._fleet.nodes_max)
        self._stats = LocustStats(self._fleet.counts, epoch_s=time.time())
        self._process = psutil.Process()
        self._process.cpu_percent()
        self._context = zmq.asyncio.Context()

    @property
    def _address(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    async def run(self) -> None:
        """Serve the master until it, or `leave`, ends us; nodes follow its targets."""
        self._open()
        try:
            while not self.machine.is_done:
                began_s = time.monotonic()
                await self._tick()
                pause_s = TICK_S - (time.monotonic() - began_s)
                self._step.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._step.wait(), max(pause_s, 0.01))
            await self._follow()  # the farewell, if another task has begun to send it
        finally:
            assert self._listening is not None
            await give_up(self._listening, *self._answering)
            self._context.destroy(linger=LINGER_MS)

    def redirect(self, host: str, port: int) -> None:
        """Turn to a master that has come up elsewhere; the nodes stay."""
        self.host, self.port = host, port
        self.machine.reconnect()

    async def leave(self, *, removes: bool) -> None:
        """Send the last statistics and tell the master that we go, the nodes first if `removes`."""
        if not removes:
            self.machine.out.append(self._report())
            self.machine.abandon()
            await self._follow()
            return
        self.machine.leave()
        await self._follow()
        deadline_s = time.monotonic() + LEAVE_S_MAX
        while not self.machine.is_done and time.monotonic() < deadline_s:
            await asyncio.sleep(TICK_S / 10)
            self.machine.on_count(self._fleet.existing)
            await self._follow()
        if not self.machine.is_done:
            self.machine.abandon()
            await self._follow()

    def _open(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
        if self._listening is not None:
            self._listening.cancel()
        self._id = f"fleet-{self.shard:04d}_{uuid.uuid4().hex}"
        self._socket = socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IDENTITY, self._id.encode()),
            (zmq.IMMEDIATE, 1),
            (zmq.IPV6, int(":" in self.host)),  # [::1]; a name may have no such address
            (zmq.LINGER, LINGER_MS),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, DEAD_MS),
            (zmq.HEARTBEAT_TTL, DEAD_MS),
        ):
            socket.setsockopt(option, value)
        socket.connect(self._address)
        listening = self.background.persist(
            "a message of the Locust master", lambda: self._listen(socket)
        )
        self._listening = asyncio.create_task(listening)

    async def _tick(self) -> None:
        machine = self.machine
        if machine.reopen:
            machine.reopen = False
            self._open()
        self._stats.sample(time.time())
        machine.on_count(self._fleet.existing)
        machine.on_tick(Load(self._process.cpu_percent(), self._process.memory_info().rss))
        await self._follow()
        if machine.wants_report():
            machine.out.append(self._report())
            await self._follow()
        if machine.is_reminder_due():
            why, nodes = await obstacle(self.host, self.port), self._fleet.existing
            self.note(f"no Locust master answers at {self._address} ({why}); {nodes:,} nodes stay")

    def _report(self) -> Message:
        figures = self._fleet.figures()
        if self.faults is not None:
            figures |= {"faults": self.faults.on(), "zones": self._fleet.zones}
        if self.sampler is not None:
            count = sum(each.samples for each in self.sampler.components)
            if count != self._plane[0]:
                self._plane = count, newest(self.sampler.newest())
            why = self.sampler.apiserver.problem
            figures["plane"] = self._plane[1] | ({"problem": why} if why else {})
        return self.machine.report(self._stats.report(time.time()), figures)

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frame = await socket.recv()
            try:
                kind, data, *_ = msgpack.unpackb(frame, raw=False, strict_map_key=False)
            except ValueError as error:
                log.warning("a message of the Locust master cannot be read: %s", error)
                continue
            self.machine.on_message(kind, data)
            if kind == FAULT_ORDER and self.faults is not None:
                # It may take seconds, in which others than the dashboard are listened to.
                task = asyncio.create_task(self._answer(self.faults, data))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            await self._follow()

    async def _answer(self, faults: Faults, data: Json) -> None:
        """Carry an order out, and say what came of it and what is on now."""
        answer = await faults.answer(data["order"])
        told = {"number": data["number"], "answer": answer, "on": faults.on()}
        self.machine.out.append(Message(FAULT_TOLD, told))
        await self._follow()

    async def _follow(self) -> None:
        """Do what the machine has decided; messages leave in order for every caller."""
        machine = self.machine
        async with self._order:
            if machine.fresh:
                machine.fresh = False
                self._stats.report(time.time())  # what came so far is of no run
            if machine.target is not None and machine.target != self._aimed:
                self._fleet.aim(machine.target)
            self._aimed = machine.target
            while machine.out:
                message = machine.out.pop(0)
                if message.kind == "report":
                    message = self._report()
                await self._send(message)
            notes, machine.notes = machine.notes, []
            for note in notes:
                self.note(note)
            if machine.is_done:
                self._step.set()

    async def _send(self, message: Message) -> None:
        assert self._socket is not None
        frame = msgpack.packb((message.kind, message.data, self._id))
        try:
            await self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self.machine.on_unsent(message.kind)


async def obstacle(host: str, port: int) -> str:
    """Say why no master may have answered at an address.

    A master's port greets every client, as every ZeroMQ socket does; a web server waits.
    """
    try:
        async with asyncio.timeout(PROBE_S_MAX):
            reader, writer = await asyncio.open_connection(host.strip("[]"), port)
    except OSError as error:
        return describe_failure(error)
    try:
        async with asyncio.timeout(PROBE_S_MAX):
            greeting = await reader.read(1)
    except OSError:
        greeting = b""
    finally:
        writer.close()
    if greeting == ZMQ_SIGNATURE:
        return "it is reached, but says nothing that a Locust master says"
    return "what listens there hangs, or is not the port for workers"
