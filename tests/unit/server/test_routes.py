"""Which endpoint answers a path, and what is said where none does."""

import pytest

from fleet.server.endpoints import health
from fleet.server.routes import Answer, Endpoint, Route, route

IN_POD = {"podNamespace": "a", "podID": "b", "containerName": "c"}


def answered(method: str, path: str, *, has_debugging: bool = True) -> Answer:
    found = route(method, path, has_debugging=has_debugging)
    assert isinstance(found, Answer), found
    return found


@pytest.mark.parametrize(
    ("method", "path", "endpoint", "parameters"),
    [
        ("GET", "/healthz", Endpoint.HEALTHZ, {}),
        ("POST", "/healthz/ping", Endpoint.HEALTHZ, {}),
        ("GET", "/healthz/device-plugin", Endpoint.HEALTHZ, {}),
        ("GET", "/pods", Endpoint.PODS, {}),
        ("GET", "/pods/", Endpoint.PODS, {}),
        ("GET", "/stats/summary", Endpoint.STATS, {}),
        ("POST", "/stats/summary", Endpoint.STATS, {}),
        ("GET", "/metrics", Endpoint.METRICS, {}),
        ("GET", "/metrics/resource", Endpoint.METRICS_RESOURCE, {}),
        ("GET", "/containerLogs/a/b/c", Endpoint.CONTAINER_LOGS, IN_POD),
        ("GET", "/exec/a/b/c", Endpoint.EXEC, IN_POD),
        ("POST", "/exec/a/b/u/c", Endpoint.EXEC, {**IN_POD, "uid": "u"}),
        ("POST", "/portForward/a/b", Endpoint.PORT_FORWARD, {"podNamespace": "a", "podID": "b"}),
        ("GET", "/configz", Endpoint.CONFIGZ, {}),
    ],
)
def test_a_path_has_its_endpoint(
    method: str, path: str, endpoint: Endpoint, parameters: dict[str, str]
) -> None:
    assert route(method, path) == Route(endpoint, parameters)


@pytest.mark.parametrize("path", ["/", "/spec", "/metrics/nope", "/pod", "*", ""])
def test_what_is_not_there_is_answered_to_everybody(path: str) -> None:
    assert answered("GET", path) == Answer(404, "404 page not found\n", is_public=True)


@pytest.mark.parametrize(
    "path", ["/stats", "/exec/a", "/exec/a//c", "/logs/", "/run/a/b/c", "/runningpods/", "/flagz"]
)
def test_what_a_kubelet_has_and_fleet_has_not_is_answered_to_whom_may_ask(path: str) -> None:
    assert answered("GET", path) == Answer(404, "404: Page Not Found")


def test_a_verbose_health_names_each_check() -> None:
    names = ("ping", "log excluded:", "syncloop", "device-plugin")
    told = "".join(f"[+]{each} ok\n" for each in names)
    warned = 'warn: some health checks cannot be excluded: no matches for "a","b"\n'
    assert health(["log", "b", "a"]) == f"{told}{warned}healthz check passed\n"


def test_the_wrong_method_is_told_the_right_ones() -> None:
    assert answered("PUT", "/exec/a/b/c").headers == (("Allow", "GET, POST"),)
    assert answered("POST", "/containerLogs/a/b/c").text == "405: Method Not Allowed"


def test_without_debugging_handlers_the_paths_say_so() -> None:
    for path in ("/exec/a/b/c", "/containerLogs/a/b/c", "/exec/a", "/logs/", "/run/a/b/c"):
        assert answered("GET", path, has_debugging=False).text == "Debug endpoints are disabled.\n"
    assert answered("GET", "/configz", has_debugging=False).code == 404  # the kubelet lacks it
    assert isinstance(route("GET", "/pods", has_debugging=False), Route)
