"""The calls of the fleet: sent, put off for a client-side limit, sent again when told to.

Source: client-go/rest/request.go, with_retry.go.
Differs: a watch that is asked for again after Retry-After takes no token of its client.
"""

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from fleet.client_limits import ClientLimits
from fleet.clock import Clock, Draws
from fleet.effects import ApiCall, NodeId, Timer
from fleet.kubelet.environment import Environment
from fleet.list_watches import Opening
from fleet.reactor_watches import Entry, Watches
from fleet.wire.calls import build
from fleet.wire.codec import JSON, Codec
from fleet.wire.messages import Failure, Response
from fleet.wire.routes import ROUTES
from fleet.wire.watch import Reflector

CALL_TRIES_MAX = 10  # with_retry.go: on 429 and 5xx with Retry-After
OUTLIVING = frozenset((Timer.SHUTDOWN, Timer.CERTIFICATE))
"""Timers of the machine, and of what is kept in its files."""
LOST_RETRY_S = 1  # the same, retryAfterResponse: what it makes of a lost connection


class Delayed(NamedTuple):
    """A call that waits: for its client's limit, or because the server asked us to come later."""

    call: ApiCall
    tries: int  # this one included
    has_token: bool  # its client lets it go once it is due


class Calls(Watches):
    """The middle of `Reactor`."""

    def __init__(self, clock: Clock, draws: Draws, codec: Codec = JSON) -> None:
        super().__init__(clock, draws, codec)
        self.inbox: list[tuple[object, object]] = []
        self._delayed: dict[str, Delayed] = {}
        self._delayed_seq = 0
        self._limits = ClientLimits()

    def _call(self, call: ApiCall) -> None:
        entry = self.entries[call.node]
        if entry.kubelet is None:
            return
        now_ns = self.clock.now_ns()
        if entry.story is not None:
            entry.story.append(f"{now_ns} call {call.op.name} {call.key}")
        if not self._is_throttled(call, 1, entry.kubelet.env, now_ns):
            self._send(entry, call, call)

    def _send(self, entry: Entry, call: ApiCall, token: ApiCall | Delayed) -> None:
        assert self.wire is not None
        self.wire.send(entry.pool, build(call, entry.caller), token)

    def _is_throttled(self, call: ApiCall, tries: int, env: Environment, now_ns: int) -> bool:
        """Take a token of the call's client; put the call off until there is one."""
        if env.light:
            return False
        wait_ns = self._limits.wait_ns(call, env.model, now_ns)
        if wait_ns:
            self.counts.throttled.record(wait_ns // 1000)
            self._send_later(Delayed(call, tries, has_token=True), now_ns + wait_ns)
        return wait_ns > 0

    def _send_later(self, delayed: Delayed, due_ns: int) -> None:
        self._delayed_seq += 1
        key = f"call/{self._delayed_seq}"
        self._delayed[key] = delayed
        self._wheel.set(due_ns, delayed.call.node, Timer.CALL_RETRY, key)

    def _send_delayed(self, node: NodeId, key: str) -> None:
        """Send what was put off; a second try needs a token too. Source: withRetry.Before."""
        delayed = self._delayed.pop(key)
        call, tries, has_token = delayed
        entry = self.entries[node]
        if entry.kubelet is None:
            return
        env = entry.kubelet.env
        if has_token or not self._is_throttled(call, tries, env, self.clock.now_ns()):
            self._send(entry, call, delayed)

    def _forget(self, nodes: AbstractSet[NodeId]) -> None:
        """Drop all that is on its way for some nodes: timers, calls, answers, openings."""

        def is_theirs(token: object) -> bool:
            return _owner(token) in nodes

        self._wheel.forget(nodes, kept=OUTLIVING)
        self._limits.drop(nodes)
        self._delayed = {key: each for key, each in self._delayed.items() if not is_theirs(each)}
        self.inbox[:] = [each for each in self.inbox if not is_theirs(each[0])]
        assert self.wire is not None
        self.wire.abandon(is_theirs)


def retry_after_s(call: ApiCall, response: Response, tries: int) -> int:
    """Return after how many seconds client-go sends a request again by itself, -1 for never.

    Source: withRetry.IsNextRetry; Request.request: a GET whose connection is lost.
    """
    if tries >= CALL_TRIES_MAX:
        return -1
    if response.failure is Failure.LOST and ROUTES[call.op][0] == "GET":
        return LOST_RETRY_S
    is_told = response.code == 429 or response.code >= 500
    return response.retry_after_s if is_told else -1


def _owner(token: object) -> int:
    """Return the node whose kubelet a request is of, -1 for none."""
    if type(token) is ApiCall:
        return token.node
    if type(token) is Delayed:
        return token.call.node
    if type(token) is Opening and isinstance(token.reflector, Reflector):
        return token.reflector.node
    return -1
