"""The calls of the fleet: sent, put off for a client-side limit, sent again as Retry-After asks.

What a request leaves with says whose its answer is. An `ApiCall` is a kubelet's; `Delayed` and
`Unsent` carry one. An `Opening` is of a list-watch, an `AgentCall` of an agent, and an `Errand` of
nobody but itself.

ClientLimits are the token buckets of a kubelet's API clients:
    main        kubeAPIQPS, kubeAPIBurst (50, 100)         all but what follows
    events      eventRecordQPS, eventBurst (50, 100)       events
    heartbeat   no limit                                   Lease, node status
A bucket is one number, when it will be full again, and kept only until then: a node that asks for
little costs nothing. Who finds it empty has to wait for a token of its own, so that requests leave
in the order in which they came.

Source: client-go/rest/request.go, tryThrottle, with_retry.go, config.go,
RESTClientForConfigAndClient; cmd/kubelet/app/server.go, run; golang.org/x/time/rate,
Limiter.reserveN.
Differs: a watch that is asked for again after Retry-After takes no token of its client.
"""

import sys
from collections.abc import Container
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import ApiCall, Client, NodeId, Op, Owner, Reply, ReplyKind, Timer
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.metrics import FleetCounts
from fleet.profile.node_model import NodeModel
from fleet.reactor.process import HEARTBEATS, NOBODY, Entry, Process
from fleet.reactor.watch_delays import OK, WATCHED_WRITES, WatchDelays
from fleet.wire.api.codec import decode_reply, lost_reply
from fleet.wire.api.operations import OPERATIONS, Operation, build
from fleet.wire.api.watch import (
    LOST_FAILURES,
    NO_FAILURES,
    Opening,
    Reflector,
    reject,
    told_again_s,
)
from fleet.wire.http2.messages import Failure, Response

QPS_DEFAULT = 5  # client-go/rest/config.go, DefaultQPS: what a configured 0 means
BURST_DEFAULT = 10  # DefaultBurst
UNLIMITED = frozenset((Client.HEARTBEAT, Client.DRIVER))


class ClientLimits:
    """The buckets of all nodes of a process that are not full."""

    def __init__(self) -> None:
        self._full_ns: dict[int, int] = {}  # by node and client

    def wait_ns(self, call: ApiCall, model: NodeModel, now_ns: int) -> int:
        """Take a token for a call; return how long it has to wait for it, 0 for not at all."""
        return self.take(call.node, OPERATIONS[call.op].client, model, now_ns)

    def take(self, node: int, client: Client, model: NodeModel, now_ns: int) -> int:
        """Take a token of a client; return how long it has to wait for it."""
        if client in UNLIMITED:
            return 0
        if client is Client.EVENTS:
            qps, burst = model.kubelet.event_record_qps, model.kubelet.event_burst
            if not qps and not model.release.limits_events_at_zero:
                return 0
        else:
            qps, burst = model.kubelet.kube_api_qps, model.kubelet.kube_api_burst
            if qps:
                client = Client.CORE
        interval_ns = NS_PER_S // (qps or QPS_DEFAULT)
        bucket = node * len(Client) + client
        full_ns = max(self._full_ns.get(bucket, 0), now_ns) + interval_ns
        self._full_ns[bucket] = full_ns
        return max(0, full_ns - now_ns - interval_ns * (burst or BURST_DEFAULT))

    def forget(self, now_ns: int) -> None:
        """Drop the buckets that are full again."""
        if self._full_ns:
            self._full_ns = {key: at for key, at in self._full_ns.items() if at > now_ns}

    def drop(self, nodes: Container[int]) -> None:
        """Forget the clients of nodes whose kubelets restart: new ones begin with full buckets."""
        self._full_ns = {
            key: at for key, at in self._full_ns.items() if key // len(Client) not in nodes
        }

    def __len__(self) -> int:
        """Return how many buckets are kept."""
        return len(self._full_ns)


REASON_MAX = 500
GIVEN_UP = "context deadline exceeded"


class Delayed(NamedTuple):
    """A call that waits: for its client's limit, or because the server asked us to come later."""

    call: ApiCall
    tries: int  # this one included
    has_token: bool  # its client lets it go once it is due
    deadline_ns: int = 0  # when it is given up, 0 for never


class Hindrance(NamedTuple):
    """What becomes of some calls of a node before they leave its machine."""

    ops: frozenset[Op]
    late_ns: int = 0  # 0: they get no answer


class Unsent(NamedTuple):
    """A call that could not be sent; its client hears so in the next turn."""

    call: ApiCall


