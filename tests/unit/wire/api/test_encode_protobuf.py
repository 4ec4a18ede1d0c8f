"""Every body in protobuf, against what Go's client makes of the same objects.

The bytes below are what scheme.Codecs of k8s.io/client-go v0.36.3 write as protobuf.
"""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_operations import READY, model
from world.random_objects import random_object

from fleet.k8s.effects import (
    ApiCall,
    CSINodeObject,
    EventObject,
    LeaseObject,
    LeaseRenewal,
    MirrorPodObject,
    MirrorTarget,
    NodeId,
    NodeObject,
    Op,
    Payload,
    PodTarget,
    ResourceSlices,
    TokenRequest,
)
from fleet.k8s.events import ObjectRef
from fleet.k8s.volumes import CSINodeUpdate
from fleet.wire.api import codec
from fleet.wire.api.encode_protobuf import renewed
from fleet.wire.api.operations import OPERATIONS, build
from fleet.wire.api.protobuf import object_from_json, object_to_json
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.http2.messages import ContentType, Request

LEASE = (
    b"k8s\x00\n\x1f\n\x16coordination.k8s.io/v1\x12\x05Lease\x12R\n:\n\x03n-0\x12\x00\x1a"
    b'\x0fkube-node-lease"\x00*\x002\x008\x00B\x00j\x16\n\x04Node\x1a\x03n-0"\x05uid-0*'
    b'\x02v1\x12\x14\n\x03n-0\x10("\x0b\x08\xe9\xf9\x83\xd8\x06\x10\x80\x94\xef:\x1a\x00'
    b'"\x00'
)
EVENT = (
    b"k8s\x00\n\x0b\n\x02v1\x12\x05Event\x12\xb1\x01\n\x1c\n\x05web.1\x12\x00\x1a\x07defau"
    b'lt"\x00*\x002\x008\x00B\x00\x124\n\x03Pod\x12\x07default\x1a\x03web"\x03u-1*\x02v1'
    b'2\x0242:\x12spec.containers{c}\x1a\x07Started"\x11Container started*\x0e\n\x07kubel'
    b"et\x12\x03n-02\x08\x08\xe9\xf9\x83\xd8\x06\x10\x00:\x08\x08\xe9\xf9\x83\xd8\x06\x10"
    b'\x00@\xac\x02J\x06NormalR\x00b\x00r\x07kubeletz\x03n-0\x1a\x00"\x00'
)
PROTOBUF = codec.protobuf()
AT_NS = 1795226857123456789
AT_S = AT_NS // 1_000_000_000
WEB = ObjectRef("Pod", "default", "web", "u-1", "42", "spec.containers{c}")
STARTED = EventObject(
    name="web.1",
    about=WEB,
    warning=False,
    reason="Started",
    message="Container started",
    times=300,
    first_s=AT_S,
    last_s=AT_S,
)


def request(
    op: Op, payload: Payload = None, key: str = "", *, json: bool = False, name: bytes = b"n-0"
) -> Request:
    operations = OPERATIONS if json else PROTOBUF.operations
    template = RenderedProfile(model(), extra_labels={"run": "r"})
    return build(ApiCall(NodeId(0), op, key, payload), Caller(0, name, template), operations)


def test_an_event_is_what_go_writes() -> None:
    sent = request(Op.CREATE_EVENT, STARTED)
    assert sent.body == EVENT
    assert sent.content_type is ContentType.PROTOBUF


