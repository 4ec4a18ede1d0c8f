"""Who hosts what: the layout that a Locust master with fleet's locustfile deals out."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from fleet.dashboard.locust_dispatcher import NODE, FleetDispatcher, Layout, UserClass

PLAIN = "host_a"


@dataclass
class Worker:
    id: str
    user_classes_count: dict[str, int] = field(default_factory=dict)


class VirtualNode:
    weight = 1
    fixed_count = 0


class Reader:
    weight = 3
    fixed_count = 0


class Writer:
    weight = 1
    fixed_count = 1


assert VirtualNode.__name__ == NODE


def fleet(shard: int, life: str = "a", *, nodes: int | None = None) -> Worker:
    return Worker(f"fleet-{shard:04d}_{life}", {} if nodes is None else {NODE: nodes})


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def choose(monkeypatch: pytest.MonkeyPatch, *, nodes: int = 0, moves: bool = False) -> None:
    monkeypatch.setattr(FleetDispatcher, "nodes_wanted", staticmethod(lambda: nodes))
    monkeypatch.setattr(FleetDispatcher, "moves_lost", staticmethod(lambda: moves))


def nodes_of(layout: Layout) -> list[int]:
    return [counts[NODE] for _, counts in sorted(layout.items())]


def reach(dispatcher: FleetDispatcher, users: int, rate: float = 1000.0) -> list[Layout]:
    dispatcher.new_dispatch(users, rate)
    return list(dispatcher)


def test_growth_goes_to_the_emptiest_and_shrinking_takes_from_the_fullest() -> None:
    dispatcher = FleetDispatcher([fleet(0), fleet(1)], [VirtualNode])
    steps = [nodes_of(layout) for layout in reach(dispatcher, 5)]
    assert steps == [[0, 0], [3, 2]]
    dispatcher.add_worker(worker_node=fleet(2))
    assert dispatcher.is_behind
    assert [nodes_of(layout) for layout in reach(dispatcher, 5)] == [[3, 2, 0]]
    assert not dispatcher.is_behind
    assert nodes_of(reach(dispatcher, 7)[-1]) == [3, 2, 2]
    assert nodes_of(reach(dispatcher, 4)[-1]) == [2, 1, 1]
    assert dispatcher.get_current_user_count() == 4


def test_what_a_lost_shard_had_is_held_for_it() -> None:
    dispatcher = FleetDispatcher([fleet(0), fleet(1)], [VirtualNode])
    reach(dispatcher, 8)
    dispatcher.remove_worker(worker_node=fleet(1))
    assert not dispatcher.is_behind
    assert [nodes_of(layout) for layout in reach(dispatcher, 8)] == [[4]]
    dispatcher.add_worker(worker_node=fleet(1, "b"))
    assert dispatcher.is_behind
    assert [nodes_of(layout) for layout in reach(dispatcher, 8)] == [[4, 4]]


def test_what_a_lost_shard_had_moves_and_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, moves=True)
    dispatcher = FleetDispatcher([fleet(0), fleet(1)], [VirtualNode])
    reach(dispatcher, 8)
    dispatcher.remove_worker(worker_node=fleet(1))
    assert dispatcher.is_behind
    assert nodes_of(reach(dispatcher, 8)[-1]) == [8]
    dispatcher.add_worker(worker_node=fleet(1, "b"))
    assert [nodes_of(layout) for layout in reach(dispatcher, 8)] == [[8, 0]]


@pytest.mark.parametrize("life", ["a", "b"])
def test_a_worker_that_registers_again_keeps_what_it_has(life: str) -> None:
    dispatcher = FleetDispatcher([fleet(0), fleet(1)], [VirtualNode])
    reach(dispatcher, 8)
    dispatcher.add_worker(worker_node=fleet(1, life))
    assert [nodes_of(layout) for layout in reach(dispatcher, 8)] == [[4, 4]]


def test_a_new_master_takes_nodes_over_where_they_are() -> None:
    dispatcher = FleetDispatcher([fleet(0, nodes=7), fleet(1, nodes=2)], [VirtualNode])
    assert [nodes_of(layout) for layout in reach(dispatcher, 9)] == [[7, 2]]


def test_api_users_go_to_plain_workers_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, nodes=4)
    classes: list[type[UserClass]] = [VirtualNode, Reader, Writer]
    dispatcher = FleetDispatcher([fleet(0)], classes)
    assert nodes_of(reach(dispatcher, 9)[-1]) == [4]  # the others wait for who can run them
    dispatcher.add_worker(worker_node=Worker(PLAIN))
    [*_, last] = reach(dispatcher, 9)
    assert last == {
        "fleet-0000_a": {NODE: 4, "Reader": 0, "Writer": 0},
        PLAIN: {NODE: 0, "Reader": 4, "Writer": 1},
    }


def test_all_are_nodes_as_long_as_nobody_says_how_many() -> None:
    dispatcher = FleetDispatcher([fleet(0)], [VirtualNode, Reader])
    assert nodes_of(reach(dispatcher, 9)[-1]) == [9]


def test_a_goal_that_nobody_can_reach_is_told_all_the_same() -> None:
    dispatcher = FleetDispatcher([fleet(0)], [VirtualNode])
    reach(dispatcher, 3)
    dispatcher.remove_worker(worker_node=fleet(0))
    assert reach(dispatcher, 5) == [{}]  # the master fails if it is told nothing at all


def test_a_newer_ramp_ends_the_older_one() -> None:
    dispatcher = FleetDispatcher([fleet(0)], [VirtualNode])
    dispatcher.new_dispatch(100, 10)
    dispatcher._pause_s = 0.0
    older = iter(dispatcher)
    assert [nodes_of(next(older)) for _ in range(3)] == [[0], [10], [20]]
    dispatcher.new_dispatch(15, 10)
    dispatcher._pause_s = 0.0
    newer: Iterator[Layout] = iter(dispatcher)
    assert nodes_of(next(newer)) == [20]
    assert list(older) == []
    assert dispatcher.dispatch_in_progress
    assert [nodes_of(layout) for layout in newer] == [[15]]
    assert not dispatcher.dispatch_in_progress
