"""What an HTTP/2 connection writes: requests, their bodies as the windows let them, control frames.

Bytes gather in `out`; who holds the socket writes them with one system call and then says so by
`on_written`. Which streams are open is the codec's business: here a stream is its number.
"""

from fleet.errors import RemoteProtocolError
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
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    frame,
)
from fleet.wire.http2.messages import Request
from fleet.wire.http2.streams import Stream, Upload


class Outbound:
    """What one connection has said, and what its peer lets it say."""

    __slots__ = (
        "_plan",
        "_send_window",
        "_stream_window",
        "_table_bytes",
        "_table_used",
        "_tail",
        "_user",
        "frame_bytes_max",
        "fresh",
        "out",
        "uploads",
    )

    def __init__(self, plan: hpack.HeaderPlan, user: bytes) -> None:
        self.out = bytearray(OPENING)
        self.fresh: list[Stream] | tuple[()] = ()  # whose bytes are in `out`
        self.frame_bytes_max = FRAME_BYTES_DEFAULT
        self._plan = plan
        self._user = user
        self._tail = b""  # the repeated fields by their indices; empty until the peer has them
        self._table_bytes = hpack.TABLE_BYTES_DEFAULT
        self._table_used = False
        self._send_window = WINDOW_DEFAULT
        self._stream_window = WINDOW_DEFAULT
        self.uploads: dict[int, Upload] | None = None  # bodies that wait for a window

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
