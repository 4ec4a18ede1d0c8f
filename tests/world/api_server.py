"""A small API server in virtual time: a real implementation, not a mock.

It answers what kubelets rely on and nothing more, in JSON or protobuf: versions, conflicts,
graceful deletion, watches with initial events and bookmarks, 404, 409, 410, 429. Stored objects are
never changed; a write replaces them. `SimTransport`, in transport.py, brings requests here
and answers back.
"""

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple
from urllib.parse import parse_qs

import orjson
from google.protobuf.message import DecodeError

from fleet.clock import NS_PER_S
from fleet.errors import RemoteProtocolError
from fleet.k8s.times import rfc3339
from world.encodings import ENCODINGS, Encoding
from world.sim_clock import SimClock
from world.strategic_merge import Object, merge
from world.targets import Key, Target, selector_of, selectors_of, target_of

TOKEN_S = 3600
"""The life of a token that asks for none."""
HISTORY_MAX = 100_000
UNWATCHED = frozenset({"leases", "events"})
"""Of what nobody watches no history is kept: these are most of what is written."""
KINDS = {
    "nodes": ("v1", "Node"),
    "pods": ("v1", "Pod"),
    "services": ("v1", "Service"),
    "configmaps": ("v1", "ConfigMap"),
    "secrets": ("v1", "Secret"),
    "events": ("v1", "Event"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "csinodes": ("storage.k8s.io/v1", "CSINode"),
    "csidrivers": ("storage.k8s.io/v1", "CSIDriver"),
    "volumeattachments": ("storage.k8s.io/v1", "VolumeAttachment"),
    "persistentvolumes": ("v1", "PersistentVolume"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "runtimeclasses": ("node.k8s.io/v1", "RuntimeClass"),
    "podcertificaterequests": ("certificates.k8s.io/v1", "PodCertificateRequest"),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "certificatesigningrequests": ("certificates.k8s.io/v1", "CertificateSigningRequest"),
    "deployments": ("apps/v1", "Deployment"),
    "replicasets": ("apps/v1", "ReplicaSet"),
}


class Answer(NamedTuple):
    """What a request is answered with; -1: no Retry-After."""

    code: int
    body: bytes
    retry_after_s: int = -1


class Stored(NamedTuple):
    """An object, and how it is written."""

    obj: Object
    body: bytes


class Change(NamedTuple):
    """What a write did: None before for a new object, None after for one that is gone."""

    version: int
    old: Stored | None
    new: Stored | None


Listener = Callable[[Key, Object | None, Object | None], None]
"""Takes what an object was before a write and what it is after it."""


class Watch:
    """One open watch: what it selects, and where its events go."""

    __slots__ = ("end", "push", "resource", "selector")

    def __init__(
        self,
        resource: str,
        selector: tuple[str, str, str],
        push: Callable[[bytes], None],
        end: Callable[[], None],
    ) -> None:
        self.resource = resource
        self.selector = selector
        self.push = push
        self.end = end


def status_body(code: int, reason: str, message: str = "") -> bytes:
    """Return a Status of a refusal, in JSON."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return orjson.dumps(status | {"message": message or reason, "reason": reason, "code": code})


def refusal(code: int, reason: str, message: str = "") -> Answer:
    """Return a refusal, in JSON: see `encoded`."""
    return Answer(code, status_body(code, reason, message))


def not_found(key: Key) -> Answer:
    """Source: apimachinery/pkg/api/errors, NewNotFound."""
    resource, _, name = key
    group = KINDS[resource][0].rpartition("/")[0]
    qualified = f"{resource}.{group}" if group else resource
    return refusal(404, "NotFound", f'{qualified} "{name}" not found')


DIGITS_MAX = 20  # of a version
LEASE_FIELDS = {"holderIdentity", "leaseDurationSeconds", "renewTime"}
UNAUTHORIZED = refusal(401, "Unauthorized")
NOT_FOUND = refusal(404, "NotFound")
CONFLICT = refusal(409, "Conflict")
EXISTS = refusal(409, "AlreadyExists")
TOO_MANY = refusal(429, "TooManyRequests")._replace(retry_after_s=1)


class SimApiServer:
    """The API server: a store with one version counter, and its watches."""

    def __init__(self, clock: SimClock, encoding: Encoding = ENCODINGS["json"]) -> None:
        self.encoding = encoding
        self.objects: dict[Key, Stored] = {}
        self.version = 1000
        self.takes_watch_lists = True
        self.expects_nonsense = False
        """Its answers are mangled, so that requests may be malformed."""
        self.has_just_started = False
        """Its NodeRestriction has not listed the pods: a node's DELETE of one finds none."""
        self.throttles: dict[str, int] = {}  # 429s still to give, by verb
        self.deleted: list[tuple[Key, str]] = []  # with the uid, in order
        self.phases: dict[str, list[str]] = {}  # of each pod, by uid
        self.listeners: list[Listener] = []  # controllers: called with each write
        self._clock = clock
        self._uids = 0
        self._history: dict[str, list[Change]] = {}
        self._oldest: dict[str, int] = {}
        self._watches: dict[tuple[str, str, str], dict[Watch, None]] = {}
        self._by_resource: dict[str, dict[Key, Stored]] = {}

    # ---- the store ----

    def now(self) -> str:
        """Return the time as objects have it."""
        return rfc3339(self._clock.true_ns() // NS_PER_S).decode()

    def get(self, resource: str, name: str, namespace: str = "") -> Object:
        """Return an object that exists."""
        return self.objects[resource, namespace, name].obj

    def find(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """Return an object, None if there is none."""
        stored = self.objects.get((resource, namespace, name))
        return stored.obj if stored is not None else None

    def all(self, resource: str) -> list[Object]:
        """Return the objects of a resource, the oldest first."""
        return [stored.obj for stored in self._by_resource.get(resource, {}).values()]

    def create(self, key: Key, obj: Object) -> Stored | None:
        """Store a new object; None if there is one of that name."""
        if key in self.objects:
            return None
        self._uids += 1
        api_version, kind = KINDS[key[0]]
        meta = {
            "name": key[2],
            **({"namespace": key[1]} if key[1] else {}),
            "uid": f"{self._uids:08x}-0000-4000-8000-000000000000",
            "resourceVersion": "",
            "generation": 1,
            "creationTimestamp": self.now(),
            **{k: v for k, v in obj.get("metadata", {}).items() if k not in {"name", "namespace"}},
        }
        rest = {k: v for k, v in obj.items() if k not in {"kind", "apiVersion", "metadata"}}
        return self._write(key, {"kind": kind, "apiVersion": api_version, "metadata": meta, **rest})

    def replace(self, key: Key, obj: Object) -> Stored:
        """Store another state of an object; nothing happens when nothing differs."""
        old = self.objects[key]
        if old.obj == obj:
            return old
        return self._write(key, obj)

    def update(self, resource: str, name: str, patch: Object, namespace: str = "") -> None:
        """Merge a change in, as some other client would."""
        key = (resource, namespace, name)
        merged = merge(self.objects[key].obj, patch)
        assert isinstance(merged, dict)
        self.replace(key, merged)

    def remove(self, key: Key) -> Stored:
        """Let an object be gone at once; return what it was."""
        old = self.objects.pop(key)
        del self._by_resource[key[0]][key]
        self.version += 1
        meta = {**old.obj["metadata"], "resourceVersion": str(self.version)}
        obj = {**old.obj, "metadata": meta}
        gone = Stored(obj, self.encoding.body(obj))
        self.deleted.append((key, meta["uid"]))
        self._tell(key, Change(self.version, gone, None))
        return gone

    def _write(self, key: Key, obj: Object) -> Stored:
        self.version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        old = self.objects.get(key)
        new = self.objects[key] = Stored(obj, self.encoding.body(obj))
        self._by_resource.setdefault(key[0], {})[key] = new
        if key[0] == "pods":
            phases = self.phases.setdefault(obj["metadata"]["uid"], [])
            phase = obj.get("status", {}).get("phase", "")
            if not phases or phases[-1] != phase:
                phases.append(phase)
        self._tell(key, Change(self.version, old, new))
        return new

    def _tell(self, key: Key, change: Change) -> None:
        old, new = change.old, change.new
        if key[0] in UNWATCHED:
            return
        for listener in self.listeners:
            listener(key, old.obj if old else None, new.obj if new else None)
        history = self._history.setdefault(key[0], [])
        history.append(change)
        if len(history) >= 2 * HISTORY_MAX:
            self._oldest[key[0]] = history[HISTORY_MAX - 1].version
            del history[:HISTORY_MAX]
        before = dict.fromkeys(selectors_of(key, change.old.obj if change.old else None))
        after = dict.fromkeys(selectors_of(key, change.new.obj if change.new else None))
        for selector in {**before, **after}:
            event = self._event(change, selector in before, selector in after)
            for watch in list(self._watches.get(selector, ())):
                watch.push(event)

    def _event(self, change: Change, was: bool, is_now: bool) -> bytes:  # noqa: FBT001
        stored = change.new if is_now else change.old
        if not is_now and change.new is not None:  # it left the selection
            stored = change.new
        assert stored is not None
        kind = b"DELETED" if not is_now else b"MODIFIED" if was else b"ADDED"
        return self.encoding.event(kind, stored.body)

    # ---- requests ----

    def handle(self, method: str, path: str, body: bytes) -> Answer:
        """Answer one request that is no watch."""
        refused = self._refuse(method)
        if refused is None and self.expects_nonsense:
            refused = self._nonsense(method, path, body)
        return self.encoded(self._handle(method, path, body) if refused is None else refused)

    def _nonsense(self, method: str, path: str, body: bytes) -> Answer | None:
        """Return how a request is refused that follows from an answer which was mangled."""
        try:
            target = target_of(path.partition("?")[0])
            if method in {"PUT", "POST"} and target.sub != "token":
                obj = self.encoding.read(body)
                self.encoding.body(obj)  # a time may be beyond what can be written
                meta, spec = obj["metadata"], obj.get("spec", {})
                names = (meta["name"], meta.get("namespace", ""), meta.get("labels", {}))
                is_sound = [type(each) for each in (*names, spec)] == [str, str, dict, dict]
                if not is_sound or names[:2] != (target.name or names[0], target.namespace):
                    return refusal(422, "Invalid")
                if target.resource == "leases" and not spec.keys() >= LEASE_FIELDS:
                    return refusal(422, "Invalid")
                if method == "PUT" and "uid" not in meta:
                    return CONFLICT
            elif method == "PATCH":
                orjson.loads(body)
        except (ValueError, KeyError, TypeError, AttributeError, DecodeError, RemoteProtocolError):
            return refusal(400, "BadRequest")
        return None

    def encoded(self, answer: Answer) -> Answer:
        """Return a refusal as this server writes it; other bodies are already so."""
        if answer.code < 400:
            return answer
        return answer._replace(body=self.encoding.body(orjson.loads(answer.body)))

    def _handle(self, method: str, path: str, body: bytes) -> Answer:
        where, _, query = path.partition("?")
        target = target_of(where)
        key = (target.resource, target.namespace, target.name)
        match method:
            case "GET":
                return self._get(key, query)
            case "POST":
                return self._post(target, self.encoding.read(body))
            case "PUT":
                return self._put(key, self.encoding.read(body))
            case "PATCH":
                return self._patch(key, target.sub, orjson.loads(body))
            case "DELETE":
                if not target.name:
                    return self._clear(target, query)
                return self._delete(key, self.encoding.read(body))
        raise AssertionError(method)

    def _refuse(self, verb: str) -> Answer | None:
        if not self.throttles.get(verb, 0):
            return None
        self.throttles[verb] -= 1
        return TOO_MANY

    def _get(self, key: Key, query: str) -> Answer:
        if not key[2]:
            return self._list(Target(key[0], key[1], "", ""), query)
        stored = self.objects.get(key)
        return Answer(200, stored.body) if stored else not_found(key)

    def _list(self, target: Target, query: str) -> Answer:
        items = [each.body for each in self._matching(selector_of(target, query))]
        page = self.encoding.page(KINDS[target.resource], str(self.version), items)
        return Answer(200, page)

    def _post(self, target: Target, obj: Object) -> Answer:
        if target.sub == "token":
            expires_s = self._clock.true_ns() // NS_PER_S
            expires_s += obj["spec"].get("expirationSeconds") or TOKEN_S
            stamp = rfc3339(expires_s).decode()
            answered = obj | {"status": {"token": "t", "expirationTimestamp": stamp}}
            return Answer(201, self.encoding.body(answered))
        meta = {key: each for key, each in obj["metadata"].items() if key != "uid"}  # a new one
        obj = obj | {"metadata": meta}
        if "generateName" in meta:
            meta = meta | {"name": f"{meta['generateName']}{self.version:05d}"}
            obj = obj | {"metadata": meta}
        key = (target.resource, target.namespace, meta["name"])
        if target.resource == "nodes":
            taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
            spec = obj.get("spec", {})
            obj = obj | {"spec": spec | {"taints": [*spec.get("taints", []), taint]}}
        stored = self.create(key, obj)
        return Answer(201, stored.body) if stored else EXISTS

    def _put(self, key: Key, obj: Object) -> Answer:
        stored = self.objects.get(key)
        if stored is None:  # a Lease may be created so, unless it says that it was there
            return CONFLICT if key[0] == "leases" else NOT_FOUND
        meta = obj["metadata"]
        known = stored.obj["metadata"]
        if meta.get("resourceVersion") != known["resourceVersion"] or meta["uid"] != known["uid"]:
            return CONFLICT
        return Answer(200, self.replace(key, obj).body)

    def _patch(self, key: Key, sub: str, patch: Object) -> Answer:
        stored = self.objects.get(key)
        if stored is None:
            return NOT_FOUND
        for field in ("uid", "resourceVersion"):
            wanted = patch.get("metadata", {}).pop(field, None)
            if wanted is not None and wanted != stored.obj["metadata"][field]:
                return CONFLICT
        if sub == "status":
            assert set(patch) <= {"metadata", "status"}, patch
        merged = merge(stored.obj, patch)
        assert isinstance(merged, dict)
        return Answer(200, self.replace(key, merged).body)

    def _clear(self, target: Target, query: str) -> Answer:
        for stored in self._matching(selector_of(target, query)):
            self.remove((target.resource, "", stored.obj["metadata"]["name"]))
        return Answer(200, self.encoding.body({"kind": "Status", "apiVersion": "v1"}))

    def _delete(self, key: Key, options: Object) -> Answer:
        stored = self.objects.get(key)
        if stored is None or (self.has_just_started and key[0] == "pods"):
            return NOT_FOUND
        uid = options.get("preconditions", {}).get("uid")
        if uid is not None and uid != stored.obj["metadata"]["uid"]:
            return CONFLICT
        grace_s = options.get("gracePeriodSeconds")
        if key[0] != "pods":
            return Answer(200, self.remove(key).body)
        self.delete_pod(key[2], key[1], grace_s=grace_s)
        return Answer(200, self.objects.get(key, stored).body)

    def delete_pod(self, name: str, namespace: str = "default", grace_s: int | None = None) -> None:
        """Delete a pod: gracefully when it runs on a node; finalizers keep the object."""
        key = ("pods", namespace, name)
        pod = self.objects[key].obj
        meta, spec = pod["metadata"], pod["spec"]
        if grace_s is None:
            grace_s = spec.get("terminationGracePeriodSeconds", 30)
        if pod["status"]["phase"] in {"Succeeded", "Failed"} or not spec.get("nodeName"):
            grace_s = 0
        if not grace_s and not meta.get("finalizers"):
            self.remove(key)
            return
        if meta.get("deletionGracePeriodSeconds", grace_s + 1) <= grace_s:
            return
        stamp = rfc3339(self._clock.true_ns() // NS_PER_S + grace_s).decode()
        generation = meta["generation"] + ("deletionTimestamp" not in meta)
        marks = {"deletionTimestamp": stamp, "deletionGracePeriodSeconds": grace_s}
        self.replace(key, {**pod, "metadata": {**meta, **marks, "generation": generation}})

    # ---- watches ----

    def refuse_watch(self, path: str) -> Answer | None:
        """Return why a watch cannot be opened now."""
        if "sendInitialEvents" in path and not self.takes_watch_lists:
            return self.encoded(refusal(422, "Invalid", "sendInitialEvents is forbidden"))
        version = parse_qs(path.partition("?")[2]).get("resourceVersion", ["0"])[0]
        if self.expects_nonsense and not (version.isdecimal() and len(version) < DIGITS_MAX):
            return self.encoded(refusal(400, "BadRequest"))
        refused = self._refuse("WATCH")
        return None if refused is None else self.encoded(refused)

    def watch(self, path: str, push: Callable[[bytes], None], end: Callable[[], None]) -> Watch:
        """Open a watch; what it missed is pushed at once."""
        where, _, query = path.partition("?")
        target = target_of(where)
        options = {key: values[0] for key, values in parse_qs(query).items()}
        assert options["watch"] == "true", path
        version = int(options.get("resourceVersion") or 0)
        watch = Watch(target.resource, selector_of(target, query), push, end)
        if "sendInitialEvents" in options:
            for stored in self._matching(watch.selector):
                push(self.encoding.event(b"ADDED", stored.body))
            self.bookmark(watch, is_end=True)
        elif version < self._oldest.get(target.resource, 0):
            gone = self.encoded(refusal(410, "Expired", "too old resource version"))
            push(self.encoding.event(b"ERROR", gone.body))
            end()
            return watch
        else:
            self._replay(watch, version)
        self._watches.setdefault(watch.selector, {})[watch] = None
        return watch

    def _replay(self, watch: Watch, version: int) -> None:
        history = self._history.get(watch.resource, [])
        for change in history[bisect_right(history, version, key=attrgetter("version")) :]:
            stored = change.new or change.old
            assert stored is not None
            meta = stored.obj["metadata"]
            key = (watch.resource, meta.get("namespace", ""), meta["name"])
            was = change.old is not None and watch.selector in selectors_of(key, change.old.obj)
            is_now = change.new is not None and watch.selector in selectors_of(key, change.new.obj)
            if was or is_now:
                watch.push(self._event(change, was, is_now))

    def bookmark(self, watch: Watch, *, is_end: bool = False) -> None:
        """Tell a watch how far it is; `is_end`: it has seen all that there was."""
        meta: Object = {"resourceVersion": str(self.version)}
        if is_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        api_version, kind = KINDS[watch.resource]
        obj = {"kind": kind, "apiVersion": api_version, "metadata": meta}
        watch.push(self.encoding.event(b"BOOKMARK", self.encoding.body(obj)))

    def close(self, watch: Watch) -> None:
        """Push nothing more to a watch."""
        self._watches.get(watch.selector, {}).pop(watch, None)

    def end_watches(self) -> None:
        """End every watch as a server does that shuts down in good order."""
        for watches in self._watches.values():
            for watch in list(watches):
                watch.end()
            watches.clear()

    def compact(self) -> None:
        """Forget all history: who asks for an older version gets 410."""
        self.version += 1
        self._history.clear()
        self._oldest = dict.fromkeys(KINDS, self.version)

    @property
    def open_watches(self) -> int:
        """How many watches there are."""
        return sum(map(len, self._watches.values()))

    def _matching(self, selector: tuple[str, str, str]) -> list[Stored]:
        resource, namespace, text = selector
        field, _, name = text.partition("=")
        if field == "metadata.name":
            one = self.objects.get((resource, namespace, name))
            return [one] if one else []
        return [
            stored
            for key, stored in self._by_resource.get(resource, {}).items()
            if selector in selectors_of(key, stored.obj)
        ]
