"""Removing what runs left: Nodes and what belongs to them, the pods bound to them, run Leases.

Only owned Nodes go (see ownership.py), each by its uid. A name proves nothing: while we work, a
machine may have joined under it. So a Lease or CSINode goes only if that very Node is its owner,
and the pods bound to a name only if the Node is gone and no other has its name.

What a scenario applied is deleted first, so that no controller makes pods for it again, and waited
for last, when the pods on the run's nodes are gone. Then volumes can go, see leftovers.py.
The run's Lease says where to look, and stays while something is left.

Order: a node's Lease and CSINode, then the Node, so that whatever an interruption leaves is still
found by its labels. Pods come last: while their node is there, controllers would replace them. They
are deleted with grace 0, since no kubelet is left that would confirm their end.
"""

import asyncio
import enum
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from fleet.cluster import leftovers
from fleet.cluster.api_client import JSON, METADATA_ONLY, Api, Json, Sleep, each, expect
from fleet.cluster.identity import LEASE_NAMESPACE, STORAGE, Permission, is_allowed
from fleet.cluster.kept_records import find_records
from fleet.cluster.ownership import NODES, RUN_LABEL, SHARD_LABEL, FoundNode, find_named, find_nodes
from fleet.cluster.runs import RUN_LEASES, find_leases, noted_of
from fleet.errors import IncompleteError, SetupError

NODE_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
OF_NODES = (("resource.k8s.io", "resourceslices"), (STORAGE, "volumeattachments"))
"""What a Node leaves to controllers, group and resource.

The garbage collector deletes the slices later. For a volume that a kubelet said to be in use the
attach-detach controller waits six minutes.
Source: pkg/controller/volume/attachdetach/reconciler/reconciler.go, reconcile.
"""
PODS = "/api/v1/pods"

LOOKS_MAX = 3  # how often a clean-up lists the nodes of its run; the last time there should be none
NODES_ASKED_SINGLY_MAX = 200
"""Up to so many nodes what belongs to each is asked for singly; beyond, all there is, in pages."""

PATIENCE_S = 60.0
"""How long each request is tried while the API server refuses connections, or answers 5xx or 429:
so long one may take to come back. What was removed before is not asked for again."""

Progress = Callable[[str, int, int], None]


