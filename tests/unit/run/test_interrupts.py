"""What Ctrl-C and SIGTERM do before the first kubelet, and after it."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from fleet.run.interrupts import ONE_WISH_S, Interrupts

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


@pytest.fixture(autouse=True)
def hangup_is_taken() -> Iterator[None]:
    """Take SIGHUP also where the tests run under nohup(1)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def send(number: int) -> None:
    """Send ourselves a signal once the task that plays the run waits."""
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)


@SIGNALS
async def test_the_first_cancels_a_preparation_which_is_undone(number: int) -> None:
    interrupts, undone = Interrupts(), list[str]()
    with interrupts.taken():
        send(number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # undoing may take its time
            undone.append("undone")
    assert interrupts.is_early
    assert interrupts.is_terminated is (number == signal.SIGTERM)
    assert undone == ["undone"]


@SIGNALS
async def test_the_second_cancels_what_undoes(number: int) -> None:
    interrupts = Interrupts()

    async def prepare() -> None:
        send(number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(ONE_WISH_S)
            send(number)
            await asyncio.Event().wait()

    with interrupts.taken(), pytest.raises(asyncio.CancelledError):
        await prepare()
    assert interrupts.is_second
    assert not interrupts.is_early


@SIGNALS
async def test_once_there_are_kubelets_the_first_ends_in_order(number: int) -> None:
    interrupts = Interrupts()
    interrupts.is_preparing = False
    with interrupts.taken():
        send(number)
        await interrupts.stop.wait()
        assert not interrupts.is_second
        assert not interrupts.is_early
        await asyncio.sleep(ONE_WISH_S)
        send(number)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert interrupts.is_second


@SIGNALS
async def test_one_wish_may_come_as_two_signals(number: int) -> None:
    """timeout(1) signals a process and its group: the run ends in order all the same."""
    interrupts = Interrupts()
    interrupts.is_preparing = False
    with interrupts.taken():
        interrupts.on_signal(number)
        interrupts.on_signal(number)
        await asyncio.sleep(0)
        assert interrupts.stop.is_set()
        assert not interrupts.is_second


async def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    with interrupts.taken():
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
    assert not interrupts.stop.is_set()
    assert not interrupts.is_early
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
