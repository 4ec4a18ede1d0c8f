"""What a server may really send, as the beginning of inputs that it may not."""

from functools import cache
from random import Random

import hpack
import orjson
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from world.random_objects import random_object

from fleet.k8s.effects import WatchKind
from fleet.wire.api.protobuf import field, message_class, object_from_json

OBJECTS = 12  # of each kind
KINDS = {
    WatchKind.PODS: ("Pod", "v1"),
    WatchKind.NODE: ("Node", "v1"),
    WatchKind.SECRET: ("Secret", "v1"),
    WatchKind.CONFIG_MAP: ("ConfigMap", "v1"),
    WatchKind.CSI_DRIVERS: ("CSIDriver", "storage.k8s.io/v1"),
    WatchKind.RESOURCE_SLICES: ("ResourceSlice", "resource.k8s.io/v1"),
}
OTHERS = (
    ("Lease", "coordination.k8s.io/v1"),
    ("CSINode", "storage.k8s.io/v1"),
    ("PersistentVolume", "v1"),
    ("PersistentVolumeClaim", "v1"),
    ("VolumeAttachment", "storage.k8s.io/v1"),
    ("ResourceClaim", "resource.k8s.io/v1"),
)
TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
SYNCED = {"k8s.io/initial-events-end": "true"}


def objects(kind: str, version: str) -> list[dict[str, object]]:
    return [random_object(kind, version, seed) for seed in range(OBJECTS)]


def json_events(kind: WatchKind) -> list[bytes]:
    """Return events of a watch, one a line, as Go writes them."""
    found = []
    for at, obj in enumerate(objects(*KINDS[kind])):
        event = TYPES[at % len(TYPES)]
        if event == "BOOKMARK":
            obj["metadata"] = {"resourceVersion": "7", "annotations": SYNCED}
        elif event == "ERROR":
            obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": 410}  # noqa: PLW2901
        found.append(orjson.dumps({"type": event, "object": obj}) + b"\n")
    return found


def protobuf_events(kind: WatchKind) -> list[bytes]:
    """Return events of a watch, each after its length."""
    found = []
    for at, obj in enumerate(objects(*KINDS[kind])):
        event = message_class("WatchEvent")(type=TYPES[at % (len(TYPES) - 1)])
        event.object.raw = object_from_json(obj)
        data: bytes = event.SerializeToString()
        found.append(len(data).to_bytes(4, "big") + data)
    return found


def json_lists(kind: WatchKind) -> list[bytes]:
    found = objects(*KINDS[kind])
    meta = {"resourceVersion": "12", "continue": "abc"}
    return [
        orjson.dumps({"kind": "List", "metadata": meta, "items": found[at : at + at % 3]})
        for at in range(OBJECTS)
    ]


def protobuf_lists(kind: WatchKind) -> list[bytes]:
    type_meta = field(1, field(1, b"v1") + field(2, b"List"))
    found = []
    for each in protobuf_events(kind):
        raw = message_class("WatchEvent").FromString(each[4:]).object.raw
        listed = field(1, field(2, b"12") + field(3, b"abc")) + field(2, raw[20:])
        found.append(b"k8s\x00" + type_meta + field(2, listed) + b"\x1a\x00\x22\x00")
    return found


def bodies() -> tuple[list[bytes], list[bytes]]:
    """Return answers to calls in JSON and in protobuf."""
    found = [each for kind in (*KINDS.values(), *OTHERS) for each in objects(*kind)[:4]]
    return [orjson.dumps(each) for each in found], [object_from_json(each) for each in found]


def block(random: Random) -> bytes:
    """Return the header block of a response."""
    return random.choice(_blocks())


@cache
def _blocks() -> list[bytes]:
    random = Random(20)
    return [_block(random) for _ in range(400)]


def _block(random: Random) -> bytes:
    """Encode for a client whose table has no room."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    status = random.choice(("200", "201", "204", "404", "409", "410", "429", "503", "100", "000"))
    fields = [(":status", status), ("content-type", "application/json")]
    if random.randrange(2):
        value = random.choice(("1", "0", "-1", "3601", "9" * 5000, "1.5", "Fri, 1 Jan 2100"))
        fields.append(("retry-after", value))
    if random.randrange(8) == 0:
        fields.append(("x", "y" * random.choice((1, 300, 300, 300, 20_000))))
    return bytes(encoder.encode(fields, huffman=bool(random.randrange(2))))


def frames(random: Random) -> list[bytes]:
    """Return what a server says on a connection with streams 1 (a watch), 3 and 5, in order."""
    found: list[Frame] = [SettingsFrame(0, settings=_settings(random))]
    if random.randrange(10) == 0:
        found.clear()
    for _ in range(random.randrange(1, 9)):
        found += _some(random, random.choice((1, 1, 1, 3, 3, 5, 7, 2, 0)))
    return [_padded_wrongly(each, random) for each in found]


def _padded_wrongly(frame: Frame, random: Random) -> bytes:
    """Return a frame; of one with padding a few say another length of it."""
    data: bytes = frame.serialize()
    if "PADDED" in frame.flags and random.randrange(8) == 0:
        data = data[:9] + random.randbytes(1) + data[10:]
    return data


def _settings(random: Random) -> dict[int, int]:
    values = (0, 1, 100, 4096, 16384, 65535, 2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1)
    return {random.randrange(9): random.choice(values) for _ in range(random.randrange(4))}


def _some(random: Random, sid: int) -> list[Frame]:  # noqa: PLR0911 - one for each kind
    end = ["END_STREAM"] if random.randrange(4) == 0 else []
    body = random.randbytes(random.choice((0, 1, 9, 400)))
    match random.randrange(12):
        case 0 | 1 | 2:
            return [HeadersFrame(sid, block(random), flags=["END_HEADERS", *end])] if sid else []
        case 3 | 4 | 5:
            padded = {"pad_length": random.randrange(256), "flags": ["PADDED", *end]}
            if not sid:
                return []
            if random.randrange(3) == 0:
                return [DataFrame(sid, body, **padded)]
            return [DataFrame(sid, body, flags=end)]
        case 6:
            whole = block(random)
            at = random.randrange(len(whole) + 1)
            return [
                HeadersFrame(sid or 1, whole[:at], flags=end),
                ContinuationFrame(sid or 1, whole[at:], flags=["END_HEADERS"]),
            ]
        case 7:
            return [WindowUpdateFrame(sid, window_increment=random.choice((1, 65535, 2**31 - 1)))]
        case 8:
            return [PingFrame(0, b"12345678", flags=random.choice(([], ["ACK"])))]
        case 9:
            return [RstStreamFrame(sid or 1, error_code=random.choice((0, 7, 8, 99)))]
        case 10:
            last = random.choice((0, 1, 3, 2**31 - 1))
            return [GoAwayFrame(0, last_stream_id=last, error_code=0, additional_data=body)]
        case _:
            return [
                random.choice(
                    (
                        PriorityFrame(sid or 1, depends_on=0, stream_weight=1),
                        PushPromiseFrame(sid or 1, promised_stream_id=2, flags=["END_HEADERS"]),
                        SettingsFrame(0, settings=_settings(random)),
                    )
                )
            ]
