"""What the kubelets of a run do for CSI drivers on a real control plane, as its objects show it."""

from functools import partial

import pytest
import yaml

from e2e.e2e_world import Json, World, eventually
from e2e.test_volumes import DRIVER, claim, messages, pod, storage_class, until_ready
from fleet.profile.loader import show_profile

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MORE = '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'
REFUSED = "fleet.emulator/expand-error"


def profile(world: World, name: str, **driver: object) -> str:
    """Name a profile with a CSI driver whose kubelets look at their pods each 2 s."""
    document = yaml.safe_load(show_profile("default"))
    spec = document["spec"]
    configuration = {"nodeStatusUpdateFrequency": "1s", "syncFrequency": "2s"}
    spec.setdefault("kubeletConfiguration", {}).update(configuration)
    spec["csiDrivers"] = [{"name": DRIVER, **driver}]
    path = world.root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return f"--profile={path}"


def of_claim(name: str) -> Json:
    return {"name": "data", "persistentVolumeClaim": {"claimName": name}}


def expandable(name: str) -> Json:
    return storage_class(name, "WaitForFirstConsumer") | {"allowVolumeExpansion": True}


def is_grown(world: World, name: str) -> bool:
    status = world.get("pvc", name)["status"]
    # Since 1.37 a controller keeps a condition of its own.
    resizes = [each for each in status.get("conditions", ()) if each["type"] != "Unused"]
    is_quiet = not resizes and "allocatedResourceStatuses" not in status
    return bool(status["capacity"]["storage"] == "2Gi") and is_quiet


def condition_of(world: World, name: str, kind: str) -> str:
    conditions = world.get("pvc", name)["status"].get("conditions") or ()
    return next((each.get("message", "") for each in conditions if each["type"] == kind), "")


def test_volumes_grow_on_their_nodes(world: World) -> None:
    """One in use, one that its driver refuses to expand, and one that no pod has yet."""
    with world.spawn("grow", 2, profile(world, "grow", nodeExpansion=True)) as run:
        run.until_ready()
        refused = pod("refused", "", of_claim("refused"))
        refused["metadata"]["annotations"] = {REFUSED: "the disk is busy"}
        used = pod("used", "", of_claim("used"))
        later = pod("later", "", of_claim("later"))
        claims = [claim(name, "grows") for name in ("used", "refused", "later")]
        world.apply(expandable("grows"), *claims, used, refused, later)
        until_ready(world, "used", "refused", "later")
        world.kubectl("delete", "pod", "later")
        for name in ("used", "refused", "later"):
            world.kubectl("patch", "pvc", name, "-p", MORE)
        eventually(partial(is_grown, world, "used"), "the volume in use has grown")
        check_success(world, "used")
        error = "rpc error: code = Internal desc = the disk is busy"
        eventually(lambda: error in condition_of(world, "refused", "NodeResizeError"), error)
        eventually(
            lambda: any(error in each for each in messages(world, "refused", "VolumeResizeFailed")),
            "its event",
        )
        assert condition_of(world, "later", "FileSystemResizePending").startswith("Waiting for")
        assert world.get("pvc", "later")["status"]["capacity"]["storage"] == "1Gi"
        world.kubectl("annotate", "pod", "refused", f"{REFUSED}-")
        world.apply(later)
        until_ready(world, "later")
        for name in ("refused", "later"):
            eventually(partial(is_grown, world, name), f"{name} has grown")
            check_success(world, name)
        check_requests(world)
        world.kubectl("delete", "pod", "used", "refused", "later")
        world.kubectl("delete", "pvc", "used", "refused", "later")
        eventually(lambda: not world.items("pv"), "deleted")
        run.end_well_or_late()
    world.assert_nothing_left("grow")


