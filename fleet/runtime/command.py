"""What a container's own command does: how long it runs, how it ends, and what it writes.

A command that is not understood (see shell/) runs for ever, and so does a script from that
command on. Nothing is stored of what a container writes: it is derived anew from its command
whenever somebody asks.
"""

from functools import lru_cache

from fleet.objects.pods import ContainerSpec
from fleet.profile.distribution import constant
from fleet.profile.pod_behavior import Outcome
from fleet.runtime.script import expand
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
    return run_words(_expanded(words, around), around)


def process_of(words: tuple[str, ...], around: Surroundings) -> Process:
    """Return the process of a container's command, at its start."""
    return Process(_expanded(words, around), around)


def _expanded(words: tuple[str, ...], around: Surroundings) -> list[str]:
    return [expand(word, around.variables) for word in words]


@lru_cache(maxsize=1024)
def run_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> CommandRun:
    """Return what a command does wherever it runs.

    Differs: an image's own entry point is unknown.
    """
    return run_words(command + args, NOWHERE)
