"""What a server may send at most, and what reading costs however it is cut."""

import random
from collections.abc import Iterator

import pytest

from fleet.clock import Draws
from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import WatchKind
from fleet.wire.api import codec, protobuf
from fleet.wire.api.framing import EVENT_BYTES_MAX, Partial, Split, split_frames, split_lines
from fleet.wire.api.watch import Reflector
from fleet.wire.http2 import hpack

CHUNK = 16384
MIB = 2**20
BEGINNINGS: dict[Split, bytes] = {
    split_lines: b'{"type":"ADDED","object":{',
    split_frames: b"\x00\xff\xff\xff",
}
splits = pytest.mark.parametrize("split", BEGINNINGS)


class OnlyGrows(bytearray):
    """What is kept of an event: it may be added to, and be joined once; nobody looks through it."""

    def find(self, *_: object) -> int:
        raise AssertionError("searched once more")

    def split(self, *_: object) -> list[bytearray]:
        raise AssertionError("split once more")

    def count(self, *_: object) -> int:
        raise AssertionError("counted once more")

    def __add__(self, _: object) -> bytearray:
        raise AssertionError("copied")


@splits
def test_an_event_is_copied_and_searched_once_however_small_its_chunks_are(split: Split) -> None:
    """Its beginning stays one buffer that grows, and only what is new is looked at."""
    kept: Partial = OnlyGrows(BEGINNINGS[split])
    for _ in range(200):
        events, rest = split(kept, b"x" * CHUNK)
        assert not events
        assert rest is kept
    assert len(kept) == len(BEGINNINGS[split]) + 200 * CHUNK


@pytest.mark.parametrize("chunk", [b"x" * CHUNK, b"x" * 4 * MIB], ids=["16 KiB", "4 MiB"])
def test_an_event_without_end_stops_at_16_mib(chunk: bytes) -> None:
    """Of lines; a frame of so much is refused for its length, see below."""
    _, rest = split_lines(b"", b'{"type":"ADDED","object":{')
    kept: list[int] = []
    with pytest.raises(RemoteProtocolError, match="a watch event above 16 MiB"):
        kept.extend(kept_of(split_lines, rest, chunk))
    assert EVENT_BYTES_MAX - len(chunk) < kept[-1] <= EVENT_BYTES_MAX + 4


def kept_of(split: Split, rest: Partial, chunk: bytes) -> Iterator[int]:
    """Feed a stream without end; yield how much is kept of it."""
    while True:
        events, rest = split(rest, chunk)
        assert not events
        yield len(rest)


@splits
@pytest.mark.parametrize("size", [EVENT_BYTES_MAX - 9, EVENT_BYTES_MAX + 9])
def test_the_limit_is_the_same_whether_the_end_comes_or_not(split: Split, size: int) -> None:
    lead, end = (b"", b"\n") if split is split_lines else (size.to_bytes(4, "big"), b"")
    stream = lead + b"x" * size + end
    rest: Partial = b""
    found: list[bytes] = []
    try:
        for at in range(0, len(stream), 10 * MIB):
            events, rest = split(rest, stream[at : at + 10 * MIB])
            found += events
    except RemoteProtocolError:
        assert size > EVENT_BYTES_MAX
    else:
        assert list(map(len, found)) == [size + len(end)]
        assert not rest


def test_a_length_beyond_sense_is_refused_before_anything_of_it_is_kept() -> None:
    for cut in range(1, 5):
        prefix = b"\xff\xff\xff\xf0"
        _, rest = split_frames(b"", prefix[:cut]) if cut < 4 else ([], b"")
        with pytest.raises(RemoteProtocolError):
            split_frames(rest, prefix[cut:] if cut < 4 else prefix)


def test_numbers_of_protobuf_end() -> None:
    """Each further digit made the number longer, and so the next one dearer."""
    with pytest.raises(RemoteProtocolError, match="above 64 bits"):
        protobuf.read_varint(b"\xff" * MIB, 0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"7", 7),
        (b"0", 0),
        (b"3600", 3600),
        (b"3601", -1),
        (b"-1", -1),
        (b"+1", -1),
        (b"1.5", -1),
        (b" 1", -1),
        (b"1e3", -1),
        (b"", -1),
        (b"Fri, 31 Dec 1999 23:59:59 GMT", -1),
        (b"9" * 19, -1),
        (b"9" * 5000, -1),
        (b"0" * 5000, -1),
        ("\u0661".encode(), -1),
    ],
)
def test_a_retry_after_beyond_sense_is_ignored(value: bytes, seconds: int) -> None:
    assert hpack.seconds_of(value) == seconds
    literal = hpack.encode_literal(b":status", b"429") + hpack.encode_literal(b"retry-after", value)
    assert hpack.read_block(literal) == (429, seconds)


def test_a_status_below_100_is_none() -> None:
    with pytest.raises(RemoteProtocolError):
        hpack.read_block(hpack.encode_literal(b":status", b"000"))


@pytest.mark.parametrize("each", [codec.JSON, codec.protobuf()], ids=["json", "pb"])
@pytest.mark.parametrize("kind", [WatchKind.PODS, WatchKind.NODE, WatchKind.SECRET])
def test_what_is_no_event_is_the_peers_fault(each: codec.Codec, kind: WatchKind) -> None:
    noise = random.Random(1)
    for event in (b"", b"{}", b"null", b'{"type":"X"}', b'{"type":"ADDED","object":7}'):
        with pytest.raises(RemoteProtocolError):
            each.decode_watch_event(event, kind)
        with pytest.raises(RemoteProtocolError):
            each.decode_list(event + noise.randbytes(9), kind)
    reflector = Reflector(1, kind, "n")
    reflector.open(Draws(1), 0)
    with pytest.raises(RemoteProtocolError):
        reflector.on_chunk(b"\x00\x00\x00\x01\n\n", each.decode_watch_event, each.split)
