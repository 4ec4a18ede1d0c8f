"""The proxy that notes headers, and the judgement of lines by a list, without a control plane."""

import asyncio

from hpack import Encoder
from support.header_tap import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY,
    HeaderReader,
    Headers,
    Holder,
)
from support.listed_differences import Listed, judge

WATCH = "/api/v1/pods?timeout=7m3s&timeoutSeconds=423&watch=true"


def test_what_is_not_listed_fails_and_so_does_an_entry_that_nothing_needs() -> None:
    listed = [Listed("only fleet: .*", "r", "s"), Listed("only hollow: .*", "r", "s")]
    assert judge(["only fleet: x", "time: y"], listed) == [
        "not listed: time: y",
        "unused: only hollow: .*",
    ]


def test_an_alternative_that_nothing_needs_fails() -> None:
    listed = [Listed(r"only (fleet|hollow): (get|patch) x( y)?", "r", "s")]
    lines = ["only fleet: get x", "only fleet: patch x y"]
    assert judge(lines, listed) == ["unused: only (hollow): (get|patch) x( y)?"]
    assert judge([*lines, "only hollow: get x"], listed) == []


def test_headers_are_read_along_wherever_the_bytes_are_cut() -> None:
    block = Encoder().encode([(":method", "GET"), ("accept", "application/json")])
    padded = bytes([2, 0, 0, 0, 0, 16]) + block[:3] + bytes(2)  # padding and priority
    frames = b"".join(
        len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
        for kind, flags, stream, payload in (
            (4, 0, 0, bytes(6)),
            (HEADERS, PADDED | PRIORITY, 1, padded),
            (CONTINUATION, END_HEADERS, 1, block[3:]),
            (0, 1, 1, b"data"),
        )
    )
    for size in (1, 7, 1000):
        found: dict[int, Headers] = {}
        reader = HeaderReader(found.__setitem__, preface=PREFACE)
        sent = PREFACE + frames
        for at in range(0, len(sent), size):
            reader.feed(sent[at : at + size])
        assert found == {1: {":method": "GET", "accept": "application/json"}}


def frame(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def passed_on(hold_s: float, *parts: bytes, until: int) -> bytes:
    """Return what a node gets of some frames as soon as it has so many bytes."""
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.readexactly(until))
        writer.close()

    async with await asyncio.start_server(read, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        holder = Holder(writer, hold_s)
        holder.on_asked(1, {":path": f"{WATCH}&fieldSelector=spec.nodeName%3Dn1"})
        holder.on_asked(3, {":path": "/api/v1/pods?limit=500"})
        for part in parts:
            holder.feed(part[:5])
            holder.feed(part[5:])
        found = await got
        writer.close()
    return found


def test_what_a_watch_of_pods_tells_is_held_and_nothing_else_is() -> None:
    first, second, third = frame(HEADERS, 1, b"a"), frame(DATA, 3, b"b"), frame(4, 0, b"")
    held, more = (frame(DATA, 1, text) for text in (b"first", b"second"))
    trailers = frame(HEADERS, 1, b"end", END_STREAM)
    mixed = (first, held, second, more, third)
    at_once, whole = b"".join((first, second, third)), b"".join((first, second, third, held, more))
    assert asyncio.run(passed_on(3600, *mixed, until=len(at_once))) == at_once
    assert asyncio.run(passed_on(0.05, *mixed, until=len(whole))) == whole
    ended = asyncio.run(passed_on(3600, *mixed, trailers, until=len(whole + trailers)))
    assert ended == whole + trailers
    assert asyncio.run(passed_on(0, *mixed, until=len(whole))) == b"".join(mixed)
