"""The ports of containers: what listens on the address of their pod, and what it answers.

    container starts -> a door for each port: CLOSED, OPEN or SILENT, as its behaviour says

A probe that is refused finds a port on which nobody listens; one that times out is let in and never
answered, but one of TCP knocks at a port whose queue is full. A door that several share knows them
apart by their paths alone.
Source: pkg/probe/http, tcp, grpc.
"""

import asyncio
import contextlib
import enum
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import grpc

from fleet.clock import NS_PER_S
from fleet.profile.container_behavior import FOREVER, ProbeAnswer, ProbeAttempt, ProbeKind
from oracle.cri.applications import GRPC, HOOKS, HTTP, TCP, Asked
from oracle.cri.exec_sync import age_ns, behavior_of_probe, hook_behavior, probe_behavior, try_probe
from oracle.cri.machine import Machine
from oracle.cri.pods import Pods
from oracle.cri.records import CriContainer, PodSandbox
from oracle.cri.tls import server_context

logger = logging.getLogger(__name__)
ELSEWHERE = "http://elsewhere.invalid/"
STATUS_CODE = 503
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""HealthCheckResponse: its one field, the status."""
SILENCE_S = 600.0
END_S = 0.2
QUEUE = 2
"""A listener with a backlog of 0 has room for one: tcp(7)."""
HEAD_MAX = 1 << 16
GRPC_OPTIONS = (("grpc.so_reuseport", 0),)
Close = Callable[[], Awaitable[None]]


class State(enum.Enum):
    """How a door is."""

    CLOSED = 0  # nobody listens
    OPEN = 1
    SILENT = 2  # a connection is neither taken nor refused


class Door(NamedTuple):
    """One port of a container, and who asks there."""

    ip: str
    port: int
    asked: tuple[Asked, ...]


class Ports:
    """Everything that listens for the containers of the node."""

    def __init__(self, machine: Machine, pods: Pods) -> None:
        self._machine = machine
        self._doors: dict[str, list[asyncio.Task[None]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        pods.on_started.append(self._started)
        pods.on_stopped.append(self._stopped)

    async def close(self) -> None:
        """Close every door."""
        tasks = [task for doors in self._doors.values() for task in doors]
        self._doors.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._closing, return_exceptions=True)

    def _started(self, found: CriContainer, sandbox: PodSandbox) -> None:
        if found.application is None:
            return
        ip = sandbox.ip or self._machine.host_ip
        tasks = []
        for port in found.application.ports:
            asked = tuple(each for each in found.application.asked if each.port == port)
            tasks.append(asyncio.ensure_future(self._attend(found, Door(ip, port, asked))))
        if tasks:
            self._doors[found.id] = tasks

    def _stopped(self, found: CriContainer, _sandbox: PodSandbox) -> None:
        for task in self._doors.pop(found.id, ()):
            task.cancel()
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _attend(self, found: CriContainer, door: Door) -> None:
        """Open and close a door as the behaviours of those who ask there change."""
        state = State.CLOSED
        close: Close = _nothing
        try:
            while True:
                wanted, until_ns = self._state(found, door)
                if wanted is not state:
                    await close()
                    close = await self._enter(wanted, found, door)
                    state = wanted
                wait_s = (until_ns - age_ns(self._machine, found)) / NS_PER_S
                await asyncio.sleep(max(min(wait_s, SILENCE_S), 0.001))
        except OSError:
            logger.exception("%s:%d of %s cannot be listened on", door.ip, door.port, found.name)
        finally:
            await close()

    def _state(self, found: CriContainer, door: Door) -> tuple[State, int]:
        """Return how a door is to be, and until which age of the container."""
        kinds = {each.kind for each in door.asked if isinstance(each.kind, ProbeKind)}
        if not kinds:
            return State.OPEN, FOREVER
        age = age_ns(self._machine, found)
        phases = [behavior_of_probe(found, kind).at(age) for kind in kinds]
        answers = {phase.answer for phase, _ in phases}
        state = State.OPEN
        if answers == {ProbeAnswer.REFUSED}:
            state = State.CLOSED
        elif answers == {ProbeAnswer.TIMEOUT} and any(each.handler == TCP for each in door.asked):
            state = State.SILENT
        return state, min(end_ns for _, end_ns in phases)

    async def _enter(self, state: State, found: CriContainer, door: Door) -> Close:
        if state is State.CLOSED:
            return _nothing
        if state is State.SILENT:
            return _fall_silent(door)
        return await self._open(found, door)

    async def _open(self, found: CriContainer, door: Door) -> Close:
        if any(each.handler == GRPC for each in door.asked):
            return await self._open_health(found, door)

        writers: set[asyncio.StreamWriter] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            with contextlib.suppress(
                OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                await self._serve_http(found, door, reader, writer)
            writers.discard(writer)
            writer.transport.abort()

        tls = server_context() if any(each.is_tls for each in door.asked) else None
        server = await asyncio.start_server(serve, door.ip, door.port, limit=HEAD_MAX, ssl=tls)

        async def close() -> None:
            server.close()
            for each in writers:
                each.transport.abort()
            await server.wait_closed()

        return close

    async def _serve_http(
        self,
        found: CriContainer,
        door: Door,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Answer requests; a TCP probe only connects."""
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode(errors="replace")
            asked = [each for each in door.asked if each.handler == HTTP and each.path == path]
            answer = await self._answer(found, asked)
            if answer is None:
                await reader.read()  # until whoever asks has lost patience
                return
            writer.write(answer)
            await writer.drain()

    async def _answer(self, found: CriContainer, asked: list[Asked]) -> bytes | None:
        """Return what a request is answered, None for silence."""
        hooks = [str(each.kind) for each in asked if each.kind in HOOKS]
        if hooks:
            declared = hook_behavior(found, hooks[0])
            if declared.duration is not None:
                await asyncio.sleep(declared.duration.sample(0.5) / NS_PER_S)
            return response(500 if declared.fails else 200)
        tried = await self._tried(found, asked)
        if tried.answer in {ProbeAnswer.TIMEOUT, ProbeAnswer.ERROR}:
            return None
        if tried.answer is ProbeAnswer.WARNING:
            return response(302, tried.phase.output, f"Location: {ELSEWHERE}\r\n")
        if tried.answer is ProbeAnswer.SUCCESS:
            return response(200, "ok")
        return response(tried.phase.status_code or STATUS_CODE)

    async def _tried(self, found: CriContainer, asked: list[Asked]) -> ProbeAttempt:
        tried = try_probe(self._machine, found, probe_behavior(found, asked))
        if tried.answer is not ProbeAnswer.TIMEOUT and tried.took_ns:
            await asyncio.sleep(tried.took_ns / NS_PER_S)
        return tried

    async def _open_health(self, found: CriContainer, door: Door) -> Close:
        """Serve the health protocol of gRPC."""
        asked = [each for each in door.asked if each.handler in {GRPC, TCP}]

        async def check(_request: bytes, _context: object) -> bytes:
            tried = await self._tried(found, asked)
            if tried.answer in {ProbeAnswer.TIMEOUT, ProbeAnswer.ERROR}:
                await asyncio.sleep(SILENCE_S)
            return SERVING if tried.answer.is_good else NOT_SERVING

        server = grpc.aio.server(options=GRPC_OPTIONS)
        service, _, method = HEALTH_CHECK[1:].partition("/")
        handler = grpc.unary_unary_rpc_method_handler(check)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        server.add_insecure_port(f"{door.ip}:{door.port}")
        await server.start()

        async def close() -> None:
            await server.stop(END_S)

        return close


async def _nothing() -> None:
    """Close what is not open."""


def _fall_silent(door: Door) -> Close:
    """Listen with a queue that is full: the kernel drops whoever knocks."""
    listener = socket.create_server((door.ip, door.port), backlog=0)
    waiting = [listener]
    for _ in range(QUEUE):
        client = socket.socket()
        client.settimeout(0)
        client.connect_ex((door.ip, door.port))
        waiting.append(client)

    async def close() -> None:
        for each in waiting:
            each.close()

    return close


def response(code: int, body: str = "", headers: str = "") -> bytes:
    content = body.encode()
    head = f"HTTP/1.1 {code} Told\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content
