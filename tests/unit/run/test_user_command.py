"""The COMMAND of `fleet spawn`: what its end is to the run, and what the run's end is to it."""

import asyncio
import os
import signal

import pytest

from fleet.errors import SetupError
from fleet.run.user_command import run_command


def code_of(*command: str, is_stopped: bool = False) -> int:
    """Run a command; return its code for the shell."""

    async def play() -> int:
        stop = asyncio.Event()
        if is_stopped:
            stop.set()
        return await asyncio.wait_for(run_command(command, os.environ, stop), 60)

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM)],
)
def test_a_command_ends_with_the_code_that_a_shell_would_give(script: str, code: int) -> None:
    assert code_of("sh", "-c", script) == code


def test_a_command_ends_with_its_run() -> None:
    assert code_of("sleep", "60", is_stopped=True) == 128 + signal.SIGTERM


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(SetupError, match="cannot run 'no-such-program'"):
        code_of("no-such-program")
