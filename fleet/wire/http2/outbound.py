"""The half of an HTTP/2 connection that writes: requests, their bodies, control frames.

Bytes gather in `out`; the owner writes them with one system call and reports it by `on_written`.
"""

from fleet.errors import LocalProtocolError, RemoteProtocolError
from fleet.wire.http2 import hpack
from fleet.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    GOAWAY,
    HEAD,
    HEADERS,
    OPENING,
    OUT_BYTES_MAX,
    PING,
    RST_STREAM,
    STREAM_ID_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    frame,
)
from fleet.wire.http2.streams import Stream, Upload


class Outbound:
    """What one connection has sent and may still send."""

    __slots__ = (
        "_frame_bytes_max",
        "_next_id",
        "_plan",
        "_send_window",
        "_stream_window",
        "_table_bytes",
        "_table_used",
        "_tail",
        "_uploads",
        "attention",
        "fresh",
        "goaway_last",
        "out",
        "streams",
        "streams_max",
        "user",
    )

    def __init__(self, plan: hpack.HeaderPlan, user: bytes, streams_max: int) -> None:
        self.user = user
        self.out = bytearray(OPENING)
        self.streams: dict[int, Stream] = {}
        self.streams_max = streams_max
        self.fresh: list[Stream] = []  # whose bytes are in `out`
        self.attention = False
        self.goaway_last = -1
        self._plan = plan
        self._tail = b""  # the repeated fields by their indices; empty until the peer has them
        self._table_bytes = hpack.TABLE_BYTES_DEFAULT
        self._table_used = False
        self._next_id = 1
        self._send_window = WINDOW_DEFAULT
        self._stream_window = WINDOW_DEFAULT
        self._frame_bytes_max = FRAME_BYTES_DEFAULT
        self._uploads: dict[int, Upload] | None = None

    def has_room(self) -> bool:
        """Tell whether `open_stream` may be called."""
        return (
            len(self.streams) < self.streams_max
            and self.goaway_last < 0
            and self._next_id <= STREAM_ID_MAX
        )

    def is_spent(self) -> bool:
        """Tell whether no further stream will ever be opened here."""
        return self.goaway_last >= 0 or self._next_id > STREAM_ID_MAX

    def open_stream(self, stream: Stream) -> None:
        """Append the frames of a request to `out`."""
        request = stream.request
        if request is None or not self.has_room():
            raise LocalProtocolError(f"no room for a stream: {stream.token!r}")
        sid = self._next_id
        self._next_id = sid + 2
        stream.sid = sid
        stream.owner = self
        self.streams[sid] = stream
        self.fresh.append(stream)
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
            if self._uploads is None:
                self._uploads = {}
            self._uploads[sid] = Upload(stream, body, self._stream_window)
            self._upload()

    def _fill_table(self) -> tuple[bytes, bytes]:
        """Return what the block begins with, and the repeated fields for the peer to index."""
        lead = hpack.clear_table(self._table_bytes) if self._table_used else b""
        self._table_used = True
        first, self._tail = self._plan.encode(self.user, self._table_bytes)
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
        assert self._uploads is not None
        for sid, upload in list(self._uploads.items()):
            while len(upload.body) > 0:
                size = min(
                    len(upload.body), upload.window, self._send_window, self._frame_bytes_max
                )
                if size <= 0:
                    break
                upload.window -= size
                self._send_window -= size
                last = size == len(upload.body)
                self.out += frame(DATA, END_STREAM if last else 0, sid, bytes(upload.body[:size]))
                upload.body = upload.body[size:]
            if len(upload.body) == 0:
                del self._uploads[sid]
        if not self._uploads:
            self._uploads = None

    def on_written(self, now_ns: int) -> None:
        """Stamp the requests whose last byte has just left: `out` was written whole."""
        assert not self.out, len(self.out)
        uploads = self._uploads
        if uploads is None:
            for stream in self.fresh:
                stream.sent_ns = now_ns
            self.fresh.clear()
            return
        for stream in self.fresh:
            if stream.sid not in uploads:
                stream.sent_ns = now_ns
        self.fresh = [stream for stream in self.fresh if stream.sid in uploads]

    def cancel(self, stream: Stream) -> None:
        """Reset a stream; the caller answers for it."""
        assert stream.owner is self, stream.token
        self.reset_stream(stream.sid, ErrorCode.CANCEL)
        self._forget(stream)

    def reset_stream(self, sid: int, code: int) -> None:
        """Append a RST_STREAM."""
        self._reply(RST_STREAM, 0, sid, code.to_bytes(4, "big"))

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._reply(PING, 0, 0, b"fleetfle")

    def say_goodbye(self, code: int) -> None:
        """Append a GOAWAY: we are about to close."""
        self.out += frame(GOAWAY, 0, 0, bytes(4) + code.to_bytes(4, "big"))

    def _reply(self, kind: int, flags: int, sid: int, payload: bytes) -> None:
        if len(self.out) > OUT_BYTES_MAX and flags & ACK:
            raise RemoteProtocolError("peer asks and does not read", ErrorCode.ENHANCE_YOUR_CALM)
        self.out += frame(kind, flags, sid, payload)

    def _resize_table(self, size: int) -> None:
        """Honour the peer's HEADER_TABLE_SIZE; of a larger one we need no more than 4096."""
        size = min(size, hpack.TABLE_BYTES_DEFAULT)
        if size != self._table_bytes:
            self._table_bytes = size
            self._tail = b""
            self._table_used = True  # the next block must tell the size

    def _resize_windows(self, size: int) -> None:
        if size > WINDOW_MAX:
            raise RemoteProtocolError(f"INITIAL_WINDOW_SIZE {size}", ErrorCode.FLOW_CONTROL_ERROR)
        change = size - self._stream_window
        self._stream_window = size
        if self._uploads is not None:
            for upload in self._uploads.values():
                upload.window += change
            self._upload()

    def _forget(self, stream: Stream) -> None:
        del self.streams[stream.sid]
        stream.owner = None
        if self._uploads is not None:
            self._uploads.pop(stream.sid, None)
            self._uploads = self._uploads or None
        if self.goaway_last >= 0 and not self.streams:
            self.attention = True  # drained

    def _widen(self, sid: int, gain: int) -> None:
        if sid == 0:
            self._send_window += gain
            if self._send_window > WINDOW_MAX:
                raise RemoteProtocolError("window too large", ErrorCode.FLOW_CONTROL_ERROR)
        elif self._uploads is not None and sid in self._uploads:
            self._uploads[sid].window += gain
        if self._uploads is not None:
            self._upload()
