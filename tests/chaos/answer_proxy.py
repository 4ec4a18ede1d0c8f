"""A proxy that speaks TLS to both sides and changes frames of HTTP/2 that come from the server.

    fleet --TLS--> proxy --TLS--> kube-apiserver

What the client sends passes as it is. Of what the server sends, a share of the frames is changed:
JSON, protobuf and header blocks, codes, types, flags, streams, lengths; some are doubled, lost, put
off, or cut off with their connection; some come that nobody has sent.
"""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import orjson
from support.header_tap import copy, until_one_ends
from support.mutate import misshapen, mutated

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
HTTP1, HTTP2 = "http/1.1", "h2"
HEADER_BYTES = 9
STATUSES = (b"\x88", b"\x89", b"\x8b", b"\x8c", b"\x8d", b"\x8e", b"\x08\x03410", b"\x08\x03429")
"""200, 204, 304, 400, 404, 500 of HPACK's static table; 410 and 429 as literals."""
OTHERS_MAX = 64
HOW = {
    "bytes": 30,
    "shape": 30,
    "code": 12,
    "double": 8,
    "lose": 4,
    "put off": 6,
    "insert": 5,
    "head": 3,
    "cut off": 2,
}
"""How a frame is changed, and how often; what ends a connection is rare, as it hides the rest."""
NAMES = {DATA: "DATA", HEADERS: "HEADERS"}


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    def encoded(self) -> bytes:
        size = len(self.payload).to_bytes(3, "big")
        return size + bytes((self.kind, self.flags)) + self.stream.to_bytes(4, "big") + self.payload


class Mangler:
    """Changes a share of the frames."""

    def __init__(self, random: Random) -> None:
        self.share = 0.0
        self.passed = 0
        """Frames that came, changed or not, since some are changed."""
        self.counts: Counter[str] = Counter()
        self._random = random
        self._others: list[bytes] = [b"{}"]

    def mangle(self, frame: Frame, late: list[Frame]) -> tuple[list[Frame], bytes]:
        """Return the frames in place of one, and the begin of one that is cut off."""
        draws = self._random
        self.passed += bool(self.share)
        if frame.kind == DATA and (len(self._others) < OTHERS_MAX or not draws.randrange(50)):
            self._others = [*self._others[-OTHERS_MAX:], frame.payload]
        if draws.random() >= self.share:
            held, late[:] = list(late), []
            return [frame, *held], b""
        how = draws.choices(list(HOW), list(HOW.values()))[0]
        if how == "cut off":
            whole = frame.encoded()
            frames, begun = [], whole[: draws.randrange(len(whole))]
        else:
            frames, begun = self._instead(frame, how, late), b""
        if frames != [frame]:
            self.counts[f"{NAMES.get(frame.kind, 'other')}: {how}"] += 1
        return frames, begun

    def _instead(self, frame: Frame, how: str, late: list[Frame]) -> list[Frame]:
        draws, frames = self._random, [frame]
        match how:
            case "bytes":
                frames = [frame._replace(payload=mutated(frame.payload, draws, self._others))]
            case "shape" if frame.kind == DATA:
                with contextlib.suppress(orjson.JSONDecodeError):  # protobuf, or a part
                    frames = [frame._replace(payload=misshapen(frame.payload, draws))]
            case "head":
                other = draws.randrange(256)
                heads = (
                    frame._replace(kind=other),
                    frame._replace(flags=other),
                    frame._replace(stream=other),
                )
                frames = [draws.choice(heads)]
            case "code" if frame.kind == HEADERS:
                frames = [frame._replace(payload=draws.choice(STATUSES) + frame.payload[1:])]
            case "double":
                frames = [frame, frame]
            case "lose":
                frames = []
            case "put off":
                late.append(frame)
                frames = []
            case "insert":
                frames = [self._of_nobody(frame.stream), frame]
        return frames

    def _of_nobody(self, stream: int) -> Frame:
        draws = self._random
        kind = draws.choice((RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, DATA, 77))
        size = draws.choice((0, 4, 6, 8, 8, 12))
        return Frame(kind, 0, draws.choice((0, stream, stream + 2)), draws.randbytes(size))


class AnswerProxy:
    """Listens for one fleet."""

    def __init__(
        self,
        server: int,
        inner: ssl.SSLContext,
        outer: Mapping[str, ssl.SSLContext],
        mangler: Mangler,
    ) -> None:
        """`inner` is for the fleet, `outer` by protocol for the server."""
        self._server = server
        self._inner = inner
        self._outer = outer
        self._mangler = mangler
        self._listener: asyncio.Server | None = None

    async def listen(self) -> int:
        self._listener = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._inner, backlog=1024
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol() or HTTP1
            answers, requests = await asyncio.open_connection(
                "127.0.0.1", self._server, ssl=self._outer[protocol], server_hostname="127.0.0.1"
            )
            # What fleet asks for itself is HTTP/1.1, by a library.
            way_back = self._mangle if protocol == HTTP2 else copy
            await until_one_ends(
                copy(reader, requests), way_back(answers, writer), to_server=requests
            )
        writer.close()

    async def _mangle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        late: list[Frame] = []
        while True:
            head = await reader.readexactly(HEADER_BYTES)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            frame = Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
            frames, begun = self._mangler.mangle(frame, late)
            writer.write(b"".join(each.encoded() for each in frames) + begun)
            await writer.drain()
            if begun:
                return
