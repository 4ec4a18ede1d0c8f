"""TLS and HTTP over loopback, to a server whose certificate is made here."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.connect_proxy import ConnectProxy
from world.cluster_fakes import no_sleep, write_kubeconfig

from fleet import __version__
from fleet.cluster.api_client import Answer, Cluster, Sleep, check_http2, read_version
from fleet.cluster.credentials import ClusterSelection
from fleet.errors import SetupError

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake API server")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=36_500))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


@asynccontextmanager
async def serving(
    certificate: Path, handler: Handler, alpn: str = "http/1.1", port: int = 0
) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols([alpn])
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        # A connection whose handshake has not ended is nobody's yet: cleanup does not know it.
        async with asyncio.timeout(60):
            while getattr(site._server, "_active_count", 0):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def not_asked(_request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nobody asks anything")


def kubeconfig_for(tmp_path: Path, port: int, certificate: Path | None, **cluster: Any) -> Path:
    facts: dict[str, Any] = {"server": f"https://127.0.0.1:{port}", **cluster}
    if certificate is not None:
        facts["certificate-authority"] = str(certificate)
    return write_kubeconfig(tmp_path / "k", facts, {"token": "t"})


@asynccontextmanager
async def connected(
    tmp_path: Path, certificate: Path, handler: Handler, sleep: Sleep = no_sleep
) -> AsyncIterator[Cluster]:
    """Serve, and connect to the server."""
    async with serving(certificate, handler) as port:
        path = kubeconfig_for(tmp_path, port, certificate)
        async with Cluster(await ClusterSelection(kubeconfig=path).load(), sleep) as channel:
            yield channel


async def test_a_server_that_speaks_h2_passes(tmp_path: Path, certificate: Path) -> None:
    async with serving(certificate, not_asked, "h2") as port:
        path = kubeconfig_for(tmp_path, port, certificate)
        await check_http2(await ClusterSelection(kubeconfig=path).load())


@pytest.mark.parametrize("by", ["proxy-url", "HTTPS_PROXY"])
def test_a_proxy_leads_to_the_server(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """All that fleet itself asks: the look for HTTP/2, and requests by HTTP/1.1."""

    async def version(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"gitVersion": "v1.36.3", "major": "1", "minor": "36"})

    # Of a name the proxy is asked, of localhost never by the environment.
    monkeypatch.setattr("fleet.cluster.kubeconfig._is_local", lambda *_: False)

    async def scenario(proxy: ConnectProxy) -> None:
        url = proxy.url.replace("//", "//me:pass%20word@")
        facts = {by: url} if by == "proxy-url" else {}
        environ = {} if by == "proxy-url" else {by: url}
        async with serving(certificate, version, "h2") as port:
            path = kubeconfig_for(tmp_path, port, certificate, **facts)
            await check_http2(await ClusterSelection(kubeconfig=path).load(environ))
        async with serving(certificate, version) as http1:
            path = kubeconfig_for(tmp_path, http1, certificate, **facts)
            credentials = await ClusterSelection(kubeconfig=path).load(environ)
            async with Cluster(credentials) as channel:
                assert await read_version(channel.api("test"), credentials) == "v1.36.3"
        assert proxy.asked == [f"127.0.0.1:{port}", f"127.0.0.1:{http1}"]
        assert len(set(proxy.authorizations)) == 1
        assert proxy.authorizations[0] == "Basic bWU6cGFzcyB3b3Jk"

    with ConnectProxy() as proxy:
        asyncio.run(scenario(proxy))


def test_a_proxy_that_refuses_is_told_by_name(tmp_path: Path, certificate: Path) -> None:
    with ConnectProxy(407) as proxy:
        path = kubeconfig_for(tmp_path, 1, certificate, **{"proxy-url": proxy.url})
        with pytest.raises(SetupError, match="the proxy answered 407 Auth Required to CONNECT"):
            asyncio.run(Cluster.connect(ClusterSelection(kubeconfig=path)))


async def test_a_server_without_h2_is_refused(tmp_path: Path, certificate: Path) -> None:
    async with serving(certificate, not_asked) as port:
        path = kubeconfig_for(tmp_path, port, certificate)
        with pytest.raises(SetupError, match="does not speak HTTP/2"):
            await Cluster.connect(ClusterSelection(kubeconfig=path))


@pytest.mark.parametrize("flags", [{}, {"insecure-skip-tls-verify": False}])
async def test_certificates_are_always_verified(
    tmp_path: Path, certificate: Path, flags: dict[str, Any]
) -> None:
    async with serving(certificate, not_asked, "h2") as port:
        path = kubeconfig_for(tmp_path, port, None, **flags)
        with pytest.raises(SetupError, match=r"certificate verify failed.*another cluster"):
            await Cluster.connect(ClusterSelection(kubeconfig=path))


async def test_the_name_in_the_certificate_is_checked(tmp_path: Path, certificate: Path) -> None:
    async with serving(certificate, not_asked, "h2") as port:
        path = kubeconfig_for(tmp_path, port, certificate, **{"tls-server-name": "other"})
        with pytest.raises(SetupError, match=r"certificate verify failed: Hostname mismatch"):
            await Cluster.connect(ClusterSelection(kubeconfig=path))


def test_skipping_verification_is_honoured_with_a_loud_warning(
    tmp_path: Path, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(certificate, not_asked, "h2") as port:
            path = kubeconfig_for(tmp_path, port, None, **{"insecure-skip-tls-verify": True})
            await check_http2(await ClusterSelection(kubeconfig=path).load())

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "CERTIFICATES ARE NOT VERIFIED" in caplog.text


def test_a_refused_connection_names_the_address(tmp_path: Path, certificate: Path) -> None:
    path = kubeconfig_for(tmp_path, 1, certificate)
    with pytest.raises(SetupError, match=r"127.0.0.1:1: connection refused"):
        asyncio.run(Cluster.connect(ClusterSelection(kubeconfig=path)))


async def test_plain_http_is_recognised(tmp_path: Path, certificate: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = kubeconfig_for(tmp_path, port, certificate)
    with pytest.raises(SetupError, match=r"no connection to .*plain HTTP"):
        await check_http2(await ClusterSelection(kubeconfig=path).load())
    server.close()
    await server.wait_closed()


def ask(tmp_path: Path, certificate: Path, handler: Handler) -> tuple[Answer, Cluster]:
    async def scenario() -> tuple[Answer, Cluster]:
        async with connected(tmp_path, certificate, handler) as channel:
            return await channel.api("preflight").request("GET", "/x"), channel

    return asyncio.run(scenario())


def test_requests_carry_purpose_and_token_and_are_counted(
    tmp_path: Path, certificate: Path
) -> None:
    seen: list[tuple[str, str]] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.headers["User-Agent"], request.headers["Authorization"]))
        return web.json_response({"a": 1})

    answer, channel = ask(tmp_path, certificate, handler)
    assert answer.ok
    assert answer.body == {"a": 1}
    assert answer.date_s > 0
    assert seen == [(f"fleet/{__version__} (preflight)", "Bearer t")]
    assert channel.requests == {"preflight": 1}


@pytest.mark.parametrize("code", [429, 500, 503])
def test_an_overloaded_server_is_asked_again(tmp_path: Path, certificate: Path, code: int) -> None:
    codes = [code, code, 200]

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({}, status=codes.pop(0), headers={"Retry-After": "1"})

    answer, channel = ask(tmp_path, certificate, handler)
    assert answer.code == 200
    assert channel.requests["preflight"] == 3


def test_an_answer_that_stays_bad_is_returned(tmp_path: Path, certificate: Path) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503, text="try later")

    answer, channel = ask(tmp_path, certificate, handler)
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


async def ask_patiently(path: Path, watch: Watch) -> Answer:
    credentials = await ClusterSelection(kubeconfig=path).load()
    async with Cluster(credentials, watch.sleep, lambda: watch.now_s) as channel:
        return await channel.api("cleanup", patience_s=60.0).request("GET", "/x")


def test_patience_outlasts_a_server_that_is_gone_for_a_while(
    tmp_path: Path, certificate: Path
) -> None:
    """Refused, in order again but still reading its roles, overloaded, then well."""
    codes = [503, 403, 429, 200]

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({}, status=codes.pop(0), headers={"Retry-After": "7"})

    async def scenario() -> tuple[Answer, Watch]:
        watch = Watch()
        async with serving(certificate, not_asked) as port:
            path = kubeconfig_for(tmp_path, port, certificate)
        again = contextlib.AsyncExitStack()

        async def sleep(seconds: float) -> None:
            await Watch.sleep(watch, seconds)
            if len(watch.slept) == 5:
                await again.enter_async_context(serving(certificate, handler, port=port))

        watch.sleep = sleep  # type: ignore[method-assign]
        async with again:
            return await ask_patiently(path, watch), watch

    answer, watch = asyncio.run(scenario())
    assert answer.code == 200
    assert watch.slept[5:] == [7.0, 7.0, 7.0]


def test_patience_ends_after_its_minute(tmp_path: Path, certificate: Path) -> None:
    async def scenario(watch: Watch) -> None:
        async with serving(certificate, not_asked) as port:
            path = kubeconfig_for(tmp_path, port, certificate)
        with pytest.raises(SetupError, match=f"127.0.0.1:{port}: connection refused"):
            await ask_patiently(path, watch)

    watch = Watch()
    asyncio.run(scenario(watch))
    assert sum(watch.slept) == pytest.approx(60.0)
    assert max(watch.slept) == 5.0


@pytest.mark.parametrize(
    ("asked", "slept"), [("30", 30.0), ("86400", 0.3), ("9" * 400, 0.3), ("-1", 0.3)]
)
def test_a_retry_after_beyond_sense_is_ignored(
    tmp_path: Path, certificate: Path, asked: str, slept: float
) -> None:
    codes = [503, 200]

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({}, status=codes.pop(0), headers={"Retry-After": asked})

    async def scenario(watch: Watch) -> None:
        async with serving(certificate, handler) as port:
            await ask_patiently(kubeconfig_for(tmp_path, port, certificate), watch)

    watch = Watch()
    asyncio.run(scenario(watch))
    assert watch.slept == [pytest.approx(slept)]


def test_who_is_forbidden_without_an_outage_waits_for_nothing(
    tmp_path: Path, certificate: Path
) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"message": "no"}, status=403)

    async def scenario(watch: Watch) -> Answer:
        async with serving(certificate, handler) as port:
            return await ask_patiently(kubeconfig_for(tmp_path, port, certificate), watch)

    watch = Watch()
    assert asyncio.run(scenario(watch)).code == 403
    assert not watch.slept


def test_a_401_says_that_the_credentials_are_refused(tmp_path: Path, certificate: Path) -> None:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"message": "Unauthorized"}, status=401)

    with pytest.raises(
        SetupError, match=r"401, the credentials of context test are refused"
    ) as said:
        ask(tmp_path, certificate, handler)
    assert "\n" not in str(said.value)


def test_a_401_renews_the_token_and_goes_on(tmp_path: Path, certificate: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        token.write_text("new\n")
        is_new = request.headers["Authorization"] == "Bearer new"
        return web.json_response({}, status=200 if is_new else 401)

    async def scenario() -> int:
        async with serving(certificate, handler) as port:
            path = kubeconfig_for(tmp_path, port, certificate)
            document = yaml.safe_load(path.read_text())
            document["users"][0]["user"] = {"tokenFile": str(token)}
            path.write_text(yaml.safe_dump(document))
            credentials = await ClusterSelection(kubeconfig=path).load()
            async with Cluster(credentials, no_sleep) as channel:
                return (await channel.api("x").request("GET", "/x")).code

    assert asyncio.run(scenario()) == 200


def test_a_lost_connection_is_tried_again_then_told(tmp_path: Path, certificate: Path) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    with pytest.raises(SetupError, match=r"127.0.0.1:\d+: "):
        ask(tmp_path, certificate, handler)


def version_of(tmp_path: Path, certificate: Path, body: object) -> str:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(body)

    async def scenario() -> str:
        async with connected(tmp_path, certificate, handler) as channel:
            return await read_version(channel.api("x"), channel.credentials)

    return asyncio.run(scenario())


@pytest.mark.parametrize(("minor", "version"), [("36", "v1.36.3"), ("33+", "v1.33.9-eks")])
def test_versions(tmp_path: Path, certificate: Path, minor: str, version: str) -> None:
    body = {"major": "1", "minor": minor, "gitVersion": version}
    assert version_of(tmp_path, certificate, body) == version


def test_something_that_is_no_api_server_is_recognised(tmp_path: Path, certificate: Path) -> None:
    with pytest.raises(SetupError, match="not a Kubernetes API server"):
        version_of(tmp_path, certificate, [1])
