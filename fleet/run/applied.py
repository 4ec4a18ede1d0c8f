"""The objects that a scenario creates: each is remembered by its uid, and deleted by it.

What exists already is another's and left alone. A label names the run, so that what a fleet that
was killed leaves behind can be found: `kubectl delete KIND -A -l fleet.emulator/applied-by=RUN`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol

from fleet.cluster.api_client import JSON, MERGE_PATCH, Answer, Json, each
from fleet.errors import SetupError, UsageError
from fleet.scenario.workload import Manifest, Named, pods_of

APPLIED_BY = "fleet.emulator/applied-by"
GONE_WITHIN_S = 120.0
POLL_S = 0.5

log = logging.getLogger(__name__)


class Asking(Protocol):
    """Who asks the API server; `Api`, or one that is simulated."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        content_type: str = JSON,
    ) -> Answer:
        """Ask. Raises SetupError when there is no answer at all."""
        ...


class Place(NamedTuple):
    """Where the objects of a kind are."""

    base: str
    plural: str
    is_namespaced: bool

    def path(self, manifest: Manifest) -> str:
        """Return where an object is created."""
        metadata = manifest["metadata"]
        assert isinstance(metadata, dict), metadata
        where = f"/namespaces/{metadata.get('namespace', 'default')}" if self.is_namespaced else ""
        return f"{self.base}{where}/{self.plural}"


class Created(NamedTuple):
    """One object of ours."""

    path: str
    uid: str
    manifest: Manifest


class Applied:
    """Creates, changes and deletes objects for one run."""

    def __init__(
        self, api: Asking, run_id: str, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._api = api
        self._run_id = run_id
        self._sleep = sleep
        self._places: dict[tuple[str, str], Place] = {}
        self._created: dict[str, Created] = {}  # by path, in order
        self._unanswered: dict[str, Manifest] = {}  # by path: those that may exist

    async def apply(self, wanted: Named) -> Created:
        """Create an object, or change the one that this run has created before.

        Raises UsageError with the server's words if it is refused, or exists and is not ours.
        """
        body = wanted.document()
        metadata = body["metadata"]
        assert isinstance(metadata, dict), metadata
        metadata["labels"] = {**(metadata.get("labels") or {}), APPLIED_BY: self._run_id}
        where = (await self._place(body)).path(body)
        path = f"{where}/{wanted.name}"
        before = self._created.get(path)
        if before is not None:
            metadata["uid"] = before.uid  # the server refuses to change what took its place
            answer = await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        else:
            self._unanswered[path] = wanted.manifest
            answer = await self._api.request("POST", where, body=body)
            if answer.code == HTTPStatus.CONFLICT:  # ours, if the answer to a first try was lost
                answer = await self._api.request("GET", path)
                if answer.ok and not self._is_ours(answer.body):
                    del self._unanswered[path]
                    raise UsageError(f"{path} exists, and is not this run's: it is left alone")
        self._unanswered.pop(path, None)
        if not answer.ok:
            raise UsageError(f"{body['kind']} {wanted.name}: {answer.message}")
        self._created[path] = Created(path, str(answer.body["metadata"]["uid"]), wanted.manifest)
        return self._created[path]

    async def delete(self, created: Created) -> None:
        """Delete an object of ours; one that took its place is left alone."""
        options = {
            "preconditions": {"uid": created.uid},
            "propagationPolicy": "Foreground"
            if created.manifest["kind"] != "Pod"
            else "Background",
        }
        answer = await self._api.request("DELETE", created.path, body=options)
        if not (answer.ok or answer.code in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}):
            raise SetupError(f"{created.path}: {answer.message}")
        self._created.pop(created.path, None)

    async def clean_up(self) -> list[str]:
        """Delete all that there is, wait until it is gone; return what is left."""
        for path, manifest in self._unanswered.items():  # the run ended while it was asked for
            answer = await self._api.request("GET", path)
            if answer.ok and self._is_ours(answer.body):
                self._created[path] = Created(path, answer.body["metadata"]["uid"], manifest)
        left = list(reversed(self._created.values()))
        await each(left, self._delete_for_good)
        deadline_s = asyncio.get_running_loop().time() + GONE_WITHIN_S
        while left and asyncio.get_running_loop().time() < deadline_s:
            left = [one for one in left if await self._is_there(one)]
            if left:
                await self._sleep(POLL_S)
        return [one.path for one in left]

    async def _delete_for_good(self, created: Created) -> None:
        try:
            await self.delete(created)
        except SetupError as error:
            log.warning("not deleted: %s", error)

    async def ready(self) -> tuple[int, int]:
        """Return how many of the pods that were asked for are Ready, and how many those are.

        Of a Deployment or StatefulSet only those of its newest revision count.
        """
        wanted = sum(pods_of(one.manifest) for one in self._created.values())
        ready = 0
        if any(one.manifest["kind"] == "Pod" for one in self._created.values()):
            selector = {"labelSelector": f"{APPLIED_BY}={self._run_id}"}
            answer = await self._api.request("GET", "/api/v1/pods", query=selector)
            ready += sum(map(_is_ready, answer.body.get("items", ())))
        for one in self._created.values():
            if one.manifest["kind"] != "Pod" and pods_of(one.manifest):
                answer = await self._api.request("GET", one.path)
                ready += ready_of(answer.body) if answer.ok else 0
        return ready, wanted

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

    def _is_ours(self, found: Json) -> bool:
        return bool(found["metadata"].get("labels", {}).get(APPLIED_BY) == self._run_id)

    async def _is_there(self, created: Created) -> bool:
        answer = await self._api.request("GET", created.path)
        if answer.ok:
            return bool(answer.body["metadata"]["uid"] == created.uid)
        return answer.code != HTTPStatus.NOT_FOUND


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def ready_of(workload: Json) -> int:
    """Return how many pods of a workload are ready; 0 while its controller is not yet done."""
    status = workload.get("status", {})
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 0):
        return 0
    ready = int(status.get("readyReplicas", 0))
    if "updatedReplicas" in status or workload["kind"] in {"Deployment", "StatefulSet"}:
        # While a revision goes and another comes both are counted as replicas; so is, for a
        # while, what goes because fewer are wanted.
        replicas, updated = int(status.get("replicas", 0)), int(status.get("updatedReplicas", 0))
        is_over = replicas > int(workload.get("spec", {}).get("replicas", 1))
        return min(ready, updated) if replicas == updated and not is_over else 0
    return ready
