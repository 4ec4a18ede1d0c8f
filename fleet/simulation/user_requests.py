"""What users ask of the simulated API server beside kubelets: the kinds that a scenario may apply.

discovery, POST, GET, PATCH (a merge patch), DELETE with preconditions and propagation
"""

import copy
from collections.abc import Mapping

from fleet.simulation.admission import admitted_pod
from fleet.simulation.api_server import SimApiServer
from fleet.simulation.strategic_merge import Object
from fleet.simulation.targets import Key
from fleet.simulation.workloads import Workloads

PLACES = {
    ("v1", "Pod"): "pods",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "ReplicaSet"): "replicasets",
}
"""The kinds that are simulated, by what a manifest says."""
NOT_SIMULATED = (
    "affinity",
    "ephemeralContainers",
    "overhead",
    "priorityClassName",
    "resourceClaims",
    "runtimeClassName",
    "schedulingGates",
    "topologySpreadConstraints",
)
"""Fields of a pod that others than kubelets act on, and nobody here."""
VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret"})
ROOT_CA = "kube-root-ca.crt"


def not_simulated(manifest: Object) -> str:
    """Return why an object cannot be in a simulated run, "" if it can."""
    version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
    if (version, kind) not in PLACES:
        known = ", ".join(sorted(name for _, name in PLACES))
        return f"{kind} ({version}) is not simulated; these kinds are: {known}"
    spec = manifest.get("spec") or {}
    if kind == "Pod":
        return _of_pod(kind, spec)
    if kind not in {"Deployment", "ReplicaSet"}:
        return ""
    for field in ("minReadySeconds", "paused"):
        if spec.get(field):
            return f"{kind}: {field} is not simulated"
    if not (spec.get("selector") or {}).get("matchLabels"):
        return f"{kind}: spec.selector.matchLabels is required"
    return _of_pod(kind, (spec.get("template") or {}).get("spec") or {})


def _of_pod(kind: str, spec: Object) -> str:
    if not spec.get("containers"):
        return f"{kind}: containers are required"
    fields = [field for field in NOT_SIMULATED if spec.get(field)]
    if fields:
        return f"{kind}: {fields[0]} of a pod is not simulated"
    if spec.get("schedulerName", "default-scheduler") != "default-scheduler":
        return f"{kind}: another scheduler than default-scheduler is not simulated"
    sources = [source for volume in spec.get("volumes") or () for source in volume]
    unknown = [each for each in sources if each not in {"name", *VOLUMES}]
    return f"{kind}: a volume of {unknown[0]} is not simulated" if unknown else ""


class UserRequests:
    """Answers them; see the top of this file."""

    def __init__(self, server: SimApiServer, workloads: Workloads) -> None:
        self._server = server
        self._workloads = workloads

    def handle(
        self, method: str, path: str, query: Mapping[str, str], body: Object
    ) -> tuple[int, Object]:
        """Return the status and the object of an answer."""
        parts = path.strip("/").split("/")
        base, parts = ("/".join(parts[:2]), parts[2:]) if parts[0] == "api" else _group(parts)
        if not parts:
            return 200, {"resources": _resources(base)}
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        key = (parts[0], namespace, parts[1] if len(parts) > 1 else "")
        if method == "POST":
            return self._create((key[0], namespace, str(body["metadata"]["name"])), body)
        if not key[2]:
            return 200, {"items": self._list(key[0], query.get("labelSelector", ""))}
        stored = self._server.objects.get(key)
        if stored is None:
            return 404, {"message": f'{key[0]} "{key[2]}" not found', "reason": "NotFound"}
        return self._change(method, key, stored.obj, body)

    def _change(self, method: str, key: Key, obj: Object, body: Object) -> tuple[int, Object]:
        if method == "PATCH":
            return self._patch(key, obj, body)
        if method == "DELETE":
            return self._delete(key, obj, body)
        return 200, obj

    def add_namespace(self, name: str) -> None:
        """Have what each namespace has."""
        self._server.create(("configmaps", name, ROOT_CA), {"data": {"ca.crt": ""}})

    def _create(self, key: Key, body: Object) -> tuple[int, Object]:
        obj = copy.deepcopy(body)
        if ("configmaps", key[1], ROOT_CA) not in self._server.objects:
            self.add_namespace(key[1])
        if key[0] == "pods":
            obj = admitted_pod(obj, self._workloads.suffix())
        elif key[0] in {"deployments", "replicasets"}:
            obj["spec"].setdefault("replicas", 1)
            obj["status"] = {}
        stored = self._server.create(key, obj)
        if stored is None:
            words = f'{key[0]} "{key[2]}" already exists'
            return 409, {"message": words, "reason": "AlreadyExists"}
        return 201, stored.obj

    def _list(self, resource: str, selector: str) -> list[Object]:
        label, _, value = selector.partition("=")
        return [
            each
            for each in self._server.all(resource)
            if not label or (each["metadata"].get("labels") or {}).get(label) == value
        ]

    def _patch(self, key: Key, old: Object, patch: Object) -> tuple[int, Object]:
        meta = patch.get("metadata") or {}
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            return 409, {"message": "the uid is another", "reason": "Conflict"}
        merged = merge_patched(old, patch)
        assert isinstance(merged, dict)
        if merged.get("spec") != old.get("spec"):
            generation = {"generation": old["metadata"]["generation"] + 1}
            merged["metadata"] = {**merged["metadata"], **generation}
        return 200, self._server.replace(key, merged).obj

    def _delete(self, key: Key, old: Object, options: Object) -> tuple[int, Object]:
        uid = (options.get("preconditions") or {}).get("uid", old["metadata"]["uid"])
        if uid != old["metadata"]["uid"]:
            return 409, {"message": "the uid is another", "reason": "Conflict"}
        if key[0] == "pods":
            self._server.delete_pod(key[2], key[1], options.get("gracePeriodSeconds"))
        elif key[0] in {"deployments", "replicasets"} and (
            options.get("propagationPolicy") == "Foreground"
        ):
            mark = {"deletionTimestamp": self._server.now()}
            self._server.replace(key, {**old, "metadata": {**old["metadata"], **mark}})
        else:
            self._server.remove(key)
        return 200, old


def merge_patched(old: object, patch: object) -> object:
    """Return what a merge patch makes of a value. Source: RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patched(merged.get(key), value)
    return merged


def _group(parts: list[str]) -> tuple[str, list[str]]:
    return "/".join(parts[:3]), parts[3:]


def _resources(base: str) -> list[Object]:
    version = base.removeprefix("apis/").removeprefix("api/")
    return [
        {"name": plural, "kind": kind, "namespaced": True}
        for (of, kind), plural in PLACES.items()
        if of == version
    ]
