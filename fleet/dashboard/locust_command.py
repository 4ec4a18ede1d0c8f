"""The commands of a Locust master and of API users that stand on their own, each in its own pod.

What Locust reads from its own variables ($LOCUST_MASTER_BIND_HOST, $LOCUST_MASTER_NODE_HOST ...)
is not repeated here.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.controlplane.flags import LOOPBACK
from fleet.dashboard.door import token_from
from fleet.dashboard.load_credentials import LoadCredentials
from fleet.dashboard.load_workers import find_loads
from fleet.dashboard.locust_master import check_port, locust_with
from fleet.errors import UsageError

HOSTS = ("--master-bind-host", "--web-host")
"""The port for workers has no authentication, and Locust opens both to everyone by default."""
PORTS = {"--master-bind-port": "5557", "--web-port": "8089"}  # and what Locust takes by default


def master_of_its_own(
    loads: Sequence[Path], arguments: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the command of a master.

    Raises UsageError for a load that is not there or a token that is none, SetupError for a port
    that is taken: Locust itself ends with a traceback.
    """
    token_from(environ)
    given = _given(arguments, environ)
    for flag, default in PORTS.items():
        port = given[flag] or default
        is_used = flag != "--web-port" or not given["--headless"]
        if port.isdecimal() and is_used:
            check_port(flag, int(port))
    closed = [word for flag in HOSTS if not given[flag] for word in (flag, LOOPBACK)]
    return [*locust_with(find_loads(loads)), "--master", *closed, *arguments]


def _given(arguments: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return options of Locust's as it would read them, "" for those that are not given."""
    parser = argparse.ArgumentParser(prog="fleet locust master", add_help=False, allow_abbrev=False)
    flags = [
        *(parser.add_argument(flag) for flag in (*HOSTS, "--master-bind-port")),
        parser.add_argument("--web-port", "-P"),
        parser.add_argument("--headless", action="store_const", const="true"),
    ]
    found, _others = parser.parse_known_args(arguments)
    return {
        flag.option_strings[0]: getattr(found, flag.dest)
        or environ.get(f"LOCUST_{flag.dest.upper()}", "")
        for flag in flags
    }


def users_of_their_own(
    loads: Sequence[Path], arguments: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the command of a worker of API users. Raises UsageError if they could not begin."""
    if not loads:
        raise UsageError("--load: name a locustfile, or api_users")
    LoadCredentials.from_environment(environ)
    return [*locust_with(find_loads(loads)), "--worker", *arguments]
