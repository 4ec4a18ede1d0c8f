"""The objects that a scenario creates: each has the run's marks, and is deleted by its uid.

What exists already is another's and left alone. By the marks, and by a note in the run's Lease that
is written first, the end of the run and `fleet clean` find what is to go.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from fleet.cluster.api_client import Answer, Api, Json
from fleet.cluster.leftovers import (
    APPLIED_BY,
    EVERY_ORDINAL,
    Leftover,
    delete_applied,
    find_applied,
    is_applied,
    object_mark,
    wait_until_gone,
)
from fleet.cluster.ownership import OWNER_ANNOTATION
from fleet.errors import SetupError, UsageError
from fleet.scenario.scenario import Manifest, Named, metadata_of, pods_of

CLAIMS = "persistentvolumeclaims"
GONE_WITHIN_S = 120.0
POLL_S = 0.5


async def no_note(_collection: str) -> None:
    """Note nothing: of a cluster that ends with the run."""


class Place(NamedTuple):
    """Where the objects of a kind are."""

    base: str
    plural: str
    is_namespaced: bool

    def namespace(self, manifest: Manifest) -> str:
        """Return the namespace of an object, "" for none."""
        metadata = metadata_of(manifest)
        return str(metadata.get("namespace") or "default") if self.is_namespaced else ""

    def path(self, namespace: str) -> str:
        """Return where objects are created."""
        return f"{self.base}{namespace and f'/namespaces/{namespace}'}/{self.plural}"


class Created(NamedTuple):
    """One object of ours."""

    path: str
    uid: str
    manifest: Manifest


@dataclass(eq=False)
class Applied:
    """Creates, changes and deletes objects for one run."""

    _api: Api
    _run_id: str
    _note: Callable[[str], Awaitable[None]] = no_note
    """Writes down a collection before the first object in it is created."""
    _: KW_ONLY
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _noted: set[str] = field(default_factory=set)  # collections in which something of ours may be
    _places: dict[tuple[str, str], Place] = field(default_factory=dict)
    _created: dict[str, Created] = field(default_factory=dict)  # by path, in order

    async def apply(self, wanted: Named) -> Created:
        """Create an object, or change the one that this run has created before.

        Raises UsageError with the server's words if it is refused, or exists and is not ours.
        """
        body = wanted.document()
        metadata: Json = metadata_of(body)
        place = await self._place(body)
        namespace = place.namespace(body)
        where = place.path(namespace)
        path = f"{where}/{wanted.name}"
        await self._note_once(where)
        self._mark(metadata, namespace, wanted.name)
        if body["kind"] == "StatefulSet":
            await self._mark_claims(body, namespace, wanted.name)
        before = self._created.get(path)
        if before is not None:
            metadata["uid"] = before.uid  # the server refuses to change what took its place
            answer = await self._api.request("PATCH", path, body=body)
        else:
            answer = await self._create(where, path, body)
            if answer.code == HTTPStatus.CONFLICT:  # ours, if the answer to a first try was lost
                answer = await self._api.request("GET", path)
                if answer.ok and not self._is_ours(path, answer.body):
                    raise UsageError(f"{path} exists, and is not this run's: it is left alone")
        if not answer.ok:
            raise UsageError(f"{body['kind']} {wanted.name}: {answer.message}")
        self._created[path] = Created(path, str(answer.body["metadata"]["uid"]), wanted.manifest)
        return self._created[path]

    async def adopt(self, wanted: Iterable[Named], passing: Iterable[Named]) -> None:
        """Take over what an earlier process of this run has applied.

        Other objects of the run go where those of `passing` are: nobody else deletes them.
        """
        collections = {await self._collection(one) for one in passing}
        paths = {f"{await self._collection(one)}/{one.name}": one for one in wanted}
        looked = collections | {path.rpartition("/")[0] for path in paths}
        self._noted |= looked
        orphans = []
        for one in (await find_applied(self._api, {self._run_id: [*looked]})).owned:
            if (known := paths.get(one.path)) is not None:
                self._created[one.path] = Created(one.path, one.uid, known.manifest)
            elif one.path.rpartition("/")[0] in collections:
                orphans.append(one)
        await delete_applied(self._api, orphans)

    async def _collection(self, wanted: Named) -> str:
        body = wanted.document()
        place = await self._place(body)
        return place.path(place.namespace(body))

    async def _create(self, where: str, path: str, body: Manifest) -> Answer:
        """Create an object; wait for one of its name that is being deleted."""
        deadline_s = asyncio.get_running_loop().time() + GONE_WITHIN_S
        while True:
            answer = await self._api.request("POST", where, body=body)
            if answer.code != HTTPStatus.CONFLICT:
                return answer
            found = await self._api.request("GET", path)
            is_going = found.ok and "deletionTimestamp" in found.body["metadata"]
            is_over = asyncio.get_running_loop().time() >= deadline_s
            if is_over or not (is_going or found.code == HTTPStatus.NOT_FOUND):
                return answer
            await self.sleep(POLL_S)

    async def _note_once(self, collection: str) -> None:
        if collection not in self._noted:
            await self._note(collection)
            self._noted.add(collection)

    def _mark(self, metadata: Json, namespace: str, name: str) -> None:
        """Give an object the two marks of this run."""
        mark = {OWNER_ANNOTATION: object_mark(self._run_id, namespace, name)}
        metadata["labels"] = {**(metadata.get("labels") or {}), APPLIED_BY: self._run_id}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **mark}

    async def _mark_claims(self, body: Manifest, namespace: str, name: str) -> None:
        """Mark the claims that a StatefulSet makes: by default they outlive it.

        Source: pkg/controller/statefulset/stateful_set_utils.go, getPersistentVolumeClaims.
        """
        spec = body.get("spec")
        templates = spec.get("volumeClaimTemplates") if isinstance(spec, dict) else None
        if not isinstance(templates, list) or not templates:
            return
        await self._note_once(Place("/api/v1", CLAIMS, is_namespaced=True).path(namespace))
        for template in templates:
            metadata = template.setdefault("metadata", {})
            claims = f"{metadata.get('name', '')}-{name}{EVERY_ORDINAL}"
            self._mark(metadata, namespace, claims)

    async def delete(self, created: Created) -> None:
        """Delete an object of ours; one that took its place is left alone."""
        _, left = await delete_applied(self._api, [Leftover(created.path, created.uid)])
        if left:
            raise SetupError(left[0])
        self._created.pop(created.path, None)

    async def clean_up(self) -> list[str]:
        """Delete all that there is, wait until it is gone; return what is left.

        Raises SetupError when the server does not answer.
        """
        found = await find_applied(self._api, {self._run_id: sorted(self._noted)})
        going, left = await delete_applied(self._api, found.owned)
        return [*found.unread, *left, *await wait_until_gone(self._api, going, self.sleep)]

    async def ready(self) -> tuple[int, int]:
        """Return how many of the pods that were asked for are Ready, and how many those are.

        Of a Deployment or StatefulSet only those of its newest revision count.
        """
        listed = {one.path: one for one in self._created.values() if pods_of(one.manifest)}
        wanted = sum(pods_of(one.manifest) for one in listed.values())
        ready = 0
        selector = {"labelSelector": f"{APPLIED_BY}={self._run_id}"}
        for where in dict.fromkeys(path.rpartition("/")[0] for path in listed):
            answer = await self._api.request("GET", where, query=selector)
            for found in answer.body.get("items", ()) if answer.ok else ():
                one = listed.get(f"{where}/{found['metadata']['name']}")
                ready += ready_of(one.manifest, found) if one is not None else 0
        return ready, wanted

    async def is_ready(self, created: Created) -> bool:
        """Return whether all pods of an object are Ready."""
        answer = await self._api.request("GET", created.path)
        ready = ready_of(created.manifest, answer.body) if answer.ok else 0
        return ready >= pods_of(created.manifest)

    async def _place(self, manifest: Manifest) -> Place:
        version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
        if (version, kind) not in self._places:
            base = f"/apis/{version}" if "/" in version else f"/api/{version}"
            answer = await self._api.request("GET", base)
            for one in answer.body.get("resources", ()) if answer.ok else ():
                if "/" not in one["name"]:
                    key = (version, one["kind"])
                    self._places[key] = Place(base, one["name"], bool(one["namespaced"]))
        if (version, kind) not in self._places:
            raise UsageError(f"{kind} ({version}): the cluster does not know this kind")
        return self._places[version, kind]

    def _is_ours(self, path: str, found: Json) -> bool:
        return is_applied(path, found["metadata"], self._run_id)


def ready_of(manifest: Manifest, workload: Json) -> int:
    """Return how many pods of an object are ready; 0 while its controller is not yet done."""
    status, kind = workload.get("status", {}), manifest["kind"]
    if kind == "Pod":
        conditions = status.get("conditions", ())
        return sum(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return 0
    ready = int(status.get("readyReplicas", 0))
    if "updatedReplicas" in status or kind in {"Deployment", "StatefulSet"}:
        # While a revision goes and another comes both are counted as replicas; so is, for a
        # while, what goes because fewer are wanted.
        replicas, updated = int(status.get("replicas", 0)), int(status.get("updatedReplicas", 0))
        is_over = replicas > int(workload.get("spec", {}).get("replicas", 1))
        return min(ready, updated) if replicas == updated and not is_over else 0
    return ready
