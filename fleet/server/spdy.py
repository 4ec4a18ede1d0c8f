"""SPDY/3.1, the server's side of one connection: bytes in become events, calls become bytes.

    SYN_STREAM -> Opened -> accept | reset      DATA -> Data, in the pieces that came
    either side ends its half with FIN; RST_STREAM ends both

What kubectl and the API server speak for port-forward, and older clients for exec and attach. There
is no flow control in it: their library neither sends WINDOW_UPDATE nor heeds it, so a slow side is
held by TCP alone, and the reader here decides when to go on.
Source: chromium.org, SPDY Protocol Draft 3.1; github.com/moby/spdystream, connection.go.
"""

import struct
import zlib
from typing import NamedTuple

from fleet.errors import RemoteProtocolError

VERSION = 3
SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS = 1, 2, 3, 4
PING, GOAWAY, HEADERS, WINDOW_UPDATE = 6, 7, 8, 9
FIN = 1
CONTROL = 0x80000000
STREAM_MASK = 0x7FFFFFFF
PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 1, 3, 5
CONTROL_BYTES_MAX = 64 << 10
HEADERS_BYTES_MAX = 256 << 10
"""Of one block, unpacked: a bomb of zeroes is refused before it is large."""
STREAMS_MAX = 1_000
DATA_BYTES_MAX = 32 << 10  # of one frame that is sent; kubectl copies in pieces of 32 KiB, too

_HEAD = struct.Struct(">II")
_SYN_STREAM = struct.Struct(">IIBB")
_NUMBER = struct.Struct(">I")
_TWO = struct.Struct(">II")
_WORDS = (
    "options;head;post;put;delete;trace;accept;accept-charset;accept-encoding;"
    "accept-language;accept-ranges;age;allow;authorization;cache-control;connection;"
    "content-base;content-encoding;content-language;content-length;content-location;"
    "content-md5;content-range;content-type;date;etag;expect;expires;from;host;if-match;"
    "if-modified-since;if-none-match;if-range;if-unmodified-since;last-modified;location;"
    "max-forwards;pragma;proxy-authenticate;proxy-authorization;range;referer;retry-after;"
    "server;te;trailer;transfer-encoding;upgrade;user-agent;vary;via;warning;"
    "www-authenticate;method;get;status;200 OK;version;HTTP/1.1;url;public;set-cookie;"
    "keep-alive;origin"
)
_TAIL = (
    "10010120120220520630030230330430530630740240540640740840941041141241341441541641750250"
    "4505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Reques"
    "t401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemente"
    "d503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon,"
    " Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,appl"
    "ication/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip"
    ",deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = (
    b"".join(_NUMBER.pack(len(word)) + word for word in _WORDS.encode().split(b";"))
    + _TAIL.encode()
)
"""What both sides begin to compress headers with. Source: the draft, 2.6.10.1."""


class Opened(NamedTuple):
    """The client began a stream; answer it with `accept` or `reset`."""

    stream: int
    headers: dict[str, str]  # names in lower case


class Data(NamedTuple):
    """Bytes of a stream."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The client sends no more on a stream."""

    stream: int


class Reset(NamedTuple):
    """The client gave a stream up."""

    stream: int


class GoneAway(NamedTuple):
    """The client begins no more streams."""


Event = Opened | Data | Ended | Reset | GoneAway