def is_tenth(done: int, total: int) -> bool:
    """Return whether a tenth of the work was completed just now: worth a line in a log."""
    return done * 10 // total > (done - 1) * 10 // total


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Show nothing."""


class Cleaned(NamedTuple):
    """What was removed. Objects that were gone already do not count."""

    runs: int = 0
    nodes: int = 0
    leases: int = 0
    csi_nodes: int = 0
    pods: int = 0
    refused: tuple[FoundNode, ...] = ()
    """Nodes with the run's label that are not fleet's: they were left alone."""
    applied: int = 0
    left: tuple[str, ...] = ()
    """What the run made and what is still there, by path, with the reason."""


class Bound(NamedTuple):
    """What is on a node by its name alone."""

    path: str
    uid: str
    node: str


class Deletion(enum.Enum):
    """What came of deleting an object of one uid."""

    DONE = enum.auto()
    ABSENT = enum.auto()
    ANOTHER = enum.auto()  # has the name


async def clean_run(
    api: Api,
    run: str,
    progress: Progress = no_progress,
    *,
    shards: Sequence[int] | None = None,
    keeps_records: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> Cleaned:
    """Remove one run, or only some shards of it. Can be repeated: what is gone is gone.

    A run that ends `keeps_records`: its report is made of them.

    It looks again until there is nothing: a busy server may still create a node whose fleet has
    hung up. The run Leases of shards stay; who holds them releases them. Raises IncompleteError,
    which says what is left, when the server does not answer or refuses.
    """
    if not run:
        raise SetupError("a run without an id has no nodes: nothing was deleted")
    steps: dict[str, tuple[int, int]] = {}

    def note(what: str, done: int, total: int) -> None:
        steps[what] = (done, total)
        progress(what, done, total)

    try:
        if shards is not None:
            return await _clean_nodes(api, run, note, shards)
        total = await _clean_run(api, run, note, sleep)
        if not keeps_records:
            await leftovers.remove_load(api, await find_records(api, run))
    except SetupError as error:
        raise IncompleteError(f"{error}; {_left(steps)}") from error
    return total


async def _clean_run(api: Api, run: str, progress: Progress, sleep: Sleep) -> Cleaned:
    noted = await noted_of(api, run)
    going, left = await _delete_what_was_applied(api, noted)
    total = await _clean_nodes(api, run, progress, None)
    late, refused = await _delete_what_was_applied(api, noted)
    going = list(dict.fromkeys([*going, *late]))
    stays = await leftovers.wait_until_gone(api, going, sleep)
    left = [*dict.fromkeys([*left, *refused]), *stays]
    stored = await leftovers.remove_stored(api, run, sleep)
    await leftovers.remove_load(api, await leftovers.find_load(api, run))
    if not left:
        leases, _refused, _now_s = await find_leases(api, run)
        for lease in leases:
            metadata = lease["metadata"]
            await _delete(api, f"{RUN_LEASES}/{metadata['name']}", metadata["uid"])
    return total._replace(applied=len(going) - len(stays), left=(*left, *stored))


async def _delete_what_was_applied(
    api: Api, noted: leftovers.Noted
) -> tuple[list[leftovers.Leftover], list[str]]:
    """Return what goes now, and what is left for the server refuses to list or to delete it."""
    found = await leftovers.find_applied(api, noted)
    going, left = await leftovers.delete_applied(api, found.owned)
    return going, [*found.unread, *left]


async def _clean_nodes(
    api: Api, run: str, progress: Progress, shards: Sequence[int] | None
) -> Cleaned:
    selectors = [f"{RUN_LABEL}={run}"]
    if shards is not None:
        selectors = [f"{selectors[0]},{SHARD_LABEL}={shard:04d}" for shard in shards]
    total = Cleaned()
    refused: tuple[FoundNode, ...] = ()
    for _ in range(LOOKS_MAX):
        found = [await find_nodes(api, selector) for selector in selectors]
        nodes = [node for each in found for node in each.owned]
        refused = tuple(node for each in found for node in each.refused)
        if any(node.run != run for node in nodes):
            raise SetupError(f"the server ignored the label selector {selectors[0]}")
        if not nodes:
            break
        removed, gone = await _remove(api, nodes, progress)
        total = added(total, removed)
        for group, resource in OF_NODES:
            await _remove_of_nodes(api, gone, group, resource)
    return total._replace(runs=1, refused=refused)


def added(one: Cleaned, other: Cleaned) -> Cleaned:
    return Cleaned(*map(operator.add, one, other))


async def remove_nodes(api: Api, nodes: Sequence[FoundNode]) -> None:
    """Remove owned nodes of a run that goes on, with all that belongs to them."""
    await _remove(api, nodes, no_progress)


async def remove_named(api: Api, names: Iterable[str], run: str) -> tuple[FoundNode, ...]:
    """Do the same by name; return the nodes with these names that are not this run's, and stay."""
    found = await find_named(api, names, run)
    await remove_nodes(api, found.owned)
    return found.refused


async def _remove(
    api: Api, nodes: Sequence[FoundNode], progress: Progress
) -> tuple[Cleaned, set[str]]:
    """Delete nodes with Leases, CSINodes and pods; return also the names that nobody has now."""
    of_node = {
        path: await _owned(api, path, what, nodes)
        for path, what in ((NODE_LEASES, "leases"), (CSI_NODES, "CSINodes"))
    }
    counts = dict.fromkeys((*of_node, NODES), 0)
    gone: set[str] = set()
    done = 0

    async def remove(node: FoundNode) -> None:
        nonlocal done
        for path, owned in of_node.items():
            if node.name in owned:
                found = await _delete(api, f"{path}/{node.name}", owned[node.name])
                counts[path] += found is Deletion.DONE
        found = await _delete(api, f"{NODES}/{node.name}", node.uid)
        counts[NODES] += found is Deletion.DONE
        if found is not Deletion.ANOTHER:
            gone.add(node.name)
        done += 1
        progress("nodes", done, len(nodes))

    await each(nodes, remove)
    pods = await _remove_pods(api, gone, progress)
    return Cleaned(0, counts[NODES], counts[NODE_LEASES], counts[CSI_NODES], pods), gone


