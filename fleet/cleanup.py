"""Removing what runs left: Nodes and what belongs to them, the pods bound to them, run Leases.

Order: a node's Lease and CSINode, then the Node, so that whatever an interruption leaves is still
found by its labels. Pods come last: while their node is there, controllers would replace them. They
are deleted with grace 0, since no kubelet is left that would confirm their end.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fleet.api_client import Api, each, expect
from fleet.errors import UsageError
from fleet.identity import LEASE_NAMESPACE, STORAGE, Permission, is_allowed
from fleet.runs import (
    NODES,
    RUN_LABEL,
    RUN_LEASES,
    SHARD_LABEL,
    FoundNode,
    RunInfo,
    list_runs,
    nodes_by_label,
)

NODE_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
OF_NODES = (("resource.k8s.io", "resourceslices"), (STORAGE, "volumeattachments"))
"""What a Node leaves to controllers, group and resource.

The garbage collector deletes the slices later. For a volume that a kubelet said to be in use the
attach-detach controller waits six minutes.
Source: pkg/controller/volume/attachdetach/reconciler/reconciler.go, reconcile.
"""
PODS = "/api/v1/pods"

LOOKS_MAX = 3
"""How often a clean-up lists the nodes of its run; the last time there should be none."""
NODES_ASKED_SINGLY_MAX = 200
"""Up to so many nodes are asked for their pods one by one; beyond, all pods are listed once."""

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


async def select_runs(
    api: Api, *, run: str = "", all_runs: bool = False, expired: bool = False
) -> list[RunInfo]:
    """Return the runs that were asked for. Raises UsageError if a run is not there.

    `expired` means those that no living fleet holds; without any choice nothing is selected.
    """
    runs = await list_runs(api)
    if run:
        selected = [info for info in runs if info.run == run]
        if not selected:
            known = ", ".join(info.run for info in runs) or "none"
            raise UsageError(f"--run {run}: no such run in this cluster; there are: {known}")
        return selected
    if all_runs:
        return runs
    return [info for info in runs if not info.is_alive] if expired else []


async def clean(
    api: Api,
    *,
    run: str = "",
    all_runs: bool = False,
    expired: bool = False,
    is_gone_fine: bool = False,
    progress: Progress = no_progress,
) -> Cleaned:
    """Remove the selected runs with all that belongs to them; nothing if none is selected.

    A run that is not there is a UsageError, unless `is_gone_fine`.
    """
    if is_gone_fine and run not in {info.run for info in await list_runs(api)}:
        return Cleaned()
    selected = await select_runs(api, run=run, all_runs=all_runs, expired=expired)
    total = Cleaned()
    for info in selected:
        removed = await clean_run(api, info.run, progress)
        total = Cleaned(*(a + b for a, b in zip(total, removed, strict=True)))
    return total


async def clean_run(
    api: Api,
    run: str,
    progress: Progress = no_progress,
    *,
    shards: Sequence[int] | None = None,
) -> Cleaned:
    """Remove one run, or only some shards of it. Can be repeated: what is gone is gone.

    It looks again until there is nothing: a busy server may still create a node whose fleet has
    hung up. The run Leases of shards stay; who holds them releases them.
    """
    assert run, "an empty run would select nodes that no fleet created"
    selectors = [f"{RUN_LABEL}={run}"]
    if shards is not None:
        selectors = [f"{selectors[0]},{SHARD_LABEL}={shard:04d}" for shard in shards]
    leases = csi_nodes = gone = pods = 0
    for _ in range(LOOKS_MAX):
        nodes = [node for each in selectors for node in await nodes_by_label(api, each)]
        assert all(node.run == run for node in nodes), "the server ignored the label selector"
        if not nodes:
            break
        counts = await _remove_nodes(api, nodes, progress)
        leases, csi_nodes, gone = leases + counts[0], csi_nodes + counts[1], gone + counts[2]
        names = {node.name for node in nodes}
        pods += await _remove_pods(api, names, progress)
        for group, resource in OF_NODES:
            await _remove_of_nodes(api, names, group, resource)
    if shards is None:
        await _remove_run_leases(api, run)
    return Cleaned(1, gone, leases, csi_nodes, pods)


async def remove_nodes(api: Api, names: list[str]) -> None:
    """Remove nodes of a run that goes on, with all that belongs to them."""

    async def remove(name: str) -> None:
        await _remove_node(api, name)

    await each(names, remove)
    await _remove_pods(api, set(names), no_progress)


async def _remove_nodes(
    api: Api, nodes: list[FoundNode], progress: Progress
) -> tuple[int, int, int]:
    """Delete nodes with their Leases and CSINodes; return how many of each there were."""
    leases = csi_nodes = removed = done = 0

    async def remove(node: FoundNode) -> None:
        nonlocal leases, csi_nodes, removed, done
        had_lease, had_csi_node, was_there = await _remove_node(api, node.name, node.uid)
        leases += had_lease
        csi_nodes += had_csi_node
        removed += was_there
        done += 1
        progress("nodes", done, len(nodes))

    await each(nodes, remove)
    return leases, csi_nodes, removed


async def _remove_node(api: Api, name: str, uid: str = "") -> tuple[bool, bool, bool]:
    """Delete a node's Lease, its CSINode and itself; return which of them were there."""
    return (
        await _delete(api, f"{NODE_LEASES}/{name}"),
        await _delete(api, f"{CSI_NODES}/{name}"),
        await _delete(api, f"{NODES}/{name}", uid=uid),
    )


