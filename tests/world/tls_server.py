"""A server on loopback with TLS and HTTP/1.1, and the kubeconfig of a user who knows it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import pytest
from aiohttp import web

from fleet.cluster.api_client import Answer, Cluster, Sleep
from fleet.cluster.credentials import ClusterSelection
from fleet.controlplane.pki import SelfSigned
from world.cluster_fakes import no_sleep, write_kubeconfig

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def not_asked(_request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nobody asks anything")


class TlsServer:
    """What it answers is the test's; its certificate is for 127.0.0.1."""

    def __init__(self, folder: Path, certificate: Path) -> None:
        self._folder = folder
        self.certificate = certificate
        self.context = SSLContext(PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate)

    @asynccontextmanager
    async def serving(
        self, handler: Handler = not_asked, alpn: str = "http/1.1", port: int = 0
    ) -> AsyncIterator[int]:
        """Serve; return the port."""
        self.context.set_alpn_protocols([alpn])
        runner = web.ServerRunner(web.Server(handler))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=self.context)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()
            # A connection whose handshake has not ended is nobody's yet: cleanup does not know it.
            async with asyncio.timeout(60):
                while getattr(site._server, "_active_count", 0):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    def selection(self, port: int, *, is_trusted: bool = True, **cluster: Any) -> ClusterSelection:
        """Select the cluster behind a port."""
        facts: dict[str, Any] = {"server": f"https://127.0.0.1:{port}", **cluster}
        if is_trusted:
            facts["certificate-authority"] = str(self.certificate)
        path = write_kubeconfig(self._folder / "k", facts, {"token": "t"})
        return ClusterSelection(kubeconfig=path)

    @asynccontextmanager
    async def connected(self, handler: Handler, sleep: Sleep = no_sleep) -> AsyncIterator[Cluster]:
        """Serve, and connect to the server."""
        async with (
            self.serving(handler) as port,
            Cluster(await self.selection(port).load(), sleep) as channel,
        ):
            yield channel

    async def ask(self, handler: Handler, sleep: Sleep = no_sleep) -> tuple[Answer, Cluster]:
        """Ask the server one thing; return the answer, and who asked."""
        async with self.connected(handler, sleep) as channel:
            return await channel.api("preflight").request("GET", "/x"), channel


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(SelfSigned().pem("127.0.0.1"))
    return path


@pytest.fixture
def server(tmp_path: Path, certificate: Path) -> TlsServer:
    return TlsServer(tmp_path, certificate)
