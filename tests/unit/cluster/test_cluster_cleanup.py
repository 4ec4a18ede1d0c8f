import asyncio
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, node_marks
from world.left_cluster import REAL, add_node, add_pod, belongs, cluster

from fleet.cluster import api_client
from fleet.cluster.api_client import Answer
from fleet.cluster.cleanup import (
    CSI_NODES,
    NODE_LEASES,
    OF_NODES,
    PODS,
    Cleaned,
    clean_run,
    remove_named,
)
from fleet.cluster.ownership import NODES, RUN_LABEL, SHARD_LABEL
from fleet.cluster.runs import RUN_LEASES
from fleet.errors import Exit, IncompleteError, SetupError

SLICES, VOLUMES = (f"/apis/{group}/v1/{resource}" for group, resource in OF_NODES)


@pytest.mark.parametrize("nodes", [3, 250])
def test_a_run_goes_with_all_that_belongs_to_it_and_nothing_else(nodes: int) -> None:
    api = cluster(nodes)
    others = set(api.objects) - set(belongs(api, "a-")) - {f"{RUN_LEASES}/fleet-run-a"}
    cleaned = asyncio.run(clean_run(api, "left"))
    assert cleaned == Cleaned(runs=1, nodes=nodes, leases=nodes, csi_nodes=nodes, pods=nodes)
    assert set(api.objects) == others
    assert set(REAL) <= others


def test_a_shard_of_a_run_goes_alone() -> None:
    api = cluster()
    for name, shard in (("a-0", "0000"), ("a-1", "0001"), ("a-2", "0002")):
        api.objects[f"{NODES}/{name}"]["metadata"]["labels"][SHARD_LABEL] = shard
    done = asyncio.run(clean_run(api, "left", shards=range(1, 3)))
    assert (done.nodes, done.leases, done.csi_nodes, done.pods) == (2, 2, 2, 2)
    assert f"{NODES}/a-0" in api.objects
    assert f"{RUN_LEASES}/fleet-run-a" in api.objects


def test_an_empty_run_never_becomes_a_selector() -> None:
    api = cluster()
    with pytest.raises(SetupError, match="nothing was deleted"):
        asyncio.run(clean_run(api, ""))
    assert not api.log


def test_a_server_that_ignores_selectors_deletes_nothing() -> None:
    api = cluster()
    items = [{"metadata": {"name": "b-0", "uid": "u", **node_marks("running")}}]

    def ignore(method: str, path: str) -> None:
        if (method, path) == ("GET", NODES):
            api.fail_next = [Answer(200, {"items": items})]

    api.before_request = ignore
    with pytest.raises(IncompleteError, match="ignored the label selector"):
        asyncio.run(clean_run(api, "left"))
    assert {method for method, _path in api.log} == {"GET"}


def test_what_is_gone_already_does_not_count_and_does_not_hurt() -> None:
    api = cluster()
    del api.objects[f"{NODE_LEASES}/a-0"]
    del api.objects[f"{CSI_NODES}/a-1"]

    def vanish(method: str, path: str) -> None:
        if method == "DELETE" and path == f"{NODES}/a-2":
            api.objects.pop(path, None)

    api.before_request = vanish
    cleaned = asyncio.run(clean_run(api, "left"))
    assert cleaned == Cleaned(runs=1, nodes=2, leases=2, csi_nodes=2, pods=3)


def test_a_node_that_arrives_during_the_clean_up_goes_too() -> None:
    """Its creation was on its way when the fleet hung up, and the server was busy."""
    api = cluster()

    def arrive(method: str, path: str) -> None:
        if method == "DELETE" and path == f"{NODES}/a-2":
            add_node(api, "a-3", "left")

    api.before_request = arrive
    assert asyncio.run(clean_run(api, "left")).nodes == 4
    assert not belongs(api, "a-")


@pytest.mark.parametrize("found_out_by", [NODE_LEASES, CSI_NODES, PODS, VOLUMES, SLICES])
def test_a_machine_that_joins_under_the_name_keeps_all_that_it_has(found_out_by: str) -> None:
    """Its Lease, CSINode, pods, attachments and slices, whenever in the clean-up it joins."""
    api = cluster()
    anew: set[str] = set()

    def replace(method: str, path: str) -> None:
        if method != "GET" or path != found_out_by or anew:
            return
        add_node(api, "a-2")
        add_pod(api, "on-a-2", "a-2")
        for kind in VOLUMES, SLICES:
            api.put(f"{kind}/of-a-2", spec={"nodeName": "a-2"})
        anew.update(each for each in api.objects if "a-2" in each)

    api.before_request = replace
    cleaned = asyncio.run(clean_run(api, "left"))
    assert len(anew) == 6, anew
    assert anew <= set(api.objects)
    assert cleaned.nodes == 2 + (found_out_by not in {NODE_LEASES, CSI_NODES})
    assert not belongs(api, "a-1")


