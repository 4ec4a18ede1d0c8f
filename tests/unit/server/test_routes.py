"""Which endpoint answers a path, and what is said where none does."""

import pytest

from fleet.profile.release import V1_35, V1_36, Release
from fleet.server.routes import Answer, Endpoint, Route, route

IN_POD = {"podNamespace": "a", "podID": "b", "containerName": "c"}


def answered(
    method: str, path: str, release: Release = V1_36, *, has_debugging: bool = True
) -> Answer:
    found = route(method, path, "", release, has_debugging=has_debugging)
    assert isinstance(found, Answer), found
    return found


@pytest.mark.parametrize(
    ("method", "path", "endpoint", "parameters"),
    [
        ("GET", "/healthz", Endpoint.HEALTHZ, {}),
        ("POST", "/healthz/ping", Endpoint.HEALTHZ, {}),
        ("GET", "/pods", Endpoint.PODS, {}),
        ("GET", "/pods/", Endpoint.PODS, {}),
        ("GET", "/runningpods/", Endpoint.RUNNING_PODS, {}),
        ("GET", "/stats/summary", Endpoint.STATS, {}),
        ("POST", "/stats/summary", Endpoint.STATS, {}),
        ("GET", "/metrics", Endpoint.METRICS, {}),
        ("GET", "/metrics/resource", Endpoint.METRICS_RESOURCE, {}),
        ("GET", "/containerLogs/a/b/c", Endpoint.CONTAINER_LOGS, IN_POD),
        ("GET", "/exec/a/b/c", Endpoint.EXEC, IN_POD),
        ("POST", "/exec/a/b/u/c", Endpoint.EXEC, {**IN_POD, "uid": "u"}),
        ("POST", "/run/a/b/c", Endpoint.RUN, IN_POD),
        ("POST", "/portForward/a/b", Endpoint.PORT_FORWARD, {"podNamespace": "a", "podID": "b"}),
        ("POST", "/checkpoint/a/b/c", Endpoint.CHECKPOINT, IN_POD),
        ("GET", "/logs/", Endpoint.LOGS, {}),
        ("GET", "/logs/pods/x.log", Endpoint.LOGS, {"*": "pods/x.log"}),
        ("GET", "/debug/pprof/heap", Endpoint.PPROF, {"*": "heap"}),
        ("PUT", "/debug/flags/v", Endpoint.DEBUG_FLAGS, {}),
        ("GET", "/configz", Endpoint.CONFIGZ, {}),
    ],
)
def test_a_path_has_its_endpoint(
    method: str, path: str, endpoint: Endpoint, parameters: dict[str, str]
) -> None:
    assert route(method, path, "", V1_36) == Route(endpoint, parameters)


@pytest.mark.parametrize(
    "path", ["/", "/spec", "/spec/", "/stats_", "/metrics/", "/metrics/nope", "/healthz/", "/pod"]
)
def test_what_the_mux_does_not_know_is_answered_to_everybody(path: str) -> None:
    assert answered("GET", path) == Answer(404, "404 page not found\n", is_public=True)


@pytest.mark.parametrize("path", ["/exec/a", "/containerLogs/a/b", "/stats/container", "/pods/a"])
def test_what_a_service_does_not_know_is_answered_to_whom_may_ask(path: str) -> None:
    found = answered("GET", path)
    assert found == Answer(404, "404: Page Not Found")
    assert not found.is_public


def test_the_wrong_method_is_told_the_right_ones() -> None:
    assert answered("PUT", "/exec/a/b/c").headers == (("Allow", "GET, POST"),)
    assert answered("GET", "/run/a/b/c").code == 405
    assert answered("POST", "/containerLogs/a/b/c").text == "405: Method Not Allowed"


@pytest.mark.parametrize("root", ["/runningpods", "/logs", "/stats", "/checkpoint", "/debug/pprof"])
def test_a_root_without_its_slash_is_redirected(root: str) -> None:
    found = answered("GET", root)
    assert (found.code, found.headers) == (301, (("Location", f"{root}/"),))


@pytest.mark.parametrize(
    ("accept", "is_served"),
    [("", True), ("*/*", True), ("text/html, */*;q=0.1", True), ("application/json", True),
     ("text/html", False), ("application/vnd.kubernetes.protobuf", False)],
)  # fmt: skip
def test_pods_come_as_json_or_not_at_all(accept: str, is_served: bool) -> None:  # noqa: FBT001
    found = route("GET", "/pods", accept, V1_36)
    assert isinstance(found, Route) is is_served
    if isinstance(found, Answer):
        assert found.code == 406


def test_without_debugging_handlers_the_paths_say_so() -> None:
    for path in ("/exec/a/b/c", "/logs/x", "/containerLogs/a/b/c", "/debug/pprof/heap"):
        assert answered("GET", path, has_debugging=False).text == "Debug endpoints are disabled.\n"
    assert answered("GET", "/configz", has_debugging=False).code == 404
    assert isinstance(route("GET", "/pods", "", V1_36, has_debugging=False), Route)


def test_a_gate_that_is_off_takes_its_path_away() -> None:
    off = V1_36.with_gates({"ContainerCheckpoint": False, "ComponentStatusz": False})
    assert answered("POST", "/checkpoint/a/b/c", off).code == 404
    assert answered("GET", "/statusz", off).is_public
    assert answered("GET", "/flagz", V1_35).is_public
