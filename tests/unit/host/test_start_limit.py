"""How many nodes start at a time, at servers of which each has its capacity."""

import pytest

from fleet.host.pacing import (
    BRAKE_PAUSE_S,
    FIRST,
    FIRST_COLD,
    LEAST_COLD,
    MOST,
    QUEUED_S,
    StartLimit,
)
from fleet.metrics import Requests

GET, POST, WATCH = ("GET", "nodes"), ("POST", "events"), ("WATCH", "pods")
BASE_US = {GET: 20_000, POST: 60_000}
"""What each kind of request takes where nothing waits, on average; the quickest half of it."""
EACH = 3
"""Requests that a starting node has under way."""
NODE = 30
"""Requests of a start in all."""


class Server:
    """Answers as many requests a second as it can; what is more waits. It was idle before."""

    def __init__(self, *, is_cold: bool, capacity: float) -> None:
        self.limit = StartLimit(is_cold=is_cold)
        self.capacity = capacity
        self.requests = Requests()
        self.now_s = 50.0
        self.refuses = 0
        self.share = 0.0  # of the next node that is through
        for route, base_us in BASE_US.items():
            self.requests.record(route, 200, base_us // 2)

    def run(self, seconds: float, *, is_used: bool = True) -> None:
        """Let nodes start, as many as the limit says, and look twenty times a second."""
        for _ in range(int(seconds * 20)):
            self.now_s += 0.05
            under_way = self.limit.nodes * EACH
            mean_us = sum(BASE_US.values()) / len(BASE_US)
            answered = min(self.capacity, under_way * 1e6 / mean_us) * 0.05
            wait_us = under_way / self.capacity * 1e6
            self.share += answered / NODE
            through, self.share = divmod(self.share, 1)
            self.limit.through += int(through)
            for route, base_us in BASE_US.items():
                took_us = max(base_us, wait_us * base_us / mean_us)
                for number in range(round(answered / len(BASE_US))):
                    spread = 0.5 + number % 2  # half of it, or half as much again
                    self.requests.record(route, 200, int(took_us * spread))
            for _ in range(self.refuses):
                self.requests.record(POST, 429, 1_000)
            self.requests.record(WATCH, 200, 600_000_000)
            self.limit.look(self.requests.rows, self.now_s, is_used=is_used)

    @property
    def slowdown(self) -> float:
        """How many times longer a request takes than it must."""
        under_way = self.limit.nodes * EACH
        return max(1.0, under_way / self.capacity * 1e6 * len(BASE_US) / sum(BASE_US.values()))


@pytest.mark.parametrize("is_cold", [True, False])
@pytest.mark.parametrize("capacity", [200, 2_000])
def test_a_server_is_kept_busy_and_not_buried(*, is_cold: bool, capacity: float) -> None:
    server = Server(is_cold=is_cold, capacity=capacity)
    server.run(60)
    assert 1.5 < server.slowdown < 21, server.limit.nodes  # of the mean, twice the quickest


def test_the_faster_server_gets_more_at_a_time() -> None:
    slow, fast = (Server(is_cold=True, capacity=capacity) for capacity in (50, 6_000))
    for server in (slow, fast):
        server.run(20)
    assert slow.limit.nodes < FIRST_COLD < fast.limit.nodes
    fast.run(600)
    assert fast.limit.nodes <= MOST


def test_a_server_that_becomes_slow_gets_fewer() -> None:
    server = Server(is_cold=True, capacity=2_000)
    server.run(20)
    before = server.limit.nodes
    server.capacity = 40
    server.run(20)
    assert server.limit.nodes < before * 0.6
    server.capacity = 2_000
    server.run(60)
    assert server.limit.nodes > before * 0.8


def test_refusals_halve_it_once_for_what_was_sent_before() -> None:
    server = Server(is_cold=True, capacity=2_000)
    server.run(20)
    before = server.limit.nodes
    server.refuses = 5
    server.run(BRAKE_PAUSE_S - 0.5)
    assert before / 2 - 1 <= server.limit.nodes < before * 0.6
    server.run(60)
    assert server.limit.nodes == LEAST_COLD
    server.refuses = 0
    server.run(60)
    assert server.limit.nodes > before / 2


def test_long_queues_of_the_server_shrink_it_though_answers_are_quick() -> None:
    server = Server(is_cold=False, capacity=6_000)
    server.run(20)
    before = server.limit.nodes
    for _ in range(3):
        server.limit.on_queues(2 * QUEUED_S, 0, server.now_s)
        server.run(5)
    assert before * 0.6 < server.limit.nodes < before * 0.8
    server.limit.on_queues(QUEUED_S / 2, 0, server.now_s)
    server.run(5)
    assert server.limit.nodes > before * 0.8


def test_what_the_server_refuses_to_others_halves_it_once() -> None:
    server = Server(is_cold=False, capacity=6_000)
    server.run(20)
    before = server.limit.nodes
    for _ in range(2):
        server.limit.on_queues(0.0, 7, server.now_s)
    assert server.limit.nodes == int(before / 2)


def test_it_does_not_grow_while_something_else_holds_nodes_back() -> None:
    server = Server(is_cold=False, capacity=6_000)
    server.run(20, is_used=False)
    assert server.limit.nodes == FIRST


def test_an_open_watch_says_nothing_of_how_slow_the_server_is() -> None:
    """It is answered when it ends, ten minutes later."""
    server = Server(is_cold=False, capacity=6_000)
    for _ in range(100):
        server.requests.record(WATCH, 200, 600_000_000)
    server.run(5)
    assert server.limit.nodes > FIRST
