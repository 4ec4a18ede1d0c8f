"""Volumes on a real control plane: claims, refusals, simulated CSI storage."""

from functools import partial

import pytest
import yaml

from e2e.e2e_world import Json, World, condition, eventually
from fleet.cluster.leftovers import PROVISIONER_FINALIZER
from fleet.profile.loader import show_profile

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DRIVER = "csi.fleet.emulator"
ZONE = "topology.kubernetes.io/zone"
REPAIRED = ("fleet.emulator/provision-error-", "fleet.emulator/attach-error-")
PAUSE = "registry.k8s.io/pause:3.10.1"


def profile(world: World) -> str:
    """Name a profile with a CSI driver, and a node status each second."""
    document = yaml.safe_load(show_profile("default"))
    spec = document["spec"]
    configuration = {"nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "5m"}
    spec.setdefault("kubeletConfiguration", {}).update(configuration)
    spec["topologySpread"] = [{"topologyKey": ZONE, "values": ["a", "b"]}]
    spec["csiDrivers"] = [{"name": DRIVER, "allocatableCount": 16, "topologyKeys": [ZONE]}]
    path = world.root / "volumes.yaml"
    path.write_text(yaml.safe_dump(document))
    return f"--profile={path}"


def pod(name: str, node: str = "", *volumes: Json, **fields: object) -> Json:
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    container = {"name": "c", "image": PAUSE, "volumeMounts": mounts, **fields}
    spec: Json = {"containers": [container], "volumes": list(volumes)}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def storage_class(name: str, mode: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": DRIVER,
        "volumeBindingMode": mode,
    }


def claim(name: str, class_name: str) -> Json:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class_name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    meta = {"name": name}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def messages(world: World, name: str, reason: str) -> list[str]:
    selector = f"involvedObject.name={name},reason={reason}"
    return [each["message"] for each in world.items("events", f"--field-selector={selector}")]


def is_told(world: World, name: str, reason: str, only: str) -> bool:
    """Whether there is one message of this reason, and it is this one."""
    return messages(world, name, reason) == [only]


def until_ready(world: World, *names: str) -> None:
    def are_ready() -> bool:
        return all(condition(world.get("pod", name), "Ready") == "True" for name in names)

    eventually(are_ready, f"Ready: {names}")


def test_volumes_of_simulated_storage(world: World) -> None:
    with world.spawn("vol", 2, profile(world)) as run:
        run.until_ready()
        check_registration(world)
        world.apply(
            storage_class("fast", "WaitForFirstConsumer"),
            storage_class("now", "Immediate"),
            stateful_set("db", 2),
            *refusals(),
        )
        check_refusals(world)
        check_storage(world)
        run.end_well_or_late()
    world.assert_nothing_left("vol")


def test_light_nodes_run_pods_with_claims_too(world: World) -> None:
    with world.spawn("lightvol", 1, "--fidelity=light", "--simulate-csi") as run:
        run.until_ready()
        source = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}
        world.apply(
            storage_class("late", "WaitForFirstConsumer") | {"allowVolumeExpansion": True},
            claim("disk", "late"),
            pod("uses", "", source),
        )
        until_ready(world, "uses")
        bound = world.get("pvc", "disk")["spec"]["volumeName"]
        more = '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'
        world.kubectl("patch", "pvc", "disk", "-p", more)
        eventually(
            lambda: world.get("pvc", "disk")["status"]["capacity"]["storage"] == "2Gi", "it grew"
        )
        assert world.get("pv", bound)["spec"]["capacity"]["storage"] == "2Gi"
        attached = world.get("volumeattachments")["items"]
        assert [each["spec"]["nodeName"] for each in attached] == ["lightvol-00000"]
        run.end_well_or_late()
    world.assert_nothing_left("lightvol")
    eventually(lambda: not world.items("volumeattachments"), "nothing waits for the attacher")
    world.kubectl("delete", "pvc", "disk")
    world.kubectl("delete", "pv", bound)  # nor for the provisioner


def test_volumes_of_other_drivers_are_left_alone(world: World) -> None:
    """One with the finalizer that all external provisioners have, and an attachment of theirs."""
    provisioner, attacher = PROVISIONER_FINALIZER, "external-attacher/csi-theirs"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": "theirs",
            "annotations": {"pv.kubernetes.io/provisioned-by": "csi.theirs"},
            "finalizers": [provisioner],
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": "csi.theirs", "volumeHandle": "vol-1"},
        },
    }
    attachment = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": "theirs", "finalizers": [attacher]},
        "spec": {
            "attacher": "csi.theirs",
            "nodeName": "a-machine",
            "source": {"persistentVolumeName": "theirs"},
        },
    }
    world.apply(volume, attachment)
    with world.spawn("foreign", 1, "--fidelity=light", "--simulate-csi") as run:
        run.until_ready()
        run.end_well_or_late()
    try:
        for kind, finalizer in (("pv", provisioner), ("volumeattachment", attacher)):
            metadata = world.get(kind, "theirs")["metadata"]
            assert finalizer in metadata["finalizers"]
            assert "deletionTimestamp" not in metadata
        touched = {
            each["userAgent"]
            for each in world.audit()
            if (each.get("objectRef") or {}).get("name") == "theirs"
            and each["objectRef"]["resource"] in ("persistentvolumes", "volumeattachments")
        }
        assert not [agent for agent in touched if agent.startswith("fleet")]
    finally:
        for kind in ("volumeattachment", "pv"):
            world.kubectl("delete", kind, "theirs", "--wait=false")
            world.kubectl("patch", kind, "theirs", "-p", '{"metadata":{"finalizers":null}}')


