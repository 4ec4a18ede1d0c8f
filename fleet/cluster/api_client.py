"""What fleet itself asks of the target cluster: few requests, raw JSON, retried, counted apart.

Everything here is off the hot path: the wire engine takes TLS context, authorization and address
from the credentials and speaks for the nodes itself. A request goes out under
`fleet/<version> (<purpose>)`, so that audit logs and metrics show preflight, adoption and clean-up
apart from the kubelets' traffic. Answers are raw dictionaries: the typed models of
kubernetes-asyncio cost about 1 ms per node, which is seconds for a list of 5,000.
"""

import asyncio
import contextlib
import datetime as dt
import itertools
import logging
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import orjson

from fleet import __version__
from fleet.cluster.credentials import ClusterSelection, Credentials, Renewal
from fleet.errors import FleetError, RemoteProtocolError, SetupError, UsageError
from fleet.wire.http2.hpack import seconds_of
from fleet.wire.http2.http2_codec import BODY_BYTES_MAX, OVERSIZED
from fleet.wire.http2.messages import Failure, Request, Response, StreamOpened
from fleet.wire.sockets.connection import END, Proxy, refusal_of

log = logging.getLogger(__name__)

Json = dict[str, Any]
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")

RUN = "run"  # the purpose of requests about the run's own Lease
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

PAGE_ITEMS = 500  # client-go/tools/pager/pager.go, defaultPageSize
PAGES_MAX = 10_000  # so many pages of a list are read: 5 million objects, which no etcd holds
REQUEST_TIMEOUT_S = 60.0  # a server ends what is no watch after as long: --request-timeout
CONNECT_TIMEOUT_S = 10.0
CALLS_MAX = 32  # at once, for all purposes: HTTP/1.1 carries one on each connection
SILENT_S = 180.0
"""A watch that brings nothing for so long is dead: its server sends a bookmark each minute.

Source: apiserver/pkg/storage/cacher/cacher.go, defaultBookmarkFrequency.
"""
NAMES_S_MAX = 10  # then a name is looked up again; aiohttp tries all addresses, in turn
READ_BYTES = 2**18
CONCURRENCY = 32  # so that a clean-up of thousands of objects leaves the server room for others
ATTEMPTS_MAX = 6  # within 14 s: 0.3, 0.9, 2.7, 5, 5 s between them
BACKOFF_MAX_S = 5.0
RETRY_AFTER_S_MAX = 30.0  # of what a server asks for; more is no answer to a person who waits
STARTING_S = 30.0
"""An API server that has just started forbids what it allows, until it has read the roles."""
# The server did not do it but will if asked again: overload, a leader change, a restart.
RETRIED_CODES = frozenset({429, 500, 502, 503, 504})
_STREAM_LIMITS = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENT_S)


class Answer(NamedTuple):
    """What the server said. `date_s` is its clock, 0 when it named none."""

    code: int
    body: Json
    date_s: int = 0

    @property
    def ok(self) -> bool:
        return 200 <= self.code < 300

    @property
    def message(self) -> str:
        """Return the server's own words, in one line."""
        return " ".join(str(self.body.get("message") or f"HTTP {self.code}").split())


