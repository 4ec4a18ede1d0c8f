"""What becomes of the taints of nodes that a fleet takes over."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from world.cluster_fakes import FakeApi, no_sleep, node_marks

from fleet.cluster.daemonsets import EXCLUDE_FROM_BALANCERS, FAKE_TAINT
from fleet.cluster.leftovers import APPLIED_BY, object_mark
from fleet.cluster.ownership import NODES, OWNER_ANNOTATION, PREFIX_LABEL, FoundNode, find_nodes
from fleet.cluster.runs import RUN_LEASES, RunLease
from fleet.report.display import Display
from fleet.run.adoption import protect, remove_applied

SELECTOR = f"{PREFIX_LABEL}=fleet"
TAINT = FAKE_TAINT._asdict()
OTHER = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
PATHS = [f"{NODES}/fleet-{slot}" for slot in range(3)]


def cluster() -> tuple[FakeApi, list[FoundNode]]:
    """Give a node as of a shared cluster, one as of a dedicated one, and one that is not ours."""
    api = FakeApi()
    guarded = node_marks("r1", "fleet", **{EXCLUDE_FROM_BALANCERS: ""})
    api.put(PATHS[0], metadata=guarded, spec={"taints": [TAINT]})
    api.put(PATHS[1], metadata=node_marks("r1", "fleet"), spec={"taints": [OTHER]})
    nodes = list(asyncio.run(find_nodes(api, SELECTOR)).owned)
    api.put(PATHS[2], metadata=node_marks("r1", "fleet"), spec={})
    api.log.clear()
    return api, nodes


def taints(api: FakeApi, slot: int) -> object:
    return api.objects[PATHS[slot]]["spec"].get("taints")


def test_a_node_that_is_taken_over_gets_the_taint_that_it_lacks() -> None:
    api, nodes = cluster()
    assert asyncio.run(protect(api, SELECTOR, nodes, with_taint=True)) == 1
    assert taints(api, 1) == [OTHER, TAINT]
    assert EXCLUDE_FROM_BALANCERS in api.objects[PATHS[1]]["metadata"]["labels"]
    assert taints(api, 2) is None, "another node than those that were adopted"
    assert [path for method, path in api.log if method == "PATCH"] == PATHS[1:2]
    assert asyncio.run(protect(api, SELECTOR, nodes, with_taint=True)) == 0


def test_without_the_taint_load_balancers_are_kept_away_all_the_same() -> None:
    api, nodes = cluster()
    assert asyncio.run(protect(api, SELECTOR, nodes, with_taint=False)) == 1
    assert taints(api, 1) == [OTHER]
    assert EXCLUDE_FROM_BALANCERS in api.objects[PATHS[1]]["metadata"]["labels"]


def test_a_taint_that_a_controller_takes_away_meanwhile_stays_away() -> None:
    api, nodes = cluster()

    def meanwhile(method: str, _path: str) -> None:
        if method == "PATCH" and taints(api, 1) == [OTHER]:
            api.objects[PATHS[1]]["metadata"]["resourceVersion"] = "99"
            api.objects[PATHS[1]]["spec"] = {}

    api.before_request = meanwhile
    asyncio.run(protect(api, SELECTOR, nodes, with_taint=True))
    assert taints(api, 1) == [TAINT]


def test_a_node_that_is_made_anew_under_the_name_is_left_alone() -> None:
    api, nodes = cluster()

    def meanwhile(method: str, path: str) -> None:
        if method == "PATCH" and path == PATHS[1]:
            api.put(path, metadata={"labels": {}}, spec={})

    api.before_request = meanwhile
    asyncio.run(protect(api, SELECTOR, nodes, with_taint=True))
    assert taints(api, 1) is None


async def test_what_the_scenario_of_a_dead_run_has_applied_goes_with_its_names() -> None:
    """The objects of others stay, and so do those of this very run, which has started again."""
    api = FakeApi()
    maps = "/api/v1/namespaces/default/configmaps"

    def put(run: str, name: str, of: str) -> None:
        marks = {OWNER_ANNOTATION: object_mark(run, "default", of)}
        api.put(f"{maps}/{name}", metadata={"labels": {APPLIED_BY: run}, "annotations": marks})

    async def hold(run: str) -> RunLease:
        lease = RunLease(api, "fleet", run, sleep=no_sleep)
        await lease.acquire()
        await lease.note(maps)
        return lease

    put("old", "theirs", "theirs")
    put("old", "copy", "theirs")
    put("new", "ours", "ours")
    await hold("old")
    held = api.objects[f"{RUN_LEASES}/fleet-run-fleet"]["metadata"]
    held["managedFields"] = [{"time": "2026-11-23T01:02:03Z"}]
    cluster = cast("Any", SimpleNamespace(api=lambda _purpose: api))
    await remove_applied(cluster, await hold("new"), Display(is_quiet=True))
    left = [path for path in api.objects if path.startswith(maps)]
    assert left == [f"{maps}/copy", f"{maps}/ours"]
