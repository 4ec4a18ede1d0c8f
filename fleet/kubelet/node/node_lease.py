"""The node's Lease: created once, then renewed from what the last call returned.

    WAIT --due--> RENEW --ok, or five failures after a GET--> WAIT
      |no lease yet  |five failures        RENEW --409--> GET --> RENEW, counted as a try
      v              v
     GET --404--> OWNER --uid--> CREATE --ok--> WAIT, after a 409 RENEW
      |ok: RENEW    |404: WAIT, the next tick tries again;
                    |     after a 409 UNOWNED, which reads the Node once for each try that is left

Of a Node that others make (`--manage`) a Lease that GET shows with a time that fleet never sent is
another kubelet's: STOPPED, and the node falls silent.

The machine has two callers: the short way of an ordinary renewal (`begin`, `on_success`; see
`reactor/heartbeats.py`), and the kubelet's inputs, which know all cases (`on_timer`, `on_reply`).

Errors of GET and CREATE wait 200 ms doubling to 7 s and start over with GET.
Source: component-helpers/apimachinery/lease/controller.go; pkg/kubelet/util/nodelease.go.
Differs: idle connections are not closed on repeated failures; the transport's pings find dead ones.
In fidelity light a renewal falls due at a tenth of a second, together with those of other nodes:
what renews fifty Leases at once takes two thirds of the CPU of what renews them one by one, here
and in the API server.
"""

import enum
from dataclasses import dataclass

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s import effects
from fleet.k8s.holds import RENEWED
from fleet.k8s.pods import LeaseView, NodeView
from fleet.kubelet.environment import Environment
from fleet.kubelet.turn import Turn

RENEW_FRACTION = 4  # the interval is a quarter of the duration
JITTER = 0.04  # JitterUntilWithContext: never early, up to 4 % late
RETRIES_MAX = 5  # maxUpdateRetries, at once one after another
TOGETHER_NS = 100 * NS_PER_MS  # in fidelity light renewals fall due at multiples of it
BACKOFF_FIRST_NS = 200 * NS_PER_MS
BACKOFF_MAX_NS = 7 * NS_PER_S  # maxBackoff: less than the default interval of 10 s
_JITTER_STREAM = 0x1EA5E


class LeaseState(enum.IntEnum):
    """What the controller waits for."""

    WAIT = 0
    GET = 1
    OWNER = 2
    CREATE = 3
    RENEW = 4
    STOPPED = 5
    UNOWNED = 6


WAIT, RENEW = LeaseState.WAIT, LeaseState.RENEW  # of each renewal: an Enum's member takes 50 ns


