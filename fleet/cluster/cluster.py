"""The target cluster: who was named, what it speaks, and fleet's own requests to it.

Never on a per-node path: the wire engine takes TLS context, authorization and the address from the
credentials and speaks for the nodes itself.
"""

import asyncio
import re
import socket
import ssl
from collections import Counter
from typing import Self

from fleet.cluster.api_client import (
    CONNECT_TIMEOUT_S,
    Api,
    Channel,
    describe_failure,
    expect,
)
from fleet.cluster.credentials import ClusterSelection, Credentials
from fleet.errors import SetupError
from fleet.wire.sockets.tunnel import END, Proxy, refusal_of

__all__ = ["Cluster", "ClusterSelection"]


class Cluster:
    """A cluster that was named, reached and found to speak HTTP/2."""

    def __init__(self, credentials: Credentials, channel: Channel, version: str) -> None:
        self.credentials = credentials
        self.version = version  # of its API server, as v1.36.3
        self._channel = channel

    @classmethod
    async def connect(cls, selection: ClusterSelection) -> Self:
        """Load the credentials, reach the server and ask its version.

        Raises UsageError on a bad selection; SetupError, in one line, when the server cannot be
        reached, speaks no HTTP/2 or refuses the credentials.
        """
        credentials = await selection.load()
        await check_http2(credentials)
        channel = Channel(credentials)
        try:
            version = await read_version(channel.api("preflight"), credentials)
        except BaseException:
            await channel.close()
            raise
        return cls(credentials, channel, version)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close fleet's own connections."""
        await self._channel.close()

    def api(self, purpose: str, user_agent: str = "", patience_s: float = 0.0) -> Api:
        """Return fleet's own requests of one purpose: preflight, adopt, cleanup, ..."""
        return self._channel.api(purpose, user_agent, patience_s)

    def go_gently(self) -> None:
        """Make one call at a time from now on, more as good answers come."""
        self._channel.go_gently()

    @property
    def requests(self) -> Counter[str]:
        """Return how many requests fleet made for itself, by purpose."""
        return self._channel.requests

    async def refresh(self) -> None:
        """Renew credentials that are about to expire. Raises SetupError once they have."""
        await self._channel.renewal.renew()

    @property
    def lacked_credentials(self) -> bool:
        """Return whether requests failed because no plugin or file gave new credentials."""
        return self._channel.renewal.has_failed


async def check_http2(credentials: Credentials) -> None:
    """Make one TLS connection. Raises SetupError if it fails or the server chooses no `h2`."""
    try:
        writer = await _connect(credentials)
    except OSError as error:
        raise SetupError(
            f"context {credentials.context}: no connection to {credentials.address}: "
            f"{describe_failure(error)}{_hint(error)}"
        ) from error
    protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.transport.abort()
    if protocol != "h2":
        raise SetupError(
            f"context {credentials.context}: {credentials.address} does not speak HTTP/2 (ALPN "
            f"chose {protocol or 'nothing'}); fleet needs it, as kubelets do: connect to the API "
            "server itself, not to a proxy before it"
        )


async def _connect(credentials: Credentials) -> asyncio.StreamWriter:
    """Connect to the first address of the server that answers, each in its part of the time.

    Raises OSError, of the last address.
    """
    context = credentials.ssl_context()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        at = credentials.proxy or credentials
        found = await loop.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)
    for rest, (_, _, _, _, (address, *_)) in zip(range(len(found) - 1, -1, -1), found, strict=True):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S / len(found)):
                reader, writer = await asyncio.open_connection(str(address), at.port)
                if credentials.proxy is not None:
                    await _pass(credentials.proxy, credentials.address, reader, writer)
                await writer.start_tls(context, server_hostname=credentials.server_name)
        except OSError:
            if not rest:
                raise
        else:
            return writer
    raise AssertionError("a name without addresses is an error of getaddrinfo")


async def _pass(
    proxy: Proxy, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Go through a proxy. Raises OSError."""
    writer.write(proxy.connect(address.encode("idna")))
    try:
        why = refusal_of(await reader.readuntil(END))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        why = "the proxy closed the connection before it answered CONNECT"
    if why:
        writer.transport.abort()
        raise OSError(why)


async def read_version(api: Api, credentials: Credentials) -> str:
    """Return the version of the server. Raises SetupError if it does not say who it is."""
    body = expect(await api.request("GET", "/version"), f"{credentials.address}: no /version")
    if not all(re.match(r"\d", str(body.get(key, ""))) for key in ("major", "minor")):
        raise SetupError(f"{credentials.address}: /version is not a Kubernetes API server's")
    return str(body.get("gitVersion", ""))


def _hint(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return " (is this kubeconfig of another cluster, or its certificate-authority outdated?)"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return " (does the port speak plain HTTP?)"
    return ""
