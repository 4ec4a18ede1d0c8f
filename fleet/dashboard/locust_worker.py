"""The socket of a Locust worker: one DEALER, a dozen messages a second.

A message without a live connection is not queued (IMMEDIATE, NOBLOCK): a master that came back
would take a queued `client_ready` for a second worker. Every new socket has a new identity, since a
ROUTER ignores a second connection with one that is taken.

Source: locust/rpc/zmqrpc.py, DealerSocket; locust/rpc/protocol.py, Message.serialize.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
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
from fleet.dashboard.locust_stats import LocustStats
from fleet.metrics import FleetCounts

LINGER_MS = 800
RECONNECT_MS = 500
RECONNECT_MAX_MS = 5000
HEARTBEAT_MS = 2000
DEAD_MS = 6000
LEAVE_S_MAX = 120.0
ZMQ_SIGNATURE = b"\xff"  # the first byte of a greeting
PROBE_S_MAX = 2.0

log = logging.getLogger(__name__)


class Fleet(Protocol):
    """The nodes of this process, as many as are asked for."""

    @property
    def counts(self) -> FleetCounts:
        """Return what the kubelets did so far."""
        ...

    @property
    def existing(self) -> int:
        """Return how many nodes exist, as another client sees it."""
        ...

    @property
    def nodes_max(self) -> int:
        """Return how many nodes there may be."""
        ...

    def aim(self, nodes: int) -> None:
        """Have so many nodes, at most `nodes_max`; return at once."""
        ...

    def figures(self) -> Json:
        """Return what the Fleet tab shows of this process."""
        ...


class Faults(Protocol):
    """What goes wrong in the run of this process, on purpose."""

    def on(self) -> list[Json]:
        """Return what is on."""
        ...

    async def answer(self, order: Json) -> Json:
        """Carry out what a form asks: `told` is what to show, `error` why it cannot be."""
        ...


class LocustLink:
    """Binds the protocol machine to a socket, a clock and a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        host: str,
        port: int,
        shard: int,
        holds: bool,
        note: Callable[[str], None],
        background: Background,
        faults: Faults | None = None,
    ) -> None:
        """Take orders for `faults` too, unless another process of the run does."""
        self._background = background
        self._faults = faults
        self._answering: set[asyncio.Task[None]] = set()
        self.machine = LocustWorker(holds=holds, nodes_max=fleet.nodes_max)
        self._note = note
        self._fleet = fleet
        self._host, self._port = host, port
        self._shard = shard
        self._stats = LocustStats(fleet.counts, epoch_s=time.time())
        self._process = psutil.Process()
        self._process.cpu_percent()
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._id = ""
        self._aimed: int | None = None
        self._step = asyncio.Event()
        self._order = asyncio.Lock()

    @property
    def _address(self) -> str:
        return f"tcp://{self._host}:{self._port}"

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
        self._host, self._port = host, port
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
        self._id = f"fleet-{self._shard:04d}_{uuid.uuid4().hex}"
        self._socket = socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IDENTITY, self._id.encode()),
            (zmq.IMMEDIATE, 1),
            (zmq.IPV6, int(":" in self._host)),  # [::1]; a name may have no such address
            (zmq.LINGER, LINGER_MS),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, DEAD_MS),
            (zmq.HEARTBEAT_TTL, DEAD_MS),
        ):
            socket.setsockopt(option, value)
        socket.connect(self._address)
        listening = self._background.persist(
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
            why, nodes = await obstacle(self._host, self._port), self._fleet.existing
            self._note(f"no Locust master answers at {self._address} ({why}); {nodes:,} nodes stay")

    def _report(self) -> Message:
        figures = self._fleet.figures()
        if self._faults is not None:
            figures["faults"] = self._faults.on()
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
            if kind == FAULT_ORDER and self._faults is not None:
                # It may take seconds, in which others than the dashboard are listened to.
                task = asyncio.create_task(self._answer(self._faults, data))
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
        """Do what the machine has decided; messages leave in order, whoever calls."""
        async with self._order:
            await self._do()

    async def _do(self) -> None:
        machine = self.machine
        if machine.fresh:
            machine.fresh = False
            self._stats.drop(time.time())
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
            self._note(note)
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

    A master's port greets whoever connects, as every ZeroMQ socket does; a web server waits.
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