@dataclass(slots=True, eq=False)
class NodeLease:
    """Keep one Lease renewed.

    `due_ns` is when it is, or was, to be renewed; `renewed_ns` when a write was last answered, 0
    for never.
    """

    _state: LeaseState = LeaseState.WAIT
    base: bytes = b""  # the Lease as it was read last
    due_ns: int = 0
    _failures: int = 0  # of this tick: five before the Lease was looked for, five after
    _backoff_ns: int = 0
    renewed_ns: int = 0

    @property
    def is_first_try(self) -> bool:
        """Return whether the renewal under way is the first one since `due_ns`."""
        return self._state is RENEW and not self._failures

    def begin(self, now_ns: int) -> bytes:
        """Begin a renewal that is due; return the Lease to be sent again with a new time.

        b"" if there is none to send, or none is due: then nothing has begun. What comes back goes
        to `on_success`, or to `on_reply` if it is anything else.
        """
        if self._state is not WAIT or not self.base or now_ns < self.due_ns:
            return b""
        self._failures = 0
        self._state = RENEW
        return self.base

    def on_success(
        self, base: bytes, arrived_ns: int, node: effects.NodeId, env: Environment, now_ns: int
    ) -> int:
        """Take the Lease as a renewal left it; return when the next one is due."""
        assert self._state is RENEW, self._state
        self.base = base
        self.renewed_ns = arrived_ns
        self._state = WAIT
        self.due_ns = due_ns = _next_ns(node, env, now_ns)
        return due_ns

    def stop(self) -> None:
        """Renew no more; the kubelet never deletes its lease."""
        self._state = LeaseState.STOPPED

    def on_timer(self, turn: Turn) -> None:
        """Renew, or look for the Lease if none was seen. A stale timer does nothing."""
        if self.begin(turn.now_ns):
            self._renew(turn)
        elif self._state is LeaseState.WAIT and turn.now_ns >= self.due_ns:
            self._failures = 0
            self.ensure(turn)

    def on_reply(self, call: effects.ApiCall, reply: effects.Reply, turn: Turn) -> None:
        """Take the answer to one of our four calls."""
        if self._state is LeaseState.STOPPED:
            return
        hold = turn.env.holds.get(turn.node)
        if (
            hold is not None
            and reply.ok
            and isinstance(call.payload, effects.LeaseRenewal | effects.LeaseObject)
        ):
            hold.on_confirmed(call.payload.renew_ns)
        if call.op is effects.Op.RENEW_LEASE:
            self._on_renewed(reply, turn)
        elif call.op is effects.Op.GET_LEASE:
            self._on_got(reply, turn)
        elif call.op is effects.Op.CREATE_LEASE:
            self._on_created(reply, turn)
        else:
            assert call.op is effects.Op.GET_NODE_LEASE, call
            self._on_owner(reply, turn)

    def _on_renewed(self, reply: effects.Reply, turn: Turn) -> None:
        """Source: sync, retryUpdateLease: twice five tries; a conflict needs a newer base first."""
        if reply.ok:
            assert isinstance(reply.record, LeaseView), reply
            body, arrived_ns, env = reply.record.body, reply.arrived_ns, turn.env
            due_ns = self.on_success(body, arrived_ns, turn.node, env, turn.now_ns)
            turn.arm(due_ns, effects.Timer.RENEW_LEASE)
            return
        self._failures += 1
        if self._failures == 2 * RETRIES_MAX:
            self._wait(turn)
        elif self._failures == RETRIES_MAX or reply.kind is effects.ReplyKind.CONFLICT:
            self.ensure(turn)
        else:
            self._renew(turn)

    def _on_got(self, reply: effects.Reply, turn: Turn) -> None:
        if reply.ok:
            self._take_base(reply)
            if self._is_lost(reply, turn):
                return
            self._backoff_ns = 0
            self._failures = self._failures or RETRIES_MAX
            self._renew(turn)
        elif reply.kind is effects.ReplyKind.NOT_FOUND:
            self.base = b""
            self._state = LeaseState.OWNER
            turn.call(effects.Op.GET_NODE_LEASE)
        else:
            self._back_off(turn)

    def _is_lost(self, reply: effects.Reply, turn: Turn) -> bool:
        """Stop if another kubelet has made or renewed the Lease; return whether one has."""
        assert isinstance(reply.record, LeaseView), reply
        hold = turn.env.holds.get(turn.node)
        if hold is None or hold.is_own_renewal(reply.record.renewed):
            return False
        self._state = LeaseState.STOPPED
        turn.lose(hold, RENEWED)
        return True

    def _on_created(self, reply: effects.Reply, turn: Turn) -> None:
        if reply.ok:
            self._take_base(reply)
            self.renewed_ns = reply.arrived_ns
            self._backoff_ns = 0
            if self._failures % RETRIES_MAX:  # retryUpdateLease goes on with what it made
                self._renew(turn)
            else:
                self._wait(turn)
        elif reply.kind is effects.ReplyKind.EXISTS and (
            not turn.env.fidelity.registers_in_steps or turn.node in turn.env.holds
        ):
            self.ensure(turn)
        else:
            self._back_off(turn)

    def _on_owner(self, reply: effects.Reply, turn: Turn) -> None:
        """Without an owner no Lease is made; tries after a conflict each look for it.

        Source: newLease, in ensureLease and in retryUpdateLease. Differs: an owner that comes back
        between two tries gets a POST; a kubelet's PUT creates as well.
        """
        is_try = self._state is LeaseState.UNOWNED
        if reply.ok:
            assert isinstance(reply.record, NodeView), reply
            self._failures = 0 if is_try else self._failures
            self.create(reply.record.uid, turn)
            return
        self._failures += is_try
        if self._failures % RETRIES_MAX:
            self._state = LeaseState.UNOWNED
            turn.call(effects.Op.GET_NODE_LEASE)
        elif is_try and self._failures == RETRIES_MAX:
            self.ensure(turn)
        else:
            self._wait(turn)

    def _take_base(self, reply: effects.Reply) -> None:
        assert isinstance(reply.record, LeaseView), reply
        self.base = reply.record.body

    def _renew(self, turn: Turn) -> None:
        self._state = LeaseState.RENEW
        payload = effects.LeaseRenewal(self.base, turn.wall_ns)
        if (hold := turn.env.holds.get(turn.node)) is not None:
            hold.on_sent(payload.renew_ns)
        turn.call(effects.Op.RENEW_LEASE, "", payload)

    def ensure(self, turn: Turn) -> None:
        """Look for the Lease; from the kubelet's first moment."""
        self._state = LeaseState.GET
        turn.call(effects.Op.GET_LEASE)

    def create(self, node_uid: str, turn: Turn) -> None:
        """Create it. Differs: once its Node is created; a kubelet looks first."""
        self._state = LeaseState.CREATE
        payload = effects.LeaseObject(
            node_uid, turn.env.model.kubelet.node_lease_duration_seconds, turn.wall_ns
        )
        if (hold := turn.env.holds.get(turn.node)) is not None:
            hold.on_sent(payload.renew_ns)
        turn.call(effects.Op.CREATE_LEASE, "", payload)

    def _back_off(self, turn: Turn) -> None:
        """Source: backoffEnsureLease."""
        self._backoff_ns = min(self._backoff_ns * 2 or BACKOFF_FIRST_NS, BACKOFF_MAX_NS)
        self.base = b""
        self._wait_until(turn.now_ns + self._backoff_ns, turn)

    def _wait(self, turn: Turn) -> None:
        self._wait_until(_next_ns(turn.node, turn.env, turn.now_ns), turn)

    def _wait_until(self, due_ns: int, turn: Turn) -> None:
        self._state = LeaseState.WAIT
        self.due_ns = due_ns
        turn.arm(due_ns, effects.Timer.RENEW_LEASE)


def _next_ns(node: effects.NodeId, env: Environment, now_ns: int) -> int:
    """Return when a Lease that was renewed just now is to be renewed again.

    Source: wait.JitterUntil, sliding: the interval begins when the call ended.
    """
    interval_ns = env.model.kubelet.node_lease_duration_seconds * NS_PER_S // RENEW_FRACTION
    jitter = JITTER * env.draws.uniform(node, _JITTER_STREAM, now_ns)
    due_ns = now_ns + int(interval_ns * (1 + jitter))
    return due_ns if env.fidelity.spreads_renewals else due_ns + -due_ns % TOGETHER_NS
