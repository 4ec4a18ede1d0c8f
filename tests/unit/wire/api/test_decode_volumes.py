import orjson
import pytest

from fleet.k8s.effects import ApiCall, NodeId, NodeStatusPatch, Op
from fleet.k8s.objects import Owner
from fleet.k8s.pod_template import decode_volumes
from fleet.k8s.pods import READ_ONLY_MODE, ObjectSource, TokenSource, VolumeSpec
from fleet.k8s.selectors import NodeRequirement, selects
from fleet.k8s.volumes import (
    AttachmentView,
    ClaimTarget,
    ClaimView,
    CSIDriverView,
    CSINodeUpdate,
    ObjectData,
    VolumeSource,
    VolumeView,
    attachment_name,
)
from fleet.profile.loader import load_mix
from fleet.wire.api.decode_json import (
    decode_attachment,
    decode_claim,
    decode_config_map,
    decode_csi_driver,
    decode_persistent_volume,
    decode_secret,
)
from fleet.wire.api.operations import build
from fleet.wire.api.requests import Caller, RenderedProfile, node_status_patch

META = {"name": "n", "uid": "u", "resourceVersion": "3"}


def body(**members: object) -> bytes:
    return orjson.dumps({"metadata": META, **members})


def test_volumes_of_a_pod() -> None:
    item = {"key": "k", "path": "p"}
    sources = [
        {"configMap": {"name": "a", "items": [item]}},
        {"secret": {"name": "b", "optional": True}},
        {"serviceAccountToken": {"path": "t", "audience": "vault"}},
        {"downwardAPI": {}},
    ]
    spec = {
        "volumes": [
            {"name": "all", "projected": {"sources": sources}},
            {"name": "disk", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "read", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
            {"name": "unused", "configMap": {"name": "x"}},
            {"name": "inline", "csi": {"driver": "d"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "empty", "emptyDir": {}},
        ],
        "initContainers": [{"volumeDevices": [{"name": "disk"}]}],
        "containers": [
            {"volumeMounts": [{"name": each} for each in ("all", "inline", "scratch", "empty")]}
        ],
    }
    assert decode_volumes(spec) == (
        VolumeSpec(
            "all",
            "projected",
            (ObjectSource("a", keys=("k",), paths=("p",)),),
            (ObjectSource("b", optional=True),),
            (TokenSource("vault", 3600, "t"),),
        ),
        VolumeSpec("disk", "persistentVolumeClaim", claim="c", block=True),
        VolumeSpec("read", "persistentVolumeClaim", claim="c", mounted=False, mode=READ_ONLY_MODE),
        VolumeSpec("unused", "configMap", (ObjectSource("x"),), mounted=False),
        VolumeSpec("inline", "csi", driver="d"),
        VolumeSpec("scratch", "ephemeral"),
        VolumeSpec("empty", "emptyDir"),
    )


def test_an_object_is_decoded_once_for_all_nodes() -> None:
    data = {"data": {"a": "1"}, "binaryData": {"b": "Mg=="}, "immutable": True}
    found = decode_config_map(body(**data))
    assert found[2:] == (("a", "b"), True, ("1", "2"), ("b",))
    assert decode_config_map(body(**data)) is found
    assert decode_secret(body()) == ObjectData("n", "3")


def test_objects_behind_a_claim() -> None:
    claim = {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    assert decode_claim(body(**claim)) == ClaimView("u", "Bound", "pv", resource_version="3")
    meta = {
        **META,
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["kubernetes.io/pvc-protection"],
        "ownerReferences": [{"uid": "other"}, {"uid": "pod", "controller": True}],
    }
    ended = decode_claim(orjson.dumps({"metadata": meta}))
    assert (ended.uid, ended.phase, ended.volume_name) == ("u", "", "")
    assert ended.deleting
    assert ended.protected
    assert ended.owner_uid == "pod"
    growing = {
        "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
    }
    wanted = {"requests": {"storage": "2Gi"}}
    found = decode_claim(
        body(spec={"resources": wanted, "accessModes": ["ReadWriteMany"]}, status=growing)
    )
    assert (found.requested, found.capacity, found.allocated) == ("2Gi", "1Gi", "2Gi")
    assert found.resize_status == "NodeResizePending"
    assert found.conditions == ("FileSystemResizePending",)
    assert found.is_shared
    expression = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    terms = [{"matchExpressions": [expression]}]
    spec = {
        "claimRef": {"uid": "u"},
        "csi": {"driver": "d", "volumeHandle": "h"},
        "volumeMode": "Block",
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
    }
    view = decode_persistent_volume(body(spec=spec))
    term = (NodeRequirement("zone", "In", ("a", "b")),)
    assert view == VolumeView(
        *("n", Owner("u"), "Block", ("ReadWriteOnce",), (term,), "1Gi"),
        VolumeSource("csi", "d", "h"),
    )
    assert view.unique_name == "kubernetes.io/csi/d^h"
    assert view.fits({"zone": "b"})
    assert not view.fits({"zone": "c"})
    local = decode_persistent_volume(body(spec={"hostPath": {"path": "/"}}))
    assert local == VolumeView("n", source=VolumeSource("hostPath"))
    assert local.fits({})


def test_attachments_and_drivers() -> None:
    assert decode_attachment(body(status={"attached": True})) == AttachmentView(attached=True)
    error = {"attached": False, "attachError": {"message": "no"}}
    assert decode_attachment(body(status=error)) == AttachmentView(attached=False, error="no")
    assert decode_csi_driver(body(spec={"attachRequired": False})) == CSIDriverView(
        "n", "3", attach_required=False
    )
    assert decode_csi_driver({"metadata": META}) == CSIDriverView("n", "3")
    asked = [{"audience": "vault", "expirationSeconds": 600}, {"audience": ""}]
    spec = {"tokenRequests": asked, "requiresRepublish": True}
    spec["nodeAllocatableUpdatePeriodSeconds"] = 10
    assert decode_csi_driver(body(spec=spec)) == CSIDriverView(
        "n", "3", allocatable_period_s=10, tokens=(("vault", 600), ("", 0)), requires_republish=True
    )
    # Source: csi_attacher.go, getAttachmentName: csi-<sha256 of handle, driver, node>
    name = "csi-ba26254dda3e9ea38cbc06329b5525527d33210ba269cc0461a1e869d4c9bec9"
    assert attachment_name("vol-1", "csi.x", "n") == name


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ("5",), True),
        ("NotIn", ("5",), False),
        ("Exists", (), True),
        ("DoesNotExist", (), False),
        ("Gt", ("4",), True),
        ("Lt", ("4",), False),
        ("Gt", ("x",), False),
    ],
)
def test_node_selector_terms(operator: str, values: tuple[str, ...], *, fits: bool) -> None:
    term = (NodeRequirement("size", operator, values),)
    assert selects((term,), "n", {"size": "5"}) is fits
    assert not selects(((),), "n", {})


