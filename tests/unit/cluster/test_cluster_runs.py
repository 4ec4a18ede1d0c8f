import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, no_sleep, node_marks
from world.sim_clock import SimClock

from fleet import __version__
from fleet.cluster.api_client import Answer
from fleet.cluster.ownership import NODES, PREFIX_LABEL, RUN_LABEL, find_nodes
from fleet.cluster.runs import (
    DURATION_S,
    HOLDER_ANNOTATION,
    RUN_LEASES,
    RunLease,
    holder_of,
    list_runs,
)
from fleet.errors import SetupError

LEASE = f"{RUN_LEASES}/fleet-run-fleet"
SELECTOR = f"{PREFIX_LABEL}=fleet"


def lease(api: FakeApi, run: str, prefix: str = "fleet") -> RunLease:
    return RunLease(api, prefix, run, clock=SimClock(), sleep=no_sleep)


def acquire(api: FakeApi, run: str) -> tuple[RunLease, str]:
    taken = lease(api, run)
    return taken, asyncio.run(taken.acquire())


def stamp(api: FakeApi) -> None:
    """Note the time of the last write, as the server does."""
    time = "2027-01-15T08:00:00Z"
    api.date_s = 1_800_000_000
    api.objects[LEASE]["metadata"]["managedFields"] = [{"manager": "fleet", "time": time}]


def add_node(api: FakeApi, name: str, run: str, prefix: str = "fleet") -> None:
    api.put(f"{NODES}/{name}", metadata=node_marks(run, prefix))


