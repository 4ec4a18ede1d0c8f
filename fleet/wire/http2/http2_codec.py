"""HTTP/2 as its client speaks it: bytes in, answers out; no socket and no clock.

One `Http2Codec` is one connection's state. `open_stream` has `Outbound` write a request's frames;
`receive` takes whatever bytes came, cut anywhere, and returns the answers. A frame that is not yet
whole waits in `_rest`, which is empty between frames: an idle connection holds no buffer.

    QUEUED (no number) --open_stream--> OPEN --END_STREAM, RST_STREAM, cancel--> done

What is rare is noted in `news`, which is None nearly always, so that the hot path tests one field.
A stream that the peer says it never processed (REFUSED_STREAM, above GOAWAY's last stream) is
among them and may be sent again by the owner.

Windows: a stream may receive 2^31-1 bytes and is given more at half; the connection gets 2^30 more
at the start and again whenever half of it is used. So the peer never waits for us.

Missing on purpose: push (refused), priorities (ignored), our own header table (size 0).
Source: RFC 9113; golang.org/x/net/http2/transport.go for what a Go client sends and retries.
"""

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.errors import LocalProtocolError, RemoteProtocolError
from fleet.wire.http2 import hpack
from fleet.wire.http2.messages import Failure, Request, Response, StreamOpened

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20
STREAMS_DEFAULT = 100  # until the peer's SETTINGS say otherwise, as Go's client assumes
STREAM_ID_MAX = 2**31 - 1
WINDOW_DEFAULT = 65535
WINDOW_MAX = 2**31 - 1
CONNECTION_WINDOW_GAIN = 2**30
CONNECTION_HALF, STREAM_HALF = CONNECTION_WINDOW_GAIN // 2, WINDOW_MAX // 2  # then it is widened
FRAME_BYTES_DEFAULT = 16384  # also what we accept: we announce no other
HEADER_BLOCK_BYTES_MAX = 65536
BODY_BYTES_MAX = 2**28
"""Of one answer. The largest that fleet asks for is a LIST: one at version 0 comes whole out of the
API server's cache, whatever its limit; 5,000 Nodes of 10 to 20 KB are 50 to 100 MB.
Go's clients take any size (client-go/rest/request.go, transformResponse)."""
OVERSIZED = f"an answer above {BODY_BYTES_MAX >> 20} MiB"
OUT_BYTES_MAX = 2**20  # of replies to a peer that asks and does not read

HEAD = struct.Struct(">BHBBL")
SETTING = struct.Struct(">HL")
GAIN = struct.Struct(">L")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


OPENING = (
    PREFACE
    + frame(
        SETTINGS,
        0,
        0,
        SETTING.pack(1, 0) + SETTING.pack(2, 0) + SETTING.pack(4, WINDOW_MAX),
    )
    + frame(WINDOW_UPDATE, 0, 0, GAIN.pack(CONNECTION_WINDOW_GAIN))
)


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends. Source: RFC 9113, 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def error_name(code: int) -> str:
    """Name an error code, also an unknown one."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def unpad(payload: bytes) -> bytes:
    """Return what a padded frame carries."""
    if len(payload) == 0 or payload[0] >= len(payload):
        raise RemoteProtocolError("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def check_size(payload: bytes, size: int) -> None:
    """Refuse a frame whose size is not the only one allowed."""
    if len(payload) != size:
        raise RemoteProtocolError("frame of wrong size", ErrorCode.FRAME_SIZE_ERROR)


Message = tuple[object, object]  # the token of a request, and what came for it
Inbox = list[Message]
SENT_AGAIN_MAX = 7
"""How often a request is sent again that no server has seen. Source: x/net/http2, RoundTripOpt."""


@dataclass(slots=True, eq=False)
class Stream:
    """One request from `send` to its answer."""

    token: object
    request: Request | None  # until the headers came; then never needed again
    watch: bool
    fd: int = -1  # of the connection that carries it, once one has
    is_held: bool = False  # it waits because its pool may have no more connections
    sid: int = 0  # while it is open there; our numbers are odd
    code: int = 0
    retry_after_s: int = -1
    body: bytes | bytearray = b""
    received: int = 0  # bytes of the stream's window that the peer has used
    sent_ns: int = 0
    deadline_ns: int = 0  # of the request; of an open watch, when the server is to end it
    sent_again: int = 0  # how often
    done: bool = False

    @property
    def is_answered(self) -> bool:
        """Tell whether the head of an answer came whose body is taken whole.

        Of such a one client-go does not send the request again: it reads bodies after its tries.
        """
        return self.code != 0 and not (self.watch and self.code == 200)

    @property
    def may_go_again(self) -> bool:
        """Tell whether it may be sent again, if no server has seen it."""
        return self.request is not None and self.sent_again < SENT_AGAIN_MAX

    def fail(self, failure: Failure, detail: str, now_ns: int) -> Message:
        """End the stream; return the answer that there is none."""
        assert not self.done, self.token
        self.done = True
        self.sid = 0
        self.body = b""
        return self.token, Response(0, b"", self.sent_ns, now_ns, -1, failure, detail)


class Upload:
    """What the windows have kept of a request's body."""

    __slots__ = ("body", "window")

    def __init__(self, body: bytes, window: int) -> None:
        self.body = memoryview(body)
        self.window = window


