"""Static pods: the manifests of a directory per profile, read once for all its nodes.

    look -> what is there differs -> Environment.static -> each node looks within its own period

Source: pkg/kubelet/config/common.go, tryDecodeSinglePod; file.go, listConfig, extractFromDir;
pkg/api/pod/util.go, HasAPIObjectReference; pkg/apis/core/v1/defaults.go.
Differs: a manifest has at most 1 MiB, not 10: no API server takes a larger mirror pod, and all
nodes wait while it is read. What the API server would refuse is not found here, the mirror pod is
just not made; only the defaults that a kubelet reads are set. staticPodURL has no effect.
A real kubelet also gets inotify events; here every node sees a change at its own next look, as the
nodes of a fleet do whose files are written one after the other. A profile is data, perhaps of
somebody else: only files below its own directory are read.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson

from fleet.k8s.schema import without_nulls
from fleet.k8s.static_pods import StaticManifest, fnv128a
from fleet.kubelet.environment import Environment
from fleet.profile.loader import below
from fleet.profile.yaml_text import YAMLTextError, read_document
from fleet.wire.api.decode_pod import decode_pod

MANIFEST_BYTES_MAX = 1 << 20
NO_EXECUTE = {"operator": "Exists", "effect": "NoExecute"}
OF_POD = {
    "serviceAccountName": "serviceaccounts",
    "serviceAccount": "serviceaccounts",
    "imagePullSecrets": "secrets",
    "resourceClaims": "resourceclaims",
}
"""Members of a pod's spec that refer to API objects, unless they are empty."""
OF_PART = {
    "secretRef": "secrets",
    "secretKeyRef": "secrets",
    "secret": "secrets",
    "azureFile": "secrets",
    "configMapRef": "configmaps",
    "configMapKeyRef": "configmaps",
    "configMap": "configmaps",
    "csi": "csidrivers",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims",
    "glusterfs": "endpoints",
    "serviceAccountToken": "serviceaccounts",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}
"""The same of its containers and volumes, at any depth."""
PARTS = ("initContainers", "containers", "ephemeralContainers", "volumes")


class ManifestError(ValueError):
    """A manifest that cannot be used; says why, in upstream's words where there are some."""


def parse_manifest(data: bytes, path: str) -> StaticManifest:
    """Return the pod of a file, of which it has exactly one. Raises ManifestError.

    What has not the form of a pod is refused without a word of it.
    """
    try:
        document = read_document(data)
    except YAMLTextError as error:
        raise ManifestError(f"{path}: couldn't parse as pod({error})") from error
    if not isinstance(document, dict):
        raise ManifestError(f"{path}: couldn't parse as pod, please check config file")
    if document.get("kind") != "Pod":
        raise ManifestError(f"invalid pod: {path} holds another kind than Pod")
    try:
        return _read_pod(cast("dict[str, Any]", without_nulls(document)), path)
    except ManifestError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        raise ManifestError(f"{path}: couldn't parse as pod, please check its fields") from None


def _read_pod(pod: dict[str, Any], path: str) -> StaticManifest:
    meta, spec = dict(pod.get("metadata") or {}), dict(pod.get("spec") or {})
    if not meta.get("name"):
        raise ManifestError("invalid pod: name is needed for the pod")
    if not spec.get("containers"):
        raise ManifestError("invalid pod: spec.containers: Required value")
    resource = api_reference(spec)
    if resource:
        raise ManifestError(f"static pods may not reference {resource}")
    meta.setdefault("namespace", "default")
    _set_defaults(spec)
    original = orjson.dumps({"metadata": meta, "spec": spec}, option=orjson.OPT_SORT_KEYS)
    if NO_EXECUTE not in spec.get("tolerations", ()):
        spec["tolerations"] = [*spec.get("tolerations", ()), NO_EXECUTE]
    body = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
    template = decode_pod({**body, "metadata": {**meta, "uid": meta.get("uid", "")}})
    uid = meta.get("uid", "")
    return StaticManifest(path, uid, fnv128a(original), template, orjson.dumps(body))


