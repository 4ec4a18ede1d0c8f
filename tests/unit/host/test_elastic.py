"""As many nodes as are asked for, and none that no kubelet hosts."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from world.cluster_fakes import FakeApi, node_marks

from fleet.cluster.api_client import Answer
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.host import elastic
from fleet.host.elastic import ElasticFleet
from fleet.host.node_host import NodeHost
from fleet.host.observed_nodes import Readiness
from fleet.metrics import FleetCounts
from fleet.profile.settings import Settings
from fleet.reactor.reactor import Reactor
from fleet.wire.sockets.transport import Transport


class Nodes(NodeHost):
    """The nodes of a process whose kubelets do nothing but register, one of them late."""

    def __init__(self, api: FakeApi, *, late: str = "") -> None:
        self.settings = Settings(nodes=10)
        self.run_id = "r1"
        self.reactor = cast("Reactor", SimpleNamespace(counts=FleetCounts()))
        self.readiness = Readiness(10)
        self.slots: list[str] = []
        self.late = late
        self._api = api

    @property
    def size(self) -> int:
        return len(self.slots)

    @property
    def zones(self) -> list[str]:
        return []

    @property
    def nodes_max(self) -> int:
        return 10

    def room(self) -> int:
        return 10

    def start_next(self) -> None:
        self.slots.append(self.settings.node_name(self.size))
        if self.slots[-1] != self.late:
            self.register(self.slots[-1])

    def stop_last(self) -> str:
        return self.slots.pop()

    def register(self, name: str) -> None:
        self._api.put(f"{NODES}/{name}", metadata=node_marks(self.run_id))
        self.readiness.present.add(name)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "STRAYS_S", 0.01)
    monkeypatch.setattr(elastic, "STEP_S", 0.001)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def play(api: FakeApi, nodes: Nodes, *steps: Callable[[ElasticFleet], object]) -> None:
    """Take step after step, each once the aim before it is reached, then wait for the last."""

    def observe(method: str, path: str) -> None:
        if method == "DELETE" and path.startswith(NODES) and not api.fail_next:
            nodes.readiness.present.discard(path.rpartition("/")[2])

    async def run() -> None:
        fleet = ElasticFleet(nodes, api)
        api.before_request = observe
        working = asyncio.create_task(fleet.run())
        async with asyncio.timeout(120):
            for step in steps:
                step(fleet)
                while nodes.size != fleet.aimed:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            while fleet.existing != fleet.aimed:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    asyncio.run(run())
    assert set(api.objects) == {f"{NODES}/{name}" for name in nodes.slots}


def test_slots_stay_dense(api: FakeApi) -> None:
    nodes = Nodes(api)
    play(api, nodes, lambda fleet: fleet.aim(7), lambda fleet: fleet.aim(3))
    assert nodes.slots == ["fleet-00000", "fleet-00001", "fleet-00002"]


def test_a_node_whose_creation_came_after_its_removal_goes_too(api: FakeApi) -> None:
    nodes = Nodes(api, late="fleet-00001")
    play(
        api,
        nodes,
        lambda fleet: fleet.aim(2),
        lambda fleet: fleet.aim(1),
        lambda _fleet: nodes.register("fleet-00001"),
    )
    assert nodes.slots == ["fleet-00000"]


def test_a_node_that_could_not_be_removed_is_removed_later(api: FakeApi) -> None:
    def shrink(fleet: ElasticFleet) -> None:
        api.fail_next = [Answer(500, {"message": "etcdserver: leader changed"})]
        fleet.aim(0)

    play(api, Nodes(api), lambda fleet: fleet.aim(2), shrink)


async def test_a_node_of_another_is_not_removed_though_it_has_a_name_of_ours(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """It came to have the name, and the label that the observer selects by, meanwhile."""
    nodes = Nodes(api)

    def replace(fleet: ElasticFleet) -> None:
        del api.objects[f"{NODES}/fleet-00001"]
        api.put(f"{NODES}/fleet-00001", metadata={"labels": {RUN_LABEL: "r1"}}, spec={})
        fleet.aim(1)

    fleet = ElasticFleet(nodes, api)
    for _ in range(2):
        nodes.start_next()
    replace(fleet)
    await fleet._shrink()
    assert f"{NODES}/fleet-00001" in api.objects
    assert "1 nodes are not this run's, and stay: fleet-00001" in caplog.text
    assert not [path for method, path in api.log if method == "DELETE"]


@pytest.mark.parametrize(
    ("lag_us", "timers", "closed_slow", "valid"),
    [
        *((99_000, 100, 0, True), (150_000, 100, 0, False), (0, 0, 1, False)),
        (150_000, 9, 0, True),  # too few to say
    ],
)
def test_the_tab_says_whether_the_figures_can_be_trusted(
    api: FakeApi, lag_us: int, timers: int, closed_slow: int, *, valid: bool
) -> None:
    nodes = Nodes(api)
    nodes.started_ns = 0  # long ago
    counts = FleetCounts()
    for _ in range(timers):
        counts.timer_lag.record(lag_us)
    nodes.reactor = cast("Reactor", SimpleNamespace(counts=counts))
    stats = SimpleNamespace(closed_slow=closed_slow)
    nodes.transport = cast("Transport", SimpleNamespace(stats=stats))
    assert ElasticFleet(nodes, api).figures()["valid"] is valid
