"""Both encodings become the same records, whatever an object has."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decode_json import pod_object
from world.random_objects import random_object

from fleet.k8s.effects import Op, WatchKind
from fleet.k8s.pods import EventType, LeaseView, NodeView, Pod
from fleet.wire.api import codec, decode_json
from fleet.wire.api import decode_pod as json_pods
from fleet.wire.api.codec import decode_reply
from fleet.wire.api.decode_protobuf import (
    decode_list,
    decode_node,
    decode_pod,
    decode_pod_view,
    decode_status,
    decode_watch_event,
)
from fleet.wire.api.operations import OPERATIONS
from fleet.wire.api.protobuf import (
    contents,
    envelope_head,
    enveloped,
    message_class,
    object_from_json,
    object_to_json,
)
from fleet.wire.http2.messages import Response

PROTOBUF = codec.protobuf()
SEEDS = st.integers(0, 2**32)
thorough = settings(max_examples=100, deadline=None)


def raw(obj: dict[str, Any]) -> bytes:
    return contents(object_from_json(obj))


def as_dict(pod: Pod) -> dict[str, object]:
    """Return all of a pod but its fingerprint and its spec's digest, which are of the bytes."""
    found = {name: getattr(pod, name) for name in Pod.__slots__ if name != "fingerprint"}
    return {**found, "spec": pod.spec._replace(digest=0)}


def without_report(record: object) -> object:
    """Leave out what is kept of a Node as it came."""
    return record._replace(report=None) if isinstance(record, NodeView) else record


def frame(kind: str, obj: dict[str, Any]) -> bytes:
    event = message_class("WatchEvent")(type=kind)
    event.object.raw = object_from_json(obj)
    data: bytes = event.SerializeToString()
    return data


def from_protobuf(obj: dict[str, Any]) -> Pod:
    return decode_pod(raw(obj))


def from_json(obj: dict[str, Any]) -> Pod:
    return json_pods.decode_pod(orjson.dumps(obj))


each_way = pytest.mark.parametrize("read", [from_protobuf, from_json])
Read = Callable[[dict[str, Any]], Pod]


def test_a_pod_of_every_part() -> None:
    obj = pod_object()
    assert as_dict(decode_pod(raw(obj))) == as_dict(json_pods.decode_pod(orjson.dumps(obj)))
    assert decode_pod_view(raw(obj)) == json_pods.decode_pod_view(orjson.dumps(obj))


@each_way
@pytest.mark.parametrize(
    ("owners", "is_controlled"),
    [
        ([], False),
        ([{"kind": "Job", "name": "j", "uid": "u", "controller": True}], True),
        ([{"kind": "Node", "name": "n", "uid": "u"}], False),
        ([{"kind": "Node", "uid": "u"}, {"kind": "Job", "uid": "j", "controller": True}], True),
    ],
)
def test_whether_a_controller_owns_a_pod(
    owners: list[dict[str, Any]],
    is_controlled: bool,  # noqa: FBT001
    read: Read,
) -> None:
    obj = pod_object()
    managers = obj["metadata"].pop("managedFields")  # Go writes them last
    obj["metadata"] |= {"ownerReferences": owners, "managedFields": managers}
    assert read(obj).is_controlled is is_controlled