def test_volumes_in_use_are_replaced_as_a_whole() -> None:
    assert orjson.loads(node_status_patch(NodeStatusPatch(volumes_in_use=("a", "b")))) == {
        "status": {"volumesInUse": ["a", "b"]}
    }
    assert node_status_patch(NodeStatusPatch(volumes_in_use=())) == (
        b'{"status":{"volumesInUse":null}}'
    )
    assert node_status_patch(NodeStatusPatch()) == b"{}"


def test_calls_for_volumes() -> None:
    template = RenderedProfile(load_mix().model_of(0), extra_labels={})
    caller = Caller(0, b"node", template)

    def path(op: Op) -> bytes:
        target = ClaimTarget("ns", "x", "v", 0)
        return build(ApiCall(NodeId(0), op, "uid", target), caller).path

    assert path(Op.GET_CLAIM) == b"/api/v1/namespaces/ns/persistentvolumeclaims/x"
    assert path(Op.GET_VOLUME) == b"/api/v1/persistentvolumes/x"
    assert path(Op.GET_ATTACHMENT) == b"/apis/storage.k8s.io/v1/volumeattachments/x"
    assert path(Op.GET_NODE_ATTACHED) == b"/api/v1/nodes/node"
    old = [{"name": "a", "nodeID": "old"}, {"name": "b", "nodeID": "b"}]
    base = orjson.dumps({"metadata": META, "spec": {"drivers": old}})
    update = CSINodeUpdate(base, "a", "node", ("zone",), 7)
    request = build(ApiCall(NodeId(0), Op.UPDATE_CSINODE, "", update), caller)
    new = {"name": "a", "nodeID": "node", "topologyKeys": ["zone"], "allocatable": {"count": 7}}
    assert request.path == b"/apis/storage.k8s.io/v1/csinodes/node"
    assert orjson.loads(request.body) == {"metadata": META, "spec": {"drivers": [old[1], new]}}