async def _remove_pods(api: Api, nodes: set[str], progress: Progress) -> int:
    """Force-delete the pods that are bound to nodes which are gone."""
    bound = await _bound_pods(api, nodes)
    removed = done = 0

    async def remove(pod: tuple[str, str]) -> None:
        nonlocal removed, done
        path, uid = pod
        was_there = await _delete(api, path, uid=uid, is_forced=True)
        removed += was_there
        done += 1
        progress("pods", done, len(bound))

    await each(bound.items(), remove)
    return removed


async def _bound_pods(api: Api, nodes: set[str]) -> dict[str, str]:
    """Return path and uid of each pod on one of the nodes."""
    bound: dict[str, str] = {}

    async def collect(**query: str) -> None:
        async for page in api.pages(PODS, "pods", **query):
            for pod in page:
                if pod["spec"].get("nodeName") in nodes:
                    metadata = pod["metadata"]
                    name = f"{metadata['namespace']}/pods/{metadata['name']}"
                    bound[f"/api/v1/namespaces/{name}"] = metadata["uid"]

    async def collect_from(node: str) -> None:
        await collect(fieldSelector=f"spec.nodeName={node}")

    if len(nodes) > NODES_ASKED_SINGLY_MAX:
        await collect()
    else:
        await each(sorted(nodes), collect_from)
    return bound


async def _remove_of_nodes(api: Api, nodes: set[str], group: str, resource: str) -> None:
    """Delete the objects of a kind that name a node which is gone, where we may."""
    if not await is_allowed(api, Permission("delete", group, resource)):
        return
    path = f"/apis/{group}/v1/{resource}"
    listed = await api.request("GET", path)
    for item in (listed.body.get("items") or []) if listed.ok else []:
        if item["spec"].get("nodeName") in nodes:
            await _delete(api, f"{path}/{item['metadata']['name']}")


async def _remove_run_leases(api: Api, run: str) -> None:
    listed = await api.request("GET", RUN_LEASES, query={"labelSelector": f"{RUN_LABEL}={run}"})
    for lease in expect(listed, "cannot list run leases").get("items") or []:
        metadata = lease["metadata"]
        await _delete(api, f"{RUN_LEASES}/{metadata['name']}", uid=metadata["uid"])


async def _delete(api: Api, path: str, *, uid: str = "", is_forced: bool = False) -> bool:
    """Delete one object; return whether it was there, and the same one."""
    options: dict[str, object] = {}
    if uid:
        options["preconditions"] = {"uid": uid}
    if is_forced:
        options["gracePeriodSeconds"] = 0
    answer = await api.request("DELETE", path, body=options or None)
    if answer.code in (404, 409):
        return False
    expect(answer, f"cannot delete {path}")
    return True


def runs_text(runs: Iterable[RunInfo]) -> str:
    """Return what `fleet clean` without arguments prints."""
    rows = [("RUN", "PREFIX", "NODES", "STATE", "AGE", "VERSION")]
    rows += [
        (
            info.run,
            ",".join(info.prefixes) or "-",
            f"{info.nodes:,}",
            "running" if info.is_alive else "left behind",
            _age(info.age_s),
            info.version or "-",
        )
        for info in runs
    ]
    if len(rows) == 1:
        return "no fleet has left anything in this cluster\n"
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.append("")
    lines.append("nothing was deleted: choose with --run ID, --expired (what no running fleet")
    lines.append("holds) or --all (running ones too)")
    return "\n".join(lines) + "\n"


def _age(seconds: int) -> str:
    """Return an age as kubectl shows it."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
