"""Who may ask a kubelet what: requests as bytes, and the reviews that the cluster is asked for."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from aiohttp import web
from e2e.free_ports import free_port
from support.stories import Story, as_test
from world.cluster_fakes import no_sleep
from world.pod_world import model_of
from world.server_world import DirectCalls, Transport
from world.simulation import Simulation
from world.virtual_loop import in_virtual_time

from fleet.errors import SetupError
from fleet.k8s.effects import NodeId
from fleet.profile.addresses import NOWHERE
from fleet.profile.settings import Settings
from fleet.server import auth
from fleet.server.auth import ACCESS_REVIEWS, TOKEN_BYTES_MAX, TOKEN_REVIEWS, AccessControl
from fleet.server.endpoints import Asked
from fleet.server.http import NodeHttp, text
from fleet.server.kubelet_servers import KubeletServers
from fleet.server.reactor_thread import BugError, NodeGoneError
from fleet.server.routes import Endpoint
from fleet.wire.http2.messages import Response

Json = dict[str, Any]
ADA = {"username": "ada", "uid": "7", "groups": ["dev"], "extra": {"team": ["a", "b"]}}
ADAS_GROUPS = ["dev", "system:authenticated"]
CERTIFICATE = {"subject": ((("organizationName", "ops"),), (("commonName", "bob"),))}


class Cluster(AccessControl):
    """What the API server says of tokens and accesses, and what it was asked."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim.reactor, DirectCalls(sim), no_sleep)
        self.tokens: dict[str, Json] = {"adas": {"authenticated": True, "user": ADA}}
        self.allowed: dict[str, Json] = {}  # status by subresource; others are not allowed
        self.asked: list[tuple[NodeId, str]] = []
        self.specs: list[Json] = []
        self.code = 201

    async def _attempt(self, node: NodeId, path: bytes, review: Json) -> Response:
        spec = orjson.loads(orjson.dumps(review["spec"]))
        self.specs.append(spec)
        if path == TOKEN_REVIEWS:
            what, status = "token", self.tokens.get(spec["token"], {"authenticated": False})
        else:
            assert path == ACCESS_REVIEWS
            what = spec["resourceAttributes"]["subresource"]
            status = self.allowed.get(what, {"allowed": False})
        self.asked.append((node, what))
        await asyncio.sleep(0)
        body = orjson.dumps({**review, "status": status})
        return Response(self.code, body, 0, 0, detail="" if self.code == 201 else "webhook down")


class Servers(KubeletServers):
    """The servers of three nodes; the last one is off. Endpoints say who was asked what."""

    def __init__(self, **spec: object) -> None:
        super().__init__(Settings.from_options(nodes=3), is_local=True)
        self.sim = Simulation(3, model=model_of(kubeletConfiguration=spec))
        self.sim.run_for(1)
        self.sim.reactor.entries[NodeId(2)].kubelet = None
        self._node_host = cast("Any", SimpleNamespace(reactor=self.sim.reactor, node_at=self._at))
        self._reactor_thread = DirectCalls(self.sim)
        self.cluster = self._access = Cluster(self.sim)
        self.error: Exception | None = None
        self._answers = dict.fromkeys(Endpoint, self._note)
        self.answered: list[str] = []

    def _at(self, index: int) -> tuple[NodeId, str] | None:
        return (NodeId(index), f"n-{index}") if 0 <= index < 3 else None

    async def _note(self, asked: Asked) -> web.StreamResponse:
        if self.error is not None:
            raise self.error
        self.answered.append(f"n-{asked.node}{asked.request.rel_url}")
        return text(200, "ok")

    def connect(
        self, index: int = 0, certificate: Json | None = None, *, field_bytes_max: int = 0
    ) -> "Client":
        http = NodeHttp(self.handle)
        if field_bytes_max:
            http._kwargs["max_field_size"] = field_bytes_max
        return Client(http, index, certificate)


class Client:
    """One connection."""

    def __init__(self, http: NodeHttp, index: int, certificate: Json | None) -> None:
        tls = SimpleNamespace(getpeercert=lambda binary_form: b"abc" * binary_form)
        name = f"127.128.0.{index + 1}", 10250
        self.transport = Transport(sockname=name, peercert=certificate, ssl_object=tls)
        self.transport.protocol = http()
        self.transport.protocol.connection_made(self.transport)

    async def ask(self, path: str, authorization: str = "", method: str = "GET") -> int:
        """Return the code of the answer, 0 if there is none."""
        self.transport.sent.clear()
        head = f"{method} {path} HTTP/1.1\r\nHost: n\r\n"
        if authorization:
            head += f"Authorization: {authorization}\r\n"
        self.transport.protocol.data_received(f"{head}\r\n".encode())
        await asyncio.sleep(0.01)
        return int(self.transport.status.split()[1]) if self.transport.status else 0

    @property
    def said(self) -> str:
        return bytes(self.transport.sent).decode().partition("\r\n\r\n")[2]