async def _owned(api: Api, path: str, what: str, nodes: Sequence[FoundNode]) -> dict[str, str]:
    """Return the uid of each object that has a node's name and that very node as its owner."""
    uids = {node.name: node.uid for node in nodes}
    owned: dict[str, str] = {}

    def take(item: Json) -> None:
        metadata = item["metadata"]
        owners = [each["uid"] for each in metadata.get("ownerReferences") or ()]
        if uids.get(metadata["name"]) in owners:
            owned[metadata["name"]] = metadata["uid"]

    await _list(api, path, what, "metadata.name", uids, take, accept=METADATA_ONLY)
    return owned


async def _list(
    api: Api,
    path: str,
    what: str,
    field: str,
    names: Collection[str],
    take: Callable[[Json], None],
    *,
    accept: str = JSON,
) -> None:
    """List the objects of which a field has one of these names; of many names all objects."""

    async def look(selector: str) -> None:
        query = {"fieldSelector": selector} if selector else {}
        async for page in api.pages(path, what, accept=accept, **query):
            for item in page:
                take(item)

    is_singly = len(names) <= NODES_ASKED_SINGLY_MAX
    await each([f"{field}={name}" for name in sorted(names)] if is_singly else [""], look)


async def _remove_pods(api: Api, nodes: Collection[str], progress: Progress) -> int:
    """Force-delete the pods that are bound to nodes which are gone."""
    bound: dict[str, Bound] = {}
    removed = done = 0

    def take(pod: Json) -> None:
        node, metadata = pod["spec"].get("nodeName"), pod["metadata"]
        if node in nodes:
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            bound[path] = Bound(path, metadata["uid"], node)

    async def remove(pod: Bound) -> None:
        nonlocal removed, done
        found = await _delete(api, pod.path, pod.uid, is_forced=True)
        removed += found is Deletion.DONE
        done += 1
        progress("pods", done, len(orphans))

    await _list(api, PODS, "pods", "spec.nodeName", nodes, take)
    orphans = await _still_orphaned(api, list(bound.values()))
    await each(orphans, remove)
    return removed


async def _remove_of_nodes(api: Api, nodes: Collection[str], group: str, resource: str) -> None:
    """Delete the objects of a kind that name a node which is gone, where we may."""
    if not nodes or not await is_allowed(api, Permission("delete", group, resource)):
        return
    path = f"/apis/{group}/v1/{resource}"
    listed = await api.request("GET", path)
    bound = []
    for item in (listed.body.get("items") or []) if listed.ok else []:
        node, metadata = item["spec"].get("nodeName"), item["metadata"]
        if node in nodes:
            bound.append(Bound(f"{path}/{metadata['name']}", metadata["uid"], node))

    async def remove(found: Bound) -> None:
        await _delete(api, found.path, found.uid)

    await each(await _still_orphaned(api, bound), remove)


async def _still_orphaned(api: Api, bound: Sequence[Bound]) -> list[Bound]:
    """Leave out what is bound to a name that a node has again.

    Asked after they were listed: what was bound to a free name is not of a node that comes later.
    """
    names = {found.node for found in bound}
    taken: set[str] = set()

    def take(item: Json) -> None:
        taken.add(item["metadata"]["name"])

    await _list(api, NODES, "nodes", "metadata.name", names, take, accept=METADATA_ONLY)
    return [found for found in bound if found.node not in taken]


async def _delete(api: Api, path: str, uid: str, *, is_forced: bool = False) -> Deletion:
    """Delete the object of this uid, and no other."""
    assert uid, path
    options: dict[str, object] = {"preconditions": {"uid": uid}}
    if is_forced:
        options["gracePeriodSeconds"] = 0
    answer = await api.request("DELETE", path, body=options)
    if answer.code == 404:
        return Deletion.ABSENT
    if answer.code == 409:
        return Deletion.ANOTHER
    expect(answer, f"cannot delete {path}")
    return Deletion.DONE


def _left(steps: dict[str, tuple[int, int]]) -> str:
    """Say how far a clean-up came, by the progress of each step.

    Nobody finds pods of nodes that are gone by a mark of ours.
    Source: pkg/controller/podgc/gc_controller.go, gcOrphaned.
    """
    if not steps:
        return "left: everything"
    parts = [f"{total - done:,} of {total:,} {what}" for what, (done, total) in steps.items()]
    if "pods" not in steps:
        parts.append("their pods")
    return f"left: {', '.join(parts)} (the cluster collects pods whose node is gone)"
