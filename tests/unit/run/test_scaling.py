"""`fleet scale` in a cluster: shards find their number of nodes in their Leases, and share it."""

import asyncio
import time
from copy import deepcopy

import pytest
from world.cluster_fakes import FakeApi, no_sleep

from fleet.cluster.kept_records import keep_record, packed
from fleet.cluster.runs import NODES_ANNOTATION, RUN_LEASES, RunLease, Size
from fleet.errors import UsageError
from fleet.report.record import Record, dump
from fleet.report.report import RunFigures
from fleet.report.run_directory import RECORD
from fleet.run.scaling import rows_of, scale_shards

RECORDED = Record(figures=RunFigures(run_id="big"))
LONG_AGO = "2026-01-01T00:00:00Z"


class Shards:
    """The Leases of the shards of a run, held by processes of this test."""

    def __init__(self, *sizes: Size | None) -> None:
        self.api = FakeApi()
        self.api.date_s = int(time.time())  # by which Leases are alive
        self.asked: list[tuple[int, int]] = []
        self.leases = [self.lease(at, size) for at, size in enumerate(sizes)]
        for each in self.leases:
            asyncio.run(each.acquire())

    def lease(self, at: int, size: Size | None, run: str = "big") -> RunLease:
        lease = RunLease(self.api, f"fleet-{at:04d}", run, holder="h", size=size, sleep=no_sleep)
        lease.on_nodes = lambda nodes: self.asked.append((at, nodes))
        return lease

    def scale(self, nodes: int) -> str:
        answer = asyncio.run(scale_shards(self.api, "big", nodes))
        for each in self.leases:
            asyncio.run(each.renew())
        return str(answer["told"])


def size_in(shards: Shards, at: int) -> str:
    metadata = shards.api.objects[f"{RUN_LEASES}/fleet-run-fleet-{at:04d}"]["metadata"]
    return str(metadata["annotations"][NODES_ANNOTATION])


def test_the_shards_of_a_run_share_the_nodes_and_find_them_at_the_next_renewal() -> None:
    shards = Shards(Size(20, 50, 20), Size(20, 50, 20), Size(5, 5, 5))
    assert shards.scale(94) == "94 nodes for 3 shards, within 10 s"
    assert sorted(shards.asked) == [(0, 45), (1, 44)]  # the small one stays full
    shards.asked.clear()
    for each in shards.leases:  # what was taken is written, and asked once
        asyncio.run(each.renew())
        asyncio.run(each.renew())
    assert not shards.asked
    assert [size_in(shards, at) for at in range(3)] == ["45/50/20", "44/50/20", "5/5/5"]
    shards.scale(0)
    assert sorted(shards.asked) == [(0, 0), (1, 0), (2, 0)]


def test_what_the_process_itself_decides_is_not_undone_by_an_older_lease() -> None:
    shards = Shards(Size(20, 50, 20))
    [lease] = shards.leases
    shards.api.put(  # somebody else's annotation: the next renewal meets a conflict
        f"{RUN_LEASES}/fleet-run-fleet-0000",
        **shards.api.objects[f"{RUN_LEASES}/fleet-run-fleet-0000"],
    )
    lease.size = Size(30, 50, 20)  # by the run's socket
    assert asyncio.run(lease.renew())
    assert (shards.asked, size_in(shards, 0)) == ([], "30/50/20")


def test_a_shard_that_starts_again_has_as_many_nodes_as_it_was_scaled_to() -> None:
    shards = Shards(Size(20, 50, 20))
    shards.scale(7)
    for begun, found in ((20, 7), (25, 25)):  # with other options those count
        again = shards.lease(0, Size(begun, 50, begun))
        asyncio.run(again.acquire())
        assert again.size is not None
        assert again.size.nodes == found


def test_a_run_that_takes_the_names_of_a_dead_one_over_has_its_own_number_of_nodes() -> None:
    shards = Shards(Size(20, 50, 20))
    shards.scale(7)
    shards.api.objects[f"{RUN_LEASES}/fleet-run-fleet-0000"]["spec"]["renewTime"] = LONG_AGO
    later = shards.lease(0, Size(20, 50, 20), run="other")
    assert asyncio.run(later.acquire()) == "big"
    assert later.size == Size(20, 50, 20)
    assert size_in(shards, 0) == "20/50/20"


def test_leases_of_other_runs_of_dead_shards_and_copies_are_left_alone() -> None:
    shards = Shards(Size(20, 50, 20))
    asyncio.run(shards.lease(1, Size(20, 50, 20), run="other").acquire())
    leases = shards.api.objects
    ours = leases[f"{RUN_LEASES}/fleet-run-fleet-0000"]
    leases[f"{RUN_LEASES}/copied"] = copy = deepcopy(ours)  # with our labels alone
    copy["metadata"] |= {"name": "copied", "uid": "c"}
    asyncio.run(shards.lease(2, Size(20, 50, 20)).acquire())
    leases[f"{RUN_LEASES}/fleet-run-fleet-0002"]["spec"]["renewTime"] = LONG_AGO
    before = deepcopy(leases)
    assert (
        asyncio.run(scale_shards(shards.api, "big", 30))["told"]
        == "30 nodes for 1 shard, within 10 s"
    )
    assert [path for path in leases if leases[path] != before[path]] == [
        f"{RUN_LEASES}/fleet-run-fleet-0000"
    ]


@pytest.mark.parametrize(
    ("sizes", "nodes", "said"),
    [
        ((Size(5, 5, 5), Size(5, 9, 5)), 15, "the shards of this run have room for 14"),
        ((None,), 3, "no shard of this run is alive in this cluster and can be scaled"),
        ((), 3, "no shard of this run is alive"),
    ],
)
def test_what_cannot_be_is_refused(sizes: tuple[Size | None, ...], nodes: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Shards(*sizes).scale(nodes)


@pytest.mark.parametrize(
    ("content", "verdict"),
    [(b"", "-"), (b"of another version", "-"), (dump(RECORDED), "not-judged")],
)
def test_runs_are_listed_and_a_record_that_cannot_be_read_hides_none(
    content: bytes, verdict: str
) -> None:
    shards = Shards(Size(20, 50, 20))
    if content:
        asyncio.run(keep_record(shards.api, "big", "fleet-record-big", {RECORD: packed(content)}))
    [row] = asyncio.run(rows_of(shards.api))
    assert (row["run"], row["nodes"], row["where"]) == ("big", "0", "cluster")
    assert row["verdict"] == verdict
