"""Variables that hand secrets to fleet's own processes, so that no argument shows them.

Other programs that fleet starts, such as COMMAND, locustfiles and etcd, get an environment without
them. A module of its own: Locust's processes need nothing else of the options.
"""

from collections.abc import Mapping

BOOTSTRAP_TOKEN_VARIABLE = "FLEET_BOOTSTRAP_TOKEN"  # noqa: S105 - a variable's name
DASHBOARD_TOKEN_VARIABLE = "FLEET_DASHBOARD_TOKEN"  # noqa: S105 - a variable's name
SECRET_VARIABLES = frozenset({BOOTSTRAP_TOKEN_VARIABLE, DASHBOARD_TOKEN_VARIABLE})


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a program that is not fleet's own."""
    return {name: value for name, value in environ.items() if name not in SECRET_VARIABLES}
