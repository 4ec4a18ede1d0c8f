import contextlib
import itertools

import hpack as library
import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hyperframe.frame import Frame as HyperFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import LocalProtocolError, RemoteProtocolError
from fleet.wire.http2 import hpack
from fleet.wire.http2.http2_codec import SENT_AGAIN_MAX, Http2Codec, Inbox, Stream
from fleet.wire.http2.messages import ContentType, Failure, Request, Response, StreamOpened

GET = Request(b"GET", b"/version")
PUT = Request(b"PUT", b"/leases/a", b"{}", ContentType.JSON)
WATCH = Request(b"GET", b"/pods?watch=true&timeoutSeconds=400", stream=True)
OK = b"\x20\x88"
# From the RFC and from hyperframe, so that the peer of these tests knows nothing of fleet.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM, END_HEADERS, PADDED, PRIORITY_FLAG, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
DATA, HEADERS, PRIORITY, RST_STREAM = (
    each.type for each in (DataFrame, HeadersFrame, PriorityFrame, RstStreamFrame)
)
SETTINGS, PUSH_PROMISE, PING = (each.type for each in (SettingsFrame, PushPromiseFrame, PingFrame))
GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    each.type for each in (GoAwayFrame, WindowUpdateFrame, ContinuationFrame)
)
Frame = tuple[int, int, int, bytes]


def raw(kind: int, flags: int, sid: int, payload: bytes = b"") -> bytes:
    """Return any frame, also one that breaks the rules: of hyperframe, not of fleet."""
    frame = ExtensionFrame(kind, sid, flag_byte=flags)
    frame.parse_body(memoryview(payload))
    return frame.serialize()


def settings_frame(**values: int) -> bytes:
    names = {"table": 1, "streams": 3, "window": 4, "frame": 5}
    return SettingsFrame(
        0, settings={names[name]: value for name, value in values.items()}
    ).serialize()


def headers(sid: int, block: bytes = OK, *, end: bool = False) -> bytes:
    flags = ["END_HEADERS", "END_STREAM"] if end else ["END_HEADERS"]
    return HeadersFrame(sid, block, flags=flags).serialize()


def data(sid: int, body: bytes, *, end: bool = False) -> bytes:
    return DataFrame(sid, body, flags=["END_STREAM"] if end else []).serialize()


def reset(sid: int, code: int) -> bytes:
    return RstStreamFrame(sid, code).serialize()


def goaway(last: int, code: int = 0, text: bytes = b"") -> bytes:
    return GoAwayFrame(0, last, code, text).serialize()


def widen(sid: int, gain: int) -> bytes:
    return WindowUpdateFrame(sid, gain).serialize()


class Client:
    """A connection, its inbox, and what it wrote, taken apart."""

    def __init__(
        self,
        *,
        settled: bool = True,
        token: bytes = b"Bearer t",
        user: bytes = b"system:node:a",
    ) -> None:
        plan = hpack.HeaderPlan(b"host:6443", token, b"agent", b"accept")
        self.http2 = Http2Codec(plan, user)
        self.inbox: Inbox = []
        self.decoder = library.Decoder()
        out = self.http2.outbound.out
        assert bytes(out).startswith(PREFACE)
        del out[: len(PREFACE)]
        if settled:
            self.feed(settings_frame())
            self.written()

    def send(self, request: Request = GET, token: object = "a") -> Stream:
        stream = Stream(token, request, request.stream)
        self.http2.open_stream(stream)
        return stream

    def feed(self, *chunks: bytes, now_ns: int = 2) -> None:
        for chunk in chunks:
            self.inbox += self.http2.receive(chunk, now_ns)
            if self.http2.news is not None and self.http2.news.breach is not None:
                raise self.http2.news.breach

    def taken(self) -> Inbox:
        entries, self.inbox = self.inbox, []
        return entries

    def written(self) -> list[Frame]:
        outbound = self.http2.outbound
        out = bytes(outbound.out)
        outbound.out.clear()
        outbound.on_written(1)
        found, at = [], 0
        while at < len(out):
            frame, size = HyperFrame.parse_frame_header(memoryview(out)[at : at + 9])
            kind, flags = out[at + 3], out[at + 4]
            stop = at + 9 + size
            found.append((kind, flags, frame.stream_id, out[at + 9 : stop]))
            at = stop
        return found

    def fields(self, block: bytes) -> dict[str, str]:
        return {str(name): str(value) for name, value in self.decoder.decode(block)}


