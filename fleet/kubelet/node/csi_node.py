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
from fleet.k8s.effects import (
    ApiCall,
    CSINodeObject,
    Op,
    Reply,
    ReplyKind,
    Timer,
)
from fleet.k8s.objects import CSINodeView
from fleet.k8s.pods import NodeView
from fleet.kubelet.turn import Turn

PROBE_NS = 1 * NS_PER_S  # waitForAPIServerForever polls so often
TRIES_PER_ROUND = 4  # updateBackoff: Steps, the inner loop
TRY_FIRST_NS = 10 * NS_PER_MS
TRY_FACTOR = 5  # 10, 50, 250 ms
ROUNDS_MAX = 6  # initialization gives up after six rounds of tries
ROUND_FIRST_NS = 30 * NS_PER_MS
ROUND_FACTOR = 8  # 30 ms, 240 ms, 1.9 s, 15 s, 123 s
JITTER = 0.1
_JITTER_STREAM = 0xC51
STORAGE_ERROR = "CSINode is not yet initialized"
"""Why a node is not Ready before its CSINode is there. Source: csi_plugin.go, initializeCSINode."""


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

    __slots__ = ("_due_ns", "_node_uid", "_probed", "_tries", "state")

    def __init__(self) -> None:
        self._node_uid = ""
        self._tries = 0
        self._due_ns = 0
        self._probed = False
        self.state = CSINodeState.PROBE

    @property
    def is_initialized(self) -> bool:
        """Return whether the node may become Ready."""
        return self.state is CSINodeState.DONE

    def start(self, turn: Turn) -> None:
        """Ask until the API server answers at all. Source: waitForAPIServerForever."""
        self.state = CSINodeState.PROBE
        turn.call(Op.PROBE_CSINODE)

    def on_timer(self, turn: Turn, key: str = "") -> None:
        """Try again once the back-off is over; a `key` is not for us."""
        del key
        if self.state is not CSINodeState.WAIT or turn.now_ns < self._due_ns:
            return
        if self._probed:
            self._try(turn)
        else:
            self.start(turn)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to one of our calls."""
        if call.op is Op.PROBE_CSINODE:
            if reply.ok or reply.kind is ReplyKind.NOT_FOUND:
                self._probed = True
                self._try(turn)
            else:
                self._wait(turn.now_ns + PROBE_NS, turn)
        elif call.op is Op.GET_NODE_CSI:
            self._on_node(reply, turn)
        elif call.op is Op.GET_CSINODE:
            self._on_got(reply, turn)
        elif call.op is Op.CREATE_CSINODE and reply.ok:
            self.state = CSINodeState.DONE
        else:  # a refused create, or a delete: the next try looks again
            self._back_off(turn)

    def _on_node(self, reply: Reply, turn: Turn) -> None:
        if not reply.ok:
            self._back_off(turn)
            return
        assert isinstance(reply.record, NodeView), reply
        self._node_uid = reply.record.uid
        self.state = CSINodeState.GET
        turn.call(Op.GET_CSINODE)

    def _on_got(self, reply: Reply, turn: Turn) -> None:
        if reply.kind is ReplyKind.NOT_FOUND:
            self.state = CSINodeState.CREATE
            payload = CSINodeObject(self._node_uid)
            turn.call(Op.CREATE_CSINODE, "", payload)
        elif not reply.ok:
            self._back_off(turn)
        else:
            assert isinstance(reply.record, CSINodeView), reply
            if reply.record.owner_uid == self._node_uid:
                self.state = CSINodeState.DONE
            else:
                self.state = CSINodeState.DELETE
                turn.call(Op.DELETE_CSINODE)

    def _try(self, turn: Turn) -> None:
        self.state = CSINodeState.NODE
        turn.call(Op.GET_NODE_CSI)

    def _back_off(self, turn: Turn) -> None:
        """Wait as the two nested wait.ExponentialBackoff do."""
        round_, step = divmod(self._tries, TRIES_PER_ROUND)
        self._tries += 1
        if step < TRIES_PER_ROUND - 1:
            delay_ns = TRY_FIRST_NS * TRY_FACTOR**step
        else:
            delay_ns = ROUND_FIRST_NS * ROUND_FACTOR ** (round_ % ROUNDS_MAX)
        jitter = JITTER * turn.draw(_JITTER_STREAM)
        self._wait(turn.now_ns + int(delay_ns * (1 + jitter)), turn)

    def _wait(self, due_ns: int, turn: Turn) -> None:
        self.state = CSINodeState.WAIT
        self._due_ns = due_ns
        turn.arm(due_ns, Timer.CSI_NODE)
