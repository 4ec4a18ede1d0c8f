"""The calls of the fleet: sent, put off for a client-side limit, sent again when told to.

Source: client-go/rest/request.go, with_retry.go.
Differs: a watch that is asked for again after Retry-After takes no token of its client.
"""

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from fleet.client_limits import ClientLimits
from fleet.clock import NS_PER_S, Clock, Draws
from fleet.effects import ApiCall, NodeId, Op, Reply, Timer
from fleet.errors import RemoteProtocolError
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.list_watches import Opening
from fleet.reactor_watches import Entry, Watches
from fleet.wire.calls import build
from fleet.wire.codec import JSON, Codec
from fleet.wire.messages import Failure, Response
from fleet.wire.replies import decode_reply, lost_reply
from fleet.wire.routes import ROUTES
from fleet.wire.watch import Reflector

CALL_TRIES_MAX = 11  # request.go, maxRetries, and the first: on 429 and 5xx with Retry-After
OUTLIVING = frozenset((Timer.SHUTDOWN, Timer.CERTIFICATE))
"""Timers of the machine, and of what is kept in its files."""
LOST_RETRY_S = 1  # the same, retryAfterResponse: what it makes of a lost connection
LOST_FAILURES = frozenset((Failure.LOST, Failure.SILENT))
HEARTBEATS = frozenset(
    (
        Op.GET_NODE_HEARTBEAT,
        Op.PATCH_NODE_STATUS_HEARTBEAT,
        Op.GET_LEASE,
        Op.CREATE_LEASE,
        Op.RENEW_LEASE,
    )
)
"""Calls of the client with a time-out, which is for all tries of a call and the waits between."""
GIVEN_UP = "context deadline exceeded"


class Delayed(NamedTuple):
    """A call that waits: for its client's limit, or because the server asked us to come later."""

    call: ApiCall
    tries: int  # this one included
    has_token: bool  # its client lets it go once it is due
    deadline_ns: int = 0  # when it is given up, 0 for never


class GivenUp(NamedTuple):
    """A call that is not sent: its time was over, or what it is made of cannot be read."""

    call: ApiCall


class Calls(Watches):
    """The middle of `Reactor`."""

    def __init__(self, clock: Clock, draws: Draws, codec: Codec = JSON) -> None:
        super().__init__(clock, draws, codec)
        self.inbox: list[tuple[object, object]] = []
        self._delayed: dict[str, Delayed] = {}
        self._delayed_seq = 0
        self._limits = ClientLimits()
        self._due_lease: dict[NodeId, int] = {}

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
        try:
            request = build(call, entry.caller)
        except RemoteProtocolError as error:  # it is made of an earlier answer
            self.reject(self.counts, error)
            unsent = Response(0, b"", 0, self.clock.now_ns(), -1, Failure.CANCELLED, str(error))
            self.inbox.append((GivenUp(call), unsent))
            return
        if type(token) is Delayed and token.deadline_ns:
            left_s = -(-(token.deadline_ns - self.clock.now_ns()) // NS_PER_S)
            request = request._replace(timeout_ns=left_s * NS_PER_S)  # whole: of few values
        self.wire.send(entry.pool, request, token)

    def _sends_again(self, token: ApiCall | Delayed, response: Response, now_ns: int) -> bool:
        """Send a call again later, or give it up, if client-go does so by itself."""
        call, tries = (token, 1) if isinstance(token, ApiCall) else (token.call, token.tries)
        again_s = retry_after_s(call, response, tries)
        if again_s < 0:
            return False
        deadline_ns = 0 if isinstance(token, ApiCall) else token.deadline_ns
        if call.op in HEARTBEATS and not deadline_ns:
            template = self.entries[call.node].caller.template
            deadline_ns = (response.sent_ns or now_ns) + template.timeout_ns
        later = Delayed(call, tries + 1, has_token=False, deadline_ns=deadline_ns)
        due_ns = now_ns + again_s * NS_PER_S
        self._send_later(later, min(due_ns, deadline_ns) if deadline_ns else due_ns)
        return True

    def _read(self, call: ApiCall, response: Response) -> Reply:
        """Return the reply to a call. An answer that cannot be read is none, as client-go has it.

        Source: client-go/rest/request.go, Result.Into: the caller gets an error without a status.
        """
        try:
            return decode_reply(call.op, response, self.codec.replies)
        except RemoteProtocolError as error:
            self.reject(self.counts, error)
            return lost_reply(response, str(error))

    def _count_renewal(self, kubelet: VirtualKubelet, response: Response) -> None:
        """Measure how late the first try was sent, and the interval that the API server sees."""
        counts = self.counts
        due_ns = self._due_lease.pop(kubelet.node, None)
        if due_ns is not None and response.sent_ns:
            counts.lease_late.record((response.sent_ns - due_ns) // 1000)
        if response.code != 200:
            return
        counts.renewals += 1
        if before_ns := kubelet.lease.renewed_ns:
            interval_ns = response.arrived_ns - before_ns
            if interval_ns > counts.lease_interval_ns_max:
                counts.lease_interval_ns_max = interval_ns
            if interval_ns > kubelet.env.model.lease_duration_s * NS_PER_S:
                counts.leases_missed += 1

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
        call, tries, has_token, deadline_ns = delayed
        entry = self.entries[node]
        if entry.kubelet is None:
            return
        now_ns = self.clock.now_ns()
        if deadline_ns and now_ns >= deadline_ns:
            given_up = Response(0, b"", 0, now_ns, -1, Failure.TIMEOUT, GIVEN_UP)
            self.inbox.append((GivenUp(call), given_up))
            return
        env = entry.kubelet.env
        if has_token or not self._is_throttled(call, tries, env, now_ns):
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
    if response.failure in LOST_FAILURES and ROUTES[call.op][0] == "GET":
        return LOST_RETRY_S
    is_told = response.code == 429 or response.code >= 500
    return response.retry_after_s if is_told else -1


def _owner(token: object) -> int:
    """Return the node whose kubelet a request is of, -1 for none."""
    if type(token) is ApiCall:
        return token.node
    if type(token) is Delayed or type(token) is GivenUp:
        return token.call.node
    if type(token) is Opening and isinstance(token.reflector, Reflector):
        return token.reflector.node
    return -1
