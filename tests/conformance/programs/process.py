"""A command that runs: it is moved to an instant, and says what it printed up to there.

A script is left between its commands and between the rounds of its loops, so that one which never
ends is followed for as long as somebody asks.
"""

import re
from collections.abc import Iterator, Sequence

from . import agnhost
from .budget import UNITS, OverBudgetError
from .builtins import OPTIONS
from .shell import STEPS_MAX, USAGE_CODE, Shell
from .signals import Exit, InputNeeded, Replaced
from .surroundings import (
    FOR_EVER,
    NOWHERE,
    CommandRun,
    FileChange,
    Surroundings,
    Written,
)
from .syntax import EndlessScriptError, UnknownScriptError, parse_script

SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)=")
WORDS_MAX = 64
"""A longer command line is not understood rather than read."""
IDLE_ROUNDS_MAX = 1000
"""A loop of so many rounds in which no time passes is taken for one that never ends."""
OUTPUT_MAX = 64 << 10
"""So many characters are kept of what a command prints that is run to its end."""


def is_shell(words: Sequence[str]) -> bool:
    """Return whether a command line starts a shell without any script."""
    at, options = _options(words)
    return at == len(words) > 0 and "c" not in options


def has_script(words: Sequence[str]) -> bool:
    """Return whether a command line is a script for a shell."""
    return bool(_script_at(words))


def _script_at(words: Sequence[str]) -> int:
    """Return where the script of `sh -e -c SCRIPT` is, 0 if there is none."""
    at, options = _options(words)
    return at if "c" in options and at < len(words) else 0


def _options(words: Sequence[str]) -> tuple[int, set[str]]:
    """Return where the operands of a shell begin, and its options; 0 if it is no shell.

    Source: `bash -euo pipefail -c SCRIPT`: POSIX.1-2024, sh, OPTIONS.
    """
    options: set[str] = set()
    if not words or _name(words[0]) not in SHELLS:
        return 0, options
    at = 1
    while at < len(words) and words[at][:1] in {"-", "+"} and len(words[at]) > 1:
        word = words[at]
        at += 1
        if word.startswith("--"):
            continue
        if not OPTIONS.issuperset(word[1:]):
            return 0, set()
        if word[0] == "-":
            options |= set(word[1:])
        for _ in range(word.count("o")):
            options |= set(words[at : at + 1])
            at += 1
    return min(at, len(words)), options


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def is_understood(words: Sequence[str]) -> bool:
    """Return whether anything is known of what a command line does."""
    if has_script(words) or is_shell(words) or agnhost.is_agnhost(words):
        return True
    return bool(words) and Shell.knows(words[0])