MANIFEST: dict[str, Any] = {
    "metadata": {"namespace": "ns", "name": "s", "labels": {"b": "1", "a": "2"}},
    "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}],
        "tolerations": [{"operator": "Exists"}],
    },
    "status": {"phase": "Pending"},
}
MIRROR = MirrorPodObject(orjson.dumps(MANIFEST), "s-n-0", "hash", "file", AT_NS, "uid-0")
PAYLOADS: dict[Op, tuple[Payload, str]] = {
    Op.CREATE_NODE: (NodeObject((READY,)), ""),
    Op.CREATE_LEASE: (LeaseObject("uid-0", 40, AT_NS // 1000 * 1000), ""),
    Op.CREATE_CSINODE: (CSINodeObject("uid-0"), ""),
    Op.DELETE_CSINODE: (None, ""),
    Op.CREATE_TOKEN: (TokenRequest("ns", "sa", "vault", 3607, "web", "u-1"), ""),
    Op.CREATE_CSI_TOKEN: (TokenRequest("ns", "sa", "vault", 0, "web", "u-1", "disk"), ""),
    Op.CREATE_PULL_TOKEN: (
        TokenRequest("ns", "sa", "vault", 0, "web", "u-1", account_uid="u-2"),
        "",
    ),
    Op.DELETE_POD: (PodTarget("default", "web"), "u-1"),
    Op.DELETE_MIRROR_POD: (MirrorTarget("default", "web", ""), ""),
    Op.CREATE_MIRROR_POD: (MIRROR, ""),
    Op.CREATE_EVENT: (
        STARTED._replace(warning=True, message="é", annotations=(("k", "v"), ("a", "b"))),
        "",
    ),
    Op.DELETE_RESOURCE_SLICES: (None, ""),
    Op.DELETE_DRIVER_SLICES: (ResourceSlices("gpu.example.com"), ""),
}


@pytest.mark.parametrize("op", PAYLOADS)
def test_both_encodings_say_the_same(op: Op) -> None:
    payload, key = PAYLOADS[op]
    sent, as_json = request(op, payload, key), request(op, payload, key, json=True)
    assert sent.content_type is ContentType.PROTOBUF
    assert sent._replace(body=b"", content_type=ContentType.JSON) == as_json._replace(body=b"")
    shown = without_nothing(object_to_json(sent.body))
    assert shown == without_nothing(orjson.loads(as_json.body))


def without_nothing(value: Any) -> Any:
    """Leave out what JSON writes though it says nothing: null, and empty maps, lists and texts."""
    if isinstance(value, dict):
        kept = {key: without_nothing(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each is not None and each != ""}
    return [without_nothing(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("op", set(Op) - set(PAYLOADS) - {Op.RENEW_LEASE, Op.UPDATE_CSINODE})
def test_patches_and_reads_are_what_they_were(op: Op) -> None:
    assert op is Op.CREATE_RESOURCE_SLICE or PROTOBUF.operations[op].build is OPERATIONS[op].build


def test_a_mirror_is_sent_with_the_uid_of_its_pod_and_deleted_with_preconditions() -> None:
    """The server makes another uid; the preconditions may be empty. Source: mirror_client.go."""
    sent = request(Op.CREATE_MIRROR_POD, MIRROR, json=True).body
    assert orjson.loads(sent)["metadata"]["uid"] == MIRROR.uid
    for uid, preconditions in (("", {}), ("u-1", {"uid": "u-1"})):
        target = MirrorTarget("default", "web", uid)
        options = request(Op.DELETE_MIRROR_POD, target, json=True).body
        assert orjson.loads(options)["preconditions"] == preconditions


def test_a_mirror_pod_with_a_field_that_fleet_does_not_know_goes_as_json() -> None:
    spec = {**MANIFEST["spec"], "aFieldOfTheFuture": {"x": 1}}
    mirror = MIRROR._replace(manifest_json=orjson.dumps({**MANIFEST, "spec": spec}))
    sent = request(Op.CREATE_MIRROR_POD, mirror)
    assert sent.content_type is ContentType.JSON
    assert orjson.loads(sent.body)["spec"]["aFieldOfTheFuture"] == {"x": 1}


@pytest.mark.parametrize(
    "drivers", [[], [{"name": "other", "nodeID": "n", "topologyKeys": ["zone"]}]]
)
def test_a_driver_is_added_to_the_csinode_as_it_was_read(drivers: list[dict[str, Any]]) -> None:
    meta = {"name": "n-0", "uid": "u", "resourceVersion": "7"}
    head = {"kind": "CSINode", "apiVersion": "storage.k8s.io/v1"}
    base = object_from_json({**head, "metadata": meta, "spec": {"drivers": drivers}})
    sent = request(Op.UPDATE_CSINODE, CSINodeUpdate(base, "csi", "n-0", (), 5))
    assert sent.content_type is ContentType.PROTOBUF
    added = {"name": "csi", "nodeID": "n-0", "allocatable": {"count": 5}}
    assert object_to_json(sent.body) == {
        **head,
        "metadata": meta,
        "spec": {"drivers": [*drivers, added]},
    }


@given(st.integers(0, 2**32), st.integers(1, 2**33), st.integers(0, 999_999))
def test_a_renewal_changes_only_the_time(seed: int, seconds: int, micros: int) -> None:
    lease = random_object("Lease", "coordination.k8s.io/v1", seed)
    base = object_from_json(lease)
    body = renewed(base, seconds * 1_000_000_000 + micros * 1000)
    found = object_to_json(body)
    lease["spec"]["renewTime"] = found["spec"]["renewTime"]
    assert found == lease
    assert renewed(body, AT_NS) == renewed(base, AT_NS)
    sent = request(Op.RENEW_LEASE, LeaseRenewal(base, AT_NS))
    assert (sent.body, sent.content_type) == (renewed(base, AT_NS), ContentType.PROTOBUF)


@pytest.mark.parametrize("micros", [0, 1, 130_000, 268_435, 268_436, 999_999])
def test_a_renewal_is_what_go_writes(micros: int) -> None:
    times = [AT_S * 1_000_000_000 + each * 1000 for each in (micros, 123_456)]
    there_and_back = renewed(renewed(LEASE, times[0]), times[1])
    assert there_and_back == LEASE
