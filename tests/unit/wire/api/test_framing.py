"""Streams of events, cut anywhere, and the numbers and envelopes of protobuf."""

import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.clock import Draws
from fleet.k8s.effects import WatchKind
from fleet.k8s.pods import EventType
from fleet.k8s.volumes import ObjectData
from fleet.wire.api import codec
from fleet.wire.api.framing import Partial, Split, split_frames, split_lines
from fleet.wire.api.protobuf import (
    contents,
    envelope_head,
    enveloped,
    kind_of,
    message_class,
    object_from_json,
    read_varint,
    skip,
    varint,
)
from fleet.wire.api.watch import Reflector, WatchPhase

PROTOBUF = codec.protobuf()


def framed(event: bytes) -> bytes:
    return len(event).to_bytes(4, "big") + event


def watch_event(kind: str, name: str, version: str, *, is_end: bool = False) -> bytes:
    meta: dict[str, object] = {"name": name, "resourceVersion": version}
    if is_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    event = message_class("WatchEvent")(type=kind)
    event.object.raw = object_from_json({"kind": "Secret", "apiVersion": "v1", "metadata": meta})
    return framed(event.SerializeToString())


STREAM = b"".join(
    (
        watch_event("ADDED", "a", "5"),
        watch_event("BOOKMARK", "", "7", is_end=True),
        watch_event("MODIFIED", "a" * 300, "8"),
        watch_event("BOOKMARK", "", "9"),
    )
)


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_protobuf_chunk_may_end_anywhere(cut: int) -> None:
    reflector = Reflector(1, WatchKind.SECRET, "a", "ns")
    reflector.open(Draws(3), 0)
    found = []
    for chunk in (STREAM[:cut], STREAM[cut:]):
        found += reflector.on_chunk(chunk, PROTOBUF.decode_watch_event, PROTOBUF.split)
    assert found == [
        (EventType.ADDED, ObjectData("a", "5")),
        (EventType.SYNCED, None),
        (EventType.MODIFIED, ObjectData("a" * 300, "8")),
        (EventType.BOOKMARK, None),
    ]
    assert (reflector.version, reflector.phase) == ("9", WatchPhase.STREAM)


@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(0, 1000), max_size=8))
def test_frames_of_any_size(events: list[bytes], cuts: list[int]) -> None:
    assert joined(split_frames, b"".join(map(framed, events)), cuts) == events


@given(st.lists(st.dictionaries(st.text(), st.text()), max_size=5), st.lists(st.integers(0, 300)))
def test_lines_of_any_size(objects: list[dict[str, str]], cuts: list[int]) -> None:
    stream = b"".join(orjson.dumps(each) + b"\n" for each in objects)
    assert list(map(orjson.loads, joined(split_lines, stream, cuts))) == objects


def joined(split: Split, stream: bytes, cuts: list[int]) -> list[bytes]:
    """Return the events of a stream that comes in pieces; nothing may be left over."""
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    found: list[bytes] = []
    rest: Partial = b""
    for begin, end in itertools.pairwise(edges):
        events, rest = split(rest, stream[begin:end])
        found += events
    assert not rest
    return found


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_numbers(value: int, before: bytes) -> None:
    data = before + varint(value) + b"\xff"
    assert read_varint(data, len(before)) == (value, len(data) - 1)


@given(st.binary(max_size=70_000))
def test_envelopes(content: bytes) -> None:
    body = enveloped(envelope_head("storage.k8s.io/v1", "CSINode"), content)
    assert contents(body) == content
    assert kind_of(body) == ("storage.k8s.io/v1", "CSINode")
    assert skip(body, 4) < skip(body, skip(body, 4)) == len(body) - 4
