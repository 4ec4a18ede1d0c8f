"""CSI drivers of a node announce themselves: on its Node, then in its CSINode, one after another.

    WAIT --> NODE --GET--> LABELS --PATCH status--> CSINODE --GET--> DRIVER --PUT--> next driver
      ^ 10 ms x5, four tries                                           |
      +----------------------------------------------------------------+ a refusal

Source: pkg/volume/csi/csi_plugin.go, RegisterPlugin;
pkg/volume/csi/nodeinfomanager/nodeinfomanager.go, InstallCSIDriver, updateNode, tryUpdateCSINode;
pkg/kubelet/pluginmanager/reconciler/reconciler.go, whose loop looks for sockets each second.
Differs: what a driver's NodeGetInfo would say comes from the profile; the node's ID is its name.
"""

import enum

import orjson

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    NodeStatusPatch,
    Op,
    Reply,
    Timer,
)
from fleet.k8s.objects import CSINodeView
from fleet.k8s.pods import NodeView
from fleet.k8s.volumes import CSINodeUpdate
from fleet.kubelet.turn import Turn

NODE_ID_ANNOTATION = "csi.volume.kubernetes.io/nodeid"
RECONCILE_NS = 1 * NS_PER_S  # the plug-in manager's loopSleepDuration
TRIES_MAX = 4  # updateBackoff: Steps, as in csi_node.py
TRY_FIRST_NS = 10 * NS_PER_MS
TRY_FACTOR = 5


class RegistrationState(enum.IntEnum):
    """What the registration waits for."""

    WAIT = 0
    NODE = 1
    LABELS = 2
    CSINODE = 3
    DRIVER = 4
    DONE = 5


def begin_registration(turn: Turn) -> "CSIRegistration | None":
    """Return what publishes the drivers of the profile, if it has any."""
    if not turn.env.model.csi_drivers:
        return None
    registration = CSIRegistration()
    registration.start(turn)
    return registration


class CSIRegistration:
    """Publish the CSI drivers of one node's profile."""

    __slots__ = ("_due_ns", "_index", "_state", "_topology", "_tries")

    is_initialized = True  # the CSINode is there: the node may be Ready

    def __init__(self) -> None:
        self._index = 0  # of the driver
        self._tries = 0
        self._due_ns = 0
        self._topology: tuple[tuple[str, str], ...] = ()
        self._state = RegistrationState.WAIT

    @property
    def is_done(self) -> bool:
        """Return whether every driver is published."""
        return self._state is RegistrationState.DONE

    def start(self, turn: Turn) -> None:
        """Begin when the plug-in watcher finds the first socket."""
        self._wait(turn.now_ns + RECONCILE_NS, turn)

    def on_timer(self, turn: Turn, key: str = "") -> None:
        """Try again once the back-off is over; a `key` is not for us."""
        del key
        if self._state is RegistrationState.WAIT and turn.now_ns >= self._due_ns:
            self._state = RegistrationState.NODE
            turn.call(Op.GET_NODE_CSI)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to one of our calls."""
        driver = turn.env.model.csi_drivers[self._index]
        if not reply.ok:
            self._back_off(turn)
        elif call.op is Op.GET_NODE_CSI and isinstance(reply.record, NodeView):
            labels = reply.record.labels
            self._topology = tuple(
                (key, labels.get(key, turn.facts.name)) for key in driver.topology_keys
            )
            self._state = RegistrationState.LABELS
            missing = tuple(each for each in self._topology if labels.get(each[0]) != each[1])
            names = sorted(each.name for each in turn.env.model.csi_drivers[: self._index + 1])
            ids = orjson.dumps(dict.fromkeys(names, turn.facts.name)).decode()
            patch = NodeStatusPatch(labels=missing, annotations=((NODE_ID_ANNOTATION, ids),))
            turn.call(Op.PATCH_NODE_CSI, "", patch)
        elif call.op is Op.PATCH_NODE_CSI:
            self._state = RegistrationState.CSINODE
            turn.call(Op.GET_CSINODE)
        elif call.op is Op.GET_CSINODE and isinstance(reply.record, CSINodeView):
            self._state = RegistrationState.DRIVER
            update = CSINodeUpdate(
                reply.record.body,
                driver.name,
                turn.facts.name,
                driver.topology_keys,
                driver.count_at(turn.now_ns - turn.facts.started_ns),
            )
            turn.call(Op.UPDATE_CSINODE, "", update)
        elif call.op is Op.UPDATE_CSINODE:
            self._next(turn)

    def _next(self, turn: Turn) -> None:
        self._index += 1
        self._tries = 0
        if self._index == len(turn.env.model.csi_drivers):
            self._state = RegistrationState.DONE
        else:
            self._state = RegistrationState.NODE
            turn.call(Op.GET_NODE_CSI)

    def _back_off(self, turn: Turn) -> None:
        """Wait as wait.ExponentialBackoff does; after four tries the plug-in manager does."""
        step = self._tries % TRIES_MAX
        self._tries += 1
        delay_ns = TRY_FIRST_NS * TRY_FACTOR**step if step < TRIES_MAX - 1 else RECONCILE_NS
        self._wait(turn.now_ns + delay_ns, turn)

    def _wait(self, due_ns: int, turn: Turn) -> None:
        self._state = RegistrationState.WAIT
        self._due_ns = due_ns
        turn.arm(due_ns, Timer.CSI_NODE)
