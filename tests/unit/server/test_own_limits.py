"""Limits of the kubelets' servers, each at its edge: what is turned away is counted as fleet's."""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from fleet.k8s.effects import NodeId
from fleet.server import listener
from fleet.server.listener import KUBELET_CONNECTIONS, Listener
from fleet.server.reactor_thread import ReactorThread
from fleet.server.streaming import STREAMS
from fleet.wire.sockets.dials import OPEN_FILES


class NotedQuestions:
    """Counts limits at once."""

    def __init__(self) -> None:
        self.hit: Counter[str] = Counter()

    def hit_limit(self, what: str) -> None:
        self.hit[what] += 1


class NoLoop:
    """Takes what a loop is asked for, and does none of it."""

    def __init__(self) -> None:
        self.removed: list[int] = []
        self.later: list[float] = []

    def remove_reader(self, descriptor: int) -> None:
        self.removed.append(descriptor)

    def add_reader(self, _descriptor: int, *_call: object) -> None:
        pass

    def call_later(self, delay_s: float, *_call: object) -> object:
        self.later.append(delay_s)
        return SimpleNamespace(cancel=lambda: None)


class NoRoom:
    """A socket that listens in a process without a free descriptor."""

    def accept(self) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    def fileno(self) -> int:
        return 7


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        return listening.accept()[0], client


def made(reactor_thread: NotedQuestions, loop: NoLoop, connections: int = 0) -> Listener:
    return Listener(
        cast("asyncio.AbstractEventLoop", loop),
        lambda _address, _port: (NodeId(0), "n-0"),
        asyncio.Protocol,
        lambda: connections,
        reactor_thread.hit_limit,
    )


@pytest.mark.parametrize(("connections", "is_hit"), [(1, False), (2, True)])
def test_connections_to_kubelets(
    monkeypatch: pytest.MonkeyPatch,
    connections: int,
    is_hit: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS_MAX", 2)
    reactor_thread = NotedQuestions()
    found = made(reactor_thread, NoLoop(), connections)
    taken, client = connected()
    with client:
        found._take(taken, cast("ssl.SSLContext", None))
        assert reactor_thread.hit == ({KUBELET_CONNECTIONS: 1} if is_hit else {})
    found.close()


def test_open_files_of_the_kubelets_servers() -> None:
    reactor_thread, loop = NotedQuestions(), NoLoop()
    made(reactor_thread, loop)._on_ready(cast("socket.socket", NoRoom()))
    assert reactor_thread.hit == {OPEN_FILES: 1}
    assert (loop.removed, loop.later) == ([7], [1.0])


def test_a_limit_is_counted_in_the_reactors_thread() -> None:
    counts = SimpleNamespace(own_limits=Counter[str]())
    called: list[Callable[[], object]] = []
    loop = SimpleNamespace(
        call_soon_threadsafe=lambda act, *what: called.append(partial(act, *what))
    )
    reactor_thread = ReactorThread(
        SimpleNamespace(counts=counts),  # type: ignore[arg-type]
        loop,  # type: ignore[arg-type]
    )
    reactor_thread.hit_limit(STREAMS)
    assert not counts.own_limits
    called[0]()
    assert counts.own_limits == {STREAMS: 1}
