"""One virtual kubelet: owns the managers of a node and routes every input to one of them.

An idle node holds its status, its lease and what the event correlator remembers; the pod side
(`SyncLoop`) is made with the first pod and dropped with the last.
Source: pkg/kubelet/kubelet.go, NewMainKubelet, Run, syncLoopIteration.
"""

from fleet.clock import NS_PER_S
from fleet.kubelet.containers.image_gc import on_gc_timer
from fleet.kubelet.containers.image_list import (
    LIST_KEYS,
    changed_images,
    on_images_reported,
    on_list_timer,
)
from fleet.kubelet.devices.dra_plugin import wipe_again
from fleet.kubelet.devices.plugin_manager import PluginManager, has_plugins
from fleet.kubelet.environment import Environment, on_csi_driver
from fleet.kubelet.events import EventRecorder, Reason
from fleet.kubelet.input_owners import BASE_WATCHES, POD_TIMERS
from fleet.kubelet.node.csi_node import CSINode
from fleet.kubelet.node.csi_registration import CSIRegistration
from fleet.kubelet.node.held_writes import HeldWrites
from fleet.kubelet.node.node_facts import NodeFacts
from fleet.kubelet.node.node_lease import NodeLease
from fleet.kubelet.node.node_shutdown import DETECTED, ERROR, NodeShutdown, arm_shutdown
from fleet.kubelet.node.node_status import (
    NodeInputs,
    NodeStatus,
    RegistrationPhase,
    under_pressure,
)
from fleet.kubelet.node.runtime_state import HEALTHY, UNAVAILABLE, RuntimeState
from fleet.kubelet.pods.static_pods import arm_look
from fleet.kubelet.pressure.resource_monitor import is_always_needed
from fleet.kubelet.sync_loop import SyncLoop
from fleet.kubelet.turn import Turn
from fleet.objects.effects import (
    ApiCall,
    Milestone,
    NodeId,
    NodeStatusPatch,
    Op,
    Outbox,
    Owner,
    PowerOff,
    Reply,
    Report,
    SetTimer,
    StartWatch,
    Timer,
    WatchEvent,
    WatchKind,
)
from fleet.objects.pods import EventType, NodeView, ObjectRef, PodUid

POD_SOURCE_NS = 1 * NS_PER_S  # pkg/kubelet/config/apiserver.go, WaitForAPIServerSyncPeriod
READY = NodeInputs()
STORAGE_ERROR = "CSINode is not yet initialized"
CSI_MISSING = NodeInputs(not_ready=(STORAGE_ERROR,))