def api_reference(spec: dict[str, Any]) -> str:
    """Return which API objects a pod's spec refers to, "" if to none."""
    found = (resource for member, resource in OF_POD.items() if spec.get(member))
    return next(found, "") or _reference_in([spec.get(part) for part in PARTS])


def _reference_in(part: object) -> str:
    if isinstance(part, dict):
        found = (resource for member, resource in OF_PART.items() if member in part)
        return next(found, "") or _reference_in(list(part.values()))
    return next(filter(None, map(_reference_in, part)), "") if isinstance(part, list) else ""


def _set_defaults(spec: dict[str, Any]) -> None:
    """Set the defaults of the API that a kubelet reads."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    for field in ("initContainers", "containers"):
        containers = []
        for each in spec.get(field) or ():
            container = dict(each)
            container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
            resources = dict(container.get("resources") or {})
            if resources.get("limits"):
                resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
                container["resources"] = resources
            containers.append(container)
        if containers:
            spec[field] = containers


def _pull_policy(image: str) -> str:
    """Source: pkg/apis/core/v1/defaults.go, SetDefaults_Container."""
    tail = image.rpartition("/")[2]
    latest = "@" not in tail and (":" not in tail or tail.endswith(":latest"))
    return "Always" if latest else "IfNotPresent"


LOOK_S = 1.0  # how often the process looks; a node acts on it at its own period
TOO_LONG = f"contents exceed the limit of {MANIFEST_BYTES_MAX >> 20} MiB"

log = logging.getLogger(__name__)


class StaticSource:
    """The files of one profile."""

    def __init__(self, env: Environment, on_change: Callable[[Environment], None]) -> None:
        self._env = env
        self._on_change = on_change
        self._files: dict[Path, tuple[bytes, StaticManifest | None]] = {}
        self._complaints: set[str] = set()

    def read_file(self) -> None:
        """Look at the directory or file. One that does not exist has no pods.

        A file that cannot be used leaves what it said before. Source: file.go, listConfig.
        """
        model = self._env.model
        if not model.kubelet.static_pod_path:
            return
        found: dict[Path, tuple[bytes, StaticManifest | None]] = {}
        paths = self._manifest_paths()
        for path in paths:
            try:
                data = _read(path, model.directory)
            except OSError as error:
                self._complain(f"could not process manifest file {path}: {error}")
                continue
            known = self._files.get(path)
            found[path] = known if known and known[0] == data else (data, self._parse(data, path))
        self._files = found
        manifests = tuple(each for _, each in found.values() if each is not None)
        root = (model.directory or Path()).resolve()
        if not manifests and paths == [root / model.kubelet.static_pod_path]:
            return
        if manifests != self._env.static:
            self._env.static = manifests
            self._on_change(self._env)

    def _manifest_paths(self) -> list[Path]:
        """Return the manifests of a directory, sorted; hidden files and directories are none."""
        model = self._env.model
        try:
            path = below(model.directory, model.kubelet.static_pod_path)
            if path.is_dir():
                found = (each for each in path.iterdir() if not each.name.startswith("."))
                return sorted(each for each in found if each.is_file())
            return [path] if path.is_file() else []
        except (OSError, ValueError) as error:
            self._complain(f"could not read staticPodPath: {error}")
            return []

    def _parse(self, data: bytes, path: Path) -> StaticManifest | None:
        try:
            return parse_manifest(data, str(path))
        except ManifestError as error:
            self._complain(f"could not process manifest file {path}: {error}")
            return None

    def _complain(self, text: str) -> None:
        """Log each complaint once."""
        if text not in self._complaints:
            self._complaints.add(text)
            log.warning("%s", text)


async def run_static_sources(sources: list[StaticSource]) -> None:
    """Look at all sources again and again, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        for source in sources:
            source.read_file()


def _read(path: Path, directory: Path | None) -> bytes:
    """Return a file that is below a directory, also where its links lead. Raises OSError."""
    if directory is None or not path.resolve().is_relative_to(directory.resolve()):
        raise OSError("is a link that leads out of the profile's directory")
    descriptor = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        data = file.read(MANIFEST_BYTES_MAX + 1)
    if len(data) > MANIFEST_BYTES_MAX:
        raise OSError(TOO_LONG)
    return data
