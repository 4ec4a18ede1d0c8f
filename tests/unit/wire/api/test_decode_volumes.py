import orjson

from fleet.k8s.objects import Owner
from fleet.k8s.pod_template import decode_volumes
from fleet.k8s.pods import READ_ONLY_MODE, ObjectSource, TokenSource, VolumeSpec
from fleet.k8s.selectors import NodeRequirement
from fleet.k8s.volumes import (
    AttachmentView,
    ClaimView,
    CSIDriverView,
    ObjectData,
    VolumeSource,
    VolumeView,
    attachment_name,
)
from fleet.wire.api.decode_json import (
    decode_attachment,
    decode_claim,
    decode_config_map,
    decode_csi_driver,
    decode_persistent_volume,
    decode_secret,
)

META = {"name": "n", "uid": "u", "resourceVersion": "3"}


def body(**members: object) -> bytes:
    return orjson.dumps({"metadata": META, **members})


def test_volumes_of_a_pod() -> None:
    item = {"key": "k", "path": "p"}
    sources = [
        {"secret": {"name": "b", "optional": True}},
        {"configMap": {"name": "a", "items": [item]}},
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
            (
                ObjectSource("b", optional=True, kind="Secret"),
                ObjectSource("a", keys=("k",), paths=("p",)),
            ),
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
