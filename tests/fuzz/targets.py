"""What is fuzzed. Each target makes its input from a `Random`, and judges what became of it.

Of every target: nothing but the protocol errors is raised, and what is kept stays bounded. Where a
library of someone else reads the same (hpack, hyperframe, orjson, google.protobuf), the two agree.
"""

import contextlib
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import hpack as library
import orjson
from google.protobuf.message import DecodeError
from hostile_pods import (
    judge_command,
    judge_pod,
    make_command,
    make_pod,
)
from hyperframe.frame import DataFrame, Frame
from samples import (
    KINDS,
    block,
    bodies,
    frames,
    json_events,
    json_lists,
    protobuf_events,
    protobuf_lists,
)
from spdy_target import judge_spdy, make_spdy
from support.mutate import chunks, misshapen, mutated

from fleet.clock import Draws
from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import Op, WatchKind
from fleet.wire.api import codec
from fleet.wire.api.codec import decode_reply
from fleet.wire.api.encode_protobuf import renewed
from fleet.wire.api.framing import EVENT_BYTES_MAX, Partial, Split, split_frames
from fleet.wire.api.operations import OPERATIONS
from fleet.wire.api.protobuf import TAIL, contents, message_class
from fleet.wire.api.watch import Reflector
from fleet.wire.http2 import hpack
from fleet.wire.http2.http2_codec import (
    FRAME_BYTES_DEFAULT,
    HEADER_BLOCK_BYTES_MAX,
    Http2Codec,
    Inbox,
    Stream,
)
from fleet.wire.http2.messages import Request, Response, StreamOpened

PATH_MAX = 16384
CODECS = {"json": codec.JSON, "protobuf": codec.protobuf()}
PLAN = hpack.HeaderPlan(b"host:6443", b"Bearer t", b"agent", b"accept")
WATCH = Request(b"GET", b"/pods?watch=true&timeoutSeconds=400", stream=True)
GET = Request(b"GET", b"/version")
HELD_MAX = 9 + FRAME_BYTES_DEFAULT
_KINDS = tuple(KINDS)
_EVENTS = {
    "json": {kind: json_events(kind) for kind in KINDS},
    "protobuf": {kind: protobuf_events(kind) for kind in KINDS},
}
_LISTS = {
    "json": {kind: json_lists(kind) for kind in KINDS},
    "protobuf": {kind: protobuf_lists(kind) for kind in KINDS},
}
_BODIES = dict(zip(CODECS, bodies(), strict=True))
_OPS = tuple(op for op, row in OPERATIONS.items() if row.read is not None)
_LEASES = [each for each in _BODIES["protobuf"] if b"Lease" in each[:40]]


class Breach(Exception):  # noqa: N818 - it is what a target found
    """An invariant does not hold."""


class Target(NamedTuple):
    """How inputs are made, and what must hold of each."""

    make: Callable[[Random], tuple[bytes, ...]]
    judge: Callable[[tuple[bytes, ...]], None]


def check(holds: object, what: str) -> None:
    if not holds:
        raise Breach(what)


# ---- frames ----


def make_frames(random: Random) -> tuple[bytes, ...]:
    found = frames(random)
    stream = b"".join(found)
    if random.randrange(3):
        stream = mutated(stream, random, found)
    return tuple(chunks(stream, random))


def judge_frames(pieces: tuple[bytes, ...]) -> None:
    """Bytes are taken or refused, whole frames as hyperframe reads them, and little is held."""
    http2 = Http2Codec(PLAN, b"system:node:a")
    inbox: Inbox = []
    for token, request in (("w", WATCH), ("a", GET), ("b", GET)):
        http2.open_stream(Stream(token, request, request.stream))
    http2.outbound.out.clear()
    http2.outbound.on_written(1)
    refused = 0
    for piece in pieces:
        inbox += http2.receive(piece, 2)
        if http2.news is not None:
            news = http2.take_news()
            if news.breach is not None:
                return
            refused += len(news.refused)
        check(len(http2._rest or b"") <= HELD_MAX, "bytes held")
        held = http2._block[2] if http2._block is not None else b""
        check(len(held) <= HEADER_BLOCK_BYTES_MAX, "a header block held")
        http2.outbound.out.clear()
    endings = [token for token, message in inbox if isinstance(message, Response)]
    check(len(endings) == len(set(endings)), "answered twice")
    check(len(endings) + len(http2.streams) + refused == 3, "lost")
    sent = _data_of(b"".join(pieces), 1)
    if all(not isinstance(message, Response) for token, message in inbox if token == "w"):
        got = b"".join(message for _, message in inbox if isinstance(message, bytes))
        if any(isinstance(message, StreamOpened) for _, message in inbox):
            check(got == sent, "another stream than hyperframe's")


