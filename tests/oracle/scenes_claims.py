"""Scenes of claims and the volumes that are bound to them."""

from oracle.normalisation import Json
from oracle.objects_of_scenes import container, pod
from oracle.scene import Scene


def volume(name: str, source: Json, **spec: object) -> Json:
    """Return a PersistentVolume that a claim of the same name is to have."""
    claim = {"namespace": "{namespace}", "name": name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{{namespace}}-{name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": claim,
            **source,
            **spec,
        },
    }


def claim(name: str, **spec: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
            **spec,
        },
    }


def claiming(name: str, *claims: str) -> Json:
    """Return a pod that mounts claims."""
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    mounts = [{"name": each, "mountPath": f"/{each}"} for each in claims]
    made = pod(name, container(volumeMounts=mounts), volumes=volumes)
    made["spec"]["automountServiceAccountToken"] = False  # which of two volumes is late is chance
    return made


def claims(scene: Scene) -> None:
    """Claims of a host path are mounted by two pods; one that is missing appears."""
    path = {"hostPath": {"path": "/tmp"}}
    scene.create(volume("data", path), claim("data"))
    scene.until_bound("data")
    scene.create(claiming("first", "data"), claiming("late", "absent"), claiming("second", "data"))
    scene.until_running("first", "second")
    scene.pause(12)
    scene.create(volume("absent", path), claim("absent"))
    scene.until_bound("absent")
    scene.until_running("late", limit_s=90)
    scene.pause()
    scene.delete("first", "second", "late")
    scene.delete("data", "absent", plural="persistentvolumeclaims")
    scene.delete_volumes("data", "absent")


def unbound_claims(scene: Scene) -> None:
    """A claim that no volume fits, and one whose volume is of another node."""
    elsewhere = [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["nowhere"]}]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": elsewhere}]}}
    path = {"hostPath": {"path": "/tmp"}}
    scene.create(claim("unbound"), volume("far", path, nodeAffinity=affinity), claim("far"))
    scene.until_bound("far")
    scene.create(claiming("unbound", "unbound"), claiming("far", "far"))
    scene.pause(25)
    scene.delete("unbound", "far")
    scene.delete("unbound", "far", plural="persistentvolumeclaims")
    scene.delete_volumes("far")
