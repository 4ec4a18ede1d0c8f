import asyncio
from typing import Any

import pytest
from cluster_fakes import FakeApi, no_sleep

from fleet.api_client import Answer
from fleet.cleanup import (
    CSI_NODES,
    NODE_LEASES,
    OF_NODES,
    Cleaned,
    clean,
    clean_run,
    runs_text,
)
from fleet.errors import SetupError, UsageError
from fleet.runs import (
    DURATION_S,
    NODES,
    PREFIX_LABEL,
    RUN_LABEL,
    RUN_LEASES,
    SHARD_LABEL,
    RunLease,
    list_runs,
)


def add_node(api: FakeApi, name: str, run: str = "") -> None:
    labels = {RUN_LABEL: run, PREFIX_LABEL: name.partition("-")[0]} if run else {}
    api.put(f"{NODES}/{name}", metadata={"labels": labels})
    api.put(f"{NODE_LEASES}/{name}")
    api.put(f"{CSI_NODES}/{name}")


def add_pod(api: FakeApi, name: str, node: str) -> None:
    metadata = {"namespace": "ns"}
    api.put(f"/api/v1/namespaces/ns/pods/{name}", metadata=metadata, spec={"nodeName": node})


def cluster(nodes: int = 3) -> FakeApi:
    """A cluster with a run that left something, a running one, and nodes and pods of its own."""
    api = FakeApi()
    api.put("/api/v1/namespaces/ns")
    for index in range(nodes):
        add_node(api, f"a-{index}", "left")
        add_pod(api, f"on-a-{index}", f"a-{index}")
    add_node(api, "b-0", "running")
    add_pod(api, "on-b", "b-0")
    for run in ("left", "running"):
        lease = RunLease(api, "a" if run == "left" else "b", run, sleep=no_sleep)
        asyncio.run(lease.acquire())
    time = "2027-01-15T08:00:00Z"
    api.date_s = 1_800_000_000 + DURATION_S
    api.objects[f"{RUN_LEASES}/fleet-run-a"]["metadata"]["managedFields"] = [{"time": time}]
    time = "2027-01-15T08:00:39Z"
    api.objects[f"{RUN_LEASES}/fleet-run-b"]["metadata"]["managedFields"] = [{"time": time}]
    add_node(api, "real-0")
    add_pod(api, "real", "real-0")
    add_pod(api, "pending", "")
    api.log.clear()
    return api


def belongs(api: FakeApi, part: str) -> list[str]:
    return [path for path in api.objects if part in path.rsplit("/", 1)[1]]


REAL = [
    "/api/v1/nodes/real-0",
    f"{NODE_LEASES}/real-0",
    f"{CSI_NODES}/real-0",
    "/api/v1/namespaces/ns/pods/real",
]


@pytest.mark.parametrize("nodes", [3, 250])
def test_a_run_goes_with_all_that_belongs_to_it_and_nothing_else(nodes: int) -> None:
    api = cluster(nodes)
    others = set(api.objects) - set(belongs(api, "a-")) - {f"{RUN_LEASES}/fleet-run-a"}
    cleaned = asyncio.run(clean(api, run="left"))
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


def test_a_run_that_may_be_gone_is_no_error() -> None:
    assert asyncio.run(clean(cluster(), run="never", is_gone_fine=True)) == Cleaned()


def test_without_a_choice_nothing_is_deleted() -> None:
    api = cluster()
    before = set(api.objects)
    assert asyncio.run(clean(api)) == Cleaned()
    assert set(api.objects) == before
    assert {method for method, _path in api.log} == {"GET"}


def test_expired_spares_what_a_running_fleet_holds() -> None:
    api = cluster()
    assert asyncio.run(clean(api, expired=True)).runs == 1
    assert not belongs(api, "a-")
    assert f"{NODES}/b-0" in api.objects


def test_all_takes_running_fleets_too_but_no_real_node() -> None:
    api = cluster()
    assert asyncio.run(clean(api, all_runs=True)).runs == 2
    assert not belongs(api, "b-0")
    assert set(REAL) <= set(api.objects)


def test_an_unknown_run_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no such run in this cluster; there are: left, running"):
        asyncio.run(clean(cluster(), run="nope"))


def test_an_empty_run_never_becomes_a_selector() -> None:
    api = cluster()
    with pytest.raises(AssertionError):
        asyncio.run(clean_run(api, ""))
    assert not api.log


def test_a_server_that_ignores_selectors_deletes_nothing() -> None:
    api = cluster()
    items = [{"metadata": {"name": "real-0", "uid": "u"}}]
    api.fail_next = [Answer(200, {"items": items})]
    with pytest.raises(AssertionError, match="ignored the label selector"):
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
    cleaned = asyncio.run(clean(api, run="left"))
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


def test_a_node_created_anew_under_the_name_stays() -> None:
    api = cluster()

    def replace(method: str, path: str) -> None:
        if method == "DELETE" and path == f"{NODES}/a-2":
            api.put(path, metadata={"uid": "another"})

    api.before_request = replace
    asyncio.run(clean(api, run="left"))
    assert f"{NODES}/a-2" in api.objects


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
    asyncio.run(clean(api, run="left"))
    assert bodies == [0, 0, 0]


def test_progress_is_told_node_by_node() -> None:
    seen: list[tuple[str, int, int]] = []
    asyncio.run(clean(cluster(), run="left", progress=lambda *step: seen.append(step)))
    assert seen == [*[("nodes", i, 3) for i in (1, 2, 3)], *[("pods", i, 3) for i in (1, 2, 3)]]


def test_a_refusal_ends_it_in_one_line() -> None:
    api = cluster()

    def refuse(method: str, _path: str) -> None:
        if method == "DELETE":
            api.fail_next = [Answer(403, {"message": "no"})]

    api.before_request = refuse
    with pytest.raises(SetupError, match=r"cannot delete .*: no"):
        asyncio.run(clean(api, run="left"))


def test_the_list_says_what_runs_and_that_nothing_was_deleted() -> None:
    text = runs_text(asyncio.run(list_runs(cluster())))
    lines = text.splitlines()
    assert lines[0].split() == ["RUN", "PREFIX", "NODES", "STATE", "AGE", "VERSION"]
    states = {line.split()[0]: line for line in lines[1:3]}
    assert "left behind" in states["left"]
    assert "running  " in states["running"]
    assert "nothing was deleted" in text
    assert runs_text([]) == "no fleet has left anything in this cluster\n"


@pytest.mark.parametrize(("group", "resource"), OF_NODES)
def test_what_names_a_node_goes_with_it(group: str, resource: str) -> None:
    api, path = cluster(), f"/apis/{group}/v1/{resource}"
    for name, node in (("mine", "a-1"), ("other", "b-0"), ("pool", "")):
        api.put(f"{path}/{name}", spec={"nodeName": node} if node else {"allNodes": True})
    asyncio.run(clean_run(api, "left"))
    left = [each for each in api.objects if each.startswith(path)]
    assert left == [f"{path}/other", f"{path}/pool"]
