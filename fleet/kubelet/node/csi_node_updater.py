"""CSINodeUpdater: how many volumes a node takes may change, and its CSINode follows.

    sync --nodeAllocatableUpdatePeriodSeconds--> due --GET CSINode--> as it was, or PUT --> done
                                                  ^                         | refused
    a volume that its node has no room for -------+-- 10 ms x5, four tries -+

Once its drivers have registered, a kubelet asks each whose CSIDriver names a period for its
NodeGetInfo: at every period, and at once when a pod finds that the node is full.
Source: pkg/volume/csi/csi_node_updater.go; csi_plugin.go, updateCSIDriver, VerifyExhaustedResource;
nodeinfomanager/nodeinfomanager.go, updateCSINode, installDriverToCSINode.
Differs: what NodeGetInfo says comes from the profile; a CSINode that is gone is created, then read.
"""

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, CSINodeObject, Op, Reply, ReplyKind, Timer
from fleet.k8s.objects import CSINodeView
from fleet.k8s.volumes import CSINodeUpdate
from fleet.kubelet.node.csi_node import CSINode
from fleet.kubelet.node.csi_registration import (
    TRIES_MAX,
    TRY_FACTOR,
    TRY_FIRST_NS,
    CSIRegistration,
    begin_registration,
)
from fleet.kubelet.turn import Turn


class CSINodeUpdater:
    """Keep the counts of one node's CSINode up to date."""

    __slots__ = ("_due", "_queue", "_retry_ns", "_tries")

    is_initialized = True  # the CSINode is there: the node may be Ready

    def __init__(self) -> None:
        self._due: dict[str, tuple[int, int]] = {}  # by driver: its period, and when it is over
        self._queue: tuple[str, ...] = ()  # drivers to be asked; of the first an answer is awaited
        self._tries = 0
        self._retry_ns = 0

    def __bool__(self) -> bool:
        """Tell whether there is anything to do, now or later."""
        return bool(self._due or self._queue)

    def sync(self, turn: Turn) -> None:
        """Follow what the CSIDrivers say. Source: onDriverUpdate, syncDriverUpdater."""
        for driver in turn.env.model.csi_drivers:
            found = turn.env.csi_drivers.get(driver.name)
            period_ns = found.allocatable_period_s * NS_PER_S if found is not None else 0
            known_ns, _ = self._due.get(driver.name, (0, 0))
            if period_ns == known_ns:
                continue
            self._due.pop(driver.name, None)
            if period_ns:
                self._due[driver.name] = (period_ns, turn.now_ns + period_ns)
                turn.arm(turn.now_ns + period_ns, Timer.CSI_NODE)

    def on_timer(self, turn: Turn, key: str = "") -> None:
        """Ask what is due, or the driver `key`: a volume of it was refused."""
        if self._retry_ns and turn.now_ns >= self._retry_ns:
            self._retry_ns = 0
            turn.call(Op.GET_CSINODE)
        for name, (period_ns, due_ns) in self._due.items():
            if turn.now_ns >= due_ns:
                self._due[name] = (period_ns, due_ns + period_ns)
                turn.arm(due_ns + period_ns, Timer.CSI_NODE)
                self._ask(name, turn)
        if key in turn.env.model.csi_driver_names:
            self._ask(key, turn)

    def _ask(self, name: str, turn: Turn) -> None:
        if name not in self._queue:
            self._queue += (name,)
            if len(self._queue) == 1:
                turn.call(Op.GET_CSINODE)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to one of our calls. Source: tryUpdateCSINode."""
        if not self._queue:
            return
        view = reply.record
        if call.op is Op.GET_CSINODE and isinstance(view, CSINodeView):
            self._compare(view, turn)
        elif call.op is Op.GET_CSINODE and reply.kind is ReplyKind.NOT_FOUND:
            turn.call(Op.CREATE_CSINODE, "", CSINodeObject(turn.facts.uid))
        elif call.op is Op.CREATE_CSINODE and reply.ok:
            turn.call(Op.GET_CSINODE)
        elif call.op is Op.UPDATE_CSINODE and reply.ok:
            self._next(turn)
        else:
            self._back_off(turn)

    def _compare(self, view: CSINodeView, turn: Turn) -> None:
        """Write what differs. Source: ensureNodeOwnsCSINode, installDriverToCSINode."""
        if not turn.facts.uid:  # a Node that is gone takes its CSINode along
            self._next(turn)
            return
        if view.owner_uid != turn.facts.uid:
            turn.call(Op.DELETE_CSINODE)
            return
        driver = turn.env.model.csi_driver(self._queue[0])
        assert driver is not None, self._queue
        count = driver.count_at(turn.now_ns - turn.facts.started_ns)
        keys = driver.topology_keys
        wanted = (driver.name, turn.facts.name, frozenset(keys), count)
        if wanted in view.drivers:
            self._next(turn)
        else:
            update = CSINodeUpdate(view.body, driver.name, turn.facts.name, keys, count)
            turn.call(Op.UPDATE_CSINODE, "", update)

    def _next(self, turn: Turn) -> None:
        self._queue = self._queue[1:]
        self._tries = 0
        if self._queue:
            turn.call(Op.GET_CSINODE)

    def _back_off(self, turn: Turn) -> None:
        """Wait as wait.ExponentialBackoff does; after four tries it is left for the next period."""
        self._tries += 1
        if self._tries == TRIES_MAX:
            self._next(turn)
            return
        self._retry_ns = turn.now_ns + TRY_FIRST_NS * TRY_FACTOR ** (self._tries - 1)
        turn.arm(self._retry_ns, Timer.CSI_NODE)


CSIStage = CSINode | CSIRegistration | CSINodeUpdater
"""What a kubelet does about its CSINode: make it, publish drivers, keep them up to date."""


def next_stage(stage: CSIStage, turn: Turn) -> CSIStage | None:
    """Return what follows once a stage is over; None when there is nothing more to do."""
    if isinstance(stage, CSINode):
        return begin_registration(turn) if stage.is_initialized else stage
    if isinstance(stage, CSIRegistration):
        return heed_drivers(None, turn) if stage.is_done else stage
    return stage or None


def heed_drivers(stage: CSIStage | None, turn: Turn) -> CSIStage | None:
    """Learn that the CSIDrivers of the cluster have changed."""
    if not (turn.env.fidelity.has_csi_node and turn.env.model.csi_drivers):
        return stage
    if isinstance(stage, CSINode | CSIRegistration):  # it looks at them once that is over
        return stage
    updater = stage or CSINodeUpdater()
    updater.sync(turn)
    return updater or None
