"""What is told while a run goes on."""

import asyncio
from types import SimpleNamespace
from typing import cast

from fleet.host.node_host import NodeHost
from fleet.run.bring_up import REASONS_MAX, tell_unregistered


def told(*looks: dict[int, str]) -> list[str]:
    """Return what is said of nodes that cannot register, one look after the other."""
    left = [*looks]
    said: list[str] = []

    async def sleep(_seconds: float) -> None:
        if not left:
            raise asyncio.CancelledError

    host = SimpleNamespace(unregistered=lambda: left.pop(0))

    async def watch() -> None:
        await tell_unregistered(cast("NodeHost", host), said.append, sleep)

    try:
        asyncio.run(watch())
    except asyncio.CancelledError:
        return said
    raise AssertionError("it goes on until it is cancelled")


def test_a_reason_that_lasts_is_told_once_with_the_nodes_that_have_it() -> None:
    nine = dict.fromkeys(range(9), "a")
    assert told(nine, {**nine, 9: "b"}, {**nine, 9: "b"}, nine) == [
        "9 nodes cannot register so far: a",
        "1 node cannot register so far: b",
    ]


def test_what_is_over_at_the_next_look_is_not() -> None:
    busy = dict.fromkeys(range(500), "busy")
    assert told(busy, {}, {1: "busy"}, {2: "busy"}, {2: "other"}) == []


def test_of_very_many_reasons_only_the_first_are_told() -> None:
    many = {at: f"reason {at}" for at in range(REASONS_MAX + 5)}
    assert len(told(many, many, many)) == REASONS_MAX
