"""Sessions without a network: what clients want, how commands end, who waits for whom."""

import asyncio
from typing import cast

import orjson
import pytest
from aiohttp import WSMessage, WSMsgType, web
from support.spdy_client import Client
from world.server_world import AtOnce

from fleet.k8s.effects import NodeId, Outbox
from fleet.k8s.streams import Output
from fleet.server.byte_streams import ByteStream
from fleet.server.host_interface import Session
from fleet.server.reactor_thread import ReactorThread
from fleet.server.sessions import (
    CHUNK_BYTES,
    Channel,
    Conversation,
    Ended,
    SpdyClient,
    Wanted,
    WebSocketClient,
    wanted_streams,
)
from fleet.server.spdy import FIN

ALL = Wanted(stdin=True, stdout=True, stderr=True, tty=False)
WORDS = "error executing command [sh], exit code"


def test_what_a_client_wants() -> None:
    def read(**query: str) -> Wanted | None:
        return wanted_streams({key: [value] for key, value in query.items()})

    assert read(input="1", output="1", error="1") == ALL
    assert read(output="1", error="1", tty="1") == Wanted(
        stdin=False, stdout=True, stderr=False, tty=True
    )
    assert read(output="true", tty="1") is None


def test_how_a_command_ended() -> None:
    assert orjson.loads(Ended(0).status(WORDS)) == {"metadata": {}, "status": "Success"}
    failed = orjson.loads(Ended(3).status(WORDS))
    assert failed["reason"] == "NonZeroExitCode"
    assert failed["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert orjson.loads(Ended(0, "no such file").status(WORDS))["code"] == 500
    assert Ended(0).text(WORDS) == b""
    assert b"exit code 3" in Ended(3).text(WORDS)


# ---- a session and its client ----


class Echo:
    """A session that says what it hears, in pieces, and ends with its input."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.out: Outbox = []
        self.heard = bytearray()
        self.room = room
        self.is_over = self.is_closed = False

    def write(self, data: bytes, _now_ns: int) -> int:
        taken = data[: max(self.room - len(self.heard), 0)]
        self.heard += taken
        return len(taken)

    def close_stdin(self, _now_ns: int) -> None:
        self.is_over = True

    def advance(self, limit: int, _now_ns: int) -> Output:
        said = bytes(self.heard[: min(limit, 100)])
        del self.heard[: len(said)]
        is_done = self.is_over and not self.heard
        return Output(said, more=bool(self.heard), exit_code=7 if is_done else None)

    def close(self, _now_ns: int) -> None:
        self.is_closed = True


class Peer:
    """A client that sends what it is given."""

    def __init__(self, *inputs: bytes | None) -> None:
        self.inputs = list(inputs)
        self.received = bytearray()
        self.ended: Ended | None = None
        self.stays = asyncio.Event()

    async def receive(self) -> bytes | None:
        if not self.inputs:
            await self.stays.wait()
        return self.inputs.pop(0)

    async def send(self, channel: Channel, data: bytes) -> None:
        self.received += data if channel is Channel.STDOUT else b"<%b>" % data

    async def finish(self, ended: Ended) -> None:
        self.ended = ended


def converse(session: Echo, peer: Peer, wanted: Wanted = ALL) -> None:
    reactor_thread = cast("ReactorThread", AtOnce())
    conversation = Conversation(reactor_thread, NodeId(0), cast("Session", session), peer, wanted)
    asyncio.run(asyncio.wait_for(conversation.run(), 60))


def test_all_input_comes_back_and_the_end_is_told() -> None:
    sent = bytes(range(256)) * 500
    session, peer = Echo(), Peer(sent, b"")
    converse(session, peer)
    assert bytes(peer.received) == sent
    assert peer.ended == Ended(7)
    assert session.is_closed


def test_a_session_without_room_gets_all_of_it_by_and_by() -> None:
    sent = b"x" * (CHUNK_BYTES * 2)
    session, peer = Echo(room=500), Peer(sent, b"")
    converse(session, peer)
    assert bytes(peer.received) == sent


def test_errors_come_before_the_output_of_the_same_moment() -> None:
    """`kubectl cp` of a file that is not there ends with the archive, which is empty."""

    class Complains(Echo):
        def advance(self, limit: int, _now_ns: int) -> Output:  # noqa: ARG002
            return Output(b"archive", b"no such file", exit_code=1)

    peer = Peer()
    converse(Complains(), peer)
    assert bytes(peer.received) == b"<no such file>archive"


def test_a_client_that_goes_ends_its_session() -> None:
    session, peer = Echo(), Peer(b"x", None)
    converse(session, peer)
    assert session.is_closed
    assert peer.ended is None


def test_what_was_not_asked_for_is_not_taken() -> None:
    wanted = Wanted(stdin=False, stdout=True, stderr=False, tty=False)
    session, peer = Echo(), Peer(b"x", b"", None)
    converse(session, peer, wanted)
    assert not session.heard
    assert not session.is_over


# ---- WebSockets ----


class Socket:
    """The messages of a WebSocket."""

    def __init__(self, protocol: str, *messages: tuple[WSMsgType, object]) -> None:
        self.ws_protocol = protocol
        self.messages = [*messages, (WSMsgType.CLOSE, None)]
        self.sent: list[bytes] = []

    async def receive(self) -> WSMessage:
        kind, data = self.messages.pop(0)
        return WSMessage(kind, data, None)

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    async def close(self) -> None:
        self.sent.append(b"closed")


def received(protocol: str, *messages: tuple[WSMsgType, object]) -> list[bytes]:
    client = WebSocketClient(cast("web.WebSocketResponse", Socket(protocol, *messages)), WORDS)

    async def read() -> list[bytes]:
        found = []
        while (each := await client.receive()) is not None:
            found.append(each)
        return found

    return asyncio.run(read())


def test_channels_are_the_first_byte() -> None:
    binary = WSMsgType.BINARY
    sent = [b"\0in", b"\4size", b"\1out", b"", b"\xff\0", b"\xff\1", b"\x09"]
    messages = [(binary, each) for each in sent]
    assert received("v5.channel.k8s.io", *messages) == [b"in", b""]
    assert received("v4.channel.k8s.io", *messages) == [b"in"]  # which cannot close
    assert received("", *messages) == [b"in"]


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("v5.channel.k8s.io", b"\3" + Ended(2).status("command terminated with exit code")),
        ("v4.channel.k8s.io", b"\3" + Ended(2).status(WORDS)),
        ("channel.k8s.io", b"\3" + Ended(2).text(WORDS)),
    ],
)
def test_the_status_is_the_protocols(protocol: str, said: bytes) -> None:
    socket = Socket(protocol)
    client = WebSocketClient(cast("web.WebSocketResponse", socket), WORDS)
    asyncio.run(client.finish(Ended(2)))
    assert socket.sent == [said, b"closed"]


# ---- SPDY ----


class Bytes:
    """A stream of bytes that were sent before."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.written = bytearray()
        self.is_closed = False

    async def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def write(self, data: bytes) -> None:
        self.written += data

    async def close(self) -> None:
        self.is_closed = True


def spdy(stream: Bytes) -> SpdyClient:
    return SpdyClient(cast("ByteStream", stream), WORDS)


def test_a_session_begins_once_all_streams_are_there() -> None:
    client = Client()
    kinds = ("error", "stdin", "stdout", "stderr")
    opened = [client.open(2 * at + 1, {"streamtype": kind}) for at, kind in enumerate(kinds)]
    stream = Bytes(*opened, client.data(3, b"typed"), client.data(3, b"", FIN))
    session = spdy(stream)

    async def play() -> None:
        assert await session.wait_for_streams(ALL)
        assert await session.receive() == b"typed"
        assert await session.receive() == b""
        await session.send(Channel.STDOUT, b"said")
        await session.finish(Ended(5))

    asyncio.run(play())
    frames = client.read(bytes(stream.written))
    assert (-5, b"\0said") in frames
    assert (-1, bytes((FIN,)) + Ended(5).status(WORDS)) in frames
    assert stream.is_closed


def test_sizes_of_a_terminal_have_a_stream_of_their_own_and_are_no_input() -> None:
    client, size = Client(), b'{"Width":80,"Height":24}\n'
    kinds = ("error", "stdin", "stdout", "resize")
    opened = [client.open(2 * at + 1, {"streamtype": kind}) for at, kind in enumerate(kinds)]
    typed = [client.data(3, b"ty"), client.data(7, size, FIN), client.data(3, b"ped")]
    session = spdy(Bytes(*opened, client.data(7, size), *typed, client.data(3, b"", FIN)))
    wanted = Wanted(stdin=True, stdout=True, stderr=False, tty=True)

    async def play() -> list[bytes | None]:
        assert await session.wait_for_streams(wanted)
        return [await session.receive() for _ in range(4)]

    assert asyncio.run(play()) == [b"ty", b"ped", b"", None]
    without = spdy(Bytes(*opened[:3]))
    assert not asyncio.run(without.wait_for_streams(wanted))


def test_a_client_that_begins_too_few_streams_is_given_up() -> None:
    client = Client()
    stream = Bytes(client.open(1, {"streamtype": "error"}))
    assert not asyncio.run(spdy(stream).wait_for_streams(ALL))


def test_streams_of_other_types_and_twice_are_reset() -> None:
    client = Client()
    kinds = ("error", "error", "nonsense")
    opened = b"".join(
        client.open(2 * at + 1, {"streamtype": kind}) for at, kind in enumerate(kinds)
    )
    stream = Bytes(opened)
    wanted = Wanted(stdin=False, stdout=False, stderr=False, tty=False)
    assert asyncio.run(spdy(stream).wait_for_streams(wanted))
    kinds_sent = [kind for kind, _ in client.read(bytes(stream.written))]
    assert kinds_sent == [2, 3, 3]
