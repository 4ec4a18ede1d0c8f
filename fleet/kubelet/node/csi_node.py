"""The node's CSINode object, one machine after another: made, drivers register, limits follow.

    CSINode: PROBE --any answer--> NODE --uid--> GET --404--> CREATE --ok--> DONE
                                     |404           |other owner: DELETE, then the next try
                                     v
                          back-off: 4 tries 10 ms x5, then 30 ms x8 between six such rounds
             before 1.35: PROBE --any answer--> GET --404--> NODE --uid--> CREATE, of any owner

    CSIDrivers: WAIT --> NODE --GET--> LABELS --PATCH status--> CSINODE --GET--> DRIVER --PUT
                   ^ 10 ms x5, four tries of the Node, four     | 404: CREATE   | other owner:
                   | of the CSINode, then NODE again            |               | DELETE, next try
                   +------------------------------------------- next driver <---+
      A CSINode that names a driver already, as before a restart, is not written.
      When all are registered: sync --nodeAllocatableUpdatePeriodSeconds--> due --> CSINODE, which
      is done at once when a pod finds the node full; after four tries the next period is awaited.

Without a CSINode the node does not become Ready. Once its drivers have registered, a kubelet asks
each whose CSIDriver names a period for its NodeGetInfo.
Source: pkg/volume/csi/csi_plugin.go, initializeCSINode, RegisterPlugin, updateCSIDriver,
VerifyExhaustedResource; csi_node_updater.go; nodeinfomanager/nodeinfomanager.go,
tryInitializeCSINodeWithAnnotation, InstallCSIDriver, updateNode, tryUpdateCSINode;
pkg/kubelet/pluginmanager/reconciler/reconciler.go, whose loop looks for sockets each second.
Differs: after six rounds a kubelet exits and is restarted; here the rounds begin again at once.
What a driver's NodeGetInfo would say comes from the profile; the node's ID is its name.
"""

from dataclasses import dataclass, field

import orjson

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import ApiCall, CSINodeObject, NodeStatusPatch, Op, Reply, ReplyKind, Timer
from fleet.k8s.objects import CSINodeView
from fleet.k8s.pods import NodeView
from fleet.k8s.volumes import CSINodeUpdate
from fleet.kubelet.turn import Turn
from fleet.profile.pod_behavior import CSIDriver

PROBE_NS = 1 * NS_PER_S  # waitForAPIServerForever polls so often
TRIES_PER_ROUND = 4  # updateBackoff: Steps, the inner loop
TRY_FIRST_NS = 10 * NS_PER_MS
TRY_FACTOR = 5  # 10, 50, 250 ms
ROUNDS_MAX = 6  # initialization gives up after six rounds of tries
ROUND_FIRST_NS = 30 * NS_PER_MS
ROUND_FACTOR = 8  # 30 ms, 240 ms, 1.9 s, 15 s, 123 s; the last round is followed by the first
JITTER = 0.1
_JITTER_STREAM = 0xC51
STORAGE_ERROR = "CSINode is not yet initialized"  # why a node is not Ready before its first round
ROUND_ERROR = (
    "failed to initialize CSINode: error updating CSINode annotation: timed out waiting for the "
    "condition; caused by: "
)
"""Why that is so after a round of tries. Source: csi_plugin.go, initializeCSINode."""