@dataclass(eq=False, repr=False)
class Api:
    """Requests for one purpose to one cluster, under one user agent.

    With patience each is tried for so long, whatever becomes of the server.
    """

    _cluster: "Cluster"
    purpose: str
    _user_agent: str = ""
    _patience_s: float = 0.0

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        accept: str = JSON,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        """Send until there is an answer that another attempt would not change; a patch is a merge.

        Raises SetupError when there is no answer at all, and when the credentials are refused.
        """
        cluster = self._cluster
        sent = [*self._headers(accept), *headers]
        data = None
        if body is not None:
            data = orjson.dumps(body)
            sent.append(("Content-Type", MERGE_PATCH if method == "PATCH" else JSON))
        target = f"{path}?{urlencode(query)}" if query else path
        was_renewed = False
        tries = Tries(self._patience_s, cluster.now_s)
        for attempt in itertools.count(1):
            cluster.requests[self.purpose] += 1
            await cluster.renewal.renew()
            used = cluster.credentials.secrets()
            try:
                answer, wait_s = await self._send_once(method, target, sent, data)
            except RemoteProtocolError as error:
                raise SetupError(f"{cluster.credentials.address}: {error}") from error
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                cluster.note_trouble()
                is_hopeless = not is_transient(error, is_patient=self._patience_s > 0)
                if is_hopeless or tries.are_over(attempt):
                    reason = describe_failure(error)
                    raise SetupError(f"{cluster.credentials.address}: {reason}") from error
                wait_s = -1.0
            else:
                if answer.code == 401:
                    await cluster.renewal.renew(refused=used)
                    if was_renewed or cluster.credentials.secrets() == used:
                        raise SetupError(refused(cluster.credentials, answer))
                    was_renewed = True
                    continue
                if answer.code in RETRIED_CODES:
                    cluster.note_trouble()
                elif not (answer.code == 403 and self._patience_s and cluster.has_just_started()):
                    return answer
                if tries.are_over(attempt):
                    return answer
            await cluster.sleep(tries.wait_s(attempt, wait_s))
        raise AssertionError("it is counted without end")

    async def _send_once(
        self, method: str, target: str, headers: list[tuple[str, str]], data: bytes | None
    ) -> tuple[Answer, float]:
        """Return the answer, and how long the server asks to wait."""
        cluster = self._cluster
        # Streams are not counted: a call never waits for the end of a watch.
        # Nor does the run's own Lease, without which another fleet takes the names.
        gate = contextlib.nullcontext() if self.purpose == RUN else cluster.gate
        async with gate, cluster.ask(method, target, headers, data=data) as response:
            answer = _answer(response, await _read(response))
            log.info("%s: %s %s: %d", self.purpose, method, target, answer.code)
            if answer.code not in RETRIED_CODES:
                cluster.gate.take(is_overloaded=False)
            return answer, _retry_after_s(response)

    async def stream(self, request: Request) -> AsyncGenerator[StreamOpened | bytes | Response]:
        """Send a request of a list-watch, once; bring all that comes of it, at last a Response.

        It brings what a transport of nodes brings. Nothing is raised.
        """
        self._cluster.requests[self.purpose] += 1
        is_open = False
        try:
            await self._cluster.renewal.renew()
            limits = _STREAM_LIMITS if request.stream else None
            target, headers = request.path.decode(), self._headers(JSON)
            async with self._cluster.ask("GET", target, headers, limits=limits) as response:
                if response.status == 200 and request.stream:
                    is_open = True
                    yield StreamOpened(0, 0)
                    async for chunk in response.content.iter_any():
                        yield chunk
                    end = Response(200, b"", 0, 0)
                else:
                    body, again_s = await _read(response), int(_retry_after_s(response))
                    end = Response(response.status, body, 0, 0, again_s)
        except (FleetError, RemoteProtocolError) as error:  # no credentials, or too large
            end = Response(0, b"", 0, 0, -1, Failure.CANCELLED, str(error))
        except (aiohttp.ClientError, OSError) as error:
            # What it is to a list-watch: it asks again soon, or backs off.
            failure = Failure.LOST if is_transient(error) else Failure.DIAL
            if isinstance(error, TimeoutError):
                failure = Failure.SILENT if is_open else Failure.UNREACHABLE
            end = Response(0, b"", 0, 0, -1, failure, describe_failure(error))
        yield end

    async def text(self, path: str, server: str = "") -> AsyncGenerator[bytes]:
        """Yield a text that no API object is, such as `/metrics`, in the pieces that come.

        It is asked for once and not compressed, which would cost the server more than it saves
        a network. `server` is the URL of another one that takes our credentials, but for etcd.
        Raises SetupError with the server's own words if it is not available.
        """
        cluster = self._cluster
        if not server:
            cluster.requests[self.purpose] += 1
        headers = [*self._headers("text/plain"), ("Accept-Encoding", "identity")]
        try:
            ask = cluster.ask("GET", path, headers, limits=_STREAM_LIMITS, server=server)
            async with ask as response:
                if response.status != 200:
                    raise SetupError(_answer(response, await _read(response)).message)
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError, RemoteProtocolError) as error:
            where = server or cluster.credentials.address
            raise SetupError(f"{where}: {describe_failure(error)}") from error

    async def status(self, path: str, timeout_s: float) -> int:
        """Ask once; return the code of the answer, 0 if none came in time. Nothing is raised."""
        self._cluster.requests[self.purpose] += 1
        limits = aiohttp.ClientTimeout(total=timeout_s)
        try:
            ask = self._cluster.ask("GET", path, self._headers("*/*"), limits=limits)
            async with ask as response:
                return response.status
        except (FleetError, aiohttp.ClientError, OSError, TimeoutError):
            return 0

    def _headers(self, accept: str) -> list[tuple[str, str]]:
        user_agent = self._user_agent or f"fleet/{__version__} ({self.purpose})"
        return [("User-Agent", user_agent), ("Accept", accept)]

    async def get(self, path: str, what: str, **query: str | int) -> Json:
        """Return one object that must be there. Raises SetupError naming `what` otherwise."""
        answer = await self.request("GET", path, query=query)
        return expect(answer, f"cannot read {what}")

    async def pages(
        self, path: str, what: str, *, accept: str = JSON, **query: str | int
    ) -> AsyncIterator[list[Json]]:
        """Yield the items of a list page by page. A 410 starts over, so an item may come twice.

        Raises SetupError where the list does not end: its tokens repeat, or there are too many.
        """
        token = ""
        seen: set[str] = set()
        for _ in range(PAGES_MAX):
            page: dict[str, str | int] = {**query, "limit": query.get("limit", PAGE_ITEMS)}
            if token:
                page["continue"] = token
            answer = await self.request("GET", path, query=page, accept=accept)
            if answer.code == 410 and token:
                token = ""
                seen.clear()
                continue
            listed = expect(answer, f"cannot list {what}")
            yield listed.get("items") or []
            token = listed.get("metadata", {}).get("continue") or ""
            if not token:
                return
            if token in seen:
                break
            seen.add(token)
        raise SetupError(f"cannot list {what}: the server's list does not end")


