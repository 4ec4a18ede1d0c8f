"""Pods as an API server sent them: equal records of both encodings, and what is looked up."""

import re
from pathlib import Path

import pytest
from test_decode_protobuf import as_dict

from fleet.k8s.pods import RunningState
from fleet.wire.api import decode_pod as json_pods
from fleet.wire.api.decode_protobuf import _container_status, _read_container_status, decode_pod
from fleet.wire.api.decode_protobuf import decode_pod_view as decode_view
from fleet.wire.api.protobuf import field

PODS = Path(__file__).parents[4] / "bench" / "pods"
ID = b"containerd://" + 64 * b"a"
STATE = field(2, field(2, field(1, bytes((8, 5)))))
CONTAINER = field(1, b"c") + STATE + bytes((0x1A, 0, 0x20, 1)) + field(6, b"web:1")


@pytest.mark.parametrize("name", ["bound", "running"])
def test_both_encodings_say_the_same(name: str) -> None:
    raw, json = ((PODS / f"{name}.{kind}").read_bytes() for kind in ("pb", "json"))
    assert as_dict(decode_pod(raw)) == as_dict(json_pods.decode_pod(json))
    assert decode_view(raw) == json_pods.decode_pod_view(json)
    assert decode_view(raw).status is decode_pod(raw).status  # read once for the watch and the GET


def test_another_pod_of_the_template_differs_in_its_own_parts_only() -> None:
    raw = (PODS / "running.pb").read_bytes()
    first = decode_pod(raw)
    ids = re.findall(rb"containerd://\w{64}", raw)
    second = decode_pod(raw.replace(ids[0], ID))
    assert second.status.containers[0].container_id == ID.decode()
    assert second.status.containers[1] == first.status.containers[1]
    changed = second.status.containers[0]._replace(container_id=ids[0].decode())
    assert changed == first.status.containers[0]
    assert second.spec.containers is first.spec.containers


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        field(1, b"c"),
        field(8, ID),
        field(8, ID) + CONTAINER,
        CONTAINER + field(8, ID) + bytes((0x48, 1)),
        CONTAINER + field(8, b"cri-o://1"),
        field(1, b"c" * 60) + CONTAINER[3:] + field(8, ID),
        field(1, b"c" * 200) + STATE + field(8, ID),
        field(1, b"c" + field(8, ID)) + STATE + b"\x1a\x00",
        field(1, b"c") + STATE + b"\x1a\x00" + field(6, b"web" + field(8, ID)) + field(7, b"d"),
        field(1, b"c") + field(2, field(1, field(2, b"m" * 150))) + b"\x1a\x00" + field(8, ID),
        field(1, b"c") + STATE + field(3, field(3, field(3, b"Error"))) + field(8, ID),
    ],
)
def test_a_container_is_read_the_same_whatever_its_order(raw: bytes) -> None:
    for _ in range(2):  # what is looked up is kept
        assert _container_status(raw) == _read_container_status(raw)


def test_the_state_is_each_pods_own() -> None:
    later = CONTAINER.replace(bytes((8, 5)), bytes((8, 6))) + field(8, ID)
    found = [_container_status(each) for each in (CONTAINER + field(8, ID), later)]
    assert [each.state for each in found] == [RunningState(5), RunningState(6)]