BEARER = "Bearer adas"


def play(story: Story, monkeypatch: pytest.MonkeyPatch, spec: Json, **parameters: object) -> None:
    """Play a story of servers, whose configuration is given, in their virtual time."""
    servers = Servers(**spec)
    clock = servers.sim.clock
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic_ns=clock.now_ns))
    in_virtual_time(story(servers, **parameters), servers.sim.world)


def played(**spec: object) -> Callable[[Story], Callable[..., None]]:
    """Make a test of a story."""
    return lambda story: as_test(story, partial(play, spec=spec), "monkeypatch")


# ---- who asks ----


@pytest.mark.parametrize(
    ("authorization", "kubelet", "reviewed"),
    [
        ("", {}, []),
        ("Basic YTpi", {}, []),
        ("Bearer", {}, []),
        ("Bearer  ", {}, []),
        ("Token adas", {}, []),
        (f"Bearer {'a' * (TOKEN_BYTES_MAX + 1)}", {}, []),
        (BEARER, {"authentication": {"webhook": {"enabled": False}}}, []),
        (f"Bearer {'a' * TOKEN_BYTES_MAX}", {}, ["token"]),
        ("Bearer nobodys", {}, ["token"]),
    ],
)
def test_nobody_in_particular_is_turned_away(
    monkeypatch: pytest.MonkeyPatch, authorization: str, kubelet: Json, reviewed: list[str]
) -> None:
    """The limit of a head is smaller than that of a token: aiohttp's is set aside here."""

    async def story(servers: Servers) -> None:
        servers.cluster.allowed = {key: {"allowed": True} for key in ("healthz", "proxy")}
        client = servers.connect(field_bytes_max=1 << 20)
        assert await client.ask("/healthz", authorization) == 401
        assert client.said == "Unauthorized"
        assert [what for _, what in servers.cluster.asked] == reviewed
        assert not servers.answered

    play(story, monkeypatch, kubelet)


@played()
async def test_a_token_shows_a_user_and_the_cluster_says_what_the_user_may(
    servers: Servers,
) -> None:
    servers.cluster.allowed["healthz"] = {"allowed": True}
    for scheme in ("Bearer", "bearer", " Bearer "):
        assert await servers.connect(1).ask("/healthz", f"{scheme} adas ") == 200
    assert servers.answered == ["n-1/healthz"] * 3
    token, access = servers.cluster.specs
    assert token == {"token": "adas"}
    attributes = {"verb": "get", "version": "v1", "resource": "nodes", "name": "n-1"}
    assert access == {
        "resourceAttributes": {**attributes, "subresource": "healthz"},
        "user": "ada",
        "uid": "7",
        "groups": ADAS_GROUPS,
        "extra": {"team": ["a", "b"]},
    }


@played()
async def test_a_certificate_goes_before_a_token(servers: Servers) -> None:
    servers.cluster.allowed["healthz"] = {"allowed": True}
    client = servers.connect(0, CERTIFICATE)
    assert await client.ask("/healthz", BEARER) == 200
    assert await client.ask("/healthz") == 200
    (access,) = servers.cluster.specs
    assert (access["user"], access["groups"]) == ("bob", ["ops", "system:authenticated"])


@played(authentication={"anonymous": {"enabled": True}})
async def test_anonymous_requests_are_somebodys_where_the_profile_says_so(servers: Servers) -> None:
    assert await servers.connect().ask("/healthz") == 403
    assert await servers.connect().ask("/healthz", "Bearer nobodys") == 401
    access = servers.cluster.specs[0]
    assert (access["user"], access["groups"]) == ("system:anonymous", ["system:unauthenticated"])


@played(authorization={"mode": "AlwaysAllow"})
async def test_always_allow_still_asks_who(servers: Servers) -> None:
    assert await servers.connect().ask("/exec/a/b/c", "Bearer nobodys", "POST") == 401
    assert await servers.connect().ask("/exec/a/b/c", BEARER, "POST") == 200
    assert [what for _, what in servers.cluster.asked] == ["token", "token"]


# ---- what they may ----


