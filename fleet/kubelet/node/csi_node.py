"""The node's CSINode object: without it the node does not become Ready.

    PROBE --any answer--> NODE --uid--> GET --404--> CREATE --ok--> DONE
                            |404           |other owner: DELETE, then the next try
                            v
                 back-off: 4 tries 10 ms x5, then 30 ms x8 between six such rounds

Source: pkg/volume/csi/csi_plugin.go, initializeCSINode;
pkg/volume/csi/nodeinfomanager/nodeinfomanager.go, tryInitializeCSINodeWithAnnotation.
Differs: after six rounds a kubelet exits and is restarted; here the rounds begin again at once.
"""

import enum

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.kubelet.environment import Environment
from fleet.objects.effects import (
    ApiCall,
    CSINodeObject,
    NodeId,
    Op,
    Outbox,
    Reply,
    ReplyKind,
    SetTimer,
    Timer,
)
from fleet.objects.pods import CSINodeView, NodeView

PROBE_NS = 1 * NS_PER_S
TRIES_PER_ROUND = 4
TRY_FIRST_NS = 10 * NS_PER_MS
TRY_FACTOR = 5
ROUNDS_MAX = 6
ROUND_FIRST_NS = 30 * NS_PER_MS
ROUND_FACTOR = 8
JITTER = 0.1
_JITTER_STREAM = 0xC51


class CSINodeState(enum.IntEnum):
    """What the initialisation waits for."""

    PROBE = 0
    NODE = 1
    GET = 2
    CREATE = 3
    DELETE = 4
    WAIT = 5
    DONE = 6


class CSINode:
    """Make the CSINode of one node exist, owned by its Node."""

    __slots__ = ("_due_ns", "_node", "_node_uid", "_probed", "_tries", "state")

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._node_uid = ""
        self._tries = 0
        self._due_ns = 0
        self._probed = False
        self.state = CSINodeState.PROBE

    @property
    def is_initialized(self) -> bool:
        """Return whether the node may become Ready."""
        return self.state is CSINodeState.DONE

    def start(self, out: Outbox) -> None:
        """Ask until the API server answers at all. Source: waitForAPIServerForever."""
        self.state = CSINodeState.PROBE
        out.append(ApiCall(self._node, Op.PROBE_CSINODE))

    def on_timer(self, now_ns: int, out: Outbox) -> None:
        """Try again once the back-off is over."""
        if self.state is not CSINodeState.WAIT or now_ns < self._due_ns:
            return
        if self._probed:
            self._try(out)
        else:
            self.start(out)

    def on_reply(
        self, call: ApiCall, reply: Reply, env: Environment, now_ns: int, out: Outbox
    ) -> None:
        """Take the answer to one of our calls."""
        if call.op is Op.PROBE_CSINODE:
            if reply.ok or reply.kind is ReplyKind.NOT_FOUND:
                self._probed = True
                self._try(out)
            else:
                self._wait(now_ns + PROBE_NS, out)
        elif call.op is Op.GET_NODE_CSI:
            self._on_node(reply, env, now_ns, out)
        elif call.op is Op.GET_CSINODE:
            self._on_got(reply, env, now_ns, out)
        elif call.op is Op.CREATE_CSINODE and reply.ok:
            self.state = CSINodeState.DONE
        else:  # a refused create, or a delete: the next try looks again
            self._back_off(env, now_ns, out)

    def _on_node(self, reply: Reply, env: Environment, now_ns: int, out: Outbox) -> None:
        if not reply.ok:
            self._back_off(env, now_ns, out)
            return
        assert isinstance(reply.record, NodeView), reply
        self._node_uid = reply.record.uid
        self.state = CSINodeState.GET
        out.append(ApiCall(self._node, Op.GET_CSINODE))

    def _on_got(self, reply: Reply, env: Environment, now_ns: int, out: Outbox) -> None:
        if reply.kind is ReplyKind.NOT_FOUND:
            self.state = CSINodeState.CREATE
            payload = CSINodeObject(self._node_uid)
            out.append(ApiCall(self._node, Op.CREATE_CSINODE, "", payload))
        elif not reply.ok:
            self._back_off(env, now_ns, out)
        else:
            assert isinstance(reply.record, CSINodeView), reply
            if reply.record.owner_uid == self._node_uid:
                self.state = CSINodeState.DONE
            else:
                self.state = CSINodeState.DELETE
                out.append(ApiCall(self._node, Op.DELETE_CSINODE))

    def _try(self, out: Outbox) -> None:
        self.state = CSINodeState.NODE
        out.append(ApiCall(self._node, Op.GET_NODE_CSI))

    def _back_off(self, env: Environment, now_ns: int, out: Outbox) -> None:
        """Wait as the two nested wait.ExponentialBackoff do."""
        round_, step = divmod(self._tries, TRIES_PER_ROUND)
        self._tries += 1
        if step < TRIES_PER_ROUND - 1:
            delay_ns = TRY_FIRST_NS * TRY_FACTOR**step
        else:
            delay_ns = ROUND_FIRST_NS * ROUND_FACTOR ** (round_ % ROUNDS_MAX)
        jitter = JITTER * env.draws.uniform(self._node, _JITTER_STREAM, now_ns)
        self._wait(now_ns + int(delay_ns * (1 + jitter)), out)

    def _wait(self, due_ns: int, out: Outbox) -> None:
        self.state = CSINodeState.WAIT
        self._due_ns = due_ns
        out.append(SetTimer(self._node, due_ns, Timer.CSI_NODE))
