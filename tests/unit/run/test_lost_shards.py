"""Nodes of pods that were killed while they were scaled away, and of none that will come back."""

import asyncio

import pytest
from world.cluster_fakes import FakeApi, add_owned, node_marks

from fleet.cluster.ownership import NODES, PREFIX_LABEL, RUN_LABEL, SHARD_LABEL
from fleet.cluster.runs import RUN_LEASES
from fleet.profile.settings import Settings
from fleet.run.adoption import remove_lost_shards

RUN = "load.fleet"
DEAD, ALIVE = "2027-01-15T07:59:00Z", "2027-01-15T07:59:50Z"  # by the server it is 08:00:00


def settings(processes: int = 1) -> Settings:
    return Settings.from_options(
        shard=0,
        run_id=RUN,
        holder="pod-0",
        statefulset="load/fleet",
        processes=processes,
        name_prefix="fleet",
    )


def home(replicas: int) -> FakeApi:
    api = FakeApi()
    api.put("/apis/apps/v1/namespaces/load/statefulsets/fleet", spec={"replicas": replicas})
    return api


def cluster(*shards: tuple[int, str], run: str = RUN) -> FakeApi:
    """Return a cluster with two nodes, and a Lease that was last renewed then, of each shard."""
    api = FakeApi()
    for shard, renewed in shards:
        prefix = f"fleet-{shard:04d}"
        lease = {"labels": {RUN_LABEL: run, PREFIX_LABEL: prefix}}
        api.put(
            f"{RUN_LEASES}/fleet-run-{prefix}",
            metadata={**lease, "managedFields": [{"manager": "fleet", "time": renewed}]},
            spec={"holderIdentity": run, "leaseDurationSeconds": 40},
        )
        for slot in range(2):
            name = f"{prefix}-{slot:05d}"
            marks = node_marks(run, "fleet", **{SHARD_LABEL: f"{shard:04d}"})
            add_owned(api, name, marks)
    return api


def left(api: FakeApi) -> set[str]:
    """Return the shards that something is left of."""
    return {path.rsplit("/", 1)[1].removeprefix("fleet-run-")[:10] for path in api.objects}


@pytest.mark.parametrize(
    ("replicas", "processes", "gone"),
    [
        (1, 1, {"fleet-0001", "fleet-0002"}),
        (2, 1, {"fleet-0002"}),
        (3, 1, set()),
        (1, 2, {"fleet-0002"}),  # shard 1 is the second process of pod 0
        (1, 3, set()),
    ],
)
def test_shards_that_nobody_holds_or_wants_are_removed(
    replicas: int, processes: int, gone: set[str]
) -> None:
    api = cluster((0, ALIVE), (1, DEAD), (2, DEAD))
    removed = asyncio.run(remove_lost_shards(api, home(replicas), settings(processes)))
    assert set(removed) == gone
    assert left(api) == {"fleet-0000", "fleet-0001", "fleet-0002"} - gone


def test_a_shard_that_is_still_being_removed_by_its_pod_is_left_to_it() -> None:
    api = cluster((0, ALIVE), (1, ALIVE))
    assert asyncio.run(remove_lost_shards(api, home(1), settings())) == []
    assert left(api) == {"fleet-0000", "fleet-0001"}


def test_runs_of_others_are_nobodys_business_here() -> None:
    api = cluster((1, DEAD), run="another")
    assert asyncio.run(remove_lost_shards(api, home(1), settings())) == []
    assert left(api) == {"fleet-0001"}


def test_a_pod_that_comes_back_meanwhile_waits_for_the_lease() -> None:
    """The Lease is taken before the first node goes, and given up after the last."""
    api = cluster((1, DEAD))
    asyncio.run(remove_lost_shards(api, home(1), settings()))
    lease = f"{RUN_LEASES}/fleet-run-fleet-0001"
    deleted = [path for method, path in api.log if method == "DELETE"]
    taken = api.log.index(("PUT", lease))
    assert all(("DELETE", path) in api.log[taken:] for path in deleted)
    assert deleted[-1] == lease
    assert sum(path.startswith(NODES) for path in deleted) == 2
