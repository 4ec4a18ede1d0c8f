"""A fleet in pods: which shard's nodes stay when a pod ends, and which pods must end first."""

import asyncio
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, no_sleep

from fleet.cluster.api_client import Answer
from fleet.cluster.ownership import FoundNode
from fleet.cluster.statefulset import is_in_range, is_wanted, stop
from fleet.errors import SetupError, UsageError
from fleet.profile.option_types import StatefulSet
from fleet.profile.settings import Settings
from fleet.run.adoption import share_of

OWNER = StatefulSet("load", "fleet")


def put(api: FakeApi, replicas: int, **more: Any) -> dict[str, Any]:
    return api.put(OWNER.path, spec={"replicas": replicas, **more}, status={"replicas": replicas})


@pytest.mark.parametrize(
    ("spec", "metadata", "ordinal", "is_kept"),
    [
        ({"replicas": 2}, {}, 1, True),
        ({"replicas": 2}, {}, 2, False),
        ({"replicas": 0}, {}, 0, False),
        ({}, {}, 0, True),  # one is the default
        ({"replicas": 2, "ordinals": {"start": 5}}, {}, 6, True),
        ({"replicas": 2, "ordinals": {"start": 5}}, {}, 4, False),
        ({"replicas": 2}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, 0, False),
    ],
)
def test_a_pod_returns_while_its_ordinal_is_wanted(
    spec: dict[str, Any], metadata: dict[str, str], ordinal: int, *, is_kept: bool
) -> None:
    assert is_in_range({"metadata": metadata, "spec": spec}, ordinal) is is_kept


@pytest.mark.parametrize(("code", "is_kept"), [(404, False), (403, False), (500, True)])
def test_a_statefulset_that_is_gone_wants_nobody(code: int, *, is_kept: bool) -> None:
    """Its release took the grant along (403); a server in trouble has deleted nothing."""
    api = FakeApi()
    api.fail_next = [Answer(code, {}, 0)]
    assert asyncio.run(is_wanted(api, OWNER, 0)) is is_kept


def test_pods_are_ended_before_their_nodes_are_removed() -> None:
    api, notes = FakeApi(), list[str]()
    found = put(api, 2)
    api.put(f"{OWNER.path}/scale")
    found["metadata"]["generation"] = 2
    found["status"]["observedGeneration"] = 1
    scaled = api.objects[f"{OWNER.path}/scale"]

    async def sleep(_seconds: float) -> None:
        """Let the controller do one more step, as it does while somebody waits."""
        assert scaled["spec"] == {"replicas": 0}
        if found["status"]["observedGeneration"] == 1:
            found["status"] = {"observedGeneration": 2, "replicas": 1}
        else:
            found["status"] = {"observedGeneration": 2}

    asyncio.run(stop(api, OWNER, notes.append, sleep=sleep))
    assert notes == [
        "waiting for 2 pods of StatefulSet load/fleet to end",
        "waiting for 1 pods of StatefulSet load/fleet to end",
    ]


def test_pods_that_do_not_end_are_no_success() -> None:
    api = FakeApi()
    put(api, 1)
    api.put(f"{OWNER.path}/scale")
    with pytest.raises(SetupError, match="did not end within 900 s"):
        asyncio.run(stop(api, OWNER, lambda _: None, sleep=no_sleep))


def test_a_statefulset_that_is_not_there_has_no_pods() -> None:
    asyncio.run(stop(FakeApi(), OWNER, lambda _: None, sleep=no_sleep))


def settings(**options: object) -> Settings:
    return Settings.from_options(name_prefix="f", run_id="load-fleet", **options)


def test_a_smaller_shard_removes_what_it_no_longer_hosts() -> None:
    names = ("f-0001-00000", "f-0001-00001", "f-0001-00002", "f-0002-00000", "f-00012")
    nodes = [FoundNode(name, "u", "load-fleet", "f", 0) for name in names]
    nodes.append(FoundNode("f-0001-00003", "u", "another", "f", 0))
    mine, surplus = share_of(nodes, settings(shard=1, nodes=2), "load-fleet")
    assert [node.name for node in mine] == ["f-0001-00000", "f-0001-00001"]
    assert [node.name for node in surplus] == ["f-0001-00002"]


@pytest.mark.parametrize(
    ("shard", "nodes"),
    [(0, 1000), (1, 1000), (2, 500), (3, 1000)],  # 3: scaled up by hand
)
def test_the_last_shard_takes_what_is_left_of_the_total(shard: int, nodes: int) -> None:
    found = settings(shard=shard, nodes=1000, nodes_total=2500)
    assert found.nodes == nodes
    assert found.node_index(0) == shard * 1000


def test_processes_of_the_last_shard_keep_their_indices() -> None:
    full, last = (settings(shard=n, nodes=10, nodes_total=15, processes=2) for n in (0, 1))
    indices = [s.share(n).node_index(i) for s in (full, last) for n in (0, 1) for i in range(3)]
    assert len(set(indices)) == len(indices)
    assert [last.share(number).nodes for number in (0, 1)] == [3, 2]
    assert list(last.shards or ()) == [2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"statefulset": "fleet", "shard": 0}, "--statefulset: 'fleet' is not NAMESPACE/NAME"),
        ({"statefulset": "a/b", "run_id": "r"}, "--statefulset and --nodes-total need a --shard"),
        ({"statefulset": "a/b", "shard": 0}, "name it with --run-id"),
        ({"run_id": "Not_A_Label"}, "--run-id"),
    ],
)
def test_options_of_pods_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as found:
        Settings.from_options(**options)
    assert words in str(found.value)