def test_a_free_prefix_is_taken() -> None:
    api = FakeApi()
    _, before = acquire(api, "r1")
    assert before == ""
    stored = api.objects[LEASE]
    assert stored["metadata"]["labels"] == {RUN_LABEL: "r1", PREFIX_LABEL: "fleet"}
    assert stored["spec"] == {
        "holderIdentity": "r1",
        "leaseDurationSeconds": DURATION_S,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


@pytest.mark.parametrize("was_there", [False, True])
async def test_a_claim_that_is_interrupted_while_it_is_written_can_be_released(
    *, was_there: bool
) -> None:
    class SlowApi(FakeApi):
        async def request(self, method: str, path: str, **asked: Any) -> Answer:
            answer = await super().request(method, path, **asked)
            await asyncio.sleep(0)  # on its way back
            return answer

    api = SlowApi()
    if was_there:
        await lease(api, "r1").acquire()
        stamp(api)
        api.date_s += DURATION_S
    taken = lease(api, "r2")
    claiming = asyncio.ensure_future(taken.acquire())

    def interrupt(method: str, _path: str) -> None:
        if method in ("POST", "PUT"):
            claiming.cancel()

    api.before_request = interrupt
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert LEASE in api.objects  # the server had it already
    await taken.release()
    assert not api.objects


def test_a_second_fleet_with_the_prefix_of_a_living_one_is_refused() -> None:
    api = FakeApi()
    acquire(api, "r1")  # its wrong clock does not matter: it is a year before the server's
    stamp(api)
    api.date_s += DURATION_S - 1
    with pytest.raises(SetupError, match=r"prefix fleet is in use by run r1 .*--name-prefix"):
        acquire(api, "r2")
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "r1"


def test_a_dead_fleet_s_prefix_is_taken_over() -> None:
    api = FakeApi()
    acquire(api, "r1")
    stamp(api)
    api.date_s += DURATION_S
    _, before = acquire(api, "r2")
    assert before == "r1"
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "r2"
    assert api.objects[LEASE]["spec"]["leaseTransitions"] == 1


def test_a_lease_of_another_program_is_not_taken() -> None:
    api = FakeApi()
    api.put(LEASE, spec={"holderIdentity": "theirs"})
    with pytest.raises(SetupError, match="default/fleet-run-fleet is not one that fleet made"):
        acquire(api, "r1")
    assert api.objects[LEASE]["spec"] == {"holderIdentity": "theirs"}


def test_the_holder_s_word_counts_where_the_server_kept_no_time() -> None:
    api = FakeApi()
    acquire(api, "r1")
    api.date_s = SimClock.EPOCH_NS // 10**9 + 5
    holder = asyncio.run(holder_of(api, "fleet"))
    assert holder is not None
    assert (holder.renewed_ago_s, holder.is_alive) == (5, True)


def pod_lease(api: FakeApi, holder: str) -> RunLease:
    return RunLease(api, "fleet", "r1", holder=holder, clock=SimClock(), sleep=no_sleep)


def test_a_pod_waits_for_the_one_before_it_in_its_shard() -> None:
    api = FakeApi()
    asyncio.run(pod_lease(api, "pod-a").acquire())
    stamp(api)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        api.date_s += int(seconds)

    after = RunLease(api, "fleet", "r1", holder="pod-b", clock=SimClock(), sleep=sleep)
    asyncio.run(after.acquire())
    assert slept == [DURATION_S + 1]
    assert api.objects[LEASE]["metadata"]["annotations"][HOLDER_ANNOTATION] == "pod-b"


def test_a_second_process_with_the_same_shard_is_refused_once_the_first_is_seen_to_live() -> None:
    api = FakeApi()
    asyncio.run(pod_lease(api, "pod-a").acquire())
    stamp(api)
    with pytest.raises(SetupError, match=r"shard fleet of run r1 is another process's \(pod-a\)"):
        asyncio.run(pod_lease(api, "pod-b").acquire())  # the clock stands, as if it were renewed


def test_a_container_that_is_started_again_in_its_pod_need_not_wait() -> None:
    api = FakeApi()
    asyncio.run(pod_lease(api, "pod-a").acquire())
    stamp(api)
    asyncio.run(pod_lease(api, "pod-a").acquire())  # no_sleep would not move the clock


def test_a_pod_whose_successor_holds_the_shard_falls_silent() -> None:
    api = FakeApi()
    stale = pod_lease(api, "pod-a")
    asyncio.run(stale.acquire())
    stamp(api)
    api.date_s += DURATION_S
    asyncio.run(pod_lease(api, "pod-b").acquire())
    assert asyncio.run(stale.renew()) is False
    assert stale.lost_to == "r1"
    asyncio.run(stale.release())
    assert LEASE in api.objects  # the successor's


@pytest.mark.parametrize("first", ["POST", "PUT"])
def test_a_race_for_a_prefix_is_decided_by_the_server(first: str) -> None:
    api = FakeApi()
    if first == "PUT":
        acquire(api, "r0")
        stamp(api)
        api.date_s += DURATION_S

    def other_is_faster(method: str, _path: str) -> None:
        if method == first:
            api.before_request = lambda _method, _path: None
            spec: dict[str, object] = {"holderIdentity": "r9", "leaseDurationSeconds": DURATION_S}
            labels = {RUN_LABEL: "r9", PREFIX_LABEL: "fleet"}
            spec["renewTime"] = "2027-01-15T08:00:39Z"
            api.put(LEASE, metadata={"labels": labels}, spec=spec)

    api.before_request = other_is_faster
    with pytest.raises(SetupError, match="in use by run r9"):
        acquire(api, "r2")


def test_contention_without_end_is_told() -> None:
    api = FakeApi()
    api.before_request = lambda method, _path: (
        api.fail_next.append(Answer(409, {})) if method == "POST" else None
    )
    with pytest.raises(SetupError, match="contended"):
        acquire(api, "r1")


def test_renewing_moves_the_time_and_keeps_the_rest() -> None:
    api = FakeApi()
    clock = SimClock()
    taken = RunLease(api, "fleet", "r1", clock=clock, sleep=no_sleep)
    asyncio.run(taken.acquire())
    clock.advance_to(10 * 10**9)
    assert asyncio.run(taken.renew())
    spec = api.objects[LEASE]["spec"]
    assert spec["renewTime"] == "2026-01-01T00:00:10.000000Z"
    assert spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"
    assert spec["leaseTransitions"] == 0


def test_a_renewal_survives_somebody_s_edit_and_deletion() -> None:
    api = FakeApi()
    taken, _ = acquire(api, "r1")
    api.put(LEASE, spec=api.objects[LEASE]["spec"])
    assert asyncio.run(taken.renew())
    del api.objects[LEASE]
    assert asyncio.run(taken.renew())
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "r1"


def keeping(api: FakeApi, taken: RunLease, after: Callable[[int], None]) -> list[float]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        after(len(slept))

    taken.sleep = sleep
    asyncio.run(asyncio.wait_for(taken.keep(), 60))
    assert api.log
    return slept


def test_a_run_whose_prefix_was_taken_over_learns_it() -> None:
    api = FakeApi()
    taken, _ = acquire(api, "r1")

    def take_over(count: int) -> None:
        if count == 2:
            api.put(LEASE, spec={"holderIdentity": "r2"})

    slept = keeping(api, taken, take_over)
    assert taken.lost_to == "r2"
    assert slept == [10.0, 10.0]


def test_an_outage_does_not_end_a_run(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()
    taken, _ = acquire(api, "r1")

    def trouble(count: int) -> None:
        if count == 1:
            api.fail_next = [Answer(503, {}), Answer(503, {})]
        if count == 2:
            assert not taken.lost_to
            api.put(LEASE, spec={"holderIdentity": "r2"})

    keeping(api, taken, trouble)
    assert "could not be renewed" in caplog.text


def test_what_another_took_over_is_not_released() -> None:
    api = FakeApi()
    taken, _ = acquire(api, "r1")
    del api.objects[LEASE]
    acquire(api, "r2")
    asyncio.run(taken.release())
    assert LEASE in api.objects


def test_nodes_are_found_by_prefix_over_all_pages() -> None:
    api = FakeApi()
    for index in range(1_200):
        add_node(api, f"fleet-{index:05}", "r1")
    add_node(api, "fleet-0001-00000", "r1", "fleet-0001")
    api.put(f"{NODES}/real")
    found = asyncio.run(find_nodes(api, SELECTOR)).owned
    assert [node.name for node in found] == [f"fleet-{index:05}" for index in range(1_200)]
    assert found[0].run == "r1"


def test_a_list_that_expires_half_way_starts_over() -> None:
    api = FakeApi()
    for index in range(1_200):
        add_node(api, f"fleet-{index:05}", "r1")
    api.expire_next_page = True
    assert len(asyncio.run(find_nodes(api, SELECTOR)).owned) == 1_200


def test_runs_are_listed_with_age_and_life() -> None:
    api = FakeApi()
    acquire(api, "20270115-075900-aaaa")
    stamp(api)
    add_node(api, "fleet-0", "20270115-075900-aaaa")
    add_node(api, "old-0", "ancient", "old")
    add_node(api, "old-1", "ancient", "old")
    runs = asyncio.run(list_runs(api)).runs
    assert [(r.run, r.prefixes, r.nodes, r.is_alive, r.version) for r in runs] == [
        ("ancient", ("old",), 2, False, ""),
        ("20270115-075900-aaaa", ("fleet",), 1, True, __version__),
    ]
    assert runs[1].age_s == 60