class Gate:
    """How many calls fleet itself has under way: half as many after each sign of overload.

    Up to `CALLS_MAX` at once. An answer of 429 or 5xx, or none at all, halves the number, down to
    one at a time; each good answer adds its share of one, as TCP does. So a clean-up of thousands
    of objects spares a server that is busy, and is quick on one that is not.
    """

    def __init__(self) -> None:
        self.calls = float(CALLS_MAX)
        """How many may be under way."""
        self._under_way = 0
        self._change = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._change:
            await self._change.wait_for(lambda: self._under_way < int(self.calls))
            self._under_way += 1

    async def __aexit__(self, *_error: object) -> None:
        async with self._change:
            self._under_way -= 1
            self._change.notify(max(0, int(self.calls) - self._under_way))

    def take(self, *, is_overloaded: bool) -> None:
        """Take how one call ended."""
        if is_overloaded:
            self.calls = max(1.0, self.calls / 2)
        else:
            self.calls = min(float(CALLS_MAX), self.calls + 1 / self.calls)


@dataclass(eq=False, repr=False)
class Cluster:
    """A cluster that was named: its address, credentials and version, and fleet's connections.

    All purposes share the connections, the gate and the counts.
    """

    credentials: Credentials
    sleep: Sleep = asyncio.sleep
    now_s: Callable[[], float] = time.monotonic
    version: str = ""  # of its API server, as v1.36.3
    requests: Counter[str] = field(default_factory=Counter)
    """How many requests fleet made for itself, by purpose."""
    _troubled_s: float = float("-inf")  # when the server was last found out of order
    _session: aiohttp.ClientSession | None = None
    _certificate: tuple[object, ...] = ()  # which one the session has

    def __post_init__(self) -> None:
        self.gate = Gate()
        self.renewal = Renewal(self.credentials)

    @classmethod
    async def connect(cls, selection: ClusterSelection) -> Self:
        """Load the credentials, reach the server and ask its version.

        Raises UsageError on a bad selection; SetupError, in one line, when the server cannot be
        reached, speaks no HTTP/2 or refuses the credentials.
        """
        credentials = await selection.load()
        await check_http2(credentials)
        cluster = cls(credentials)
        try:
            cluster.version = await read_version(cluster.api("preflight"), credentials)
        except BaseException:
            await cluster.close()
            raise
        return cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def api(self, purpose: str, user_agent: str = "", patience_s: float = 0.0) -> Api:
        """Return fleet's own requests of one purpose: preflight, adopt, cleanup, ..."""
        return Api(self, purpose, user_agent, patience_s)

    def go_gently(self) -> None:
        """Make one call at a time from now on, more as good answers come."""
        self.gate.calls = 1.0

    def note_trouble(self) -> None:
        """Take that a call got no answer, or one of a server in trouble."""
        self._troubled_s = self.now_s()
        self.gate.take(is_overloaded=True)

    def has_just_started(self) -> bool:
        """Return whether the server may not have read its roles since it was in trouble."""
        return self.now_s() < self._troubled_s + STARTING_S

    @contextlib.asynccontextmanager
    async def ask(
        self,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        *,
        data: bytes | None = None,
        limits: aiohttp.ClientTimeout | None = None,
        server: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request under the present credentials, which no plain HTTP carries."""
        if self._session is None:
            self._session = self._open()
        elif self._certificate != self.credentials.certificate_mark:
            with contextlib.suppress(UsageError):  # its file is being written
                before, self._session = self._session, self._open()
                await before.close()  # a new client certificate needs new connections
        authorization = self.credentials.authorization()
        if authorization and not server.startswith("http:"):
            headers = [*headers, ("Authorization", authorization.decode())]
        async with self._session.request(
            method,
            (server or self.credentials.server) + target,
            data=data,
            headers=headers,
            server_hostname=self.credentials.server_name,
            allow_redirects=False,
            proxy=self.credentials.proxy_url or None,
            timeout=limits or self._session.timeout,
        ) as response:
            yield response

    def _open(self) -> aiohttp.ClientSession:
        context = self.credentials.ssl_context(("http/1.1",))
        self._certificate = self.credentials.certificate_mark
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=context,
                limit=0,  # `Gate` limits the calls; waiting there is no time of the server's
                ttl_dns_cache=NAMES_S_MAX,
            ),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            trust_env=False,  # the proxy is the wire engine's: see `Credentials`
        )


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


class Tries:
    """How often one request is sent: a number of times, or for some time since it first failed."""

    def __init__(self, patience_s: float, now_s: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._now_s = now_s
        self._until_s = 0.0

    def are_over(self, attempt: int) -> bool:
        """Return whether it is given up now that an attempt has failed."""
        if not self._patience_s:
            return attempt >= ATTEMPTS_MAX
        if not self._until_s:
            self._until_s = self._now_s() + self._patience_s
        return self._now_s() >= self._until_s

    def wait_s(self, attempt: int, asked_s: float) -> float:
        """Return how long to wait; `asked_s` is what the server asked for, below 0 for nothing.

        Never less than the back-off, whatever the server asked for.
        Source: client-go/rest/with_retry.go, Before: the larger one of back-off and Retry-After.
        """
        backoff_s = min(0.1 * 3.0**attempt, BACKOFF_MAX_S)
        wait_s = max(backoff_s, min(asked_s, RETRY_AFTER_S_MAX))
        if not self._patience_s:
            return wait_s
        return min(wait_s, max(0.0, self._until_s - self._now_s()))


def expect(answer: Answer, failure: str) -> Json:
    """Return the body of a good answer. Raises SetupError with the server's own words if not."""
    if not answer.ok:
        raise SetupError(f"{failure}: {answer.message}")
    return answer.body


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Do `work` for every item, at most `CONCURRENCY` at a time; the first failure ends it all."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def is_transient(error: BaseException, *, is_patient: bool = False) -> bool:
    """Return whether the same connection may succeed later: not with a bad name or certificate.

    To the patient, who was connected before, only a certificate is a reason to give up.
    """
    if is_patient:
        return not isinstance(error, aiohttp.ClientConnectorCertificateError)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorDNSError):
        return False
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return False
    return not isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError)


