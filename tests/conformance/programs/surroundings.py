"""What a script finds around it, and what it leaves: files, variables, output."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from fleet.runtime.files import ANY_FILE, DIRECTORY, FileChange
from fleet.runtime.program import UNKNOWN as FOR_EVER
from fleet.runtime.program import Run as CommandRun
from fleet.runtime.program import Written

from .budget import Budget

__all__ = [
    "ANY_FILE",
    "DIRECTORY",
    "FOR_EVER",
    "CommandRun",
    "FileChange",
    "Written",
]


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


NOWHERE = Surroundings({}, files=None, draw=0.0)
