"""Volumes and attachments that wait for the CSI controller of a run that is over.

While a run serves a simulated driver, fleet is its provisioner and attacher: it makes volumes, and
its finalizers hold volumes and attachments. If that fleet is killed, nobody takes these off again.
So when fleet makes a volume, or puts a finalizer on an object, the same request marks the object:

    label       fleet.emulator/storage-of: the id of the run
    annotation  fleet.emulator/owner: RUN//NAME, of the very object

A volume that fleet made goes once its claim is gone. One with a claim stays, and so does a volume
that somebody else made: both lose only what fleet has put on them.
"""

import asyncio
from typing import NamedTuple

from fleet.cluster.api_client import MERGE_PATCH, Api, Json, Sleep, each
from fleet.cluster.applied_objects import (
    LOOK_EVERY_S,
    LOOKS_MAX,
    AppliedObject,
    delete_applied,
    is_marked,
    wait_until_gone,
)
from fleet.cluster.identity import STORAGE, Permission, is_allowed
from fleet.cluster.ownership import NODES, OWNER_ANNOTATION

STORAGE_OF = "fleet.emulator/storage-of"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
PROVISIONER_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
KINDS = (
    (ATTACHMENTS, Permission("list", STORAGE, "volumeattachments")),
    (VOLUMES, Permission("list", "", "persistentvolumes")),
)
CONFLICTS_MAX = 5
"""Of writing one object; others change its finalizers, too."""


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
    selector = f"{STORAGE_OF}={run}" if run else STORAGE_OF
    found: list[Stored] = []
    for path, right in KINDS:
        if not await is_allowed(api, right):
            continue
        async for page in api.pages(path, right.resource, labelSelector=selector):
            for item in page:
                metadata = item["metadata"]
                of = (metadata.get("labels") or {}).get(STORAGE_OF, "")
                if of and run in ("", of) and is_marked(metadata, of, ""):
                    found.append(Stored(f"{path}/{metadata['name']}", of, item))
    return found


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
        api, [AppliedObject(one.path, one.item["metadata"]["uid"]) for one in goes]
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
        answer = await api.request("PATCH", one.path, body=body, content_type=MERGE_PATCH)
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