class SpdyServer:
    """One connection. What is to be sent gathers until `take`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._out = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        # A small window: headers here are a few words, and the other side must only know ours.
        self._deflate = zlib.compressobj(9, zlib.DEFLATED, 11, 1, zdict=DICTIONARY)
        self._streams: set[int] = set()  # that neither side has given up, nor both have ended
        self._ended: set[int] = set()  # on which we send no more
        self._heard: set[int] = set()  # on which the client sends no more
        self._last = 0
        self._rest = 0  # bytes of a DATA frame that are to come
        self._rest_stream = 0
        self._rest_fin = False

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the client. Raises RemoteProtocolError, after which nothing helps."""
        self._buffer += data
        events: list[Event] = []
        try:
            while self._next(events):
                pass
        except (struct.error, zlib.error, UnicodeDecodeError, IndexError) as error:
            raise RemoteProtocolError(f"SPDY: {error}") from error
        return events

    def accept(self, stream: int) -> None:
        """Answer SYN_STREAM: the stream is open."""
        block = self._deflate.compress(_NUMBER.pack(0))
        block += self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._control(SYN_REPLY, _NUMBER.pack(stream) + block)

    def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        """Send bytes, and end our half of the stream with the last ones."""
        if stream not in self._streams or stream in self._ended:
            return
        for at in range(0, len(data) or 1, DATA_BYTES_MAX):
            piece = data[at : at + DATA_BYTES_MAX]
            if not piece and not is_last:
                return
            ends = is_last and at + DATA_BYTES_MAX >= len(data)
            self._out += _HEAD.pack(stream, (FIN if ends else 0) << 24 | len(piece))
            self._out += piece
        if is_last:
            self._ended.add(stream)
            self._forget_ended(stream)

    def reset(self, stream: int, status: int = CANCEL) -> None:
        """Give a stream up."""
        if stream in self._streams:
            self._forget(stream)
            self._control(RST_STREAM, _TWO.pack(stream, status))

    def go_away(self) -> None:
        """Say that nothing more is served."""
        self._control(GOAWAY, _TWO.pack(self._last, 0))

    def take(self) -> bytes:
        """Return what is to be sent."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def _control(self, kind: int, content: bytes) -> None:
        self._out += _HEAD.pack(CONTROL | VERSION << 16 | kind, len(content)) + content

    def _next(self, events: list[Event]) -> bool:
        """Take one frame, or a piece of one; return whether there may be another."""
        if self._rest or self._rest_stream:
            return self._take_data(events)
        if len(self._buffer) < _HEAD.size:
            return False
        first, second = _HEAD.unpack_from(self._buffer)
        size, flags = second & 0xFFFFFF, second >> 24
        if not first & CONTROL:
            del self._buffer[: _HEAD.size]
            self._rest, self._rest_stream, self._rest_fin = size, first, bool(flags & FIN)
            if not first:
                raise RemoteProtocolError("SPDY: data of stream 0")
            return True
        if size > CONTROL_BYTES_MAX:
            raise RemoteProtocolError(f"SPDY: a control frame of {size} bytes")
        if first >> 16 & 0x7FFF != VERSION:
            raise RemoteProtocolError(f"SPDY: version {first >> 16 & 0x7FFF}")
        if len(self._buffer) < _HEAD.size + size:
            return False
        content = bytes(self._buffer[_HEAD.size : _HEAD.size + size])
        del self._buffer[: _HEAD.size + size]
        self._take_control(first & 0xFFFF, flags, content, events)
        return True

    def _take_data(self, events: list[Event]) -> bool:
        """Hand on what has come of a DATA frame; large ones are not gathered."""
        stream = self._rest_stream
        piece = bytes(self._buffer[: self._rest])
        del self._buffer[: self._rest]
        self._rest -= len(piece)
        is_open = stream in self._streams  # what comes after a reset crossed it on its way
        if piece and is_open:
            events.append(Data(stream, piece))
        if self._rest:
            return False
        self._rest_stream = 0
        if self._rest_fin and is_open:
            self._hear_end(stream, events)
        return True

    def _hear_end(self, stream: int, events: list[Event]) -> None:
        events.append(Ended(stream))
        self._heard.add(stream)
        self._forget_ended(stream)

    def _forget_ended(self, stream: int) -> None:
        """Count a stream no more once both sides have ended it."""
        if stream in self._ended and stream in self._heard:
            self._forget(stream)

    def _forget(self, stream: int) -> None:
        for each in (self._streams, self._ended, self._heard):
            each.discard(stream)

    def _take_control(self, kind: int, flags: int, content: bytes, events: list[Event]) -> None:
        if kind == SYN_STREAM:
            self._take_stream(flags, content, events)
        elif kind == RST_STREAM:
            stream, _status = _TWO.unpack(content)
            if stream in self._streams:
                self._forget(stream)
                events.append(Reset(stream))
        elif kind == PING:
            if len(content) == _NUMBER.size and content[-1] & 1:  # its own, not ours back
                self._control(PING, content)
        elif kind == GOAWAY:
            events.append(GoneAway())
        elif kind in {SYN_REPLY, HEADERS}:
            self._headers(content[_NUMBER.size :])  # the compression goes on over all of them
        # SETTINGS and WINDOW_UPDATE say nothing here; what is unknown is to be ignored.

    def _take_stream(self, flags: int, content: bytes, events: list[Event]) -> None:
        stream, _associated, _priority, _slot = _SYN_STREAM.unpack_from(content)
        headers = self._headers(content[_SYN_STREAM.size :])
        if stream % 2 == 0 or stream <= self._last or stream > STREAM_MASK:
            raise RemoteProtocolError(f"SPDY: stream {stream} after {self._last}")
        self._last = stream
        if len(self._streams) >= STREAMS_MAX:
            self._control(RST_STREAM, _TWO.pack(stream, REFUSED_STREAM))
            return
        self._streams.add(stream)
        events.append(Opened(stream, headers))
        if flags & FIN:
            self._hear_end(stream, events)

    def _headers(self, block: bytes) -> dict[str, str]:
        plain = self._inflate.decompress(block, HEADERS_BYTES_MAX)
        if self._inflate.unconsumed_tail:
            raise RemoteProtocolError("SPDY: headers that are too large")
        (count,) = _NUMBER.unpack_from(plain)
        at = _NUMBER.size
        headers = {}
        for _ in range(count):
            name, at = _text(plain, at)
            value, at = _text(plain, at)
            headers[name.lower()] = value
        return headers


def _text(plain: bytes, at: int) -> tuple[str, int]:
    (size,) = _NUMBER.unpack_from(plain, at)
    at += _NUMBER.size
    if at + size > len(plain):
        raise RemoteProtocolError("SPDY: headers that end early")
    return plain[at : at + size].decode(), at + size
