"""The whole error taxonomy and its exit codes.

What the server answers is never an exception: it is a `Reply`. What stands here ends a connection
or a run; a bug is an `AssertionError`.
"""

import enum


class Exit(enum.IntEnum):
    """The exit codes that scripts rely on."""

    OK = 0
    EXPECTATION_FAILED = 1
    USAGE = 2
    SETUP = 3
    INVALID = 4
    INTERRUPTED = 130


class FleetError(Exception):
    """A failure that is told to the user in one line; `exit_code` ends the process."""

    exit_code = Exit.SETUP


class UsageError(FleetError):
    """A flag, a file or a profile is wrong: the user can mend the command line."""

    exit_code = Exit.USAGE


class SetupError(FleetError):
    """The surroundings do not allow the run: a binary, a port, a permission, a server."""

    exit_code = Exit.SETUP


class IncompleteError(FleetError):
    """What was begun could not be finished; the line says what is left."""

    exit_code = Exit.INVALID


class RunInterruptedError(FleetError):
    """Ctrl-C or SIGTERM ended a run in order before it had nodes."""

    exit_code = Exit.INTERRUPTED


class ProtocolError(Exception):
    """HTTP/2 was broken; the transport closes the connection with `code`."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class RemoteProtocolError(ProtocolError):
    """The peer broke HTTP/2."""


class LocalProtocolError(ProtocolError):
    """We were about to break HTTP/2: a bug."""
