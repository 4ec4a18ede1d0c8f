"""TLS and HTTP over loopback, to a server whose certificate is made here."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from support.connect_proxy import ConnectProxy
from world.cluster_fakes import no_sleep
from world.tls_server import TlsServer
from world.tls_server import certificate as certificate  # noqa: PLC0414 - a fixture
from world.tls_server import server as server  # noqa: PLC0414 - a fixture

from fleet import __version__
from fleet.cluster.api_client import Answer, Cluster, check_http2, read_version
from fleet.cluster.credentials import ClusterSelection
from fleet.errors import SetupError


async def test_a_server_that_speaks_h2_passes(server: TlsServer) -> None:
    async with server.serving(alpn="h2") as port:
        await check_http2(await server.selection(port).load())


@pytest.mark.parametrize("by", ["proxy-url", "HTTPS_PROXY"])
async def test_a_proxy_leads_to_the_server(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """All that fleet itself asks: the look for HTTP/2, and requests by HTTP/1.1."""

    async def version(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"gitVersion": "v1.36.3", "major": "1", "minor": "36"})

    # Of a name the proxy is asked, of localhost never by the environment.
    monkeypatch.setattr("fleet.cluster.kubeconfig._is_local", lambda *_: False)
    with ConnectProxy() as proxy:
        named: dict[str, Any] = {by: proxy.url.replace("//", "//me:pass%20word@")}
        facts, environ = (named, {}) if by == "proxy-url" else ({}, named)
        async with server.serving(version, "h2") as port:
            await check_http2(await server.selection(port, **facts).load(environ))
        async with server.serving(version) as http1:
            credentials = await server.selection(http1, **facts).load(environ)
            async with Cluster(credentials) as channel:
                assert await read_version(channel.api("test"), credentials) == "v1.36.3"
        assert proxy.asked == [f"127.0.0.1:{port}", f"127.0.0.1:{http1}"]
        assert {*proxy.authorizations} == {"Basic bWU6cGFzcyB3b3Jk"}


async def test_a_proxy_that_refuses_is_told_by_name(server: TlsServer) -> None:
    with ConnectProxy(407) as proxy:
        facts: dict[str, Any] = {"proxy-url": proxy.url}
        with pytest.raises(SetupError, match="the proxy answered 407 Auth Required to CONNECT"):
            await Cluster.connect(server.selection(1, **facts))


@pytest.mark.parametrize(
    ("alpn", "facts", "said"),
    [
        ("http/1.1", {}, "does not speak HTTP/2"),
        ("h2", {"is_trusted": False}, "certificate verify failed.*another cluster"),
        (
            "h2",
            {"is_trusted": False, "insecure-skip-tls-verify": False},
            "certificate verify failed.*another cluster",
        ),
        ("h2", {"tls-server-name": "other"}, "certificate verify failed: Hostname mismatch"),
    ],
)
async def test_another_server_than_the_kubeconfig_s_is_refused(
    server: TlsServer, alpn: str, facts: dict[str, Any], said: str
) -> None:
    async with server.serving(alpn=alpn) as port:
        with pytest.raises(SetupError, match=said):
            await Cluster.connect(server.selection(port, **facts))


async def test_skipping_verification_is_honoured_with_a_loud_warning(
    server: TlsServer, caplog: pytest.LogCaptureFixture
) -> None:
    facts: dict[str, Any] = {"is_trusted": False, "insecure-skip-tls-verify": True}
    with caplog.at_level(logging.WARNING):
        async with server.serving(alpn="h2") as port:
            await check_http2(await server.selection(port, **facts).load())
    assert "CERTIFICATES ARE NOT VERIFIED" in caplog.text


async def test_a_refused_connection_names_the_address(server: TlsServer) -> None:
    with pytest.raises(SetupError, match=r"127.0.0.1:1: connection refused"):
        await Cluster.connect(server.selection(1))


async def test_plain_http_is_recognised(server: TlsServer) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        with pytest.raises(SetupError, match=r"no connection to .*plain HTTP"):
            await check_http2(await server.selection(port).load())


async def test_requests_carry_purpose_and_token_and_are_counted(server: TlsServer) -> None:
    seen: list[tuple[str, str]] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.headers["User-Agent"], request.headers["Authorization"]))
        return web.json_response({"a": 1})

    answer, channel = await server.ask(handler)
    assert answer.ok
    assert answer.body == {"a": 1}
    assert answer.date_s > 0
    assert seen == [(f"fleet/{__version__} (preflight)", "Bearer t")]
    assert channel.requests == {"preflight": 1}


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_an_overloaded_server_is_asked_again(server: TlsServer, code: int) -> None:
    codes = [code, code, 200]

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({}, status=codes.pop(0), headers={"Retry-After": "1"})

    answer, channel = await server.ask(handler)
    assert answer.code == 200
    assert channel.requests["preflight"] == 3


async def test_an_answer_that_stays_bad_is_returned(server: TlsServer) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503, text="try later")

    answer, channel = await server.ask(handler)
    assert (answer.code, answer.message) == (503, "try later")
    assert channel.requests["preflight"] == 6


class Watch:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept.append(seconds)

    async def ask(self, selection: ClusterSelection) -> Answer:
        """Ask with the patience of a clean-up."""
        async with Cluster(await selection.load(), self.sleep, lambda: self.now_s) as channel:
            return await channel.api("cleanup", patience_s=60.0).request("GET", "/x")


async def test_patience_outlasts_a_server_that_is_gone_for_a_while(server: TlsServer) -> None:
    """Refused, in order again but still reading its roles, overloaded, then well."""
    codes = [503, 403, 429, 200]

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({}, status=codes.pop(0), headers={"Retry-After": "7"})

    class Comeback(Watch):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            if len(self.slept) == 5:
                await again.enter_async_context(server.serving(handler, port=port))

    watch = Comeback()
    async with server.serving() as port:
        pass
    async with contextlib.AsyncExitStack() as again:
        assert (await watch.ask(server.selection(port))).code == 200
    assert watch.slept[5:] == [7.0, 7.0, 7.0]


async def test_patience_ends_after_its_minute(server: TlsServer) -> None:
    watch = Watch()
    async with server.serving() as port:
        pass
    with pytest.raises(SetupError, match=f"127.0.0.1:{port}: connection refused"):
        await watch.ask(server.selection(port))
    assert sum(watch.slept) == pytest.approx(60.0)
    assert max(watch.slept) == 5.0


async def test_who_is_forbidden_without_an_outage_waits_for_nothing(server: TlsServer) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"message": "no"}, status=403)

    watch = Watch()
    async with server.serving(handler) as port:
        assert (await watch.ask(server.selection(port))).code == 403
    assert not watch.slept


async def test_a_401_says_that_the_credentials_are_refused(server: TlsServer) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"message": "Unauthorized"}, status=401)

    with pytest.raises(
        SetupError, match=r"401, the credentials of context test are refused"
    ) as said:
        await server.ask(handler)
    assert "\n" not in str(said.value)


async def test_a_401_renews_the_token_and_goes_on(server: TlsServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        token.write_text("new\n")
        is_new = request.headers["Authorization"] == "Bearer new"
        return web.json_response({}, status=200 if is_new else 401)

    async with server.serving(handler) as port:
        selection = server.selection(port)
        assert selection.kubeconfig is not None
        document = yaml.safe_load(selection.kubeconfig.read_text())
        document["users"][0]["user"] = {"tokenFile": str(token)}
        selection.kubeconfig.write_text(yaml.safe_dump(document))
        async with Cluster(await selection.load(), no_sleep) as channel:
            assert (await channel.api("x").request("GET", "/x")).code == 200


async def test_a_lost_connection_is_tried_again_then_told(server: TlsServer) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    with pytest.raises(SetupError, match=r"127.0.0.1:\d+: "):
        await server.ask(handler)


async def version_of(server: TlsServer, body: object) -> str:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(body)

    async with server.connected(handler) as channel:
        return await read_version(channel.api("x"), channel.credentials)


@pytest.mark.parametrize(("minor", "version"), [("36", "v1.36.3"), ("33+", "v1.33.9-eks")])
async def test_versions(server: TlsServer, minor: str, version: str) -> None:
    body = {"major": "1", "minor": minor, "gitVersion": version}
    assert await version_of(server, body) == version


async def test_something_that_is_no_api_server_is_recognised(server: TlsServer) -> None:
    with pytest.raises(SetupError, match="not a Kubernetes API server"):
        await version_of(server, [1])