def watch_s(path: bytes) -> int:
    """Return the timeoutSeconds that a watch asked for, 0 if it did not."""
    at = path.find(b"timeoutSeconds=")
    if at < 0:
        return 0
    digits = path[at + 15 : at + 25].split(b"&", 1)[0]
    return int(digits) if digits.isdigit() else 0


@dataclass(slots=True, eq=False)
class Outbound:
    """What one connection has said, and what its peer lets it say."""

    _plan: hpack.HeaderPlan
    _user: bytes
    out: bytearray = field(default_factory=lambda: bytearray(OPENING))
    fresh: list[Stream] | tuple[()] = ()  # whose bytes are in `out`
    frame_bytes_max: int = FRAME_BYTES_DEFAULT
    uploads: dict[int, Upload] | None = None  # bodies that wait for a window
    _tail: bytes = b""  # the repeated fields by their indices; empty until the peer has them
    _table_bytes: int = hpack.TABLE_BYTES_DEFAULT
    _table_used: bool = False
    _send_window: int = WINDOW_DEFAULT
    _stream_window: int = WINDOW_DEFAULT

    def write_request(self, stream: Stream, request: Request) -> None:
        """Append the frames of a request to `out`."""
        sid = stream.sid
        if self.fresh:
            self.fresh.append(stream)
        else:
            self.fresh = [stream]
        method, path, body, content_type, user, _, _ = request
        lead = b""
        tail = self._tail
        if not tail:
            lead, tail = self._fill_table()
        if user:
            tail += self._plan.literal_user(user)
        if body:
            tail += hpack.content_fields(content_type, len(body))
        block = b"".join((lead, hpack.METHODS[method], hpack.path_lead(len(path)), path, tail))
        size, body_size = len(block), len(body)
        if size > FRAME_BYTES_DEFAULT:
            self._write_long_block(sid, block, END_HEADERS if body else END_HEADERS | END_STREAM)
        elif body_size == 0:
            self.out += HEAD.pack(0, size, HEADERS, END_HEADERS | END_STREAM, sid) + block
            return
        elif (
            body_size <= FRAME_BYTES_DEFAULT
            and body_size <= self._send_window
            and body_size <= self._stream_window
        ):
            self._send_window -= body_size
            self.out += b"".join(
                (
                    HEAD.pack(0, size, HEADERS, END_HEADERS, sid),
                    block,
                    HEAD.pack(0, body_size, DATA, END_STREAM, sid),
                    body,
                )
            )
            return
        else:
            self.out += HEAD.pack(0, size, HEADERS, END_HEADERS, sid) + block
        if body:
            if self.uploads is None:
                self.uploads = {}
            self.uploads[sid] = Upload(body, self._stream_window)
            self._upload()

    def _fill_table(self) -> tuple[bytes, bytes]:
        """Return what the block begins with, and the repeated fields for the peer to index."""
        lead = hpack.clear_table(self._table_bytes) if self._table_used else b""
        self._table_used = True
        first, self._tail = self._plan.encode(self._user, self._table_bytes)
        return lead, first

    def use_plan(self, plan: hpack.HeaderPlan) -> None:
        """Let later requests carry other repeated headers: a rotated token."""
        self._plan = plan
        self._tail = b""

    def _write_long_block(self, sid: int, block: bytes, flags: int) -> None:
        kind, first_flags = HEADERS, flags & END_STREAM
        for at in range(0, len(block), FRAME_BYTES_DEFAULT):
            last = at + FRAME_BYTES_DEFAULT >= len(block)
            piece = block[at : at + FRAME_BYTES_DEFAULT]
            self.out += frame(kind, first_flags | (END_HEADERS if last else 0), sid, piece)
            kind, first_flags = CONTINUATION, 0

    def _upload(self) -> None:
        """Send of the waiting bodies what the windows allow."""
        assert self.uploads is not None
        for sid, upload in list(self.uploads.items()):
            while len(upload.body) > 0:
                size = min(len(upload.body), upload.window, self._send_window, self.frame_bytes_max)
                if size <= 0:
                    break
                upload.window -= size
                self._send_window -= size
                last = size == len(upload.body)
                self.out += frame(DATA, END_STREAM if last else 0, sid, bytes(upload.body[:size]))
                upload.body = upload.body[size:]
            if len(upload.body) == 0:
                del self.uploads[sid]
        if not self.uploads:
            self.uploads = None

    def on_written(self, now_ns: int) -> None:
        """Stamp the requests whose last byte has just left: `out` was written whole."""
        assert not self.out, len(self.out)
        uploads = self.uploads
        if uploads is None:
            for stream in self.fresh:
                stream.sent_ns = now_ns
            self.fresh = ()  # an idle connection keeps no empty list: 56 bytes
            return
        for stream in self.fresh:
            if stream.sid not in uploads:
                stream.sent_ns = now_ns
        self.fresh = [stream for stream in self.fresh if stream.sid in uploads]

    def drop_upload(self, sid: int) -> bool:
        """Forget the body of a stream that has ended; return whether some of it still waited."""
        assert self.uploads is not None, sid
        was_waiting = self.uploads.pop(sid, None) is not None
        self.uploads = self.uploads or None
        return was_waiting

    def cancel(self, sid: int) -> None:
        """Append a RST_STREAM: we want no more of a stream."""
        self.write(RST_STREAM, 0, sid, ErrorCode.CANCEL.to_bytes(4, "big"))

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.write(PING, 0, 0, b"fleetfle")

    def say_goodbye(self, code: int) -> None:
        """Append a GOAWAY: we are about to close."""
        self.out += frame(GOAWAY, 0, 0, bytes(4) + code.to_bytes(4, "big"))

    def write(self, kind: int, flags: int, sid: int, payload: bytes) -> None:
        """Append a control frame. Raises RemoteProtocolError if the peer reads no answers."""
        # Only what the peer asks for is without bound: ACKs of its pings and settings.
        if len(self.out) > OUT_BYTES_MAX and flags & ACK:
            raise RemoteProtocolError("peer asks and does not read", ErrorCode.ENHANCE_YOUR_CALM)
        self.out += frame(kind, flags, sid, payload)

    def resize_table(self, size: int) -> None:
        """Honour the peer's HEADER_TABLE_SIZE; of a larger one we need no more than 4096."""
        size = min(size, hpack.TABLE_BYTES_DEFAULT)
        if size != self._table_bytes:
            self._table_bytes = size
            self._tail = b""
            self._table_used = True  # the next block must tell the size

    def resize_windows(self, size: int) -> None:
        """Honour the peer's INITIAL_WINDOW_SIZE, which moves the windows of open streams too."""
        if size > WINDOW_MAX:
            raise RemoteProtocolError(f"INITIAL_WINDOW_SIZE {size}", ErrorCode.FLOW_CONTROL_ERROR)
        change = size - self._stream_window
        self._stream_window = size
        if self.uploads is not None:
            for upload in self.uploads.values():
                upload.window += change
            self._upload()

    def widen(self, sid: int, gain: int) -> None:
        """Send what the peer has given room for, on a stream or, with 0, on the connection."""
        if sid == 0:
            self._send_window += gain
            if self._send_window > WINDOW_MAX:
                raise RemoteProtocolError("window too large", ErrorCode.FLOW_CONTROL_ERROR)
        elif self.uploads is not None and sid in self.uploads:
            self.uploads[sid].window += gain
        if self.uploads is not None:
            self._upload()


