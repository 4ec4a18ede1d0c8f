import contextlib

import hpack as library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import RemoteProtocolError
from fleet.wire.http2 import hpack
from fleet.wire.http2.messages import ContentType

AGENT = b"kubelet/v1.36.3 (linux/amd64) kubernetes/0123456"
ACCEPT = b"application/vnd.kubernetes.protobuf,application/json"
USER = b"system:node:fleet-00001"


def plan(token: bytes | None = b"Bearer token", group: bytes = b"") -> hpack.HeaderPlan:
    return hpack.HeaderPlan(b"127.0.0.1:6443", token, AGENT, ACCEPT, group)


def decode(decoder: library.Decoder, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]


@given(st.integers(0, 2**31), st.integers(1, 8))
def test_integers_are_what_the_library_makes_of_them(value: int, bits: int) -> None:
    assert hpack.encode_integer(value, bits, 0) == bytes(library.hpack.encode_integer(value, bits))


def test_a_2_kb_token_goes_once_and_by_one_byte_ever_after() -> None:
    token = b"Bearer " + b"t" * 2048
    first, later = plan(token).encode(USER, 4096)
    assert len(later) == 5
    decoder = library.Decoder()
    expected = [
        (b":authority", b"127.0.0.1:6443"),
        (b"authorization", token),
        (b"user-agent", AGENT),
        (b"accept", ACCEPT),
        (b"impersonate-user", USER),
    ]
    assert decode(decoder, first) == expected
    for _ in range(3):
        assert decode(decoder, later) == expected


def test_a_token_above_the_table_goes_as_a_literal_and_evicts_nothing() -> None:
    token = b"Bearer " + b"t" * 5000
    first, later = plan(token).encode(USER, 4096)
    decoder = library.Decoder()
    fields = decode(decoder, first)
    assert (b"authorization", token) in fields
    assert decode(decoder, later) == fields
    assert len(later) == 4 + 2 + 3 + len(token)  # four indices; a name, a length, the value


@given(st.integers(0, 4096), st.binary(min_size=1, max_size=3000))
def test_any_table_size_is_honoured(table_bytes: int, token: bytes) -> None:
    decoder = library.Decoder()
    decoder.header_table_size = table_bytes
    decoder.max_allowed_table_size = table_bytes
    first, later = plan(token).encode(USER, table_bytes)
    fields = decode(decoder, first)
    assert len(fields) == 5
    assert decode(decoder, later) == fields


def test_all_connections_share_what_later_requests_repeat() -> None:
    shared = plan()
    assert shared.encode(b"a", 4096)[1] is shared.encode(b"b", 4096)[1]


def test_a_group_goes_with_every_user_and_no_token_is_no_header() -> None:
    block = plan(None, b"system:nodes").literal_user(USER)
    assert decode(library.Decoder(), block) == [
        (b"impersonate-user", USER),
        (b"impersonate-group", b"system:nodes"),
    ]
    fields = decode(library.Decoder(), plan(None).encode(b"", 4096)[0])
    assert [name for name, _ in fields] == [b":authority", b"user-agent", b"accept"]
    assert plan().literal_user(b"") == b""


@pytest.mark.parametrize("length", [0, 126, 127, 511, 512, 20_000])
def test_paths_of_any_length(length: int) -> None:
    path = b"/" * length
    block = hpack.METHODS[b"PATCH"] + hpack.path_lead(length) + path
    block += hpack.content_fields(ContentType.STRATEGIC_MERGE_PATCH, 12345)
    assert decode(library.Decoder(), block) == [
        (b":method", b"PATCH"),
        (b":scheme", b"https"),
        (b":path", path),
        (b"content-type", b"application/strategic-merge-patch+json"),
        (b"content-length", b"12345"),
    ]


def encode_like_go(status: int, *fields: tuple[str, str]) -> bytes:
    """A Go server's block after our table size of 0: `20`, then literals without indexing."""
    encoder = library.Encoder()
    encoder.header_table_size = 0
    pairs = [(":status", str(status)), *fields]
    return bytes(encoder.encode([library.NeverIndexedHeaderTuple(*pair) for pair in pairs]))


@pytest.mark.parametrize("huffman", [True, False])
def test_every_status_is_read(huffman: bool) -> None:  # noqa: FBT001
    for status in range(100, 600):
        encoder = library.Encoder()
        encoder.header_table_size = 0
        fields = [(":status", str(status)), ("content-type", "application/json"), ("a", "b" * 300)]
        block = bytes(encoder.encode(fields, huffman=huffman))
        assert block[:1] == b"\x20"
        assert hpack.read_block(block) == (status, -1)
        assert hpack.read_block(block[1:]) == (status, -1)


def test_a_huffman_coded_201_as_go_sends_it() -> None:
    for first in (b"\x08", b"\x18", b"\x48", b"\x0e"):  # 0e: as an API server does
        assert hpack.read_block(b"\x20" + first + b"\x82\x10\x03") == (201, -1)


def test_retry_after_is_surfaced() -> None:
    assert hpack.read_block(encode_like_go(429, ("retry-after", "7"))) == (429, 7)
    assert hpack.read_block(encode_like_go(503, ("retry-after", "Fri, 1 Jan"))) == (503, -1)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x20",
        b"\x3f\xe1\x1f\x88",  # a table of 4096, which we did not allow
        b"\xff\xff\xff\x7f",  # an index beyond every table
        b"\x08\x03abc",
        b"\x00\x01a",
    ],
)
def test_what_is_no_response_is_the_peers_fault(block: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        hpack.read_block(block)


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_else(block: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        hpack.read_block(block)
