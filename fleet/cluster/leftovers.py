"""What runs leave besides their Nodes, how it is found after their fleet was killed, and removed.

Objects that a scenario applied:

    label       fleet.emulator/applied-by: the id of the run
    annotation  fleet.emulator/owner: RUN/NAMESPACE/NAME, of the very object
    note        in the run's Lease: every collection in which the run creates objects, written
                before the first of them is created

Label and annotation must agree. A copy under another name, or of one mark alone, is somebody
else's: it stays, and is named. The claims of a StatefulSet have the marks of its templates,
RUN/NAMESPACE/TEMPLATE-SET-*.

Volumes and attachments of simulated CSI drivers: while a run serves one, fleet is its provisioner
and attacher. It makes volumes, and its finalizers hold volumes and attachments. The request that
makes a volume, or puts a finalizer on an object, also marks the object:

    label       fleet.emulator/storage-of: the id of the run
    annotation  fleet.emulator/owner: RUN//NAME, of the very object

A volume that fleet made goes once its claim is gone. One with a claim stays, and so does a volume
that somebody else made: both lose only what fleet has put on them.

The namespace of a run's API users, and what they may do in the whole cluster: they carry the run
twice, in a label and in the name that is made of it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import orjson

from fleet.cluster.api_client import JSON, METADATA_ONLY, Api, Json, Sleep, each
from fleet.cluster.identity import STORAGE, Permission, is_allowed
from fleet.cluster.ownership import NODES, OWNER_ANNOTATION
from fleet.cluster.run_id import LABEL, LOAD_LABEL, load_name
from fleet.k8s.well_known import BINDINGS, RBAC, ROLES

APPLIED_BY = "fleet.emulator/applied-by"
APPLIED_ANNOTATION = "fleet.emulator/applied"
"""Of a run's Lease: {RUN: [COLLECTION, ...]}, also of runs whose names this one has taken over."""
CANNOT_LIST = "cannot list"
NOTE_BYTES_MAX = 200_000  # of the 256 KiB that all annotations of an object may have

COLLECTION = re.compile(
    r"/(?:api/v1|apis/[a-z0-9.-]+/[a-z0-9]+)(?:/namespaces/([a-z0-9.-]+))?/([a-z0-9.-]+)"
)
EVERY_ORDINAL = "-*"
LOOKS_MAX = 120
LOOK_EVERY_S = 0.5
"""A minute for what was deleted to be gone: garbage collection, and kubelets that end pods."""

Noted = Mapping[str, Sequence[str]]  # by run, the collections in which it has created objects

STORAGE_OF = "fleet.emulator/storage-of"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
PROVISIONER_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
STORED_KINDS = (
    (ATTACHMENTS, Permission("list", STORAGE, "volumeattachments")),
    (VOLUMES, Permission("list", "", "persistentvolumes")),
)
CONFLICTS_MAX = 5  # of writing one object; others change its finalizers, too
NAMESPACES = "/api/v1/namespaces"
LOAD_KINDS = (
    (BINDINGS, Permission("delete", RBAC, "clusterrolebindings")),
    (ROLES, Permission("delete", RBAC, "clusterroles")),
    (NAMESPACES, Permission("delete", "", "namespaces")),
)


class Leftover(NamedTuple):
    """One object of a run."""

    path: str
    uid: str
    run: str = ""


class FoundApplied(NamedTuple):
    """What a search brought: only what is `owned` may be deleted."""

    owned: tuple[Leftover, ...] = ()
    refused: tuple[str, ...] = ()  # the paths of what has one mark only
    unread: tuple[str, ...] = ()  # that the server does not list a collection, and its words


def left_words(left: str) -> str:
    """Say that something is left, or may be in a collection that the server does not list."""
    return left if left.startswith(CANNOT_LIST) else f"still there: {left}"


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
    found: dict[str, dict[str, None]] = {}
    for one in noted:
        for run, listed in one.items():
            found.setdefault(run, {}).update(dict.fromkeys(listed))
    return {run: list(listed) for run, listed in found.items()}


async def find_applied(api: Api, noted: Noted) -> FoundApplied:
    """Return the objects of these runs in these collections."""
    owned: list[Leftover] = []
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
            unread.append(f"{CANNOT_LIST} {collection} ({first.message})")
            return
        listed = api.pages(
            collection, f"{found[2]} of run {run}", accept=METADATA_ONLY, labelSelector=selector
        )
        async for page in listed:
            for item in page:
                metadata = item["metadata"]
                path = f"{collection}/{metadata['name']}"
                if is_applied(path, metadata, run):
                    owned.append(Leftover(path, metadata["uid"]))
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


async def delete_applied(api: Api, found: Collection[Leftover]) -> tuple[list[Leftover], list[str]]:
    """Delete these very objects; return those that go now, and what is left, with the reason.

    In the foreground: an object goes only after all that its controllers made of it.
    """
    going: list[Leftover] = []
    left: list[str] = []

    async def delete(one: Leftover) -> None:
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
    api: Api, found: Collection[Leftover], sleep: Sleep = asyncio.sleep
) -> list[str]:
    """Wait for objects that were deleted; return what is left, and what holds it."""
    left: dict[Leftover, str] = dict.fromkeys(found, "")

    async def look(one: Leftover) -> None:
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


async def labelled(
    api: Api, path: str, right: Permission, label: str, run: str, accept: str = JSON
) -> AsyncIterator[tuple[str, Json]]:
    """Yield the objects with the label of a run, or of any, each with that run.

    Nothing where we have not the right.
    """
    if not await is_allowed(api, right):
        return
    selector = f"{label}={run}" if run else label
    async for page in api.pages(path, right.resource, accept=accept, labelSelector=selector):
        for item in page:
            if (of := (item["metadata"].get("labels") or {}).get(label, "")) and run in ("", of):
                yield of, item


