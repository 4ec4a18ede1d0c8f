"""What scenarios have applied: how others find it after their fleet was killed, and remove it.

    label       fleet.emulator/applied-by: the id of the run
    annotation  fleet.emulator/owner: RUN/NAMESPACE/NAME, of the very object
    note        in the run's Lease: every collection in which the run creates objects, written
                before the first of them is created

Label and annotation must agree. A copy under another name, or of one mark alone, is somebody
else's: it stays, and is named. The claims of a StatefulSet have the marks of its templates,
RUN/NAMESPACE/TEMPLATE-SET-*.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import orjson

from fleet.cluster.api_client import METADATA_ONLY, Api, Json, Sleep, each
from fleet.cluster.ownership import OWNER_ANNOTATION

APPLIED_BY = "fleet.emulator/applied-by"
APPLIED_ANNOTATION = "fleet.emulator/applied"
"""Of a run's Lease: {RUN: [COLLECTION, ...]}, also of runs whose names this one has taken over."""
NOTE_BYTES_MAX = 200_000  # of the 256 KiB that all annotations of an object may have

COLLECTION = re.compile(
    r"/(?:api/v1|apis/[a-z0-9.-]+/[a-z0-9]+)(?:/namespaces/([a-z0-9.-]+))?/([a-z0-9.-]+)"
)
EVERY_ORDINAL = "-*"
LOOKS_MAX = 120
LOOK_EVERY_S = 0.5
"""A minute for what was deleted to be gone: garbage collection, and kubelets that end pods."""

Noted = Mapping[str, Sequence[str]]
"""By run, the collections in which it has created objects."""


class AppliedObject(NamedTuple):
    """One object that a run has applied."""

    path: str
    uid: str


class FoundApplied(NamedTuple):
    """What a search brought: only what is `owned` may be deleted."""

    owned: tuple[AppliedObject, ...] = ()
    refused: tuple[str, ...] = ()  # the paths of what has one mark only
    unread: tuple[str, ...] = ()  # collections that the server does not list, and its words


def object_mark(run: str, namespace: str, name: str) -> str:
    """Return the annotation of an object of a run; `namespace` is empty where there is none."""
    return f"{run}/{namespace}/{name}"


def read_noted(lease: Json) -> dict[str, list[str]]:
    """Return what a run's Lease notes; nothing of what fleet did not write there."""
    text = (lease["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION, "")
    try:
        noted = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(noted, dict):
        return {}
    return {
        run: [each for each in listed if isinstance(each, str) and COLLECTION.fullmatch(each)]
        for run, listed in noted.items()
        if run and isinstance(listed, list)
    }


def merged(noted: Iterable[Noted]) -> dict[str, list[str]]:
    """Return several notes as one."""
    found: dict[str, dict[str, None]] = {}
    for one in noted:
        for run, listed in one.items():
            found.setdefault(run, {}).update(dict.fromkeys(listed))
    return {run: list(listed) for run, listed in found.items()}


async def find_applied(api: Api, noted: Noted) -> FoundApplied:
    """Return the objects of these runs in these collections."""
    owned: list[AppliedObject] = []
    refused: list[str] = []
    unread: list[str] = []

    async def look(one: tuple[str, str]) -> None:
        run, collection = one
        found = COLLECTION.fullmatch(collection)
        assert found is not None, collection
        selector = f"{APPLIED_BY}={run}"
        first = await api.request("GET", collection, query={"labelSelector": selector, "limit": 1})
        if first.code == 404:  # a custom resource whose definition is gone, and with it all objects
            return
        if not first.ok:
            unread.append(f"{collection} ({first.message})")
            return
        listed = api.pages(
            collection, f"{found[2]} of run {run}", accept=METADATA_ONLY, labelSelector=selector
        )
        async for page in listed:
            for item in page:
                metadata = item["metadata"]
                path = f"{collection}/{metadata['name']}"
                if is_applied(path, metadata, run):
                    owned.append(AppliedObject(path, metadata["uid"]))
                elif not metadata.get("ownerReferences"):  # a controller's goes with its owner
                    refused.append(path)

    await each([(run, one) for run, listed in noted.items() for one in listed], look)
    return FoundApplied(tuple(sorted(owned)), tuple(sorted(refused)), tuple(sorted(unread)))


def is_applied(path: str, metadata: Json, run: str) -> bool:
    """Return whether an object has both marks of a run, of which the one names this very object."""
    found = COLLECTION.fullmatch(path.rpartition("/")[0])
    has_label = (metadata.get("labels") or {}).get(APPLIED_BY) == run
    return found is not None and has_label and is_marked(metadata, run, found[1] or "")


def is_marked(metadata: Json, run: str, namespace: str) -> bool:
    """Return whether an object has the annotation of a run that names this very object."""
    mark = (metadata.get("annotations") or {}).get(OWNER_ANNOTATION, "")
    path = object_mark(run, namespace, metadata["name"])
    claims = mark.removesuffix(EVERY_ORDINAL)
    return mark == path or (mark != claims and path.removeprefix(f"{claims}-").isdecimal())


async def delete_applied(
    api: Api, found: Collection[AppliedObject]
) -> tuple[list[AppliedObject], list[str]]:
    """Delete these very objects; return those that go now, and what is left, with the reason.

    In the foreground: an object goes only after all that its controllers made of it.
    """
    going: list[AppliedObject] = []
    left: list[str] = []

    async def delete(one: AppliedObject) -> None:
        is_pod = one.path.startswith("/api/v1/") and one.path.rsplit("/", 2)[1] == "pods"
        options = {
            "preconditions": {"uid": one.uid},
            "propagationPolicy": "Background" if is_pod else "Foreground",
        }
        answer = await api.request("DELETE", one.path, body=options)
        if answer.ok:
            going.append(one)
        elif answer.code not in (404, 409):
            left.append(f"{one.path} ({answer.message})")

    await each(list(found), delete)
    return going, left


async def wait_until_gone(
    api: Api, found: Collection[AppliedObject], sleep: Sleep = asyncio.sleep
) -> list[str]:
    """Wait for objects that were deleted; return what is left, and what holds it."""
    left: dict[AppliedObject, str] = dict.fromkeys(found, "")

    async def look(one: AppliedObject) -> None:
        answer = await api.request("GET", one.path)
        if answer.code == 404 or (answer.ok and answer.body["metadata"]["uid"] != one.uid):
            del left[one]
        elif answer.ok:
            holds = ", ".join(answer.body["metadata"].get("finalizers") or ())
            left[one] = f" (its finalizers: {holds})" if holds else ""

    for number in range(LOOKS_MAX):
        await each(list(left), look)
        if not left:
            break
        if number < LOOKS_MAX - 1:
            await sleep(LOOK_EVERY_S)
    return [f"{one.path}{why}" for one, why in left.items()]
