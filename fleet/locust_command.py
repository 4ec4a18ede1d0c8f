"""The commands of a Locust master and of API users that stand on their own, each in its own pod.

What Locust reads from its own variables ($LOCUST_MASTER_BIND_HOST, $LOCUST_MASTER_NODE_HOST ...)
is not repeated here.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.errors import UsageError
from fleet.load_credentials import LoadCredentials
from fleet.load_workers import find_loads
from fleet.locust_master import LOCUSTFILE, LOOPBACK, check_port

ADDRESSES = (
    ("--master-bind-host", "LOCUST_MASTER_BIND_HOST"),
    ("--web-host", "LOCUST_WEB_HOST"),
)
"""Neither port has authentication, and Locust opens both to everyone unless told otherwise."""


PORTS = (
    ("--master-bind-port", "LOCUST_MASTER_BIND_PORT", 5557),
    ("--web-port", "LOCUST_WEB_PORT", 8089),
)


def master_of_its_own(
    loads: Sequence[Path], arguments: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the command of a master.

    Raises UsageError for a load that is not there, SetupError for a port that is taken: Locust
    itself ends with a traceback.
    """
    is_headless = "--headless" in arguments or bool(environ.get("LOCUST_HEADLESS"))
    for flag, variable, default in PORTS:
        port = _given(arguments, flag) or environ.get(variable) or str(default)
        is_used = flag != "--web-port" or not is_headless
        if port.isdecimal() and is_used:
            check_port(flag, int(port))
    command = [*_locust(loads), "--master"]
    for flag, variable in ADDRESSES:
        is_given = any(each.partition("=")[0] == flag for each in arguments)
        if not is_given and not environ.get(variable):
            command += [flag, LOOPBACK]
    return [*command, *arguments]


def _given(arguments: Sequence[str], flag: str) -> str:
    """Return the value of an option of Locust, "" if it is not given."""
    for at, each in enumerate(arguments):
        name, _, value = each.partition("=")
        if name == flag:
            return value or "".join(arguments[at + 1 : at + 2])
    return ""


def users_of_their_own(
    loads: Sequence[Path], arguments: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the command of a worker of API users. Raises UsageError if they could not begin."""
    if not loads:
        raise UsageError("--load: name a locustfile, or api_users")
    LoadCredentials.from_environment(environ)
    return [*_locust(loads), "--worker", *arguments]


def _locust(loads: Sequence[Path]) -> list[str]:
    files = ",".join(str(each) for each in (LOCUSTFILE, *find_loads(loads)))
    return [sys.executable, "-m", "locust", "-f", files]