def check_registration(world: World) -> None:
    """The drivers are on the CSINode, the Node's annotation and labels."""
    nodes = world.nodes("vol")
    eventually(
        lambda: all(world.get("csinode", name)["spec"]["drivers"] for name in nodes), "drivers"
    )
    for name in nodes:
        assert world.get("csinode", name)["spec"]["drivers"] == [
            {
                "name": DRIVER,
                "nodeID": name,
                "topologyKeys": [ZONE],
                "allocatable": {"count": 16},
            }
        ]
        notes = world.get("node", name)["metadata"]["annotations"]
        assert notes["csi.volume.kubernetes.io/nodeid"] == f'{{"{DRIVER}":"{name}"}}'


def stateful_set(name: str, replicas: int) -> Json:
    container = {
        "name": "c",
        "image": PAUSE,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    retention = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    spec = {
        "serviceName": name,
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "persistentVolumeClaimRetentionPolicy": retention,
        "selector": {"matchLabels": {"app": name}},
        "template": template,
        "volumeClaimTemplates": [claim("data", "fast")],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": spec,
    }


def refusals() -> list[Json]:
    def refused(name: str, annotation: str) -> Json:
        obj = claim(name, "now")
        obj["metadata"]["annotations"] = {f"fleet.emulator/{annotation}": f"{name} is out of order"}
        return obj

    def of_claim(name: str) -> Json:
        return {"name": name, "persistentVolumeClaim": {"claimName": name}}

    template = {"spec": claim("", "fast")["spec"]}
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}
    inline = {"name": "inline", "csi": {"driver": "not.installed"}}
    unmountable = pod("unmountable", "", scratch)
    unmountable["metadata"]["annotations"] = {"fleet.emulator/mount-error": "bad superblock"}
    return [
        refused("full", "provision-error"),
        refused("stuck", "attach-error"),
        pod("is-stuck", "", of_claim("stuck")),
        pod("inlined", "vol-00000", inline),
        pod("ephemeral", "", scratch),
        unmountable,
    ]


def check_refusals(world: World) -> None:
    """What storage refuses is told by who finds out: provisioner, controller, kubelet."""

    def comes(name: str, reason: str, text: str) -> None:
        eventually(lambda: any(text in each for each in messages(world, name, reason)), text)

    comes(
        "full",
        "ProvisioningFailed",
        'failed to provision volume with StorageClass "now": rpc error: code = Internal '
        "desc = full is out of order",
    )
    comes("is-stuck", "FailedAttachVolume", "code = Internal desc = stuck is out of order")
    comes(
        "inlined",
        "FailedMount",
        'MountVolume.SetUp failed for volume "inline" : kubernetes.io/csi: mounter.SetUpAt failed '
        "to get CSI client: driver name not.installed not found in the list of registered CSI "
        "drivers",
    )
    comes("unmountable", "FailedMount", "rpc error: code = Internal desc = bad superblock")
    assert world.get("pod", "is-stuck")["status"]["phase"] == "Pending"
    world.kubectl("annotate", "pvc", "stuck", "full", *REPAIRED)
    until_ready(world, "is-stuck", "ephemeral")
    eventually(lambda: world.get("pvc", "full")["status"]["phase"] == "Bound", "full is bound")


def check_storage(world: World) -> None:
    """Claims of a StatefulSet are provisioned where their pods go, attached, and deleted again."""
    world.kubectl("rollout", "status", "statefulset/db", "--timeout=120s")
    zones = {name: node["metadata"]["labels"][ZONE] for name, node in world.nodes("vol").items()}
    in_use: dict[str, list[str]] = {}
    for each in world.pods("db"):
        name, node = each["metadata"]["name"], each["spec"]["nodeName"]
        bound = world.get("pvc", f"data-{name}")
        volume = world.get("pv", bound["spec"]["volumeName"])
        [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": ZONE, "operator": "In", "values": [zones[node]]}
        ]
        handle = volume["spec"]["csi"]["volumeHandle"]
        in_use.setdefault(node, []).append(f"kubernetes.io/csi/{DRIVER}^{handle}")
        told = f'AttachVolume.Attach succeeded for volume "{volume["metadata"]["name"]}" '
        eventually(partial(is_told, world, name, "SuccessfulAttachVolume", told), told)
        eventually(partial(messages, world, f"data-{name}", "ProvisioningSucceeded"), "its event")
    for node, names in in_use.items():
        status = world.get("node", node)["status"]
        assert set(names) <= set(status["volumesInUse"])
        assert set(names) <= {each["name"] for each in status["volumesAttached"]}
    agents = {
        each["userAgent"].partition("/")[0]
        for each in world.audit()
        if each["verb"] == "create" and each["objectRef"]["resource"] == "persistentvolumes"
    }
    assert agents == {"fleet-csi-controller"}
    world.kubectl("delete", "statefulset", "db")
    world.kubectl("delete", "pod", "--all", "--wait=false")
    world.kubectl("delete", "pvc", "--all", "--wait=false")
    eventually(lambda: not world.items("volumeattachments"), "detached")
    eventually(lambda: not world.items("pv"), "deleted")
    for node in in_use:
        assert "volumesInUse" not in world.get("node", node)["status"]
    eventually(lambda: not world.items("pods"), "pods are gone")
