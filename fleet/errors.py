"""The whole error taxonomy and its exit codes.

What the server answers is never an exception: it is a `Reply`. What stands here ends a connection
or a run; a bug is an `AssertionError`. No secret stands in what fleet prints: each error, log line
and traceback passes through `masked`.
"""

import enum
import re

HIDDEN = "<hidden>"
SECRET_LENGTH_MIN = 8  # what is shorter is a word, and would be masked in every line
SECRETS_MAX = 100  # tokens are renewed every few minutes of a run; the oldest have run out
_secrets: dict[str, None] = {}
_SECRET_FORMS = re.compile(
    r"\beyJ[\w-]{8,}\.[\w.-]+"  # a JSON Web Token
    r"|\bk8s-aws-v1\.[\w=-]+"
    r"|\b[a-z0-9]{6}\.(?=[a-z]*\d)[a-z0-9]{16}\b"  # a bootstrap token
    r"|(?<=://)[^/@\s]+(?=@)"  # user and password in a URL
    r"|(?<=Bearer )[^\s\"',]+"
    r"|(?<=Basic )[\w+/=-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)


def hide(secret: str) -> None:
    """Keep a secret of this process out of everything that `masked` sees from now on."""
    if len(secret) >= SECRET_LENGTH_MIN:
        _secrets.pop(secret, None)
        _secrets[secret] = None
        if len(_secrets) > SECRETS_MAX:
            del _secrets[next(iter(_secrets))]


def masked(text: str) -> str:
    """Return a text without the secrets of this process and without what looks like one."""
    for secret in _secrets:
        text = text.replace(secret, HIDDEN)
    return _SECRET_FORMS.sub(HIDDEN, text)


class Exit(enum.IntEnum):
    """The exit codes that scripts rely on."""

    OK = 0
    EXPECTATION_FAILED = 1
    USAGE = 2
    SETUP = 3
    INVALID = 4
    INTERRUPTED = 130


class FleetError(Exception):
    """A failure that the user reads in one line; `exit_code` ends the process."""

    exit_code = Exit.SETUP

    def __init__(self, message: str = "") -> None:
        super().__init__(masked(message))


class UsageError(FleetError):
    """A flag, a file or a profile is wrong: the user can mend the command line."""

    exit_code = Exit.USAGE


class SetupError(FleetError):
    """The surroundings do not allow the run: a binary, a port, a permission, a server."""

    exit_code = Exit.SETUP


class DeniedError(SetupError):
    """The user lacks permissions (RBAC), which somebody can grant."""


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