@dataclass(slots=True, eq=False)
class CSINode:
    """Make the CSINode of one node exist, owned by its Node."""

    _node_uid: str = ""
    _tries: int = 0
    _due_ns: int = 0  # of the next try, 0 while an answer is awaited
    _probed: bool = False
    is_initialized: bool = False  # the node may become Ready
    error: str = STORAGE_ERROR  # why it is not

    def start(self, turn: Turn) -> None:
        """Ask until the API server answers at all. Source: waitForAPIServerForever."""
        turn.call(Op.PROBE_CSINODE)

    def create(self, node_uid: str, turn: Turn) -> None:
        """Create it, owned by its Node. A refusal is looked into at the next try."""
        self._node_uid, self._probed = node_uid, True
        turn.call(Op.CREATE_CSINODE, "", CSINodeObject(node_uid))

    def on_timer(self, turn: Turn, key: str = "") -> None:
        """Try again once the back-off is over; a `key` is not for us."""
        del key
        if self._due_ns and turn.now_ns >= self._due_ns:
            self._due_ns = 0
            turn.call(self._first(turn) if self._probed else Op.PROBE_CSINODE)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to one of our calls."""
        if call.op is Op.PROBE_CSINODE:
            if reply.ok or reply.kind is ReplyKind.NOT_FOUND:
                self._probed = True
                turn.call(self._first(turn))
            else:
                self._wait(turn.now_ns + PROBE_NS, turn)
        elif call.op is Op.GET_NODE_CSI:
            self._on_node(reply, turn)
        elif call.op is Op.GET_CSINODE:
            self._on_got(reply, turn)
        elif call.op is Op.CREATE_CSINODE and reply.ok:
            self.is_initialized = True
        else:  # a refused create, or a delete: the next try looks again
            self._back_off(reply, turn)

    def _on_node(self, reply: Reply, turn: Turn) -> None:
        if not reply.ok:
            self._back_off(reply, turn)
            return
        assert isinstance(reply.record, NodeView), reply
        self._node_uid = reply.record.uid
        if turn.env.model.release.owns_csinode:
            turn.call(Op.GET_CSINODE)
        else:
            self.create(self._node_uid, turn)

    def _on_got(self, reply: Reply, turn: Turn) -> None:
        if reply.kind is ReplyKind.NOT_FOUND:
            create_missing(self._node_uid, turn)
        elif not reply.ok:
            self._back_off(reply, turn)
        elif is_owned(reply.record, self._node_uid, turn):
            self.is_initialized = True
        else:
            turn.call(Op.DELETE_CSINODE)

    def _first(self, turn: Turn) -> Op:
        """Return what a try begins with."""
        return Op.GET_NODE_CSI if turn.env.model.release.owns_csinode else Op.GET_CSINODE

    def _back_off(self, reply: Reply, turn: Turn) -> None:
        """Wait as the two nested wait.ExponentialBackoff do; say why after each round."""
        round_, step = divmod(self._tries, TRIES_PER_ROUND)
        self._tries += 1
        if step < TRIES_PER_ROUND - 1:
            delay_ns = TRY_FIRST_NS * TRY_FACTOR**step
        else:
            self.error = ROUND_ERROR + reply.message
            round_ %= ROUNDS_MAX
            delay_ns = ROUND_FIRST_NS * ROUND_FACTOR**round_ if round_ < ROUNDS_MAX - 1 else 0
        jitter = JITTER * turn.draw(_JITTER_STREAM)
        self._wait(turn.now_ns + int(delay_ns * (1 + jitter)), turn)

    def _wait(self, due_ns: int, turn: Turn) -> None:
        self._due_ns = due_ns
        turn.arm(due_ns, Timer.CSI_NODE)


NODE_ID_ANNOTATION = "csi.volume.kubernetes.io/nodeid"
RECONCILE_NS = 1 * NS_PER_S  # the plug-in manager's loopSleepDuration
REGISTER_FIRST_NS = 500 * NS_PER_MS  # its back-off: initialDurationBeforeRetry, which doubles
REGISTER_MAX_NS = 122 * NS_PER_S  # maxDurationBeforeRetry


@dataclass(slots=True, eq=False)
class CSIDrivers:
    """Publish the CSI drivers of one node's profile, then keep their counts up to date."""

    is_registered: bool = False  # every driver was published once
    _is_in_node: bool = False  # the Node names the driver: its CSINode is next
    _node_uid: str = ""  # of the Node, as it was read for the driver
    _queue: tuple[str, ...] = ()  # of the first driver an answer or the next try is awaited
    _tries: int = 0  # of the Node, then of the CSINode
    _rounds: int = 0  # how often the plug-in manager could not register the driver
    _due_ns: int = 0  # of the next try, 0 while an answer is awaited
    # by driver: the period of its updates, and when it is over
    _periods: dict[str, tuple[int, int]] = field(default_factory=dict)

    is_initialized, error = True, ""  # the CSINode is there: the node may be Ready

    def __bool__(self) -> bool:
        """Return whether there is anything to do, now or later."""
        return bool(self._periods or self._queue)

    def start(self, turn: Turn) -> None:
        """Begin when the plug-in watcher finds the first socket."""
        self._queue = turn.env.model.csi_driver_names
        self._wait(RECONCILE_NS, turn)

    def sync(self, turn: Turn) -> None:
        """Follow what the CSIDrivers say. Source: onDriverUpdate, syncDriverUpdater."""
        for driver in turn.env.model.csi_drivers if self.is_registered else ():
            found = turn.env.csi_drivers.get(driver.name)
            is_asked = found is not None and turn.env.model.release.updates_volume_limits
            period_ns = found.allocatable_period_s * NS_PER_S if found and is_asked else 0
            known_ns, _ = self._periods.get(driver.name, (0, 0))
            if period_ns == known_ns:
                continue
            self._periods.pop(driver.name, None)
            if period_ns:
                self._periods[driver.name] = (period_ns, turn.now_ns + period_ns)
                turn.arm(turn.now_ns + period_ns, Timer.CSI_NODE)

    def on_timer(self, turn: Turn, key: str = "") -> None:
        """Try again, or ask what is due, or the driver `key`: a volume of it was refused."""
        if self._due_ns and turn.now_ns >= self._due_ns:
            self._due_ns = 0
            self._ask(turn)
        for name, (period_ns, due_ns) in self._periods.items():
            if turn.now_ns >= due_ns:
                self._periods[name] = (period_ns, due_ns + period_ns)
                turn.arm(due_ns + period_ns, Timer.CSI_NODE)
                self._update(name, turn)
        if self.is_registered and key in turn.env.model.csi_driver_names:
            self._update(key, turn)

    def _update(self, name: str, turn: Turn) -> None:
        if name not in self._queue:
            self._queue += (name,)
            if len(self._queue) == 1:
                self._ask(turn)

    def _ask(self, turn: Turn) -> None:
        turn.call(Op.GET_CSINODE if self._is_in_node else Op.GET_NODE_DRIVERS)

    def on_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to one of our calls."""
        if not self._queue:
            return
        driver = turn.env.model.csi_driver(self._queue[0])
        assert driver is not None, self._queue
        if self._is_in_node:
            self._on_csinode(driver, call, reply, turn)
        elif not reply.ok:
            self._back_off(turn)
        elif call.op is Op.GET_NODE_DRIVERS and isinstance(reply.record, NodeView):
            self._on_node(reply.record, driver, turn)
        elif call.op is Op.PATCH_NODE_CSI:
            self._on_named(turn)

    def _on_node(self, node: NodeView, driver: CSIDriver, turn: Turn) -> None:
        """Write ID and labels, with topology even unchanged ones. Source: updateTopologyLabels."""
        assert node.details is not None, node.name
        self._node_uid = node.uid  # the informer may not have it yet
        missing = tuple(
            (key, turn.facts.name) for key in driver.topology_keys if key not in node.labels
        )
        try:
            known = orjson.loads(node.details.annotations.get(NODE_ID_ANNOTATION) or "null")
        except orjson.JSONDecodeError:
            known = ""
        known = {} if known is None else known
        if not isinstance(known, dict):  # others wrote it
            self._back_off(turn)
            return
        ids = known | {driver.name: turn.facts.name}
        if ids == known and not driver.topology_keys:
            self._on_named(turn)
            return
        text = orjson.dumps(ids, option=orjson.OPT_SORT_KEYS).decode()
        notes = ((NODE_ID_ANNOTATION, text),) if ids != known else ()
        turn.call(Op.PATCH_NODE_CSI, "", NodeStatusPatch(labels=missing, annotations=notes))

    def _on_named(self, turn: Turn) -> None:
        self._is_in_node, self._tries = True, 0
        self._ask(turn)

    def _on_csinode(self, driver: CSIDriver, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Put the driver into the CSINode unless it is there as it should be.

        A CSINode of another Node is deleted, which ends the try: the next one creates it.
        Source: tryUpdateCSINode, ensureNodeOwnsCSINode, installDriverToCSINode.
        """
        record, uid = reply.record, turn.facts.uid if self.is_registered else self._node_uid
        if not uid:  # a Node that is gone takes its CSINode along
            self._next(turn)
        elif call.op is Op.GET_CSINODE and reply.kind is ReplyKind.NOT_FOUND:
            create_missing(uid, turn)
        elif not reply.ok or call.op is Op.DELETE_CSINODE:
            self._back_off(turn)
        elif call.op is Op.GET_NODE_CSI and isinstance(record, NodeView):
            turn.call(Op.CREATE_CSINODE, "", CSINodeObject(record.uid))
        elif call.op is Op.UPDATE_CSINODE:
            self._next(turn)
        elif not is_owned(record, uid, turn):
            turn.call(Op.DELETE_CSINODE)
        else:
            assert isinstance(record, CSINodeView), reply
            update = update_of(driver, record, turn)
            if update is None:
                self._next(turn)
            else:
                turn.call(Op.UPDATE_CSINODE, "", update)

    def _next(self, turn: Turn) -> None:
        self._queue = self._queue[1:]
        if not self._queue and not self.is_registered:
            self.is_registered = True
            self.sync(turn)
        self._is_in_node, self._tries, self._rounds = self.is_registered, 0, 0
        if self._queue:
            self._ask(turn)

    def _back_off(self, turn: Turn) -> None:
        """Wait as wait.ExponentialBackoff does.

        After four tries the plug-in manager registers the driver again, later each time, and an
        update is left for the next period. Source: updateNode, updateCSINode;
        pkg/util/goroutinemap/exponentialbackoff.
        """
        self._tries += 1
        if self._tries < TRIES_PER_ROUND:
            self._wait(TRY_FIRST_NS * TRY_FACTOR ** (self._tries - 1), turn)
        elif self.is_registered:
            self._next(turn)
        else:
            delay_ns = min(REGISTER_FIRST_NS << self._rounds, REGISTER_MAX_NS)
            self._is_in_node, self._tries, self._rounds = False, 0, min(self._rounds + 1, 8)
            self._wait(max(delay_ns, RECONCILE_NS), turn)

    def _wait(self, delay_ns: int, turn: Turn) -> None:
        self._due_ns = turn.now_ns + delay_ns
        turn.arm(self._due_ns, Timer.CSI_NODE)


