"""One virtual kubelet: owns the managers of a node and routes every input to one of them.

An idle node holds its status, its lease and what the event correlator remembers; the pod side
(`NodePods`) is made with the first pod and dropped with the last.
Source: pkg/kubelet/kubelet.go, NewMainKubelet, Run, syncLoopIteration.
"""

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    Milestone,
    NodeId,
    NodeObject,
    NodeStatusPatch,
    Op,
    Outbox,
    Owner,
    Reply,
    ReplyKind,
    StartWatch,
    Timer,
    WatchEvent,
    WatchKind,
)
from fleet.k8s.pods import EventType, NodeView, PodUid
from fleet.kubelet.containers import image_gc_manager
from fleet.kubelet.devices.dra import wipe_again
from fleet.kubelet.devices.plugin_manager import PluginManager
from fleet.kubelet.environment import CATALOG_KINDS, Environment, on_catalog
from fleet.kubelet.events import EventRecorder, Reason
from fleet.kubelet.node import node_reconcile
from fleet.kubelet.node.csi_node import (
    CSINode,
    CSIStage,
    next_stage,
    on_drivers_changed,
)
from fleet.kubelet.node.node_lease import NodeLease
from fleet.kubelet.node.node_shutdown import BEGIN, ERROR, NodeShutdown, arm_shutdown, power_off
from fleet.kubelet.node.node_status import NodeStatus, RegistrationPhase
from fleet.kubelet.node.runtime_state import HEALTHY, UNAVAILABLE, RuntimeState
from fleet.kubelet.node.setters import NodeInputs
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.pods.node_pods import NodePods
from fleet.kubelet.pods.resource_monitor import is_always_needed
from fleet.kubelet.pods.static_pods import arm_look
from fleet.kubelet.turn import Turn
from fleet.runtime.container_config import resolver_file_problem

MAY_SWAP = (
    "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, "
    "etc.) might be swapped to disk and should no longer be considered secure."
)
"""Source: pkg/kubelet/cm/container_manager_linux.go, NewContainerManager."""
POD_TIMERS = frozenset(
    (
        Timer.POD_SYNC,
        Timer.POD_KILL,
        Timer.RUNTIME,
        Timer.STATUS_SYNC,
        Timer.HOUSEKEEPING,
        Timer.VOLUMES,
        Timer.TOKENS,
        Timer.EVICTION,
        Timer.PROBES,
        Timer.RESIZE,
    )
)
NEVER_WITHHELD = frozenset((Op.CREATE_NODE, Op.PATCH_NODE_STATUS, Op.CREATE_EVENT, Op.PATCH_EVENT))
"""Registration itself, and events, which only report what has the node's name."""
RECONCILE_NS = 100 * NS_PER_MS  # reconstruct.go, updateReconstructedFromNodeStatus: of each loop
POD_SOURCE_NS = 1 * NS_PER_S  # pkg/kubelet/config/apiserver.go, WaitForAPIServerSyncPeriod


def base_watches(env: Environment) -> tuple[WatchKind, ...]:
    """Return what a kubelet watches from its start, in order; its pods follow."""
    asks = env.model.release.watches_certificate_requests and env.own_watches
    certificates = (WatchKind.CERTIFICATE_REQUESTS,) if asks else ()
    first = (WatchKind.NODE, WatchKind.SERVICES)
    return (*first, *certificates, WatchKind.CSI_DRIVERS, WatchKind.RUNTIME_CLASSES)