@pytest.mark.parametrize(
    ("path", "method", "allowed", "gates", "code", "reviewed"),
    [
        ("/pods", "GET", ("pods",), {}, 200, ["pods"]),
        ("/pods", "GET", ("proxy",), {}, 200, ["pods", "proxy"]),
        ("/pods", "GET", ("pods",), {"KubeletFineGrainedAuthz": False}, 403, ["proxy"]),
        ("/pods", "GET", ("stats",), {}, 403, ["pods", "proxy"]),
        ("/stats/summary", "GET", ("proxy",), {}, 403, ["stats"]),
        ("/exec/a/b/c", "POST", ("pods",), {}, 403, ["proxy"]),
        ("/exec/a/b/c", "POST", ("proxy",), {}, 200, ["proxy"]),
        ("/nothing", "GET", (), {}, 404, []),
        ("/stats/nothing", "GET", (), {}, 403, ["stats"]),
        ("/stats/nothing", "GET", ("stats",), {}, 404, ["stats"]),
        ("/logs/messages", "GET", ("log",), {}, 404, ["log"]),
        ("/run/a/b/c", "POST", (), {}, 403, ["proxy"]),
    ],
)
def test_each_path_is_a_right(
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    method: str,
    allowed: tuple[str, ...],
    gates: Json,
    code: int,
    reviewed: list[str],
) -> None:
    async def story(servers: Servers) -> None:
        servers.cluster.allowed = {key: {"allowed": True} for key in allowed}
        client = servers.connect()
        assert await client.ask(path, BEARER, method) == code
        if code == 403:
            verb = {"GET": "get", "POST": "create"}[method]
            assert client.said == (
                f"Forbidden (user=ada, verb={verb}, resource=nodes, "
                f"subresource(s)=[{' '.join(reviewed)}])\n"
            )
        assert [what for _, what in servers.cluster.asked][1:] == reviewed
        assert servers.answered == [f"n-0{path}"] * (code == 200)

    play(story, monkeypatch, {"featureGates": gates})


@pytest.mark.parametrize(
    "status", [{}, {"allowed": False}, {"allowed": True, "denied": True}, {"allowed": None}]
)
@played()
async def test_only_a_yes_is_a_yes(servers: Servers, status: Json) -> None:
    servers.cluster.allowed["proxy"] = status
    assert await servers.connect().ask("/exec/a/b/c", BEARER, "POST") == 403
    assert not servers.answered


@played()
async def test_without_an_answer_of_the_cluster_nobody_gets_in_and_nothing_is_kept(
    servers: Servers,
) -> None:
    cluster = servers.cluster
    cluster.allowed["healthz"] = {"allowed": True}
    client = servers.connect()
    cluster.code = 403
    assert await client.ask("/healthz", BEARER) == 401
    cluster.code = 201
    cluster.tokens["adas"], known = {"authenticated": True}, cluster.tokens["adas"]
    assert await client.ask("/healthz", BEARER) == 401
    cluster.tokens["adas"] = known
    assert await client.ask("/healthz", BEARER) == 200
    cluster.code = 500
    assert await servers.connect(1).ask("/healthz", BEARER) == 401
    cluster.code = 422
    bob = servers.connect(0, CERTIFICATE)
    assert await bob.ask("/healthz") == 500
    assert bob.said == (
        "Authorization error (user=bob, verb=get, resource=nodes, subresource=healthz)"
    )
    cluster.code = 201
    assert await bob.ask("/healthz") == 200


# ---- for how long, and of which node ----


@played()
async def test_answers_are_good_for_as_long_as_a_kubelet_keeps_them(servers: Servers) -> None:
    cluster = servers.cluster
    cluster.allowed["healthz"] = {"allowed": True}

    async def asked_at(path: str, seconds: float) -> list[str]:
        await asyncio.sleep(began_s + seconds - servers.sim.now_s)
        cluster.asked.clear()
        await servers.connect().ask(path, BEARER)
        return [what for _, what in cluster.asked]

    began_s = servers.sim.now_s
    assert await asked_at("/healthz", 0) == ["token", "healthz"]
    assert await asked_at("/metrics", 1) == ["metrics"]
    assert await asked_at("/metrics", 30) == [], "a no"
    assert await asked_at("/metrics", 32) == ["metrics"]
    assert await asked_at("/healthz", 119) == [], "a token"
    assert await asked_at("/healthz", 121) == ["token"]
    assert await asked_at("/healthz", 299) == ["token"], "a yes"
    assert await asked_at("/healthz", 301) == ["healthz"]


@played()
async def test_scrapes_at_the_same_time_share_the_review_of_their_token(servers: Servers) -> None:
    """Source: cached_token_authenticator.go, doAuthenticateToken. Accesses have no such group."""
    await asyncio.gather(*(servers.connect().ask("/metrics", BEARER) for _ in range(3)))
    assert [what for _, what in servers.cluster.asked] == ["token", *["metrics"] * 3]