@each_way
@pytest.mark.parametrize(
    ("meta", "end_matters"),
    [
        ({}, False),
        ({"finalizers": ["batch.kubernetes.io/job-tracking"]}, True),
        ({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "u"}]}, False),
        ({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet"}]}, False),
        ({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet"}]}, False),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "ReplicationController"}]}, False),
        ({"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "uid": "u"}]}, True),
        ({"ownerReferences": [{"apiVersion": "x.io/v1", "kind": "StatefulSet"}]}, True),
    ],
)
def test_who_waits_for_the_last_status_of_a_pod(
    meta: dict[str, Any],
    end_matters: bool,  # noqa: FBT001
    read: Read,
) -> None:
    obj = pod_object()
    managers = obj["metadata"].pop("managedFields")
    obj["metadata"] |= {**meta, "managedFields": managers}
    assert read(obj).end_matters is end_matters


@thorough
@given(SEEDS)
def test_pods(seed: int) -> None:
    obj = random_object("Pod", "v1", seed)
    body = orjson.dumps(obj)
    assert as_dict(decode_pod(raw(obj))) == as_dict(json_pods.decode_pod(body))
    assert decode_pod_view(raw(obj)) == json_pods.decode_pod_view(body)


@thorough
@given(SEEDS)
def test_nodes(seed: int) -> None:
    obj = random_object("Node", "v1", seed)
    node, other = decode_node(raw(obj)), decode_json.decode_node(obj)
    assert without_report(node) == without_report(other)
    assert node.report is not None
    shown = object_to_json(object_from_json(obj)).get("status", {})
    assert node.report.status() == {
        name: shown[name] for name in decode_json.REPORTED if shown.get(name)
    }


def test_a_part_of_a_node_that_cannot_be_read_is_left_out() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    told = {"capacity": {"cpu": "8"}, "nodeInfo": {"osImage": "Ubuntu"}}
    found = decode_node(raw({**node, "status": told}).replace(b"Ubuntu", b"Ubunt\xff"))
    assert found.report is not None
    assert found.report.status() == {"capacity": {"cpu": "8"}}


@each_way
def test_pods_of_a_template_share_their_spec(read: Read) -> None:
    one = read(pod_object("one", "kube-api-access-aaaaa", "n1"))
    two = read(pod_object("two", "kube-api-access-bbbbb", "n2"))
    assert one.spec.containers is two.spec.containers
    assert one.spec.volumes is two.spec.volumes
    assert (one.token_suffix, two.token_suffix) == ("aaaaa", "bbbbb")
    assert (one.node_name, two.node_name) == ("n1", "n2")
    assert one.fingerprint == two.fingerprint


@each_way
def test_a_pod_keeps_the_annotations_that_it_shows(read: Read) -> None:
    obj = pod_object()
    obj["metadata"]["annotations"]["example.com/a"] = "b"
    assert ("example.com/a", "b") not in read(obj).annotations
    field = {"fieldPath": "metadata.annotations['example.com/a']"}
    env = [{"name": "A", "valueFrom": {"fieldRef": field}}]
    obj["spec"]["containers"][0]["env"] = env
    assert ("example.com/a", "b") in read(obj).annotations


@each_way
@pytest.mark.parametrize(
    ("path", "value", "changes"),
    [
        (("metadata", "labels"), {"app": "new"}, True),
        (("metadata", "annotations"), {"a": "b"}, True),
        (("metadata", "resourceVersion"), "43", False),
        (("metadata", "managedFields"), [], False),
        (("spec", "priority"), 10, True),
        (("status", "phase"), "Failed", False),
    ],
)
def test_the_fingerprint_is_of_spec_labels_and_annotations(
    path: tuple[str, str], value: object, read: Read, *, changes: bool
) -> None:
    obj = pod_object()
    before = read(obj).fingerprint
    obj[path[0]][path[1]] = value
    assert (read(obj).fingerprint != before) is changes


ANSWERS = [
    (Op.GET_CSINODE, "CSINode", "storage.k8s.io/v1"),
    (Op.CREATE_TOKEN, "TokenRequest", "authentication.k8s.io/v1"),
    (Op.GET_CLAIM, "PersistentVolumeClaim", "v1"),
    (Op.GET_VOLUME, "PersistentVolume", "v1"),
    (Op.GET_ATTACHMENT, "VolumeAttachment", "storage.k8s.io/v1"),
    (Op.GET_RESOURCE_CLAIM, "ResourceClaim", "resource.k8s.io/v1"),
    (Op.GET_SERVICE_ACCOUNT, "ServiceAccount", "v1"),
    (Op.GET_NODE_CSI, "Node", "v1"),
    (Op.GET_NODE_EXISTING, "Node", "v1"),
    (Op.GET_POD, "Pod", "v1"),
    (Op.GET_CONFIG_MAP, "ConfigMap", "v1"),
    (Op.GET_SECRET, "Secret", "v1"),
    (Op.GET_CSI_SECRET, "Secret", "v1"),
    (Op.GET_LEASE, "Lease", "coordination.k8s.io/v1"),
]


@pytest.mark.parametrize(("op", "kind", "api_version"), ANSWERS)
@settings(parent=thorough, max_examples=20)
@given(seed=SEEDS)
def test_answers(op: Op, kind: str, api_version: str, seed: int) -> None:
    obj = random_object(kind, api_version, seed)
    body = object_from_json(obj)
    read = decode_reply(op, Response(200, body, 0, 0), PROTOBUF)
    record: Any = decode_reply(op, Response(200, orjson.dumps(obj), 0, 0)).record
    if op in {Op.GET_CSINODE, Op.GET_LEASE}:  # keeps the bytes for its PUT
        record = record._replace(body=body)
    assert without_report(read.record) == without_report(record)
    assert read.ok


def test_every_way_to_read_an_answer_is_tried() -> None:
    tried = {OPERATIONS[op].read for op, _, _ in ANSWERS}
    assert {row.read for row in OPERATIONS.values()} - tried == {None, decode_json.decode_lease}


WATCHED = [
    (WatchKind.NODE, "Node", "v1"),
    (WatchKind.PODS, "Pod", "v1"),
    (WatchKind.CSI_DRIVERS, "CSIDriver", "storage.k8s.io/v1"),
    (WatchKind.CONFIG_MAP, "ConfigMap", "v1"),
    (WatchKind.SECRET, "Secret", "v1"),
    (WatchKind.RESOURCE_SLICES, "ResourceSlice", "resource.k8s.io/v1"),
    (WatchKind.SERVICES, "Service", "v1"),
    (WatchKind.RUNTIME_CLASSES, "RuntimeClass", "node.k8s.io/v1"),
]


@pytest.mark.parametrize(("kind", "name", "api_version"), WATCHED)
@settings(parent=thorough, max_examples=20)
@given(seed=SEEDS)
def test_watched_objects(kind: WatchKind, name: str, api_version: str, seed: int) -> None:
    obj = random_object(name, api_version, seed)
    line = orjson.dumps({"type": "ADDED", "object": obj})
    event, version, record = decode_watch_event(frame("ADDED", obj), kind)
    expected = decode_json.decode_watch_event(line, kind)
    assert (event, version) == expected[:2]
    if isinstance(record, Pod):
        assert isinstance(expected[2], Pod)
        assert as_dict(record) == as_dict(expected[2])
    else:
        assert without_report(record) == without_report(expected[2])

    page = message_class("List")()
    page.metadata.resourceVersion = "77"
    setattr(page.metadata, "continue", "more")
    page.items.append(raw(obj))
    body = enveloped(envelope_head("v1", "PodList"), page.SerializeToString())
    found = decode_list(body, kind)
    meta = {"resourceVersion": "77", "continue": "more"}
    listed = decode_json.decode_list(orjson.dumps({"metadata": meta, "items": [obj]}), kind)
    assert found[:2] == listed[:2]
    assert len(found[2]) == len(listed[2])


@pytest.mark.parametrize("kind", WatchKind)
def test_bookmarks_and_errors(kind: WatchKind) -> None:
    meta: dict[str, Any] = {"resourceVersion": "12"}
    bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": meta}
    assert decode_watch_event(frame("BOOKMARK", bookmark), kind) == (EventType.BOOKMARK, "12", None)
    meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    assert decode_watch_event(frame("BOOKMARK", bookmark), kind) == (EventType.SYNCED, "12", None)
    status = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired"}
    assert decode_watch_event(frame("ERROR", status), kind) == (EventType.ERROR, "", 410)


def test_refusals_come_as_protobuf_json_or_text() -> None:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "code": 409,
        "reason": "Conflict",
        "message": "m",
    }
    for body in (object_from_json(status), orjson.dumps(status)):
        assert decode_status(body) == ("Conflict", "m")
    assert decode_status(b"Too many requests, please try again later.\n")[1].startswith("Too many")


def test_a_lease_stays_as_it_came() -> None:
    answer = decode_reply(Op.RENEW_LEASE, Response(200, b"k8s\x00...", 0, 0), PROTOBUF)
    assert answer.record == LeaseView(b"k8s\x00...")


@thorough
@given(st.sampled_from(ANSWERS), SEEDS)
def test_nothing_is_lost_on_the_way_there_and_back(row: tuple[Op, str, str], seed: int) -> None:
    obj = random_object(row[1], row[2], seed)
    assert object_to_json(object_from_json(obj)) == obj
