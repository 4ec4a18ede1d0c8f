"""The paths of a kubelet's server: which endpoint answers, and what there is instead of one.

    ServeMux: the longest pattern, a redirect to a path with a slash, or 404 in plain text
    -> authentication and authorization -> go-restful: route, 404, 405, 406

What the mux does not know is answered to everybody; all else only to whom may ask.
Source: pkg/kubelet/server/server.go, NewServer; net/http ServeMux; go-restful CurlyRouter.
"""

from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from fleet.profile.release import Release


class Endpoint(StrEnum):
    """What answers, by its name in metrics of the server."""

    HEALTHZ = "healthz"
    PODS = "pods"
    RUNNING_PODS = "runningpods"
    STATS = "stats"
    METRICS = "metrics"
    METRICS_CADVISOR = "metrics/cadvisor"
    METRICS_RESOURCE = "metrics/resource"
    METRICS_PROBES = "metrics/probes"
    METRICS_SLIS = "metrics/slis"
    LOGS = "logs"
    PPROF = "debug"
    DEBUG_FLAGS = "debug/flags/v"
    RUN = "run"
    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portForward"
    CONTAINER_LOGS = "containerLogs"
    CONFIGZ = "configz"
    CHECKPOINT = "checkpoint"
    FLAGZ = "flagz"
    STATUSZ = "statusz"


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


class _Service(NamedTuple):
    """A web service of go-restful."""

    endpoint: Endpoint
    methods: tuple[str, ...]
    templates: tuple[tuple[str, ...], ...]  # names of the parts behind the root
    is_json: bool = False


NOT_FOUND = Answer(404, "404 page not found\n", is_public=True)
NO_ROUTE = Answer(404, "404: Page Not Found")
NOT_ACCEPTABLE = Answer(406, "406: Not Acceptable\n\nAvailable representations: application/json")
DEBUG_DISABLED = Answer(405, "Debug endpoints are disabled.\n")
_IN_POD = (("podNamespace", "podID", "containerName"),)
_OF_POD = (*_IN_POD, ("podNamespace", "podID", "uid", "containerName"))
_FORWARD = (("podNamespace", "podID"), ("podNamespace", "podID", "uid"))
_BOTH = ("GET", "POST")

HANDLERS = {
    "/healthz": Endpoint.HEALTHZ,
    "/healthz/ping": Endpoint.HEALTHZ,
    "/healthz/log": Endpoint.HEALTHZ,
    "/healthz/syncloop": Endpoint.HEALTHZ,
    "/metrics": Endpoint.METRICS,
    "/metrics/cadvisor": Endpoint.METRICS_CADVISOR,
    "/metrics/resource": Endpoint.METRICS_RESOURCE,
    "/metrics/probes": Endpoint.METRICS_PROBES,
    "/metrics/slis": Endpoint.METRICS_SLIS,
}
"""Exact paths, any method."""
SERVICES = {
    "/pods": _Service(Endpoint.PODS, ("GET",), ((),), is_json=True),
    "/stats/": _Service(Endpoint.STATS, _BOTH, (("summary",),), is_json=True),
}
DEBUG_HANDLERS = {
    "/configz": Endpoint.CONFIGZ,
    "/debug/flags/v": Endpoint.DEBUG_FLAGS,
    "/flagz": Endpoint.FLAGZ,
    "/statusz": Endpoint.STATUSZ,
}
DEBUG_SERVICES = {
    "/run": _Service(Endpoint.RUN, ("POST",), _OF_POD),
    "/exec": _Service(Endpoint.EXEC, _BOTH, _OF_POD),
    "/attach": _Service(Endpoint.ATTACH, _BOTH, _OF_POD),
    "/portForward": _Service(Endpoint.PORT_FORWARD, _BOTH, _FORWARD),
    "/containerLogs": _Service(Endpoint.CONTAINER_LOGS, ("GET",), _IN_POD),
    "/runningpods/": _Service(Endpoint.RUNNING_PODS, ("GET",), ((),), is_json=True),
    "/checkpoint/": _Service(Endpoint.CHECKPOINT, ("POST",), _IN_POD, is_json=True),
    "/logs/": _Service(Endpoint.LOGS, ("GET",), ((), ("*",))),
    "/debug/pprof/": _Service(Endpoint.PPROF, ("GET",), (("*",),)),
}
DISABLED = tuple(f"{root.rstrip('/')}/" for root in DEBUG_SERVICES if root != "/checkpoint/")
"""What is answered without enableDebuggingHandlers."""
GATES = {
    "/checkpoint/": attrgetter("checkpoints"),
    "/flagz": attrgetter("serves_flags"),
    "/statusz": attrgetter("serves_status"),
}
"""What only some releases answer."""


def route(
    method: str, path: str, accept: str, release: Release, *, has_debugging: bool = True
) -> Route | Answer:
    """Return what answers a request, or the answer of the router.

    `has_debugging` is enableDebuggingHandlers of the kubelet's configuration.
    """
    endpoint = HANDLERS.get(path)
    if endpoint is None and has_debugging and _is_on(path, release):
        endpoint = DEBUG_HANDLERS.get(path)
    if endpoint is not None:
        return Route(endpoint, {})
    services = {**SERVICES, **DEBUG_SERVICES} if has_debugging else SERVICES
    for root, service in services.items():
        bare = root.rstrip("/")
        if not (path == bare or path.startswith(f"{bare}/")) or not _is_on(root, release):
            continue
        if path == bare and root.endswith("/"):
            return Answer(301, "", (("Location", root),), is_public=True)
        return _select(service, method, path[len(bare) :], accept)
    for root in () if has_debugging else DISABLED:
        if path == root.rstrip("/"):
            return Answer(301, "", (("Location", root),), is_public=True)
        if path.startswith(root):
            return DEBUG_DISABLED
    return NOT_FOUND


def _is_on(root: str, release: Release) -> bool:
    is_served = GATES.get(root)
    return is_served is None or is_served(release)


def _select(service: _Service, method: str, rest: str, accept: str) -> Route | Answer:
    """Choose a route as CurlyRouter does: by the path, then the method, then what is accepted."""
    parts = rest.strip("/").split("/") if rest.strip("/") else []
    for template in service.templates:
        parameters = _matched(template, parts)
        if parameters is None:
            continue
        if method not in service.methods:
            text = "405: Method Not Allowed"
            return Answer(405, text, (("Allow", ", ".join(service.methods)),))
        if service.is_json and not _accepts_json(accept):
            return NOT_ACCEPTABLE
        return Route(service.endpoint, parameters)
    return NO_ROUTE


def _matched(template: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    if template == ("*",):
        return {"*": "/".join(parts)} if parts else None
    if template == ("summary",):
        return {} if parts == ["summary"] else None
    if len(template) != len(parts) or not all(parts):
        return None
    return dict(zip(template, parts, strict=True))


def _accepts_json(accept: str) -> bool:
    """Source: go-restful route.go, matchesAccept."""
    for each in (accept or "*/*").split(","):
        media_type = each.partition(";")[0].strip()
        if media_type in {"*/*", "application/json"}:
            return True
    return False
