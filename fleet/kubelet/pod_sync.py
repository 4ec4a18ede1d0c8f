"""What the worker of a pod does: SyncPod, SyncTerminatingPod, SyncTerminatedPod.

    sync_pod: status -> watches -> volumes -> sandbox -> containers, one after another -> relist
    sync_terminating_pod: status -> stop containers -> status
    sync_terminated_pod: status -> volumes are unmounted -> last status

A sync that has to wait leaves its stage in the worker and one timer in the wheel. A healthy pod
that runs has neither; a container that will end has one, at the relist that will see it.
Source: pkg/kubelet/kubelet.go, SyncPod, SyncTerminatingPod, SyncTerminatedPod, OnPodSandboxReady;
kuberuntime_manager.go, SyncPod.
Differs: in `light` there are no volumes and no first status, and the relist is not waited for.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fleet.clock import NS_PER_S, Draws
from fleet.effects import Milestone, NodeId, Outbox, Report, SetTimer, Timer
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import EventRecorder, Reason
from fleet.kubelet.pleg import Pleg
from fleet.kubelet.pod_actions import containers_to_start, is_done_but_for_sidecars, is_sidecar
from fleet.kubelet.pod_events import back_off_texts, pod_ref, texts_of
from fleet.kubelet.pod_workers import (
    RUNTIME_STAGES,
    PodWorker,
    Stage,
    WorkerState,
    effective_grace_s,
    requeue_ns,
)
from fleet.kubelet.status_generate import (
    TERMINAL_PHASES,
    PodInputs,
    generate_pod_status,
    terminate_pod_status,
    untolerated_key,
    with_sandbox_ready,
)
from fleet.kubelet.status_manager import StatusManager
from fleet.kubelet.volume_manager import (
    LOOP_NS,
    MOUNT_POLL_NS,
    MountResult,
    VolumeManager,
    mount_seen_ns,
)
from fleet.objects import ContainerSpec, Pod, PodStatus, WaitingState
from fleet.pod_behavior import PodBehavior
from fleet.runtime import NEVER, BackOff, RunState, Runtime, Sandbox

PENDING_HOLD_NS = 1 * NS_PER_S
"""`light`: a pod that starts within this time is reported once, as Running."""
CREATE_CONFIG_ERROR = "CreateContainerConfigError"
_STREAM_REQUEUE = 0x5E90
_NO_REASONS: Mapping[str, WaitingState] = {}


class Turn(NamedTuple):
    """What every step of one input needs."""

    env: Environment
    recorder: EventRecorder
    now_ns: int
    out: Outbox


class PodSyncer:
    """Runs the syncs of one node's pods."""

    __slots__ = ("_back_off", "_host_ip", "_node", "pleg", "runtime", "statuses", "volumes")

    def __init__(self, node: NodeId, host_ip: str, pod_cidr: str, draws: Draws) -> None:
        self._node = node
        self._host_ip = host_ip
        self._back_off = BackOff()
        self.runtime = Runtime(node, host_ip, pod_cidr, draws)
        self.pleg = Pleg(node, draws)
        self.statuses = StatusManager(node, draws)
        self.volumes = VolumeManager(node, draws)

    def adopt(self, worker: PodWorker, turn: Turn) -> None:
        """Take over what a kubelet before us left running.

        A pod that had ended only has its cleanup left. Source: UpdatePod, first sync of a pod.
        """
        pod = worker.pod
        env = turn.env
        if self.runtime.adopt(pod, _behavior(pod, env), turn.now_ns, env.wall_offset_ns):
            sandbox = self.runtime.sandbox(pod.uid)
            assert sandbox is not None, pod.uid
            self.pleg.relist(pod.uid, sandbox)
            worker.seen_ns = -1
        sandbox = self.runtime.sandbox(pod.uid)
        if pod.status.phase in TERMINAL_PHASES and (sandbox is None or not sandbox.is_running()):
            worker.state = WorkerState.TERMINATED
            worker.seen_ns = -1

    def sync(self, worker: PodWorker, turn: Turn) -> None:
        """Run the next sync of a pod, at once if none runs and the pod cache is fresh enough.

        Source: podWorkerLoop, podCache.GetNewerThan: a sync waits for a relist after the last one.
        """
        if worker.stage is not Stage.IDLE:
            worker.pending = True
            return
        if worker.state is WorkerState.FINISHED:
            return
        now_ns = turn.now_ns
        waits = not worker.fresh and not turn.env.light
        if waits and self.pleg.last_relist_ns(now_ns) <= worker.last_sync_ns:
            self._enqueue(worker, self.pleg.next_relist_ns(now_ns + 1), turn)
            return
        worker.sync_ns = 0
        worker.pending = False
        if worker.state is WorkerState.SYNC:
            self._sync_pod(worker, turn)
        elif worker.state is WorkerState.TERMINATING:
            self._sync_terminating_pod(worker, turn)
        else:
            self._sync_terminated_pod(worker, turn)

    def interrupt(self, worker: PodWorker, turn: Turn) -> None:
        """Sync a pod whose end was asked for, or whose grace period became shorter."""
        if worker.stage in (Stage.MOUNT, Stage.MOUNTED):
            self.volumes.abort(worker.pod.uid)
            worker.end_sync(turn.now_ns, relisted=False)
        elif worker.stage is Stage.STOP:
            self._stop(worker, turn)
            return
        self.sync(worker, turn)

    def on_sync_timer(self, worker: PodWorker, turn: Turn) -> None:
        """Take a call of the work queue."""
        if not worker.sync_ns or turn.now_ns < worker.sync_ns:
            return
        worker.sync_ns = 0
        if turn.env.light and worker.stage in RUNTIME_STAGES:
            self._set_status(worker, self._generate(worker, turn), turn)
        else:
            self.sync(worker, turn)

    def on_runtime_timer(self, worker: PodWorker, turn: Turn) -> None:
        """Go on with what the runtime has done by now."""
        if not worker.due_ns or turn.now_ns < worker.due_ns:
            return
        worker.due_ns = 0
        stage = worker.stage
        if stage is Stage.SANDBOX:
            self._on_sandbox_due(worker, turn)
        elif stage is Stage.START:
            self._on_start_due(worker, turn)
        elif stage is Stage.MOUNTED:
            worker.volumes_ready = True
            self._start(worker, turn)
        elif stage is Stage.STOP and worker.state is WorkerState.SYNC:
            self._on_sidecars_stopped(worker, turn)
        elif stage is Stage.STOP:
            self._on_stopped(worker, turn)
        elif stage is Stage.UNMOUNT:
            self._finish(worker, turn)
        elif worker.state is WorkerState.SYNC:
            self._relist(worker, turn)

    def on_volumes(self, worker: PodWorker, turn: Turn) -> None:
        """Try to mount the volumes of a pod that waits for them."""
        if worker.stage is not Stage.MOUNT:
            return
        result, messages = self.volumes.attempt(worker.pod, turn.now_ns, turn.out)
        for message in messages:
            self._event(worker.pod, Reason.FAILED_MOUNT, message, turn)
        if result is MountResult.MOUNTED:
            worker.stage = Stage.MOUNTED
            self._wait(worker, mount_seen_ns(worker.last_sync_ns, turn.now_ns), turn)

    def _sync_pod(self, worker: PodWorker, turn: Turn) -> None:
        pod = worker.pod
        light = turn.env.light
        status = self._generate(worker, turn)
        if status.phase in TERMINAL_PHASES:
            if not light:
                self._set_status(worker, status, turn)
            worker.complete_sync()
            worker.end_sync(turn.now_ns, relisted=False)
            self.sync(worker, turn)
            return
        if light:
            self._set_unless_starting(worker, status, turn)
            self._start(worker, turn)
            return
        self._set_status(worker, status, turn)
        if not worker.registered:
            worker.registered = True
            self.volumes.register_pod(pod, turn.out)
        if pod.volumes and not worker.volumes_ready:
            worker.stage = Stage.MOUNT
            worker.last_sync_ns = turn.now_ns  # since when the volumes are waited for
            self.volumes.begin(pod, turn.now_ns, turn.out)
        else:
            self._start(worker, turn)

    def _start(self, worker: PodWorker, turn: Turn) -> None:
        """Create the sandbox unless it is there, then plan the containers."""
        pod = worker.pod
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None and sandbox.ready:
            self._plan(worker, sandbox, turn)
            return
        behavior = _behavior(pod, turn.env)
        delay_ns = self.runtime.sandbox_delay_ns(pod, behavior)
        if turn.env.light:  # one timer for sandbox and containers
            for spec in pod.init_containers[:1] or pod.containers:
                delay_ns += self.runtime.start_delay_ns(pod, spec, behavior)
        worker.stage = Stage.SANDBOX
        self._wait(worker, turn.now_ns + delay_ns, turn)
        if turn.env.light and worker.due_ns > worker.seen_ns + PENDING_HOLD_NS:
            self._enqueue(worker, worker.seen_ns + PENDING_HOLD_NS, turn)

    def _on_sandbox_due(self, worker: PodWorker, turn: Turn) -> None:
        pod = worker.pod
        sandbox = self.runtime.create_sandbox(pod)
        if sandbox is None:  # no address is free
            worker.end_sync(turn.now_ns, relisted=False)
            self._requeue(worker, 0, turn)
            return
        worker.had_actions = True
        status = self.statuses.status(pod.uid)
        if not turn.env.light and status is not None:
            self._set_status(worker, with_sandbox_ready(status, pod.generation), turn)
        self._plan(worker, sandbox, turn)

    def _plan(self, worker: PodWorker, sandbox: Sandbox, turn: Turn) -> None:
        """Choose the containers to start now; those in back-off wait."""
        pod = worker.pod
        plan = []
        retry_ns = NEVER
        for spec in containers_to_start(pod, sandbox):
            old = sandbox.find(spec.name)
            if old is not None:
                exited_ns = old.exit_ns
                wait_ns = self._back_off.wait_ns(pod.uid, spec.name, exited_ns, turn.now_ns)
                if wait_ns:
                    self._report_back_off(worker, spec, wait_ns, turn)
                    retry_ns = min(retry_ns, exited_ns + wait_ns)
                    continue
                max_ns = turn.env.model.crash_loop_backoff_max_ns
                self._back_off.next(pod.uid, spec.name, exited_ns, turn.now_ns, max_ns)
            plan.append(spec)
        if retry_ns != NEVER:
            self._requeue(worker, retry_ns, turn)
        worker.plan = tuple(plan)
        if not plan and is_done_but_for_sidecars(pod, sandbox):
            worker.stage = Stage.STOP
            self._kill(worker, sandbox, turn)
        elif not plan:
            self._complete(worker, turn)
        elif turn.env.light and worker.had_actions:  # the wait for the sandbox covered it
            while worker.plan:
                self._start_first(worker, turn)
            self._complete(worker, turn)
        else:
            self._wait_for_first(worker, turn)

    def _wait_for_first(self, worker: PodWorker, turn: Turn) -> None:
        pod = worker.pod
        worker.stage = Stage.START
        behavior = _behavior(pod, turn.env)
        delay_ns = self.runtime.start_delay_ns(pod, worker.plan[0], behavior)
        self._wait(worker, turn.now_ns + delay_ns, turn)

    def _on_start_due(self, worker: PodWorker, turn: Turn) -> None:
        self._start_first(worker, turn)
        if worker.plan:
            self._wait_for_first(worker, turn)
        else:
            self._complete(worker, turn)

    def _start_first(self, worker: PodWorker, turn: Turn) -> None:
        """Start the first container of the plan.

        Source: kuberuntime_container.go, startContainer.
        """
        pod = worker.pod
        env = turn.env
        spec, *rest = worker.plan
        worker.plan = tuple(rest)
        texts = texts_of(env.model.kubelet_version)
        self._event(pod, Reason.PULLED, texts.pulled % spec.image, turn, spec)
        error = "" if env.light else self.volumes.missing(pod, spec)
        if error:
            self._event(pod, Reason.FAILED, f"Error: {error}", turn, spec)
            worker.reasons = {
                **(worker.reasons or {}),
                spec.name: WaitingState(CREATE_CONFIG_ERROR, error),
            }
            self._requeue(worker, 0, turn)
            return
        behavior = _behavior(pod, env)
        self.runtime.start_container(pod, spec, behavior, turn.now_ns, env.wall_s(turn.now_ns))
        worker.had_actions = True
        if worker.reasons is not None:
            worker.reasons.pop(spec.name, None)
        self._event(pod, Reason.CREATED, texts.created.replace("%s", spec.name), turn, spec)
        self._event(pod, Reason.STARTED, texts.started.replace("%s", spec.name), turn, spec)

    def _report_back_off(
        self, worker: PodWorker, spec: ContainerSpec, wait_ns: int, turn: Turn
    ) -> None:
        pod = worker.pod
        event, waiting = back_off_texts(pod, spec, wait_ns)
        self._event(pod, Reason.BACK_OFF, event, turn, spec)
        worker.reasons = {
            **(worker.reasons or {}),
            spec.name: WaitingState("CrashLoopBackOff", waiting),
        }

    def _complete(self, worker: PodWorker, turn: Turn) -> None:
        """End a SyncPod. One that did something, without an error, asks for a relist at once."""
        relisted = worker.had_actions and not worker.sync_ns
        worker.end_sync(turn.now_ns, relisted=relisted)
        sandbox = self.runtime.sandbox(worker.pod.uid)
        events = relisted and sandbox is not None and self.pleg.relist(worker.pod.uid, sandbox)
        if events or worker.pending:
            self.sync(worker, turn)
        if worker.stage is Stage.IDLE and worker.state is WorkerState.SYNC:
            self._watch_runtime(worker, turn)

    def _watch_runtime(self, worker: PodWorker, turn: Turn) -> None:
        """Arm the relist that will see the next change, if there will be one."""
        sandbox = self.runtime.sandbox(worker.pod.uid)
        if sandbox is None or worker.due_ns:
            return
        change_ns = sandbox.next_exit_ns()
        if self.pleg.is_stale(worker.pod.uid, sandbox):
            change_ns = turn.now_ns
        if change_ns != NEVER:
            self._wait(worker, self.pleg.next_relist_ns(max(change_ns, turn.now_ns + 1)), turn)

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
        if worker.stage is Stage.IDLE and worker.state is WorkerState.SYNC:
            self._watch_runtime(worker, turn)

    def _sync_terminating_pod(self, worker: PodWorker, turn: Turn) -> None:
        pod = worker.pod
        if not turn.env.light:
            self._set_status(worker, self._generate(worker, turn), turn)
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is None or not sandbox.is_running():
            self._on_stopped(worker, turn)
            return
        worker.stage = Stage.STOP
        self._kill(worker, sandbox, turn)

    def _kill(self, worker: PodWorker, sandbox: Sandbox, turn: Turn) -> None:
        """Stop every container that runs. Source: kuberuntime_container.go, killContainer."""
        pod = worker.pod
        specs = {
            spec.name: spec
            for spec in (*pod.init_containers, *pod.containers, *pod.ephemeral_containers)
        }
        for each in sandbox.containers:
            if each.state is RunState.RUNNING:
                message = f"Stopping container {each.name}"
                self._event(pod, Reason.KILLING, message, turn, specs.get(each.name))
        self._stop(worker, turn)

    def _stop(self, worker: PodWorker, turn: Turn) -> None:
        pod = worker.pod
        order = tuple(spec.name for spec in reversed(pod.init_containers) if is_sidecar(spec))
        grace_ns = (worker.grace_s or effective_grace_s(0, pod)) * NS_PER_S
        end_ns = self.runtime.stop_pod(pod.uid, order, grace_ns, turn.now_ns)
        self._wait(worker, end_ns, turn)

    def _on_sidecars_stopped(self, worker: PodWorker, turn: Turn) -> None:
        """Relist the pod now that all of it has ended."""
        self.runtime.advance(worker.pod.uid, turn.now_ns, turn.env.wall_offset_ns)
        worker.had_actions = True
        self._complete(worker, turn)

    def _on_stopped(self, worker: PodWorker, turn: Turn) -> None:
        """Report how the containers ended; the pod is now terminated."""
        pod = worker.pod
        env = turn.env
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None:
            self.runtime.advance(pod.uid, turn.now_ns, env.wall_offset_ns)
            assert not sandbox.is_running(), pod.uid
            self.runtime.stop_sandbox(pod.uid)
        if not env.light or not (pod.deleting or worker.removed):
            status = self._generate(worker, turn, is_terminal=True)
            self._set_status(worker, status, turn)
        worker.complete_terminating()
        worker.end_sync(turn.now_ns, relisted=False)
        share = env.draws.uniform(self._node, _STREAM_REQUEUE, turn.now_ns)
        worker.due_ns = turn.now_ns + LOOP_NS + int(LOOP_NS * share)  # volumes are unmounted then
        self.sync(worker, turn)

    def _sync_terminated_pod(self, worker: PodWorker, turn: Turn) -> None:
        mounted = worker.volumes_ready and turn.now_ns < worker.due_ns
        if turn.env.light:
            self._finish(worker, turn)
            return
        self._set_status(worker, self._generate(worker, turn, is_terminal=True), turn)
        if mounted:
            worker.stage = Stage.UNMOUNT
            self._wait(worker, turn.now_ns + MOUNT_POLL_NS, turn)
        else:
            self._finish(worker, turn)

    def _finish(self, worker: PodWorker, turn: Turn) -> None:
        """Let everything of the pod go but its status. Source: SyncTerminatedPod, TerminatePod."""
        pod = worker.pod
        if worker.registered:
            worker.registered = False
            self.volumes.unregister_pod(pod, turn.out)
        status = self.statuses.status(pod.uid) or pod.status
        if not (turn.env.light and pod.deleting):
            status = terminate_pod_status(pod, status)
        self._set_status(worker, status, turn, finished=True)
        worker.end_sync(turn.now_ns, relisted=False)
        worker.complete_terminated()
        if status.phase == "Failed" and not pod.deleting and not worker.removed:
            turn.out.append(Report(self._node, Milestone.POD_FAILED))
        self.runtime.remove(pod.uid)
        self.pleg.forget(pod.uid)
        self._back_off.forget(pod.uid)

    def _generate(self, worker: PodWorker, turn: Turn, *, is_terminal: bool = False) -> PodStatus:
        pod = worker.pod
        env = turn.env
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None:
            self.runtime.advance(pod.uid, turn.now_ns, env.wall_offset_ns)
        inputs = PodInputs(
            old=self.statuses.status(pod.uid) or pod.status,
            host_ip=self._host_ip,
            reasons=worker.reasons or _NO_REASONS,
            is_terminal=is_terminal,
            untolerated=untolerated_key(pod, env.tolerate_key),
            pod_resources=texts_of(env.model.kubelet_version).pod_resources,
        )
        return generate_pod_status(pod, sandbox, inputs)

    def _set_unless_starting(self, worker: PodWorker, status: PodStatus, turn: Turn) -> None:
        """`light`: hold a Pending status back while the pod may still start within the second."""
        held_until_ns = worker.seen_ns + PENDING_HOLD_NS
        if status.phase != "Pending" or turn.now_ns >= held_until_ns:
            self._set_status(worker, status, turn)
        elif worker.pod.init_containers:
            self._enqueue(worker, held_until_ns, turn)

    def _set_status(
        self, worker: PodWorker, status: PodStatus, turn: Turn, *, finished: bool = False
    ) -> None:
        env = turn.env
        if not status.start_time_s:  # a pod starts when it is first seen
            started_ns = worker.seen_ns if worker.seen_ns >= 0 else turn.now_ns
            status = status._replace(start_time_s=env.wall_s(started_ns))
        wall_s = env.wall_s(turn.now_ns)
        self.statuses.set_pod_status(worker.pod, status, wall_s, finished=finished, known=env.light)

    def _requeue(self, worker: PodWorker, retry_ns: int, turn: Turn) -> None:
        """Try a sync that failed again later, when the work queue is looked at: each second."""
        share = turn.env.draws.uniform(self._node, _STREAM_REQUEUE, turn.now_ns)
        due_ns = self.pleg.next_relist_ns(requeue_ns(turn.now_ns, retry_ns, share))
        if not worker.sync_ns or due_ns < worker.sync_ns:
            self._enqueue(worker, due_ns, turn)

    def _enqueue(self, worker: PodWorker, due_ns: int, turn: Turn) -> None:
        worker.sync_ns = due_ns
        turn.out.append(SetTimer(self._node, due_ns, Timer.POD_SYNC, worker.pod.uid))

    def _wait(self, worker: PodWorker, due_ns: int, turn: Turn) -> None:
        worker.due_ns = due_ns
        turn.out.append(SetTimer(self._node, due_ns, Timer.RUNTIME, worker.pod.uid))

    def _event(
        self,
        pod: Pod,
        reason: Reason,
        message: str,
        turn: Turn,
        spec: ContainerSpec | None = None,
    ) -> None:
        if not turn.env.light:
            about = pod_ref(pod, spec)
            turn.recorder.event(about, reason, message, turn.env, turn.now_ns, turn.out)


def _behavior(pod: Pod, env: Environment) -> PodBehavior:
    return env.model.behavior_for(pod.labels, pod.namespace, pod.annotations)
