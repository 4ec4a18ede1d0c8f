"""The ports that pods declare, on addresses of theirs that are this machine's.

    a runtime says what is listened on -> a socket each -> a connection -> the port of the pod

One socket for each port of each pod: on all addresses at once, other programs of the machine could
not have that port.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from functools import lru_cache

from fleet.errors import SetupError
from fleet.k8s.effects import NodeId
from fleet.k8s.pods import Pod, PodUid
from fleet.k8s.streams import Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.runtime.ports import PortChange, PortChanges
from fleet.server.host import Host, PortSession
from fleet.server.listener import NO_ROOM, open_address, reset
from fleet.server.pod_lists import pods_of
from fleet.server.port_forward import CHUNK_BYTES, Forwarder
from fleet.server.questions import BugError, NodeGoneError, Questions
from fleet.server.seats import Seats
from fleet.server.serving_tls import pod_context
from fleet.wire.sockets.transport_reports import own_limit

LOOK_S = 0.05
"""How often it is looked what changed; a container takes longer from its sandbox to Ready."""
CHANGES_MAX = 1_000
"""Sockets opened and closed in one look."""
PORTS_MAX = 20_000
CONNECTIONS_MAX = 2_000
POD_PORTS = "ports of pods that listen"
POD_CONNECTIONS = "connections to ports of pods"
IDLE_S = 90.0
BACKLOG = 16
CONTEXTS_MAX = 32
"""Of TLS: one for each certificate."""
PAUSE_S = 1.0
"""Without a free descriptor."""
GONE = (ConnectionError, TimeoutError, NodeGoneError, BugError)

log = logging.getLogger(__name__)


class PodPorts:
    """Listens for the pods of a process, on the servers' loop."""

    def __init__(
        self,
        changes: PortChanges,
        network: ipaddress.IPv4Network,
        questions: Questions,
        host: Host,
    ) -> None:
        self._changes = changes
        self._network = network
        self._questions = questions
        self._host = host
        self._sockets: dict[tuple[str, int], tuple[socket.socket, PodUid]] = {}
        self._ports: dict[PodUid, list[tuple[str, int]]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._seats = Seats(CONNECTIONS_MAX)  # as many as connections: each is counted already
        self._has_warned = False
        self._contexts = lru_cache(CONTEXTS_MAX)(pod_context)

    async def follow(self) -> None:
        """Open and close sockets as the runtimes say, until cancelled."""
        try:
            while True:
                for _ in range(min(len(self._changes), CHANGES_MAX)):
                    self._apply(self._changes.popleft())
                await asyncio.sleep(LOOK_S)
        finally:
            for uid in list(self._ports):
                self._close(uid)
            for task in self._connections:
                task.cancel()

    def _apply(self, change: PortChange) -> None:
        self._close(change.uid)
        if change.ports and ipaddress.IPv4Address(change.address) in self._network:
            for port in change.ports:
                self._open(change, port)

    def _open(self, change: PortChange, port: int) -> None:
        at = change.address, port
        if (taken := self._sockets.get(at)) is not None:
            self._close(taken[1])  # of a node that was removed, and began again
        if len(self._sockets) >= PORTS_MAX:
            self._questions.hit_limit(POD_PORTS)
            self._warn(f"{change.address}:{port}: more than {PORTS_MAX} ports of pods")
            return
        try:
            listening = open_address(*at, backlog=BACKLOG)
        except SetupError as error:
            if limit := own_limit(error.__cause__):
                self._questions.hit_limit(limit)
            self._warn(str(error))
            return
        self._sockets[at] = listening, change.uid
        self._ports.setdefault(change.uid, []).append(at)
        loop = asyncio.get_running_loop()
        loop.add_reader(listening.fileno(), self._on_ready, listening, change, port)

    def _close(self, uid: PodUid) -> None:
        for at in self._ports.pop(uid, ()):
            listening, _ = self._sockets.pop(at)
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()

    def _warn(self, text: str) -> None:
        """Tell once that a port is not listened on: there may be thousands."""
        if not self._has_warned:
            self._has_warned = True
            log.warning("a port of a pod is not served: %s", text)

    def _on_ready(self, listening: socket.socket, change: PortChange, port: int) -> None:
        try:
            taken, _peer = listening.accept()
        except OSError as error:
            if error.errno in NO_ROOM:  # or the loop would ask again and again
                self._questions.hit_limit(own_limit(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening.fileno())
                loop.call_later(PAUSE_S, self._again, listening, change, port)
            return  # or the client is gone again
        if len(self._connections) >= CONNECTIONS_MAX:
            self._questions.hit_limit(POD_CONNECTIONS)
            reset(taken)
            return
        taken.setblocking(False)  # noqa: FBT003 - of the standard library
        task = asyncio.ensure_future(self._serve(taken, change, port))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def _again(self, listening: socket.socket, change: PortChange, port: int) -> None:
        """Accept again, if the port is still listened on."""
        if self._sockets.get((change.address, port), (None,))[0] is listening:
            loop = asyncio.get_running_loop()
            loop.add_reader(listening.fileno(), self._on_ready, listening, change, port)

    async def _serve(self, taken: socket.socket, change: PortChange, port: int) -> None:
        """Answer one connection."""
        node = NodeId(change.node)
        try:
            found = await self._session(node, change.uid, port)
        except BaseException:
            taken.close()
            raise
        if found is None:
            reset(taken)
            return
        try:
            reader, writer = await self._streams(taken, found[1].tls)
        except (OSError, ValueError):  # the client speaks no TLS
            taken.close()
            return
        try:
            with contextlib.suppress(*GONE):
                await _carry(reader, writer, *found)
        finally:
            writer.close()

    async def _streams(
        self, taken: socket.socket, tls: tuple[str, str] | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Begin to read and write a connection. Raises OSError."""
        if tls is None:
            return await asyncio.open_connection(sock=taken)
        context = self._contexts(*tls)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, taken, ssl=context)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _session(
        self, node: NodeId, uid: PodUid, port: int
    ) -> tuple[Forwarder, PortSession] | None:
        """Connect to a port of a pod; None if nobody answers there."""

        def find(kubelet: VirtualKubelet, _now_ns: int) -> Pod | None:
            return next((pod for pod in pods_of(kubelet) if pod.uid == uid), None)

        with contextlib.suppress(NodeGoneError, BugError):
            pod = await self._questions.ask(node, find)
            if pod is not None:
                forwarder = Forwarder(self._questions, self._host, node, pod, self._seats)
                session = await forwarder.open(port)
                if not isinstance(session, Refusal):
                    return forwarder, session
        return None


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    forwarder: Forwarder,
    session: PortSession,
) -> None:
    """Carry a connection to the end of either side; a slow client is waited for."""
    has_ended = False
    while True:
        output = await forwarder.advance(session)
        if output.data:
            writer.write(output.data)
            async with asyncio.timeout(IDLE_S):
                await writer.drain()
        if output.wait_s:
            await asyncio.sleep(output.wait_s)
        if output.is_over or (has_ended and not output.more):
            return
        if output.more:
            continue
        async with asyncio.timeout(IDLE_S):
            data = await reader.read(CHUNK_BYTES)
        if data:
            while data:  # nothing waits to be read, so that there is room
                data = data[await forwarder.write(session, data) :]
        else:
            has_ended = True
            await forwarder.end(session)
