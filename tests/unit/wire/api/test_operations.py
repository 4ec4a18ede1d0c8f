"""Calls as bytes: what depends on a profile, and what the recorded judge does not see."""

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
    EventObject,
    LeaseObject,
    LeaseRenewal,
    NodeId,
    NodeObject,
    NodeStatusPatch,
    Op,
    Owner,
)
from fleet.k8s.events import ObjectRef
from fleet.k8s.pods import NodeCondition
from fleet.profile.addresses import ClusterRange, ControllerPreset
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.wire.api import codec
from fleet.wire.api.operations import OPERATIONS, build
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.http2.messages import Request

NODE = NodeId(0)
EPOCH_S = SimClock.EPOCH_NS // 1_000_000_000
READY = NodeCondition("Ready", "True", EPOCH_S, EPOCH_S, "KubeletReady", "fine")


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
    taint = {"key": "fleet.emulator/fake", "value": "true", "effect": "NoSchedule"}
    assert node["spec"]["taints"][-1] == taint
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


def test_a_lease_without_a_time_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        request(Op.RENEW_LEASE, LeaseRenewal(b"{}", 0))


def test_a_uid_that_was_mangled_on_its_way_is_still_json() -> None:
    body = request(Op.CREATE_LEASE, LeaseObject('a"\1', 40, SimClock.EPOCH_NS)).body
    [owner] = orjson.loads(body)["metadata"]["ownerReferences"]
    assert owner["uid"] == 'a"\1'


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


def test_combined_events_name_no_reporter() -> None:
    about = ObjectRef("Pod", "ns", "p", "uid-2", "7", "spec.containers{c}")
    event = EventObject("p.1", about, False, "Started", "m", 1, EPOCH_S, EPOCH_S)  # noqa: FBT003
    for message, reporter in (("m", ("kubelet", "n-0")), (COMBINED + "m", ("", ""))):
        body = orjson.loads(request(Op.CREATE_EVENT, event._replace(message=message)).body)
        assert (body["reportingComponent"], body["reportingInstance"]) == reporter


def test_the_heartbeat_client_gives_up_within_a_status_period_and_the_lease() -> None:
    minute = KubeletConfiguration.model_validate({"nodeStatusUpdateFrequency": "60s"})
    slow = dataclasses.replace(model(), kubelet=minute)
    read = request(Op.GET_NODE_HEARTBEAT, of=slow)
    assert read.path.endswith(b"?timeout=40s")
    assert read.timeout_ns == 40 * 1_000_000_000
    patch = NodeStatusPatch(conditions=((None, READY),))
    assert request(Op.PATCH_NODE_STATUS_HEARTBEAT, patch, of=slow).path.endswith(b"?timeout=40s")
    assert request(Op.PATCH_NODE_STATUS, patch, of=slow).path == b"/api/v1/nodes/n-0/status"


def test_only_shared_connections_name_the_user() -> None:
    assert request(Op.GET_NODE_CSI).user == b""
    assert request(Op.GET_NODE_CSI, shared=True).user == b"system:node:n-0"


def test_every_call_has_a_row_and_every_owner_a_call() -> None:
    assert set(OPERATIONS) == set(codec.protobuf().operations) == set(Op)
    assert {row.owner for row in OPERATIONS.values()} == set(Owner)
