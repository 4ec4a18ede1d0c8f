"""Events counted, not read: at every chunk boundary, in both encodings."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.wire.api.protobuf import MAGIC
from fleet.wire.api.scan import HEAD_MAX, NOTHING, Passed, Unfinished, scan_chunk, scan_list

END = b'"annotations":{"k8s.io/initial-events-end":"true"}'


def line(kind: bytes, version: int, more: bytes = b"") -> bytes:
    meta = b'"metadata":{"name":"a","resourceVersion":"%d"%b}' % (version, more)
    return b'{"type":"%b","object":{"kind":"Service",%b}}\n' % (kind, meta)


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def unknown(raw: bytes) -> bytes:
    type_meta = field(1, b"v1") + field(2, b"Service")
    return MAGIC + field(1, type_meta) + field(2, raw) + field(3, b"") + field(4, b"")


def frame(kind: bytes, version: int, more: bytes = b"", spec: bytes = b"s" * 300) -> bytes:
    meta = field(1, b"a") + field(3, b"ns") + field(5, b"uid")
    meta += field(6, b"%d" % version) + field(7, 3) + more
    event = field(1, kind) + field(2, field(1, unknown(field(1, meta) + field(2, spec))))
    return len(event).to_bytes(4, "big") + event


def note(key: bytes, value: bytes) -> bytes:
    return field(12, field(1, key) + field(2, value))


LINES = [
    line(b"ADDED", 5),
    line(b"BOOKMARK", 7, b"," + END),
    line(b"MODIFIED", 8),
    line(b"DELETED", 10),
]
FRAMES = [
    frame(b"ADDED", 5),
    frame(b"BOOKMARK", 7, note(b"k8s.io/initial-events-end", b"true")),
    frame(b"MODIFIED", 8, spec=b"s" * 3 * HEAD_MAX),
    frame(b"DELETED", 10),
]


def scan_all(chunks: list[bytes]) -> tuple[int, str, int, Unfinished]:
    """Return events, the last version, how often it was synced, and what is unfinished."""
    rest, events, version, synced = NOTHING, 0, "", 0
    for chunk in chunks:
        passed, rest = scan_chunk(chunk, rest)
        assert passed.error < 0
        assert len(rest.head) <= HEAD_MAX
        events += passed.events
        version = passed.version or version
        synced += passed.is_synced
    return events, version, synced, rest


@pytest.mark.parametrize("events", [LINES, FRAMES], ids=["json", "protobuf"])
@given(cuts=st.lists(st.integers(1, 30_000), max_size=12))
def test_a_chunk_may_end_anywhere(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(events)
    edges = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges) if a < b]
    assert scan_all(chunks) == (4, "10", 1, NOTHING)


@pytest.mark.parametrize("events", [LINES, FRAMES], ids=["json", "protobuf"])
def test_each_event_tells_its_version(events: list[bytes]) -> None:
    assert [scan_chunk(each, NOTHING)[0] for each in events] == [
        Passed(1, "5"),
        Passed(1, "7", is_synced=True),
        Passed(1, "8"),
        Passed(1, "10"),
    ]


def test_of_a_large_event_only_the_head_is_kept() -> None:
    large = frame(b"ADDED", 5, spec=b"s" * 10 * HEAD_MAX)
    _, rest = scan_chunk(large[:-1], NOTHING)
    assert (len(rest.head), rest.dropped) == (HEAD_MAX, len(large) - 1 - HEAD_MAX)
    assert scan_chunk(large[-1:] + FRAMES[3], rest) == (Passed(2, "10"), NOTHING)
    assert scan_chunk(large[-1:], rest) == (Passed(1, "5"), NOTHING)
    line_ = b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"5"},"x":"%b"}}\n'
    _, rest = scan_chunk((line_ % (b"s" * 10 * HEAD_MAX))[:-1], NOTHING)
    assert len(rest.head) == HEAD_MAX
    assert scan_chunk(b"\n", rest) == (Passed(1, "5"), NOTHING)


def test_an_error_event_tells_its_code() -> None:
    json = b'{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":410}}\n'
    assert scan_chunk(LINES[2] + json, NOTHING)[0] == Passed(2, error=410)
    status = field(1, b"") + field(2, b"Failure") + field(3, b"too old") + field(6, 410)
    event = field(1, b"ERROR") + field(2, field(1, unknown(status)))
    protobuf = len(event).to_bytes(4, "big") + event
    assert scan_chunk(FRAMES[0] + protobuf, NOTHING)[0] == Passed(2, error=410)


def test_an_annotation_of_that_name_ends_no_initial_events() -> None:
    assert not scan_chunk(line(b"ADDED", 5, b"," + END), NOTHING)[0].is_synced
    noted = frame(b"ADDED", 5, note(b"k8s.io/initial-events-end", b"true"))
    assert not scan_chunk(noted, NOTHING)[0].is_synced


def test_a_list_tells_its_version_and_next_page() -> None:
    meta = b'{"kind":"PodList","metadata":{"resourceVersion":"12","continue":"abc"},"items":[%b]}'
    item = b'{"metadata":{"resourceVersion":"3"}}'
    assert scan_list(meta % item) == ("12", "abc")
    assert scan_list((meta % item).replace(b',"continue":"abc"', b"")) == ("12", "")
    listed = field(1, field(2, b"12") + field(3, b"abc")) + field(2, b"item")
    assert scan_list(unknown(listed)) == ("12", "abc")
    assert scan_list(unknown(field(1, field(2, b"12")))) == ("12", "")
