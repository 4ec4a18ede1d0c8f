"""The kubelets' own servers: who may ask, what they answer, and what a broken client does."""

import contextlib
import datetime as dt
import gc
import http.client
import json
import socket
import ssl
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import yaml

from e2e.e2e_world import Json, World, eventually, pod
from fleet.controlplane.directory import Layout
from fleet.controlplane.pki import SelfSigned
from fleet.profile.loader import show_profile

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SAYS = "echo hello; echo world; sleep 3600"
HEADER_MAX = 10_000_000
REVIEWS = frozenset(("tokenreviews", "subjectaccessreviews"))


class Answer(NamedTuple):
    code: int
    text: str


class Served(NamedTuple):
    """A pod, the node that it is on, another one, and tokens with and without rights."""

    world: World
    address: str
    port: int
    other: str
    node: str
    allowed: str
    unknown: str


def tls(certificate: str = "", key: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def ask(
    served: Served,
    path: str,
    *,
    token: str = "",
    method: str = "GET",
    address: str = "",
    context: ssl.SSLContext | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    connection = http.client.HTTPSConnection(
        address or served.address, served.port, timeout=60, context=context or tls()
    )
    sent = dict(headers or {})
    if token:
        sent["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode())
    finally:
        connection.close()


def of_component(served: Served, name: str) -> ssl.SSLContext:
    """Return TLS with a certificate of the control plane."""
    pki = Layout(served.world.info.directory).pki
    return tls(str(pki / f"{name}.crt"), str(pki / f"{name}.key"))


@pytest.fixture(scope="module")
def served(world: World) -> Iterator[Served]:
    """Run three nodes, and a pod on one of them."""
    with world.spawn("served", 3) as run:
        run.until_ready()
        world.apply(pod("says", SAYS))
        world.kubectl("wait", "--for=condition=Ready", "pod/says", "--timeout=120s")
        for name in ("asks", "nobody"):
            world.kubectl("create", "serviceaccount", name)
        world.kubectl(
            "create",
            "clusterrolebinding",
            "asks",
            "--clusterrole=system:kubelet-api-admin",
            "--serviceaccount=default:asks",
        )
        name = world.get("pod", "says")["spec"]["nodeName"]
        nodes = world.nodes("served")
        other = next(each for each in nodes if each != name)
        yield Served(
            world,
            address_of(nodes[name]),
            nodes[name]["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"],
            address_of(nodes[other]),
            name,
            world.kubectl("create", "token", "asks").strip(),
            world.kubectl("create", "token", "nobody").strip(),
        )
        run.end_well_or_late()
    world.assert_nothing_left("served")


def address_of(node: Json) -> str:
    [found] = [each for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
    return str(found["address"])


def test_a_node_says_where_it_answers(served: Served) -> None:
    assert served.address.startswith("127.128.")
    assert served.address != served.other
    says = served.world.get("pod", "says")["status"]
    assert (says["hostIP"], says["hostIPs"]) == (served.address, [{"ip": served.address}])
    features = served.world.nodes("served")[served.node]["status"]["declaredFeatures"]
    assert "ExtendWebSocketsToKubelet" in features


def test_no_other_machine_reaches_it(served: Served) -> None:
    """A socket on `lo` alone: at the machine's own other addresses nobody listens."""
    others = {
        each.address
        for listed in psutil.net_if_addrs().values()
        for each in listed
        if each.family is socket.AF_INET and not each.address.startswith("127.")
    }
    for address in others:
        with pytest.raises(OSError):  # noqa: PT011 - refused
            socket.create_connection((address, served.port), timeout=5)


def test_logs_come_through_the_api_server(served: Served) -> None:
    kubectl = served.world.kubectl
    assert kubectl("logs", "says") == "hello\nworld\n"
    assert kubectl("logs", "says", "--tail=1") == "world\n"
    assert kubectl("logs", "says", "--limit-bytes=3") == "hel"
    first = kubectl("logs", "says", "--timestamps").split("\n")[0]
    stamp, _, said = first.partition(" ")
    assert said == "hello"
    assert stamp.startswith("20")
    assert stamp.endswith("Z")


def test_since_a_time_of_another_zone(served: Served) -> None:
    """An API server writes sinceTime in its own zone: here the same second of two of them."""
    stamp = served.world.kubectl("logs", "says", "--timestamps").partition(".")[0]
    second = dt.datetime.fromisoformat(f"{stamp}+00:00")
    for hours in (5, -5):
        zone = dt.timezone(dt.timedelta(hours=hours))
        since = urllib.parse.quote(second.astimezone(zone).isoformat())
        path = f"/containerLogs/default/says/c?sinceTime={since}"
        assert ask(served, path, token=served.allowed) == Answer(200, "hello\nworld\n")
    later = urllib.parse.quote((second.astimezone(zone) + dt.timedelta(hours=1)).isoformat())
    path = f"/containerLogs/default/says/c?sinceTime={later}"
    assert ask(served, path, token=served.allowed) == Answer(200, "")


def test_a_followed_log_ends_with_its_container(served: Served) -> None:
    served.world.apply(pod("ends", "echo one; sleep 3; echo two; exit 0"))
    eventually(lambda: served.world.get("pod", "ends")["status"]["phase"] == "Running", "it runs")
    said = served.world.kubectl("logs", "--follow", "ends")  # it would wait for ever
    assert said.split("\n")[:2] == ["one", "two"]


def test_whoever_is_nobody_is_refused(served: Served) -> None:
    assert ask(served, "/pods") == Answer(401, "Unauthorized")
    assert ask(served, "/pods", token="wrong") == Answer(401, "Unauthorized")
    assert ask(served, "/pods", token=served.unknown) == Answer(
        403,
        "Forbidden (user=system:serviceaccount:default:nobody, verb=get, resource=nodes, "
        "subresource(s)=[pods proxy])\n",
    )
    assert ask(served, "/metrics/resource", token=served.unknown).text.endswith("=[metrics])\n")


def test_the_api_servers_certificate_is_enough(served: Served) -> None:
    own = of_component(served, "kubelet-client")
    assert ask(served, "/healthz", context=own) == Answer(200, "ok")


def test_reviews_are_the_nodes_own_requests_and_kept(served: Served) -> None:
    def reviews() -> int:
        """Count what the node asked; the audit log names whom fleet acted for."""
        return sum(
            each.get("objectRef", {}).get("resource") in REVIEWS
            and each.get("impersonatedUser", {}).get("username") == f"system:node:{served.node}"
            for each in served.world.audit()
        )

    path = "/configz?first"
    assert ask(served, path, token=served.allowed).code == 200
    before = reviews()
    assert before >= 2
    for _ in range(3):
        assert ask(served, path, token=served.allowed).code == 200
    assert reviews() == before


def test_each_path_answers_as_upstream(served: Served) -> None:
    def get(path: str, method: str = "GET") -> Answer:
        return ask(served, path, token=served.allowed, method=method)

    assert get("/healthz/syncloop") == Answer(200, "ok")
    [shown] = json.loads(get("/pods").text)["items"]
    assert shown["metadata"]["name"] == "says"
    assert shown["status"]["phase"] == "Running"
    assert shown["spec"]["containers"][0]["command"] == ["sh", "-c", SAYS]
    assert json.loads(get("/configz").text)["kubeletconfig"]["nodeLeaseDurationSeconds"] == 40
    assert get("/spec") == Answer(404, "404 page not found\n")
    for path in ("/exec/a", "/logs/", "/runningpods/"):
        assert get(path) == Answer(404, "404: Page Not Found")
    assert get("/statusz").code == 403  # `allowed` has no right to it
    assert get("/pods", "PUT").code == 405


def test_what_is_not_there_is_told(served: Served) -> None:
    def logs(path: str) -> Answer:
        return ask(served, f"/containerLogs/default/{path}", token=served.allowed)

    assert logs("nope/c") == Answer(404, 'pod "nope" does not exist')
    assert logs("says/nope") == Answer(404, 'container "nope" not found in pod "says"')
    assert logs("says/c?tailLines=x") == Answer(400, '{"message": "Unable to decode query."}')
    assert logs("says/c?tailLines=-1") == Answer(422, '{"message": "Invalid request."}')
    with warnings.catch_warnings():
        # ssl.py forgets a socket whose peer is gone before the handshake; some later test would
        # be told when it is collected.
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(OSError):  # noqa: PT011 - a reset, or the end of the handshake
            ask(served, "/healthz", address="127.200.0.1")
        gc.collect()


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /pods HTTP/9.9\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /pods HTTP/1.1\r\nno colon\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_400(served: Served, sent: bytes) -> None:
    assert raw(served, sent).startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))


def test_a_header_of_10_mb_is_too_large(served: Served) -> None:
    sent = b"GET /pods HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"a" * HEADER_MAX)
    assert b" 431 " in raw(served, sent).split(b"\r\n")[0]


EXEC = "/exec/default/says/c?command=true&output=1"
V4 = {"X-Stream-Protocol-Version": "v4.channel.k8s.io"}
WEB_SOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@pytest.mark.parametrize(
    ("headers", "code", "words"),
    [
        ({}, 500, "Upgrade request required"),
        ({"Connection": "Upgrade", **V4}, 400, "missing upgrade headers in request"),
        ({"Connection": "Upgrade", "Upgrade": "h2c", **V4}, 400, "missing upgrade headers"),
        (
            {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"},
            400,
            "Version does not exist in request",
        ),
        (
            {
                "Connection": "Upgrade",
                "Upgrade": "SPDY/3.1",
                "X-Stream-Protocol-Version": "v9.channel.k8s.io",
            },
            403,
            "client supports [v9.channel.k8s.io]",
        ),
        ({**WEB_SOCKET, "Sec-WebSocket-Version": "99"}, 400, ""),
        ({**WEB_SOCKET, "Sec-WebSocket-Key": "short"}, 400, ""),
        ({**WEB_SOCKET, "Sec-WebSocket-Protocol": "v9.channel.k8s.io"}, 403, ""),
    ],
    ids=["none", "nothing", "other", "unnamed", "spdy", "version", "key", "protocol"],
)
def test_an_upgrade_that_is_none_is_told(
    served: Served, headers: dict[str, str], code: int, words: str
) -> None:
    found = ask(served, EXEC, token=served.allowed, headers=headers)
    assert found.code == code
    assert words in found.text.replace('"', "")
    assert ask(served, "/healthz", token=served.allowed) == Answer(200, "ok")


@pytest.mark.parametrize("protocol", ["websocket", "SPDY/3.1"])
def test_what_is_no_frame_ends_its_session_alone(served: Served, protocol: str) -> None:
    """Upgraded, and then neither a frame of a WebSocket nor one of SPDY."""
    lines = {**WEB_SOCKET, "Upgrade": protocol, "Authorization": f"Bearer {served.allowed}"}
    if protocol != "websocket":
        lines["X-Stream-Protocol-Version"] = "v4.channel.k8s.io"
    path = "/exec/default/says/c?command=sleep&command=3600&output=1"
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    sent = f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode()
    if protocol == "websocket":
        sent = sent.replace(b"POST", b"GET", 1)
    assert raw(served, sent + b"\xff" * 512).startswith(b"HTTP/1.1 101 ")  # to its end
    for address in (served.address, served.other):
        answer = ask(served, "/healthz", address=address, token=served.allowed)
        assert answer == Answer(200, "ok")


def test_a_certificate_of_a_foreign_authority_ends_the_handshake(
    served: Served, tmp_path: Path
) -> None:
    """Where a kubelet answers 401; nobody is let in, and nobody else is disturbed."""
    made = tmp_path / "foreign.pem"
    made.write_bytes(SelfSigned().pem("foreign"))
    with pytest.raises(OSError):  # noqa: PT011 - an alert, or a reset
        ask(served, "/pods", context=tls(str(made), str(made)), token=served.allowed)
    for address in (served.address, served.other):
        answer = ask(served, "/healthz", address=address, token=served.allowed)
        assert answer == Answer(200, "ok")


def test_half_closed_and_silent_clients_disturb_nobody(served: Served) -> None:
    """Whoever had to wait for them would be answered once their handshakes are given up."""
    eventually(lambda: is_answered_meanwhile(served), "an answer that waits for no handshake")


def is_answered_meanwhile(served: Served) -> bool:
    """Return whether somebody else was answered at once, or while a handshake was open."""
    held = []
    for at in range(60):
        taken = socket.create_connection((served.address, served.port))
        held.append(taken)
        if at % 3 == 0:
            taken.shutdown(socket.SHUT_WR)
        elif at % 3 == 1:
            taken.sendall(b"\x16\x03\x01")  # a handshake that does not go on
    started_s = time.monotonic()
    assert ask(served, "/healthz", address=served.other, token=served.allowed).code == 200
    is_meanwhile = time.monotonic() - started_s < 5 or is_open(held[1])
    for taken in held:
        taken.close()
    return is_meanwhile


def is_open(connection: socket.socket) -> bool:
    """Return whether the other end has not closed it."""
    with contextlib.suppress(BlockingIOError):
        return bool(connection.recv(1, socket.MSG_DONTWAIT))
    return True


def test_a_node_presents_the_certificate_that_the_cluster_gave_it(
    world: World, tmp_path: Path
) -> None:
    profile = yaml.safe_load(show_profile("default"))
    profile["spec"]["kubeletConfiguration"]["serverTLSBootstrap"] = True
    (tmp_path / "serving.yaml").write_text(yaml.safe_dump(profile))
    verifying = ssl.create_default_context(cafile=str(Layout(world.info.directory).pki / "ca.crt"))
    options = ("--identity=csr", "--approve-csrs", f"--profile={tmp_path / 'serving.yaml'}")
    with world.spawn("certified", 1, *options, f"--cert-dir={tmp_path / 'certs'}") as run:
        run.until_ready()
        [node] = world.nodes("certified").values()
        address = address_of(node)
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]

        def is_verified() -> bool:
            """Connect as whoever trusts the cluster's CA alone."""
            with contextlib.suppress(OSError):
                plain = socket.create_connection((address, port), timeout=5)
                with verifying.wrap_socket(plain, server_hostname=address) as connection:
                    subject = connection.getpeercert()["subject"]  # type: ignore[index]
                    return (("commonName", "system:node:certified-00000"),) in subject
            return False

        eventually(is_verified, "the node presents its own certificate")
        run.end_well_or_late()


def test_without_servers_nodes_declare_none(world: World) -> None:
    with world.spawn("silent", 1, "--serve=off") as run:
        run.until_ready()
        [node] = world.nodes("silent").values()
        assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
        assert "ExtendWebSocketsToKubelet" not in node["status"]["declaredFeatures"]
        assert address_of(node).startswith("198.18.")
        run.end_well_or_late()


def raw(served: Served, sent: bytes) -> bytes:
    """Send bytes to a node, and return what it answers."""
    with (
        socket.create_connection((served.address, served.port), timeout=60) as plain,
        tls().wrap_socket(plain) as connection,
    ):
        received = b""
        with contextlib.suppress(OSError):  # answered before all of it was read
            connection.sendall(sent)
        try:
            while piece := connection.recv(1 << 16):
                received += piece
        except OSError:
            assert received
        return received
