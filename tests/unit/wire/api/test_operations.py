"""Every call as bytes, against what a recorded kubelet 1.36.3 sends."""

import dataclasses
import functools
import ipaddress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world.sim_clock import SimClock

from fleet.k8s.effects import (
    COMBINED,
    ApiCall,
    CSINodeObject,
    EventObject,
    LeaseObject,
    LeaseRenewal,
    NodeId,
    NodeObject,
    NodeStatusPatch,
    Op,
    Owner,
    PodTarget,
    TokenRequest,
)
from fleet.k8s.events import ObjectRef
from fleet.k8s.pods import NodeCondition
from fleet.k8s.volumes import ObjectTarget
from fleet.profile.addresses import ClusterRange, ControllerPreset
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.wire.api import codec
from fleet.wire.api.operations import MIGRATED_PLUGINS, OPERATIONS, build
from fleet.wire.api.requests import Caller, RenderedProfile, node_status_patch
from fleet.wire.http2.messages import ContentType, Request

NODE = NodeId(0)
EPOCH_S = SimClock.EPOCH_NS // 1_000_000_000
STAMP = "2026-01-01T00:00:00Z"
READY = NodeCondition("Ready", "True", EPOCH_S, EPOCH_S, "KubeletReady", "fine")
LEASES = b"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@functools.cache
def model() -> NodeModel:
    return load_mix().model_of(0)


def request(
    op: Op,
    payload: object = None,
    key: str = "",
    *,
    shared: bool = False,
    of: NodeModel | None = None,
    preset: ControllerPreset | None = None,
    index: int = 0,
) -> Request:
    taint = ("fleet.emulator/fake", "true", "NoSchedule")
    template = RenderedProfile(
        of or model(),
        extra_labels={"run": "r"},
        extra_annotations={"owner": "r/uid"},
        extra_taints=(taint,),
        impersonate=shared,
        preset=preset,
    )
    call = ApiCall(NODE, op, key, payload)  # type: ignore[arg-type]
    return build(call, Caller(index, b"n-0", template))


def test_a_node_registers_with_what_the_controllers_would_give_it() -> None:
    preset = ControllerPreset((ClusterRange(ipaddress.IPv4Network("10.128.0.0/9"), 24),))
    sent = request(Op.CREATE_NODE, NodeObject((READY,)), preset=preset, index=700)
    node = orjson.loads(sent.body)
    assert node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] == "30"
    assert node["metadata"]["annotations"]["owner"] == "r/uid"
    assert node["spec"]["podCIDR"] == "10.253.67.0/24"
    assert node["spec"]["podCIDRs"] == ["10.253.67.0/24"]
    beyond = request(Op.CREATE_NODE, NodeObject((READY,)), preset=preset, index=1 << 15)
    assert "podCIDR" not in orjson.loads(beyond.body)["spec"]
    without = orjson.loads(request(Op.CREATE_NODE, NodeObject((READY,))).body)
    assert "podCIDR" not in without["spec"]
    assert "node.alpha.kubernetes.io/ttl" not in without["metadata"]["annotations"]


def test_a_node_registers_without_the_labels_that_an_administrator_sets() -> None:
    role = "node-role.kubernetes.io/worker"
    of = dataclasses.replace(model(), labels={role: "", "kept": "x"})
    assert of.admin_labels == {role}
    template = RenderedProfile(of, extra_labels={"run": "r"}, withheld=of.admin_labels)
    call = ApiCall(NODE, Op.CREATE_NODE, "", NodeObject((READY,)))
    labels = orjson.loads(build(call, Caller(0, b"n-0", template)).body)["metadata"]["labels"]
    assert role not in labels
    assert (labels["kept"], labels["run"]) == ("x", "r")


def test_a_node_registers_as_its_profile_says() -> None:
    sent = request(Op.CREATE_NODE, NodeObject((READY,)))
    node = orjson.loads(sent.body)
    assert (sent.method, sent.path, sent.content_type) == (
        b"POST",
        b"/api/v1/nodes",
        ContentType.JSON,
    )
    assert list(node) == ["kind", "apiVersion", "metadata", "spec", "status"]
    assert node["metadata"]["name"] == "n-0"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n-0"
    assert node["metadata"]["labels"]["run"] == "r"
    assert node["metadata"]["annotations"]["owner"] == "r/uid"
    assert node["spec"]["taints"][-1] == {
        "key": "fleet.emulator/fake",
        "value": "true",
        "effect": "NoSchedule",
    }
    assert node["status"]["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "lastHeartbeatTime": STAMP,
            "lastTransitionTime": STAMP,
            "reason": "KubeletReady",
            "message": "fine",
        }
    ]
    assert node["status"]["capacity"] == model().capacity
    assert node["status"]["addresses"][1] == {"type": "Hostname", "address": "n-0"}


