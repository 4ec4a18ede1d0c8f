"""Which Nodes are fleet's: two marks on each, never a label alone.

    label       fleet.emulator/run: the id of the run
    annotation  fleet.emulator/owner: the same id, and the uid of the Lease that it held then

A label is what people set on many nodes at once, and what a Node pasted from a cluster with fleet
nodes brings along. So a Node with the label alone is refused: it is neither adopted nor changed nor
deleted, and fleet names it.

Every Node gets the annotation when it is created, and a run that takes it over writes label and
annotation in one request. So a list of metadata alone, a tenth of the bytes, decides.

The uid is there for people and audits. It is not compared: a run that keeps its nodes gives its
Lease up, and one that somebody deletes is created again under another uid.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleet.cluster.api_client import METADATA_ONLY, Api, Json, each, expect, time_s
from fleet.cluster.run_id import LABEL
from fleet.k8s.pods import NodeView

RUN_LABEL = LABEL
PREFIX_LABEL = "fleet.emulator/prefix"
SHARD_LABEL = "fleet.emulator/shard"
OWNER_ANNOTATION = "fleet.emulator/owner"

NODES = "/api/v1/nodes"
REFUSED_SHOWN_MAX = 20  # names in one line of an error; the rest is counted


class FoundNode(NamedTuple):
    """A Node with fleet's label."""

    name: str
    uid: str
    run: str
    prefix: str
    created_s: int
    mark: str = ""  # the annotation


class FoundNodes(NamedTuple):
    """What a search brought: only what is `owned` may be changed or deleted."""

    owned: tuple[FoundNode, ...] = ()
    refused: tuple[FoundNode, ...] = ()


def owner_mark(run: str, lease_uid: str) -> str:
    """Return the annotation of the Nodes of a run."""
    return f"{run}/{lease_uid}"


def is_owned(node: Json) -> bool:
    """Return whether a Node has both marks, and both of the same run."""
    metadata = node["metadata"]
    run = (metadata.get("labels") or {}).get(RUN_LABEL, "")
    mark = (metadata.get("annotations") or {}).get(OWNER_ANNOTATION, "")
    of_run, _, lease_uid = mark.partition("/")
    return bool(run) and of_run == run and bool(lease_uid)


def is_of_run(view: NodeView, run: str) -> bool:
    """Return whether a Node as a kubelet reads it has both marks of a run."""
    assert view.details is not None, view
    metadata = {"labels": view.labels, "annotations": view.details.annotations}
    return view.labels.get(RUN_LABEL) == run and is_owned({"metadata": metadata})


async def find_nodes(api: Api, selector: str) -> FoundNodes:
    """Return the Nodes that a label selector finds, over all pages."""
    found: dict[str, Json] = {}
    async for page in api.pages(NODES, "nodes", accept=METADATA_ONLY, labelSelector=selector):
        found.update((item["metadata"]["name"], item) for item in page)
    return _divided(found.values())


async def find_named(api: Api, names: Iterable[str], run: str) -> FoundNodes:
    """Return the Nodes with these names, those of other runs and of nobody among the refused."""
    read: list[Json] = []

    async def get(name: str) -> None:
        answer = await api.request("GET", f"{NODES}/{name}")
        if answer.code != 404:
            read.append(expect(answer, f"cannot read node {name}"))

    await each(names, get)
    found = _divided(read)
    others = tuple(node for node in found.owned if node.run != run)
    owned = tuple(node for node in found.owned if node.run == run)
    return FoundNodes(owned, (*found.refused, *others))


async def adopt(
    api: Api, nodes: Sequence[FoundNode], run_id: str, lease_uid: str
) -> list[FoundNode]:
    """Mark owned nodes as this run's; return those that are, in order. What is gone is left.

    Both marks change in one request: whatever interrupts it, they are of one run.
    """
    adopted: dict[str, FoundNode] = {}
    mark = owner_mark(run_id, lease_uid)

    async def take(node: FoundNode) -> None:
        if (node.run, node.mark) != (run_id, mark):
            # The uid is a precondition: another node created under the name is not ours.
            marks = {"labels": {RUN_LABEL: run_id}, "annotations": {OWNER_ANNOTATION: mark}}
            patch = {"metadata": {"uid": node.uid, **marks}}
            path = f"{NODES}/{node.name}"
            answer = await api.request("PATCH", path, body=patch)
            if answer.code not in (404, 409):
                expect(answer, f"cannot adopt node {node.name}")
                adopted[node.name] = node._replace(run=run_id, mark=mark)
        else:
            adopted[node.name] = node

    await each(nodes, take)
    return [adopted[node.name] for node in nodes if node.name in adopted]


def refusal(nodes: Sequence[FoundNode]) -> str:
    """Say which nodes are left alone, why, and what their owner can do, in one line."""
    names = first_of([node.name for node in nodes], REFUSED_SHOWN_MAX)
    return (
        f"not touched, for they have the label {RUN_LABEL} but not fleet's second mark, the "
        f"annotation {OWNER_ANNOTATION}: {names}. If they are not fleet's: kubectl label node NAME "
        f"{RUN_LABEL}-; if they are: kubectl delete node NAME"
    )


def first_of(words: Sequence[str], most: int) -> str:
    """Return words in one line, so many of them at most; the rest is counted."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _divided(items: Iterable[Json]) -> FoundNodes:
    owned: list[FoundNode] = []
    refused: list[FoundNode] = []
    for item in items:
        (owned if is_owned(item) else refused).append(_found(item["metadata"]))
    return FoundNodes(tuple(owned), tuple(refused))


def _found(metadata: Json) -> FoundNode:
    labels = metadata.get("labels") or {}
    return FoundNode(
        metadata["name"],
        metadata["uid"],
        labels.get(RUN_LABEL, ""),
        labels.get(PREFIX_LABEL, ""),
        time_s(metadata.get("creationTimestamp", "")),
        (metadata.get("annotations") or {}).get(OWNER_ANNOTATION, ""),
    )
