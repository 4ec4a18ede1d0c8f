"""Port forwarding without a network: both ways at once, more than any buffer holds."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from support.spdy_client import Client
from world.pod_world import make_pod, session_of
from world.server_world import AtOnce

from fleet.k8s.effects import NodeId
from fleet.k8s.pods import Pod
from fleet.k8s.streams import Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.runtime.ports import PENDING_MAX, PortSession
from fleet.server import port_forward
from fleet.server.endpoints import FORWARDED_MAX, ConcurrencyLimit
from fleet.server.port_forward import CONNECTIONS_MAX, INPUT_BYTES_MAX, Forwarder, SpdyPortForward
from fleet.server.reactor_thread import ReactorThread
from fleet.server.spdy import FIN, REFUSED_STREAM, RST_STREAM, SYN_REPLY

PORT, CLOSED = 7, 81
SENT = bytes(range(256)) * (2 * PENDING_MAX // 256)
PIECE = 32 << 10


def port_of(_kubelet: VirtualKubelet, pod: Pod, port: int, _now_ns: int) -> PortSession | Refusal:
    return Refusal(500, "refused") if port == CLOSED else session_of(pod)


@pytest.fixture
def forwarder(monkeypatch: pytest.MonkeyPatch) -> Forwarder:
    monkeypatch.setattr(port_forward, "port_of", port_of)
    return Forwarder(
        cast("ReactorThread", AtOnce()), NodeId(0), make_pod(), ConcurrencyLimit(FORWARDED_MAX)
    )


class Pipe:
    """A client: what it sends, in pieces, and what it is sent."""

    def __init__(self, pieces: Sequence[bytes], has_all: Callable[[bytearray], bool]) -> None:
        self.pieces = deque(pieces)
        self.received = bytearray()
        self.has_all = has_all
        self.is_through = asyncio.Event()  # then it goes

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if not self.pieces:
            await self.is_through.wait()
            return b""
        return self.pieces.popleft()

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        self.received += data
        if self.has_all(self.received):
            self.is_through.set()

    async def close(self) -> None:
        pass


def opened(client: Client, first: int, port: int) -> list[bytes]:
    headers = {"port": str(port), "requestID": str(first)}
    return [
        client.open(first, {**headers, "streamType": "error"}, FIN),
        client.open(first + 2, {**headers, "streamType": "data"}),
    ]


def pieces_of(content: bytes) -> list[bytes]:
    return [content[at : at + PIECE] for at in range(0, len(content), PIECE)]


def frames_of(received: bytes) -> int:
    """Return how many bytes DATA frames of so much content are."""
    return len(received) + len(pieces_of(received)) * struct.calcsize(">II")


def run_over_spdy(
    forwarder: Forwarder, sent: list[bytes], has_all: Callable[[bytearray], bool]
) -> list[tuple[int, bytes]]:
    """Send it all; return the frames that came, once all have."""

    async def play() -> bytearray:
        pipe = Pipe(sent, has_all)
        await asyncio.wait_for(SpdyPortForward(pipe, forwarder).run(), 60)
        return pipe.received

    return whole(Client(), asyncio.run(play()))


def is_count(frames: int) -> Callable[[bytearray], bool]:
    return lambda received: len(whole(Client(), received)) >= frames


def test_more_than_all_buffers_comes_back_over_spdy(forwarder: Forwarder) -> None:
    """The port takes nothing while 1 MB waits to be read, and is read all the same."""
    client = Client()
    sent = [*opened(client, 1, PORT), *(client.data(3, each) for each in pieces_of(SENT))]
    sent.append(client.data(3, b"", FIN))

    frames = run_over_spdy(forwarder, sent, lambda received: len(received) >= frames_of(SENT))
    assert b"".join(content[1:] for kind, content in frames if kind == -3) == SENT


def whole(client: Client, received: bytearray) -> list[tuple[int, bytes]]:
    """Read the frames that are complete."""
    at = 0
    while at + 8 <= len(received):
        size = int.from_bytes(received[at + 5 : at + 8], "big")
        if at + 8 + size > len(received):
            break
        at += 8 + size
    return client.read(bytes(received[:at]))


def test_a_refused_port_holds_no_other_one_up(forwarder: Forwarder) -> None:
    """What is sent to it is dropped, however much it is; the port beside it answers."""
    client = Client()
    flood = pieces_of(bytes(4 * INPUT_BYTES_MAX))
    sent = [*opened(client, 1, CLOSED), *opened(client, 5, PORT)]
    sent += [client.data(3, each) for each in flood]
    sent.append(client.data(7, b"hello, port\n"))

    frames = run_over_spdy(forwarder, sent, lambda received: b"hello, port\n" in received)
    assert [kind for kind, _ in frames].count(SYN_REPLY) == 4
    [refused] = [content[1:] for kind, content in frames if kind == -1]
    assert refused.endswith(b"refused")


def test_over_the_limit_no_connection_begins(forwarder: Forwarder) -> None:
    """Of all clients: the port is not even asked."""
    forwarder.limit.in_use = forwarder.limit.most
    forwarder.open = None  # type: ignore[method-assign,assignment]
    frames = run_over_spdy(forwarder, opened(Client(), 1, PORT), is_count(4))
    [refused] = [content[1:] for kind, content in frames if kind == -1]
    assert refused.endswith(b"too many connections are forwarded")
    assert forwarder.limit.in_use == forwarder.limit.most


def test_a_closed_connection_counts_no_more(forwarder: Forwarder) -> None:
    forwarder.limit.most = 1
    client = Client()
    for first in (1, 5):
        sent = [*opened(client, first, PORT), client.data(first + 2, b"hello, port\n", FIN)]
        assert any(
            b"hello" in content for _, content in run_over_spdy(forwarder, sent, is_count(3))
        )
        assert forwarder.limit.in_use == 0
        client = Client()


def test_halves_of_connections_are_counted_and_refused_ones_leave_nothing(
    forwarder: Forwarder,
) -> None:
    """Error streams of ever new requests, without the data streams that belong to them."""
    client = Client()
    numbers = range(1, 6 * CONNECTIONS_MAX, 2)
    sent = [
        client.open(stream, {"port": "7", "streamType": "error", "requestID": f"r{stream}"}, FIN)
        for stream in numbers
    ]
    pipe = Pipe(sent, lambda received: len(received) > 10 * len(numbers))
    forwarding = SpdyPortForward(pipe, forwarder)
    asyncio.run(asyncio.wait_for(forwarding.run(), 60))
    frames = whole(client, pipe.received)
    accepted = [kind for kind, _ in frames].count(SYN_REPLY)
    assert accepted == CONNECTIONS_MAX
    assert len(forwarding._pairs) == CONNECTIONS_MAX
    resets = [content for kind, content in frames if kind == RST_STREAM]
    assert len(resets) == len(numbers) - CONNECTIONS_MAX
    assert {struct.unpack(">II", each)[1] for each in resets} == {REFUSED_STREAM}
