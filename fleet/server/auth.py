"""Who may ask a kubelet what: authentication and authorization of requests, on the servers' loop.

    client certificate, else bearer token -> TokenReview (kept 2 min) -> user
    user, verb, each subresource of nodes/N -> SubjectAccessReview (kept 5 min, a no 30 s)

Reviews are the node's own requests: they go over the connection that the node has, as its user, so
they are load as any other request. A review that fails for a passing reason is sent five times.
Source: pkg/kubelet/server/server.go, InstallAuthFilter; pkg/kubelet/server/auth.go,
GetRequestAttributes; apiserver/pkg/authentication/authenticatorfactory/delegating.go,
authentication/token/cache; apiserver/plugin/pkg/{authenticator/token,authorizer}/webhook;
apiserver/pkg/util/webhook/webhook.go; apiserver/pkg/server/options/authentication.go,
DefaultAuthWebhookRetryBackoff.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import orjson
from aiohttp import web

from fleet.clock import NS_PER_S
from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import Client, NodeId
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.reactor.calls import Errand
from fleet.reactor.reactor import Reactor
from fleet.server.http import NodeProtocol, User, text
from fleet.server.reactor_thread import ReactorThread
from fleet.wire.api.codec import JSON, Codec
from fleet.wire.api.framing import MAGIC
from fleet.wire.api.watch import told_again_s
from fleet.wire.http2.messages import MALFORMED, ContentType, Failure, Request, Response

VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
FINE_GRAINED = (
    ("/pods", "pods"),
    ("/healthz", "healthz"),
    ("/configz", "configz"),
    ("/runningpods", "pods"),
)
"""With the gate KubeletFineGrainedAuthz: asked for before `proxy`, which means everything."""
SUBRESOURCES = (
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
)
FINE_GRAINED_GATE = "KubeletFineGrainedAuthz"
CACHED_MAX = 200_000  # reviews of one kind in a process: those of 5,000 nodes and 40 users

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Access(NamedTuple):
    """What a user wants of a node: one SubjectAccessReview."""

    user: User
    verb: str
    node_name: str
    subresource: str


def subresources(path: str, *, is_fine_grained: bool = True) -> tuple[str, ...]:
    """Return the subresources of `nodes` that a path is one of; any of them is enough.

    Source: GetRequestAttributes.
    """
    found = []
    if is_fine_grained:
        found += [name for prefix, name in FINE_GRAINED if is_subpath(path, prefix)][:1]
    found += [name for prefix, name in SUBRESOURCES if is_subpath(path, prefix)][:1] or ["proxy"]
    return tuple(found)


def is_subpath(path: str, prefix: str) -> bool:
    """Source: isSubpath."""
    return path == prefix or path.startswith(f"{prefix}/")


def forbidden_text(user: User, verb: str, asked: tuple[str, ...]) -> str:
    """Say no. Source: InstallAuthFilter."""
    shown = " ".join(asked)
    return f"Forbidden (user={user.name}, verb={verb}, resource=nodes, subresource(s)=[{shown}])\n"


def error_text(user: User, verb: str, subresource: str) -> str:
    """Say that it cannot be found out. Source: InstallAuthFilter."""
    return (
        f"Authorization error (user={user.name}, verb={verb}, resource=nodes, "
        f"subresource={subresource})"
    )


def token_key(node: NodeId, token: str) -> tuple[NodeId, bytes]:
    """Return the key under which the review of a token is kept: not the token itself."""
    return node, hashlib.blake2b(token.encode(), digest_size=16).digest()


class ExpiringCache(Generic[K, V]):
    """Answers that are good for a while; the oldest go first when there are too many.

    Nothing is kept of a node that nobody asks: an entry costs about 300 bytes, until it expires.
    """

    def __init__(self, entries_max: int = CACHED_MAX) -> None:
        self._entries: OrderedDict[K, tuple[int, V]] = OrderedDict()
        self._entries_max = entries_max

    def get(self, key: K, now_ns: int) -> V | None:
        """Return what is good still, None if nothing is."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found[0] <= now_ns:
            del self._entries[key]
            return None
        return found[1]

    def put(self, key: K, value: V, ttl_ns: int, now_ns: int) -> None:
        """Keep an answer for `ttl_ns`."""
        self._entries.pop(key, None)
        self._entries[key] = (now_ns + ttl_ns, value)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def sweep(self, now_ns: int) -> None:
        """Drop what has expired."""
        for key in [key for key, (until_ns, _) in self._entries.items() if until_ns <= now_ns]:
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