class Process:
    """One command. `end_ns` is when it ended, since its start; None while it runs."""

    __slots__ = (
        *("_idle", "_spent", "_steps", "changes", "end_ns", "ends_unknown", "error"),
        *("is_lost", "shell", "unknown_ns", "written"),
    )

    def __init__(self, words: Sequence[str], around: Surroundings = NOWHERE) -> None:
        self.end_ns: int | None = None
        self.is_lost = False  # it is a program that is not understood, or does nothing for ever
        self.unknown_ns: int | None = None  # since when it is such a program
        self.ends_unknown = False
        self.error = ""  # why it is over its budget
        self._idle = 0
        self._spent = 0  # on the rounds since others had a turn
        script_at = _script_at(words)
        options = _options(words)[1] if script_at else set()
        self.shell = Shell(
            around,
            stops_at_error=bool(options & {"e", "errexit"}),
            name=words[0] if script_at else "sh",
        )
        self.shell.fails_in_pipes = "pipefail" in options
        self.written: list[Written] = self.shell.written
        self.changes: list[FileChange] = self.shell.changes
        if script_at:
            self._steps = self._script(words[script_at])
        elif agnhost.is_agnhost(words):
            self._steps = agnhost.steps(self.shell, words)
        else:
            self._steps = self._alone(words)
        if is_shell(words):
            self.is_lost = True
        elif not words or len(words) > WORDS_MAX:
            self._lose(0)

    @property
    def status(self) -> int:
        """The code of the last command."""
        return self.shell.status

    @property
    def clock_ns(self) -> int:
        """How far it came."""
        return self.shell.clock_ns

    def _script(self, script: str) -> Iterator[None]:
        self.shell.own_names = frozenset(_ASSIGNED.findall(script))
        yield from self.shell.steps(parse_script(script))

    def _alone(self, words: Sequence[str]) -> Iterator[None]:
        self.shell.run_alone(words[0], list(words[1:]))
        yield

    def advance(self, until_ns: int, rounds: int) -> bool:
        """Run up to an instant, at most so many rounds; return whether that instant was reached.

        It is left earlier where the rounds cost as much as a whole budget. Raises InputNeeded.
        """
        for _ in range(rounds):
            if self.end_ns is not None or self.is_lost or self.shell.clock_ns > until_ns:
                return True
            if self._spent > UNITS:
                self._spent = 0
                return False
            self._round()
            self._spent += self.shell.budget.spent
        return False

    def run(self) -> CommandRun:
        """Run to the end, or to where it is not understood, or does not end.

        Raises InputNeeded.
        """
        while self.end_ns is None and not self.is_lost:
            self._round(keeps_steps=True)
        shell = self.shell
        return CommandRun(
            self.end_ns,
            shell.status,
            tuple(_last(self.written)),
            tuple(self.changes),
            self.error,
            self.unknown_ns,
            self.ends_unknown,
            bool(shell.traps.get("TERM")),
            shell.traps.get("TERM") == "",
        )

    def _round(self, *, keeps_steps: bool = False) -> None:
        before_ns = self.shell.clock_ns
        if not keeps_steps:
            self.shell.forget_steps()
        try:
            next(self._steps)
        except (StopIteration, Exit):
            self._end()
        except EndlessScriptError:
            self._lose(None)
        except OverBudgetError as error:
            self._fail(str(error))
        except (Replaced, UnknownScriptError):
            if self.shell.is_whole:
                self.shell.complain(f"{self.shell.name}: syntax error: not emulated\n")
                self.shell.status = USAGE_CODE
                self.end_ns = self.shell.clock_ns
            else:
                self._lose(self.shell.clock_ns)
        self._idle = self._idle + 1 if self.shell.clock_ns == before_ns else 0
        if self._idle > IDLE_ROUNDS_MAX and not self.shell.skip_to_signal():
            self._lose(None)

    def _fail(self, why: str) -> None:
        self.error = why
        if self.shell.is_whole:
            self.shell.forget_output()
            self.shell.complain(f"{self.shell.name}: out of memory: {why}\n")
            self.shell.status = USAGE_CODE
            self.end_ns = self.shell.clock_ns
        else:
            self.is_lost = True

    def _end(self) -> None:
        self.shell.run_exit_trap()
        self.ends_unknown = self.shell.ends_unknown
        self.end_ns = self.shell.clock_ns

    def _lose(self, unknown_ns: int | None) -> None:
        """Go on for ever; since an instant, if one is given, as a program that is unknown.

        What waits there has its handler of SIGTERM still. No handler runs while a program does that
        is known not to end, such as `sleep infinity`.
        """
        self.unknown_ns = unknown_ns
        if unknown_ns is not None:
            self.shell.skip_to_signal()
            try:
                self.shell.heed_signal()
            except Exit:
                self._end()
                return
            except (EndlessScriptError, OverBudgetError, Replaced):
                pass
        self.shell.status = 0
        self.is_lost = True


def _last(written: list[Written]) -> list[Written]:
    """Return the end of an output; what is before it nobody asks for."""
    at, size = len(written), 0
    while at and size <= OUTPUT_MAX:
        at -= 1
        size += len(written[at].text)
    return written[at:]


def run_words(words: Sequence[str], around: Surroundings = NOWHERE) -> CommandRun:
    """Run a program, or a script through `sh -c`, to its end or for ever."""
    if around.error:
        return CommandRun(None, error=around.error)
    if not words:
        return FOR_EVER
    try:
        return Process(words, around).run()
    except InputNeeded:
        return FOR_EVER


__all__ = ["STEPS_MAX", "Process", "has_script", "is_shell", "run_words"]
