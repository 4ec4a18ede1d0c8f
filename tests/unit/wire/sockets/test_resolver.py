"""The addresses of a host: their order, their age, and look-ups that take their time."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fleet.wire.sockets.connection import Address
from fleet.wire.sockets.dials import (
    CONNECT_NS_MAX,
    CONNECT_NS_MIN,
    LOOK_UPS_NS_MIN,
    TTL_NS,
    Endpoint,
    Resolver,
)

SIX = Address(socket.AF_INET6, ("::1", 443, 0, 0))
ONE, TWO = (Address(socket.AF_INET, (f"127.0.0.{n}", 443)) for n in (1, 2))
NAME = Endpoint("api.example", 443)


class World:
    """A name server, and a clock that the test moves."""

    def __init__(self, *found: tuple[Address, ...] | Exception, endpoint: Endpoint = NAME) -> None:
        self.found = list(found)
        self.asked = 0
        self.now_ns = TTL_NS
        self.told: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        loop = asyncio.get_running_loop()
        now_ns = lambda: self.now_ns  # noqa: E731
        self.resolver = Resolver(endpoint, loop, now_ns, self.told.append, self.look_up)

    async def look_up(self, endpoint: Endpoint) -> tuple[Address, ...]:
        assert endpoint == NAME
        self.asked += 1
        await self.answers.wait()
        answer = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask(self) -> None:
        self.resolver.ask()
        task = self.resolver._task
        assert task is not None
        await task


def play(*found: tuple[Address, ...] | Exception) -> Callable[..., None]:
    def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def body() -> None:
            world = World(*found)
            await test(world)
            await world.resolver.close()

        asyncio.run(body())

    return run


def test_what_has_failed_is_tried_last_until_it_works_or_time_has_passed() -> None:
    @play((SIX, ONE, TWO))
    async def _(world: World) -> None:
        await world.ask()
        world.resolver.failed(SIX, is_last=False)
        assert [world.resolver.places()[2] for _ in range(4)] == [SIX] * 4
        assert world.resolver.is_fresh()  # the others are good
        world.resolver.failed(ONE, is_last=False)
        world.resolver.worked(SIX)
        assert {world.resolver.places()[2] for _ in range(3)} == {ONE}
        world.now_ns += TTL_NS
        assert {world.resolver.places()[0] for _ in range(3)} == {SIX, ONE, TWO}


def test_a_name_is_looked_up_anew_after_a_failed_dial_and_not_for_each_of_thousands() -> None:
    @play((ONE, TWO), (TWO,))
    async def _(world: World) -> None:
        await world.ask()
        for place in (ONE, TWO):
            world.resolver.failed(place, is_last=place is TWO)
        assert world.resolver.is_fresh()  # just looked up
        world.now_ns += LOOK_UPS_NS_MIN
        assert not world.resolver.is_fresh()
        world.answers.clear()
        for _ in range(1_000):
            world.resolver.ask()
        await asyncio.sleep(0)
        world.answers.set()
        await asyncio.gather(world.resolver._task or asyncio.sleep(0))
        assert (world.asked, world.told) == (2, ["", ""])
        assert (world.resolver.is_fresh(), world.resolver.places()) == (True, (TWO,))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), "label too long"),
        (TimeoutError(), "no answer in time"),
    ],
)
def test_a_name_server_that_is_away_harms_nothing_that_is_known(
    error: Exception, said: str
) -> None:
    @play(error, (ONE,), error)
    async def _(world: World) -> None:
        await world.ask()
        assert world.told == [f"host not found: {said}"]
        assert not world.resolver.is_fresh()
        await world.ask()
        world.now_ns += TTL_NS
        await world.ask()
        assert (world.told[1:], world.resolver.places()) == (["", ""], (ONE,))
        assert world.resolver.is_fresh()


def test_a_number_is_its_own_address_for_ever() -> None:
    async def body() -> None:
        world = World((), endpoint=Endpoint("::1", 443))
        world.now_ns += 100 * TTL_NS
        world.resolver.failed(world.resolver.places()[0], is_last=True)
        assert world.resolver.is_fresh()
        assert world.resolver.places() == (SIX,)
        assert world.resolver.connect_ns() == CONNECT_NS_MAX

    asyncio.run(body())


def test_each_address_has_its_part_of_the_time() -> None:
    @play((SIX, ONE, TWO), (SIX,) * 40)
    async def _(world: World) -> None:
        await world.ask()
        assert world.resolver.connect_ns() == CONNECT_NS_MAX // 3
        await world.ask()
        assert world.resolver.connect_ns() == CONNECT_NS_MIN


def test_a_look_up_under_way_is_given_up_at_the_end() -> None:
    @play((ONE,))
    async def _(world: World) -> None:
        world.answers.clear()
        world.resolver.ask()
        await asyncio.sleep(0)
        await world.resolver.close()
        assert world.told == []