def _data_of(stream: bytes, sid: int) -> bytes:
    """Return what hyperframe finds of a stream's DATA."""
    at, found = 0, b""
    while at + 9 <= len(stream):
        size = int.from_bytes(stream[at : at + 3], "big")
        if at + 9 + size > len(stream):
            break
        frame, _ = Frame.parse_frame_header(memoryview(stream)[at : at + 9])
        if isinstance(frame, DataFrame) and frame.stream_id == sid:
            frame.parse_body(memoryview(stream)[at + 9 : at + 9 + size])
            found += frame.data
        at += 9 + size
    return found


# ---- header blocks ----


def make_block(random: Random) -> tuple[bytes, ...]:
    data = block(random)
    return (mutated(data, random, (data, block(random))) if random.randrange(4) else data,)


def judge_block(pieces: tuple[bytes, ...]) -> None:
    """What the library reads is read like that; a status at the front needs no more than that."""
    (data,) = pieces
    try:
        found = hpack.read_block(data)
    except RemoteProtocolError:
        found = None
    check(found is None or (found[0] >= 100 and -1 <= found[1] <= hpack.RETRY_AFTER_S_MAX), "range")
    decoder = library.Decoder(max_header_list_size=hpack.HEADER_LIST_BYTES_MAX)
    decoder.max_allowed_table_size = 0
    decoder.header_table_size = 0
    try:
        fields = [(bytes(name), bytes(value)) for name, value in decoder.decode(data, raw=True)]
    except library.HPACKError:
        return
    statuses = [value for name, value in fields if name == b":status"]
    if len(statuses) != 1 or len(statuses[0]) != 3 or not statuses[0].isdigit():
        return
    if statuses[0] < b"100":
        check(found is None, "a status below 100")
        return
    check(found is not None and found[0] == int(statuses[0]), "another status than the library's")


# ---- bodies ----


def _of_codec(
    samples: dict[str, dict[WatchKind, list[bytes]]], random: Random
) -> tuple[bytes, ...]:
    name = random.choice(("json", "protobuf"))
    kind = random.choice(_KINDS)
    found = samples[name][kind]
    data = random.choice(found)
    start = 4 if name == "protobuf" and samples is _EVENTS else 0
    data = data[start:]
    if name == "json" and random.randrange(2):
        data = misshapen(data, random)
    elif random.randrange(8):
        data = mutated(data, random, found)
    return name.encode(), b"%d" % kind, data


def make_event(random: Random) -> tuple[bytes, ...]:
    return _of_codec(_EVENTS, random)


def judge_event(pieces: tuple[bytes, ...]) -> None:
    """An event is read or refused; google.protobuf finds it to be of the same type."""
    name, kind, data = pieces
    each = CODECS[name.decode()]
    try:
        event, version, _ = each.decode_watch_event(data, WatchKind(int(kind)))
    except RemoteProtocolError:
        return
    check(isinstance(version, str), "a version that is no text")
    if name == b"protobuf":
        check(message_class("WatchEvent").FromString(data).type[:1] in event.name + "B", "type")


def make_list(random: Random) -> tuple[bytes, ...]:
    return _of_codec(_LISTS, random)


def judge_list(pieces: tuple[bytes, ...]) -> None:
    name, kind, data = pieces
    try:
        version, token, _ = CODECS[name.decode()].decode_list(data, WatchKind(int(kind)))
    except RemoteProtocolError:
        return
    check(isinstance(version, str) and isinstance(token, str), "no texts")
    if name == b"json" and _is_json(data):  # what nobody reads may be anything
        check(version == (orjson.loads(data)["metadata"].get("resourceVersion") or ""), "version")


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def make_reply(random: Random) -> tuple[bytes, ...]:
    name = random.choice(("json", "protobuf"))
    found = _BODIES[name]
    code = random.choice((200, 200, 200, 201, 404, 409, 500))
    body = random.choice(found)
    if name == "json" and random.randrange(2):
        body = misshapen(body, random)
    elif random.randrange(8):
        body = mutated(body, random, found)
    return name.encode(), b"%d" % random.choice(_OPS), b"%d" % code, body