def answer(code: int = 200, body: bytes = b"", retry: int = -1) -> Response:
    return Response(code, body, 1, 2, retry)


def failed(failure: Failure, detail: str) -> Response:
    return Response(0, b"", 1, 2, -1, failure, detail)


def test_the_first_frames_set_our_terms() -> None:
    client = Client(settled=False)
    assert client.written() == [
        (SETTINGS, 0, 0, bytes.fromhex("00010000000000020000000000047fffffff")),
        (WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big")),
    ]


def test_requests_carry_what_a_kubelet_sends() -> None:
    client = Client()
    client.send(PUT)
    client.send(GET)
    put, body, get = client.written()
    assert put[:3] == (HEADERS, END_HEADERS, 1)
    assert client.fields(put[3]) == {
        ":method": "PUT",
        ":scheme": "https",
        ":path": "/leases/a",
        ":authority": "host:6443",
        "authorization": "Bearer t",
        "user-agent": "agent",
        "accept": "accept",
        "impersonate-user": "system:node:a",
        "content-type": "application/json",
        "content-length": "2",
    }
    assert body == (DATA, END_STREAM, 1, b"{}")
    assert get[:3] == (HEADERS, END_HEADERS | END_STREAM, 3)
    assert client.fields(get[3])["authorization"] == "Bearer t"
    assert len(get[3]) == 1 + 1 + 2 + len(GET.path) + 5


def test_a_user_of_one_request_is_a_literal() -> None:
    client = Client(user=b"")
    for user in (b"system:node:b", b"system:node:c"):
        client.send(GET._replace(user=user))
        ((_, _, _, block),) = client.written()
        assert client.fields(block)["impersonate-user"] == user.decode()


TRANSCRIPT = (
    settings_frame(streams=250, frame=16384)
    + raw(SETTINGS, ACK, 0)
    + headers(1, b"\x20\x88\x5f\x10application/json")
    + data(1, b"hello ")
    + raw(PING, 0, 0, b"12345678")
    + headers(3)
    + data(3, b"one")
    + raw(DATA, PADDED, 3, b"\x02two??")
    + data(1, b"world", end=True)
    + raw(HEADERS, PADDED | PRIORITY_FLAG, 5, b"\x03" + bytes(5) + b"\x20\x08???")
    + raw(CONTINUATION, 0, 5, b"\x82\x10")
    + raw(CONTINUATION, END_HEADERS, 5, b"\x03")
    + raw(0x20, 0xFF, 7, b"an unknown frame")
    + raw(PRIORITY, 0, 3, bytes(5))
    + data(5, b"", end=True)
    + data(3, b"", end=True)
)
ANSWERS = [
    ("w", StreamOpened(1, 2)),
    ("w", b"one"),
    ("w", b"two"),
    ("a", answer(200, b"hello world")),
    ("b", answer(201)),
    ("w", answer(200)),
]


def play(cuts: list[int]) -> None:
    client = Client(settled=False)
    client.send(GET, "a")
    client.send(WATCH._replace(path=b"/w"), "w")
    client.send(PUT, "b")
    client.written()
    places = [0, *sorted(cuts), len(TRANSCRIPT)]
    client.feed(*(TRANSCRIPT[a:b] for a, b in itertools.pairwise(places)))
    assert client.taken() == ANSWERS
    assert client.http2.streams == {}
    assert client.http2._rest == b""
    assert client.http2.streams_max == 250
    assert client.written() == [
        (SETTINGS, ACK, 0, b""),
        (PING, ACK, 0, b"12345678"),
    ]


def test_a_transcript_cut_at_every_byte() -> None:
    for cut in range(len(TRANSCRIPT)):
        play([cut])
    play(list(range(len(TRANSCRIPT))))


@settings(max_examples=300)
@given(st.binary(max_size=120), st.integers(0, len(TRANSCRIPT)))
def test_garbage_only_ever_breaks_the_protocol(garbage: bytes, at: int) -> None:
    client = Client(settled=False)
    client.send(GET)
    client.send(WATCH, "w")
    with contextlib.suppress(RemoteProtocolError):
        client.feed(TRANSCRIPT[:at] + garbage + TRANSCRIPT[at:])


def test_a_first_block_that_opens_with_a_table_size_update() -> None:
    client = Client()
    client.send()
    client.written()
    client.feed(headers(1, b"\x20\x20\x88", end=True))
    assert client.taken() == [("a", answer())]


def test_an_error_brings_body_and_retry_after() -> None:
    client = Client()
    client.send(WATCH)
    client.written()
    client.feed(headers(1, b"\x08\x03429\x0f\x26\x017"), data(1, b"too "), data(1, b"many"))
    client.feed(headers(1, b"\x00\x01t\x01t", end=True))  # trailers
    assert client.taken() == [("a", answer(429, b"too many", 7))]


def test_a_watch_past_a_megabyte_keeps_nothing_and_never_waits() -> None:
    client = Client()
    stream = client.send(WATCH)
    client.written()
    client.feed(headers(1))
    chunk = data(1, b"x" * 16384)
    total = 0
    for _ in range(200):
        client.feed(chunk[:9000], chunk[9000:])
    for _, entry in client.taken()[1:]:
        assert isinstance(entry, bytes)
        total += len(entry)
    assert total == 200 * 16384
    assert stream.body == b""
    assert client.http2._rest == b""
    assert client.written() == []  # both windows are far from half


def test_windows_are_refilled_at_half() -> None:
    client = Client()
    stream = client.send(WATCH)
    client.written()
    client.feed(headers(1))
    client.http2._received = 2**29 - 10
    stream.received = 2**30 - 15
    client.feed(data(1, b"x" * 20))
    assert client.written() == [
        (WINDOW_UPDATE, 0, 0, (2**29 + 10).to_bytes(4, "big")),
        (WINDOW_UPDATE, 0, 1, (2**30 + 5).to_bytes(4, "big")),
    ]
    client.feed(data(1, b"x"))
    assert client.written() == []


def test_a_body_waits_for_the_windows() -> None:
    client = Client(settled=False)
    client.feed(settings_frame(window=10))
    client.written()
    body = b"0123456789" * 10
    stream = client.send(PUT._replace(body=body))
    assert [frame[3] for frame in client.written()][1:] == [body[:10]]
    assert stream.sent_ns == 0
    client.feed(settings_frame(window=15))
    assert [frame[3] for frame in client.written()] == [b"", body[10:15]]  # the ACK first
    client.feed(widen(1, 50), widen(9, 5))
    assert client.written() == [(DATA, 0, 1, body[15:65])]
    client.http2.outbound._send_window = 5
    client.feed(widen(1, 100))
    assert client.written() == [(DATA, 0, 1, body[65:70])]
    client.feed(widen(0, 1000))
    assert client.written() == [(DATA, END_STREAM, 1, body[70:])]
    assert stream.sent_ns == 1
    assert client.http2.outbound.uploads is None


def test_an_early_answer_stops_the_upload() -> None:
    client = Client()
    client.feed(settings_frame(window=1))
    client.send(PUT)
    client.written()
    client.feed(headers(1, b"\x08\x03413", end=True))
    assert client.taken() == [("a", Response(413, b"", 2, 2))]
    assert client.written() == [(RST_STREAM, 0, 1, (8).to_bytes(4, "big"))]
    assert client.http2.outbound.uploads is None


def test_the_101st_stream_does_not_fit() -> None:
    client = Client()
    for number in range(100):
        assert client.http2.has_room()
        client.send(WATCH, number)
    assert not client.http2.has_room()
    with pytest.raises(LocalProtocolError):
        client.send()
    client.feed(headers(1, end=True))
    assert client.http2.has_room()


def test_goaway_with_open_watches() -> None:
    client = Client()
    for number in range(3):
        client.send(WATCH, number)
    put = client.send(PUT, "put")
    again = client.send(GET, "again")
    again.sent_again = SENT_AGAIN_MAX
    client.written()
    client.feed(headers(1), headers(3))
    client.taken()
    client.feed(goaway(2**31 - 1), goaway(5, 0, b"bye"))
    http2 = client.http2
    assert not http2.has_room()
    assert http2.take_news().refused == [put]  # the owner sends it again
    assert put.sid == 0
    assert client.taken() == [("again", failed(Failure.LOST, "server sent GOAWAY: NO_ERROR bye"))]
    client.feed(data(1, b"still open"), headers(5, end=True), data(3, b"", end=True))
    assert len(client.taken()) == 4
    assert http2.take_news().ended_early
    client.feed(data(1, b"", end=True))
    assert http2.news is not None  # drained
    assert http2.streams == {}


def test_a_refused_stream_is_handed_back_until_it_was_sent_again_too_often() -> None:
    client = Client()
    stream = client.send()
    client.written()
    client.feed(reset(1, ErrorCodes.REFUSED_STREAM))
    assert client.http2.take_news().refused == [stream]
    assert client.taken() == []
    stream.sent_again = SENT_AGAIN_MAX
    client.http2.open_stream(stream)
    client.written()
    client.feed(reset(3, ErrorCodes.REFUSED_STREAM))
    detail = "server reset the stream: REFUSED_STREAM"
    assert client.taken() == [("a", failed(Failure.RESET, detail))]


def test_a_reset_watch_and_an_unknown_code() -> None:
    client = Client()
    client.send(WATCH)
    client.send(GET, "b")
    client.written()
    client.feed(headers(1), reset(1, 2), reset(3, 99))
    assert client.taken()[1:] == [
        ("a", failed(Failure.RESET, "server reset the stream: INTERNAL_ERROR")),
        ("b", failed(Failure.RESET, "server reset the stream: error 99")),
    ]
    assert client.http2.take_news().resets == 2


def test_a_cancelled_stream_is_silent() -> None:
    client = Client()
    stream = client.send()
    client.written()
    client.http2.cancel(stream)
    assert client.written() == [(RST_STREAM, 0, 1, (8).to_bytes(4, "big"))]
    client.feed(headers(1), data(1, b"late", end=True), reset(1, 8))
    assert client.taken() == []


def test_an_answer_without_bound_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.wire.http2.http2_codec.BODY_BYTES_MAX", 10)
    client = Client()
    client.send()
    client.written()
    client.feed(headers(1), data(1, b"123456"), data(1, b"123456", end=True))
    assert client.taken() == [("a", failed(Failure.OVERSIZED, "an answer above 256 MiB"))]
    assert client.written() == [(RST_STREAM, 0, 1, (8).to_bytes(4, "big"))]


def test_a_peer_that_asks_and_does_not_read() -> None:
    client = Client()
    with pytest.raises(RemoteProtocolError) as caught:
        client.feed(*(raw(PING, 0, 0, bytes(8)) * 1000 for _ in range(100)))
    assert caught.value.code == ErrorCodes.ENHANCE_YOUR_CALM


CODE = ErrorCodes
BREACHES = {
    "data before headers": (data(1, b"x"), CODE.PROTOCOL_ERROR),
    "data on an idle stream": (data(5, b"x"), CODE.PROTOCOL_ERROR),
    "headers on an even stream": (headers(2), CODE.PROTOCOL_ERROR),
    "reset of an idle stream": (reset(7, 8), CODE.PROTOCOL_ERROR),
    "a frame too large": (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", CODE.FRAME_SIZE_ERROR),
    "continuation alone": (raw(CONTINUATION, 4, 1, b""), CODE.PROTOCOL_ERROR),
    "a gap in a block": (
        raw(HEADERS, 0, 1, b"\x88") + data(1, b""),
        CODE.PROTOCOL_ERROR,
    ),
    "another stream's continuation": (
        raw(HEADERS, 0, 1, b"") + raw(CONTINUATION, 4, 3, b"\x88"),
        CODE.PROTOCOL_ERROR,
    ),
    "an endless block": (
        raw(HEADERS, 0, 1, b"") + raw(CONTINUATION, 0, 1, bytes(16384)) * 5,
        CODE.ENHANCE_YOUR_CALM,
    ),
    "padding too long": (
        headers(1) + raw(DATA, PADDED, 1, b"\x05abc"),
        CODE.PROTOCOL_ERROR,
    ),
    "padding of nothing": (
        headers(1) + raw(DATA, PADDED, 1, b""),
        CODE.PROTOCOL_ERROR,
    ),
    "short priority": (
        raw(HEADERS, PRIORITY_FLAG | END_HEADERS, 1, b"123"),
        CODE.FRAME_SIZE_ERROR,
    ),
    "endless trailers": (headers(1) + headers(1), CODE.PROTOCOL_ERROR),
    "the end at 103": (headers(1, b"\x08\x03103", end=True), CODE.PROTOCOL_ERROR),
    "a push": (raw(PUSH_PROMISE, 4, 1, bytes(4)), CODE.PROTOCOL_ERROR),
    "settings on a stream": (raw(SETTINGS, 0, 1), CODE.PROTOCOL_ERROR),
    "a reset of nothing": (raw(RST_STREAM, 0, 0, bytes(4)), CODE.PROTOCOL_ERROR),
    "odd settings": (raw(SETTINGS, 0, 0, bytes(5)), CODE.FRAME_SIZE_ERROR),
    "a small frame size": (settings_frame(frame=100), CODE.PROTOCOL_ERROR),
    "a huge window": (settings_frame(window=2**31), CODE.FLOW_CONTROL_ERROR),
    "a window of nothing": (raw(WINDOW_UPDATE, 0, 0, bytes(4)), CODE.PROTOCOL_ERROR),
    "a connection window too large": (widen(0, 2**31 - 1), CODE.FLOW_CONTROL_ERROR),
    "a short ping": (raw(PING, 0, 0, b"1"), CODE.FRAME_SIZE_ERROR),
    "an ACK with settings": (
        raw(SETTINGS, ACK, 0, bytes(6)),
        CODE.FRAME_SIZE_ERROR,
    ),
    "a long priority": (raw(PRIORITY, 0, 1, bytes(6)), CODE.FRAME_SIZE_ERROR),
    "half a block on stream 0": (raw(HEADERS, 0, 0, OK), CODE.PROTOCOL_ERROR),
    "a short goaway": (raw(GOAWAY, 0, 0, bytes(7)), CODE.FRAME_SIZE_ERROR),
    "a bad block": (headers(1, b"\xff\xff\xff\x7f"), CODE.COMPRESSION_ERROR),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_names_its_code(name: str) -> None:
    sent, code = BREACHES[name]
    client = Client()
    client.send()
    with pytest.raises(RemoteProtocolError) as caught:
        client.feed(sent)
    assert caught.value.code == code


def test_a_server_of_another_protocol() -> None:
    client = Client(settled=False)
    with pytest.raises(RemoteProtocolError, match="does not speak HTTP/2"):
        client.feed(b"\x00\x00\x00\x06\x00\x00\x00\x00\x00")


def test_stream_numbers_run_out() -> None:
    client = Client()
    client.http2._next_id = 2**31 - 1
    client.send()
    assert client.http2.is_spent()
    assert not client.http2.has_room()


def test_what_came_whole_before_a_breach_is_delivered() -> None:
    client = Client()
    client.send()
    refused = client.send(GET, "b")
    client.written()
    bytes_read = headers(1) + data(1, b"whole", end=True) + reset(3, CODE.REFUSED_STREAM)
    with pytest.raises(RemoteProtocolError):
        client.feed(bytes_read + raw(WINDOW_UPDATE, 0, 0, bytes(4)))
    assert client.taken() == [("a", answer(200, b"whole"))]
    assert client.http2.take_news().refused == [refused]
