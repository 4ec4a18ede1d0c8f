"""SPDY as clients of a kubelet speak it: whole, cut, and broken."""

import struct
from random import Random

from support.mutate import chunks, mutated
from support.spdy_client import Client

from fleet.errors import RemoteProtocolError
from fleet.server.spdy import (
    CANCEL,
    CONTROL_BYTES_MAX,
    FIN,
    GOAWAY,
    PING,
    RST_STREAM,
    SETTINGS,
    Data,
    Ended,
    Opened,
    SpdyServer,
)

NAMES = ("streamtype", "port", "requestid", "", "\0")
VALUES = ("data", "error", "stdin", "80", "65536", "", "é" * 9, "x" * 400)


def make_spdy(random: Random) -> tuple[bytes, ...]:
    client = Client()
    found = []
    for at in range(random.randrange(1, 12)):
        stream = random.choice((2 * at + 1, 2 * at + 1, 1, 3, random.randrange(64)))
        kind = random.randrange(8)
        if kind < 3:
            headers = {random.choice(NAMES): random.choice(VALUES) for _ in range(3)}
            found.append(client.open(stream, headers, random.choice((0, 0, FIN))))
        elif kind < 6:
            data = random.randbytes(random.choice((0, 1, 20, 3000)))
            found.append(client.data(stream, data, random.choice((0, 0, FIN))))
        elif kind == 6:
            found.append(client.control(RST_STREAM, struct.pack(">II", stream, CANCEL)))
        else:
            other = random.choice((PING, GOAWAY, SETTINGS, 5, 77))
            found.append(client.control(other, random.randbytes(random.choice((4, 8, 20)))))
    sent = b"".join(found)
    if random.randrange(3):
        sent = mutated(sent, random, found)
    return tuple(chunks(sent, random))


def judge_spdy(pieces: tuple[bytes, ...]) -> None:
    """Nothing but protocol errors; little is held; no stream speaks before it is opened."""
    server = SpdyServer()
    opened: set[int] = set()
    received = size = 0
    for piece in pieces:
        size += len(piece)
        try:
            events = server.receive(piece)
        except RemoteProtocolError:
            return
        for event in events:
            if isinstance(event, Opened):
                assert event.stream not in opened, "opened twice"
                opened.add(event.stream)
                server.accept(event.stream)
                server.send(event.stream, b"answer", is_last=len(opened) % 2 == 0)
            elif isinstance(event, Data | Ended):
                assert event.stream in opened, "a stream that was never opened"
                received += len(event.data) if isinstance(event, Data) else 0
        assert len(server._buffer) <= CONTROL_BYTES_MAX + 8 + len(piece), "bytes held"
        server.take()
    assert received <= size, "more than was sent"
