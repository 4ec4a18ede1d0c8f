"""Bookmarks that are told by their bytes, in each encoding."""

from collections.abc import Callable

import pytest
from world.encodings import ENCODINGS, Encoding

from fleet.clock import Draws
from fleet.k8s.effects import WatchKind
from fleet.k8s.pods import EventType
from fleet.wire.api.watch import Bookmarks, Reflector, WatchPhase

KIND = WatchKind.SERVICES


def event(encoding: Encoding, version: str, kind: bytes = b"BOOKMARK", **meta: object) -> bytes:
    service = {"kind": "Service", "apiVersion": "v1"}
    body = encoding.body({**service, "metadata": {**meta, "resourceVersion": version}})
    return encoding.event(kind, body)


each_encoding = pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)


@each_encoding
def test_what_is_learnt_of_one_tells_the_versions_of_others(encoding: Encoding) -> None:
    bookmarks = Bookmarks()
    assert bookmarks.version_in(event(encoding, "1234"), KIND) == ""
    bookmarks.learn(event(encoding, "1234"), KIND, "1234")
    assert bookmarks.version_in(event(encoding, "9876"), KIND) == "9876"
    assert bookmarks.version_in(event(encoding, "9876"), WatchKind.PODS) == ""


@each_encoding
@pytest.mark.parametrize(
    "change",
    [
        lambda chunk: chunk[:-1],
        lambda chunk: chunk + chunk,
        lambda chunk: chunk.replace(b"1234", b"12a4"),
        lambda chunk: chunk.replace(b"1234", b""),
        lambda chunk: chunk.replace(b"BOOKMARK", b"MODIFIED"),
        lambda _chunk: b"",
    ],
)
def test_nothing_else_is_taken_for_one(
    encoding: Encoding, change: Callable[[bytes], bytes]
) -> None:
    bookmarks = Bookmarks()
    chunk = event(encoding, "1234")
    bookmarks.learn(chunk, KIND, "1234")
    assert bookmarks.version_in(change(chunk), KIND) == ""
    ends = event(encoding, "1234", annotations={"k8s.io/initial-events-end": "true"})
    assert bookmarks.version_in(ends, KIND) == ""
    assert bookmarks.version_in(event(encoding, "1234", name="1234"), KIND) == ""


def test_a_shape_that_is_not_clear_is_not_learnt() -> None:
    bookmarks = Bookmarks()
    for chunk, version in ((b"<12><12>", "12"), (b"<x>", "x"), (b"<>", "")):
        bookmarks.learn(chunk, KIND, version)
        assert bookmarks.version_in(chunk, KIND) == ""


@each_encoding
def test_a_version_of_more_digits_is_read_in_full(encoding: Encoding) -> None:
    """Both readings agree, whether the shape fits, as in JSON, or the lengths differ."""
    bookmarks = Bookmarks()
    bookmarks.learn(event(encoding, "999"), KIND, "999")
    longer = event(encoding, "1000")
    codec = encoding.codec
    [frame], _ = codec.split(b"", longer)
    found, version, _ = codec.decode_watch_event(frame, KIND)
    assert (found, version) == (EventType.BOOKMARK, "1000")
    assert bookmarks.version_in(longer, KIND) in {"", "1000"}


@each_encoding
def test_a_bookmark_of_the_short_way_is_one_of_the_reflector(encoding: Encoding) -> None:
    reflector = Reflector(0, KIND, "")
    reflector.open(Draws(1), 0)
    assert not reflector.is_between_events  # the first events are a snapshot
    reflector.phase = WatchPhase.STREAM
    assert reflector.is_between_events
    reflector.on_bookmark("7")
    assert reflector.version == "7"
    codec = encoding.codec
    chunk = event(encoding, "8")
    reflector.on_chunk(chunk[:-3], codec.decode_watch_event, codec.split)
    assert not reflector.is_between_events
    reflector.on_chunk(chunk[-3:], codec.decode_watch_event, codec.split)
    assert reflector.is_between_events
    assert reflector.version == "8"
