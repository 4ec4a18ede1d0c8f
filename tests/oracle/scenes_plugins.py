"""Scenes of plug-ins: see halves.py."""

from oracle.normalisation import Json
from oracle.objects_of_scenes import SHELL, container, pod, secret
from oracle.scene import Scene
from oracle.scenes_claims import claim as bound_claim
from oracle.scenes_claims import claiming, volume

WIDGET = "example.com/widget"
DRIVER, BROKEN = "dra.example.com", "broken.example.com"
STATUS_S = 13.0
"""A node tells what it is every 10 s x U[1, 1.04]."""
NEW_S = 5.0
"""So long a node is new: reads of it are not counted then."""
RETRY_S = 18.0
"""What a sync could not do is tried again after 10 to 15 s."""


def wants(count: int) -> Json:
    amounts = {WIDGET: str(count)}
    return {"requests": amounts, "limits": amounts}


def devices(scene: Scene) -> None:
    """Pods are given devices, one by one, until none is left; one of them fails and recovers."""
    has_two = pod("two", container("a", resources=wants(1)), container("b", resources=wants(1)))
    scene.create(pod("one", container(resources=wants(1))))
    scene.until_running("one")
    scene.create(has_two)
    scene.until_running("two")
    scene.create(pod("none-left", container(resources=wants(1))))
    scene.until_over("none-left")
    scene.fail_devices(WIDGET, 1)
    scene.pause(STATUS_S)
    scene.fail_devices(WIDGET, 0)
    scene.pause(STATUS_S)
    scene.delete("one")
    scene.create(pod("next", container(resources=wants(1))))
    scene.until_running("next")
    scene.pause()
    scene.delete("two", "next", "none-left")


def devices_in_turn(scene: Scene) -> None:
    """An init container that ends leaves its device to the container after it."""
    first = container("i", "true", SHELL, resources=wants(1))
    scene.create(pod("turns", container(resources=wants(1)), initContainers=[first]))
    scene.until_running("turns")
    scene.create(pod("last", container(resources=wants(1))))
    scene.until_running("last")
    scene.create(pod("too-many", container(resources=wants(2))))
    scene.until_over("too-many")
    scene.pause()
    scene.delete("turns", "last", "too-many")


def devices_after_a_restart(scene: Scene) -> None:
    """The kubelets are killed and come back: pods keep the devices that they have."""
    one_each = (container(name, resources=wants(1)) for name in ("a", "b"))
    scene.create(pod("keeps", *one_each))
    scene.until_running("keeps")
    scene.pause()
    scene.restart_kubelets()
    scene.until(scene.has_ready_node, "is Ready")
    scene.pause(STATUS_S)
    scene.create(pod("gets", container(resources=wants(1))))
    scene.until_running("gets")
    scene.create(pod("gets-none", container(resources=wants(1))))
    scene.until_over("gets-none")
    scene.pause()
    scene.delete("keeps", "gets", "gets-none")


