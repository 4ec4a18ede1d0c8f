"""What the worker of a pod does: SyncPod, SyncTerminatingPod, SyncTerminatedPod.

    sync_pod: status -> watches -> volumes -> kuberuntime_manager.sync_pod -> relist
    its end: see pod_termination.py

A sync that has to wait leaves its stage in the worker and one timer in the wheel. A healthy pod
that runs has neither; a container that will end has one, at the relist that will see it.
Source: pkg/kubelet/kubelet.go, SyncPod, OnPodSandboxReady, rejectPod.
Differs: in `light` there are no volumes and no first status, and the relist is not waited for.
"""

from collections.abc import Sequence

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Milestone, Timer, WatchKind
from fleet.k8s.pods import Pod, PodStatus
from fleet.k8s.static_pods import StaticPod
from fleet.kubelet.containers.allocation_manager import AllocationManager
from fleet.kubelet.containers.container_kill import go_on_killing
from fleet.kubelet.containers.image_manager import release_images
from fleet.kubelet.containers.kuberuntime_manager import (
    ANSWER_POLL_NS,
    KubeRuntimeManager,
    Progress,
)
from fleet.kubelet.containers.pod_actions import ALL_RESTARTING, could_restart_all
from fleet.kubelet.containers.probe_manager import ProbeManager
from fleet.kubelet.counts import MOUNTED, VERIFIED
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.devices.dra import FAILED as PREPARE_FAILED
from fleet.kubelet.devices.dra import FAILED_TEXT as PREPARE_TEXT
from fleet.kubelet.devices.dra import DRAManager, Prepared
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import OpenReason, Reason
from fleet.kubelet.node.runtime_state import RuntimeState
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.pod_worker import (
    RUNTIME_STAGES,
    TERMINAL_PHASES,
    PodKill,
    PodWorker,
    Rejection,
    SyncStage,
    WorkerState,
    kill_timeout_ns,
    requeue_ns,
)
from fleet.kubelet.pods.active_deadline import deadline_ns, is_past_deadline
from fleet.kubelet.pods.pleg import Pleg, PodLifecycleEvent
from fleet.kubelet.pods.pod_manager import HOUSEKEEPING_NS, PodManager
from fleet.kubelet.pods.pod_status import StatusGenerator
from fleet.kubelet.pods.pod_termination import EndStep, PodTermination
from fleet.kubelet.pods.status_generate import apply_updates, untolerated_key, with_sandbox_ready
from fleet.kubelet.pods.status_manager import StatusManager
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.pod_mount import MountResult, mount_seen_ns
from fleet.kubelet.volumes.volume_manager import VolumeManager
from fleet.kubelet.volumes.watched_objects import ObjectKey
from fleet.profile.probe_behavior import ProbeKind
from fleet.runtime.containers import NEVER

TRANSIENT_NS = 1 * NS_PER_S
"""backOffOnTransientErrorPeriod: how soon a pod is tried again whose network is not ready."""
BUG_REASON = "FleetError"
MESSAGE_MAX = 1024
"""Of an event. Source: pkg/apis/core/validation/events.go, NoteLengthLimit."""
GRACE_EXCEEDED = "Container runtime did not kill the pod within specified grace period."
_BEFORE_RUNTIME = frozenset((SyncStage.MOUNT, SyncStage.MOUNTED, SyncStage.SECRETS))
"""Stages in which a pod that is to end gives up its sync."""
_STREAM_REQUEUE = 0x5E90
_STREAM_RESYNC = 0x5E91
_STREAM_ORPHAN = 0x04FA4
_STREAM_CLEANUP = 0x04FA5


