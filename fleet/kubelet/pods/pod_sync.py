"""What the worker of a pod does: SyncPod, SyncTerminatingPod, SyncTerminatedPod, as one table.

    IDLE -> SYNC_POD -> MOUNT -> SECRETS -> PREPARE -> RUNTIME -> SANDBOX -> PLAN -> KILL
         -> CONFIGURE -> NEXT -> (CREDENTIALS, PULL, CREATE, START, POST_START)* -> COMPLETE -> IDLE
    IDLE -> SYNC_TERMINATING -> STOP -> IDLE -> SYNC_TERMINATED -> UNMOUNT -> IDLE

`PodSyncer.TRANSITIONS` says for each stage and for what happened which step is taken and where that
may lead. `PodSyncer.advance` is the only door: a step returns the stage that follows at once, or
None once it rests in one that waits, with one timer in the wheel. What has no row does not move a
worker: a sync that is asked for while one runs is `pending`. A healthy pod that runs has neither a
stage nor a timer; a container that will end has a timer, at the relist that will see it.

Until the last status is sent the object of a pod stays, with its deletionTimestamp.
Source: pkg/kubelet/kubelet.go, SyncPod, SyncTerminatingPod, SyncTerminatedPod, OnPodSandboxReady,
rejectPod; pod_workers.go, podWorkerLoop, completeWork; kubelet_volumes.go, podVolumesExist: what
could not be unmounted counts as mounted, and is waited for without an end.
Differs: in `light` there are no volumes and no first status, and the relist is not waited for; a
pod that is deleted goes without a last status unless a finalizer or an owner waits for one.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Milestone, Timer, WatchKind
from fleet.k8s.pods import Pod, PodStatus
from fleet.k8s.static_pods import StaticPod
from fleet.kubelet.containers import kuberuntime_container
from fleet.kubelet.containers.allocation_manager import AllocationManager
from fleet.kubelet.containers.image_manager import ERR_IMAGE_PULL, release_images
from fleet.kubelet.containers.kuberuntime_manager import ANSWER_POLL_NS, KubeRuntimeManager
from fleet.kubelet.containers.pod_actions import ALL_RESTARTING, could_restart_all
from fleet.kubelet.containers.probe_manager import ProbeManager
from fleet.kubelet.containers.probe_worker import ProbeResult
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.devices.dra import FAILED as PREPARE_FAILED
from fleet.kubelet.devices.dra import FAILED_TEXT as PREPARE_TEXT
from fleet.kubelet.devices.dra import DRAManager
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import OpenReason, Reason
from fleet.kubelet.node.runtime_state import RuntimeState
from fleet.kubelet.node_facts import NodeFacts
from fleet.kubelet.pod_worker import (
    RUNTIME_STAGES,
    TERMINAL_PHASES,
    Happened,
    PodKill,
    PodWorker,
    Rejection,
    SyncStage,
    WorkerState,
    kill_timeout_ns,
    requeue_ns,
)
from fleet.kubelet.pods.pleg import Pleg
from fleet.kubelet.pods.pod_manager import HOUSEKEEPING_NS, PodManager
from fleet.kubelet.pods.pod_status import StatusGenerator
from fleet.kubelet.pods.status_generate import (
    apply_update,
    deadline_ns,
    is_past_deadline,
    terminate_pod_status,
    untolerated_key,
    with_sandbox_ready,
)
from fleet.kubelet.pods.status_manager import StatusManager
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.claim_volumes import ClaimVolumes
from fleet.kubelet.volumes.pod_volume import LOOP_NS, MOUNT_POLL_NS, MountResult, mount_seen_ns
from fleet.kubelet.volumes.volume_manager import VolumeManager
from fleet.kubelet.volumes.watched_objects import ObjectKey
from fleet.profile.container_behavior import ProbeKind
from fleet.runtime.containers import NEVER

TRANSIENT_NS = 1 * NS_PER_S
"""backOffOnTransientErrorPeriod: how soon a pod is tried again whose network is not ready."""
BUG_REASON = "FleetError"
MESSAGE_MAX = 1024
"""Of an event. Source: pkg/apis/core/validation/events.go, NoteLengthLimit."""
GRACE_EXCEEDED = "Container runtime did not kill the pod within specified grace period."
EXIST_POLL_NS = LOOP_NS
"""How often a pod looks whether what could not be unmounted is: kubelet.go, SyncTerminatedPod."""
SENT_SHARE = 0.25
"""How often a status manager begins to send the status of SyncTerminatedPod before TerminatePod
sets the next one, if no volume is waited for. Both are a race in a kubelet: 36 of 116 times in
three runs of a real one, which were busy, and rarely where one pod ends at a time."""
_STREAM_REQUEUE = 0x5E90
_STREAM_LAST = 0x1A57
_STREAM_RESYNC = 0x5E91
_STREAM_ORPHAN = 0x04FA4
_STREAM_CLEANUP = 0x04FA5
_STREAM_RETRY = 0x04FA6


_At, _On = SyncStage, Happened
_SYNC_OF = {
    WorkerState.SYNC: SyncStage.SYNC_POD,
    WorkerState.TERMINATING: SyncStage.SYNC_TERMINATING,
    WorkerState.TERMINATED: SyncStage.SYNC_TERMINATED,
}
_SYNCS = tuple(_SYNC_OF.values())


class _Row(NamedTuple):
    """A transition: the step that is taken, and the stages that it may return."""

    step: "Callable[[PodSyncer, PodWorker, Turn], SyncStage | None]"
    leads_to: tuple[SyncStage, ...] = ()


def _of_runtime(
    step: Callable[[KubeRuntimeManager, PodWorker, Turn], SyncStage | None], *leads_to: SyncStage
) -> _Row:
    return _Row(lambda syncer, worker, turn: step(syncer.kuberuntime, worker, turn), leads_to)


class PodSyncer:
    """Runs the syncs of one node's pods."""

    __slots__ = (
        "allocations",
        "dra",
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
        self.pleg = Pleg(node, draws)
        self.runtime = env.runtime_of(node, facts.name, facts.host_ips, facts.pod_cidrs)
        claims = ClaimVolumes.read(env.devices.pop(node, {}))
        self.volumes = VolumeManager(self.runtime, claims=claims)
        self.probes = ProbeManager(self.runtime)
        self.allocations = AllocationManager.read(env.allocations.pop(node, None))
        self.dra = DRAManager.read(env.claims.pop(node, {}))
        self.mirrors = PodManager()
        self.statuses = StatusManager()
        self.kuberuntime = KubeRuntimeManager(
            self.runtime, self.volumes, self.probes, self.allocations
        )
        self.reports = StatusGenerator(
            self.statuses, self.runtime, self.probes, self.allocations, self.dra, devices
        )

    def reject(self, worker: PodWorker, rejection: Rejection, turn: Turn) -> None:
        """Report that a pod may not run; housekeeping ends what runs of it. Source: rejectPod."""
        pod = worker.pod
        turn.event(pod, OpenReason(rejection.reason), rejection.message)
        status = _failed(pod, rejection.reason, f"Pod was rejected: {rejection.message}")
        turn.facts.counts().on_rejection(rejection.reason)
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None and sandbox.is_running():
            self.reports.set_status(worker, status, turn)
            worker.stage = SyncStage.ORPHAN
            turn.wait(worker, turn.now_ns + int(HOUSEKEEPING_NS * turn.draw(_STREAM_ORPHAN)))
            return
        worker.reject()
        is_last = not turn.env.fidelity.reports_each_step
        self.reports.set_status(worker, status, turn, finished=is_last)
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
        status = _failed(pod, BUG_REASON, message)
        self.reports.set_status(worker, status, turn, finished=True)
        turn.report(Milestone.POD_FAILED)

    def kill_pod(self, worker: PodWorker, killed: PodKill, turn: Turn) -> None:
        """End a pod for a manager's reason, which its status will say. Source: killPodNow."""
        if worker.kill(killed):
            self.interrupt(worker, turn)
        if worker.state is WorkerState.TERMINATING:
            due_ns = turn.now_ns + kill_timeout_ns(killed, worker.pod)
            turn.arm(due_ns, Timer.POD_KILL, worker.pod.uid)

    def advance(self, worker: PodWorker, happened: Happened, turn: Turn) -> None:
        """Take what happened to a pod: the only way by which the stage of its worker changes."""
        row = self.TRANSITIONS.get((worker.stage, happened))
        if row is None:
            worker.pending = worker.pending or happened <= Happened.ENDED
            return
        stage = row.step(self, worker, turn)
        while stage is not None:
            assert stage in row.leads_to, (happened, worker.stage, stage)
            worker.stage = stage
            row = self.TRANSITIONS[stage, Happened.ENTERED]
            stage = row.step(self, worker, turn)
        if worker.stage in (SyncStage.KILL, SyncStage.STOP):
            self.probes.on_status(worker.pod, self.statuses.last_status(worker.pod), turn)

    def sync(self, worker: PodWorker, turn: Turn) -> None:
        """Ask for a sync of a pod, with the mirror that it has now. Source: UpdatePod."""
        if worker.heed_phase():
            self.interrupt(worker, turn)
            return
        self.mirrors.ask(worker.pod)
        self.advance(worker, Happened.ASKED, turn)

    def _begin(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Begin the sync that was asked for, if the pod cache is fresh enough.

        Source: podWorkerLoop, podCache.GetNewerThan: a sync waits for a relist after the last one.
        What that relist reports of the pod is pending while the sync runs: the relist writes the
        cache before it sends its events (reconcilePodRecord).
        """
        if worker.state is WorkerState.FINISHED:
            return None
        now_ns = turn.now_ns
        waits = not worker.fresh and turn.env.fidelity.waits_for_relist
        if waits and self.pleg.last_relist_ns(now_ns) <= worker.last_sync_ns:
            self.mirrors.begin(worker.pod)
            turn.enqueue(worker, self.pleg.next_relist_ns(now_ns + 1))
            worker.pending = True
            return None
        worker.sync_ns = 0
        worker.pending = (
            worker.pending and worker.state is WorkerState.SYNC and self._is_reported(worker, turn)
        )
        worker.began_ns = now_ns
        return _SYNC_OF[worker.state]

    def _is_reported(self, worker: PodWorker, turn: Turn) -> bool:
        """Return whether the relist that a sync waited for reports something of its pod."""
        uid, now_ns, offset_ns = worker.pod.uid, turn.now_ns, turn.env.wall_offset_ns
        sandbox = self.runtime.sandbox(uid)
        if sandbox is None:
            return False
        self.runtime.advance(uid, now_ns, offset_ns)
        return self.pleg.reports(uid, sandbox, now_ns, offset_ns)

    def _begin_again(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        self.mirrors.ask(worker.pod)
        return self._begin(worker, turn)

    def _give_up(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """End a sync that only waits for volumes or secrets, and begin the one that ends a pod."""
        worker.end_sync(turn.now_ns, relisted=False)
        return self._begin(worker, turn)

    def may_run(self, worker: PodWorker, env: Environment) -> bool:
        """Return whether containers of a pod may still run. Source: CouldHaveRunningContainers."""
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
        self.mirrors.ask(worker.pod)
        self.advance(worker, Happened.ENDED, turn)

    def on_sync_timer(self, worker: PodWorker, turn: Turn) -> None:
        """Take a call of the work queue."""
        now_ns, pod = turn.now_ns, worker.pod
        if not worker.sync_ns or now_ns < worker.sync_ns:
            status, offset_ns = self.statuses.last_status(pod), turn.env.wall_offset_ns
            past = is_past_deadline(pod, status, now_ns, offset_ns)
            if not past or worker.state is not WorkerState.SYNC:
                return
        worker.sync_ns = 0
        if worker.stage in RUNTIME_STAGES and not turn.env.fidelity.reports_each_step:
            status = self.reports.generate(worker, turn)
            if not (worker.plan and status.phase in TERMINAL_PHASES):  # what has ended starts again
                self.reports.set_status(worker, status, turn)
        elif self.mirrors.has_begun(worker.pod):
            self.advance(worker, Happened.ASKED, turn)
        else:
            self.sync(worker, turn)

    def _arm_deadline(self, worker: PodWorker, turn: Turn) -> None:
        """Have the sync tick look at a pod once it was active for too long."""
        pod = worker.pod
        due_ns = deadline_ns(pod, self.statuses.last_status(pod), turn.env.wall_offset_ns)
        if due_ns > turn.now_ns:
            turn.arm(self.pleg.next_relist_ns(due_ns), Timer.POD_SYNC, pod.uid)

    def on_runtime_timer(self, worker: PodWorker, turn: Turn) -> None:
        """Go on if the instant has come that the worker waits for; an older timer is stale."""
        if worker.due_ns and turn.now_ns >= worker.due_ns:
            worker.due_ns = 0
            self.advance(worker, Happened.DUE, turn)

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
        if worker.stage is SyncStage.MOUNT and result is MountResult.GIVEN_UP:
            self.advance(worker, Happened.FAILED, turn)
        elif worker.stage is SyncStage.MOUNT and result is MountResult.MOUNTED:
            self.advance(worker, Happened.DONE, turn)

    def on_probes(self, worker: PodWorker, turn: Turn) -> None:
        """Take what the probes of a pod found. Source: kubelet.go, syncLoopIteration.

        Differs: a sync after a container became ready is left out if it would find nothing to do:
        no other one waits for its readiness probe, which a sync triggers.
        """
        pod = worker.pod
        status = self.statuses.status(pod.uid)
        if status is None:
            return
        updates = self.probes.on_timer(pod, status, turn)
        if untolerated_key(pod, turn.env.tolerate_key):  # it never becomes ready
            updates = [each for each in updates if each.kind is not ProbeKind.READINESS]
        needs_sync = False
        for each in updates:  # each by itself: a status of both has the times of both
            status = apply_update(pod, status, each)
            self.reports.set_status(worker, status, turn)
            if each.kind is not ProbeKind.STARTUP and each.result is ProbeResult.SUCCESS:
                is_ready = each.kind is ProbeKind.READINESS
                needs_sync = needs_sync or (is_ready and self.probes.is_resynced(pod.uid))
            else:
                needs_sync = True
        if needs_sync and worker.state is WorkerState.SYNC:
            self.sync(worker, turn)

    def sync_pod(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Report a pod that should run, and begin to have what it needs. Source: SyncPod."""
        pod, fidelity = worker.pod, turn.env.fidelity
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
            return self._begin_again(worker, turn)
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
            return None
        self.mirrors.reconcile(pod, captured, turn)
        if not fidelity.mounts_volumes:
            return SyncStage.SECRETS
        if not worker.registered:
            worker.registered = True
            self.volumes.register_pod(pod, turn)
        if pod.spec.volumes and not worker.volumes_ready:
            return SyncStage.MOUNT
        self.volumes.reprocess(pod, turn)
        return SyncStage.SECRETS

    def _mount(self, worker: PodWorker, turn: Turn) -> None:
        worker.last_sync_ns = turn.now_ns  # since when the volumes are waited for
        self.volumes.begin(worker.pod, turn)

    def _on_mounted(self, worker: PodWorker, turn: Turn) -> None:
        """Have the sync see the volumes when it looks at them next."""
        worker.stage = SyncStage.MOUNTED
        turn.wait(worker, mount_seen_ns(worker.last_sync_ns, turn.now_ns))

    def _on_unmounted(self, worker: PodWorker, turn: Turn) -> None:
        """Fail a sync whose volumes were not mounted in time."""
        worker.end_sync(turn.now_ns, relisted=False)
        self._requeue(worker, 0, turn)

    def _take_volumes(self, worker: PodWorker, _turn: Turn) -> SyncStage:
        worker.volumes_ready = True
        return SyncStage.SECRETS

    def _begin_secrets(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        if not (worker.pod.spec.pull_secrets and turn.env.fidelity.reads_objects):
            return SyncStage.PREPARE
        worker.last_sync_ns = turn.now_ns  # since when they are waited for
        return self._await_secrets(worker, turn)

    def _await_secrets(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Wait until the pull secrets are known, for a second at most where they are watched.

        Source: secret_manager.go, GetSecret; watch_based_manager.go, objectCache.Get.
        """
        if self.volumes.objects.awaits_secrets(worker.pod, worker.last_sync_ns, turn):
            turn.wait(worker, turn.now_ns + ANSWER_POLL_NS)
            return None
        if turn.env.model.release.reports_secrets_early:
            self.kuberuntime.look_for_secrets(worker.pod, turn)
        return SyncStage.PREPARE

    def _prepare(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Have the claims of a pod prepared before its sandbox is made."""
        pod = worker.pod
        self.probes.add_pod(pod, self.statuses.last_status(pod), turn)
        sandbox = self.runtime.sandbox(pod.uid)
        has_sandbox = sandbox is not None and sandbox.ready
        claims = pod.spec.admission.claims
        if not claims or has_sandbox or not turn.env.fidelity.prepares_claims:
            return SyncStage.RUNTIME
        error = self.dra.prepare(pod, turn)
        if error is None:
            return None
        if not error:
            return SyncStage.RUNTIME
        self._on_unprepared(worker, error, turn)
        return SyncStage.COMPLETE

    def on_prepared(self, worker: PodWorker, error: str | None, turn: Turn) -> None:
        """Go on with a pod whose claims are ready, or leave it to its next resync."""
        if worker.stage is not SyncStage.PREPARE or error is None:
            return
        if error:
            self._on_unprepared(worker, error, turn)
        self.advance(worker, Happened.FAILED if error else Happened.DONE, turn)

    def _on_unprepared(self, worker: PodWorker, error: str, turn: Turn) -> None:
        turn.event(worker.pod, OpenReason(PREPARE_FAILED), PREPARE_TEXT % error)
        worker.fail(turn.now_ns + turn.env.model.kubelet.sync_frequency_ns)

    def _sync_runtime(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Begin with the runtime's half of SyncPod: everything before it is there."""
        status = self.statuses.last_status(worker.pod)
        restart_all = could_restart_all(worker.pod) and any(
            each.type == ALL_RESTARTING and each.status == "True" for each in status.conditions
        )
        return self.kuberuntime.sync_pod(worker, turn, restart_all=restart_all)

    def _on_stopped(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Go on once everything has ended that is stopped, by SyncPod or for the pod is to end."""
        if worker.state is WorkerState.SYNC:
            return self.kuberuntime.on_stopped(worker, turn)
        return self._on_pod_stopped(worker, turn)

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

    def _on_sandbox_ready(self, worker: PodWorker, turn: Turn) -> SyncStage:
        """Report it before images are pulled. Source: kubelet.go, OnPodSandboxReady."""
        pod = worker.pod
        status = self.statuses.status(pod.uid)
        reports = (
            turn.env.fidelity.reports_each_step and turn.env.model.release.reports_ready_sandbox
        )
        if status is not None and reports:
            self.reports.set_status(worker, with_sandbox_ready(status, pod.generation), turn)
        return SyncStage.PLAN

    def _complete(self, worker: PodWorker, turn: Turn) -> None:
        """End a SyncPod. One that did something, without an error, asks for a relist at once.

        What it put into the reason cache is shown by the next sync, which may be when a back-off
        is over.
        """
        release = turn.env.model.release
        if worker.retry_ns:
            self._requeue(worker, worker.retry_ns, turn)
        if not release.reports_secrets_early and worker.has_reason(ERR_IMAGE_PULL):
            self.kuberuntime.look_for_secrets(worker.pod, turn)
        if worker.retry_ns and worker.had_actions and turn.env.fidelity.waits_for_relist:
            # The relist sees at least the new sandbox: the failure is reported a sync later.
            turn.enqueue(worker, self.pleg.next_relist_ns(turn.now_ns + 1))
        elif worker.retry_ns and not turn.env.fidelity.waits_for_relist:
            self.reports.set_status(worker, self.reports.generate(worker, turn), turn)
        has_acted = worker.had_actions and not worker.retry_ns
        at_once = release.relists_on_demand or not turn.env.fidelity.waits_for_relist
        relisted = has_acted and at_once
        sandbox = self.runtime.sandbox(worker.pod.uid)
        if worker.retry_ns and sandbox is not None and turn.env.fidelity.waits_for_relist:
            worker.pending = worker.pending or self.pleg.has_reported(
                worker.pod.uid, sandbox, turn.now_ns, turn.env.wall_offset_ns
            )
        worker.end_sync(turn.now_ns, relisted=relisted)
        has_changed = False
        if relisted and sandbox is not None:
            self.runtime.advance(worker.pod.uid, turn.now_ns, turn.env.wall_offset_ns)
            has_changed = self.pleg.relist(worker.pod.uid, sandbox)
        if has_changed:
            self.sync(worker, turn)
        elif worker.pending or self.mirrors.is_asked(worker.pod):
            self.advance(worker, Happened.ASKED, turn)
        if worker.stage is SyncStage.IDLE and worker.state is WorkerState.SYNC:
            self._watch_runtime(worker, turn)
            if turn.env.fidelity.resyncs_pods and (
                self.probes.is_resynced(worker.pod.uid)
                or self.kuberuntime.repeats(worker.pod, turn)
                or self._shows_what_was_asked(worker.pod)
            ):
                self._requeue(worker, turn.now_ns + turn.env.model.kubelet.sync_frequency_ns, turn)

    def _shows_what_was_asked(self, pod: Pod) -> bool:
        """Return whether the status of a running pod is yet to show what its cgroup has.

        That differs for devices and disk space. The sync that finds a pod running for the first
        time still goes by the phase of before. Source: convertToAPIPodLevelResourcesStatus.
        """
        spec = pod.spec
        if spec.running_json == spec.resources_json:
            return False
        status = self.statuses.last_status(pod)
        return status.phase == "Running" and status.resources_json == spec.resources_json

    def _watch_runtime(self, worker: PodWorker, turn: Turn) -> None:
        """Arm the relist that will see the next change, if there will be one."""
        sandbox = self.runtime.sandbox(worker.pod.uid)
        if sandbox is None or worker.due_ns:
            return
        change_ns = sandbox.next_exit_ns()
        if self.pleg.is_stale(worker.pod.uid, sandbox):
            change_ns = turn.now_ns
        if change_ns != NEVER:
            turn.wait(worker, self.pleg.next_relist_ns(max(change_ns, turn.now_ns + 1)))

    def on_runtime_changed(self, worker: PodWorker, turn: Turn) -> None:
        """Have the next relist see a change that was not planned, such as an OOM kill."""
        kuberuntime_container.go_on_killing(self.runtime, worker, turn)
        self.probes.on_status(worker.pod, self.statuses.last_status(worker.pod), turn)
        sandbox = self.runtime.sandbox(worker.pod.uid)
        if sandbox is not None and not sandbox.ready and worker.state is WorkerState.SYNC:
            if worker.stage is SyncStage.IDLE:
                turn.enqueue(worker, self.pleg.next_relist_ns(turn.now_ns + 1))
            else:
                worker.pending = True  # after the sync under way
        if worker.stage is SyncStage.IDLE and worker.state is WorkerState.SYNC:
            worker.due_ns = 0
            self._watch_runtime(worker, turn)

    def _relist(self, worker: PodWorker, turn: Turn) -> None:
        """Look at the runtime as the periodic relist does; sync the pod if something changed."""
        uid = worker.pod.uid
        sandbox = self.runtime.sandbox(uid)
        if sandbox is None or worker.state is not WorkerState.SYNC:
            return
        if worker.pending:
            return  # for the sync that waits for this relist
        self.runtime.advance(uid, turn.now_ns, turn.env.wall_offset_ns)
        if self.pleg.relist(uid, sandbox):
            worker.fresh = True
            self.sync(worker, turn)
        if worker.stage is SyncStage.IDLE and worker.state is WorkerState.SYNC:
            self._watch_runtime(worker, turn)

    def sync_terminating_pod(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Begin to stop what runs of a pod; each try reports Killing again of what still runs.

        Source: SyncTerminatingPod.
        """
        pod = worker.pod
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None:
            self.pleg.relist(pod.uid, sandbox)  # what this sync sees is no news any more
        if turn.env.fidelity.reports_each_step:
            self.reports.set_status(worker, self.reports.generate(worker, turn), turn)
        self.probes.stop_liveness_and_startup(pod, self.statuses.last_status(pod), turn)
        if sandbox is not None and sandbox.is_running():
            worker.stage = SyncStage.STOP
            kuberuntime_container.kill_containers(self.runtime, worker, sandbox, turn)
            return None
        if kuberuntime_container.sandbox_problem(self.runtime, pod, turn):
            worker.stage = SyncStage.STOP
            return self._on_pod_stopped(worker, turn)
        return self._terminated(worker, turn)

    def _on_pod_stopped(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Go on once what is stopped has ended; else report why it cannot be, and try again.

        Of a pod whose object is gone housekeeping has it tried again. What was killed alongside
        the rest is seen by the next relist, and has it tried again then.
        Source: pod_workers.go, completeWork, removeTerminatedWorker.
        """
        error = kuberuntime_container.outcome(self.runtime, worker, turn)
        if error is None:
            return None
        if not error:
            return self._terminated(worker, turn)
        pod = worker.pod
        turn.event(pod, Reason.FAILED_KILL_POD, f"error killing pod: {error}")
        worker.end_sync(turn.now_ns, relisted=False)
        self._requeue(worker, 0, turn)
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None and self.pleg.is_stale(pod.uid, sandbox):
            turn.enqueue(worker, self.pleg.next_relist_ns(turn.now_ns + 1))
        elif worker.removed:
            share = turn.draw(_STREAM_CLEANUP, pod.uid)
            turn.enqueue(worker, turn.now_ns + int(HOUSEKEEPING_NS * share) + 1)
        return self._begin(worker, turn) if worker.pending else None

    def _terminated(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Report how the containers ended; the pod is now terminated."""
        pod, offset_ns = worker.pod, turn.env.wall_offset_ns
        self.on_probes(worker, turn)  # those that the end of a container has ended
        self.probes.remove_pod(pod.uid)
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None:
            self.runtime.advance(pod.uid, turn.now_ns, offset_ns)
            assert not sandbox.is_running(), pod.uid
            self.runtime.stop_sandbox(pod.uid)
        self.dra.forget(pod.uid)  # before the last status, so that others may have the devices
        if _tells_end(worker, turn):
            status = self.reports.generate(worker, turn, is_terminal=True)
            self.reports.set_status(worker, status, turn)
        worker.complete_terminating()
        worker.end_sync(turn.now_ns, relisted=False)
        share = turn.draw(_STREAM_REQUEUE)
        worker.due_ns = turn.now_ns + LOOP_NS + int(LOOP_NS * share)  # volumes are unmounted then
        return self._begin_again(worker, turn)

    def sync_terminated_pod(self, worker: PodWorker, turn: Turn) -> None:
        """Begin to wait until the volumes of a pod are unmounted. Source: SyncTerminatedPod."""
        if not turn.env.fidelity.mounts_volumes:
            self._finish(worker, turn)
            return
        is_mounted = worker.volumes_ready and turn.now_ns < worker.due_ns
        status = self.reports.generate(worker, turn, is_terminal=True)
        is_sent = is_mounted or turn.draw(_STREAM_LAST, worker.pod.uid) < SENT_SHARE
        self.reports.set_status(worker, status, turn, begins=is_sent)
        worker.stage = SyncStage.UNMOUNT
        if is_mounted:
            turn.wait(worker, turn.now_ns + MOUNT_POLL_NS)
        else:
            self._unmount(worker, turn)

    def _unmount(self, worker: PodWorker, turn: Turn) -> None:
        """Try what is mounted, and finish once nothing is."""
        due_ns = self.volumes.unmount(worker.pod, turn) if worker.volumes_ready else 0
        if due_ns:
            turn.wait(worker, due_ns + int(EXIST_POLL_NS * turn.draw(_STREAM_REQUEUE)))
        else:
            self._finish(worker, turn)

    def _finish(self, worker: PodWorker, turn: Turn) -> None:
        """Let everything of the pod go but its status. Source: SyncTerminatedPod, TerminatePod."""
        pod = worker.pod
        if worker.registered:
            worker.registered = False
            self.volumes.unregister_pod(pod, turn)
        self.volumes.release(pod.uid, turn)
        status = self.statuses.last_status(pod)
        if _tells_end(worker, turn):
            status = terminate_pod_status(pod, status, worker.told or pod.status)
        self.reports.set_status(worker, status, turn, finished=True)
        worker.end_sync(turn.now_ns, relisted=False)
        worker.complete_terminated()
        if status.phase == "Failed" and not pod.deleting and not worker.removed:
            turn.report(Milestone.POD_FAILED)
        self._forget(pod, turn)

    def _end_orphan(self, worker: PodWorker, turn: Turn) -> None:
        """End what runs of a pod that was refused; the relist that sees its end has it synced.

        Its status then says how its containers ended. Source: HandlePodCleanups.
        """
        uid = worker.pod.uid
        sandbox = self.runtime.sandbox(uid)
        assert sandbox is not None, uid
        if not worker.had_actions:
            worker.had_actions = True
            self.runtime.advance(uid, turn.now_ns, turn.env.wall_offset_ns)
            kuberuntime_container.kill_containers(
                self.runtime, worker, sandbox, turn, is_orphan=True
            )
            return
        error = kuberuntime_container.outcome(self.runtime, worker, turn)
        if error:
            pod = dataclasses.replace(worker.pod, resource_version="")
            turn.event(pod, Reason.FAILED_KILL_POD, f"error killing pod: {error}")
            worker.had_actions = False
            turn.wait(worker, requeue_ns(turn.now_ns, 0, turn.draw(_STREAM_RETRY, uid)))
        elif error is not None:
            worker.end_sync(turn.now_ns, relisted=False)
            if worker.state is WorkerState.SYNC:
                self.on_runtime_changed(worker, turn)
            else:
                self.sync(worker, turn)

    def _leave_orphan(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """End a pod that was refused by a sync of its own, unless housekeeping has begun."""
        if not worker.had_actions:
            return self._give_up(worker, turn)
        worker.pending = True
        return None

    def _forget(self, pod: Pod, turn: Turn) -> None:
        release_images(pod, turn)
        self.kuberuntime.forget(pod.uid)
        self.pleg.forget(pod.uid)
        self.allocations.forget(pod.uid)
        self.dra.forget(pod.uid)

    def _requeue(self, worker: PodWorker, retry_ns: int, turn: Turn) -> None:
        """Try a sync that failed again later, when the work queue is looked at: each second."""
        share = turn.draw(_STREAM_REQUEUE, worker.pod.uid)
        resync_ns = turn.env.model.kubelet.sync_frequency_ns
        due_ns = self.pleg.next_relist_ns(requeue_ns(turn.now_ns, retry_ns, share, resync_ns))
        if not worker.sync_ns or due_ns < worker.sync_ns:
            turn.enqueue(worker, due_ns)

    TRANSITIONS: ClassVar[dict[tuple[SyncStage, Happened], "_Row"]] = {
        (_At.IDLE, _On.ASKED): _Row(_begin, _SYNCS),
        (_At.IDLE, _On.ENDED): _Row(_begin, _SYNCS),
        (_At.IDLE, _On.DUE): _Row(_relist),
        (_At.SYNC_POD, _On.ENTERED): _Row(sync_pod, (_At.MOUNT, _At.SECRETS, _At.SYNC_TERMINATING)),
        (_At.MOUNT, _On.ENTERED): _Row(_mount),
        (_At.MOUNT, _On.DONE): _Row(_on_mounted),
        (_At.MOUNT, _On.FAILED): _Row(_on_unmounted),
        (_At.MOUNT, _On.ENDED): _Row(_give_up, _SYNCS),
        (_At.MOUNT, _On.DUE): _Row(_relist),
        (_At.MOUNTED, _On.DUE): _Row(_take_volumes, (_At.SECRETS,)),
        (_At.MOUNTED, _On.ENDED): _Row(_give_up, _SYNCS),
        (_At.SECRETS, _On.ENTERED): _Row(_begin_secrets, (_At.PREPARE,)),
        (_At.SECRETS, _On.DUE): _Row(_await_secrets, (_At.PREPARE,)),
        (_At.SECRETS, _On.ENDED): _Row(_give_up, _SYNCS),
        (_At.PREPARE, _On.ENTERED): _Row(_prepare, (_At.RUNTIME, _At.COMPLETE)),
        (_At.PREPARE, _On.DONE): _Row(lambda *_: _At.RUNTIME, (_At.RUNTIME,)),
        (_At.PREPARE, _On.FAILED): _Row(lambda *_: _At.COMPLETE, (_At.COMPLETE,)),
        (_At.PREPARE, _On.DUE): _Row(_relist),
        (_At.RUNTIME, _On.ENTERED): _Row(
            _sync_runtime, (_At.SANDBOX, _At.KILL, _At.PLAN, _At.CONFIGURE)
        ),
        (_At.SANDBOX, _On.ENTERED): _of_runtime(KubeRuntimeManager.begin_sandbox),
        (_At.SANDBOX, _On.DUE): _of_runtime(
            KubeRuntimeManager.make_sandbox, _At.SANDBOX_READY, _At.COMPLETE
        ),
        (_At.SANDBOX_READY, _On.ENTERED): _Row(_on_sandbox_ready, (_At.PLAN,)),
        (_At.PLAN, _On.ENTERED): _of_runtime(KubeRuntimeManager.plan, _At.KILL),
        (_At.KILL, _On.ENTERED): _of_runtime(
            KubeRuntimeManager.kill_next, _At.CONFIGURE, _At.NEXT, _At.COMPLETE
        ),
        (_At.KILL, _On.DUE): _of_runtime(KubeRuntimeManager.on_stopped, _At.KILL, _At.COMPLETE),
        (_At.STOP, _On.DUE): _Row(_on_stopped, (_At.SANDBOX, _At.CONFIGURE, _At.COMPLETE, *_SYNCS)),
        (_At.CONFIGURE, _On.ENTERED): _of_runtime(KubeRuntimeManager.configure, _At.NEXT),
        (_At.NEXT, _On.ENTERED): _of_runtime(KubeRuntimeManager.next_container, _At.COMPLETE),
        (_At.CREDENTIALS, _On.DUE): _of_runtime(KubeRuntimeManager.on_lookup, _At.NEXT),
        (_At.PULL, _On.DUE): _of_runtime(KubeRuntimeManager.on_pulled, _At.NEXT),
        (_At.CREATE, _On.DUE): _of_runtime(KubeRuntimeManager.on_environment, _At.NEXT),
        (_At.START, _On.DUE): _of_runtime(KubeRuntimeManager.on_created, _At.NEXT),
        (_At.POST_START, _On.DUE): _of_runtime(
            KubeRuntimeManager.on_post_start, _At.NEXT, _At.KILL
        ),
        (_At.COMPLETE, _On.ENTERED): _Row(_complete),
        (_At.SYNC_TERMINATING, _On.ENTERED): _Row(
            sync_terminating_pod, (_At.SYNC_TERMINATING, _At.SYNC_TERMINATED)
        ),
        (_At.SYNC_TERMINATED, _On.ENTERED): _Row(sync_terminated_pod),
        (_At.UNMOUNT, _On.DUE): _Row(_unmount),
        (_At.ORPHAN, _On.DUE): _Row(_end_orphan),
        (_At.ORPHAN, _On.ENDED): _Row(_leave_orphan, _SYNCS),
    }


def _failed(pod: Pod, reason: str, message: str) -> PodStatus:
    return PodStatus(
        phase="Failed",
        reason=reason,
        message=message,
        qos_class=pod.spec.qos_class,
        observed_generation=pod.generation,
    )


def _tells_end(worker: PodWorker, turn: Turn) -> bool:
    """Return whether the last status of a pod is reported before its object goes."""
    if turn.env.fidelity.reports_each_step:
        return True
    return worker.pod.end_matters if worker.pod.deleting else not worker.removed
