"""When a silent connection is asked for a sign of life, and when it is given up.

The variables are those that a kubelet reads, so that a fleet can be set as the kubelets are.
Source: apimachinery/pkg/util/net/http.go, readIdleTimeoutSeconds, pingTimeoutSeconds.
Differs: what is no number is refused; there it is a warning and the default.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.errors import UsageError

IDLE_VARIABLE = "HTTP2_READ_IDLE_TIMEOUT_SECONDS"
PING_VARIABLE = "HTTP2_PING_TIMEOUT_SECONDS"
SECONDS_MAX = 24 * 3600


class ConnectionHealth(NamedTuple):
    """How long a connection may be silent until it is pinged, and then until it is closed."""

    idle_ns: int = 30 * NS_PER_S  # 0: it is never pinged
    ping_ns: int = 15 * NS_PER_S


def connection_health(environ: Mapping[str, str]) -> ConnectionHealth:
    """Read the variables. Raises UsageError."""
    default = ConnectionHealth()
    idle_ns = _seconds_ns(environ, IDLE_VARIABLE, default.idle_ns)
    # Go's transport takes 0 for its own default, which is the same.
    ping_ns = _seconds_ns(environ, PING_VARIABLE, default.ping_ns) or default.ping_ns
    return ConnectionHealth(idle_ns, ping_ns)


def _seconds_ns(environ: Mapping[str, str], name: str, default_ns: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default_ns
    if not (text.isascii() and text.isdigit() and int(text) <= SECONDS_MAX):
        raise UsageError(f"{name}: {text!r} is not a number of seconds up to {SECONDS_MAX}")
    return int(text) * NS_PER_S