def describe_failure(error: BaseException) -> str:
    """Say in one line why there was no answer."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


def refused(credentials: Credentials, answer: Answer) -> str:
    """Say in one line that the server does not accept who we are."""
    return (
        f"{credentials.address}: 401, the credentials of context {credentials.context} are "
        f"refused: expired, revoked or of another cluster ({answer.message})"
    )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer. Raises RemoteProtocolError for one that is too large."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(READ_BYTES):
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise RemoteProtocolError(OVERSIZED)
    return bytes(body)


def _answer(response: aiohttp.ClientResponse, raw: bytes) -> Answer:
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError:
        body = {"message": raw[:200].decode(errors="replace")}
    if not isinstance(body, dict):
        body = {"message": str(body)[:200]}
    date = response.headers.get("Date", "")
    try:
        date_s = int(parsedate_to_datetime(date).timestamp()) if date else 0
    except ValueError:
        date_s = 0
    return Answer(response.status, body, date_s)


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    """Return what the server asks for; -1 if that is nothing, or beyond sense."""
    value = response.headers.get("Retry-After", "").encode(errors="replace")
    return float(seconds_of(value))


def server_now_s(answer: Answer) -> int:
    """Return the server's clock, or ours if it named none."""
    return answer.date_s or int(time.time())


def time_s(stamp: str) -> int:
    """Return an API time as whole seconds since the epoch, 0 for none."""
    return int(dt.datetime.fromisoformat(stamp).timestamp()) if stamp else 0
