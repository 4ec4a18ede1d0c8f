"""Two fleets of one cluster never share an address."""

import asyncio
import ipaddress
import itertools
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, no_sleep, node_marks
from world.sim_clock import SimClock

from fleet.cluster.ownership import NODES
from fleet.cluster.runs import RUN_LEASES, Claim, RunLease, claim_addresses
from fleet.errors import SetupError
from fleet.k8s.well_known import MANAGED_ANNOTATION
from fleet.profile.addresses import AddressPlan, range_of
from fleet.profile.loader import load_mix
from fleet.profile.settings import Settings


def plan_of(pools: str = "198.18.0.0/15,fd00:c6:12::/108") -> AddressPlan:
    return AddressPlan(map(ipaddress.ip_network, pools.split(",")))


class Process:
    """One process of a fleet, as far as its addresses go."""

    def __init__(self, api: FakeApi, prefix: str, run: str, **options: Any) -> None:
        self.settings = Settings(name_prefix=prefix, **{"nodes": 100, **options})
        shard = self.settings.shard
        name = prefix if shard is None else f"{prefix}-{shard:04d}"
        self.lease = RunLease(api, name, run, clock=SimClock(), sleep=no_sleep)
        self.run = run
        self.api = api
        self.claim = Claim(0)

    async def begin(self, plan: AddressPlan | None = None) -> None:
        await self.lease.acquire()
        self.claim = await claim_addresses(self.api, self.lease, plan or plan_of(), self.settings)

    def start(self, plan: AddressPlan | None = None) -> int:
        asyncio.run(self.begin(plan))
        return self.claim.shift

    def addresses(self) -> list[str]:
        """Return what its nodes have."""
        mix = load_mix()
        mix.adapt(zone_labels=True, address_shift=self.claim.shift)
        indices = map(self.settings.node_index, range(self.settings.most))
        return [mix.models[0].addresses(index) for index in indices]

    def add_nodes(self) -> None:
        for slot, address in enumerate(self.addresses()):
            name = self.settings.node_name(slot)
            status = {"addresses": [{"type": "InternalIP", "address": address}]}
            marks = node_marks(self.run, self.settings.name_prefix)
            self.api.put(f"{NODES}/{name}", metadata=marks, status=status)

    def forget(self) -> None:
        """End as with --keep: the Nodes stay, the Lease goes."""
        del self.api.objects[f"{RUN_LEASES}/fleet-run-{self.lease.prefix}"]


async def test_fleets_that_begin_at_once_do_not_meet() -> None:
    api = FakeApi()
    fleets = [Process(api, f"f{at}", f"r{at}") for at in range(5)]
    await asyncio.gather(*(each.begin() for each in fleets))
    listed = list(itertools.chain.from_iterable(each.addresses() for each in fleets))
    assert len(set(listed)) == len(listed) == 500


def test_processes_of_one_run_lie_side_by_side_and_a_second_run_elsewhere() -> None:
    api = FakeApi()
    first = [Process(api, "a", "r1", shard=shard) for shard in range(3)]
    second = [Process(api, "b", "r2", shard=shard) for shard in range(3)]
    assert [each.start() for each in first] == [0, 0, 0]
    for each in second:
        each.start()
    listed = list(itertools.chain.from_iterable(each.addresses() for each in (*first, *second)))
    assert len(set(listed)) == len(listed) == 600


def test_what_nodes_and_their_pods_have_is_left_alone() -> None:
    api = FakeApi()
    addresses = [
        {"type": "InternalIP", "address": "198.18.0.30"},
        {"type": "Hostname", "address": "x"},
    ]
    api.put(f"{NODES}/real", spec={"podCIDR": "240.1.0.0/16"}, status={"addresses": addresses})
    api.put(f"{NODES}/six", spec={"podCIDRs": ["fd00:10:0:90::/64"]})
    assert Process(api, "one", "r1").start() == 0x91
    api = FakeApi()
    kept = Process(api, "kept", "r0")
    kept.add_nodes()
    assert Process(api, "one", "r1").start() == 100


@pytest.mark.parametrize("run", ["r1", "r2"])  # another run, or a pod of a StatefulSet in its place
def test_a_node_keeps_its_address_when_its_fleet_is_restarted(run: str) -> None:
    api = FakeApi()
    Process(api, "other", "r0").start()
    before = Process(api, "one", "r1")
    assert before.start() == 100
    before.add_nodes()
    before.forget()
    del api.objects[f"{RUN_LEASES}/fleet-run-other"]  # what was in front is free by now
    after = Process(api, "one", run)
    assert after.start() == 100
    assert after.addresses() == before.addresses()
    assert after.claim.moved_from is None


def test_a_claim_stands_until_the_process_that_follows_has_its_own() -> None:
    api = FakeApi()
    Process(api, "one", "r1").start()
    after = Process(api, "one", "r1")
    asyncio.run(after.lease.acquire())
    assert Process(api, "other", "r2").start() == 100
    assert after.start() == 0


def test_nodes_of_others_that_were_served_before_are_served_at_the_same_addresses() -> None:
    api = FakeApi()
    status = {"addresses": [{"type": "InternalIP", "address": "127.128.0.1"}]}
    notes = {"annotations": {MANAGED_ANNOTATION: "true"}}
    api.put(f"{NODES}/theirs", metadata=notes, status=status)
    assert Process(api, "one", "r1", manage="a=b").start() == 0
    assert Process(api, "two", "r2").start() == 100
    assert Process(FakeApi(), "one", "r1", manage="a=b").start() == 0


def test_nodes_whose_addresses_another_fleet_has_move_and_it_is_said() -> None:
    api = FakeApi()
    left = Process(api, "one", "r1")
    left.add_nodes()  # as an older fleet did, which claimed nothing
    Process(api, "two", "r2").start(plan_of("10.0.0.0/16"))
    after = Process(api, "one", "r3")
    assert after.start() == 100
    assert after.claim.moved_from == 0


def test_a_pool_without_room_is_told_by_its_name() -> None:
    api = FakeApi()
    small = plan_of("10.9.0.0/24")
    Process(api, "one", "r1", nodes=200).start(small)
    with pytest.raises(SetupError, match=r"addressPool 10.9.0.0/24: no 200 addresses in a row"):
        Process(api, "two", "r2", nodes=200).start(small)


def test_the_claim_stands_in_the_lease_and_is_renewed_with_it() -> None:
    api = FakeApi()
    process = Process(api, "one", "r1")
    process.start()
    asyncio.run(process.lease.renew())
    notes = api.objects[f"{RUN_LEASES}/fleet-run-one"]["metadata"]["annotations"]
    claimed = notes["fleet.emulator/addresses"].split(",")
    assert claimed[0] == "198.18.0.1-198.18.0.100"
    assert all(map(range_of, claimed))