# ---- storage ----


class Stored(NamedTuple):
    """A volume or an attachment with the marks of a run."""

    path: str
    run: str
    item: Json


def attacher_finalizer(driver: str) -> str:
    """Return the finalizer of a driver's attacher.

    Source: external-attacher/pkg/controller/util.go, GetFinalizerName.
    """
    return "external-attacher/" + "".join(
        each if each.isascii() and each.isalnum() else "-" for each in driver
    )


def driver_of(obj: Json) -> str:
    """Return the CSI driver of a PersistentVolume or a VolumeAttachment, "" for none."""
    spec = obj["spec"]
    return str(spec.get("attacher") or (spec.get("csi") or {}).get("driver") or "")


def is_provisioned(volume: Json) -> bool:
    """Return whether an object is a volume that a provisioner made for the claim it names."""
    notes = volume["metadata"].get("annotations") or {}
    claim = volume["spec"].get("claimRef") or {}
    is_named = volume["metadata"]["name"] == f"pvc-{claim.get('uid')}"
    return is_named and notes.get(PROVISIONED_BY) == driver_of(volume)


async def find_stored(api: Api, run: str = "") -> list[Stored]:
    """Return volumes and attachments of a run, or of all; nothing of what we may not list."""
    return [
        Stored(f"{path}/{item['metadata']['name']}", of, item)
        for path, right in STORED_KINDS
        async for of, item in labelled(api, path, right, STORAGE_OF, run)
        if is_marked(item["metadata"], of, "")
    ]


async def remove_stored(api: Api, run: str, sleep: Sleep = asyncio.sleep) -> list[str]:
    """Remove what the storage of a run has left; return what is still there, and why.

    A claim that goes by itself is waited for.
    """
    for number in range(LOOKS_MAX):
        found = await find_stored(api, run)
        made = [one for one in found if is_provisioned(one.item)]
        claims = {one.path: claim for one in made if (claim := await _claim(api, one.item))}
        if number == LOOKS_MAX - 1 or not any(map(_is_going, claims.values())):
            break
        await sleep(LOOK_EVERY_S)
    gone = {one.path for one in made} - set(claims)
    gone |= {one.path for one in found if await _is_of_gone_node(api, one)}
    goes = [one for one in found if one.path in gone]
    going, left = await delete_applied(
        api, [Leftover(one.path, one.item["metadata"]["uid"]) for one in goes]
    )

    async def free(one: Stored) -> None:
        await let_go(api, one, keeps_mark=one.path in gone | set(claims))

    await each(found, free)
    for path, claim in claims.items():
        name = f"{claim['metadata'].get('namespace', '')}/{claim['metadata']['name']}"
        left.append(f"{path} (a volume of fleet, of the claim {name})")
    return left + await wait_until_gone(api, going, sleep)


async def _is_of_gone_node(api: Api, one: Stored) -> bool:
    """Return whether something is attached to a node that is not there any more."""
    node = one.item["spec"].get("nodeName")
    return bool(node) and (await api.request("GET", f"{NODES}/{node}")).code == 404


async def let_go(api: Api, one: Stored, *, keeps_mark: bool) -> None:
    """Take fleet's finalizers, and its marks, off a volume or an attachment."""
    driver = driver_of(one.item)
    ours = {attacher_finalizer(driver)}
    if is_provisioned(one.item):
        ours.add(PROVISIONER_FINALIZER)
    item = one.item
    for _ in range(CONFLICTS_MAX):
        metadata = item["metadata"]
        kept = [each for each in metadata.get("finalizers") or () if each not in ours]
        change: Json = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        change["finalizers"] = kept or None
        if not keeps_mark:
            change |= {"labels": {STORAGE_OF: None}, "annotations": {OWNER_ANNOTATION: None}}
        body = {"metadata": change}
        answer = await api.request("PATCH", one.path, body=body)
        if answer.code != 409:
            return
        found = await api.request("GET", one.path)
        if not found.ok or found.body["metadata"]["uid"] != one.item["metadata"]["uid"]:
            return
        item = found.body


async def _claim(api: Api, volume: Json) -> Json | None:
    """Return the claim of a volume, None if it is gone."""
    ref = volume["spec"]["claimRef"]
    namespace = f"/api/v1/namespaces/{ref.get('namespace', 'default')}"
    path = f"{namespace}/persistentvolumeclaims/{ref.get('name', '')}"
    found = await api.request("GET", path)
    if found.code == 404 or (found.ok and found.body["metadata"]["uid"] != ref["uid"]):
        return None
    return found.body if found.ok else {"metadata": {**ref}}


def _is_going(claim: Json) -> bool:
    """Return whether a claim goes by itself: it is being deleted, or its pod is, of which it is."""
    metadata = claim["metadata"]
    return "deletionTimestamp" in metadata or bool(metadata.get("ownerReferences"))


# ---- API users ----


async def find_load(api: Api, run: str = "") -> list[Leftover]:
    """Return what API users of a run, or of all, have; nothing of what we may not remove."""
    return [
        Leftover(f"{path}/{metadata['name']}", metadata["uid"], of)
        for path, right in LOAD_KINDS
        if await is_allowed(api, right)
        async for of, item in labelled(
            api, path, right._replace(verb="list"), LABEL, run, METADATA_ONLY
        )
        if LOAD_LABEL in (metadata := item["metadata"])["labels"]
        and metadata["name"] == load_name(of)
    ]


async def remove_load(api: Api, found: list[Leftover]) -> None:
    """Delete these very objects; one that has the name of one by now stays."""
    for one in found:
        body = {"preconditions": {"uid": one.uid}}
        await api.request("DELETE", one.path, body=body)
