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
from fleet.kubelet.environment import Environment
from fleet.objects.effects import (
    ApiCall,
    NodeId,
    NodeStatusPatch,
    Op,
    Outbox,
    Reply,
    SetTimer,
    Timer,
)
from fleet.objects.pods import CSINodeView, NodeView
from fleet.objects.volumes import CSINodeUpdate

NODE_ID_ANNOTATION = "csi.volume.kubernetes.io/nodeid"
RECONCILE_NS = 1 * NS_PER_S
TRIES_MAX = 4
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


class CSIRegistration:
    """Publish the CSI drivers of one node's profile."""

    __slots__ = ("_due_ns", "_index", "_name", "_node", "_state", "_topology", "_tries")

    is_initialized = True  # the CSINode is there: the node may be Ready

    def __init__(self, node: NodeId, name: str) -> None:
        self._node = node
        self._name = name
        self._index = 0  # of the driver
        self._tries = 0
        self._due_ns = 0
        self._topology: tuple[tuple[str, str], ...] = ()
        self._state = RegistrationState.WAIT

    @property
    def is_done(self) -> bool:
        """Return whether every driver is published."""
        return self._state is RegistrationState.DONE

    def start(self, now_ns: int, out: Outbox) -> None:
        """Begin when the plug-in watcher finds the first socket."""
        self._wait(now_ns + RECONCILE_NS, out)

    def on_timer(self, now_ns: int, out: Outbox) -> None:
        """Try again once the back-off is over."""
        if self._state is RegistrationState.WAIT and now_ns >= self._due_ns:
            self._state = RegistrationState.NODE
            out.append(ApiCall(self._node, Op.GET_NODE_CSI))

    def on_reply(
        self, call: ApiCall, reply: Reply, env: Environment, now_ns: int, out: Outbox
    ) -> None:
        """Take the answer to one of our calls."""
        driver = env.model.csi_drivers[self._index]
        if not reply.ok:
            self._back_off(now_ns, out)
        elif call.op is Op.GET_NODE_CSI and isinstance(reply.record, NodeView):
            labels = reply.record.labels
            self._topology = tuple(
                (key, labels.get(key, self._name)) for key in driver.topology_keys
            )
            self._state = RegistrationState.LABELS
            missing = tuple(each for each in self._topology if labels.get(each[0]) != each[1])
            names = sorted(each.name for each in env.model.csi_drivers[: self._index + 1])
            ids = orjson.dumps(dict.fromkeys(names, self._name)).decode()
            patch = NodeStatusPatch(labels=missing, annotations=((NODE_ID_ANNOTATION, ids),))
            out.append(ApiCall(self._node, Op.PATCH_NODE_CSI, "", patch))
        elif call.op is Op.PATCH_NODE_CSI:
            self._state = RegistrationState.CSINODE
            out.append(ApiCall(self._node, Op.GET_CSINODE))
        elif call.op is Op.GET_CSINODE and isinstance(reply.record, CSINodeView):
            self._state = RegistrationState.DRIVER
            update = CSINodeUpdate(
                reply.record.body,
                driver.name,
                self._name,
                driver.topology_keys,
                driver.allocatable_count,
            )
            out.append(ApiCall(self._node, Op.UPDATE_CSINODE, "", update))
        elif call.op is Op.UPDATE_CSINODE:
            self._next(env, out)

    def _next(self, env: Environment, out: Outbox) -> None:
        self._index += 1
        self._tries = 0
        if self._index == len(env.model.csi_drivers):
            self._state = RegistrationState.DONE
        else:
            self._state = RegistrationState.NODE
            out.append(ApiCall(self._node, Op.GET_NODE_CSI))

    def _back_off(self, now_ns: int, out: Outbox) -> None:
        """Wait as wait.ExponentialBackoff does; after four tries the plug-in manager does."""
        step = self._tries % TRIES_MAX
        self._tries += 1
        delay_ns = TRY_FIRST_NS * TRY_FACTOR**step if step < TRIES_MAX - 1 else RECONCILE_NS
        self._wait(now_ns + delay_ns, out)

    def _wait(self, due_ns: int, out: Outbox) -> None:
        self._state = RegistrationState.WAIT
        self._due_ns = due_ns
        out.append(SetTimer(self._node, due_ns, Timer.CSI_NODE))
