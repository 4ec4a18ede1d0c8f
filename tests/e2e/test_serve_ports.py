"""Kubelets that share one address: a port for each, or one port and the node in the path."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator

import pytest

from e2e.e2e_world import World, eventually, pod
from e2e.free_ports import free_port

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODES = 3
SAYS = "echo hello; sleep 3600"


def own_address() -> str:
    """Return this machine's address in its network; without one that of `lo`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def test_each_node_answers_at_a_port_of_its_own(world: World) -> None:
    """The API server finds each: its logs, its exec, and what it proxies to."""
    address, first = own_address(), free_port(NODES)
    names = [f"ports-{number:05d}" for number in range(NODES)]
    with world.spawn("ports", NODES, "--serve=ports", f"--serve-at={address}:{first}") as fleet:
        fleet.until_ready()
        nodes = world.nodes("ports")
        for port, name in enumerate(names, first):
            status = nodes[name]["status"]
            assert {"type": "InternalIP", "address": address} in status["addresses"]
            assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": port}}
            assert "ExtendWebSocketsToKubelet" in status["declaredFeatures"]
        world.apply(pod("first", SAYS, names[0]), pod("last", SAYS, names[-1]))
        world.kubectl("wait", "--for=condition=Ready", "pod/first", "pod/last", "--timeout=120s")
        for name in ("first", "last"):
            assert world.kubectl("logs", name) == "hello\n"
            assert world.kubectl("exec", name, "--", "echo", name) == f"{name}\n"
        if not address.startswith("127."):
            path = f"/api/v1/nodes/{names[-1]}/proxy/pods"
            found = json.loads(world.kubectl("get", "--raw", path))
            assert [each["metadata"]["name"] for each in found["items"]] == ["last"]
        world.kubectl("delete", "pod/first", "pod/last", "--wait=false")
        fleet.end_well_or_late()
    world.assert_nothing_left("ports")


@pytest.fixture(scope="module")
def by_path(world: World) -> Iterator[tuple[int, str, str]]:
    """Run nodes behind one port; return that, and tokens with and without rights."""
    port = free_port()
    with world.spawn("pathed", NODES, "--serve=path", f"--serve-at=127.0.0.1:{port}") as fleet:
        fleet.until_ready()
        world.apply(pod("pathed", SAYS, "pathed-00001"))
        world.kubectl("wait", "--for=condition=Ready", "pod/pathed", "--timeout=120s")
        for name in ("may", "may-not"):
            world.kubectl("create", "serviceaccount", name)
        world.kubectl(
            *("create", "clusterrolebinding", "may-ask-kubelets"),
            *("--clusterrole=system:kubelet-api-admin", "--serviceaccount=default:may"),
        )
        who = "--as=system:serviceaccount:default:may"
        eventually(
            lambda: (
                world.kubectl("auth", "can-i", "get", "nodes/pods", who, check=False) == "yes\n"
            ),
            "the authorizer knows of the binding",  # a kubelet keeps a no for 30 s
        )
        try:
            tokens = [world.kubectl("create", "token", each).strip() for each in ("may", "may-not")]
            yield port, tokens[0], tokens[1]
        finally:
            world.kubectl("delete", "pod/pathed", "--wait=false")
            world.kubectl("delete", "clusterrolebinding/may-ask-kubelets", "--wait=false")
            world.kubectl("delete", "serviceaccount", "may", "may-not", "--wait=false")
        fleet.end_well_or_late()
    world.assert_nothing_left("pathed")


def ask(port: int, *paths: str, token: str = "") -> list[tuple[int, str]]:
    """Send requests over one connection."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    found = []
    try:
        for path in paths:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read().decode()
            found.append((answer.status, answer.headers.get("Location") or body))
    finally:
        connection.close()
    return found


def test_one_connection_asks_several_nodes(by_path: tuple[int, str, str]) -> None:
    port, token, _ = by_path
    paths = [f"/nodes/pathed-{number:05d}/pods" for number in range(NODES)]
    answers = ask(port, *paths, token=token)
    assert [code for code, _ in answers] == [200] * NODES, answers
    found = [json.loads(body)["items"] or [] for _, body in answers]
    assert [[each["metadata"]["name"] for each in items] for items in found] == [[], ["pathed"], []]


def test_the_rest_of_the_path_is_what_the_node_is_asked(by_path: tuple[int, str, str]) -> None:
    port, token, _ = by_path
    root = "/nodes/pathed-00001"
    logs = f"{root}/containerLogs/default/pathed/c?tailLines=1"
    assert ask(port, f"{root}/healthz", logs, f"{root}/runningpods", token=token) == [
        (200, "ok"),
        (200, "hello\n"),
        (301, f"{root}/runningpods/"),
    ]


def test_who_may_ask_is_asked_for_each_node(by_path: tuple[int, str, str]) -> None:
    port, _, denied = by_path
    path = "/nodes/pathed-00001/pods"
    assert ask(port, path) == [(401, "Unauthorized")]
    assert [code for code, _ in ask(port, path, token=denied)] == [403]


def test_a_path_without_a_node_is_not_found(by_path: tuple[int, str, str]) -> None:
    port, token, _ = by_path
    for path in ("/pods", "/nodes/pathed-00009/pods", "/nodes/", "/nodes/fleet/pods"):
        assert ask(port, path, token=token) == [(404, "404 page not found\n")]


def test_such_a_node_declares_no_server(world: World, by_path: tuple[int, str, str]) -> None:
    assert by_path
    for node in world.nodes("pathed").values():
        assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
        assert "ExtendWebSocketsToKubelet" not in node["status"]["declaredFeatures"]


def test_a_port_in_use_is_named(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = world.fleet(
            *("spawn", "--nodes=1", "--name-prefix=taken", "--serve=path"),
            f"--serve-at=127.0.0.1:{port}",
        )
    assert done.returncode == 3, done.stderr
    assert f"127.0.0.1 port {port}: Address already in use" in done.stderr
