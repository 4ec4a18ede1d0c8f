"""Who hosts what: nodes go to fleet workers, every other user class to plain Locust workers.

A Locust master asks its dispatcher what each worker is to run, step by step. This one never imports
Locust, and so patches nothing.

Source: locust/dispatch.py, UsersDispatcher (the interface that FleetDispatcher has);
locust/runners.py, MasterRunner.start.
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gevent import sleep

NODE = "VirtualNode"
FLEET_WORKER = "fleet-"

log = logging.getLogger("fleet")

Layout = dict[str, dict[str, int]]


Worker = Any  # locust's WorkerNode: its id, and its users by class as it reported them
UserClass = Any  # a User of Locust: its weight and its fixed_count


def is_fleet(worker_id: str) -> bool:
    """Return whether a worker hosts virtual nodes."""
    return worker_id.startswith(FLEET_WORKER)


def shard_of(worker_id: str) -> str:
    """Return what stays of a worker's id when it registers again."""
    return worker_id.partition("_")[0]


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Log what a method raises: an exception would kill the master's listener, and with it all."""

    @functools.wraps(method)
    def call(*args: object, **named: object) -> object:
        try:
            return method(*args, **named)
        except Exception:
            log.exception("fleet's dispatcher failed in %s", method.__name__)
            return None

    return call


class FleetDispatcher:
    """Deals nodes to fleet workers and every other class to plain workers, nodes first.

    What a worker has it keeps: growth goes to the emptiest, shrinking takes from the fullest, a
    join moves nothing. The share of a fleet worker that is gone is held for its shard's return, or
    moved to the others with --fleet-shard-loss=move.
    """

    nodes_wanted: Callable[[], int] = staticmethod(lambda: 0)
    moves_lost: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, worker_nodes: Sequence[Worker], user_classes: Sequence[UserClass]) -> None:
        self._classes = list(user_classes)
        self._layout: Layout = {}
        self._held: dict[str, int] = {}  # shard: nodes of a worker that is gone
        self._goal: dict[str, int] = {}
        self._step = 1
        self._pause_s = 1.0
        self._is_busy = False
        self._is_behind = True
        self._ramps = 0  # so many were begun; a newer one ends those before it
        for worker in worker_nodes:
            self._enter(worker)

    @property
    def is_behind(self) -> bool:
        """Return whether a worker does not know its share, or users have lost theirs."""
        return self._is_behind and not self._is_busy

    @property
    def dispatch_in_progress(self) -> bool:
        return self._is_busy

    def get_current_user_count(self) -> int:
        return sum(self._have(cls.__name__) for cls in self._classes)

    def new_dispatch(
        self,
        target_user_count: int,
        spawn_rate: float,
        user_classes: Sequence[UserClass] | None = None,
    ) -> None:
        """Aim at a number of users: first nodes, the rest API clients by weight."""
        others = [cls for cls in (user_classes or self._classes) if cls.__name__ != NODE]
        has_others = bool(others and (self.nodes_wanted() or self._pool(is_node=False)))
        wanted = self.nodes_wanted() if has_others else target_user_count
        nodes = min(wanted, target_user_count) if self._pool(is_node=True) or self._held else 0
        self._goal = dict.fromkeys((cls.__name__ for cls in self._classes), 0)
        if NODE in self._goal:
            self._goal[NODE] = nodes
        self._goal.update(by_weight(target_user_count - nodes, others))
        self._step = max(1, math.floor(spawn_rate))
        self._pause_s = self._step / spawn_rate
        self._ramps += 1

    def __iter__(self) -> Iterator[Layout]:
        """Yield what each worker is to run, step by step, until the goal is reached or replaced."""
        number = self._ramps
        self._is_busy, self._is_behind = True, False
        try:
            yield self._copy()
            while self._layout and not self._is_there():
                began = time.perf_counter()
                if not self._move_a_step():
                    break
                yield self._copy()
                if not self._is_there():
                    sleep(max(0.0, self._pause_s - (time.perf_counter() - began)))
                if number != self._ramps:
                    break
        finally:
            if number == self._ramps:
                self._is_busy = False

    @guarded
    def add_worker(self, worker_node: Worker) -> None:
        """Take a worker in; one that registers again replaces its older entry."""
        self._enter(worker_node)
        self._is_behind = True

    @guarded
    def remove_worker(self, worker_node: Worker) -> None:
        had = self._layout.pop(worker_node.id, None) or {}
        if is_fleet(worker_node.id) and had.get(NODE) and not self.moves_lost():
            self._held[shard_of(worker_node.id)] = had[NODE]
        else:
            self._is_behind = True

    def _enter(self, worker: Worker) -> None:
        counts = dict.fromkeys((cls.__name__ for cls in self._classes), 0)
        shard = shard_of(worker.id)
        for known in list(self._layout):  # it registers again, under this or another id
            if known == worker.id or (is_fleet(known) and shard_of(known) == shard):
                counts = self._layout.pop(known)
        held = self._held.pop(shard, 0)
        if NODE in counts:
            alive = worker.user_classes_count.get(NODE, 0)
            counts[NODE] = max(counts[NODE], held, alive)
        self._layout[worker.id] = counts

    def _pool(self, *, is_node: bool) -> list[str]:
        return sorted(each for each in self._layout if is_fleet(each) == is_node)

    def _have(self, name: str) -> int:
        held = sum(self._held.values()) if name == NODE else 0
        return held + sum(counts.get(name, 0) for counts in self._layout.values())

    def _is_there(self) -> bool:
        return all(self._have(name) == count for name, count in self._goal.items())

    def _move_a_step(self) -> bool:
        """Deal or take back as many users as one step has; return whether any was moved."""
        left = self._step
        for name in sorted(self._goal, key=lambda each: each != NODE):
            pool = self._pool(is_node=name == NODE)
            while pool and left and self._have(name) != self._goal[name]:
                if self._have(name) < self._goal[name]:
                    worker = min(pool, key=lambda each: (self._layout[each].get(name, 0), each))
                    more = 1
                else:
                    worker = max(pool, key=lambda each: (self._layout[each].get(name, 0), each))
                    more = -1
                    if not self._layout[worker].get(name, 0):
                        break  # what is left is held for a worker that is gone
                self._layout[worker][name] = self._layout[worker].get(name, 0) + more
                left -= 1
        return left < self._step

    def _copy(self) -> Layout:
        names = [cls.__name__ for cls in self._classes]  # every worker must list every class
        return {
            worker: {name: counts.get(name, 0) for name in names}
            for worker, counts in self._layout.items()
        }


def by_weight(count: int, classes: Sequence[UserClass]) -> dict[str, int]:
    """Deal `count` users to classes by their weights; `fixed_count` comes first."""
    dealt = {cls.__name__: min(cls.fixed_count, count) for cls in classes}
    count = max(0, count - sum(dealt.values()))
    free = [cls for cls in classes if not cls.fixed_count]
    weight = sum(cls.weight for cls in free) or 1
    for cls in free:
        dealt[cls.__name__] = int(count * cls.weight / weight)
    spare = count - sum(dealt[cls.__name__] for cls in free)
    for cls in free[:spare]:
        dealt[cls.__name__] += 1
    return dealt
