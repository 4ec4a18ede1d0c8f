"""A task beside a run that fails is begun again or ends the run; none fails unheard."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import pytest

from fleet.background import STEADY_S, Background, give_up, run_loop
from fleet.errors import SetupError
from fleet.server.listener import reset

FOREVER = 8  # waits that a test watches


class World:
    """A clock that only waiting moves, and what a run was told."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []
        self.ends: list[str] = []
        self.begun = 0
        self.background = Background(self.ends.append, sleep=self.sleep, now_s=lambda: self.now_s)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds
        if len(self.waits) == FOREVER:
            raise asyncio.CancelledError
        await asyncio.sleep(0)

    def work(self, *errors: Exception | None) -> Callable[[], Awaitable[None]]:
        """Fail with these in turn, then for ever with the last; None is a good end."""

        async def work() -> None:
            error = errors[min(self.begun, len(errors) - 1)]
            self.begun += 1
            if error is not None:
                raise error

        return work

    def play(self, *errors: Exception | None, tries_max: int = 0) -> None:
        async def play() -> None:
            work = self.work(*errors)
            task = self.background.keep("the watcher", work, tries_max=tries_max)  # type: ignore[arg-type]
            await asyncio.wait({task})

        asyncio.run(play())


def test_a_task_that_raises_once_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.play(KeyError("volumeName"), None)
    assert (world.begun, world.waits, world.ends) == (2, [1.0], [])
    assert world.background.reasons() == ["a bug in fleet: the watcher failed 1 times, see the log"]
    assert "Traceback" in caplog.text
    assert "volumeName" in caplog.text


def test_a_task_that_always_raises_is_begun_again_later_and_later() -> None:
    world = World()
    world.play(KeyError("x"))
    assert world.waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert world.ends == []


def test_what_the_surroundings_did_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.play(SetupError("no such\nhost"), OSError(28, "No space left on device"), None)
    assert (world.begun, world.background.reasons()) == (3, [])
    assert "the watcher failed: no such host" in caplog.text
    assert "Traceback" not in caplog.text


def test_what_cannot_wait_ends_the_run_after_its_tries() -> None:
    world = World()
    world.play(ExceptionGroup("two", [SetupError("gone"), KeyError()]), tries_max=3)
    assert (world.begun, world.waits) == (3, [1.0, 2.0])
    assert world.ends == ["the watcher failed: gone"]


async def test_what_cannot_be_begun_again_ends_the_run_with_its_reason() -> None:
    world = World()
    await world.background.need("the link", world.work(ValueError("odd")))  # type: ignore[arg-type]
    assert (world.begun, world.ends) == (1, ["the link failed: ValueError('odd')"])


def test_after_long_good_work_a_failure_is_a_first_one() -> None:
    world = World()

    async def work() -> None:
        world.begun += 1
        world.now_s += STEADY_S + 1 if world.begun == 3 else 1
        if world.begun < 5:
            raise SetupError("now and then")

    asyncio.run(world.background.persist("the watcher", work))
    assert world.waits == [1.0, 2.0, 1.0, 2.0]


async def test_a_callback_that_raises_makes_the_run_invalid(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(world.background.on_loop_error)
    loop.call_soon(world.waits.pop)
    await asyncio.sleep(0)
    loop.call_exception_handler({"message": "Fatal error on a socket", "exception": OSError()})
    assert [list(world.background.bugs.values()), world.ends] == [[1], []]
    assert "IndexError" in caplog.text


async def test_a_connection_that_was_cut_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    cut = RuntimeError("unable to perform operation; the handler is closed")  # uvloop's
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(world.background.on_loop_error)
    for about in ({"transport": object(), "protocol": object()}, {}):
        loop.call_exception_handler(
            {"message": "Fatal error on SSL protocol", "exception": cut, **about}
        )
    assert world.background.bugs == {}
    assert [each.name for each in caplog.records] == ["asyncio"]  # the one of no connection


async def test_the_end_of_a_task_that_fails_while_it_ends_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise KeyError("late")

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await give_up(task)
    assert "KeyError('late')" in caplog.text


def test_a_connection_that_is_reset_at_once_closes_its_descriptor_once() -> None:
    """Else the collector would close the number again that its socket keeps, whose it may be."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            reset(server.accept()[0])
        number = ours.fileno()
        with pytest.raises(OSError, match=r"reset|pipe"):
            await loop.create_connection(
                asyncio.Protocol, sock=ours, ssl=True, server_hostname="server"
            )
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
        assert ours.fileno() == -1

    run_loop(play())
