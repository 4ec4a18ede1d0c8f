"""What a container's own command does: how long it runs, how it ends, and what it writes.

A command that is not understood (see shell.py) runs for ever, and so does a script from that
command on. Nothing is stored of what a container writes: it is derived anew from its command
whenever somebody asks.
"""

from functools import lru_cache

from fleet.profile.distribution import constant
from fleet.profile.pod_behavior import Outcome
from fleet.runtime.script import expand
from fleet.runtime.shell.shell import FOR_EVER, NOWHERE, CommandRun, Surroundings, run_words

__all__ = ["FOR_EVER", "CommandRun", "outcome_of_command", "run_of_command"]


def outcome_of_command(
    command: tuple[str, ...], args: tuple[str, ...], around: Surroundings | None = None
) -> Outcome | None:
    """Return how a command ends, or None when it is unknown or never ends."""
    if around is None:
        run = run_of_command(command, args)
    else:
        words = [expand(word, around.variables) for word in command + args]
        run = run_words(words, around)
    return None if run.run_ns is None else Outcome(constant(run.run_ns), run.exit_code)


@lru_cache(maxsize=1024)
def run_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> CommandRun:
    """Return what a command does wherever it runs.

    Differs: an image's own entry point is unknown.
    """
    return run_words(command + args, NOWHERE)
