"""What an exec probe finds when nothing is declared: its command, run on the container's own files.

The script of the container says which files there are and when: `touch /tmp/healthy; sleep 30;
rm -f /tmp/healthy; sleep 600`. The command of the probe is run once for each state of theirs. A
file of which the script says nothing is unknown, and so is one that is missing when a command runs
that may make it; a command that needs it or that is not understood succeeds. A command that is over
its budget does not answer in time.
Differs: files in volumes are taken to be the container's own.
"""

import posixpath
from functools import lru_cache

from fleet.profile.container_behavior import ALWAYS_GOOD, ProbeAnswer, ProbeBehavior, ProbePhase
from fleet.profile.distribution import constant
from fleet.runtime.commands import TEXT_MAX

from .budget import Budget
from .process import run_words
from .surroundings import ANY_FILE, FileChange, Look, Surroundings
from .syntax import UnknownScriptError

PHASES_MAX = 64
"""A script that changes its files more often is followed so far."""
OUTPUT_MAX = 10 << 10
"""Source: pkg/probe/exec/exec.go, maxReadLength."""
_DIRECTORIES = frozenset(("/", "/tmp", "/var/tmp", "/run", "/var/run"))


class _Files:
    """Some files; of others nothing is known."""

    __slots__ = ("_texts",)

    def __init__(self, texts: dict[str, str | None]) -> None:
        self._texts = texts

    def at(self, after_ns: int) -> None:
        """Let time pass; the files are those of one instant."""

    def names(self, path: str) -> list[str]:
        """Say that what is in a directory is unknown."""
        raise UnknownScriptError(path)

    def look(self, path: str) -> Look | None:
        """Say that nothing but the text of a file is known."""
        raise UnknownScriptError(path)

    def read(self, path: str) -> str | None:
        """Return a file's text, None if there is none. Raises UnknownScriptError."""
        path = posixpath.normpath(path)
        if path in self._texts:
            return self._texts[path]
        if path in _DIRECTORIES:
            return "/"
        raise UnknownScriptError(path)

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it."""
        self._texts[posixpath.normpath(path)] = text


class _NewFiles(_Files):
    """The files of a container that starts: what its script did not make is not there."""

    def read(self, path: str) -> str | None:
        """Return a file's text, None if there is none."""
        try:
            return super().read(path)
        except UnknownScriptError:
            return None


def behavior_of_script(probe: tuple[str, ...], container: tuple[str, ...]) -> ProbeBehavior:
    """Return what an exec probe finds over the life of a container with this command line."""
    size = sum(map(len, (*probe, *container)))
    find = _behavior_of if size <= TEXT_MAX else _behavior_of.__wrapped__
    return find(probe, container)


@lru_cache(maxsize=256)
def _behavior_of(probe: tuple[str, ...], container: tuple[str, ...]) -> ProbeBehavior:
    run = run_words(container, Surroundings({}, _NewFiles({}), 0.0))
    files: dict[str, str | None] = {
        posixpath.normpath(each.path): None for each in run.changes if each.path != ANY_FILE
    }
    phases: list[ProbePhase] = []
    budget = Budget()
    for after_ns, changes in _by_time(run.changes):
        for each in changes:
            if each.path == ANY_FILE:
                files = {path: text for path, text in files.items() if text is not None}
            else:
                files[posixpath.normpath(each.path)] = each.text
        around = Surroundings({}, _Files(dict(files)), 0.0, budget=budget)
        phase = phase_of(probe, after_ns, around)
        if not phases or phase._replace(after_ns=phases[-1].after_ns) != phases[-1]:
            phases.append(phase)
        if len(phases) == PHASES_MAX:
            break
    return ALWAYS_GOOD if phases == [ProbePhase()] else ProbeBehavior(tuple(phases))


def _by_time(changes: tuple[FileChange, ...]) -> list[tuple[int, list[FileChange]]]:
    """Return the changes of each instant, the start first."""
    found: dict[int, list[FileChange]] = {0: []}
    for each in changes:
        found.setdefault(each.after_ns, []).append(each)
    return list(found.items())


def phase_of(probe: tuple[str, ...], after_ns: int, around: Surroundings) -> ProbePhase:
    """Run the command of a probe at an age of its container."""
    run = run_words(probe, around)
    if run.error:
        return ProbePhase(after_ns, ProbeAnswer.TIMEOUT)
    if run.run_ns is None or run.ends_unknown:
        return ProbePhase(after_ns)
    latency = constant(run.run_ns)
    if not run.exit_code:
        return ProbePhase(after_ns, latency=latency)
    return ProbePhase(
        after_ns, ProbeAnswer.FAILURE, latency=latency, output=run.text("")[:OUTPUT_MAX]
    )
