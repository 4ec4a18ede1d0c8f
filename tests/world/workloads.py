"""Deployments and ReplicaSets: the pods they stand for, releases that roll, garbage.

Source: pkg/controller/deployment/rolling.go, util/deployment_util.go;
pkg/controller/replicaset/replica_set.go.
"""

import copy
import math
import zlib

import orjson

from fleet.clock import Draws
from world.admission import admitted_pod
from world.components import CONTROLLER_MANAGER, Components, Work
from world.strategic_merge import Object
from world.taints import condition_of
from world.targets import Key

SYNC_S = 0.003
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # apimachinery/pkg/util/rand
HASH_LABEL = "pod-template-hash"
SUFFIX = 5
_STREAM_NAME = 0xA3E5
_STREAM_VOLUME = 0x70CE
_OVER = frozenset({"Succeeded", "Failed"})


class Workloads:
    """See the top of this file."""

    def __init__(self, components: Components, draws: Draws) -> None:
        self._components = components
        self._server = components.server
        self._draws = draws
        self._drawn = 0
        self._owned: dict[str, dict[Key, None]] = {}  # by the uid of the owner
        self._keys: dict[str, Key] = {}  # of owners, by uid
        self._work = Work(components, CONTROLLER_MANAGER, SYNC_S, self._sync)

    def on_object(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Take a change of a pod, ReplicaSet or Deployment."""
        obj = new or old
        assert obj is not None, key
        uid = str(obj["metadata"]["uid"])
        owner = owner_of(obj)
        if owner:
            if new is None:
                self._owned.get(owner, {}).pop(key, None)
            else:
                self._owned.setdefault(owner, {})[key] = None
            if owner in self._keys:
                self._work.add((self._keys[owner], owner))
        if key[0] != "pods":
            self._keys[uid] = key
            self._work.add((key, uid))

    def suffix(self, stream: int = _STREAM_VOLUME) -> str:
        """Return the end of a name."""
        self._drawn += 1
        bits = self._draws.bits(0, stream, self._drawn)
        found = ""
        for _ in range(SUFFIX):
            bits, rest = divmod(bits, len(ALPHABET))
            found += ALPHABET[rest]
        return found

    # ---- one object ----

    def _sync(self, item: object) -> None:
        assert isinstance(item, tuple), item
        key, uid = item
        stored = self._server.objects.get(key)
        if stored is None or stored.obj["metadata"]["uid"] != uid:
            self._collect(uid)
        elif "deletionTimestamp" in stored.obj["metadata"]:
            self._collect(uid)
            if not self._owned.get(uid):
                self._asked("DELETE", key)
                self._server.remove(key)
        elif key[0] == "replicasets":
            self._sync_replica_set(key, stored.obj)
        else:
            self._sync_deployment(key, stored.obj)

    def _collect(self, uid: str) -> None:
        """Delete what an owner that is gone, or goes, has left."""
        for key in list(self._owned.get(uid, ())):
            self._delete(key)
        if uid not in self._owned or not self._owned[uid]:
            self._owned.pop(uid, None)

    def _delete(self, key: Key) -> None:
        obj = self._server.objects[key].obj
        if "deletionTimestamp" in obj["metadata"]:
            return
        self._asked("DELETE", key)
        if key[0] == "pods":
            self._server.delete_pod(key[2], key[1])
        else:
            mark = {"deletionTimestamp": self._server.now()}
            self._server.replace(key, {**obj, "metadata": {**obj["metadata"], **mark}})

    def _pods(self, uid: str) -> list[tuple[Key, Object]]:
        """Return the pods of a ReplicaSet that count."""
        found = [
            (key, self._server.objects[key].obj)
            for key in self._owned.get(uid, ())
            if key[0] == "pods"
        ]
        return [
            (key, pod)
            for key, pod in found
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] not in _OVER
        ]

    def _sync_replica_set(self, key: Key, replica_set: Object) -> None:
        meta, spec = replica_set["metadata"], replica_set["spec"]
        pods = self._pods(meta["uid"])
        wanted = int(spec.get("replicas", 1))
        for _ in range(wanted - len(pods)):
            self._create_pod(replica_set)
        for pod_key, _ in sorted(pods, key=_least_wanted)[: max(len(pods) - wanted, 0)]:
            self._delete(pod_key)
        pods = self._pods(meta["uid"])
        ready = sum(is_ready(pod) for _, pod in pods)
        status = {
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": meta["generation"],
        }
        self._set_status(key, replica_set, status)

    def _create_pod(self, owner: Object) -> None:
        template, meta = owner["spec"]["template"], owner["metadata"]
        namespace = meta["namespace"]
        pod = admitted_pod({"spec": template["spec"]}, self.suffix())
        pod["metadata"] = {
            **copy.deepcopy(template.get("metadata") or {}),
            "ownerReferences": [reference(owner)],
        }
        name = f"{meta['name']}-{self.suffix(_STREAM_NAME)}"
        self._asked("POST", ("pods", namespace, name))
        self._server.create(("pods", namespace, name), pod)

    # ---- releases ----

    def _sync_deployment(self, key: Key, deployment: Object) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        wanted = int(spec.get("replicas", 1))
        sets = [self._server.objects[each].obj for each in self._owned.get(meta["uid"], ())]
        sets = [each for each in sets if "deletionTimestamp" not in each["metadata"]]
        label = template_hash(spec["template"])
        newest = next((e for e in sets if e["metadata"]["labels"][HASH_LABEL] == label), None)
        old = [each for each in sets if each is not newest]
        strategy = spec.get("strategy") or {}
        if strategy.get("type") == "Recreate":
            for each in old:
                self._scale(each, 0)
            is_clear = not any(
                self._server.objects[one].obj["status"]["phase"] not in _OVER
                for each in old
                for one in self._owned.get(each["metadata"]["uid"], ())
            )
            if newest is None and is_clear:
                self._create_set(deployment, label, wanted)
            elif newest is not None and is_clear:
                self._scale(newest, wanted)
        else:
            self._roll(deployment, newest, old, label, wanted)
        self._set_status(key, deployment, self._deployment_status(deployment, label))

    def _roll(
        self, deployment: Object, newest: Object | None, old: list[Object], label: str, wanted: int
    ) -> None:
        """Scale up as far as the surge allows, then down. Source: rolling.go."""
        rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
        surge = _share(rolling.get("maxSurge", "25%"), wanted, is_up=True)
        lost = _share(rolling.get("maxUnavailable", "25%"), wanted, is_up=False)
        lost = 1 if not surge and not lost else min(lost, wanted)
        there = sum(int(each["spec"]["replicas"]) for each in old)
        mine = int(newest["spec"]["replicas"]) if newest is not None else 0
        room = max(wanted + surge - there - mine, 0)
        if newest is None:
            self._create_set(deployment, label, min(room, wanted))
            return
        if mine > wanted or (mine < wanted and room):
            self._scale(newest, wanted if mine > wanted else min(mine + room, wanted))
            return
        ready = int((newest.get("status") or {}).get("availableReplicas", 0))
        spare = there + mine - (wanted - lost) - (mine - ready)
        for is_broken in (True, False):  # those that do not work go first
            for each in old:
                has = int(each["spec"]["replicas"])
                works = int((each.get("status") or {}).get("availableReplicas", 0))
                goes = min(has - works if is_broken else has, max(spare, 0))
                if goes:
                    self._scale(each, has - goes)
                    each["spec"] = {**each["spec"], "replicas": has - goes}
                    spare -= goes

    def _create_set(self, deployment: Object, label: str, replicas: int) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        template = copy.deepcopy(spec["template"])
        labels = {**(template.setdefault("metadata", {}).get("labels") or {}), HASH_LABEL: label}
        template["metadata"]["labels"] = labels
        key = ("replicasets", meta["namespace"], f"{meta['name']}-{label}")
        made = {
            "metadata": {"labels": labels, "ownerReferences": [reference(deployment)]},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {**_matched(spec), HASH_LABEL: label}},
                "template": template,
            },
            "status": {},
        }
        self._asked("POST", key)
        self._server.create(key, made)

    def _scale(self, replica_set: Object, replicas: int) -> None:
        meta = replica_set["metadata"]
        key = ("replicasets", meta["namespace"], meta["name"])
        now = self._server.objects[key].obj
        if int(now["spec"]["replicas"]) != replicas:
            self._asked("PUT", key)
            generation = {"generation": now["metadata"]["generation"] + 1}
            changed = {**now, "metadata": {**now["metadata"], **generation}}
            changed["spec"] = {**now["spec"], "replicas": replicas}
            self._server.replace(key, changed)

    def _deployment_status(self, deployment: Object, label: str) -> Object:
        meta = deployment["metadata"]
        sets = [self._server.objects[each].obj for each in self._owned.get(meta["uid"], ())]
        status = {"replicas": 0, "updatedReplicas": 0, "readyReplicas": 0, "availableReplicas": 0}
        for each in sets:
            told = each.get("status") or {}
            for name in ("replicas", "readyReplicas", "availableReplicas"):
                status[name] += int(told.get(name, 0))
            if each["metadata"]["labels"][HASH_LABEL] == label:
                status["updatedReplicas"] += int(told.get("replicas", 0))
        return status | {"observedGeneration": meta["generation"]}

    def _set_status(self, key: Key, obj: Object, status: Object) -> None:
        now = self._server.objects[key].obj
        if now.get("status") != status:
            self._asked("PUT", key, "/status")
            self._server.replace(key, {**now, "status": status})
        del obj

    def _asked(self, verb: str, key: Key, sub: str = "") -> None:
        base = "/api/v1" if key[0] == "pods" else "/apis/apps/v1"
        name = "" if verb == "POST" else f"/{key[2]}"
        path = f"{base}/namespaces/{key[1]}/{key[0]}{name}{sub}"
        # A Deployment's controller writes ReplicaSets, but for their status.
        is_deployment = key[0] == "deployments" or (key[0] == "replicasets" and not sub)
        kind = "deployment" if is_deployment else "replicaset"
        client = f"system:serviceaccount:kube-system:{kind}-controller"
        self._components.asked(client, verb, path)


def owner_of(obj: Object) -> str:
    """Return the uid of the controller of an object, "" if it has none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each.get("controller")), "")