class PodSyncer:
    """Runs the syncs of one node's pods."""

    __slots__ = (
        "allocations",
        "dra",
        "ending",
        "kuberuntime",
        "mirrors",
        "pleg",
        "probes",
        "reports",
        "runtime",
        "runtime_state",
        "statuses",
        "volumes",
    )

    def __init__(
        self,
        facts: NodeFacts,
        env: Environment,
        devices: DeviceManager | None,
        runtime_state: RuntimeState | None,
    ) -> None:
        self.runtime_state = runtime_state  # only of a machine with outages
        node, draws = facts.node, env.draws
        self.pleg = Pleg(node, draws, is_evented=env.model.kubelet.is_pleg_evented)
        self.runtime = env.runtime_of(node, facts.name, facts.host_ips, facts.pod_cidrs)
        self.volumes, self.probes = VolumeManager(self.runtime), ProbeManager()
        self.allocations = AllocationManager()
        self.dra = DRAManager()
        self.mirrors = PodManager(node, draws)
        self.statuses = StatusManager(node, draws)
        self.kuberuntime = KubeRuntimeManager(
            self.runtime, self.volumes, self.probes, self.allocations
        )
        self.reports = StatusGenerator(
            self.statuses, self.runtime, self.probes, self.allocations, self.dra, devices
        )
        self.ending = PodTermination(
            self.runtime, self.volumes, self.probes, self.statuses, self.reports
        )

    def reject(self, worker: PodWorker, rejection: Rejection, turn: Turn) -> None:
        """Report that a pod may not run; housekeeping ends what runs of it. Source: rejectPod."""
        pod = worker.pod
        turn.event(pod, OpenReason(rejection.reason), rejection.message)
        status = PodStatus(
            phase="Failed",
            reason=rejection.reason,
            message=f"Pod was rejected: {rejection.message}",
            qos_class=pod.spec.qos_class,
            observed_generation=pod.generation,
        )
        turn.facts.counts().on_rejection(rejection.reason)
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None and sandbox.is_running():
            self.reports.set_status(worker, status, turn)
            worker.stage = SyncStage.ORPHAN
            turn.wait(worker, turn.now_ns + int(HOUSEKEEPING_NS * turn.draw(_STREAM_ORPHAN)))
            return
        worker.reject()
        self.reports.set_status(worker, status, turn, finished=True)
        turn.report(Milestone.POD_FAILED)

    def abandon(self, worker: PodWorker, why: str, turn: Turn) -> None:
        """Drop what runs of a pod, whatever became of it, and report that it failed.

        Differs: no kubelet does so; fleet's own bugs are to cost one pod and not its node.
        """
        pod = worker.pod
        worker.end_sync(turn.now_ns, relisted=False)
        worker.state = WorkerState.FINISHED
        worker.sync_ns, worker.plan, worker.reasons = 0, (), None
        self.probes.remove_pod(pod.uid)
        if worker.registered:
            worker.registered = False
            self.volumes.unregister_pod(pod, turn)
        self._forget(pod, turn)
        message = f"fleet cannot run this pod because of a bug in fleet: {why}"[:MESSAGE_MAX]
        turn.event(pod, Reason.FAILED, message)
        status = PodStatus(
            phase="Failed",
            reason=BUG_REASON,
            message=message,
            qos_class=pod.spec.qos_class,
            observed_generation=pod.generation,
        )
        self.reports.set_status(worker, status, turn, finished=True)
        turn.report(Milestone.POD_FAILED)

    def kill_pod(self, worker: PodWorker, killed: PodKill, turn: Turn) -> None:
        """End a pod for a manager's reason, which its status will say. Source: killPodNow."""
        if worker.kill(killed):
            self.interrupt(worker, turn)
        if worker.state is WorkerState.TERMINATING:
            due_ns = turn.now_ns + kill_timeout_ns(killed, worker.pod)
            turn.arm(due_ns, Timer.POD_KILL, worker.pod.uid)

    def on_kill_timeout(self, worker: PodWorker, turn: Turn) -> bool:
        """Tell that a pod still runs whose end a manager awaits; return whether it does.

        Source: killPodNow.
        """
        if worker.state is not WorkerState.TERMINATING:
            return False
        turn.event(worker.pod, Reason.EXCEEDED_GRACE_PERIOD, GRACE_EXCEEDED)
        return True

    def sync(self, worker: PodWorker, turn: Turn) -> None:
        """Ask for a sync of a pod, with the mirror that it has now. Source: UpdatePod."""
        self.mirrors.ask(worker.pod)
        self.go_on(worker, turn)

    def go_on(self, worker: PodWorker, turn: Turn) -> None:
        """Run the sync that was asked for, at once if none runs and the pod cache is fresh enough.

        Source: podWorkerLoop, podCache.GetNewerThan: a sync waits for a relist after the last one.
        """
        if worker.stage is not SyncStage.IDLE:
            worker.pending = True
            return
        if worker.state is WorkerState.FINISHED:
            return
        now_ns = turn.now_ns
        waits = not worker.fresh and turn.env.fidelity.waits_for_relist
        if waits and self.pleg.last_cached_ns(now_ns) <= worker.last_sync_ns:
            self.mirrors.begin(worker.pod)
            turn.enqueue(worker, self.pleg.next_cached_ns(now_ns + 1))
            return
        worker.sync_ns = 0
        worker.pending = False
        worker.began_ns = now_ns
        if worker.state is WorkerState.SYNC:
            self._sync_pod(worker, turn)
        elif worker.state is WorkerState.TERMINATING:
            sandbox = self.runtime.sandbox(worker.pod.uid)
            if sandbox is not None:
                self.pleg.relist(worker.pod.uid, sandbox)  # what this sync sees is no news any more
            self._take_end(worker, self.ending.sync_terminating(worker, turn), turn)
        else:
            self._forget_if_over(worker, self.ending.sync_terminated(worker, turn), turn)

    def may_run(self, worker: PodWorker, env: Environment) -> bool:
        """Tell whether containers of a pod might still run. Source: CouldHaveRunningContainers."""
        # Of a static pod the mirror's uid is asked about, of which no worker is known.
        if worker.state >= WorkerState.TERMINATED or isinstance(worker.pod, StaticPod):
            return False
        if env.fidelity.waits_for_relist:
            return True
        sandbox = self.runtime.sandbox(worker.pod.uid)
        return sandbox is not None and sandbox.is_running()

    def interrupt(self, worker: PodWorker, turn: Turn) -> None:
        """Sync a pod whose end was asked for, or whose grace period became shorter.

        Only the wait for volumes is given up: what the runtime is asked for has a context that is
        never cancelled, so that pulls, starts and kills that have begun are waited for.
        Source: kubelet.go, SyncPod (WithoutCancel), SyncTerminatingPod (context.TODO).
        """
        self.volumes.abort(worker.pod.uid)
        is_no_orphan_yet = worker.stage is SyncStage.ORPHAN and not worker.had_actions
        if worker.stage in _BEFORE_RUNTIME or is_no_orphan_yet:
            worker.end_sync(turn.now_ns, relisted=False)
        self.sync(worker, turn)

    def on_sync_timer(self, worker: PodWorker, turn: Turn) -> None:
        """Take a call of the work queue."""
        is_due = worker.sync_ns != 0 and turn.now_ns >= worker.sync_ns
        if not is_due and not self._is_past_deadline(worker, turn):
            return
        worker.sync_ns = 0
        if worker.stage in RUNTIME_STAGES and not turn.env.fidelity.reports_each_step:
            self.reports.set_status(worker, self.reports.generate(worker, turn), turn)
        elif self.mirrors.has_begun(worker.pod):
            self.go_on(worker, turn)
        else:
            self.sync(worker, turn)

    def _is_past_deadline(self, worker: PodWorker, turn: Turn) -> bool:
        status, offset_ns = self.statuses.last_status(worker.pod), turn.env.wall_offset_ns
        past = is_past_deadline(worker.pod, status, turn.now_ns, offset_ns)
        return past and worker.state is WorkerState.SYNC

    def _arm_deadline(self, worker: PodWorker, turn: Turn) -> None:
        """Have the sync tick look at a pod once it was active for too long."""
        pod = worker.pod
        due_ns = deadline_ns(pod, self.statuses.last_status(pod), turn.env.wall_offset_ns)
        if due_ns > turn.now_ns:
            turn.arm(self.pleg.next_relist_ns(due_ns), Timer.POD_SYNC, pod.uid)

    def on_runtime_timer(self, worker: PodWorker, turn: Turn) -> None:
        """Go on with what the runtime has done by now."""
        if not worker.due_ns or turn.now_ns < worker.due_ns:
            return
        worker.due_ns = 0
        stage = worker.stage
        if stage in RUNTIME_STAGES or (
            stage is SyncStage.STOP and worker.state is WorkerState.SYNC
        ):
            self._go_on(worker, self.kuberuntime.on_due(worker, turn), turn)
        elif stage is SyncStage.MOUNTED:
            worker.volumes_ready = True
            turn.facts.counts().on_volumes(worker.pod.spec.volumes, VERIFIED, MOUNTED)
            self._sync_runtime(worker, turn)
        elif stage is SyncStage.SECRETS:
            self._sync_runtime(worker, turn)
        elif stage is SyncStage.STOP:
            self._take_end(worker, self.ending.on_stop_due(worker, turn), turn)
        elif stage is SyncStage.UNMOUNT:
            self._forget_if_over(worker, self.ending.on_unmount_due(worker, turn), turn)
        elif worker.state is WorkerState.SYNC:
            self._relist(worker, turn)

    def on_volumes(self, worker: PodWorker, turn: Turn) -> None:
        """Go on with the volumes of a pod, whether its sync waits for them or not."""
        result, events = self.volumes.attempt(worker.pod, turn)
        if result is MountResult.REJECTED:
            reason, message = events.pop()
            worker.end_sync(turn.now_ns, relisted=False)
            worker.registered = False
            self.volumes.unregister_pod(worker.pod, turn)
            self.reject(worker, Rejection(reason.text, message), turn)
        for reason, message in events:
            turn.event(worker.pod, reason, message)
        if worker.stage is not SyncStage.MOUNT:
            return
        if result is MountResult.GIVEN_UP:
            worker.end_sync(turn.now_ns, relisted=False)
            self._requeue(worker, 0, turn)
        elif result is MountResult.MOUNTED:
            worker.stage = SyncStage.MOUNTED
            turn.wait(worker, mount_seen_ns(worker.last_sync_ns, turn.now_ns))

    def on_probes(self, worker: PodWorker, turn: Turn) -> None:
        """Take what the probes of a pod found."""
        pod = worker.pod
        status = self.statuses.status(pod.uid)
        if status is None:
            return
        updates = self.probes.on_timer(pod, status, turn)
        if untolerated_key(pod, turn.env.tolerate_key):  # it never becomes ready
            updates = [each for each in updates if each.kind is not ProbeKind.READINESS]
        needs_sync = False
        for each in updates:  # each by itself: what is told once has the times of both
            status, is_wanted = apply_updates(pod, status, [each])
            self.reports.set_status(worker, status, turn)
            needs_sync = needs_sync or is_wanted
        if needs_sync and worker.state is WorkerState.SYNC:
            self.sync(worker, turn)

    def _sync_pod(self, worker: PodWorker, turn: Turn) -> None:
        pod = worker.pod
        fidelity = turn.env.fidelity
        captured = self.mirrors.begun(pod)
        sandbox = self.runtime.sandbox(pod.uid)
        self.allocations.look(pod, sandbox, turn)
        if sandbox is not None and fidelity.waits_for_relist:
            self.pleg.relist(pod.uid, sandbox)  # what this sync sees is no news any more
        status = self.reports.generate(worker, turn)
        if status.phase in TERMINAL_PHASES:
            if fidelity.reports_each_step:
                self.reports.set_status(worker, status, turn)
            worker.complete_sync()
            worker.end_sync(turn.now_ns, relisted=False)
            self.sync(worker, turn)
            return
        if fidelity.reports_each_step:
            self.reports.set_status(worker, status, turn)
        else:
            self.reports.set_unless_starting(worker, status, turn)
        if pod.spec.active_deadline_s:
            self._arm_deadline(worker, turn)
        network_error = self.runtime_state and self.runtime_state.network_error(turn.now_ns)
        if network_error and not pod.spec.host_network:
            turn.event(pod, Reason.NETWORK_NOT_READY, f"network is not ready: {network_error}")
            worker.end_sync(turn.now_ns, relisted=False)
            self._requeue(worker, turn.now_ns + TRANSIENT_NS, turn)
            return
        self.mirrors.reconcile(pod, captured, turn)
        if not fidelity.mounts_volumes:
            self._sync_runtime(worker, turn)
            return
        if not worker.registered:
            worker.registered = True
            self.volumes.register_pod(pod, turn)
        if pod.spec.volumes and not worker.volumes_ready:
            worker.stage = SyncStage.MOUNT
            worker.last_sync_ns = turn.now_ns  # since when the volumes are waited for
            self.volumes.begin(pod, turn)
        else:
            turn.facts.counts().on_resync(pod.spec.volumes)
            self._sync_runtime(worker, turn)

    def _sync_runtime(self, worker: PodWorker, turn: Turn) -> None:
        """Begin with the runtime's half of SyncPod: everything before it is there."""
        if worker.pod.spec.pull_secrets and turn.env.fidelity.reads_objects:
            if self._awaits_secrets(worker, turn):
                return
            self.kuberuntime.look_for_secrets(worker.pod, turn)
        status = self.statuses.last_status(worker.pod)
        self.probes.add_pod(worker.pod, status, turn)
        restart_all = could_restart_all(worker.pod) and any(
            each.type == ALL_RESTARTING and each.status == "True" for each in status.conditions
        )
        sandbox = self.runtime.sandbox(worker.pod.uid)
        has_sandbox = sandbox is not None and sandbox.ready
        needs_claims = worker.pod.spec.admission.claims and not has_sandbox
        if needs_claims and turn.env.fidelity.prepares_claims:
            worker.stage = SyncStage.PREPARE
            self.on_prepared(worker, self.dra.prepare(worker.pod, turn), turn)
            return
        progress = self.kuberuntime.sync_pod(worker, turn, restart_all=restart_all)
        self._go_on(worker, progress, turn)

    def _awaits_secrets(self, worker: PodWorker, turn: Turn) -> bool:
        """Wait until the pull secrets are known, for a second at most where they are watched.

        Source: secret_manager.go, GetSecret; watch_based_manager.go, objectCache.Get.
        """
        if worker.stage is not SyncStage.SECRETS:
            worker.last_sync_ns = turn.now_ns  # since when they are waited for
        if not self.volumes.objects.awaits_secrets(worker.pod, worker.last_sync_ns, turn):
            return False
        worker.stage = SyncStage.SECRETS
        turn.wait(worker, turn.now_ns + ANSWER_POLL_NS)
        return True

    def on_object_lost(self, worker: PodWorker, key: ObjectKey, turn: Turn) -> None:
        """Have the next resync of a pod see that an object has gone, or a key of it."""
        pod, (kind, namespace, name) = worker.pod, key
        if worker.state is not WorkerState.SYNC:
            return
        if worker.volumes_ready:
            self.volumes.remount(pod, key, turn)
        is_ours = kind is WatchKind.SECRET and namespace == pod.namespace
        if is_ours and name in pod.spec.pull_secrets and worker.stage is SyncStage.IDLE:
            period_ns = turn.env.model.kubelet.sync_frequency_ns
            share = turn.draw(_STREAM_RESYNC, pod.uid)
            self._requeue(worker, turn.now_ns + int(share * period_ns), turn)

    def on_prepared(self, worker: PodWorker, prepared: Prepared, turn: Turn) -> None:
        """Go on with a pod whose claims are ready, or leave it to its next resync."""
        if worker.stage is not SyncStage.PREPARE or not prepared.is_done:
            return
        if prepared.error:
            turn.event(worker.pod, OpenReason(PREPARE_FAILED), PREPARE_TEXT % prepared.error)
            worker.fail(turn.now_ns + turn.env.model.kubelet.sync_frequency_ns)
            self._complete(worker, turn)
        else:
            self._go_on(worker, self.kuberuntime.sync_pod(worker, turn), turn)

    def _go_on(self, worker: PodWorker, progress: Progress, turn: Turn) -> None:
        """Take how far the runtime came."""
        if progress is Progress.SANDBOX_READY:
            self._on_sandbox_ready(worker, turn)
            progress = self.kuberuntime.plan(worker, turn)
        if progress is Progress.DONE:
            self._complete(worker, turn)

    def _on_sandbox_ready(self, worker: PodWorker, turn: Turn) -> None:
        """Report it before images are pulled. Source: kubelet.go, OnPodSandboxReady."""
        pod = worker.pod
        status = self.statuses.status(pod.uid)
        if status is not None and turn.env.fidelity.reports_each_step:
            self.reports.set_status(worker, with_sandbox_ready(status, pod.generation), turn)

    def _complete(self, worker: PodWorker, turn: Turn) -> None:
        """End a SyncPod. One that did something, without an error, asks for a relist at once.

        What it put into the reason cache is shown by the next sync, which may be when a back-off
        is over.
        """
        if worker.retry_ns:
            self._requeue(worker, worker.retry_ns, turn)
        if worker.retry_ns and worker.had_actions and turn.env.fidelity.waits_for_relist:
            # The relist sees at least the new sandbox: the failure is reported a sync later.
            turn.enqueue(worker, self.pleg.seen_ns(turn.now_ns + 1))
        elif worker.retry_ns and not turn.env.fidelity.waits_for_relist:
            self.reports.set_status(worker, self.reports.generate(worker, turn), turn)
        relisted = worker.had_actions and not worker.retry_ns
        operation = "create" if worker.had_actions and worker.seen_ns >= 0 else "sync"
        turn.facts.counts().on_sync(operation, turn.now_ns - worker.began_ns)
        worker.end_sync(turn.now_ns, relisted=relisted)
        sandbox = self.runtime.sandbox(worker.pod.uid)
        events: Sequence[PodLifecycleEvent] = ()
        if relisted and sandbox is not None:
            self.runtime.advance(worker.pod.uid, turn.now_ns, turn.env.wall_offset_ns)
            events = self.pleg.relist(worker.pod.uid, sandbox)
        if events:
            self.sync(worker, turn)
        elif worker.pending or self.mirrors.is_asked(worker.pod):
            self.go_on(worker, turn)
        if worker.stage is SyncStage.IDLE and worker.state is WorkerState.SYNC:
            self._watch_runtime(worker, turn)
            if turn.env.fidelity.resyncs_pods and self._is_resynced(worker.pod, turn):
                self._requeue(worker, turn.now_ns + turn.env.model.kubelet.sync_frequency_ns, turn)

    def _is_resynced(self, pod: Pod, turn: Turn) -> bool:
        """Return whether the next resync of a pod would do or say something."""
        return self.probes.is_resynced(pod.uid) or self.kuberuntime.repeats(pod, turn)

    def _watch_runtime(self, worker: PodWorker, turn: Turn) -> None:
        """Arm the relist that will see the next change, if there will be one."""
        sandbox = self.runtime.sandbox(worker.pod.uid)
        if sandbox is None or worker.due_ns:
            return
        change_ns = sandbox.next_exit_ns()
        if self.pleg.is_stale(worker.pod.uid, sandbox):
            change_ns = turn.now_ns
        if change_ns != NEVER:
            turn.wait(worker, self.pleg.seen_ns(max(change_ns, turn.now_ns + 1)))

    def on_runtime_changed(self, worker: PodWorker, turn: Turn) -> None:
        """Have the next relist see a change that was not planned, such as an OOM kill."""
        go_on_killing(self.runtime, worker, turn)
        sandbox = self.runtime.sandbox(worker.pod.uid)
        if sandbox is not None and not sandbox.ready and worker.state is WorkerState.SYNC:
            worker.pending = True  # after the sync under way, if there is one
            if worker.stage is SyncStage.IDLE:
                turn.enqueue(worker, self.pleg.seen_ns(turn.now_ns + 1))
        if worker.stage is SyncStage.IDLE and worker.state is WorkerState.SYNC:
            worker.due_ns = 0
            self._watch_runtime(worker, turn)

    def _relist(self, worker: PodWorker, turn: Turn) -> None:
        """Look at the runtime as the periodic relist does; sync the pod if something changed."""
        uid = worker.pod.uid
        sandbox = self.runtime.sandbox(uid)
        if sandbox is None:
            return
        self.runtime.advance(uid, turn.now_ns, turn.env.wall_offset_ns)
        if self.pleg.relist(uid, sandbox):
            worker.fresh = True
            self.sync(worker, turn)
        if worker.stage is SyncStage.IDLE and worker.state is WorkerState.SYNC:
            self._watch_runtime(worker, turn)

    def _take_end(self, worker: PodWorker, step: EndStep, turn: Turn) -> None:
        """Take how far the end of a pod came; try what failed again, as completeWork does.

        Of a pod whose object is gone housekeeping has it tried again. What was killed beside the
        rest is seen by the next relist, and has it tried again then.
        Source: pod_workers.go, completeWork, removeTerminatedWorker.
        """
        if step is EndStep.DONE:
            self.sync(worker, turn)
        if step is not EndStep.FAILED:
            return
        worker.end_sync(turn.now_ns, relisted=False)
        self._requeue(worker, 0, turn)
        sandbox = self.runtime.sandbox(worker.pod.uid)
        if sandbox is not None and self.pleg.is_stale(worker.pod.uid, sandbox):
            turn.enqueue(worker, self.pleg.seen_ns(turn.now_ns + 1))
        elif worker.removed:
            share = turn.draw(_STREAM_CLEANUP, worker.pod.uid)
            turn.enqueue(worker, turn.now_ns + int(HOUSEKEEPING_NS * share) + 1)
        if worker.pending:
            self.go_on(worker, turn)

    def _forget_if_over(self, worker: PodWorker, step: EndStep, turn: Turn) -> None:
        """Drop what is kept of a pod that is finished."""
        if step is EndStep.DONE:
            self._forget(worker.pod, turn)

    def _forget(self, pod: Pod, turn: Turn) -> None:
        release_images(pod, turn)
        self.kuberuntime.forget(pod.uid)
        self.pleg.forget(pod.uid)
        self.allocations.forget(pod.uid)
        self.dra.forget(pod.uid)

    def _requeue(self, worker: PodWorker, retry_ns: int, turn: Turn) -> None:
        """Try a sync that failed again later, when the work queue is looked at: each second."""
        share = turn.draw(_STREAM_REQUEUE, worker.pod.uid)
        due_ns = self.pleg.next_relist_ns(requeue_ns(turn.now_ns, retry_ns, share))
        if not worker.sync_ns or due_ns < worker.sync_ns:
            turn.enqueue(worker, due_ns)