def test_a_lease_is_owned_by_its_node() -> None:
    sent = request(Op.CREATE_LEASE, LeaseObject("uid-1", 40, SimClock.EPOCH_NS + 1_500))
    assert sent.path == LEASES + b"?timeout=10s"
    assert orjson.loads(sent.body) == {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {
            "name": "n-0",
            "namespace": "kube-node-lease",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": "uid-1"}
            ],
        },
        "spec": {
            "holderIdentity": "n-0",
            "leaseDurationSeconds": 40,
            "renewTime": "2026-01-01T00:00:00.000001Z",
        },
    }


def test_a_renewal_changes_nothing_but_the_time() -> None:
    base = (
        b'{"metadata":{"managedFields":[{"fieldsV1":{"f:renewTime":{}}}]},'
        b'"spec":{"renewTime":"2025-12-31T23:59:59.000000Z"}}'
    )
    sent = request(Op.RENEW_LEASE, LeaseRenewal(base, SimClock.EPOCH_NS))
    assert (sent.method, sent.path) == (b"PUT", LEASES + b"/n-0?timeout=10s")
    assert sent.body == base.replace(b"2025-12-31T23:59:59.0", b"2026-01-01T00:00:00.0")
    assert sent.timeout_ns == 10_000_000_000


def test_a_lease_without_a_time_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        request(Op.RENEW_LEASE, LeaseRenewal(b"{}", 0))


def test_an_unchanged_status_is_an_empty_patch() -> None:
    assert node_status_patch(NodeStatusPatch(conditions=((READY, READY),))) == b"{}"


def test_a_heartbeat_names_the_type_and_the_time() -> None:
    later = READY._replace(heartbeat_s=EPOCH_S + 10)
    pressure = READY._replace(type="PIDPressure")
    patch = NodeStatusPatch(conditions=((pressure, pressure), (READY, later)))
    assert node_status_patch(patch) == (
        b'{"status":{"$setElementOrder/conditions":[{"type":"PIDPressure"},{"type":"Ready"}],'
        b'"conditions":[{"lastHeartbeatTime":"2026-01-01T00:00:10Z","type":"Ready"}]}}'
    )


def test_labels_and_further_status_ride_along() -> None:
    patch = NodeStatusPatch((), (("a", "b"),), (("c", "d"),), b'"images":[]')
    assert orjson.loads(node_status_patch(patch)) == {
        "metadata": {"annotations": {"c": "d"}, "labels": {"a": "b"}},
        "status": {"images": []},
    }


@given(st.text(max_size=40))
def test_any_message_survives(message: str) -> None:
    event = EventObject(
        name="n-0.1",
        about=ObjectRef("Node", "", "n-0"),
        warning=True,
        reason="R",
        message=message,
        times=2,
        first_s=EPOCH_S,
        last_s=EPOCH_S + 1,
    )
    sent = orjson.loads(request(Op.CREATE_EVENT, event).body)
    assert sent["message"] == message
    assert sent["involvedObject"] == {"kind": "Node", "name": "n-0", "apiVersion": "v1"}
    patched = request(Op.PATCH_EVENT, event)
    assert patched.path == b"/api/v1/namespaces/default/events/n-0.1"
    assert orjson.loads(patched.body) == {
        "count": 2,
        "lastTimestamp": "2026-01-01T00:00:01Z",
        "message": message,
    }


def test_an_event_about_a_container_names_it() -> None:
    about = ObjectRef("Pod", "ns", "p", "uid-2", "7", "spec.containers{c}")
    event = EventObject("p.1", about, False, "Started", "m", 1, EPOCH_S, EPOCH_S)  # noqa: FBT003
    sent = request(Op.CREATE_EVENT, event)
    assert sent.path == b"/api/v1/namespaces/ns/events"
    body = orjson.loads(sent.body)
    assert (body["type"], body["source"]) == ("Normal", {"component": "kubelet", "host": "n-0"})
    assert body["involvedObject"] == {
        "kind": "Pod",
        "namespace": "ns",
        "name": "p",
        "uid": "uid-2",
        "apiVersion": "v1",
        "resourceVersion": "7",
        "fieldPath": "spec.containers{c}",
    }
    assert (body["reportingComponent"], body["reportingInstance"]) == ("kubelet", "n-0")
    combined = event._replace(message=COMBINED + "m")
    body = orjson.loads(request(Op.CREATE_EVENT, combined).body)
    assert (body["reportingComponent"], body["reportingInstance"]) == ("", "")