class VirtualKubelet:
    """A node's state machines behind three inputs: timers, replies, watch events."""

    __slots__ = (
        "_csi",
        "_is_listing",
        "_node_synced",
        "_recorder",
        "_runtime_state",
        "_saw_node",
        "_withheld",
        "env",
        "facts",
        "is_ready",
        "lease",
        "plugins",
        "pods",
        "status",
    )

    def __init__(self, node: NodeId, name: str, host_ips: str, env: Environment) -> None:
        self.env = env
        self.facts = NodeFacts(node, name, host_ips)
        self.status = NodeStatus()
        self.lease = NodeLease()
        self.pods: NodePods | None = None
        self._csi: CSIStage | None = CSINode() if env.fidelity.has_csi_node else None
        self._recorder = EventRecorder() if env.fidelity.records_events else EventRecorder.silent()
        self._runtime_state: RuntimeState | None = None  # only of a machine with outages
        self.plugins: PluginManager | None = None  # only if the profile has any
        self._is_listing = False  # of its pods a whole snapshot is coming
        self._node_synced = False
        self._saw_node = not env.fidelity.watches_slices
        self._withheld: list[ApiCall] | None = []  # until it is known that the Node is ours
        self.is_ready = False

    @property
    def node(self) -> NodeId:
        """Return the number of the node."""
        return self.facts.node

    @property
    def name(self) -> str:
        """Return the name of the Node."""
        return self.facts.name

    def start(self, now_ns: int, out: Outbox, *, is_settled: bool = False) -> None:
        """Do what a kubelet does in its first moment. Source: kubelet-reference 1.1.

        A settled kubelet begins as if it had been up for long: its Node is created Ready, then
        its Lease, its CSINode and its watches, and nothing is read or reported on the way.
        """
        begin, turn = len(out), self._turn(now_ns, out)
        self.status.is_settled = is_settled and self.env.fidelity.registers_in_steps
        self._start(turn)
        self._withhold(begin, turn)

    def _turn(self, now_ns: int, out: Outbox) -> Turn:
        return Turn(self.facts, self.env, self._recorder, now_ns, out)

    def _start(self, turn: Turn) -> None:
        node, model = turn.node, turn.env.model
        self.status.start(turn)
        image_gc_manager.on_kubelet_start(turn)
        turn.env.silent.discard(node)
        if model.outages:
            self._runtime_state = RuntimeState(node, model, turn.env.draws, turn.now_ns)
            self._on_runtime_state(turn)
        arm_shutdown(turn)
        if model.devices or model.dra_drivers:  # before the pod side is made, which has the devices
            self.plugins = PluginManager(turn)
        if model.kubelet.static_pod_path:
            self._pod_side().on_static_pods("", turn, is_first=True)
        if is_always_needed(model):
            self._pod_side().monitor.watch(turn)
        if self.status.is_settled:
            return  # the rest follows once the Node is there
        if isinstance(self._csi, CSINode):
            self._start_clients(self._csi, turn)
        elif turn.env.own_watches:
            turn.out.extend(StartWatch(node, kind) for kind in base_watches(turn.env))
        else:
            return
        turn.arm(turn.now_ns + POD_SOURCE_NS, Timer.POD_SOURCE)

    def _start_clients(self, csi: CSINode, turn: Turn) -> None:
        """Begin what a kubelet does besides registering, and report that it starts."""
        node = turn.node
        csi.start(turn)
        *first, last = base_watches(turn.env)
        turn.out.extend(StartWatch(node, kind) for kind in first)
        runtime = turn.env.runtimes.get(node) if self.pods is None else self.pods.runtime
        if runtime is not None and next(iter(runtime), None) is not None:  # pods, with volumes
            turn.call(Op.GET_NODE_ATTACHED)
        self.lease.ensure(turn)
        turn.out.append(StartWatch(node, last))
        if turn.env.model.may_swap_volumes:
            turn.node_event(Reason.VOLUMES_ON_DISK, MAY_SWAP)
        turn.node_event(Reason.STARTING, "Starting kubelet.")
        turn.node_event(Reason.INVALID_DISK_CAPACITY, "invalid capacity 0 on image filesystem")
        if problem := resolver_file_problem(turn.env.model.dns):
            turn.node_event(Reason.RESOLVER_FILE, problem)

    def _start_cold(self, turn: Turn) -> None:
        """Begin as a kubelet that starts: the Node exists, or the server refuses to create it."""
        self.status = NodeStatus()
        self.status.start(turn)
        assert isinstance(self._csi, CSINode), self._csi
        self._start_clients(self._csi, turn)
        turn.arm(turn.now_ns + POD_SOURCE_NS, Timer.POD_SOURCE)

    def _settle(self, node_uid: str, turn: Turn) -> None:
        """Open the watches and create the CSINode: the Node of a settled kubelet is there."""
        self._node_synced = self._saw_node = True
        if isinstance(self._csi, CSINode):
            self._csi.create(node_uid, turn)
        turn.out.extend(StartWatch(turn.node, kind) for kind in base_watches(turn.env))
        turn.out.append(StartWatch(turn.node, WatchKind.PODS))

    def _withhold(self, begin: int, turn: Turn) -> None:
        """Keep back what is written while it is not known that the Node is ours.

        Once it is, all that was kept back goes out before the effects from `begin` on.
        Differs: a kubelet renews the Lease of its name, and reports pods, before it has looked.
        """
        withheld, out = self._withheld, turn.out
        if withheld is None:
            return
        if self.status.phase is RegistrationPhase.REGISTERED:
            out[begin:begin] = withheld
            self._withheld = None
            return
        writes = [
            each
            for each in out[begin:]
            if isinstance(each, ApiCall)
            and not (each.op.name.startswith(("GET_", "PROBE_")) or each.op in NEVER_WITHHELD)
        ]
        if writes:
            out[begin:] = [each for each in out[begin:] if each not in writes]
            withheld += writes

    def stop(self) -> None:
        """Fall silent: nothing is renewed or reported any more."""
        self.lease.stop()

    def restarted(self) -> "VirtualKubelet":
        """Return the kubelet that follows on the same machine; this one falls silent.

        The container runtime, what it runs and the images outlive a kubelet; so does all that the
        API server has: Node, Lease, CSINode, the statuses of pods. Back-offs, probe results, the
        state of volumes, what the event correlator remembers and every connection and watch are
        the process's and are lost. Source: pkg/kubelet/kubelet.go, NewMainKubelet, Run: nothing
        but checkpoints is read at a start.
        """
        self.stop()
        if self.pods is not None:
            self.pods.leave(self.facts, self.env)
        new = VirtualKubelet(self.node, self.name, self.facts.host_ips, self.env)
        # How the server sees the node and its Lease goes on.
        new.is_ready = self.is_ready
        new.facts.last_boot = self.env.boots.get(self.node, 0)
        new.facts.booted_ns, new.facts.spent = self.facts.booted_ns, self.facts.spent
        new.lease.renewed_ns = self.lease.renewed_ns
        return new

    def begin_renewal(self, now_ns: int) -> bytes:
        """Begin an ordinary renewal of the Lease; see `NodeLease.begin`."""
        return b"" if self._withheld is not None else self.lease.begin(now_ns)

    def renewed(self, base: bytes, arrived_ns: int, now_ns: int) -> int:
        """Take the success of that; return when the next one is due."""
        return self.lease.on_success(base, arrived_ns, self.node, self.env, now_ns)

    def on_timer(self, timer: Timer, key: str, now_ns: int, out: Outbox) -> None:
        """Take a timer that is due."""
        begin, turn = len(out), self._turn(now_ns, out)
        self._on_timer(timer, key, turn)
        self._withhold(begin, turn)

    def _on_timer(self, timer: Timer, key: str, turn: Turn) -> None:
        if timer is Timer.RENEW_LEASE:
            self.lease.on_timer(turn)
        elif timer in POD_TIMERS:
            state = self._runtime_state
            if state is not None and state.puts_off(timer, key, turn):
                return
            if self.pods is not None:
                self.pods.on_timer(timer, key, turn)
                self._after_pods(turn)
        elif timer is Timer.IMAGES:
            self._on_images_timer(key, turn)
        else:
            self._on_node_timer(timer, key, turn)

    def _on_node_timer(self, timer: Timer, key: str, turn: Turn) -> None:
        if timer is Timer.NODE_STATUS:
            self._record(self.status.on_status_timer(self._inputs(turn), turn), turn)
            self._recorder.forget(turn.now_ns)
        elif timer is Timer.FAST_STATUS:
            self._record(self.status.on_fast_timer(self._inputs(turn), turn), turn)
        elif timer is Timer.REGISTER:
            self._on_register_timer(turn)
        elif timer is Timer.CSI_NODE:
            if self._csi is not None:
                self._csi.on_timer(turn, key)
        elif timer is Timer.POD_SOURCE and self._node_synced:  # Source: config/apiserver.go
            turn.out.append(StartWatch(self.node, WatchKind.PODS))
        elif timer is Timer.POD_SOURCE:
            turn.arm(turn.now_ns + POD_SOURCE_NS, timer)
        elif timer is Timer.EVENT_SEND:
            self._recorder.on_timer(turn)
        elif timer is Timer.RESOURCE_SLICES:
            turn.call(Op.DELETE_RESOURCE_SLICES, key)
        elif timer is Timer.RECONSTRUCT:
            turn.call(Op.GET_NODE_ATTACHED)
        else:
            self._on_host_timer(timer, key, turn)

    def _on_host_timer(self, timer: Timer, key: str, turn: Turn) -> None:
        """Take a timer about the machine: its runtime, its shutdown, its static pods."""
        if timer is Timer.RUNTIME_STATE:
            self._on_runtime_state(turn)
        elif timer is Timer.SHUTDOWN:
            self._on_shutdown_timer(key, turn)
        elif timer is Timer.STATIC_PODS:
            self._pod_side().on_static_pods(key, turn)
            self._after_pods(turn)  # there may be none
        elif timer is Timer.PLUGINS and self.plugins is not None:
            self._on_plugins(self.plugins.on_timer(turn), turn)

    def on_reply(self, owner: Owner, call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
        """Take the answer to a call; the table of operations says whose it is."""
        begin, turn = len(out), self._turn(now_ns, out)
        self._on_reply(owner, call, reply, turn)
        self._withhold(begin, turn)

    def _on_reply(self, owner: Owner, call: ApiCall, reply: Reply, turn: Turn) -> None:
        match owner:
            case Owner.LEASE:
                self.lease.on_reply(call, reply, turn)
            case Owner.EVENTS:
                self._recorder.on_reply(call, reply, turn)
            case Owner.NODE_STATUS:
                self._on_status_reply(call, reply, turn)
            case Owner.REGISTRATION:
                self._on_register_reply(call, reply, turn)
            case Owner.CSI_NODE:
                self._on_csi_reply(call, reply, turn)
            case Owner.RESOURCE_SLICES:
                wipe_again(call, reply, turn)
            case Owner.VOLUMES if not call.key:
                if not reply.ok:
                    turn.arm(turn.now_ns + RECONCILE_NS, Timer.RECONSTRUCT)
            case Owner.PLUGINS:
                if self.plugins is not None:
                    self.plugins.on_reply(call, reply, turn)
            case _:
                if self.pods is not None:
                    self.pods.on_reply(owner, call, reply, turn)
                    self._after_pods(turn)

    def on_watch_event(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        """Take one event of a reflector."""
        begin, turn = len(out), self._turn(now_ns, out)
        self._on_watch_event(event, turn)
        self._withhold(begin, turn)

    def _on_watch_event(self, event: WatchEvent, turn: Turn) -> None:
        kind, is_restart = event.kind, event.type is EventType.RESTARTED
        if kind is WatchKind.PODS:
            self._on_pod_event(event, turn)
        elif is_restart:
            return  # all that is known of the others is replaced, or none of it is kept
        elif kind is WatchKind.NODE:
            self._on_node_event(event, turn)
        elif kind is WatchKind.RESOURCE_SLICES:
            if self.plugins is not None:
                self.plugins.on_slice(event, turn)
        elif kind in CATALOG_KINDS:
            on_catalog(self.env, event)
            if kind is WatchKind.CSI_DRIVERS:
                self._csi = on_drivers_changed(self._csi, turn)
        elif kind in (WatchKind.CONFIG_MAP, WatchKind.SECRET) and self.pods is not None:
            self.pods.on_watch_event(event, turn)
            self._after_pods(turn)

    def _on_pod_event(self, event: WatchEvent, turn: Turn) -> None:
        """Take an event of the pods watch; a node without pods has nothing to lose."""
        if self._runtime_state is not None and self._runtime_state.holds(event):
            return
        is_restart = event.type is EventType.RESTARTED
        if is_restart or event.type is EventType.SYNCED:
            self._is_listing = is_restart
        if self.pods is None and event.type not in (EventType.ADDED, EventType.MODIFIED):
            return
        pods = self._pod_side()
        if is_restart:
            pods.on_relist_started(self.env)
        else:
            pods.on_watch_event(event, turn)
            self._after_pods(turn)

    def _pod_side(self) -> NodePods:
        """Return the pod side, made on first use."""
        if self.pods is None:
            devices = self.plugins.devices if self.plugins is not None else None
            self.pods = NodePods(self.facts, self.env, devices, self._runtime_state)
            if self._is_listing:
                self.pods.on_relist_started(self.env)
        return self.pods

    def on_static_pods_changed(self, now_ns: int, out: Outbox) -> None:
        """Learn that the profile's static pods changed: seen at the next look of this node."""
        arm_look(self._turn(now_ns, out))

    def _after_pods(self, turn: Turn) -> None:
        """Report volumes that are in use now or no more; drop a pod side without pods."""
        pods = self.pods
        if pods is None:
            return
        is_cancelled = pods.go_on_with_shutdown(turn)
        if is_cancelled or pods.volumes_to_report() is not None or pods.monitor.is_watching:
            self.status.arm(self._inputs(turn), turn)
        self._drop_idle_pod_side()

    def on_machine_changed(self, env: Environment, now_ns: int, out: Outbox) -> None:
        """Go on with a machine that is otherwise from now on: its clock, runtime, what is used."""
        self.env = env
        begin, turn = len(out), self._turn(now_ns, out)
        if self._runtime_state is not None:
            self._runtime_state.on_outages_changed(env.model, now_ns)
        elif env.model.outages:
            started_ns = self.facts.started_ns
            self._runtime_state = RuntimeState(self.node, env.model, env.draws, started_ns)
            if self.pods is not None:
                self.pods.use_runtime_state(self._runtime_state)
        if self._runtime_state is not None:
            self._on_runtime_state(turn)
        if self.plugins is not None:
            self._on_plugins(self.plugins.devices.take_affected(turn), turn)
        if self.pods is not None or is_always_needed(env.model):
            self._pod_side().on_machine_changed(turn)
            self._after_pods(turn)
        self._withhold(begin, turn)

    def fail_pod(self, uid: str, why: str, now_ns: int, out: Outbox) -> bool:
        """Fail a pod that fleet cannot go on with; False if it is over or unknown."""
        return self.pods is not None and self.pods.fail(PodUid(uid), why, self._turn(now_ns, out))

    def on_container_changed(self, uid: PodUid, now_ns: int, out: Outbox) -> None:
        """Learn that a container of a pod ends at another time than was planned."""
        if self.pods is not None:
            self.pods.on_container_changed(uid, self._turn(now_ns, out))

    def _drop_idle_pod_side(self) -> None:
        """Forget a pod side without pods, but what they used up: counters never fall."""
        if self.pods is not None and self.pods.is_idle():
            self.facts.spent = self.facts.spent.plus(self.pods.runtime.spent)
            self.pods = None

    def _inputs(self, turn: Turn) -> NodeInputs:
        """Return what the setters draw from."""
        pods, plugins = self.pods, self.plugins
        return NodeInputs(
            pressures=() if pods is None else pods.monitor.pressures,
            not_ready=self._not_ready(turn.now_ns),
            volumes_in_use=None if pods is None else pods.volumes_to_report(),
            extended=() if plugins is None else plugins.devices.resources(turn),
            images_json=image_gc_manager.changed_images(turn),
        )

    def _not_ready(self, now_ns: int) -> tuple[str, ...]:
        """Return why the node is not ready. Source: kubelet_node_status.go, ReadyCondition."""
        causes = HEALTHY if self._runtime_state is None else self._runtime_state.causes(now_ns)
        csi, is_settled = self._csi, self.status.is_settled
        storage = () if csi is None or csi.is_initialized or is_settled else (csi.error,)
        shutdown = () if self.shutdown is None else (ERROR,)
        return (*causes.runtime, *causes.network, *storage, *shutdown)

    @property
    def shutdown(self) -> NodeShutdown | None:
        """Return the shutdown under way; the pod side stays until its end."""
        return None if self.pods is None else self.pods.admission.shutdown

    def _shut_down(self, turn: Turn) -> None:
        """Shut the machine down; without grace periods it is off at once.

        Source: nodeshutdown_manager_linux.go, start.
        """
        if not self.env.model.kubelet.shutdown_grace_by_priority:
            turn.out.append(power_off(turn))
            return
        self._pod_side().begin_shutdown(turn)
        self._record(self.status.sync(self._inputs(turn), turn), turn)
        self._after_pods(turn)

    def _on_shutdown_timer(self, key: str, turn: Turn) -> None:
        if key == BEGIN:
            self._shut_down(turn)
        elif self.shutdown is not None and self.shutdown.is_off(turn.now_ns):
            turn.out.append(power_off(turn))
        else:
            self._after_pods(turn)

    def _on_runtime_state(self, turn: Turn) -> None:
        """Look at the runtime's health: the status, the sync loop, and when it changes next."""
        state, now_ns = self._runtime_state, turn.now_ns
        assert state is not None
        if turn.env.registers:
            node_reconcile.follow_runtime(turn.node, turn.env, answers=state.answers(now_ns))
        self.status.arm(self._inputs(turn), turn)
        held = state.advance(now_ns)
        for event in held:
            self.on_watch_event(event, now_ns, turn.out)
        for reason in state.failed_collections(now_ns):
            turn.node_event(reason, UNAVAILABLE)
        state.arm(turn)

    def _on_register_timer(self, turn: Turn) -> None:
        is_first = self.status.is_first_try
        events = self.status.on_register_timer(self._inputs(turn), turn)
        if self.status.is_settled:
            return
        self._record(events, turn)
        if events and is_first:  # the container manager starts once
            text = "Updated Node Allocatable limit across pods"
            turn.node_event(Reason.NODE_ALLOCATABLE_ENFORCED, text)

    def _on_register_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        is_settled = self.status.is_settled
        if is_settled and reply.kind in (ReplyKind.EXISTS, ReplyKind.FORBIDDEN):
            self._start_cold(turn)
            return
        if reply.ok and isinstance(call.payload, NodeObject):
            image_gc_manager.on_images_reported(call.payload.images_json, turn)
        if not self.status.on_register_reply(reply, turn):
            return
        if is_settled or not turn.env.fidelity.registers_in_steps:
            assert isinstance(reply.record, NodeView), reply
            self.status.on_node(reply.record, self.facts)
            self.lease.create(reply.record.uid, turn)
            if is_settled:
                self._settle(reply.record.uid, turn)
            self.status.report_created(self._inputs(turn), turn)
        else:
            self._record(self.status.sync(self._inputs(turn), turn), turn)

    def _on_status_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        patch = call.payload
        if reply.ok and isinstance(patch, NodeStatusPatch):
            if patch.status_json:
                image_gc_manager.on_images_reported(patch.status_json, turn)
            if patch.volumes_in_use is not None and self.pods is not None:
                self.pods.on_volumes_reported(patch.volumes_in_use, turn)
                self._drop_idle_pod_side()
        self._record(self.status.on_status_reply(call, reply, self._inputs(turn), turn), turn)

    def _on_images_timer(self, key: str, turn: Turn) -> None:
        """Refresh the list of images in the status, or look whether the disk is full."""
        if key == image_gc_manager.LIST_KEY:
            if image_gc_manager.on_list_timer(turn):
                self.status.arm(self._inputs(turn), turn)
            return
        in_use = self.pods.monitor.images_in_use() if self.pods is not None else ()
        used = self.pods.monitor.disk_bytes(turn) if self.pods is not None else None
        for reason, message in image_gc_manager.on_gc_timer(in_use, used, turn):
            turn.node_event(reason, message)

    def _on_csi_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        stage = self._csi
        if stage is None:
            return
        stage.on_reply(call, reply, turn)
        self._csi = next_stage(stage, turn)
        if isinstance(stage, CSINode):
            self.status.arm(self._inputs(turn), turn)

    def _on_node_event(self, event: WatchEvent, turn: Turn) -> None:
        status, facts = self.status, self.facts
        if event.type is EventType.SYNCED:
            self._node_synced = self._node_synced or not turn.env.model.release.awaits_node
            return
        view = event.record
        assert isinstance(view, NodeView), event
        owner_uid = facts.owner_uid
        if event.type is not EventType.DELETED and status.is_lost(view, turn):
            return
        if event.type is EventType.DELETED:
            status.on_node(None, facts)
            turn.report(Milestone.GONE)
        else:
            self._node_synced = True
            if not self._saw_node:  # once a process: what drivers of an earlier one left
                self._saw_node = True
                turn.call(Op.DELETE_RESOURCE_SLICES)
            status.on_node(view, facts)
            status.look_at_report(view, turn)
            # Report when the server's own view of Ready flips.
            is_ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
            if is_ready is not self.is_ready:
                self.is_ready = is_ready
                turn.report(Milestone.READY if is_ready else Milestone.NOT_READY, turn.now_ns)
            if turn.env.fidelity.mounts_volumes and (self.pods is not None or view.volumes_in_use):
                self._pod_side().on_node(view, turn)  # also what a kubelet before us left in use
            if self.plugins is not None:
                self.plugins.advance(turn)
        status.arm(self._inputs(turn), turn)
        if self.pods is not None:
            self.pods.on_facts(turn, has_new_owner=facts.owner_uid != owner_uid)

    def _on_plugins(self, pods: list[PodUid] | None, turn: Turn) -> None:
        """Report what plugins offer now, and have pods report that their devices changed."""
        if pods is None:
            return
        self.status.arm(self._inputs(turn), turn)
        if self.pods is not None:
            pods += self.pods.take_claims_affected(turn)
        if self.pods is not None and pods:
            self.pods.sync(dict.fromkeys(pods), turn)

    def _record(self, reasons: list[Reason], turn: Turn) -> None:
        """Record what the setters found to have flipped."""
        for reason in reasons:
            turn.node_event(reason, f"Node {self.name} status is now: {reason.text}")