TOKEN_REVIEWS = b"/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = b"/apis/authorization.k8s.io/v1/subjectaccessreviews"
TIMEOUT_NS = 30_000_000_000
RETRY_WAITS_S = (0.5, 0.75, 1.125, 1.6875)
"""Between the attempts of a review: 0.5 s, each time half as long again."""
RETRY_JITTER = 0.2
Json = dict[str, Any]


class TokenAnswer(NamedTuple):
    """Whose a token is. Source: authentication/v1 TokenReviewStatus."""

    user: User | None  # None: nobody's
    error: str = ""  # why nobody knows


class AccessAnswer(NamedTuple):
    """Whether somebody may. Source: authorization/v1 SubjectAccessReviewStatus."""

    is_allowed: bool
    error: str = ""


@dataclass(slots=True, eq=False)
class Review(Errand):
    """One review under way."""

    _reactor: Reactor
    _node: NodeId
    _resource: str
    _done: Callable[[Response], None]

    def on_message(self, message: object, now_ns: int) -> None:  # noqa: ARG002 - of the base class
        """Take the answer."""
        if isinstance(message, Response):
            took_us = max((message.arrived_ns - message.sent_ns) // 1000, 0)
            route = "POST", self._resource
            self._reactor.counts.requests.record(route, message.code, took_us)
            self._done(message)


def send_review(
    reactor: Reactor, node: NodeId, path: bytes, review: Json, done: Callable[[Response], None]
) -> None:
    """Send a review as a node; `done` gets the answer, in the reactor's thread."""
    body, content_type = orjson.dumps(review), ContentType.JSON
    if reactor.codec is not JSON:
        from fleet.wire.api.protobuf import object_from_json  # noqa: PLC0415 - 10 MB

        body, content_type = object_from_json(review), ContentType.PROTOBUF
    entry = reactor.entries[node]
    template = entry.caller.template
    user = entry.caller.user if template.impersonate else b""
    request = Request(b"POST", path, body, content_type, user, stream=False, timeout_ns=TIMEOUT_NS)
    resource = path.rpartition(b"/")[2].decode()
    reactor.wires.nodes.send(entry.pool, request, Review(reactor, node, resource, done))


def is_transient(response: Response) -> bool:
    """Return whether a review that was answered so is sent again. Source: DefaultShouldRetry."""
    if response.failure in {Failure.LOST, Failure.SILENT}:
        return True
    return response.code in {429, 500, 504} or (response.code >= 400 and response.retry_after_s > 0)


def token_review(token: str) -> Json:
    """Ask whose a token is."""
    return {
        "kind": "TokenReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {},
        "spec": {"token": token},
        "status": {"user": {}},
    }


def access_review(access: Access) -> Json:
    """Ask whether somebody may."""
    user = access.user
    spec: Json = {
        "resourceAttributes": {
            "verb": access.verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": access.subresource,
            "name": access.node_name,
        },
        "user": user.name,
    }
    if user.groups:
        spec["groups"] = user.groups
    if user.extra:
        spec["extra"] = dict(user.extra)
    if user.uid:
        spec["uid"] = user.uid
    return {
        "kind": "SubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": spec,
        "status": {"allowed": False},
    }


def read_token_review(response: Response, codec: Codec) -> TokenAnswer:
    """Read whose a token is."""
    status, error = _status(response, codec)
    if error:
        return TokenAnswer(None, error)
    if not status.get("authenticated"):
        return TokenAnswer(None, str(status.get("error") or ""))
    try:
        user = status["user"]
        extra = tuple((key, tuple(values)) for key, values in (user.get("extra") or {}).items())
        groups = tuple(user.get("groups") or ())
        return TokenAnswer(User(str(user["username"]), str(user.get("uid", "")), groups, extra))
    except MALFORMED as problem:
        return TokenAnswer(None, f"unreadable TokenReview: {problem}")


def read_access_review(response: Response, codec: Codec) -> AccessAnswer:
    """Read whether somebody may. With a yes an evaluation error counts for nothing."""
    status, error = _status(response, codec)
    return AccessAnswer(bool(status.get("allowed")) and not status.get("denied"), error)


def _status(response: Response, codec: Codec) -> tuple[dict[str, Any], str]:
    if response.code not in {200, 201}:
        return {}, response.detail or f"HTTP {response.code}"
    try:
        if response.body.startswith(MAGIC):
            from fleet.wire.api.protobuf import object_to_json  # noqa: PLC0415 - 10 MB

            return object_to_json(response.body).get("status", {}), ""
        status = orjson.loads(response.body)["status"]
    except (RemoteProtocolError, *codec.malformed) as problem:  # type: ignore[misc] # a tuple, made here
        return {}, f"unreadable review: {problem}"
    return (status, "") if isinstance(status, dict) else ({}, "unreadable review")


ANONYMOUS = User("system:anonymous", groups=("system:unauthenticated",))
AUTHENTICATED = "system:authenticated"
CREDENTIAL = "authentication.kubernetes.io/credential-id"
TOKEN_BYTES_MAX = 64 << 10
SWEEP_S = 30.0
_STREAM_RETRY = 0x5A12
Sleep = Callable[[float], Awaitable[None]]


@dataclass(eq=False)
class AccessControl:
    """Decides for all nodes of a process; its caches are each node's own, by key."""

    _reactor: Reactor
    _reactor_thread: ReactorThread
    _sleep: Sleep = asyncio.sleep
    _tokens: ExpiringCache[tuple[NodeId, bytes], TokenAnswer] = field(default_factory=ExpiringCache)
    _reviews: dict[tuple[NodeId, bytes], asyncio.Task[TokenAnswer]] = field(default_factory=dict)
    _accesses: ExpiringCache[tuple[NodeId, Access], AccessAnswer] = field(
        default_factory=ExpiringCache
    )

    async def refusal(
        self, request: web.BaseRequest, protocol: NodeProtocol, configuration: KubeletConfiguration
    ) -> web.Response | None:
        """Return why a request is not served, None if it is."""
        user = await self._authenticated(request, protocol, configuration)
        if user is None:
            return text(401, "Unauthorized")
        if configuration.authorization.mode == "AlwaysAllow":
            return None
        is_fine = configuration.feature_gates.get(FINE_GRAINED_GATE, True)
        asked = subresources(request.path, is_fine_grained=is_fine)
        verb = VERBS.get(request.method, "")
        assert protocol.node is not None
        for subresource in asked:
            access = Access(user, verb, protocol.node_name, subresource)
            answer = await self._reviewed(protocol.node, access, configuration)
            if answer.error:
                return text(500, error_text(user, verb, subresource))
            if answer.is_allowed:
                return None
        return text(403, forbidden_text(user, verb, asked))

    async def _authenticated(
        self, request: web.BaseRequest, protocol: NodeProtocol, configuration: KubeletConfiguration
    ) -> User | None:
        if protocol.user is None:
            certificate = request.get_extra_info("peercert")
            if certificate:
                whole = request.get_extra_info("ssl_object").getpeercert(binary_form=True)
                protocol.user = user_of(certificate, whole)
        if protocol.user is not None:
            return protocol.user
        authentication = configuration.authentication
        scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer" and token and authentication.webhook.enabled:
            if len(token) > TOKEN_BYTES_MAX:
                return None
            assert protocol.node is not None
            answer = await self._token(protocol.node, token, configuration)
            return answer.user
        return ANONYMOUS if authentication.anonymous.enabled else None

    async def _token(
        self, node: NodeId, token: str, configuration: KubeletConfiguration
    ) -> TokenAnswer:
        """Say whose a token is; requests that show it at the same time share its review.

        Source: cached_token_authenticator.go, doAuthenticateToken: DoChan.
        """
        key = token_key(node, token)
        answer = self._tokens.get(key, time.monotonic_ns())
        if answer is not None:
            return answer
        review = self._reviews.get(key)
        if review is None:
            review = asyncio.create_task(self._review(key, token, configuration))
            review.add_done_callback(lambda _: self._reviews.pop(key))
            self._reviews[key] = review
        return await asyncio.shield(review)

    async def _review(
        self, key: tuple[NodeId, bytes], token: str, configuration: KubeletConfiguration
    ) -> TokenAnswer:
        response = await self._send(key[0], TOKEN_REVIEWS, token_review(token))
        answer = read_token_review(response, self._reactor.codec)
        if answer.user is not None and AUTHENTICATED not in answer.user.groups:
            groups = (*answer.user.groups, AUTHENTICATED)
            answer = TokenAnswer(answer.user._replace(groups=groups))
        if not answer.error:
            ttl_ns = configuration.authentication.webhook.cache_ttl_ns
            self._tokens.put(key, answer, ttl_ns, time.monotonic_ns())
        return answer

    async def _reviewed(
        self, node: NodeId, access: Access, configuration: KubeletConfiguration
    ) -> AccessAnswer:
        now_ns = time.monotonic_ns()
        answer = self._accesses.get((node, access), now_ns)
        if answer is None:
            response = await self._send(node, ACCESS_REVIEWS, access_review(access))
            answer = read_access_review(response, self._reactor.codec)
            if not answer.error:
                webhook = configuration.authorization.webhook
                ttl_ns = webhook.cache_unauthorized_ttl_ns
                if answer.is_allowed:
                    ttl_ns = webhook.cache_authorized_ttl_ns
                self._accesses.put((node, access), answer, ttl_ns, now_ns)
        return answer

    async def _send(self, node: NodeId, path: bytes, review: dict[str, Any]) -> Response:
        """Send a review until it is answered or has failed too often; return the last answer.

        Source: apiserver/pkg/util/webhook/webhook.go, WithExponentialBackoff, around the tries that
        client-go makes by itself.
        """
        waits_s, tries = list(RETRY_WAITS_S), 1
        while True:
            share = await self._wait_for_token(node)
            response = await self._attempt(node, path, review)
            wait_s: float = told_again_s(response, tries)
            tries += 1
            if wait_s < 0:
                if not waits_s or not is_transient(response):
                    return response
                wait_s, tries = waits_s.pop(0) * (1 + RETRY_JITTER * share), 1
            await self._sleep(wait_s)

    async def _wait_for_token(self, node: NodeId) -> float:
        """Wait until the node's main client may send; return a draw for the wait that may follow.

        Source: cmd/kubelet/app/server.go, run: kubeAPIQPS, kubeAPIBurst. `light` has no limits.
        """
        reactor = self._reactor

        def act(kubelet: VirtualKubelet, now_ns: int) -> tuple[int, float]:
            env, wait_ns = kubelet.env, 0
            if env.fidelity.limits_rate:
                wait_ns = reactor.calls.limits.take(node, Client.CORE, env.model, now_ns)
            if wait_ns:
                reactor.counts.throttled.record(wait_ns // 1000)
            return wait_ns, env.draws.uniform(node, _STREAM_RETRY, now_ns)

        wait_ns, share = await self._reactor_thread.call(node, act)
        if wait_ns:
            await self._sleep(wait_ns / NS_PER_S)
        return share

    async def _attempt(self, node: NodeId, path: bytes, review: dict[str, Any]) -> Response:
        """Send a review over the node's own connection, and wait for its answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()

        def done(response: Response) -> None:
            loop.call_soon_threadsafe(_resolve, answer, response)

        def act(_kubelet: VirtualKubelet, _now_ns: int) -> None:
            send_review(self._reactor, node, path, review, done)

        await self._reactor_thread.call(node, act)
        return await answer

    async def sweep(self) -> None:
        """Drop what has expired, again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_ns = time.monotonic_ns()
            self._tokens.sweep(now_ns)
            self._accesses.sweep(now_ns)


def user_of(certificate: dict[str, Any], whole: bytes) -> User | None:
    """Return whom a verified certificate names. Source: x509.go, CommonNameUserConversion."""
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    common = [value for key, value in names if key == "commonName"]
    if not common:
        return None
    groups = [value for key, value in names if key == "organizationName"]
    extra = ((CREDENTIAL, (f"X509SHA256={hashlib.sha256(whole).hexdigest()}",)),)
    return User(common[-1], groups=(*groups, AUTHENTICATED), extra=extra)


def _resolve(answer: "asyncio.Future[Response]", response: Response) -> None:
    if not answer.done():
        answer.set_result(response)