def create_missing(node_uid: str, turn: Turn) -> None:
    """Create a CSINode that is gone; before 1.35 its Node is read first. Source: CreateCSINode."""
    if turn.env.model.release.owns_csinode:
        turn.call(Op.CREATE_CSINODE, "", CSINodeObject(node_uid))
    else:
        turn.call(Op.GET_NODE_CSI)


def is_owned(record: object, node_uid: str, turn: Turn) -> bool:
    """Return whether a CSINode is of our Node; before 1.35 any is. Source: nodeOwnsCSINode."""
    assert isinstance(record, CSINodeView), record
    return record.owner_uid == node_uid or not turn.env.model.release.owns_csinode


def update_of(driver: CSIDriver, view: CSINodeView, turn: Turn) -> CSINodeUpdate | None:
    """Return what a driver changes of a CSINode, None if it is there as it should be.

    Source: installDriverToCSINode.
    """
    count = driver.count_at(turn.now_ns - turn.facts.started_ns)
    name, keys = turn.facts.name, driver.topology_keys
    if (driver.name, name, frozenset(keys), count) in view.drivers:
        return None
    return CSINodeUpdate(view.body, driver.name, name, keys, count)


CSIStage = CSINode | CSIDrivers
"""What a kubelet does about its CSINode: make it, then publish drivers and keep them up to date."""


def next_stage(stage: CSIStage, turn: Turn) -> CSIStage | None:
    """Return what follows once a stage is over; None when there is nothing more to do."""
    if isinstance(stage, CSIDrivers):
        return stage or None
    if not stage.is_initialized:
        return stage
    if not turn.env.model.csi_drivers:
        return None
    drivers = CSIDrivers()
    drivers.start(turn)
    return drivers


def on_drivers_changed(stage: CSIStage | None, turn: Turn) -> CSIStage | None:
    """Learn that the CSIDrivers of the cluster have changed."""
    has_drivers = turn.env.fidelity.has_csi_node and turn.env.model.csi_drivers
    if not has_drivers or isinstance(stage, CSINode):  # it looks at them once that is over
        return stage
    drivers = stage or CSIDrivers(is_registered=True, _is_in_node=True)
    drivers.sync(turn)
    return drivers or None
