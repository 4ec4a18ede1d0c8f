"""Read the manifests of static pods: YAML or JSON, a pod or a list of pods.

Source: pkg/kubelet/config/common.go, tryDecodeSinglePod, tryDecodePodList;
pkg/api/pod/util.go, HasAPIObjectReference; pkg/apis/core/v1/defaults.go.
Differs: a manifest has at most 1 MiB, not 10: no API server takes a larger mirror pod, and all
nodes wait while it is read. What the API server would refuse is not found here, the mirror pod is
just not made; only the defaults that a kubelet reads are set.
"""

from typing import Any, cast

import orjson

from fleet.k8s.static_pods import FILE, StaticManifest, fnv128a
from fleet.profile.yaml_text import YAMLTextError, read_document
from fleet.wire.api.decode_pod import decode_pod

MANIFEST_BYTES_MAX = 1 << 20
NO_EXECUTE = {"operator": "Exists", "effect": "NoExecute"}
_VOLUME_REFERENCES = {
    "configMap": "configmaps (via configmap volumes)",
    "secret": "secrets (via secret volumes)",
    "csi": "csidrivers (via CSI volumes)",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azureFile": "secrets (via azureFile volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
}
_PROJECTED_REFERENCES = {
    "configMap": "configmaps (via projected volumes)",
    "secret": "secrets (via projected volumes)",
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}


class ManifestError(ValueError):
    """A manifest that cannot be used; says why, in upstream's words where there are some."""


def parse_manifests(data: bytes, source: str, origin: str) -> tuple[StaticManifest, ...]:
    """Return the pods of one file (exactly one) or of one URL (one, or a list).

    Raises ManifestError.
    """
    try:
        document = read_document(data)
    except YAMLTextError as error:
        raise ManifestError(f"{origin}: couldn't parse as pod({error})") from error
    if not isinstance(document, dict):
        raise ManifestError(f"{origin}: couldn't parse as pod, please check config file")
    if document.get("kind") == "PodList" and source != FILE:
        return tuple(_manifest(item, source, origin) for item in document.get("items") or ())
    if document.get("kind") != "Pod":
        raise ManifestError(f"invalid pod: {origin} holds another kind than Pod")
    return (_manifest(document, source, origin),)


def _manifest(pod: object, source: str, origin: str) -> StaticManifest:
    """Return one pod. What has not the form of a pod is refused without a word of it."""
    try:
        return _read_pod(cast("dict[str, Any]", pod), source, origin)
    except ManifestError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        raise ManifestError(f"{origin}: couldn't parse as pod, please check its fields") from None


def _read_pod(pod: dict[str, Any], source: str, origin: str) -> StaticManifest:
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
    if source == FILE and NO_EXECUTE not in spec.get("tolerations", ()):
        spec["tolerations"] = [*spec.get("tolerations", ()), NO_EXECUTE]
    body = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
    template = decode_pod({**body, "metadata": {**meta, "uid": meta.get("uid", "")}})
    return StaticManifest(
        source, origin, meta.get("uid", ""), fnv128a(original), template, orjson.dumps(body)
    )


def api_reference(spec: dict[str, Any]) -> str:
    """Return which API objects a pod's spec refers to, "" if to none."""
    if spec.get("serviceAccountName") or spec.get("serviceAccount"):
        return "serviceaccounts"
    if spec.get("imagePullSecrets"):
        return "secrets"
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            found = _environment_reference(container)
            if found:
                return found
    if spec.get("resourceClaims"):
        return "resourceclaims"
    for volume in spec.get("volumes") or ():
        found = _volume_reference(volume)
        if found:
            return found
    return ""


def _environment_reference(container: dict[str, Any]) -> str:
    sources = [*(container.get("envFrom") or ())]
    sources += [each.get("valueFrom") or {} for each in container.get("env") or ()]
    for source in sources:
        if "secretRef" in source or "secretKeyRef" in source:
            return "secrets"
        if "configMapRef" in source or "configMapKeyRef" in source:
            return "configmaps"
    return ""


def _volume_reference(volume: dict[str, Any]) -> str:
    for kind, source in volume.items():
        if kind in _VOLUME_REFERENCES:
            return _VOLUME_REFERENCES[kind]
        if kind == "projected":
            for each in source.get("sources") or ():
                for field, resource in _PROJECTED_REFERENCES.items():
                    if field in each:
                        return resource
    return ""


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
