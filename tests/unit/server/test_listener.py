"""Connections that say nothing hold up no other one, over loopback."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

import pytest
import uvloop

from fleet.k8s.effects import NodeId
from fleet.server import listener
from fleet.server.listener import Listener, open_address
from fleet.server.serving_tls import ServingContext

IDLE, AT_ONCE = 40, 2


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


def trusting() -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_idle_connections_hold_no_handshake_up(
    monkeypatch: pytest.MonkeyPatch, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """There are more of them than handshakes at once: they are no handshakes yet."""
    monkeypatch.setattr(listener, "HANDSHAKES_MAX", AT_ONCE)
    monkeypatch.setattr(listener, "HANDSHAKE_S", 3_600.0)  # they stay for as long as the test

    async def test() -> None:
        context = ServingContext.make("", lambda _name: None)
        is_full = asyncio.Event()

        def on_hit(what: str) -> None:
            assert what == listener.KUBELET_CONNECTIONS
            is_full.set()

        loop = asyncio.get_running_loop()
        found = Listener(loop, lambda *_at: (NodeId(0), "n"), Echo, lambda: 0, on_hit)
        listening = open_address("127.0.0.1", 0)
        port = listening.getsockname()[1]
        found.add(listening, context)
        with contextlib.ExitStack() as kept:
            idle = [
                kept.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(IDLE)
            ]
            async with asyncio.timeout(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting())
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
                writer.close()
                await writer.wait_closed()
            assert len(found._silent) == IDLE
            for each in list(found._silent):
                found._give_up(each)
            with pytest.raises(ConnectionResetError):
                idle[0].recv(1)
            assert not found._silent
            monkeypatch.setattr(listener, "CONNECTIONS_MAX", 1)
            for _ in range(2):
                kept.enter_context(socket.create_connection(("127.0.0.1", port)))
            async with asyncio.timeout(60):
                await is_full.wait()
            assert len(found._silent) == 1, "they are counted as connections are"
            found.close()
        context.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(test())