def check_success(world: World, name: str) -> None:
    """Pod and claim have the same name, and the same is said of both."""
    volume = world.get("pvc", name)["spec"]["volumeName"]
    node = world.get("pod", name)["spec"]["nodeName"]
    wanted = f'MountVolume.NodeExpandVolume succeeded for volume "{volume}" {node}'

    def kinds() -> set[str]:
        selector = f"involvedObject.name={name},reason=FileSystemResizeSuccessful"
        found = world.items("events", f"--field-selector={selector}")
        assert {each["message"] for each in found} <= {wanted}
        return {each["involvedObject"]["kind"] for each in found}

    eventually(lambda: kinds() == {"Pod", "PersistentVolumeClaim"}, wanted)


def check_requests(world: World) -> None:
    """The nodes themselves wrote the status of claims, and the server refused them nothing."""
    written = [
        each
        for each in world.audit()
        if each["verb"] == "patch"
        and (each.get("objectRef") or {}).get("resource") == "persistentvolumeclaims"
        and (each.get("impersonatedUser") or each["user"])["username"].startswith("system:node:")
    ]
    assert {each["objectRef"]["subresource"] for each in written} == {"status"}
    assert {each["responseStatus"]["code"] for each in written} <= {200, 409}


def csi_driver(**spec: object) -> Json:
    modes = ["Persistent", "Ephemeral"]
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": {"volumeLifecycleModes": modes, **spec},
    }


def of_nodes(world: World, verb: str, resource: str, prefix: str) -> list[Json]:
    """Return what the nodes of a run asked of one resource."""
    users = f"system:node:{prefix}-"
    return [
        each
        for each in world.audit()
        if each["verb"] == verb
        and (each.get("objectRef") or {}).get("resource") == resource
        and (each.get("impersonatedUser") or each["user"])["username"].startswith(users)
    ]


@pytest.mark.slow
def test_drivers_have_their_tokens_and_are_asked_again(world: World) -> None:
    """Volumes are published all the time, with one token each; a node takes fewer volumes."""
    fewer = {"curve": "Step", "from": 26, "to": 24, "after": "20s"}
    world.apply(
        csi_driver(
            requiresRepublish=True,
            tokenRequests=[{"audience": "vault", "expirationSeconds": 600}],
            nodeAllocatableUpdatePeriodSeconds=10,
        )
    )
    try:
        with world.spawn("wants", 1, profile(world, "wants", allocatableOverTime=fewer)) as run:
            run.until_ready()
            eventually(lambda: counts(world) == [26], "the count at its registration")
            inline = pod("inline", "", {"name": "data", "csi": {"driver": DRIVER}})
            world.apply(storage_class("wanted", "Immediate"), claim("kept", "wanted"), inline)
            world.apply(pod("claims", "", of_claim("kept")))
            until_ready(world, "inline", "claims")
            check_publishing(world)
            eventually(lambda: counts(world) == [24], "it takes fewer")
            assert not messages(world, "claims", "FailedMount")
            assert not messages(world, "inline", "FailedMount")
            world.kubectl("delete", "pod", "inline", "claims")
            world.kubectl("delete", "pvc", "kept")
            eventually(lambda: not world.items("pv"), "deleted")
            run.end_well_or_late()
    finally:
        world.kubectl("delete", "csidriver", DRIVER)
    world.assert_nothing_left("wants")


def counts(world: World) -> list[int]:
    drivers = world.get("csinode", "wants-00000")["spec"]["drivers"] or ()
    return [each["allocatable"]["count"] for each in drivers]


def check_publishing(world: World) -> None:
    """Each pod has its own token and its driver's; the attachment is read time and again."""

    def attachments() -> int:
        return len(of_nodes(world, "get", "volumeattachments", "wants"))

    before = attachments()
    eventually(lambda: attachments() >= before + 6, "published three times more")
    tokens = of_nodes(world, "create", "serviceaccounts", "wants")
    assert {each["objectRef"]["subresource"] for each in tokens} == {"token"}
    assert [each["responseStatus"]["code"] for each in tokens] == [201] * 4
