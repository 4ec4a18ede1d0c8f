"""TokenReview and SubjectAccessReview, as a node's own requests: built, sent, read.

They go over the connection that the node has, as its user, so they are load as any other request.
A review that fails for a passing reason is sent five times at most.
Source: apiserver/plugin/pkg/authenticator/token/webhook; apiserver/plugin/pkg/authorizer/webhook;
apiserver/pkg/util/webhook/webhook.go; apiserver/pkg/server/options/authentication.go,
DefaultAuthWebhookRetryBackoff.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import NodeId
from fleet.reactor.reactor import Reactor
from fleet.reactor.tokens import Errand
from fleet.server.authorization import Access, User
from fleet.wire.api.codec import JSON, Codec
from fleet.wire.api.protobuf import MAGIC
from fleet.wire.http2.messages import MALFORMED, ContentType, Failure, Request, Response

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
    error: str = ""  # why it cannot be told


class AccessAnswer(NamedTuple):
    """Whether somebody may. Source: authorization/v1 SubjectAccessReviewStatus."""

    is_allowed: bool
    error: str = ""


class Review(Errand):
    """One review under way."""

    __slots__ = ("_done", "_node", "_reactor", "_resource")

    def __init__(
        self, reactor: Reactor, node: NodeId, resource: str, done: Callable[[Response], None]
    ) -> None:
        self._reactor = reactor
        self._node = node
        self._resource = resource
        self._done = done

    def on_message(self, message: object, now_ns: int) -> None:  # noqa: ARG002 - of the base class
        """Take the answer."""
        if isinstance(message, Response):
            took_us = max((message.arrived_ns - message.sent_ns) // 1000, 0)
            counts = self._reactor.counts.requests
            counts.record(("POST", self._resource), message.code, took_us)
            tally = self._reactor.entries[self._node].client
            self._reactor.clients.count(tally, "POST", message.code, took_us)
            self._done(message)


def send_review(
    reactor: Reactor, node: NodeId, path: bytes, review: Json, done: Callable[[Response], None]
) -> None:
    """Send a review as a node; `done` gets the answer, in the reactor's thread."""
    body, content_type = orjson.dumps(review), ContentType.JSON
    if reactor.codec is not JSON:
        from fleet.wire.api.kubernetes_messages import object_from_json  # noqa: PLC0415 - 10 MB

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
    """Read whether somebody may. An evaluation error beside a yes is none."""
    status, error = _status(response, codec)
    return AccessAnswer(bool(status.get("allowed")) and not status.get("denied"), error)


def _status(response: Response, codec: Codec) -> tuple[dict[str, Any], str]:
    if response.code not in {200, 201}:
        return {}, response.detail or f"HTTP {response.code}"
    try:
        if response.body.startswith(MAGIC):
            from fleet.wire.api.kubernetes_messages import object_to_json  # noqa: PLC0415 - 10 MB

            return object_to_json(response.body).get("status", {}), ""
        status = orjson.loads(response.body)["status"]
    except (RemoteProtocolError, *codec.malformed) as problem:  # type: ignore[misc] # a tuple, made here
        return {}, f"unreadable review: {problem}"
    return (status, "") if isinstance(status, dict) else ({}, "unreadable review")