def judge_reply(pieces: tuple[bytes, ...]) -> None:
    name, op, code, body = pieces
    try:
        reply = decode_reply(Op(int(op)), Response(int(code), body, 1, 2), CODECS[name.decode()])
    except RemoteProtocolError:
        return
    check(reply.code == int(code), "another code")


def make_lease(random: Random) -> tuple[bytes, ...]:
    return (mutated(random.choice(_LEASES), random, _LEASES),)


def judge_lease(pieces: tuple[bytes, ...]) -> None:
    """What is made of a server's Lease is one as long as it was one."""
    (base,) = pieces
    lease = message_class("Lease")
    try:
        sent = renewed(base, 1_700_000_000_123_456_000)
    except RemoteProtocolError:
        return
    try:
        was = lease.FromString(contents(base))
    except (RemoteProtocolError, DecodeError, IndexError):
        return
    if base.endswith(TAIL) and sent.endswith(TAIL) and len(contents(base)) > 0:
        with contextlib.suppress(DecodeError):  # a field cut short may end within a character
            now = lease.FromString(contents(sent))
            check(now.metadata.name in (was.metadata.name, ""), "another name")


# ---- streams ----


def make_stream(random: Random) -> tuple[bytes, ...]:
    name = random.choice(("json", "protobuf"))
    found = _EVENTS[name][random.choice(_KINDS)]
    stream = b"".join(random.choice(found) for _ in range(random.randrange(1, 5)))
    if random.randrange(2):
        stream = mutated(stream, random, found)
    return (name.encode(), *chunks(stream, random))


def judge_stream(pieces: tuple[bytes, ...]) -> None:
    """Cuts change nothing, and of what is kept there is an end."""
    name, *parts = pieces
    if not parts:
        return
    split = CODECS[name.decode()].split
    whole, left, is_broken = _events(split, [b"".join(parts)])
    found, rest, broke = _events(split, parts)
    check((found, bytes(rest), broke) == (whole, bytes(left), is_broken), "cuts change it")
    if split is split_frames and len(rest) >= 4:
        check(
            int.from_bytes(rest[:4], "big") <= EVENT_BYTES_MAX, "a frame without end is waited for"
        )


def _events(split: Split, parts: list[bytes]) -> tuple[list[bytes], Partial, bool]:
    found: list[bytes] = []
    rest: Partial = b""
    for part in parts:
        try:
            events, rest = split(rest, part)
        except RemoteProtocolError:
            return [], b"", True
        found += [event.removesuffix(b"\n") for event in events]  # a chunk of one line is passed on
    return found, rest, False


def judge_reflector(pieces: tuple[bytes, ...]) -> None:
    """A whole list-watch takes or refuses a stream, and can ask again after either."""
    name, *parts = pieces
    each = CODECS[name.decode()]
    for kind in (WatchKind.PODS, WatchKind.SERVICES):
        reflector = Reflector(1, kind, "n")
        reflector.open(Draws(1), 0)
        for part in parts:
            try:
                reflector.on_chunk(part, each.decode_watch_event, each.split)
            except RemoteProtocolError:
                reflector.on_error_event(500, Draws(1), 1)
                break
        path = reflector.open(Draws(1), 2).path
        check(len(path) < PATH_MAX, "a path without end")


TARGETS = {
    "frames": Target(make_frames, judge_frames),
    "header-blocks": Target(make_block, judge_block),
    "events": Target(make_event, judge_event),
    "lists": Target(make_list, judge_list),
    "answers": Target(make_reply, judge_reply),
    "leases": Target(make_lease, judge_lease),
    "streams": Target(make_stream, judge_stream),
    "list-watches": Target(make_stream, judge_reflector),
    "spdy": Target(make_spdy, judge_spdy),
}

HOSTILE = {
    "commands": Target(make_command, judge_command),
    "pods": Target(make_pod, judge_pod),
}
"""What pods and their users mean harm with; each input has 100 ms and 64 MB, see limits.py."""
ALL = TARGETS | HOSTILE


def run_one(name: str, number: int) -> None:
    """Make one input and judge it. Raises whatever is wrong, with the line that does it again."""
    target = ALL[name]
    pieces = target.make(Random(f"{name}/{number}"))
    try:
        target.judge(pieces)
    except Exception as error:
        shown = " ".join(piece.hex() or "-" for piece in pieces)
        if len(shown) > 4000:
            shown = shown[:4000] + "..."
        error.add_note(
            f"python tests/fuzz/fuzz.py {name} --first {number} --inputs 1\n"
            f"found.txt: {name} {shown}"
        )
        raise