def test_a_token_is_bound_to_its_pod() -> None:
    sent = request(Op.CREATE_TOKEN, TokenRequest("ns", "sa", "", 3607, "p", "uid-2"))
    assert sent.path == b"/api/v1/namespaces/ns/serviceaccounts/sa/token"
    spec = orjson.loads(sent.body)["spec"]
    assert spec == {
        "audiences": None,
        "expirationSeconds": 3607,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "uid-2"},
    }
    other = request(Op.CREATE_TOKEN, TokenRequest("ns", "sa", "vault", 600, "p", "uid-2"))
    assert orjson.loads(other.body)["spec"]["audiences"] == ["vault"]
    free = request(Op.CREATE_CSI_TOKEN, TokenRequest("ns", "sa", "", 0, "p", "uid-2", "disk"))
    assert free.path == sent.path
    assert orjson.loads(free.body)["spec"]["expirationSeconds"] is None


@pytest.mark.parametrize(
    ("op", "resource"), [(Op.GET_CONFIG_MAP, b"configmaps"), (Op.GET_SECRET, b"secrets")]
)
def test_what_was_read_before_may_come_from_the_servers_cache(op: Op, resource: bytes) -> None:
    path = b"/api/v1/namespaces/ns/%b/o" % resource
    first = request(op, ObjectTarget("ns", "o", "v", is_refresh=False))
    again = request(op, ObjectTarget("ns", "o", "v", is_refresh=True))
    assert (first.method, first.path) == (b"GET", path)
    assert again.path == path + b"?resourceVersion=0"


def test_a_pod_is_deleted_by_uid_at_once() -> None:
    sent = request(Op.DELETE_POD, PodTarget("ns", "p"), "uid-2")
    assert (sent.method, sent.path) == (b"DELETE", b"/api/v1/namespaces/ns/pods/p")
    options = orjson.loads(sent.body)
    assert (options["gracePeriodSeconds"], options["preconditions"]) == (0, {"uid": "uid-2"})


@pytest.mark.parametrize(
    ("op", "line"),
    [
        (Op.GET_NODE_CSI, b"GET /api/v1/nodes/n-0"),
        (Op.GET_NODE_EXISTING, b"GET /api/v1/nodes/n-0"),
        (Op.GET_NODE_HEARTBEAT, b"GET /api/v1/nodes/n-0?timeout=10s"),
        (Op.PROBE_CSINODE, b"GET /apis/storage.k8s.io/v1/csinodes/n-0?resourceVersion=0"),
        (Op.GET_CSINODE, b"GET /apis/storage.k8s.io/v1/csinodes/n-0"),
        (Op.DELETE_CSINODE, b"DELETE /apis/storage.k8s.io/v1/csinodes/n-0"),
        (Op.GET_LEASE, b"GET " + LEASES + b"/n-0?timeout=10s"),
        (
            Op.DELETE_RESOURCE_SLICES,
            b"DELETE /apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn-0",
        ),
    ],
)
def test_calls_without_a_payload(op: Op, line: bytes) -> None:
    sent = request(op)
    assert sent.method + b" " + sent.path == line


def test_the_heartbeat_client_gives_up_within_a_status_period_and_the_lease() -> None:
    minute = KubeletConfiguration.model_validate({"nodeStatusUpdateFrequency": "60s"})
    slow = dataclasses.replace(model(), kubelet=minute)
    read = request(Op.GET_NODE_HEARTBEAT, of=slow)
    assert read.path.endswith(b"?timeout=40s")
    assert read.timeout_ns == 40 * 1_000_000_000
    patch = NodeStatusPatch(conditions=((None, READY),))
    assert request(Op.PATCH_NODE_STATUS_HEARTBEAT, patch, of=slow).path.endswith(b"?timeout=40s")
    assert request(Op.PATCH_NODE_STATUS, patch, of=slow).path == b"/api/v1/nodes/n-0/status"


def test_a_csinode_has_no_drivers_yet() -> None:
    body = orjson.loads(request(Op.CREATE_CSINODE, CSINodeObject("uid-1")).body)
    [plugins] = body["metadata"]["annotations"].values()
    assert plugins == MIGRATED_PLUGINS.decode()
    assert plugins.count(",") == 6
    assert body["spec"] == {"drivers": None}


def test_only_shared_connections_name_the_user() -> None:
    assert request(Op.GET_NODE_CSI).user == b""
    assert request(Op.GET_NODE_CSI, shared=True).user == b"system:node:n-0"


def test_every_call_has_a_row_and_every_owner_a_call() -> None:
    assert set(OPERATIONS) == set(codec.protobuf().operations) == set(Op)
    assert {row.owner for row in OPERATIONS.values()} == set(Owner)
