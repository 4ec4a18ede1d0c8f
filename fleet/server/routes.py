"""The paths of a kubelet's server: which endpoint answers, and what there is instead of one.

A path below no root of a kubelet's gets 404 without authentication; every other answer needs
authorization: a server that delegates it is asked, as a kubelet asks.
Source: pkg/kubelet/server/server.go, NewServer, InstallDebuggingDisabledHandlers.
Differs: what fleet does not emulate is 404 for whom may ask, of every minor; a path
without its last slash is not redirected; what a client accepts is not looked at.
"""

from enum import StrEnum
from typing import NamedTuple


class Endpoint(StrEnum):
    """What answers, by its name in metrics of the server."""

    HEALTHZ = "healthz"
    PODS = "pods"
    STATS = "stats"
    METRICS = "metrics"
    METRICS_CADVISOR = "metrics/cadvisor"
    METRICS_RESOURCE = "metrics/resource"
    METRICS_PROBES = "metrics/probes"
    METRICS_SLIS = "metrics/slis"
    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portForward"
    CONTAINER_LOGS = "containerLogs"
    CONFIGZ = "configz"


class Answer(NamedTuple):
    """An answer of the router itself."""

    code: int
    text: str
    headers: tuple[tuple[str, str], ...] = ()
    is_public: bool = False  # anybody who asks gets it


class Route(NamedTuple):
    """What answers, with what stands in the path."""

    endpoint: Endpoint
    parameters: dict[str, str]


NOT_FOUND = Answer(404, "404 page not found\n", is_public=True)
NO_ROUTE = Answer(404, "404: Page Not Found")
DEBUG_DISABLED = Answer(405, "Debug endpoints are disabled.\n")
CHECKS = ("ping", "log", "syncloop", "device-plugin")  # Source: InstallAuthNotRequiredHandlers
_ANY, _GET, _BOTH = (), ("GET",), ("GET", "POST")
_PATHS: tuple[tuple[Endpoint, tuple[str, ...], str], ...] = (
    (Endpoint.METRICS, _ANY, "/metrics"),
    (Endpoint.METRICS_CADVISOR, _ANY, "/metrics/cadvisor"),
    (Endpoint.METRICS_RESOURCE, _ANY, "/metrics/resource"),
    (Endpoint.METRICS_PROBES, _ANY, "/metrics/probes"),
    (Endpoint.METRICS_SLIS, _ANY, "/metrics/slis"),
    (Endpoint.HEALTHZ, _ANY, "/healthz"),
    *((Endpoint.HEALTHZ, _ANY, f"/healthz/{each}") for each in CHECKS),
    (Endpoint.PODS, _GET, "/pods"),
    (Endpoint.STATS, _BOTH, "/stats/summary"),
    (Endpoint.CONFIGZ, _ANY, "/configz"),
    (Endpoint.CONTAINER_LOGS, _GET, "/containerLogs/{podNamespace}/{podID}/{containerName}"),
    (Endpoint.EXEC, _BOTH, "/exec/{podNamespace}/{podID}/{containerName}"),
    (Endpoint.EXEC, _BOTH, "/exec/{podNamespace}/{podID}/{uid}/{containerName}"),
    (Endpoint.ATTACH, _BOTH, "/attach/{podNamespace}/{podID}/{containerName}"),
    (Endpoint.ATTACH, _BOTH, "/attach/{podNamespace}/{podID}/{uid}/{containerName}"),
    (Endpoint.PORT_FORWARD, _BOTH, "/portForward/{podNamespace}/{podID}"),
    (Endpoint.PORT_FORWARD, _BOTH, "/portForward/{podNamespace}/{podID}/{uid}"),
)
# Roots below which a kubelet asks who may, whatever else is in the path.
_ALWAYS = frozenset(("pods", "stats"))
_DEBUG = frozenset(
    ("containerLogs", "exec", "attach", "portForward", "run", "runningpods", "logs", "debug")
)
"""Only with enableDebuggingHandlers; without it a kubelet says that they are disabled."""
_DEBUG_OR_NOTHING = frozenset(("checkpoint", "flagz", "statusz"))
"""Only with enableDebuggingHandlers; without it they are not there, as /configz."""


def route(method: str, path: str, *, has_debugging: bool = True) -> Route | Answer:
    """Return what answers a request, or the answer of the router.

    `has_debugging` is enableDebuggingHandlers of the kubelet's configuration.
    """
    parts = path.rstrip("/").split("/")
    root = path.partition("/")[2].partition("/")[0]
    if not has_debugging and root in _DEBUG:
        return DEBUG_DISABLED
    for endpoint, methods, pattern in _PATHS:
        parameters = _matched(pattern.split("/"), parts)
        if parameters is None:
            continue
        if not has_debugging and endpoint is Endpoint.CONFIGZ:
            return NOT_FOUND
        if methods and method not in methods:
            allowed = (("Allow", ", ".join(methods)),)
            return Answer(405, "405: Method Not Allowed", allowed)
        return Route(endpoint, parameters)
    known = _ALWAYS | _DEBUG | _DEBUG_OR_NOTHING if has_debugging else _ALWAYS
    return NO_ROUTE if root in known else NOT_FOUND


def _matched(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    """Return what stands in the place of names, None if a path is not of a pattern."""
    if len(pattern) != len(parts):
        return None
    found = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{") and part:
            found[wanted.strip("{}")] = part
        elif wanted != part:
            return None
    return found
