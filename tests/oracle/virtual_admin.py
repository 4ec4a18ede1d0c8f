"""The administrator of an API server in memory, and what a real one does for its users.

Admission, subresources and controllers are here as far as scenes need them.
"""

import base64
import copy

from world.admission import admitted, drop_restart_rules, with_canonical, with_defaults
from world.strategic_merge import Object
from world.targets import Target, target_of

from fleet.profile.release import V1_34
from oracle.admin import Admin, RefusedError
from oracle.normalisation import Json
from oracle.virtual_controllers import Jobs, Others, bind_claims, reserve_claims
from oracle.virtual_node import VirtualNode

ITEM_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "conditions": "type",
}
"""How users' patches name the items of lists; other lists are replaced."""
CLAIMS = ("persistentvolumes", "persistentvolumeclaims")
UNREAD = ("jobs", "priorityclasses", "storageclasses")
UID = "{:08x}-0000-4000-9000-000000000000"
EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}
"""Source: pkg/registry/core/pod/storage/eviction.go, addConditionAndDeletePod."""


class VirtualAdmin(Admin):
    """Does to objects in memory what `Admin` asks a control plane for."""

    def __init__(self, node: VirtualNode) -> None:
        self._server = node.server
        self._drops_rules = node.environment.model.release.newest == V1_34.newest
        """ContainerRestartRules is on since 1.35."""
        self._others: Others = {}
        self._jobs = Jobs(node.world, node.server, self._others, admitted)
        bind_claims(node.world, node.server)
        reserve_claims(node.world, node.server)

    def ask(
        self, verb: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Json:
        """Answer a request. Raises RefusedError."""
        del content_type
        where, _, query = path.partition("?")
        target = target_of(where)
        given: Json = copy.deepcopy(body) if isinstance(body, dict) else {}
        match verb:
            case "POST" if target.sub == "eviction":
                return self._evict(target)
            case "POST":
                return self._create(target, given)
            case "PATCH":
                return self._patch(target, given)
            case "DELETE":
                return self._delete(target, given)
        if not target.name:
            label, _, value = query.removeprefix("labelSelector=").partition("=")
            return {"items": self._labelled(target, label, value)}
        return self._found(target)

    def _found(self, target: Target) -> Json:
        key = (target.resource, target.namespace, target.name)
        found = self._others.get(key)
        if found is None:
            found = self._server.find(target.resource, target.name, target.namespace)
        if found is None:
            raise RefusedError(404, f"GET {target}", "not found")
        return found

    def _labelled(self, target: Target, label: str, value: str) -> list[Json]:
        return [
            each
            for each in self._server.all(target.resource)
            if each["metadata"].get("namespace", "") == target.namespace
            and (each["metadata"].get("labels") or {}).get(label) == value
        ]

    # ---- create ----

    def _create(self, target: Target, given: Json) -> Json:
        name = given["metadata"]["name"]
        if target.resource == "namespaces":
            self._server.create(("configmaps", name, "kube-root-ca.crt"), {"data": {"ca.crt": ""}})
            self._others["serviceaccounts", name, "default"] = given
            return given
        if target.resource == "pods":
            given = self._admitted(given)
        elif target.resource == "secrets":
            plain = given.pop("stringData", {})
            given["data"] = {
                **given.get("data", {}),
                **{key: base64.b64encode(text.encode()).decode() for key, text in plain.items()},
            }
        elif target.resource in CLAIMS:
            given["status"] = {"phase": "Pending"}
        if target.resource in UNREAD:
            return self._create_other(target, given)
        stored = self._server.create((target.resource, target.namespace, name), given)
        if stored is None:
            raise RefusedError(409, f"POST {target}", "already exists")
        return stored.obj

    def _admitted(self, given: Json) -> Json:
        """Admit a pod, with what its classes say."""
        spec = given["spec"]
        of_priority = ("priorityclasses", "", spec.get("priorityClassName", ""))
        if of_priority in self._others:
            spec["priority"] = self._others[of_priority]["value"]
        runtime = self._server.find("runtimeclasses", spec.get("runtimeClassName", ""))
        if runtime is not None and "overhead" in runtime:
            spec["overhead"] = runtime["overhead"]["podFixed"]
        if self._drops_rules:
            drop_restart_rules(spec)
        return admitted(given)

    def _create_other(self, target: Target, given: Json) -> Json:
        name = given["metadata"]["name"]
        key = (target.resource, target.namespace, name)
        self._others[key] = {
            **given,
            "metadata": {**given["metadata"], "uid": UID.format(len(self._others))},
            "status": {},
        }
        if target.resource == "jobs":
            self._jobs.on_job(key)
        return self._others[key]

    # ---- change ----

    def _patch(self, target: Target, change: Json) -> Json:
        old = self._found(target)
        new = merged(old, change)
        assert isinstance(new, dict)
        if target.sub == "resize":
            new["spec"] = with_canonical_amounts(new["spec"])
        if target.sub == "ephemeralcontainers":
            new["spec"] = with_defaults(new["spec"])
        if new.get("spec") != old.get("spec") and "generation" in old["metadata"]:
            generation = {"generation": old["metadata"]["generation"] + 1}
            new["metadata"] = {**new["metadata"], **generation}
        key = (target.resource, target.namespace, target.name)
        changed = self._server.replace(key, new).obj
        self._server.finish(key)
        return changed

    def _evict(self, target: Target) -> Json:
        pod = self._found(target)
        conditions = [
            *pod["status"].get("conditions", ()),
            {**EVICTED, "lastProbeTime": None, "lastTransitionTime": self._server.now()},
        ]
        key = (target.resource, target.namespace, target.name)
        self._server.replace(key, {**pod, "status": {**pod["status"], "conditions": conditions}})
        self._server.delete_pod(target.name, target.namespace)
        return {}

    def _delete(self, target: Target, options: Json) -> Json:
        if target.resource == "namespaces":
            return {}
        found = self._found(target)
        key = (target.resource, target.namespace, target.name)
        if self._others.pop(key, None) is not None:
            if target.resource == "jobs":
                self._jobs.on_deleted(key)
        elif target.resource == "pods":
            grace_s = options.get("gracePeriodSeconds")
            self._server.delete_pod(target.name, target.namespace, grace_s)
        else:
            self._server.remove(key)
            if target.resource == "nodes":  # the garbage collector, of what a Node owns
                for each in (("csinodes", ""), ("leases", "kube-node-lease")):
                    if self._server.find(each[0], target.name, each[1]) is not None:
                        self._server.remove((*each, target.name))
        return found


def with_canonical_amounts(spec: Json) -> Json:
    """Return a spec with the resources of the pod and its containers as they are printed."""
    found = {**spec, "containers": [_canonical(each) for each in spec["containers"]]}
    return _canonical(found)


def _canonical(holder: Json) -> Json:
    resources = holder.get("resources")
    return {**holder, "resources": with_canonical(resources)} if resources else holder


def merged(old: object, change: object, field: str = "") -> object:
    """Return what a strategic merge patch of a user makes of a value."""
    if isinstance(change, dict):
        found: Object = dict(old) if isinstance(old, dict) else {}
        for key, value in change.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = merged(found.get(key), value, key)
        return found
    if not isinstance(change, list):
        return change
    key = ITEM_KEYS.get(field)
    if key is None or not isinstance(old, list):
        return change
    items = {each[key]: each for each in old}
    for each in change:
        items[each[key]] = merged(items.get(each[key]), each)
    return [*items.values()]
