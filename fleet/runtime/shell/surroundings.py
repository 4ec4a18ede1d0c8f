"""What a script finds around it, and what it leaves: files, variables, output."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from fleet.runtime.shell.budget import Budget

DIRECTORY = "/"
"""The text of a directory."""


class ReadOnlyFileSystemError(Exception):
    """A file cannot be written where it is; its argument is the path."""


class Look(NamedTuple):
    """What is said of a file, or of a directory. Source: stat(2), statfs(2)."""

    mode: int
    uid: int = 0
    gid: int = 0
    in_memory: bool = False


class Files(Protocol):
    """The file system that a script sees; every path is absolute."""

    def at(self, after_ns: int) -> None:
        """Let time pass: so long after the start of the script it reads and writes now."""

    def read(self, path: str) -> str | None:
        """Return a file's text, None if there is none. Raises UnknownScriptError if unknown."""

    def look(self, path: str) -> Look | None:
        """Return what is said of a file, None if there is none. Raises UnknownScriptError."""

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it. Raises ReadOnlyFileSystemError."""

    def names(self, path: str) -> Sequence[str]:
        """Return what is in a directory, sorted. Raises UnknownScriptError if unknown."""


class Surroundings(NamedTuple):
    """What a command finds around it.

    In a container whose image nobody knows, a variable or file that is not here is unknown, and so
    is any other program. With `is_whole` it does not exist: somebody who looks wants an answer.
    """

    variables: Mapping[str, str]
    files: Files | None
    draw: float  # of [0, 1), for $RANDOM
    start_ns: int = 0  # of the wall clock, for `date`; 0 if it is unknown
    is_whole: bool = False
    input: bytes | None = None  # all of stdin; None if there is none
    user: tuple[int, int] = (0, 0)  # uid and gid
    no_new_privs: bool = False  # a program of another user runs as this one
    cwd: str = ""  # "" if it is unknown
    error: str = ""  # why they are over the budget of a command
    budget: Budget | None = None  # what several commands share; None: each has one of its own
    term_ns: int | None = None  # when SIGTERM arrives, since the start; None: not yet


class Written(NamedTuple):
    """A piece of output: when, where to ("" for the log), what, and whether to stderr."""

    after_ns: int
    path: str
    text: str
    is_error: bool = False


ANY_FILE = ""
"""The path of a change that an unknown command may have made."""


class FileChange(NamedTuple):
    """A file that a script made, replaced or removed (None), and when."""

    after_ns: int
    path: str
    text: str | None


class CommandRun(NamedTuple):
    """What a command does. `run_ns` is None when it runs until it is stopped.

    With `unknown_ns` it does so only as far as anybody knows: what it does from then on is unknown.
    """

    run_ns: int | None
    exit_code: int = 0
    written: tuple[Written, ...] = ()
    changes: tuple[FileChange, ...] = ()
    error: str = ""  # why it costs more than fleet spends on a command
    unknown_ns: int | None = None
    ends_unknown: bool = False  # the last command of the script is unknown
    traps: bool = False  # it has a handler for SIGTERM
    ignores_term: bool = False  # `trap '' TERM`

    def text(self, path: str, until_ns: int | None = None) -> str:
        """Return what was written to a path, "" for the log, within a time from the start.

        Bytes that are no UTF-8 become U+FFFD, as where Go writes JSON.
        """
        text = "".join(
            each.text
            for each in self.written
            if each.path == path and (until_ns is None or each.after_ns <= until_ns)
        )
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


NOWHERE = Surroundings({}, files=None, draw=0.0)
FOR_EVER = CommandRun(None, unknown_ns=0)
"""What is known of a program that is not understood."""