@played()
async def test_what_one_node_knows_lets_nobody_into_another(servers: Servers) -> None:
    servers.cluster.allowed["healthz"] = {"allowed": True}
    assert await servers.connect(0).ask("/healthz", BEARER) == 200
    servers.cluster.allowed.clear()
    assert await servers.connect(1).ask("/healthz", BEARER) == 403
    assert await servers.connect(0).ask("/healthz", BEARER) == 200
    first, second = NodeId(0), NodeId(1)
    assert servers.cluster.asked == [
        *((first, "token"), (first, "healthz")),
        *((second, "token"), (second, "healthz"), (second, "proxy")),
    ]


def test_a_node_without_a_server_is_not_there() -> None:
    servers = Servers(enableServer=False)
    assert servers.serving(servers.sim.model) == NOWHERE


# ---- what goes wrong ----


@played()
async def test_a_machine_that_is_off_resets_connections(servers: Servers) -> None:
    servers.cluster.allowed["healthz"] = {"allowed": True}
    for client in (servers.connect(2), servers.connect(3)):
        assert await client.ask("/healthz", BEARER) == 0
        assert client.transport.is_closed
    assert not servers.cluster.asked
    client = servers.connect(0)
    servers.error = NodeGoneError(NodeId(0))
    assert await client.ask("/healthz", BEARER) == 0
    assert client.transport.is_closed


@played()
async def test_a_bug_answers_one_request_with_500(servers: Servers) -> None:
    servers.cluster.allowed["healthz"] = {"allowed": True}
    servers.error = BugError("KeyError('x')")
    client = servers.connect()
    assert await client.ask("/healthz", BEARER) == 500
    assert client.said == "Internal Error: KeyError('x')"
    servers.error = None
    assert await client.ask("/healthz", BEARER) == 200


# ---- where ----


def test_which_nodes_have_a_server() -> None:
    """On loopback only those whose addresses are on this machine."""
    ours, others = model_of(), model_of(addressPool="10.9.0.0/16")
    auto = Settings.from_options(nodes=3)
    assert KubeletServers(auto, is_local=False).serving(ours) == NOWHERE
    ports = Settings.from_options(nodes=3, serve="ports", serve_at="10.0.0.1:7000")
    found = KubeletServers(ports, is_local=False).serving(others)
    assert [(found.address_of(at), found.port_of(at)) for at in (0, 2)] == [
        ("10.0.0.1", 7000),
        ("10.0.0.1", 7002),
    ]
    loopback = KubeletServers(auto, is_local=True, address_shift=5)
    assert loopback.serving(others) == NOWHERE
    loopback.open([ours, others])
    try:
        at = loopback.serving(ours)
        assert at.address_of(0) == "127.128.0.6"
        loopback._node_host = cast("Any", SimpleNamespace(node_at=lambda index: (index, "")))
        assert loopback.named("127.128.0.7", at.port) == (NodeId(1), "")
    finally:
        loopback.stop()
    assert not loopback._sockets


def test_the_ports_that_are_named_are_listened_at() -> None:
    first = free_port(ports := 3)
    settings = Settings.from_options(nodes=3, serve="ports", serve_at=f"127.0.0.1:{first}")
    servers = KubeletServers(settings, is_local=False)
    servers.open([model_of()])
    try:
        for port in range(first, first + ports):
            socket.create_connection(("127.0.0.1", port)).close()
        assert len(servers._sockets) == ports
        servers._node_host = cast("Any", SimpleNamespace(node_at=lambda index: (index, "")))
        found = [servers.named("127.0.0.1", first + at) for at in range(ports)]
        assert found == [(at, "") for at in range(ports)]
        with pytest.raises(SetupError, match=r"127\.0\.0\.1 port \d+: Address already in use"):
            KubeletServers(settings, is_local=False).open([model_of()])
    finally:
        servers.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", first))


def test_a_node_shows_the_certificate_that_its_profile_names(tmp_path: Path) -> None:
    path = tmp_path / "serving.pem"
    store = cast("Any", SimpleNamespace(path=lambda name, kind: path / name / kind.name))
    files = {"tlsCertFile": "/c.pem", "tlsPrivateKeyFile": "/k.pem"}
    for kubelet, has_store, found in (
        ({}, True, None),
        ({"serverTLSBootstrap": True}, False, None),
        ({"serverTLSBootstrap": True}, True, (path / "n-0" / "SERVING", None)),
        ({"tlsCertFile": "/c.pem"}, True, None),
        ({**files, "serverTLSBootstrap": True}, True, (Path("/c.pem"), Path("/k.pem"))),
    ):
        servers = Servers(**kubelet)
        servers._store = store if has_store else None
        assert servers._chain_of("n-0") == found, kubelet
