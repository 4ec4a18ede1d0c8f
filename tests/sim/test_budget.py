"""What one more node costs: memory, tasks, garbage."""

import asyncio
import gc
import sys
import tracemalloc
from collections import Counter

import pytest
from world.simulation import Simulation

from fleet.clock import NS_PER_S

pytest_plugins = ("sim_encodings",)

NODES = 300
IDLE_MAX = 4096
"""Kubelet, Entry, Caller, reflectors; not the bytes of the Lease, which are the server's."""

YOUNG_MAX = 5632
"""For ten minutes the event correlator also remembers the groups of the start-up events."""

PODS_A_ROUND = 10
HOUR_NS = 3600 * NS_PER_S


def used() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_an_idle_node_fits_its_budget(*, light: bool) -> None:
    Simulation(nodes=1, light=light).run_for(seconds=25)  # what all nodes share
    tracemalloc.start()
    try:
        sim = Simulation(nodes=NODES, seed=1, light=light).run_for(seconds=25)
        assert sim.ready() == NODES
        for wire in (sim.transport, sim.observer):  # what is the test's own
            for kept in (wire.trace, wire._due, wire._open, wire._numbers):
                kept.clear()
        sim.server.objects.clear()
        sim.server._by_resource.clear()
        sim.server._history.clear()
        sim.server._watches.clear()
        lease_bytes = young = idle = 0
        before = used()
        for entry in sim.reactor.entries:
            assert entry.kubelet is not None
            lease_bytes += sys.getsizeof(entry.kubelet.lease.base)
            entry.kubelet._recorder.forget(2 * HOUR_NS)
        forgotten = before - used()
        before = used()
        sim.reactor.entries.clear()
        sim.reactor.kubelets.by_name.clear()
        del entry
        idle = (before - used() - lease_bytes) // NODES
        young = idle + forgotten // NODES
    finally:
        tracemalloc.stop()
    print(f"idle {idle}, young {young}, lease {lease_bytes // NODES} bytes a node")
    assert lease_bytes
    assert 500 < idle <= IDLE_MAX
    assert young <= YOUNG_MAX


def test_tasks_do_not_grow_with_nodes() -> None:
    async def count() -> tuple[int, int]:
        before = len(asyncio.all_tasks())
        sim = Simulation(nodes=50)
        sim.run_for(seconds=5)
        return before, len(asyncio.all_tasks())

    assert asyncio.run(count()) == (1, 1)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_pod_churn_leaves_no_garbage(*, light: bool) -> None:
    sim = Simulation(nodes=5, seed=2, light=light).run_for(seconds=30)
    gc.collect()
    gc.disable()
    try:
        for turn in range(5):
            for index in range(20):
                sim.create_pod(f"pod-{turn}-{index}", f"n-{index % 5}")
            sim.run_for(seconds=10)
            for index in range(20):
                sim.server.delete_pod(f"pod-{turn}-{index}")
            sim.run_for(seconds=40)
        assert sim.server.all("pods") == []
        found = gc.collect()
    finally:
        gc.enable()
    assert found < 100  # nothing of the 100 pods


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_nothing_is_kept_of_pods_that_are_gone(*, light: bool) -> None:
    """Of 5,400 pods a process kept 15 MB: timers of their tokens, and what was said of them."""
    sim = Simulation(nodes=2, seed=4, light=light).run_for(seconds=30)

    def kept(rounds: int) -> list[int]:
        """Let pods come and go; return how much is kept, and is waited for, of how many kinds."""
        for turn in range(rounds * PODS_A_ROUND):
            name = f"p-{sim.clock.now_ns()}-{turn}"
            sim.create_pod(name, f"n-{turn % 2}")
            sim.run_for(seconds=5)
            sim.server.delete_pod(name, grace_s=1)
        sim.run_for(seconds=300)  # a hop of the timer of tokens
        found = []
        for entry in sim.reactor.entries:
            assert entry.kubelet is not None
            recorder = entry.kubelet._recorder
            recorder.forget(sim.clock.now_ns())
            found += [len(recorder._seen), len(recorder._recent or ())]
        return [*found, sim.reactor._wheel.size]

    first = kept(1)
    assert max(after - before for before, after in zip(first, kept(3), strict=True)) <= 2


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_nothing_is_kept_of_kubelets_that_were_restarted(*, light: bool) -> None:
    """What is frozen after a storm of restarts is freed by its count of references only."""
    sim = Simulation(nodes=3, seed=5, light=light)
    for index in range(6):
        sim.create_pod(f"p-{index}", f"n-{index % 3}")
    sim.run_for(seconds=30)

    def kept(restarts: int) -> Counter[str]:
        """Restart all kubelets so often; return how many objects of fleet there are, by type."""
        for _ in range(restarts):
            sim.go_wrong(type="KubeletRestart")
            sim.run_for(seconds=700)  # Events are forgotten after ten minutes
        kinds = (type(each) for each in gc.get_objects())
        return Counter(str(each) for each in kinds if str(each).startswith("<class 'fleet."))

    gc.collect()
    gc.disable()
    try:
        first = kept(1)
        assert not kept(3) - first
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_what_a_node_waits_for_does_not_pile_up() -> None:
    """Stale timers are forgotten when they fire; an idle node holds a handful."""
    sim = Simulation(nodes=20, seed=3).run_for(seconds=3600)
    assert sim.reactor._wheel.size <= 20 * 3
    assert sim.reactor.calls.delayed == {}
