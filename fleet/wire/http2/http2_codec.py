"""HTTP/2 as its client speaks it: bytes in, answers out; no socket and no clock.

One `Http2Codec` is one connection's state. `open_stream` has `outbound` write a request's frames;
`receive` takes whatever bytes came, cut anywhere, and returns the answers. A frame that is not yet
whole waits in `_rest`, which is None between frames: an idle connection holds no buffer.

    QUEUED (no number) --open_stream--> OPEN --END_STREAM, RST_STREAM, cancel--> done

What is rare is told by `news`, which is None nearly always, so that the hot path tests one field.
A stream that the peer says it never processed (REFUSED_STREAM, above GOAWAY's last stream) is
among them and may be sent again by the owner.

Windows: a stream may receive 2^31-1 bytes and is given more at half; the connection gets 2^30 more
at the start and again whenever half of it is used. So the peer never waits for us.

Missing on purpose: push (refused), priorities (ignored), our own header table (size 0).
Source: RFC 9113; golang.org/x/net/http2/transport.go for what a Go client sends and retries.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.errors import LocalProtocolError, RemoteProtocolError
from fleet.wire.http2 import hpack
from fleet.wire.http2.frames import (
    ACK,
    BODY_BYTES_MAX,
    CONNECTION_WINDOW_GAIN,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    GOAWAY,
    HEAD,
    HEADER_BLOCK_BYTES_MAX,
    HEADERS,
    OVERSIZED,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_ID_MAX,
    STREAMS_DEFAULT,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ErrorCode,
    check_size,
    error_name,
    unpad,
)
from fleet.wire.http2.messages import Failure, Response, StreamOpened
from fleet.wire.http2.outbound import Outbound
from fleet.wire.http2.streams import Inbox, Stream, watch_s

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
        "midway",
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
        self.midway = False  # of an answer the headers came, and the body is on its way
        self._next_id = 1
        self._rest: bytearray | None = None
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

    def receive(self, data: memoryview, now_ns: int) -> Inbox:
        """Take bytes, cut anywhere; return what they complete.

        A breach of the protocol is news, not an exception: what came whole before it stays good.
        """
        found: Inbox = []
        rest = self._rest
        try:
            if rest is None:
                used = self._read_frames(data, now_ns, found)
                if used < len(data):
                    self._rest = bytearray(data[used:])
            else:
                rest += data
                used = self._read_frames(memoryview(rest), now_ns, found)
                if used:
                    self._rest = rest[used:] or None
        except RemoteProtocolError as error:
            # Without its traceback, which would hold this connection in a cycle.
            self._noted().breach = error.with_traceback(None)
        return found

    def _read_frames(self, data: memoryview, now_ns: int, found: Inbox) -> int:
        """Handle the whole frames in `data`; return how many bytes they were."""
        at, end = 0, len(data)
        while end - at >= 9:
            high, low, kind, flags, sid = HEAD.unpack_from(data, at)
            start = at + 9
            stop = start + (high << 16 | low)
            if stop - start > FRAME_BYTES_DEFAULT:
                raise RemoteProtocolError(
                    f"frame of {stop - start} bytes", ErrorCode.FRAME_SIZE_ERROR
                )
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
                self._on_control(kind, sid, flags, bytes(data[start:stop]), now_ns, found)
        return at

    def _on_data(
        self, sid: int, flags: int, payload: memoryview, now_ns: int, found: Inbox
    ) -> None:
        size = len(payload)
        self._received += size
        if self._received >= CONNECTION_WINDOW_GAIN // 2:
            self.outbound.write(WINDOW_UPDATE, 0, 0, self._received.to_bytes(4, "big"))
            self._received = 0
        if flags & PADDED:
            payload = unpad(payload)
        stream = self.streams.get(sid)
        if stream is None:
            self._check_was_open(sid)
            return
        if stream.code == 0:
            raise RemoteProtocolError(f"DATA before HEADERS on stream {sid}")
        if stream.watch:
            stream.received += size
            if stream.received >= WINDOW_MAX // 2 and not flags & END_STREAM:
                self.outbound.write(WINDOW_UPDATE, 0, sid, stream.received.to_bytes(4, "big"))
                stream.received = 0
        if stream.watch and stream.code == 200:
            if len(payload) > 0:
                found.append((stream.token, bytes(payload)))
        elif not stream.body:  # the only frame of most answers
            stream.body = bytes(payload)
        else:
            self._keep(stream, payload, now_ns, found)
        if flags & END_STREAM and not stream.done:
            self._finish(stream, now_ns, found)

    def _keep(self, stream: Stream, payload: memoryview, now_ns: int, found: Inbox) -> None:
        """Add to the body of an answer; give up one that is too large."""
        body = stream.body
        if type(body) is bytes:
            stream.body = body = bytearray(body)
        body += payload
        if len(body) > BODY_BYTES_MAX:
            self.cancel(stream)
            found.append(stream.fail(Failure.OVERSIZED, OVERSIZED, now_ns))

    def _on_headers(
        self, sid: int, flags: int, payload: memoryview, now_ns: int, found: Inbox
    ) -> None:
        if flags & PADDED:
            payload = unpad(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise RemoteProtocolError("short HEADERS", ErrorCode.FRAME_SIZE_ERROR)
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(sid, flags, bytes(payload), now_ns, found)
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
        else:
            self.midway = not stream.watch

    def _finish(self, stream: Stream, now_ns: int, found: Inbox) -> None:
        """Deliver the answer of a stream that the peer has ended."""
        if stream.watch and stream.code == 200 and now_ns < stream.deadline_ns - 1_000_000_000:
            self._noted().ended_early += 1
        sid = stream.sid
        if self._forget(stream):
            self.outbound.cancel(sid)  # the peer does not want the rest of the body
        self.midway = False
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
        for name, value in sorted(SETTING.iter_unpack(payload), key=_is_window):
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

    def _on_window_update(self, sid: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise RemoteProtocolError("frame of wrong size", ErrorCode.FRAME_SIZE_ERROR)
        gain = int.from_bytes(payload, "big") & WINDOW_MAX
        if gain == 0:
            raise RemoteProtocolError("WINDOW_UPDATE of 0")
        self.outbound.widen(sid, gain)

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


def _is_window(setting: tuple[int, int]) -> bool:
    return setting[0] == 4