class VirtualKubelet:
    """A node's state machines behind three inputs: timers, replies, watch events."""

    __slots__ = (
        "_csi",
        "_held",
        "_node_synced",
        "_recorder",
        "_runtime_state",
        "_saw_node",
        "_shutdown",
        "env",
        "is_ready",
        "lease",
        "plugins",
        "status",
        "sync_loop",
    )

    def __init__(self, node: NodeId, name: str, host_ip: str, env: Environment) -> None:
        self.env = env
        self.status = NodeStatus(NodeFacts(node, name, host_ip))
        self.lease = NodeLease(node)
        self.sync_loop: SyncLoop | None = None
        self._csi: CSINode | CSIRegistration | None = None if env.light else CSINode(node)
        self._recorder = EventRecorder.silent() if env.light else EventRecorder(node)
        self._runtime_state: RuntimeState | None = None  # only if the profile declares outages
        self.plugins: PluginManager | None = None  # only if the profile has any
        self._shutdown: NodeShutdown | None = None  # since the machine is shutting down
        self._node_synced = False
        self._saw_node = env.light  # which wipes no slices
        self._held: HeldWrites | None = HeldWrites()  # until it is known that the Node is ours
        self.is_ready = False

    @property
    def facts(self) -> NodeFacts:
        """What is known of the node; held by its status, as nothing else lives as long."""
        return self.status.facts

    @property
    def node(self) -> NodeId:
        """Return the number of the node."""
        return self.status.facts.node

    @property
    def name(self) -> str:
        """Return the name of the Node."""
        return self.status.facts.name

    def start(self, now_ns: int, out: Outbox) -> None:
        """Do what a kubelet does in its first moment. Source: kubelet-reference 1.1."""
        begin = len(out)
        self._start(now_ns, out)
        if self._held is not None:
            self._hold(begin, out)

    def _start(self, now_ns: int, out: Outbox) -> None:
        node = self.node
        self.status.start(self.env, now_ns, out)
        if self.env.model.outages:
            self._runtime_state = RuntimeState(node, self.env.model, self.env.draws, now_ns)
            self._on_runtime_state(now_ns, out)
        arm_shutdown(node, self.env, now_ns, out)
        if self.env.model.kubelet.has_static_pods:
            self._on_static_pods("", now_ns, out, is_first=True)
        if has_plugins(self.env.model):
            self.plugins = PluginManager(node, self.name, self.env, now_ns)
            self.plugins.start(now_ns, out)
        if is_always_needed(self.env.model):
            self._pod_side(now_ns).watch_usage(self._turn(now_ns, out))
        if not isinstance(self._csi, CSINode):
            if self.env.own_watches:
                out += [StartWatch(node, kind) for kind in BASE_WATCHES]
                out.append(SetTimer(node, now_ns + POD_SOURCE_NS, Timer.POD_SOURCE))
            return
        self._csi.start(out)
        out.append(StartWatch(node, WatchKind.NODE))
        out.append(StartWatch(node, WatchKind.SERVICES))
        out.append(StartWatch(node, WatchKind.CSI_DRIVERS))
        self.lease.start(out)
        out.append(StartWatch(node, WatchKind.RUNTIME_CLASSES))
        self._event(Reason.STARTING, "Starting kubelet.", now_ns, out)
        self._event(
            Reason.INVALID_DISK_CAPACITY, "invalid capacity 0 on image filesystem", now_ns, out
        )
        out.append(SetTimer(node, now_ns + POD_SOURCE_NS, Timer.POD_SOURCE))

    def _hold(self, begin: int, out: Outbox) -> None:
        assert self._held is not None
        if self.status.phase is RegistrationPhase.REGISTERED:
            self._held.release(begin, out)
            self._held = None
        else:
            self._held.hold(begin, out)

    def stop(self) -> None:
        """Fall silent: nothing is renewed or reported any more."""
        self.lease.stop()

    def on_timer(self, timer: Timer, key: str, now_ns: int, out: Outbox) -> None:
        """Take a timer that is due."""
        begin = len(out)
        self._on_timer(timer, key, now_ns, out)
        if self._held is not None:
            self._hold(begin, out)

    def _on_timer(self, timer: Timer, key: str, now_ns: int, out: Outbox) -> None:
        if timer is Timer.RENEW_LEASE:
            self.lease.on_timer(self.env, now_ns, out)
        elif timer in POD_TIMERS:
            state = self._runtime_state
            if state is not None and state.puts_off(timer, key, now_ns, out):
                return
            if self.sync_loop is not None:
                turn = self._turn(now_ns, out)
                self.sync_loop.on_timer(timer, key, turn)
                self._after_pods(turn)
        elif timer is Timer.IMAGES:
            self._on_images_timer(key, now_ns, out)
        else:
            self._on_node_timer(timer, key, now_ns, out)

    def _on_node_timer(self, timer: Timer, key: str, now_ns: int, out: Outbox) -> None:
        env = self.env
        if timer is Timer.NODE_STATUS:
            events = self.status.on_status_timer(self._inputs(now_ns), env, now_ns, out)
            self._status_events(events, now_ns, out)
            self._recorder.forget(now_ns)
        elif timer is Timer.FAST_STATUS:
            events = self.status.on_fast_timer(self._inputs(now_ns), env, now_ns, out)
            self._status_events(events, now_ns, out)
        elif timer is Timer.REGISTER:
            self._on_register_timer(now_ns, out)
        elif timer is Timer.CSI_NODE:
            if self._csi is not None:
                self._csi.on_timer(now_ns, out)
        elif timer is Timer.POD_SOURCE:
            self._on_pod_source(now_ns, out)
        elif timer is Timer.EVENT_SEND:
            self._recorder.on_timer(now_ns, out)
        elif timer is Timer.RESOURCE_SLICES:
            out.append(ApiCall(self.node, Op.DELETE_RESOURCE_SLICES, key))
        else:
            self._on_host_timer(timer, key, now_ns, out)

    def _on_host_timer(self, timer: Timer, key: str, now_ns: int, out: Outbox) -> None:
        """Take a timer about the machine: its runtime, its shutdown, its static pods."""
        if timer is Timer.RUNTIME_STATE:
            self._on_runtime_state(now_ns, out)
        elif timer is Timer.SHUTDOWN:
            self._on_shutdown_timer(now_ns, out)
        elif timer is Timer.STATIC_PODS:
            self._on_static_pods(key, now_ns, out)
        elif timer is Timer.PLUGINS and self.plugins is not None:
            pods = self.plugins.on_timer(self.facts.uid, now_ns, out)
            self._on_plugins(pods, now_ns, out)

    def on_reply(self, owner: Owner, call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
        """Take the answer to a call; the table of operations says whose it is."""
        begin = len(out)
        self._on_reply(owner, call, reply, now_ns, out)
        if self._held is not None:
            self._hold(begin, out)

    def _on_reply(
        self, owner: Owner, call: ApiCall, reply: Reply, now_ns: int, out: Outbox
    ) -> None:
        match owner:
            case Owner.LEASE:
                self.lease.on_reply(call, reply, self.env, now_ns, out)
            case Owner.EVENTS:
                self._recorder.on_reply(call, reply, self.env, now_ns, out)
            case Owner.NODE_STATUS:
                self._on_status_reply(call, reply, now_ns, out)
            case Owner.REGISTRATION:
                self._on_register_reply(reply, now_ns, out)
            case Owner.CSI_NODE:
                self._on_csi_reply(call, reply, now_ns, out)
            case Owner.RESOURCE_SLICES:
                wipe_again(call, reply, now_ns, out)
            case Owner.PLUGINS:
                if self.plugins is not None:
                    self.plugins.on_reply(call, reply, now_ns, out)
            case _:
                if self.sync_loop is not None:
                    turn = self._turn(now_ns, out)
                    self.sync_loop.on_reply(owner, call, reply, turn)
                    self._after_pods(turn)

    def on_watch_event(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        """Take one event of a reflector."""
        begin = len(out)
        self._on_watch_event(event, now_ns, out)
        if self._held is not None:
            self._hold(begin, out)

    def _on_watch_event(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        kind = event.kind
        if event.type is EventType.RESTARTED and kind is not WatchKind.PODS:
            return  # all that is known of the others is replaced, or none of it is kept
        if kind is WatchKind.NODE:
            self._on_node_event(event, now_ns, out)
        elif kind is WatchKind.RESOURCE_SLICES:
            if self.plugins is not None:
                self.plugins.on_slice(event, self.facts.uid, now_ns, out)
        elif kind is WatchKind.CSI_DRIVERS:
            on_csi_driver(self.env.csi_drivers, event)
        elif kind is WatchKind.PODS and self._runtime_state and self._runtime_state.holds(event):
            return
        elif event.type is EventType.RESTARTED:
            if self.sync_loop is not None:
                self.sync_loop.on_relist_started()
        elif kind is WatchKind.PODS and self.sync_loop is None:
            if event.type in (EventType.ADDED, EventType.MODIFIED):
                self._pod_side(now_ns)
                self._to_sync_loop(event, now_ns, out)
        elif kind in (WatchKind.PODS, WatchKind.CONFIG_MAP, WatchKind.SECRET):
            self._to_sync_loop(event, now_ns, out)

    def _pod_side(self, now_ns: int) -> SyncLoop:
        """Return the pod side, made on first use."""
        if self.sync_loop is None:
            if self._runtime_state is not None:
                self.facts.network_error = self._runtime_state.network_error(now_ns)
            devices = self.plugins.devices if self.plugins is not None else None
            self.sync_loop = SyncLoop(self.facts, self.env, devices)
        return self.sync_loop

    def on_static_pods_changed(self, now_ns: int, out: Outbox) -> None:
        """Learn that the profile's static pods changed: seen at the next look of this node."""
        arm_look(self.node, self.env, now_ns, out)

    def _on_static_pods(
        self, key: str, now_ns: int, out: Outbox, *, is_first: bool = False
    ) -> None:
        turn = self._turn(now_ns, out)
        self._pod_side(now_ns).on_static_pods(key, turn, is_first=is_first)

    def _turn(self, now_ns: int, out: Outbox) -> Turn:
        return Turn(self.node, self.env, self._recorder, now_ns, out)

    def _to_sync_loop(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        if self.sync_loop is not None:
            turn = self._turn(now_ns, out)
            self.sync_loop.on_watch_event(event, turn)
            self._after_pods(turn)

    def _after_pods(self, turn: Turn) -> None:
        """Report volumes that are in use now or no more; drop a pod side without pods."""
        loop = self.sync_loop
        if loop is None:
            return
        if loop.volumes_to_report() is not None or loop.monitor is not None:
            self.status.arm(self._inputs(turn.now_ns), self.env, turn.now_ns, turn.out)
        if self._shutdown is not None:
            loop.end_pods(self._shutdown, turn)
        self._drop_idle_pod_side()

    def on_container_changed(self, uid: PodUid, now_ns: int, out: Outbox) -> None:
        """Learn that a container of a pod ends at another time than was planned."""
        if self.sync_loop is not None:
            self.sync_loop.on_container_changed(uid, self._turn(now_ns, out))

    def _drop_idle_pod_side(self) -> None:
        """Forget a pod side without pods, but what they used up: counters never fall."""
        if self.sync_loop is not None and self.sync_loop.is_idle():
            self.facts.spent = self.facts.spent.plus(self.sync_loop.runtime.spent)
            self.sync_loop = None

    def _inputs(self, now_ns: int) -> NodeInputs:
        """Return what the setters draw from."""
        inputs = self._condition_inputs(now_ns)
        pressures = self.sync_loop.pressures if self.sync_loop is not None else ()
        if pressures:
            inputs = under_pressure(inputs, pressures)
        volumes = self.sync_loop.volumes_to_report() if self.sync_loop is not None else None
        if volumes is not None:
            inputs = inputs._replace(volumes_in_use=volumes)
        if self.plugins is not None:
            inputs = inputs._replace(extended=self.plugins.resources(now_ns))
        images = changed_images(self.node, self.env)
        return inputs._replace(images_json=images) if images else inputs

    def _condition_inputs(self, now_ns: int) -> NodeInputs:
        """Return what the condition setters draw from."""
        csi_missing = self._csi is not None and not self._csi.is_initialized
        if self._runtime_state is None and self._shutdown is None:
            return CSI_MISSING if csi_missing else READY
        causes = HEALTHY if self._runtime_state is None else self._runtime_state.causes(now_ns)
        storage = (STORAGE_ERROR,) if csi_missing else ()
        shutdown = () if self._shutdown is None else (ERROR,)
        return NodeInputs(not_ready=(*causes.runtime, *causes.network, *storage, *shutdown))

    def shut_down(self, now_ns: int, out: Outbox) -> None:
        """Tell the machine to shut down; without grace periods it is off at once.

        Source: nodeshutdown_manager_linux.go, start.
        """
        if self._shutdown is not None:
            return
        if not self.env.model.kubelet.shutdown_grace_by_priority:
            out.append(PowerOff(self.node))
            return
        self._shutdown = NodeShutdown(self.node, self.env, self._pod_side(now_ns).workers())
        self.facts.is_shutting_down = True
        self._event(Reason.SHUTDOWN, DETECTED, now_ns, out)
        events = self.status.sync_now(self._inputs(now_ns), self.env, now_ns, out)
        self._status_events(events, now_ns, out)
        self._after_pods(self._turn(now_ns, out))

    def _on_shutdown_timer(self, now_ns: int, out: Outbox) -> None:
        if self._shutdown is None:
            self.shut_down(now_ns, out)
        elif self._shutdown.is_off(now_ns):
            out.append(PowerOff(self.node))
        else:
            self._after_pods(self._turn(now_ns, out))

    def _on_runtime_state(self, now_ns: int, out: Outbox) -> None:
        """Look at the runtime's health: the status, the sync loop, and when it changes next."""
        state = self._runtime_state
        assert state is not None
        self.status.arm(self._inputs(now_ns), self.env, now_ns, out)
        held = state.advance(now_ns)
        self.facts.network_error = state.network_error(now_ns)
        for event in held:
            self.on_watch_event(event, now_ns, out)
        if state.container_gc_fails(now_ns):
            self._event(Reason.CONTAINER_GC_FAILED, UNAVAILABLE, now_ns, out)
        state.arm(now_ns, out)

    def _on_register_timer(self, now_ns: int, out: Outbox) -> None:
        events = self.status.on_register_timer(self._inputs(now_ns), self.env, now_ns, out)
        if events:
            self._status_events(events, now_ns, out)
            self._event(
                Reason.NODE_ALLOCATABLE_ENFORCED,
                "Updated Node Allocatable limit across pods",
                now_ns,
                out,
            )

    def _on_register_reply(self, reply: Reply, now_ns: int, out: Outbox) -> None:
        record = reply.record
        if not self.status.on_register_reply(reply, self.env, now_ns, out):
            return
        if self.env.light:
            assert isinstance(record, NodeView), reply
            self.status.on_node(record)
            self.lease.start_light(record.uid, self.env, now_ns, out)
            self.status.report_created(self._inputs(now_ns), self.env, now_ns, out)
            return
        events = self.status.sync(self._inputs(now_ns), self.env, now_ns, out)
        self._status_events(events, now_ns, out)

    def _on_status_reply(self, call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
        patch = call.payload
        if reply.ok and isinstance(patch, NodeStatusPatch) and patch.status_json:
            on_images_reported(self.node, self.env, patch.status_json)
        if reply.ok and isinstance(patch, NodeStatusPatch) and patch.volumes_in_use is not None:
            self._on_volumes_reported(patch.volumes_in_use, now_ns, out)
        inputs = self._inputs(now_ns)
        events = self.status.on_status_reply(call, reply, inputs, self.env, now_ns, out)
        self._status_events(events, now_ns, out)

    def _on_images_timer(self, key: str, now_ns: int, out: Outbox) -> None:
        """Refresh the list of images in the status, or look whether the disk is full."""
        node, env, loop = self.node, self.env, self.sync_loop
        if key in LIST_KEYS:
            if on_list_timer(node, env, key, self.facts.started_ns, now_ns, out):
                self.status.arm(self._inputs(now_ns), env, now_ns, out)
            return
        in_use = loop.images_in_use() if loop is not None else ()
        used = loop.disk_bytes(self._turn(now_ns, out)) if loop is not None else None
        for reason, message in on_gc_timer(node, env, in_use, used, now_ns, out):
            self._event(reason, message, now_ns, out)

    def _on_volumes_reported(self, names: tuple[str, ...], now_ns: int, out: Outbox) -> None:
        if self.sync_loop is not None:
            self.sync_loop.on_volumes_reported(names, self._turn(now_ns, out))
            self._drop_idle_pod_side()

    def _on_csi_reply(self, call: ApiCall, reply: Reply, now_ns: int, out: Outbox) -> None:
        if self._csi is None:
            return
        self._csi.on_reply(call, reply, self.env, now_ns, out)
        if isinstance(self._csi, CSIRegistration):
            if self._csi.is_done:
                self._csi = None
        elif self._csi.is_initialized:
            self._csi = None
            if self.env.model.csi_drivers:
                self._csi = CSIRegistration(self.node, self.name)
                self._csi.start(now_ns, out)
            self.status.arm(self._inputs(now_ns), self.env, now_ns, out)

    def _on_pod_source(self, now_ns: int, out: Outbox) -> None:
        """Watch pods once the node informer has synced. Source: config/apiserver.go."""
        if self._node_synced:
            out.append(StartWatch(self.node, WatchKind.PODS))
        else:
            out.append(SetTimer(self.node, now_ns + POD_SOURCE_NS, Timer.POD_SOURCE))

    def _on_node_event(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        status, facts = self.status, self.facts
        if event.type is EventType.SYNCED:
            self._node_synced = True
            return
        view = event.record
        assert isinstance(view, NodeView), event
        owner_uid = facts.owner_uid
        if event.type is EventType.DELETED:
            status.on_node(None)
            out.append(Report(self.node, Milestone.GONE))
        else:
            if not self._saw_node:  # once a process: what drivers of an earlier one left
                self._saw_node = True
                out.append(ApiCall(self.node, Op.DELETE_RESOURCE_SLICES))
            status.on_node(view)
            self._report_ready(now_ns, out)
            self._show_volumes(view, now_ns, out)
            if self.plugins is not None:
                self.plugins.advance(view.uid, now_ns, out)
                pods = self.plugins.on_annotations(view.state.annotations, now_ns)
                self._on_plugins(pods, now_ns, out)
        status.arm(self._inputs(now_ns), self.env, now_ns, out)
        if self.sync_loop is not None:
            self.sync_loop.on_facts(out, has_new_owner=facts.owner_uid != owner_uid)

    def _on_plugins(self, pods: list[PodUid] | None, now_ns: int, out: Outbox) -> None:
        """Report what plugins offer now, and let pods tell that their devices changed."""
        if pods is None:
            return
        self.status.arm(self._inputs(now_ns), self.env, now_ns, out)
        if self.sync_loop is not None and pods:
            self.sync_loop.sync_pods(pods, self._turn(now_ns, out))

    def _show_volumes(self, view: NodeView, now_ns: int, out: Outbox) -> None:
        """Tell the volume manager what is attached, and what a kubelet before us left in use."""
        if not self.env.light and (self.sync_loop is not None or view.volumes_in_use):
            self._pod_side(now_ns).on_node(view, self._turn(now_ns, out))

    def _report_ready(self, now_ns: int, out: Outbox) -> None:
        """Tell when the server's own view of Ready flips."""
        is_ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
        if is_ready is not self.is_ready:
            self.is_ready = is_ready
            out.append(
                Report(self.node, Milestone.READY if is_ready else Milestone.NOT_READY, now_ns)
            )

    def _status_events(self, reasons: list[Reason], now_ns: int, out: Outbox) -> None:
        for reason in reasons:
            message = f"Node {self.name} status is now: {reason.text}"
            self._event(reason, message, now_ns, out)

    def _event(self, reason: Reason, message: str, now_ns: int, out: Outbox) -> None:
        """Record an event about the Node; since 1.36 its reference has no uid."""
        about = ObjectRef("Node", "", self.name)
        self._recorder.event(about, reason, message, self.env, now_ns, out)