def claim(name: str) -> Json:
    request = {"name": "r", "exactly": {"deviceClassName": "class.example.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def allocate(scene: Scene, name: str, driver: str, device: str) -> None:
    """Give a claim a device, as the scheduler does."""
    found = {"request": "r", "driver": driver, "device": device}
    scene.allocate(name, {"devices": {"results": [found]}})


def using(name: str, *claims: str) -> Json:
    """Return a pod whose containers have a claim each."""
    containers = [container(each, resources={"claims": [{"name": each}]}) for each in claims]
    named = [{"name": each, "resourceClaimName": each} for each in claims]
    return pod(name, *containers, resourceClaims=named)


def dynamic_resources(scene: Scene) -> None:
    """Pods use devices by claims, some of which cannot be prepared."""
    scene.create(*map(claim, ("first", "second", "broken", "elsewhere", "late")))
    allocate(scene, "first", DRIVER, "device-0")
    allocate(scene, "second", DRIVER, "device-1")
    allocate(scene, "broken", BROKEN, "device-0")
    allocate(scene, "elsewhere", "none.example.com", "device-0")
    scene.create(
        using("one", "first"),
        using("both", "first", "second"),
        using("breaks", "broken"),
        using("unknown", "elsewhere"),
        using("waits", "late"),
        using("missing", "nobody"),
    )
    scene.until_running("one", "both")
    scene.pause(RETRY_S)
    allocate(scene, "late", DRIVER, "device-1")
    scene.until_running("waits")
    scene.pause()
    scene.delete("one", "both", "breaks", "unknown", "waits", "missing")
    for name in ("first", "second", "broken", "elsewhere", "late"):
        scene.delete(name, plural="resourceclaims")


def csi_driver(name: str, **spec: object) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {"volumeLifecycleModes": ["Persistent", "Ephemeral"], **spec},
    }


ATTACHED, PLAIN = "csi.example.com", "plain.example.com"
CSI_DRIVERS = (csi_driver(ATTACHED), csi_driver(PLAIN, attachRequired=False))


def of_csi(driver: str, name: str, **fields: object) -> Json:
    """Return the source of a volume that a driver knows by this name."""
    return {"csi": {"driver": driver, "volumeHandle": f"{{namespace}}-{name}", **fields}}


def secret_ref(name: str) -> Json:
    return {"name": name, "namespace": "{namespace}"}


def csi_volumes(scene: Scene) -> None:
    """Volumes of drivers are attached, staged and published, and their Secrets read for that."""
    scene.pause(NEW_S)
    scene.provide(*CSI_DRIVERS)
    both = {
        "nodeStageSecretRef": secret_ref("stage"),
        "nodePublishSecretRef": secret_ref("publish"),
    }
    lacks = {"nodePublishSecretRef": secret_ref("absent")}
    names = ("attached", "plain", "lacks")
    scene.create(
        secret("stage", key="1"),
        secret("publish", key="2"),
        volume("attached", of_csi(ATTACHED, "attached", **both)),
        volume("plain", of_csi(PLAIN, "plain", **both)),
        volume("lacks", of_csi(PLAIN, "lacks", **lacks)),
        *map(bound_claim, names),
    )
    for name in names:
        scene.until_bound(name)
    scene.create(claiming("one", "attached"), claiming("none", "plain"), claiming("lacks", "lacks"))
    scene.until_running("one", "none")
    scene.create(claiming("shares", "attached"))
    scene.until_running("shares")
    scene.create(secret("absent", key="3"))
    scene.until_running("lacks")
    scene.pause()
    scene.delete("one", "none", "lacks", "shares")
    scene.delete(*names, plural="persistentvolumeclaims")
    scene.delete_volumes(*names)


def lone_volumes(scene: Scene) -> None:
    """A volume that only one pod may use: another one waits until it is free."""
    scene.provide(*CSI_DRIVERS)
    modes = ["ReadWriteOncePod"]
    scene.create(
        volume("lone", of_csi(PLAIN, "lone"), accessModes=modes),
        bound_claim("lone", accessModes=modes),
    )
    scene.until_bound("lone")
    scene.create(claiming("has", "lone"))
    scene.until_running("has")
    scene.create(claiming("waits", "lone"))
    scene.pause(5)
    scene.delete("has")
    scene.until_running("waits")
    scene.pause()
    scene.delete("waits")
    scene.delete("lone", plural="persistentvolumeclaims")
    scene.delete_volumes("lone")


def grown_volumes(scene: Scene) -> None:
    """A claim asks for more: its volume grows, and a sync of its pod finds that."""
    growing = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "growing"},
        "provisioner": ATTACHED,
        "allowVolumeExpansion": True,
    }
    scene.provide(*CSI_DRIVERS, growing)
    scene.pause(NEW_S)
    named = {"storageClassName": "growing"}
    scene.create(volume("grows", of_csi(ATTACHED, "grows"), **named), bound_claim("grows", **named))
    scene.until_bound("grows")
    scene.create(claiming("grows", "grows"))
    scene.until_running("grows")
    scene.pause()
    more = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    scene.patch("persistentvolumeclaims", "grows", more)
    scene.pause(5)
    scene.patch("pods", "grows", {"metadata": {"annotations": {"example.com/at": "now"}}})
    scene.pause(5)
    scene.delete("grows")
    scene.delete("grows", plural="persistentvolumeclaims")
    scene.delete_volumes("grows")


def stuck_unmounts(scene: Scene) -> None:
    """A driver does not unpublish; the kubelets are killed meanwhile, and come back."""
    scene.provide(*CSI_DRIVERS)
    scene.create(volume("stuck", of_csi(PLAIN, "stuck")), bound_claim("stuck"))
    scene.until_bound("stuck")
    scene.create(claiming("stuck", "stuck"))
    scene.until_running("stuck")
    scene.pause()
    scene.set_stuck(PLAIN, "stuck", is_stuck=True)
    scene.pause()
    scene.ask_to_delete("stuck")
    scene.pause(8)
    scene.restart_kubelets()
    scene.pause(8)
    scene.set_stuck(PLAIN, "stuck", is_stuck=False)
    scene.until(lambda side: scene.get(side, "pods", "stuck") is None, "it is gone", limit_s=150)
    scene.until(scene.has_ready_node, "is Ready")
    scene.pause(STATUS_S)
    scene.delete("stuck", plural="persistentvolumeclaims")
    scene.delete_volumes("stuck")
