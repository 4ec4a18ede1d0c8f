"""What a client that means harm may hold of the servers: heads, idle connections. Virtual time."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from support.stories import Story, as_test
from world.server_world import Transport
from world.virtual_loop import in_virtual_time

from fleet.server.http import (
    FIELD_BYTES_MAX,
    FIELDS_MAX,
    HEAD_S,
    IDLE_S,
    LINE_BYTES_MAX,
    SWEEP_S,
    NodeHttp,
    text,
)

GET = b"GET /healthz HTTP/1.1\r\nHost: n\r\n"
LATE_S = HEAD_S + 2 * SWEEP_S


class Server:
    """The servers of a process, without sockets."""

    def __init__(self) -> None:
        self.bodies: list[int] = []
        self.http = NodeHttp(self._handle)
        self.sweeping = asyncio.ensure_future(self.http.sweep())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.bodies.append(sum([len(each) async for each in request.content.iter_any()]))
        return text(200, "ok")

    def connect(self, *pieces: bytes) -> Transport:
        transport = Transport()
        transport.protocol = self.http()
        transport.protocol.connection_made(transport)
        for piece in pieces:
            transport.protocol.data_received(piece)
        return transport


def played(story: Story) -> Callable[..., None]:
    """Make a test of a story about a server, in virtual time."""
    return as_test(story, play)


def play(story: Story, **parameters: object) -> None:
    async def all_of_it() -> None:
        failures: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: failures.append(context))
        server = Server()
        await story(server, **parameters)
        server.sweeping.cancel()
        await asyncio.wait({server.sweeping})
        await server.http.shutdown(0.1)
        await asyncio.sleep(1)
        assert not failures, failures

    in_virtual_time(all_of_it())


def field(size: int) -> bytes:
    return b"X: " + b"a" * (size - 5) + b"\r\n"


def in_pieces(content: bytes, size: int = 1 << 16) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


def line(size: int) -> bytes:
    return b"GET /healthz?" + b"a" * (size - 13) + b" HTTP/1.1\r\nHost: n\r\n"


@pytest.mark.parametrize(
    ("size", "code"), [(LINE_BYTES_MAX - 100, 200), (LINE_BYTES_MAX + 100, 431)]
)
@played
async def test_a_line_has_room_for_the_command_of_an_exec(
    server: Server, size: int, code: int
) -> None:
    client = server.connect(*in_pieces(line(size) + b"\r\n"))
    await asyncio.sleep(0.01)
    assert client.status.split()[1] == str(code), client.status


@played
async def test_a_head_without_an_end_is_refused_before_much_of_it_is_kept(server: Server) -> None:
    """Nobody needs rights to send one, on as many connections as there are descriptors."""
    client, sent = server.connect(GET), 0
    while not client.status and sent < 8 << 20:
        client.protocol.data_received(field(FIELD_BYTES_MAX - 100))
        sent += FIELD_BYTES_MAX
        await asyncio.sleep(0.01)
    assert client.status.split()[1] == "431"
    assert sent < 2 << 20


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (field(900) * 60, 200),
        (field(FIELD_BYTES_MAX - 100), 200),
        (field(FIELD_BYTES_MAX + 100), 431),
        (field(6) * (FIELDS_MAX + 1), 431),
    ],
)
@pytest.mark.parametrize("size", [1_000, 1 << 16, 1 << 22])
@played
async def test_a_head_has_limits(server: Server, fields: bytes, code: int, size: int) -> None:
    """One field or many, in whatever pieces it comes."""
    client = server.connect(*in_pieces(GET + fields + b"\r\n", size))
    await asyncio.sleep(0.01)
    assert client.status.split()[1] == str(code), client.status
    await asyncio.sleep(1)
    assert client.is_closed is (code != 200)
    assert len(server.bodies) == (code == 200)


@played
async def test_a_body_is_no_head(server: Server) -> None:
    size = 3 << 20
    head = b"POST /run HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n" % size
    client = server.connect(head)
    for piece in in_pieces(bytes(size)):
        assert not client.is_paused
        client.protocol.data_received(piece)
        await asyncio.sleep(1)  # longer than a head may take
    await asyncio.sleep(0.1)
    assert server.bodies == [size]
    assert client.status == "HTTP/1.1 200 OK"


@pytest.mark.parametrize("sent", [b"", b"G", GET])
@played
async def test_who_sends_no_whole_head_is_closed(server: Server, sent: bytes) -> None:
    client = server.connect(*[sent] * bool(sent))
    await asyncio.sleep(HEAD_S - 1)
    assert not client.is_closed
    await asyncio.sleep(1 + 2 * SWEEP_S)
    assert client.is_closed
    assert not client.sent, "Go's server says nothing, either"


@played
async def test_a_head_that_drips_is_closed_as_well(server: Server) -> None:
    """Slowloris: each byte comes in time, and the end never."""

    async def drip(client: Transport) -> float:
        began_s = asyncio.get_running_loop().time()
        while not client.is_closed:
            client.protocol.data_received(b"X: a\r\n")
            await asyncio.sleep(0.5)
        return asyncio.get_running_loop().time() - began_s

    assert HEAD_S <= await drip(server.connect(GET)) <= LATE_S


@played
async def test_a_connection_is_kept_between_requests_for_as_long_as_a_kubelet_keeps_it(
    server: Server,
) -> None:
    client = server.connect(GET + b"\r\n")
    for _ in range(3):
        await asyncio.sleep(IDLE_S - 1)
        assert not client.is_closed
        client.protocol.data_received(GET + b"\r\n")
    await asyncio.sleep(IDLE_S + 2)
    assert client.is_closed
    assert len(server.bodies) == 4


@pytest.mark.parametrize("sent", [GET + b"\r\n", b"nonsense\r\n\r\n"])
@played
async def test_answers_do_not_name_the_library_of_the_server(server: Server, sent: bytes) -> None:
    client = server.connect(sent)
    await asyncio.sleep(0.01)
    assert b"\r\nContent-Type: text/plain" in client.sent
    assert b"\r\nserver:" not in client.sent.lower()


@played
async def test_many_idle_connections_go_and_others_are_answered(server: Server) -> None:
    idle = [server.connect(*[b"G"] * (number % 2)) for number in range(500)]
    assert len(server.http.connections) == 500
    client = server.connect(GET + b"\r\n")
    await asyncio.sleep(0.1)
    assert client.status == "HTTP/1.1 200 OK"
    await asyncio.sleep(LATE_S)
    assert all(each.is_closed for each in idle)
    assert len(server.http.connections) == 1
    assert not client.is_closed
