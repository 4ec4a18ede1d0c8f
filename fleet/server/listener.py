"""Sockets of the kubelets' servers: one for all nodes where the address names the node.

    0.0.0.0 on `lo` alone -> accept -> address and port of this end -> node -> TLS -> HTTP

A connection that has sent nothing waits for its first bytes outside of the handshakes, so that
idle ones hold a descriptor each and nobody up.

Without the right to bind to a device each node has a socket of its own, on its own address.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.errors import SetupError
from fleet.k8s.effects import NodeId
from fleet.server.serving_tls import CURRENT_NODE
from fleet.wire.sockets.dials import own_limit

BACKLOG = 4096
ACCEPTS_MAX = 64
"""Connections taken per turn of the loop: a flood of them does not starve those that there are."""
CONNECTIONS_MAX = 20_000
HANDSHAKES_MAX = 256
"""TLS handshakes at once; one costs 2 ms of a core, and what waits costs only its socket."""
HANDSHAKE_S = 10.0
KUBELET_CONNECTIONS = "connections to kubelets"
LOOPBACK_DEVICE = b"lo"

log = logging.getLogger(__name__)


Named = Callable[[str, int], tuple[NodeId, str] | None]
"""Find number and name of the node of an address and port, None if there is none that answers."""


def open_loopback(port: int) -> socket.socket | None:
    """Listen on all of 127.0.0.0/8 and on no other device; None if that is not allowed.

    On a free port if this one is taken. Raises SetupError.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, LOOPBACK_DEVICE)
    except (AttributeError, OSError):  # only Linux has it
        found.close()
        return None
    return _listen(found, "0.0.0.0", port, is_exact=False)  # noqa: S104 - of `lo` alone


def open_address(
    address: str, port: int, *, is_exact: bool = True, backlog: int = BACKLOG
) -> socket.socket:
    """Listen on one address. Raises SetupError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # no descriptor is left
        raise SetupError(f"the kubelets' servers: {error.strerror}") from error
    return _listen(found, address, port, is_exact=is_exact, backlog=backlog)


def _listen(
    found: socket.socket, address: str, port: int, *, is_exact: bool, backlog: int = BACKLOG
) -> socket.socket:
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setblocking(False)  # noqa: FBT003 - of the standard library
    try:
        try:
            found.bind((address, port))
        except OSError as error:
            if is_exact or error.errno != errno.EADDRINUSE:
                raise
            found.bind((address, 0))
        found.listen(backlog)
    except OSError as error:
        found.close()
        raise SetupError(
            f"the kubelets' servers: {address} port {port}: {error.strerror}; see --serve"
        ) from error
    return found


class _Taken(NamedTuple):
    """A connection that was accepted."""

    socket: socket.socket
    node_name: str
    context: ssl.SSLContext


@dataclass(eq=False)
class Listener:
    """Accepts for many nodes on the servers' loop. Made there, and closed there."""

    _loop: asyncio.AbstractEventLoop
    _named: Named
    _protocol: Callable[[], asyncio.Protocol]
    _connections: Callable[[], int]  # how many there are
    _hit_limit: Callable[[str], None]
    _sockets: dict[socket.socket, ssl.SSLContext] = field(default_factory=dict)
    _handshakes: set[asyncio.Task[None]] = field(default_factory=set)
    _waiting: deque[_Taken] = field(default_factory=deque)
    _silent: dict[socket.socket, asyncio.TimerHandle] = field(default_factory=dict)
    """Connections that have sent nothing, and when each is given up."""

    def add(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        """Accept on a socket from now on."""
        self._sockets[listening] = context
        self._loop.add_reader(listening.fileno(), self._on_ready, listening)

    def close(self) -> None:
        """Accept no more."""
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())
            each.close()
        self._sockets.clear()
        for task in self._handshakes:
            task.cancel()
        for taken in self._waiting:
            taken.socket.close()
        for silent in list(self._silent):
            self._hear(silent)
            silent.close()

    def _on_ready(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                taken, _peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not (limit := own_limit(error)):
                    raise
                log.warning("the kubelets' servers take no more connections: %s", error.strerror)
                self._hit_limit(limit)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(1.0, self._again, listening)
                return
            self._take(taken, self._sockets[listening])

    def _again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._on_ready, listening)

    def _take(self, taken: socket.socket, context: ssl.SSLContext) -> None:
        taken.setblocking(False)  # noqa: FBT003
        try:
            address, port = taken.getsockname()[:2]
            found = self._named(address, port)
        except OSError:
            found = None  # reset already
        before = self._connections() + len(self._waiting) + len(self._silent)
        is_full = before + len(self._handshakes) >= CONNECTIONS_MAX
        if is_full:
            self._hit_limit(KUBELET_CONNECTIONS)
        if found is None or is_full:
            reset(taken)
            return
        waits = _Taken(taken, found[1], context)
        self._silent[taken] = self._loop.call_later(HANDSHAKE_S, self._give_up, taken)
        self._loop.add_reader(taken.fileno(), self._on_heard, waits)

    def _on_heard(self, taken: _Taken) -> None:
        """Begin the handshake of a connection that has sent something, or has ended."""
        self._hear(taken.socket)
        if len(self._handshakes) >= HANDSHAKES_MAX:
            self._waiting.append(taken)
        else:
            self._begin(taken)

    def _hear(self, taken: socket.socket) -> None:
        self._silent.pop(taken).cancel()
        self._loop.remove_reader(taken.fileno())

    def _give_up(self, taken: socket.socket) -> None:
        self._hear(taken)
        reset(taken)

    def _begin(self, taken: _Taken) -> None:
        task = self._loop.create_task(self._connect(taken))
        self._handshakes.add(task)
        task.add_done_callback(self._on_connected)

    def _on_connected(self, task: "asyncio.Task[None]") -> None:
        self._handshakes.discard(task)
        if self._waiting and not task.cancelled():
            self._begin(self._waiting.popleft())

    async def _connect(self, taken: _Taken) -> None:
        CURRENT_NODE.set(taken.node_name)
        with contextlib.suppress(OSError, ssl.SSLError):
            await self._loop.connect_accepted_socket(
                self._protocol, taken.socket, ssl=taken.context, ssl_handshake_timeout=HANDSHAKE_S
            )


def reset(taken: socket.socket) -> None:
    """Close a connection as if nobody listened."""
    with contextlib.suppress(OSError):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    taken.close()