def reference(owner: Object) -> Object:
    """Return how an object names its controller."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_ready(pod: Object) -> bool:
    """Return whether a pod is Ready."""
    ready = condition_of(pod, "Ready")
    return ready is not None and ready["status"] == "True"


def template_hash(template: Object) -> str:
    """Return what tells the templates of a Deployment apart; not the hash that upstream has."""
    found, bits = "", zlib.crc32(orjson.dumps(template, option=orjson.OPT_SORT_KEYS)) | 1 << 32
    while bits:
        bits, rest = divmod(bits, len(ALPHABET))
        found += ALPHABET[rest]
    return found


def _matched(spec: Object) -> dict[str, str]:
    labels: dict[str, str] = (spec.get("selector") or {}).get("matchLabels") or {}
    return labels


def _share(value: object, of: int, *, is_up: bool) -> int:
    """Source: apimachinery/pkg/util/intstr, GetScaledValueFromIntOrPercent."""
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    part = of * float(text[:-1]) / 100
    return math.ceil(part) if is_up else math.floor(part)


def _least_wanted(entry: tuple[Key, Object]) -> tuple[bool, int, bool, str]:
    """Order pods by who goes first. Source: controller_utils.go, ActivePodsWithRanks."""
    key, pod = entry
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    is_bound = bool(pod["spec"].get("nodeName"))
    return is_bound, phases.get(pod["status"]["phase"], 2), is_ready(pod), key[2]
