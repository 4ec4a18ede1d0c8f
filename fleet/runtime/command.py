"""A container's own command, as far as it is understood: how it runs, what it writes.

A program that is not understood (see shell/) is what program.py makes of it. Nothing is stored of
what a container writes: it is derived from its command whenever somebody asks.
"""

from functools import lru_cache

from fleet.k8s.pods import ContainerSpec
from fleet.runtime.known_images import runs_its_args
from fleet.runtime.script import STRINGS_MAX, expand, left_of
from fleet.runtime.shell.budget import OverBudgetError
from fleet.runtime.shell.process import Process, has_script, run_words
from fleet.runtime.shell.surroundings import FOR_EVER, NOWHERE, CommandRun, Surroundings

__all__ = ["FOR_EVER", "CommandRun", "run_of_command"]

KEPT_CHARACTERS_MAX = 16 << 10
"""What a longer command does is found out each time: a hostile pod's may have a megabyte."""


def command_of(spec: ContainerSpec) -> tuple[str, ...]:
    """Return the words of a container's command, () if they are for an unknown entry point."""
    own = spec.script.entry_point if spec.script is not None else ()
    if not own and not spec.command and not runs_its_args(spec.image) and not has_script(spec.args):
        return ()
    return (own or spec.command) + spec.args


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


def run_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> CommandRun:
    """Return what a command does wherever it runs."""
    words = command + args
    is_short = sum(map(len, words)) <= KEPT_CHARACTERS_MAX
    return _run_of(words) if is_short else run_words(words, NOWHERE)


@lru_cache(maxsize=256)
def _run_of(words: tuple[str, ...]) -> CommandRun:
    return run_words(words, NOWHERE)