# Where control frames belong; unknown kinds may stand anywhere.
_ON_STREAM = frozenset((RST_STREAM, CONTINUATION, PUSH_PROMISE, PRIORITY))
_ON_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))


@dataclass(slots=True, eq=False)
class News:
    """What an owner must see to; also that a limit changed or the last stream has ended."""

    breach: RemoteProtocolError | None = None  # close the connection with its code
    ended_early: int = 0  # watches that the peer ended before their time
    refused: list[Stream] | tuple[()] = ()  # not processed: to be sent again
    resets: int = 0


class Http2Codec:
    """The state of one connection: see the top of this file."""

    __slots__ = (
        "_block",
        "_next_id",
        "_received",
        "_rest",
        "_settled",
        "goaway",
        "news",
        "outbound",
        "streams",
        "streams_max",
    )

    def __init__(
        self, plan: hpack.HeaderPlan, user: bytes = b"", streams_max: int = STREAMS_DEFAULT
    ) -> None:
        self.outbound = Outbound(plan, user)
        self.streams: dict[int, Stream] = {}
        self.streams_max = streams_max
        self.news: News | None = None
        self.goaway = ""  # what the peer said with it; then nothing new is opened here
        self._next_id = 1
        self._rest = b""
        self._block: tuple[int, int, bytearray] | None = None  # an unfinished header block
        self._received = 0
        self._settled = False

    def has_room(self) -> bool:
        """Tell whether `open_stream` may be called."""
        return (
            len(self.streams) < self.streams_max
            and not self.goaway
            and self._next_id <= STREAM_ID_MAX
        )

    def is_spent(self) -> bool:
        """Tell whether no further stream will ever be opened here."""
        return bool(self.goaway) or self._next_id > STREAM_ID_MAX

    def open_stream(self, stream: Stream) -> None:
        """Give a request the next number, and write it."""
        request = stream.request
        if request is None or not self.has_room():
            raise LocalProtocolError(f"no room for a stream: {stream.token!r}")
        stream.sid = sid = self._next_id
        self._next_id = sid + 2
        self.streams[sid] = stream
        self.outbound.write_request(stream, request)

    def cancel(self, stream: Stream) -> None:
        """Reset a stream; the caller answers for it."""
        assert self.streams.get(stream.sid) is stream, stream.token
        self.outbound.cancel(stream.sid)
        self._forget(stream)

    def take_news(self) -> News:
        """Return what is to be seen to, once."""
        news, self.news = self._noted(), None
        return news

    def _noted(self) -> News:
        """Return the news, for one more to be added."""
        if self.news is None:
            self.news = News()
        return self.news

    def receive(self, data: bytes, now_ns: int) -> Inbox:
        """Take bytes, cut anywhere; return what they complete.

        A breach of the protocol is news, not an exception: what came whole before it stays good.
        """
        found: Inbox = []
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            used = self._read_frames(data, now_ns, found)
            if used < len(data):
                self._rest = data[used:]
        except RemoteProtocolError as error:
            # Without its traceback, which would hold this connection in a cycle.
            self._noted().breach = error.with_traceback(None)
        return found

    def _read_frames(self, data: bytes, now_ns: int, found: Inbox) -> int:
        """Handle the whole frames in `data`; return how many bytes they were."""
        at, end, unpack_from = 0, len(data), HEAD.unpack_from
        while end - at >= 9:
            high, size, kind, flags, sid = unpack_from(data, at)
            if high or size > FRAME_BYTES_DEFAULT:
                size |= high << 16
                raise RemoteProtocolError(f"frame of {size} bytes", ErrorCode.FRAME_SIZE_ERROR)
            start = at + 9
            stop = start + size
            if stop > end:
                break
            at = stop
            sid &= STREAM_ID_MAX
            if not self._settled and kind != SETTINGS:
                raise RemoteProtocolError("peer does not speak HTTP/2: no SETTINGS first")
            if self._block is not None and kind != CONTINUATION:
                raise RemoteProtocolError(f"frame {kind} inside a header block")
            if kind == DATA:
                self._on_data(sid, flags, data[start:stop], now_ns, found)
            elif kind == HEADERS:
                self._on_headers(sid, flags, data[start:stop], now_ns, found)
            elif kind == WINDOW_UPDATE:  # one for each request that has a body
                self._on_window_update(sid, data[start:stop])
            else:
                self._on_control(kind, sid, flags, data[start:stop], now_ns, found)
        return at

    def _on_data(self, sid: int, flags: int, payload: bytes, now_ns: int, found: Inbox) -> None:
        size = len(payload)
        self._received = received = self._received + size
        if received >= CONNECTION_HALF:
            self.outbound.write(WINDOW_UPDATE, 0, 0, received.to_bytes(4, "big"))
            self._received = 0
        if flags & PADDED:
            payload = unpad(payload)
        stream = self.streams.get(sid)
        if stream is None:
            self._check_was_open(sid)
            return
        code = stream.code
        if code == 0:
            raise RemoteProtocolError(f"DATA before HEADERS on stream {sid}")
        if stream.watch:
            stream.received = received = stream.received + size
            if received >= STREAM_HALF and not flags & END_STREAM:
                self.outbound.write(WINDOW_UPDATE, 0, sid, received.to_bytes(4, "big"))
                stream.received = 0
            if code == 200:
                if payload:
                    found.append((stream.token, payload))
                if flags & END_STREAM:
                    self._finish(stream, now_ns, found)
                return
        if not stream.body:  # the only frame of most answers
            stream.body = payload
        else:
            self._keep(stream, payload, now_ns, found)
        if flags & END_STREAM and not stream.done:
            self._finish(stream, now_ns, found)

    def _keep(self, stream: Stream, payload: bytes, now_ns: int, found: Inbox) -> None:
        """Add to the body of an answer; give up one that is too large."""
        body = stream.body
        if type(body) is bytes:
            stream.body = body = bytearray(body)
        body += payload
        if len(body) > BODY_BYTES_MAX:
            self.cancel(stream)
            found.append(stream.fail(Failure.OVERSIZED, OVERSIZED, now_ns))

    def _on_headers(self, sid: int, flags: int, payload: bytes, now_ns: int, found: Inbox) -> None:
        if flags & PADDED:
            payload = unpad(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise RemoteProtocolError("short HEADERS", ErrorCode.FRAME_SIZE_ERROR)
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(sid, flags, payload, now_ns, found)
        else:
            self._check_was_open(sid)
            self._block = (sid, flags, bytearray(payload))

    def _on_continuation(
        self, sid: int, flags: int, payload: bytes, now_ns: int, found: Inbox
    ) -> None:
        if self._block is None or self._block[0] != sid:
            raise RemoteProtocolError("CONTINUATION without HEADERS")
        _, first_flags, block = self._block
        block += payload
        if len(block) > HEADER_BLOCK_BYTES_MAX:
            raise RemoteProtocolError("header block too large", ErrorCode.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(sid, first_flags, bytes(block), now_ns, found)

    def _on_block(self, sid: int, flags: int, block: bytes, now_ns: int, found: Inbox) -> None:
        stream = self.streams.get(sid)
        if stream is None:
            self._check_was_open(sid)
            return
        if stream.code:  # trailers, of which we need nothing
            if not flags & END_STREAM:
                raise RemoteProtocolError(f"trailers that do not end stream {sid}")
            self._finish(stream, now_ns, found)
            return
        if block and block[0] == hpack.OK:  # of nearly all answers
            code, retry_after_s = 200, -1
        else:
            code, retry_after_s = hpack.read_block(block)
        if code < 200:
            if flags & END_STREAM:
                raise RemoteProtocolError(f"stream {sid} ends with {code}")
            return
        stream.code = code
        stream.retry_after_s = retry_after_s
        stream.sent_ns = stream.sent_ns or now_ns  # answered before the body was sent whole
        if stream.watch and code == 200:
            assert stream.request is not None
            stream.deadline_ns = now_ns + watch_s(stream.request.path) * 1_000_000_000
            found.append((stream.token, StreamOpened(stream.sent_ns, now_ns)))
        stream.request = None
        if flags & END_STREAM:
            self._finish(stream, now_ns, found)

    def _finish(self, stream: Stream, now_ns: int, found: Inbox) -> None:
        """Deliver the answer of a stream that the peer has ended."""
        if stream.watch and stream.code == 200 and now_ns < stream.deadline_ns - 1_000_000_000:
            self._noted().ended_early += 1
        sid = stream.sid
        if self._forget(stream):
            self.outbound.cancel(sid)  # the peer does not want the rest of the body
        stream.done = True
        body = stream.body
        stream.body = b""
        found.append(
            (
                stream.token,
                Response(stream.code, bytes(body), stream.sent_ns, now_ns, stream.retry_after_s),
            )
        )

    def _forget(self, stream: Stream) -> bool:
        """Take a stream off the table; return whether a part of its body was still to be sent."""
        sid, stream.sid = stream.sid, 0
        del self.streams[sid]
        if self.goaway and not self.streams:
            self._noted()  # drained
        # Bodies that wait for a window are rare: the test is cheaper than the call.
        return self.outbound.uploads is not None and self.outbound.drop_upload(sid)

    def _check_was_open(self, sid: int) -> None:
        """Accept frames of a stream that we gave up; there is no other without a record."""
        if not sid & 1 or sid >= self._next_id:
            raise RemoteProtocolError(f"frame on idle stream {sid}")

    # ---- control frames ----

    def _on_control(
        self, kind: int, sid: int, flags: int, payload: bytes, now_ns: int, found: Inbox
    ) -> None:
        if kind in (_ON_CONNECTION if sid else _ON_STREAM):
            raise RemoteProtocolError(f"frame {kind} on stream {sid}")
        if kind == CONTINUATION:
            self._on_continuation(sid, flags, payload, now_ns, found)
        elif kind == PING:
            check_size(payload, 8)
            if not flags & ACK:
                self.outbound.write(PING, ACK, 0, payload)
        elif kind == RST_STREAM:
            self._on_reset(sid, payload, now_ns, found)
        elif kind == SETTINGS:
            self._on_settings(flags, payload)
        elif kind == GOAWAY:
            self._on_goaway(payload, now_ns, found)
        elif kind == PRIORITY:
            check_size(payload, 5)
        elif kind == PUSH_PROMISE:
            raise RemoteProtocolError("PUSH_PROMISE, which we refused")

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            check_size(payload, 0)
            return
        if len(payload) % 6:
            raise RemoteProtocolError("SETTINGS of odd size", ErrorCode.FRAME_SIZE_ERROR)
        self._settled = True
        # First: the peer expects what larger windows let go only after it.
        self.outbound.write(SETTINGS, ACK, 0, b"")
        # Windows last: what larger ones let go is written in frames of the new size.
        for name, value in sorted(SETTING.iter_unpack(payload), key=lambda each: each[0] == 4):
            if name == 1:
                self.outbound.resize_table(value)
            elif name == 3:
                self.streams_max = value
                self._noted()
            elif name == 4:
                self.outbound.resize_windows(value)
            elif name == 5:
                if not FRAME_BYTES_DEFAULT <= value < 1 << 24:
                    raise RemoteProtocolError(f"MAX_FRAME_SIZE {value}")
                self.outbound.frame_bytes_max = value

    def _on_window_update(self, sid: int, payload: bytes) -> None:
        check_size(payload, 4)
        [gain] = GAIN.unpack(payload)
        if gain & WINDOW_MAX == 0:
            raise RemoteProtocolError("WINDOW_UPDATE of 0")
        self.outbound.widen(sid, gain & WINDOW_MAX)

    def _on_reset(self, sid: int, payload: bytes, now_ns: int, found: Inbox) -> None:
        check_size(payload, 4)
        stream = self.streams.get(sid)
        if stream is None:
            self._check_was_open(sid)
            return
        code = int.from_bytes(payload, "big")
        detail = f"server reset the stream: {error_name(code)}"
        self._forget(stream)
        self._noted().resets += 1
        if code == ErrorCode.REFUSED_STREAM:
            self._refuse((stream,), Failure.RESET, detail, now_ns, found)
        else:
            found.append(stream.fail(Failure.RESET, detail, now_ns))

    def _on_goaway(self, payload: bytes, now_ns: int, found: Inbox) -> None:
        if len(payload) < 8:
            raise RemoteProtocolError("short GOAWAY", ErrorCode.FRAME_SIZE_ERROR)
        last = int.from_bytes(payload[:4], "big") & STREAM_ID_MAX
        code = error_name(int.from_bytes(payload[4:8], "big"))
        debug = payload[8:200].decode("utf-8", "replace")
        self.goaway = f"server sent GOAWAY: {code} {debug}".rstrip()
        self._noted()
        above = [stream for sid, stream in self.streams.items() if sid > last]
        for stream in above:
            self._forget(stream)
        self._refuse(above, Failure.LOST, self.goaway, now_ns, found)

    def _refuse(
        self, streams: Iterable[Stream], failure: Failure, detail: str, now_ns: int, found: Inbox
    ) -> None:
        """Let the owner send unprocessed streams again, as often as Go's client does."""
        retry = []
        for stream in streams:
            if stream.may_go_again:
                retry.append(stream)
            else:
                found.append(stream.fail(failure, detail, now_ns))
        if retry:
            news = self._noted()
            news.refused = [*news.refused, *retry]