def test_a_name_that_another_had_when_it_was_deleted_keeps_its_pods() -> None:
    """Even if that machine is off again when its pods would be looked at."""
    api = cluster()

    def replace(method: str, path: str) -> None:
        if (method, path) == ("DELETE", f"{NODES}/a-2"):
            api.put(path, metadata={"uid": "another"})
        elif method == "GET" and path == PODS:
            api.objects.pop(f"{NODES}/a-2", None)

    api.before_request = replace
    assert asyncio.run(clean_run(api, "left")).pods == 2
    assert "/api/v1/namespaces/ns/pods/on-a-2" in api.objects


def test_pods_go_after_their_nodes_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    api = cluster()
    bodies: list[Any] = []
    asked = api._delete

    def note(path: str, query: dict[str, Any], body: dict[str, Any]) -> Answer:
        if "/pods/" in path:
            assert f"{NODES}/a-0" not in api.objects
            bodies.append(body["gracePeriodSeconds"])
        return asked(path, query, body)

    monkeypatch.setattr(api, "_delete", note)
    asyncio.run(clean_run(api, "left"))
    assert bodies == [0, 0, 0]


def test_progress_is_told_node_by_node() -> None:
    seen: list[tuple[str, int, int]] = []
    asyncio.run(clean_run(cluster(), "left", lambda *step: seen.append(step)))
    assert seen == [*[("nodes", i, 3) for i in (1, 2, 3)], *[("pods", i, 3) for i in (1, 2, 3)]]


def test_a_refusal_ends_it_in_one_line() -> None:
    api = cluster()

    def refuse(method: str, _path: str) -> None:
        if method == "DELETE":
            api.fail_next = [Answer(403, {"message": "no"})]

    api.before_request = refuse
    with pytest.raises(IncompleteError, match=r"cannot delete .*: no; left: everything"):
        asyncio.run(clean_run(api, "left"))


@pytest.mark.parametrize(("group", "resource"), OF_NODES)
def test_what_names_a_node_goes_with_it(group: str, resource: str) -> None:
    api, path = cluster(), f"/apis/{group}/v1/{resource}"
    for name, node in (("mine", "a-1"), ("other", "b-0"), ("pool", "")):
        api.put(f"{path}/{name}", spec={"nodeName": node} if node else {"allNodes": True})
    asyncio.run(clean_run(api, "left"))
    left = [each for each in api.objects if each.startswith(path)]
    assert left == [f"{path}/other", f"{path}/pool"]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (NODES, "left: everything"),
        (f"{NODES}/a-2", "left: [123] of 3 nodes, their pods|left: everything"),
        ("/api/v1/namespaces/ns/pods/on-a-2", "left: 0 of 3 nodes, [123] of 3 pods|"),
    ],
)
def test_what_is_left_is_told_when_the_server_is_gone(path: str, left: str) -> None:
    api = cluster()

    def refuse(_method: str, asked: str) -> None:
        if asked == path:
            raise SetupError("127.0.0.1:6443: connection refused")

    api.before_request = refuse
    with pytest.raises(IncompleteError, match=f"connection refused; ({left})") as found:
        asyncio.run(clean_run(api, "left"))
    assert found.value.exit_code is Exit.INVALID
    api.before_request = lambda _method, _path: None
    asyncio.run(clean_run(api, "left"))
    assert not [path for path in belongs(api, "a-") if "/pods/" not in path]


def test_a_run_lease_that_has_the_label_alone_stays() -> None:
    api = cluster()
    path = f"{RUN_LEASES}/theirs"
    api.put(path, metadata={"labels": {RUN_LABEL: "left"}}, spec={"holderIdentity": "left"})
    asyncio.run(clean_run(api, "left"))
    assert path in api.objects
    assert f"{RUN_LEASES}/fleet-run-a" not in api.objects


def test_by_name_only_nodes_of_the_run_are_removed() -> None:
    api = cluster()
    names = ["a-0", "b-0", "real-0", "never"]
    before = set(api.objects)
    refused = asyncio.run(remove_named(api, names, "left"))
    assert sorted(node.name for node in refused) == ["b-0", "real-0"]
    assert before - set(api.objects) == set(belongs(cluster(), "a-0"))


@pytest.mark.parametrize("tokens", ["aaa", "abab", "abcdefgh"])
async def test_a_list_that_does_not_end_is_refused(
    tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "PAGES_MAX", 6)
    api = FakeApi()
    left = iter(tokens)
    asked: list[str] = []

    async def request(method: str, path: str, **_more: object) -> Answer:
        asked.append(f"{method} {path}")
        return Answer(200, {"metadata": {"continue": next(left)}, "items": []}, 0)

    monkeypatch.setattr(api, "request", request)
    with pytest.raises(SetupError, match="cannot list nodes: the server's list does not end"):
        [page async for page in api.pages(NODES, "nodes")]
    assert len(asked) <= 6
