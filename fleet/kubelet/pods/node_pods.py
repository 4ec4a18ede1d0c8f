"""NodePods: the pods of one node, and the parts that keep them, made with it.

It exists while the node has pods, and hands what happens to the pod worker that it concerns. After
every input the statuses that became due are sent.
Source: pkg/kubelet/kubelet.go, syncLoopIteration, HandlePodAdditions, HandlePodUpdates,
HandlePodRemoves, HandlePodReconcile, HandlePodCleanups.
Differs: housekeeping does not tick; a worker whose pod is gone is dropped when it is done.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, Milestone, Op, Owner, Reply, Timer, WatchEvent, WatchKind
from fleet.k8s.pods import ContainerSpec, EventType, NodeView, Pod, PodStatus, PodUid
from fleet.k8s.static_pods import StaticPod
from fleet.k8s.volumes import ObjectTarget
from fleet.kubelet.containers.image_manager import on_lookup_reply
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.devices.dra import registered_drivers
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason
from fleet.kubelet.node.node_shutdown import CANCELLED, DETECTED, NodeShutdown
from fleet.kubelet.node.runtime_state import RuntimeState
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.pod_worker import STARTED_PHASES, PodWorker, WorkerState
from fleet.kubelet.pods.pod_admission import PodAdmission, adopt, drop_orphans, end_adopted
from fleet.kubelet.pods.pod_config import PodConfig, PodOp, PodUpdate
from fleet.kubelet.pods.pod_sync import GRACE_EXCEEDED, PodSyncer
from fleet.kubelet.pods.resource_monitor import ResourceMonitor, declares_usage, images_need_monitor
from fleet.kubelet.pods.static_pods import StaticPodSync, is_over
from fleet.kubelet.pods.status_generate import has_wrong_readiness
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.watched_objects import PodSources
from fleet.runtime.program import Process
from fleet.runtime.runtime import Runtime

LOOP_TIMERS = frozenset(
    (Timer.EVICTION, Timer.HOUSEKEEPING, Timer.RESIZE, Timer.STATUS_SYNC, Timer.TOKENS)
)
"""About no single pod."""
RUNTIME_TIMERS = frozenset((Timer.POD_SYNC, Timer.RUNTIME))  # what containers start and end at


class NodePods:
    """The pod side of one virtual kubelet."""

    __slots__ = ("_config", "_left", "_syncer", "admission", "monitor", "statics", "workers")

    def __init__(
        self,
        facts: NodeFacts,
        env: Environment,
        devices: DeviceManager | None = None,
        runtime_state: RuntimeState | None = None,
    ) -> None:
        self._config = PodConfig()
        self._left: list[PodUpdate | None] | None = None  # of a merge; None: its end
        self.workers: dict[PodUid, PodWorker] = {}
        self._syncer = PodSyncer(facts, env, devices, runtime_state)
        self.monitor = ResourceMonitor(self.workers, self._syncer)
        self.admission = PodAdmission(self.workers, self._syncer, self.monitor, devices)
        self.statics = StaticPodSync(self.workers, self._syncer)

    def on_watch_event(self, event: WatchEvent, turn: Turn) -> None:
        """Take an event of the pods watch, or of a ConfigMap's or Secret's."""
        if event.kind is WatchKind.PODS:
            pod = event.record
            assert pod is None or isinstance(pod, Pod), event
            self._left = [*self._config.on_event(event.type, pod)]
            if event.type is EventType.SYNCED:
                self._left.append(None)
            self._take_updates(turn)
        else:
            volumes = self._syncer.volumes
            is_lost = volumes.objects.loses(event)
            self._on_volumes(volumes.on_object_event(event), turn)
            for worker in self.workers.values() if is_lost else ():
                key = (event.kind, event.namespace, event.name)
                self._syncer.on_object_lost(worker, key, turn)
        self._send_statuses(turn)

    def _take_updates(self, turn: Turn) -> None:
        """Take what is left of a merge: a bug that one pod brings to light costs no other pod."""
        while self._left:
            update = self._left.pop(0)
            if update is None:
                drop_orphans(self._syncer, self.workers)
                self._syncer.allocations.on_synced(self.workers, turn)
                self.admission.retry_resizes(turn)
                self.statics.on_synced(turn.env)
            elif update.pod.is_mirror:
                self.statics.on_mirror(update, turn)
            else:
                self._on_update(update, turn)
        self._left = None

    def use_runtime_state(self, state: RuntimeState) -> None:
        """Heed from now on whether the runtime is in order."""
        self._syncer.runtime_state = state

    def on_relist_started(self, env: Environment) -> None:
        """Learn that a whole snapshot of the pods follows, up to SYNCED."""
        self._config.on_relist_started(is_own=env.own_watches)

    def on_timer(self, timer: Timer, key: str, turn: Turn) -> None:
        """Take a timer that is due; one that nobody waits for any more is ignored."""
        if timer in LOOP_TIMERS:
            self._on_loop_timer(timer, turn)
        else:
            worker = self.workers.get(PodUid(key))
            if worker is None:
                return
            self._on_pod_timer(worker, timer, turn)
            self._drop_if_done(worker, turn)
            if timer in RUNTIME_TIMERS and (self.monitor.is_watching or images_need_monitor(turn)):
                self.monitor.watch(turn)
        self._send_statuses(turn)

    def _on_pod_timer(self, worker: PodWorker, timer: Timer, turn: Turn) -> None:
        syncer = self._syncer
        if timer is Timer.POD_SYNC:
            syncer.on_sync_timer(worker, turn)
        elif timer is Timer.POD_KILL:
            if worker.state is WorkerState.TERMINATING:  # its end is waited for: killPodNow
                turn.event(worker.pod, Reason.EXCEEDED_GRACE_PERIOD, GRACE_EXCEEDED)
                self.admission.give_up(worker.pod.uid, turn)
        elif timer is Timer.RUNTIME:
            syncer.on_runtime_timer(worker, turn)
        elif timer is Timer.PROBES:
            syncer.on_probes(worker, turn)
        elif timer is Timer.VOLUMES:
            if syncer.volumes.is_due(worker.pod.uid, turn.now_ns):
                syncer.on_volumes(worker, turn)
            if syncer.volumes.on_timer(worker.pod, turn):
                syncer.on_volumes(worker, turn)

    def _on_loop_timer(self, timer: Timer, turn: Turn) -> None:
        """Take a timer that is about no single pod."""
        if timer is Timer.EVICTION:
            self.monitor.on_timer(turn)
        elif timer is Timer.RESIZE:
            if self._syncer.allocations.is_due(turn):
                self.admission.retry_resizes(turn)
        elif timer is Timer.TOKENS:
            for request in self._syncer.volumes.tokens.due(turn):
                worker = self.workers.get(PodUid(request.pod_uid))
                if worker is not None and worker.state is WorkerState.SYNC:
                    turn.call(Op.CREATE_TOKEN, worker.pod.uid, request)
        elif timer is Timer.HOUSEKEEPING:
            if self.statics.clean_up(partial(self._on_update, turn=turn), turn):
                self._drop_orphaned_statuses()
                self._end_deleted(turn)
        else:
            for uid in self._syncer.statuses.suspects(turn.now_ns):
                pod = self._api_pod(uid)
                if pod is not None:
                    self._syncer.statuses.reconcile(pod)

    def on_reply(self, owner: Owner, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to a call about a pod."""
        syncer = self._syncer
        worker = self.workers.get(PodUid(call.key))
        can_start = worker if worker is not None and worker.state is WorkerState.SYNC else None
        under_way_ns = reply.arrived_ns - reply.sent_ns if reply.sent_ns else 0
        if owner is Owner.POD_STATUS:
            syncer.statuses.under_way_ns += under_way_ns
        elif worker is not None and worker.seen_ns >= 0:
            worker.api_ns += under_way_ns
        match owner:
            case Owner.POD_STATUS:
                self._on_status_reply(worker, call, reply, turn)
            case Owner.ADMISSION:
                self.admission.on_node(call, reply, turn)
            case Owner.MIRROR_PODS:
                self.statics.on_reply(call, reply, turn)
            case Owner.TOKENS:
                if can_start is not None and syncer.volumes.on_token(
                    can_start.pod, call, reply, turn
                ):
                    syncer.on_volumes(can_start, turn)
            case Owner.VOLUMES:
                self._on_volume_reply(can_start, call, reply, turn)
            case Owner.IMAGES:
                if worker is not None and worker.state is not WorkerState.FINISHED:
                    on_lookup_reply(worker, call, reply, turn)
            case _:
                assert owner is Owner.DRA, owner
                if worker is not None:
                    drivers = registered_drivers(turn)
                    error = syncer.dra.on_reply(worker.pod, reply, drivers, turn)
                    syncer.on_prepared(worker, error, turn)
        self._send_statuses(turn)

    def _on_volume_reply(
        self, worker: PodWorker | None, call: ApiCall, reply: Reply, turn: Turn
    ) -> None:
        """Go on with volumes; a pull secret that is gone is reported at the next resync."""
        if worker is None:
            return
        syncer, target = self._syncer, call.payload
        if syncer.volumes.on_claim_reply(worker.pod, call, reply, turn):
            syncer.on_volumes(worker, turn)
        if call.op is Op.GET_SECRET and isinstance(target, ObjectTarget) and not reply.ok:
            key = (WatchKind.SECRET, target.namespace, target.name)
            syncer.on_object_lost(worker, key, turn)

    def _on_status_reply(
        self, worker: PodWorker | None, call: ApiCall, reply: Reply, turn: Turn
    ) -> None:
        """Go on with a status; report how long it took until the server knew that a pod runs."""
        may_run = worker is not None and self._syncer.may_run(worker, turn.env)
        status = self._syncer.statuses.on_reply(call, reply, turn, may_run=may_run)
        if status is None or worker is None or worker.seen_ns < 0:
            return
        if status.phase in STARTED_PHASES:
            took_ns = (reply.arrived_ns or turn.now_ns) - worker.seen_ns
            api_ns = worker.api_ns + self._syncer.statuses.under_way_ns
            # A request of another status that was under way before is in it as a whole.
            api_ns = max(0, min(api_ns, took_ns - worker.simulated_ns))
            turn.report(Milestone.POD_RUNNING, took_ns, worker.simulated_ns, api_ns)
            created_ns = worker.pod.created_s * NS_PER_S - turn.env.wall_offset_ns
            waited_ns = max(worker.seen_ns - created_ns, 0) if worker.pod.created_s else 0
            total_ns = took_ns + waited_ns
            turn.facts.counts().on_pod_running(took_ns, total_ns, worker.pull_ns)
            worker.seen_ns, worker.simulated_ns = -1, 0

    def on_node(self, view: NodeView, turn: Turn) -> None:
        """Take the Node as the informer shows it: what is attached."""
        found = self._syncer.volumes.on_node(view.volumes_attached, view.volumes_in_use)
        self._on_volumes(found, turn)

    def on_volumes_reported(self, names: tuple[str, ...], turn: Turn) -> None:
        """Learn that the Node shows these volumes in use."""
        if self._syncer.volumes.claims is not None:
            found = self._syncer.volumes.claims.on_reported(names)
            self._on_volumes(found, turn)

    def volumes_to_report(self) -> tuple[str, ...] | None:
        """Return the volumes in use, None when the Node shows them already."""
        claims = self._syncer.volumes.claims
        if claims is None:
            return None
        in_use = claims.in_use()
        return in_use if in_use != claims.reported else None

    def sync(self, uids: Iterable[PodUid], turn: Turn) -> None:
        """Sync pods because of what a manager of containers has found. Source: HandlePodSyncs."""
        for uid in uids:
            worker = self.workers.get(uid)
            if worker is not None and not self.admission.holds(worker):
                self._syncer.sync(worker, turn)
        self._send_statuses(turn)

    def on_facts(self, turn: Turn, *, has_new_owner: bool) -> None:
        """Learn that the informer showed the Node, and whether mirror pods have another owner."""
        self.admission.on_facts()
        facts = turn.facts
        if facts.pod_cidrs:
            self.runtime.use_cidrs(facts.pod_cidrs)
        if has_new_owner:
            self.statics.manager.make_all(turn)

    def on_static_pods(self, key: str, turn: Turn, *, is_first: bool = False) -> None:
        """Look at the static pods of the profile; with a full name, try its pod or mirror again."""
        if key:
            self.statics.on_retry(key, partial(self._on_update, turn=turn), turn)
        else:
            if is_first:
                self.statics.is_ready = False
            self.statics.take(partial(self._on_update, turn=turn), turn)
        self._send_statuses(turn)

    def begin_shutdown(self, turn: Turn) -> None:
        """Admit no pod any more, and end those that there are, group by group."""
        self.admission.shutdown = NodeShutdown(self.workers.values(), turn)
        turn.node_event(Reason.SHUTDOWN, DETECTED)

    def go_on_with_shutdown(self, turn: Turn) -> bool:
        """Kill the pods whose turn it is, if the machine is shutting down.

        Returns whether that was cancelled: pods are admitted again; what was ended stays so.
        """
        shutdown = self.admission.shutdown
        if shutdown is None:
            return False
        if shutdown.is_cancelled(turn.now_ns):
            self.admission.shutdown = None
            turn.node_event(Reason.SHUTDOWN, CANCELLED)
            return True
        while shutdown.is_due(self.workers, turn.now_ns):
            for worker, killed in shutdown.next_group(self.workers, turn):
                self._syncer.kill_pod(worker, killed, turn)
        self._send_statuses(turn)
        return False

    def is_idle(self) -> bool:
        """Return whether no pod is left, nor a file or a volume that outlives its pod."""
        if self.workers or len(self._config) or self.admission.shutdown is not None:
            return False
        if next(iter(self._syncer.statuses), None) is not None:
            return False  # of a pod that is gone, until housekeeping
        if next(iter(self.runtime), None) is not None:
            return False  # a kubelet before us started something that we have not seen yet
        if not self.statics.is_idle() or not self.monitor.is_idle or self.runtime.has_files:
            return False
        claims = self._syncer.volumes.claims
        return claims is None or claims.is_idle()

    @property
    def runtime(self) -> Runtime:
        """The container runtime of the machine."""
        return self._syncer.runtime

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._config)

    def last_status(self, pod: Pod) -> PodStatus:
        """Return the status of a pod that was generated last, else the API's."""
        return self._syncer.statuses.last_status(pod)

    def sources(self, env: Environment) -> PodSources:
        """Return what is known of the objects that pods refer to."""
        volumes = self._syncer.volumes
        return PodSources(volumes.objects, volumes.tokens, env)

    def on_machine_changed(self, turn: Turn) -> None:
        """Look at a machine that is otherwise: what it uses, and what of the pods has died."""
        self.monitor.on_machine_changed(turn)
        for worker in list(self.workers.values()):
            self._syncer.on_runtime_changed(worker, turn)

    def fail(self, uid: PodUid, why: str, turn: Turn) -> bool:
        """Fail a pod that fleet cannot go on with; False if it is over or unknown."""
        worker = self.workers.get(uid)
        if worker is None or worker.state is WorkerState.FINISHED:
            return False
        self.admission.forget(uid)
        self._syncer.abandon(worker, why, turn)
        self._drop_if_done(worker, turn)
        self._take_updates(turn)
        self._send_statuses(turn)
        return True

    def on_container_changed(self, uid: PodUid, turn: Turn) -> None:
        """Learn that somebody wrote into a pod's containers: they end, and are, otherwise."""
        worker = self.workers.get(uid)
        if worker is None:
            return
        syncer, pod = self._syncer, worker.pod
        syncer.on_runtime_changed(worker, turn)
        process_at = partial(self._process_at, pod, turn.env)
        syncer.probes.on_files_changed(pod, self.last_status(pod), process_at, turn)

    def _process_at(
        self, pod: Pod, env: Environment, spec: ContainerSpec, start_ns: int, age_ns: int
    ) -> Process:
        """Return what a probe runs in a container that started at an instant, by its age."""
        sandbox = self.runtime.sandbox(pod.uid)
        container = None if sandbox is None else sandbox.find(spec.name)
        attempt = 0 if container is None else container.attempt
        at_ns = start_ns + age_ns
        at = (attempt, at_ns, env.wall_ns(at_ns))
        return self.runtime.process_at(pod, spec, *at, self.sources(env))

    def leave(self, facts: NodeFacts, env: Environment) -> None:
        """Leave what the kubelet finds when it restarts."""
        node, syncer = facts.node, self._syncer
        env.runtimes[node] = syncer.runtime
        env.claims[node] = syncer.dra.checkpoint()
        env.allocations[node] = syncer.allocations.checkpoint(self.workers)
        if syncer.volumes.claims is not None:
            env.devices[node] = syncer.volumes.claims.checkpoint()

    def take_claims_affected(self, turn: Turn) -> list[PodUid]:
        """Return the pods of whose claims a driver says something else."""
        return self._syncer.dra.take_affected(turn)

    def phases(self) -> dict[str, int]:
        """Count the pods by phase, as last generated."""
        counts: dict[str, int] = {}
        for pod in self._config:
            phase = self.last_status(pod).phase
            counts[phase] = counts.get(phase, 0) + 1
        return counts

    def _api_pod(self, uid: PodUid) -> Pod | None:
        """Return a pod as the API shows it: a static pod's is its mirror."""
        pod = self._config.get(uid)
        worker = self.workers.get(uid)
        if pod is None and worker is not None:
            return self.statics.api_pod(worker)
        return pod

    def _on_update(self, update: PodUpdate, turn: Turn) -> None:
        if update.op is PodOp.ADD:
            worker = self._add(update.pod, turn)
        else:
            worker = self.workers[update.pod.uid]
            if update.op is not PodOp.REMOVE:
                self._on_new_version(worker, update, turn)
            elif self.statics.holds_removal(worker, turn):
                return
            else:
                worker.removed = True
                turn.report(Milestone.POD_REMOVED)
                self.admission.retry_resizes(turn)
                if worker.was_refused and turn.env.fidelity.reports_each_step:
                    self._end_refused(worker, turn)
                elif worker.kill():
                    self._syncer.interrupt(worker, turn)
                elif worker.state is WorkerState.TERMINATING:
                    self._syncer.sync(worker, turn)
        self._drop_if_done(worker, turn)

    def _add(self, pod: Pod, turn: Turn) -> PodWorker:
        worker = self.workers[pod.uid] = PodWorker(pod, turn.now_ns)
        turn.report(Milestone.POD_ADDED)
        adopt(self._syncer, worker, turn)
        if self.monitor.is_watching or declares_usage(pod, turn.behavior(pod)):
            self.monitor.watch(turn)
        worker.on_pod(pod)
        if worker.state is WorkerState.SYNC:
            self.admission.on_addition(worker, turn)
        else:
            end_adopted(self._syncer, worker, turn)
        return worker

    def _on_new_version(self, worker: PodWorker, update: PodUpdate, turn: Turn) -> None:
        """Take an UPDATE, DELETE or RECONCILE; the last needs no sync, but for readiness gates."""
        pod = self.admission.take_version(worker, update.pod, turn)
        old = worker.pod
        if worker.registered:
            self._syncer.volumes.update_pod(old, pod, turn)
        self._syncer.statuses.on_pod(update.pod, turn)
        is_reconcile = update.op is PodOp.RECONCILE
        is_ending = worker.on_pod(pod, is_reconcile=is_reconcile)
        if pod.annotations != old.annotations or pod.spec.containers is not old.spec.containers:
            self.monitor.follow_usage(worker, turn)
        self.admission.on_version(old, pod, turn)
        if is_ending:
            self._syncer.interrupt(worker, turn)
        elif worker.was_refused and not is_reconcile and turn.env.fidelity.reports_each_step:
            if turn.env.model.release.heeds_unadmitted:
                self._end_refused(worker, turn)
            elif pod.deleting:
                self.statics.manager.arm(turn)
        elif self.admission.holds(worker):
            return
        elif update.op is PodOp.UPDATE or (is_reconcile and has_wrong_readiness(pod)):
            self._syncer.sync(worker, turn)

    def _end_deleted(self, turn: Turn) -> None:
        """End the refused pods that are being deleted. Source: filterTerminalPodsToDelete."""
        if turn.env.fidelity.reports_each_step:
            for worker in list(self.workers.values()):
                if worker.was_refused and worker.pod.deleting:
                    self._end_refused(worker, turn)

    def _end_refused(self, worker: PodWorker, turn: Turn) -> None:
        worker.terminate_refused()
        self._syncer.sync(worker, turn)

    def _on_volumes(self, uids: list[PodUid], turn: Turn) -> None:
        for uid in uids:
            worker = self.workers.get(uid)
            if worker is not None and worker.state is WorkerState.SYNC:
                self._syncer.on_volumes(worker, turn)

    def _send_statuses(self, turn: Turn) -> None:
        """Send the statuses that are due, until one request is in flight."""
        if self.admission.is_holding:
            self.admission.release_ready(turn)
        for ended in self._syncer.allocations.take_ended():
            if ended in self.workers:
                self.monitor.follow_usage(self.workers[ended], turn)
        statuses = self._syncer.statuses
        while (uid := statuses.next()) is not None:
            worker = self.workers.get(uid)
            pod = self._api_pod(uid)
            if pod is None and worker is not None and isinstance(worker.pod, StaticPod):
                continue  # sent when it has a mirror
            may_run = worker is not None and self._syncer.may_run(worker, turn.env)
            statuses.send(uid, pod, turn, may_run=may_run)

    def _drop_orphaned_statuses(self) -> None:
        """Drop the statuses of pods that are gone. Source: removeOrphanedPodStatuses.

        The server knows a static pod by the UID of its mirror, until another pod has its name.
        """
        statuses = self._syncer.statuses
        for uid in list(statuses):
            worker = self.workers.get(uid)
            if worker is None:
                statuses.forget(uid)
            elif worker.removed:
                is_other = isinstance(worker.pod, StaticPod) and self.statics.manager.is_superseded(
                    worker.pod
                )
                statuses.drop(uid, knows=not is_other)

    def _drop_if_done(self, worker: PodWorker, turn: Turn) -> None:
        if is_over(worker):
            self.statics.manager.arm(turn)
            return
        if not worker.removed:
            return
        statuses, is_finished = self._syncer.statuses, worker.state is WorkerState.FINISHED
        is_unsent = turn.env.fidelity.reads_before_patch and statuses.is_unsent(worker.pod.uid)
        if is_unsent or not is_finished:
            self.statics.manager.arm(turn)
        if is_finished:
            if not is_unsent:
                statuses.forget(worker.pod.uid)
            self.admission.forget(worker.pod.uid)
            self.workers.pop(worker.pod.uid, None)
            turn.recorder.leave(worker.pod)
