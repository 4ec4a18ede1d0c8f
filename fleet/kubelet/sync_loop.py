"""SyncLoop: the pods of one node. Routes what happens to the pod worker that it concerns.

It exists while the node has pods. After every input the statuses that became due are sent.
Source: pkg/kubelet/kubelet.go, syncLoopIteration, HandlePodAdditions, HandlePodUpdates,
HandlePodRemoves, HandlePodReconcile, HandlePodCleanups.
Differs: housekeeping does not tick; a worker whose pod is gone is dropped when it is done.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from fleet.kubelet.containers.image_gc import arm_image_gc
from fleet.kubelet.containers.pod_sources import PodSources
from fleet.kubelet.devices.dra import registered_drivers
from fleet.kubelet.environment import Environment
from fleet.kubelet.input_owners import LOOP_TIMERS
from fleet.kubelet.node.node_facts import NodeFacts
from fleet.kubelet.node.node_shutdown import NodeShutdown
from fleet.kubelet.pods.pod_admission import DeviceAllocator, PodAdmission
from fleet.kubelet.pods.pod_config import PodConfig, PodOp, PodUpdate
from fleet.kubelet.pods.pod_manager import PodManager
from fleet.kubelet.pods.pod_sync import PodSyncer
from fleet.kubelet.pods.pod_workers import PodWorker, WorkerState
from fleet.kubelet.pods.static_pods import StaticPodSync, is_over
from fleet.kubelet.pressure.resource_monitor import (
    ResourceMonitor,
    declares_usage,
    follow_usage,
    images_in_use,
    images_need_monitor,
)
from fleet.kubelet.turn import Turn
from fleet.objects.effects import (
    ApiCall,
    Milestone,
    Outbox,
    Owner,
    Reply,
    Report,
    Timer,
    TokenRequest,
    WatchEvent,
    WatchKind,
)
from fleet.objects.pods import EventType, NodeView, Pod, PodStatus, PodUid
from fleet.objects.static_pods import StaticPod
from fleet.runtime.runtime import Runtime

RUNTIME_TIMERS = frozenset((Timer.POD_SYNC, Timer.RUNTIME))
"""What containers start and end at."""
STARTED_PHASES = frozenset(("Running", "Succeeded"))


class SyncLoop:
    """The pod side of one virtual kubelet."""

    __slots__ = (
        "_config",
        "_facts",
        "_syncer",
        "_workers",
        "admission",
        "monitor",
        "statics",
    )

    def __init__(
        self, facts: NodeFacts, env: Environment, devices: DeviceAllocator | None = None
    ) -> None:
        self._facts = facts
        self.statics: StaticPodSync | None = None  # only with static pods or mirrors
        self._config = PodConfig()
        self._workers: dict[PodUid, PodWorker] = {}
        self._syncer = PodSyncer(facts, env, devices)
        self.admission = PodAdmission(facts, self._workers, self._syncer, devices)
        self.monitor: ResourceMonitor | None = None  # only if usage may cross a threshold

    def on_watch_event(self, event: WatchEvent, turn: Turn) -> None:
        """Take an event of the pods watch, or of a ConfigMap's or Secret's."""
        if event.kind is WatchKind.PODS:
            pod = event.record
            assert pod is None or isinstance(pod, Pod), event
            for update in self._config.on_event(event.type, pod):
                if update.pod.is_mirror:
                    self._statics(turn.env).on_mirror(update, turn)
                else:
                    self._on_update(update, turn)
            if event.type is EventType.SYNCED:
                self._syncer.drop_orphans(self._workers)
                if self.statics is not None:
                    self.statics.on_synced(turn.env)
        else:
            self._on_volumes(self._syncer.volumes.on_object_event(event), turn)
            if event.type is EventType.DELETED:
                for worker in self._workers.values():
                    if worker.volumes_ready and worker.state is WorkerState.SYNC:
                        self._syncer.volumes.remount(worker.pod, event, turn.now_ns, turn.out)
        self._send_statuses(turn)

    def on_relist_started(self) -> None:
        """Learn that a whole snapshot of the pods follows, up to SYNCED."""
        self._config.on_relist_started()

    def on_timer(self, timer: Timer, key: str, turn: Turn) -> None:
        """Take a timer that is due; one that nobody waits for any more is ignored."""
        if timer in LOOP_TIMERS:
            self._on_loop_timer(timer, turn)
        else:
            worker = self._workers.get(PodUid(key))
            if worker is None:
                return
            if timer is Timer.POD_SYNC:
                self._syncer.on_sync_timer(worker, turn)
            elif timer is Timer.RUNTIME:
                self._syncer.on_runtime_timer(worker, turn)
            elif timer is Timer.PROBES:
                self._syncer.on_probes(worker, turn)
            elif timer is Timer.VOLUMES:
                if self._syncer.volumes.is_due(worker.pod.uid, turn.now_ns):
                    self._syncer.on_volumes(worker, turn)
                self._syncer.volumes.on_timer(worker.pod, turn.env, turn.now_ns, turn.out)
            self._drop_if_done(worker, turn)
            if timer in RUNTIME_TIMERS and (
                self.monitor is not None or images_need_monitor(turn.env, self._facts.node)
            ):
                self._watch_usage(turn)
        self._send_statuses(turn)

    def _on_loop_timer(self, timer: Timer, turn: Turn) -> None:
        """Take a timer that is about no single pod."""
        if timer is Timer.EVICTION:
            self._on_eviction_timer(turn)
        elif timer is Timer.RESIZE:
            self._syncer.retry_resizes(self._workers, self.admission, turn)
        elif timer is Timer.HOUSEKEEPING:
            if self.statics is not None:
                update = partial(self._on_update, turn=turn)
                self.statics.clean_up(update, turn)
        else:
            for uid in self._syncer.statuses.suspects(turn.now_ns):
                pod = self._api_pod(uid)
                if pod is not None:
                    self._syncer.statuses.reconcile(pod)

    def on_reply(self, owner: Owner, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take the answer to a call about a pod."""
        env, syncer = turn.env, self._syncer
        worker = self._workers.get(PodUid(call.key))
        can_start = worker if worker is not None and worker.state is WorkerState.SYNC else None
        match owner:
            case Owner.POD_STATUS:
                self._on_status_reply(call, reply, turn)
            case Owner.ADMISSION:
                self.admission.on_node(call, reply, turn)
            case Owner.MIRROR_PODS:
                if self.statics is not None:
                    self.statics.on_reply(call, reply, turn)
            case Owner.TOKENS:
                if can_start is not None:
                    self._on_token(can_start, call, reply, turn)
            case Owner.VOLUMES:
                if can_start is not None and syncer.volumes.on_claim_reply(
                    can_start.pod, call, reply, env, turn.out
                ):
                    syncer.on_volumes(can_start, turn)
            case _:
                assert owner is Owner.DRA, owner
                if worker is not None and syncer.dra is not None:
                    drivers = registered_drivers(
                        env, self._facts.node, self._facts.started_ns, turn.now_ns
                    )
                    prepared = syncer.dra.on_reply(worker.pod, reply, drivers, turn.out)
                    syncer.on_prepared(worker, prepared, turn)
        self._send_statuses(turn)

    def _on_status_reply(self, call: ApiCall, reply: Reply, turn: Turn) -> None:
        worker = self._workers.get(PodUid(call.key))
        may_run = worker is not None and self._syncer.may_run(worker, turn.env)
        now_ns, out = turn.now_ns, turn.out
        status = self._syncer.statuses.on_reply(call, reply, now_ns, may_run=may_run, out=out)
        if status is not None and worker is not None:
            self._report_started(worker, status, reply.arrived_ns or now_ns, out)

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

    def sync_pods(self, uids: Iterable[PodUid], turn: Turn) -> None:
        """Sync pods because of what a manager of containers has found. Source: HandlePodSyncs."""
        for uid in uids:
            worker = self._workers.get(uid)
            if worker is not None and not self.admission.holds(worker):
                self._syncer.sync(worker, turn)
        self._send_statuses(turn)

    def on_facts(self, out: Outbox, *, has_new_owner: bool) -> None:
        """Learn that the informer showed the Node, and whether mirror pods have another owner."""
        self.admission.on_facts()
        if self._facts.pod_cidr:
            self.runtime.use_cidr(self._facts.pod_cidr)
        if has_new_owner and self.statics is not None:
            self.statics.on_new_owner(out)

    def on_static_pods(self, key: str, turn: Turn, *, is_first: bool) -> None:
        """Look at the static pods of the profile; with a full name, try its mirror again."""
        statics = self._statics(turn.env)
        if key:
            statics.manager.on_retry(key, turn.now_ns, turn.out)
        else:
            if is_first:
                statics.is_ready = False
            update = partial(self._on_update, turn=turn)
            statics.take(update, turn)
        self._send_statuses(turn)

    def workers(self) -> Iterable[PodWorker]:
        """Return the workers of this node's pods."""
        return self._workers.values()

    def end_pods(self, shutdown: NodeShutdown, turn: Turn) -> None:
        """Kill the pods whose turn it is in a shutdown."""
        while shutdown.is_due(self._workers, turn.now_ns):
            for worker, killed in shutdown.next_group(self._workers, turn.now_ns, turn.out):
                self._syncer.kill_pod(worker, killed, turn)
        self._send_statuses(turn)

    def is_idle(self) -> bool:
        """Return whether no pod is left, and no volume that the Node shows in use."""
        if self._workers or len(self._config):
            return False
        if next(iter(self.runtime), None) is not None:
            return False  # a kubelet before us started something that we have not seen yet
        if self.statics is not None and not self.statics.is_idle():
            return False
        if self.monitor is not None and not self.monitor.is_idle:
            return False
        claims = self._syncer.volumes.claims
        return claims is None or claims.is_idle()

    def images_in_use(self) -> set[str]:
        """Return the full names of the images that the containers of this node have."""
        return images_in_use(self._workers, self._syncer)

    def disk_bytes(self, turn: Turn) -> int | None:
        """Return how much of its disk the node uses; None: pods do not count."""
        if self.monitor is None:
            return None
        return self.monitor.stats(turn).disk

    @property
    def runtime(self) -> Runtime:
        """The container runtime of the machine."""
        return self._syncer.runtime

    def pods(self) -> Iterator[Pod]:
        """Yield the pods of this node."""
        return iter(self._config)

    def last_status(self, pod: Pod) -> PodStatus:
        """Return the status of a pod that was generated last, else the API's."""
        return self._syncer.last_status(pod)

    def sources(self, env: Environment) -> PodSources:
        """Return what is known of the objects that pods refer to."""
        return PodSources(self._syncer.volumes, env)

    def on_container_changed(self, uid: PodUid, turn: Turn) -> None:
        """Learn that a container of a pod ends at another time than was planned."""
        worker = self._workers.get(uid)
        if worker is not None:
            self._syncer.on_runtime_changed(worker, turn)

    def phases(self) -> dict[str, int]:
        """Count the pods by phase, as last generated."""
        counts: dict[str, int] = {}
        for pod in self._config:
            phase = self._syncer.last_status(pod).phase
            counts[phase] = counts.get(phase, 0) + 1
        return counts

    def _statics(self, env: Environment) -> StaticPodSync:
        """Return the side of static pods and mirrors, made on first use."""
        if self.statics is None:
            self.statics = StaticPodSync(
                PodManager(self._facts, env.draws), self._workers, self._syncer
            )
        return self.statics

    def _api_pod(self, uid: PodUid) -> Pod | None:
        """Return a pod as the API shows it: a static pod's is its mirror."""
        pod = self._config.get(uid)
        worker = self._workers.get(uid)
        if pod is None and worker is not None and self.statics is not None:
            return self.statics.api_pod(worker)
        return pod

    def _on_update(self, update: PodUpdate, turn: Turn) -> None:
        pod = update.pod
        if update.op is PodOp.ADD:
            worker = self._workers[pod.uid] = PodWorker(pod, turn.now_ns)
            turn.out.append(Report(self._facts.node, Milestone.POD_ADDED))
            self._syncer.adopt(worker, turn)
            if self.monitor is not None or declares_usage(pod, turn.behavior(pod)):
                self._watch_usage(turn)
            worker.on_pod(pod)
            if worker.state is WorkerState.SYNC:
                self.admission.on_addition(worker, turn)
            else:
                self._syncer.sync(worker, turn)
        else:
            worker = self._workers[pod.uid]
            if update.op is PodOp.REMOVE:
                if self.statics is not None and self.statics.holds_removal(worker, turn):
                    return
                worker.removed = True
                turn.out.append(Report(self._facts.node, Milestone.POD_REMOVED))
                if worker.kill():
                    self._syncer.interrupt(worker, turn)
            else:
                self._on_new_version(worker, update, turn)
        self._drop_if_done(worker, turn)

    def _on_new_version(self, worker: PodWorker, update: PodUpdate, turn: Turn) -> None:
        """Take an UPDATE, DELETE or RECONCILE; the last needs no sync, but for readiness gates."""
        pod = self._syncer.take_version(worker, update.pod, self.admission, turn)
        old = worker.pod
        if worker.registered:
            self._syncer.volumes.update_pod(old, pod, turn.now_ns, turn.out)
        self._syncer.statuses.on_pod(update.pod, turn.now_ns, turn.out)
        is_ending = worker.on_pod(pod)
        if pod.annotations != old.annotations or pod.spec.containers is not old.spec.containers:
            self._follow_usage(worker, turn)
        if is_ending:
            self._syncer.interrupt(worker, turn)
        elif self.admission.holds(worker):
            return
        elif update.op is PodOp.UPDATE or (
            pod.spec.readiness_gates and pod.status.conditions != old.status.conditions
        ):
            self._syncer.sync(worker, turn)

    def watch_usage(self, turn: Turn) -> None:
        """Watch a node that may come under pressure without any pod."""
        self._watch_usage(turn)

    @property
    def pressures(self) -> tuple[str, ...]:
        """Return the conditions that the node is under."""
        return () if self.monitor is None else self.monitor.pressures

    def _follow_usage(self, worker: PodWorker, turn: Turn) -> None:
        """Take what annotations, or a resize, changed of a pod's usage and limits."""
        behavior = turn.behavior(worker.pod)
        if self.monitor is not None or declares_usage(worker.pod, behavior):
            follow_usage(worker, behavior, self._syncer, turn)
            self._watch_usage(turn).on_usage_changed(turn)

    def _watch_usage(self, turn: Turn) -> ResourceMonitor:
        if self.monitor is None:
            model = turn.env.model
            self.monitor = ResourceMonitor(self._facts, model, self._workers, self._syncer)
            if not turn.env.light:
                arm_image_gc(self._facts.node, turn.env, turn.now_ns, turn.out, is_watched=True)
        self.monitor.on_change(turn)
        return self.monitor

    def _on_eviction_timer(self, turn: Turn) -> None:
        if self.monitor is not None:
            self.monitor.on_timer(turn)
            self.admission.pressures = self.monitor.pressures

    def _on_volumes(self, uids: list[PodUid], turn: Turn) -> None:
        for uid in uids:
            worker = self._workers.get(uid)
            if worker is not None and worker.state is WorkerState.SYNC:
                self._syncer.on_volumes(worker, turn)

    def _on_token(self, worker: PodWorker, call: ApiCall, reply: Reply, turn: Turn) -> None:
        request = call.payload
        assert isinstance(request, TokenRequest), call
        wall_ns = turn.env.wall_ns(turn.now_ns)
        pod = worker.pod
        if self._syncer.volumes.on_token(pod, request, reply, turn.now_ns, wall_ns, turn.out):
            self._syncer.on_volumes(worker, turn)

    def _report_started(
        self, worker: PodWorker, status: PodStatus, now_ns: int, out: Outbox
    ) -> None:
        """Tell how long it took until the server knew that the pod runs."""
        if worker.seen_ns >= 0 and status.phase in STARTED_PHASES:
            took_ns, simulated_ns = now_ns - worker.seen_ns, worker.simulated_ns
            out.append(Report(self._facts.node, Milestone.POD_RUNNING, took_ns, simulated_ns))
            worker.seen_ns, worker.simulated_ns = -1, 0

    def _send_statuses(self, turn: Turn) -> None:
        """Send the statuses that are due, until one request is in flight."""
        if self.admission.is_holding:
            self.admission.release_ready(turn)
        while (uid := self._syncer.statuses.next()) is not None:
            worker = self._workers.get(uid)
            pod = self._api_pod(uid)
            if pod is None and worker is not None and isinstance(worker.pod, StaticPod):
                continue  # sent when it has a mirror
            may_run = worker is not None and self._syncer.may_run(worker, turn.env)
            self._syncer.statuses.send(
                uid, pod, light=turn.env.light, may_run=may_run, out=turn.out
            )

    def _drop_if_done(self, worker: PodWorker, turn: Turn) -> None:
        if self.statics is not None and is_over(worker):
            self.statics.manager.arm(turn.now_ns, turn.out)
        elif worker.removed and worker.state is WorkerState.FINISHED:
            self._syncer.statuses.forget(worker.pod.uid)  # as HandlePodCleanups
            self.admission.forget(worker.pod.uid)
            self._workers.pop(worker.pod.uid, None)
        self._syncer.retry_resizes(self._workers, self.admission, turn)