class Calls:
    """Sends the calls of the kubelets of one process, as client-go's REST client does."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = 0
        self.delayed: dict[int, Delayed] = {}
        self.limits = ClientLimits()
        self.delays = WatchDelays(process.counts)
        self.hindrances: dict[NodeId, tuple[Hindrance, ...]] = {}  # of those that have any

    def call(self, call: ApiCall) -> Response | None:
        """Send a call as soon as its client may; return the answer to one that cannot be sent."""
        entry = self._process.kubelets.entries[call.node]
        if entry.kubelet is None:
            return None
        now_ns = self._process.clock.now_ns()
        if entry.story is not None:
            entry.story.append(f"{now_ns} call {call.op.name} {call.key}")
        if self._is_throttled(call, 1, entry.kubelet.env, now_ns):
            return None
        if self.hindrances and self._is_hindered(entry, call, now_ns):
            return None
        return self._send(entry, call, call)

    def _is_hindered(self, entry: Entry, call: ApiCall, now_ns: int) -> bool:
        """Put a call off, or let it wait for an answer that will not come."""
        found = [each for each in self.hindrances.get(call.node, ()) if call.op in each.ops]
        if not found:
            return False
        if all(each.late_ns for each in found):
            due_ns = now_ns + sum(each.late_ns for each in found)
            self._send_later(Delayed(call, 1, has_token=True), due_ns)
        else:
            due_ns = now_ns + entry.caller.template.timeout_ns
            self._send_later(Delayed(call, 1, has_token=True, deadline_ns=due_ns), due_ns)
        return True

    def on_response(self, token: ApiCall | Delayed, response: Response, now_ns: int) -> bool:
        """Count an answer; return whether it is the last one: no other try follows by itself."""
        call, tries = (token, 1) if isinstance(token, ApiCall) else (token.call, token.tries)
        row = OPERATIONS[call.op]
        counts = self._process.counts
        entry = self._process.kubelets.entries[call.node]
        if response.failure is not Failure.OWN_LIMIT:  # the transport has counted it
            count_answer(self._process, row, response)
        if entry.kubelet is None:  # silenced since; what the server did is counted all the same
            return False
        if response.failure is Failure.OVERSIZED:
            counts.rejected[response.detail] += 1
        if call.op is Op.RENEW_LEASE:
            count_renewal(counts, entry.kubelet, response, is_first=token is call)
        elif self.delays.looked_for and call.op in WATCHED_WRITES:
            version = self._version_in(response)
            self.delays.on_answer(call, entry, response, version, now_ns)
        # Source: Request.request: a GET is repeated too if its connection is lost.
        again_s = told_again_s(response, tries, LOST_FAILURES if row.verb == "GET" else NO_FAILURES)
        if again_s < 0:
            return True
        deadline_ns = 0 if isinstance(token, ApiCall) else token.deadline_ns
        if row.client is Client.HEARTBEAT and not deadline_ns:
            deadline_ns = (response.sent_ns or now_ns) + entry.caller.template.timeout_ns
        later = Delayed(call, tries + 1, has_token=False, deadline_ns=deadline_ns)
        due_ns = now_ns + again_s * NS_PER_S
        self._send_later(later, min(due_ns, deadline_ns) if deadline_ns else due_ns)
        return False

    def on_due(self, number: int) -> tuple[ApiCall, Response] | None:
        """Send what was put off; return the answer to a call that is not sent.

        A second try needs a token too. Source: withRetry.Before.
        """
        delayed = self.delayed.pop(number, None)
        if delayed is None:
            return None  # of a kubelet that has ended
        call, tries, has_token, deadline_ns = delayed
        entry = self._process.kubelets.entries[call.node]
        if entry.kubelet is None:
            return None
        now_ns = self._process.clock.now_ns()
        if deadline_ns and now_ns >= deadline_ns:
            return call, Response(0, b"", 0, now_ns, -1, Failure.TIMEOUT, GIVEN_UP)
        if not has_token and self._is_throttled(call, tries, entry.kubelet.env, now_ns):
            return None
        unsent = self._send(entry, call, delayed)
        return None if unsent is None else (call, unsent)

    def forget(self, nodes: Container[NodeId]) -> None:
        """Drop what some nodes still wait to send."""
        self.limits.drop(nodes)
        self.delays.forget(nodes)
        self.delayed = {
            number: each for number, each in self.delayed.items() if each.call.node not in nodes
        }

    def read(self, call: ApiCall, response: Response) -> Reply:
        """Return the reply to a call. An answer that cannot be read is none, as client-go has it.

        Source: client-go/rest/request.go, Result.Into: the caller gets an error without a status.
        """
        try:
            reply = decode_reply(call.op, response, self._process.codec)
        except RemoteProtocolError as error:
            reject(self._process.counts, error)
            reply = lost_reply(response, str(error))
        if OPERATIONS[call.op].owner is Owner.REGISTRATION:
            self._note_registration(call, reply)
        return reply

    def _note_registration(self, call: ApiCall, reply: Reply) -> None:
        """Keep why a node could not register; nodes with the same trouble share one text.

        After a refused create the kubelet looks whether its Node exists: that there is none is not
        the reason.
        """
        process = self._process
        if reply.ok:
            process.unregistered.pop(call.node, None)
        elif reply.kind not in (ReplyKind.EXISTS, ReplyKind.NOT_FOUND):
            name = process.kubelets.entries[call.node].caller.name.decode()
            text = (reply.message or f"HTTP {reply.code}").replace(name, "NODE")
            process.unregistered[call.node] = sys.intern(text[:REASON_MAX])

    def _send(self, entry: Entry, call: ApiCall, token: ApiCall | Delayed) -> Response | None:
        process = self._process
        try:
            request = build(call, entry.caller, process.codec.operations)
        except RemoteProtocolError as error:  # it is made of an earlier answer
            reject(process.counts, error)
            return Response(0, b"", 0, process.clock.now_ns(), -1, Failure.CANCELLED, str(error))
        if type(token) is Delayed and token.deadline_ns:
            left_s = -(-(token.deadline_ns - process.clock.now_ns()) // NS_PER_S)
            request = request._replace(timeout_ns=left_s * NS_PER_S)  # whole: of few values
        process.wires.nodes.send(entry.pool, request, token)
        now_ns = process.clock.now_ns()
        if call.op not in HEARTBEATS:
            process.idle.note_activity(now_ns)
        if call.op in WATCHED_WRITES:
            self.delays.on_sent(call, entry, now_ns, timed=process.idle.is_timed(now_ns))
        return None

    def _version_in(self, response: Response) -> str:
        """Return the version that an answer names, "" if there is none.

        A refusal may be of any kind: an overloaded server's is JSON or plain text.
        """
        codec = self._process.codec
        if response.code != OK:
            return ""
        try:
            return codec.version_in(response.body)
        except RemoteProtocolError:
            return ""
        except codec.malformed:
            return ""

    def _is_throttled(self, call: ApiCall, tries: int, env: Environment, now_ns: int) -> bool:
        """Take a token of the call's client; put the call off until there is one."""
        if not env.fidelity.limits_rate:
            return False
        wait_ns = self.limits.wait_ns(call, env.model, now_ns)
        if wait_ns:
            self._process.counts.throttled.record(wait_ns // 1000)
            self._send_later(Delayed(call, tries, has_token=True), now_ns + wait_ns)
        return wait_ns > 0

    def _send_later(self, delayed: Delayed, due_ns: int) -> None:
        self._numbers += 1
        self.delayed[self._numbers] = delayed
        self._process.wheel.set(due_ns, self._numbers, Timer.CALL_RETRY)


def count_answer(process: Process, row: Operation, response: Response) -> None:
    """Count an answer, whatever it says, and how long it took."""
    route = row.verb, row.resource
    code, took_us = response.code, response.took_us
    timed = process.idle.is_timed(response.sent_ns)
    process.counts.requests.record(route, code, took_us, len(response.body), timed=timed)


def count_renewal(
    counts: FleetCounts, kubelet: VirtualKubelet, response: Response, *, is_first: bool
) -> None:
    """Measure how late the first try was sent, and the interval that the API server sees."""
    lease = kubelet.lease
    # Later tries are late because the server or the connection was, not this process.
    if is_first and response.sent_ns and lease.is_first_try:
        counts.lease_late.record((response.sent_ns - lease.due_ns) // 1000)
    if response.code != 200:
        return
    counts.renewals += 1
    if lease.renewed_ns:
        interval_ns = response.arrived_ns - lease.renewed_ns
        if interval_ns > counts.lease_interval_ns_max:
            counts.lease_interval_ns_max = interval_ns
        # From here on the node lifecycle controller may take the node for dead.
        if interval_ns > kubelet.env.model.kubelet.node_lease_duration_seconds * NS_PER_S:
            counts.leases_missed += 1


class Errand:
    """A request that no kubelet made: the token takes the answer itself."""

    __slots__ = ()

    def on_message(self, message: object, now_ns: int) -> None:
        """Take what the transport brought."""
        raise NotImplementedError


def owner_of(token: object) -> int:
    """Return the node whose kubelet a request is of, NOBODY for none."""
    if type(token) is ApiCall:
        return token.node
    if type(token) is Delayed or type(token) is Unsent:
        return token.call.node
    if type(token) is Opening and isinstance(token.reflector, Reflector):
        return token.reflector.node
    return NOBODY
