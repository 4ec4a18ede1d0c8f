"""The server's side of SPDY/3.1, against frames as a client sends them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spdy_client import Client

from fleet.errors import RemoteProtocolError
from fleet.server.spdy import (
    CANCEL,
    CONTROL,
    CONTROL_BYTES_MAX,
    DATA_BYTES_MAX,
    FIN,
    GOAWAY,
    HEADERS_BYTES_MAX,
    PING,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAMS_MAX,
    SYN_REPLY,
    SYN_STREAM,
    Data,
    Ended,
    Event,
    GoneAway,
    Opened,
    Reset,
    SpdyServer,
)


def opened() -> tuple[Client, SpdyServer]:
    client, server = Client(), SpdyServer()
    server.receive(client.open(1, {"streamtype": "data", "port": "80"}))
    server.accept(1)
    client.read(server.take())
    return client, server


def test_the_compression_of_headers_goes_on_over_all_frames() -> None:
    client, server = Client(), SpdyServer()
    for stream in (1, 3, 5):
        headers = {"streamType": "data", "port": str(stream)}
        lower = {key.lower(): value for key, value in headers.items()}
        assert server.receive(client.open(stream, headers)) == [Opened(stream, lower)]
        server.accept(stream)
    replies = [(SYN_REPLY, struct.pack(">I", stream)) for stream in (1, 3, 5)]
    assert client.read(server.take()) == replies


def test_data_comes_and_ends() -> None:
    client, server = opened()
    assert server.receive(client.data(1, b"abc")) == [Data(1, b"abc")]
    assert server.receive(client.data(1, b"d", FIN)) == [Data(1, b"d"), Ended(1)]
    assert server.receive(client.data(1, b"", FIN)) == [Ended(1)]


def test_a_large_frame_is_handed_on_as_it_comes() -> None:
    client, server = opened()
    frame = client.data(1, b"x" * 1_000_000, FIN)
    assert server.receive(frame[:500_000]) == [Data(1, b"x" * 499_992)]
    assert server.receive(frame[500_000:]) == [Data(1, b"x" * 500_008), Ended(1)]


def test_what_is_sent_is_cut_into_frames() -> None:
    client, server = opened()
    server.send(1, b"y" * (DATA_BYTES_MAX + 1), is_last=True)
    assert client.read(server.take()) == [
        (-1, b"\0" + b"y" * DATA_BYTES_MAX),
        (-1, bytes((FIN,)) + b"y"),
    ]
    server.send(1, b"after the end")
    assert server.take() == b""


def test_an_end_without_data_is_a_frame_of_its_own() -> None:
    client, server = opened()
    server.send(1, b"")
    server.send(1, b"", is_last=True)
    assert client.read(server.take()) == [(-1, bytes((FIN,)))]


def test_a_reset_ends_both_halves() -> None:
    client, server = opened()
    reset = client.control(RST_STREAM, struct.pack(">II", 1, CANCEL))
    assert server.receive(reset) == [Reset(1)]
    server.send(1, b"late")
    assert server.receive(client.data(1, b"crossed it", FIN)) == []
    assert server.take() == b""


def test_we_give_a_stream_up_once() -> None:
    client, server = opened()
    server.reset(1)
    server.reset(1)
    assert client.read(server.take()) == [(RST_STREAM, struct.pack(">II", 1, CANCEL))]


def test_a_ping_is_answered_and_what_says_nothing_is_ignored() -> None:
    client, server = opened()
    sent = client.control(PING, b"\0\0\0\7") + client.control(SETTINGS, b"\0\0\0\0")
    assert server.receive(sent + client.control(77, b"who knows")) == []
    assert client.read(server.take()) == [(PING, b"\0\0\0\7")]
    assert server.receive(client.control(PING, b"\0\0\0\2")) == []  # an answer, to nothing
    assert server.take() == b""


def test_both_may_go_away() -> None:
    client, server = opened()
    assert server.receive(client.control(GOAWAY, b"\0" * 8)) == [GoneAway()]
    server.go_away()
    assert client.read(server.take()) == [(GOAWAY, struct.pack(">II", 1, 0))]


def test_too_many_streams_are_refused() -> None:
    client, server = Client(), SpdyServer()
    for at in range(STREAMS_MAX):
        server.receive(client.open(2 * at + 1, {}))
    last = 2 * STREAMS_MAX + 1
    assert server.receive(client.open(last, {})) == []
    assert client.read(server.take()) == [(RST_STREAM, struct.pack(">II", last, REFUSED_STREAM))]


@pytest.mark.parametrize("client_first", [False, True])
def test_streams_that_both_sides_have_ended_count_no_more(*, client_first: bool) -> None:
    """A client that forwards for days opens more of them than there may be at once."""
    client, server = Client(), SpdyServer()
    for stream in range(1, 4 * STREAMS_MAX, 2):
        flags = FIN if client_first else 0
        assert Opened(stream, {}) in server.receive(client.open(stream, {}, flags))
        server.accept(stream)
        server.send(stream, b"x", is_last=True)
        if not client_first:
            assert server.receive(client.data(stream, b"", FIN)) == [Ended(stream)]
    assert RST_STREAM not in [kind for kind, _ in client.read(server.take())]


@pytest.mark.parametrize("stream", [0, 2, 1])
def test_a_stream_number_is_odd_and_new(stream: int) -> None:
    client, server = opened()
    with pytest.raises(RemoteProtocolError):
        server.receive(client.open(stream, {}))


def test_a_control_frame_has_a_limit() -> None:
    frame = Client().control(SETTINGS, b"x" * (CONTROL_BYTES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="control frame"):
        SpdyServer().receive(frame[:8])


def test_headers_have_a_limit_unpacked() -> None:
    client = Client()
    frame = client.open(1, {"a": "0" * (HEADERS_BYTES_MAX + 1)})
    assert len(frame) < CONTROL_BYTES_MAX
    with pytest.raises(RemoteProtocolError, match="too large"):
        SpdyServer().receive(frame)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">II", CONTROL | 2 << 16 | PING, 4) + b"\0\0\0\1",  # another version
        struct.pack(">II", 0, 3) + b"abc",  # data of no stream
        struct.pack(">II", CONTROL | 3 << 16 | SYN_STREAM, 3) + b"abc",
        struct.pack(">II", CONTROL | 3 << 16 | SYN_STREAM, 20) + b"\0\0\0\1" + b"z" * 16,
        struct.pack(">II", CONTROL | 3 << 16 | RST_STREAM, 2) + b"ab",
    ],
)
def test_what_is_no_spdy_is_an_error(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        SpdyServer().receive(frame)


@given(cuts=st.lists(st.integers(1, 40), max_size=30))
def test_where_a_read_ends_changes_nothing(cuts: list[int]) -> None:
    client = Client()
    sent = client.open(1, {"streamtype": "data"}) + client.data(1, b"a" * 50)
    sent += client.open(3, {"streamtype": "error"}, FIN) + client.data(1, b"b" * 9, FIN)
    server, events = SpdyServer(), list[Event]()
    for cut in [*cuts, len(sent)]:
        events += server.receive(sent[:cut])
        sent = sent[cut:]
    data = b"".join(each.data for each in events if isinstance(each, Data))
    assert data == b"a" * 50 + b"b" * 9
    others = [each for each in events if not isinstance(each, Data)]
    assert others == [
        Opened(1, {"streamtype": "data"}),
        Opened(3, {"streamtype": "error"}),
        Ended(3),
        Ended(1),
    ]
