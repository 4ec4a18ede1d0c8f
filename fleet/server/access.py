"""Authentication and authorization of requests, on the servers' loop.

    client certificate, else token -> TokenReview (2 min) -> SubjectAccessReview (5 min, 30 s)

Source: pkg/kubelet/server/server.go, InstallAuthFilter;
apiserver/pkg/authentication/authenticatorfactory/delegating.go.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Client, NodeId
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.reactor.calls import told_again_s
from fleet.reactor.reactor import Reactor
from fleet.server.authorization import (
    FINE_GRAINED_GATE,
    Access,
    ExpiringCache,
    User,
    error_text,
    forbidden_text,
    subresources,
    token_key,
    verb_of,
)
from fleet.server.http import NodeProtocol, text
from fleet.server.questions import Questions
from fleet.server.reviews import (
    ACCESS_REVIEWS,
    RETRY_JITTER,
    RETRY_WAITS_S,
    TOKEN_REVIEWS,
    AccessAnswer,
    TokenAnswer,
    access_review,
    is_transient,
    read_access_review,
    read_token_review,
    send_review,
    token_review,
)
from fleet.wire.http2.messages import Response

ANONYMOUS = User("system:anonymous", groups=("system:unauthenticated",))
AUTHENTICATED = "system:authenticated"
TOKEN_BYTES_MAX = 64 << 10
SWEEP_S = 30.0
_STREAM_RETRY = 0x5A12
Sleep = Callable[[float], Awaitable[None]]


class AccessControl:
    """Decides for all nodes of a process; its caches are each node's own, by key."""

    def __init__(
        self, reactor: Reactor, questions: Questions, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._reactor = reactor
        self._questions = questions
        self._sleep = sleep
        self._tokens: ExpiringCache[tuple[NodeId, bytes], TokenAnswer] = ExpiringCache()
        self._accesses: ExpiringCache[tuple[NodeId, Access], AccessAnswer] = ExpiringCache()

    async def refusal(
        self, request: web.BaseRequest, protocol: NodeProtocol, configuration: KubeletConfiguration
    ) -> web.Response | None:
        """Return why a request is not served, None if it is."""
        user = await self._authenticated(request, protocol, configuration)
        if user is None:
            return text(401, "Unauthorized")
        if configuration.authorization.mode == "AlwaysAllow":
            return None
        is_fine = FINE_GRAINED_GATE not in configuration.features_disabled
        asked = subresources(request.path, is_fine_grained=is_fine)
        verb = verb_of(request.method)
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
                protocol.user = user_of(certificate)
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
        key, now_ns = token_key(node, token), time.monotonic_ns()
        answer = self._tokens.get(key, now_ns)
        if answer is None:
            response = await self._send(node, TOKEN_REVIEWS, token_review(token))
            answer = read_token_review(response, self._reactor.codec)
            if answer.user is not None and AUTHENTICATED not in answer.user.groups:
                groups = (*answer.user.groups, AUTHENTICATED)
                answer = TokenAnswer(answer.user._replace(groups=groups))
            if not answer.error:
                ttl_ns = configuration.authentication.webhook.cache_ttl_ns
                self._tokens.put(key, answer, ttl_ns, now_ns)
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

        wait_ns, share = await self._questions.ask(node, act)
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

        await self._questions.ask(node, act)
        return await answer

    async def sweep(self) -> None:
        """Drop what has expired, again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_ns = time.monotonic_ns()
            self._tokens.sweep(now_ns)
            self._accesses.sweep(now_ns)


def user_of(certificate: dict[str, Any]) -> User | None:
    """Return whom a verified certificate names. Source: x509.go, CommonNameUserConversion."""
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    common = [value for key, value in names if key == "commonName"]
    if not common:
        return None
    groups = [value for key, value in names if key == "organizationName"]
    return User(common[-1], groups=(*groups, AUTHENTICATED))


def _resolve(answer: "asyncio.Future[Response]", response: Response) -> None:
    if not answer.done():
        answer.set_result(response)
