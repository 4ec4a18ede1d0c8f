"""What a container's own command does: how long it runs, how it ends, and what it writes.

A command that is not understood (see shell/) runs for ever, and so does a script from that
command on. Nothing is stored of what a container writes: it is derived anew from its command
whenever somebody asks.
"""

from functools import lru_cache

from fleet.objects.pods import ContainerSpec
from fleet.profile.distribution import constant
from fleet.profile.pod_behavior import Outcome
from fleet.runtime.script import STRINGS_MAX, expand, left_of
from fleet.runtime.shell.budget import OverBudgetError
from fleet.runtime.shell.process import Process, run_words
from fleet.runtime.shell.surroundings import FOR_EVER, NOWHERE, CommandRun, Surroundings

__all__ = ["FOR_EVER", "CommandRun", "outcome_of_command", "run_of_command"]


def command_of(spec: ContainerSpec) -> tuple[str, ...]:
    """Return the words of a container's command, its image's own if it asks for nothing else."""
    own = spec.script.entry_point if spec.script is not None else ()
    return (own or spec.command) + spec.args


def outcome_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> Outcome | None:
    """Return how a command ends, or None when it is unknown or never ends."""
    return outcome_of(run_of_command(command, args))


def outcome_of(run: CommandRun) -> Outcome | None:
    """Return how a run ends, or None when it never does."""
    return None if run.run_ns is None else Outcome(constant(run.run_ns), run.exit_code)


def run_around(words: tuple[str, ...], around: Surroundings) -> CommandRun:
    """Return what a command does in a container."""
    try:
        expanded = _expanded(words, around)
    except OverBudgetError as error:
        return CommandRun(None, error=str(error))
    return run_words(expanded, around)


def process_of(words: tuple[str, ...], around: Surroundings) -> Process:
    """Return the process of a container's command, at its start."""
    try:
        return Process(_expanded(words, around), around)
    except OverBudgetError:
        return Process((), around)  # it never started


def _expanded(words: tuple[str, ...], around: Surroundings) -> list[str]:
    room, found = STRINGS_MAX, []
    for word in words:
        found.append(expand(word, around.variables))
        room = left_of(room, found[-1])
    return found


@lru_cache(maxsize=256)
def run_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> CommandRun:
    """Return what a command does wherever it runs.

    Differs: an image's own entry point is unknown.
    """
    return run_words(command + args, NOWHERE)
