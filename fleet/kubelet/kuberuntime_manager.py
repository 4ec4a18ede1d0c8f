"""The runtime's half of a pod sync: sandbox, containers to kill, containers to start, back-off.

    sync_pod -> SANDBOX -> [on_sandbox_ready] -> plan -> KILL -> per container: PULL, START -> DONE

One step at a time: what takes time leaves its stage in the worker and one timer in the wheel, and
`on_due` goes on. A container that cannot be started leaves its reason in the reason cache, and an
error that has the sync tried again.
Source: pkg/kubelet/kuberuntime/kuberuntime_manager.go, SyncPod, computePodActions, doBackOff,
KillPod; kuberuntime_container.go, startContainer, killContainer.
"""

import enum
from collections.abc import Callable

from fleet.clock import NS_PER_S, Draws
from fleet.effects import NodeId
from fleet.kubelet.events import Reason
from fleet.kubelet.image_manager import Ensured, ImageManager, Wanted
from fleet.kubelet.pod_actions import ProbeResults, compute_pod_actions, is_sidecar
from fleet.kubelet.pod_events import back_off_texts, texts_of
from fleet.kubelet.pod_workers import PodWorker, Stage, effective_grace_s
from fleet.kubelet.turn import Turn
from fleet.objects import ContainerSpec, Pod, PodUid, WaitingState
from fleet.runtime import BackOff, RunState, Runtime, Sandbox

PENDING_HOLD_NS = 1 * NS_PER_S
"""`light`: a pod that starts within this time is reported once, as Running."""
CREATE_CONFIG_ERROR = "CreateContainerConfigError"


class Progress(enum.IntEnum):
    """How far a step came."""

    WAIT = 0  # a timer of the worker is set
    SANDBOX_READY = 1  # the caller reports it, then calls `plan`
    DONE = 2  # this SyncPod has done what it could


class KubeRuntimeManager:
    """Starts and kills the containers of one node's pods.

    `config_error` says what the environment of a container lacks ("" for nothing).
    """

    __slots__ = ("_back_off", "_config_error", "images", "probes", "runtime")

    def __init__(
        self,
        node: NodeId,
        host_ip: str,
        pod_cidr: str,
        draws: Draws,
        config_error: Callable[[Pod, ContainerSpec], str],
    ) -> None:
        self._back_off = BackOff()
        self._config_error = config_error
        self.images = ImageManager(node)
        self.probes: ProbeResults | None = None
        self.runtime = Runtime(node, host_ip, pod_cidr, draws)

    def sync_pod(self, worker: PodWorker, turn: Turn) -> Progress:
        """Create the sandbox unless it is there, then plan the containers."""
        pod = worker.pod
        sandbox = self.runtime.sandbox(pod.uid)
        if sandbox is not None and sandbox.ready:
            return self.plan(worker, turn)
        behavior = turn.behavior(pod)
        delay_ns = self.runtime.sandbox_delay_ns(pod, behavior)
        if turn.env.light:  # one timer for sandbox and containers
            for spec in pod.init_containers[:1] or pod.containers:
                delay_ns += self.runtime.start_delay_ns(pod, spec, behavior)
        worker.stage = Stage.SANDBOX
        turn.wait(worker, turn.now_ns + delay_ns)
        if turn.env.light and worker.due_ns > worker.seen_ns + PENDING_HOLD_NS:
            turn.enqueue(worker, worker.seen_ns + PENDING_HOLD_NS)
        return Progress.WAIT

    def on_due(self, worker: PodWorker, turn: Turn) -> Progress:
        """Go on with what the runtime has done by now."""
        stage = worker.stage
        if stage is Stage.SANDBOX:
            return self._on_sandbox_due(worker)
        if stage is Stage.PULL:
            done = self.images.finish(worker.pod.uid, turn.env, turn.now_ns, turn.out)
            if self._take_image(worker, done, turn) and self._create_first(worker, turn):
                return Progress.WAIT
            return self._next(worker, turn)
        if stage is Stage.START:
            self._start_first(worker, turn)
            return self._next(worker, turn)
        assert stage is Stage.STOP, stage
        self.runtime.advance(worker.pod.uid, turn.now_ns, turn.env.wall_offset_ns)
        worker.had_actions = True
        return Progress.DONE

    def _on_sandbox_due(self, worker: PodWorker) -> Progress:
        if self.runtime.create_sandbox(worker.pod) is None:  # no address is free
            worker.fail()
            return Progress.DONE
        worker.had_actions = True
        return Progress.SANDBOX_READY

    def plan(self, worker: PodWorker, turn: Turn) -> Progress:
        """Choose what to kill and what to start now, and begin with it."""
        pod = worker.pod
        sandbox = self.runtime.sandbox(pod.uid)
        assert sandbox is not None, pod.uid
        actions = compute_pod_actions(pod, sandbox, self.probes)
        if actions.kill_pod:
            worker.stage = Stage.STOP
            self.kill_pod(worker, sandbox, turn)
            return Progress.WAIT
        worker.plan = actions.start
        return self._next(worker, turn)

    def _next(self, worker: PodWorker, turn: Turn) -> Progress:
        """Begin with the next container of the plan that may be started now."""
        while worker.plan:
            spec = worker.plan[0]
            if self._is_in_back_off(worker, spec, turn):
                self._skip_first(worker)
                continue
            ensured = self._ensure_image(worker, spec, turn)
            if not self._take_image(worker, ensured, turn):
                continue
            if ensured.due_ns:
                worker.stage = Stage.PULL
                turn.wait(worker, ensured.due_ns)
                return Progress.WAIT
            if self._create_first(worker, turn):
                return Progress.WAIT
        return Progress.DONE

    def _create_first(self, worker: PodWorker, turn: Turn) -> bool:
        """Begin to create the first container of the plan; tell whether that takes time."""
        if turn.env.light and worker.had_actions:  # the wait for the sandbox covered it
            self._start_first(worker, turn)
            return False
        pod = worker.pod
        worker.stage = Stage.START
        delay_ns = self.runtime.start_delay_ns(pod, worker.plan[0], turn.behavior(pod))
        turn.wait(worker, turn.now_ns + delay_ns)
        return True

    def _skip_first(self, worker: PodWorker) -> None:
        """Leave out a container; without a regular init container nothing after it may start."""
        spec, *rest = worker.plan
        stops = spec in worker.pod.init_containers and not is_sidecar(spec)
        worker.plan = () if stops else tuple(rest)

    def _is_in_back_off(self, worker: PodWorker, spec: ContainerSpec, turn: Turn) -> bool:
        """Tell whether a container must wait before it starts again. Source: doBackOff."""
        pod = worker.pod
        sandbox = self.runtime.sandbox(pod.uid)
        old = sandbox.find(spec.name) if sandbox is not None else None
        if old is None:
            return False
        wait_ns = self._back_off.wait_ns(pod.uid, spec.name, old.exit_ns, turn.now_ns)
        if not wait_ns:
            max_ns = turn.env.model.crash_loop_backoff_max_ns
            self._back_off.next(pod.uid, spec.name, old.exit_ns, turn.now_ns, max_ns)
            return False
        event, waiting = back_off_texts(pod, spec, wait_ns)
        turn.event(pod, Reason.BACK_OFF, event, spec)
        worker.note_reason(spec.name, WaitingState("CrashLoopBackOff", waiting))
        worker.fail(old.exit_ns + wait_ns)
        return True

    def _ensure_image(self, worker: PodWorker, spec: ContainerSpec, turn: Turn) -> Ensured:
        """Make sure that the image is there, or begin to pull it."""
        pod = worker.pod
        image = turn.behavior(pod).container(spec.name).image
        has_secret = bool(pod.pull_secrets)
        wanted = Wanted(pod.uid, spec.image, spec.pull_policy, image, has_secret)
        return self.images.ensure(wanted, turn.env, turn.now_ns, turn.out)

    def _take_image(self, worker: PodWorker, ensured: Ensured, turn: Turn) -> bool:
        """Report about the image of the first container of the plan; skip it for want of one."""
        spec = worker.plan[0]
        for reason, message in ensured.events:
            turn.event(worker.pod, reason, message, spec)
        if ensured.failure is None:
            return True
        worker.note_reason(spec.name, ensured.failure)
        worker.fail()
        self._skip_first(worker)
        return False

    def cancel(self, worker: PodWorker, turn: Turn) -> None:
        """Give up a pull: the pod is to end. Source: the context of SyncPod is cancelled."""
        self._take_image(worker, self.images.cancel(worker.pod.uid, turn.now_ns), turn)
        worker.plan = ()

    def _start_first(self, worker: PodWorker, turn: Turn) -> None:
        """Start the first container of the plan.

        Source: kuberuntime_container.go, startContainer.
        """
        pod = worker.pod
        env = turn.env
        spec = worker.plan[0]
        error = "" if env.light else self._config_error(pod, spec)
        if error:
            turn.event(pod, Reason.FAILED, f"Error: {error}", spec)
            worker.note_reason(spec.name, WaitingState(CREATE_CONFIG_ERROR, error))
            worker.fail()
            self._skip_first(worker)
            return
        worker.plan = worker.plan[1:]
        self.runtime.start_container(pod, spec, turn.behavior(pod), turn.now_ns, turn.wall_s)
        worker.had_actions = True
        if worker.reasons is not None:
            worker.reasons.pop(spec.name, None)
        texts = texts_of(env.model.kubelet_version)
        turn.event(pod, Reason.CREATED, texts.created.replace("%s", spec.name), spec)
        turn.event(pod, Reason.STARTED, texts.started.replace("%s", spec.name), spec)

    def kill_pod(self, worker: PodWorker, sandbox: Sandbox, turn: Turn) -> None:
        """Stop every container that runs; the caller has set the stage.

        Source: kuberuntime_container.go, killContainer.
        """
        pod = worker.pod
        for each in sandbox.containers:
            if each.state is RunState.RUNNING:
                message = f"Stopping container {each.name}"
                turn.event(pod, Reason.KILLING, message, pod.find(each.name))
        self.stop(worker, turn)

    def stop(self, worker: PodWorker, turn: Turn) -> None:
        """Ask the runtime to stop a pod within its grace period, also when that was shortened."""
        pod = worker.pod
        order = tuple(spec.name for spec in reversed(pod.init_containers) if is_sidecar(spec))
        grace_ns = (worker.grace_s or effective_grace_s(0, pod)) * NS_PER_S
        turn.wait(worker, self.runtime.stop_pod(pod.uid, order, grace_ns, turn.now_ns))

    def forget(self, uid: PodUid) -> None:
        """Drop what is kept of a pod."""
        self.runtime.remove(uid)
        self._back_off.forget(uid)
        self.images.forget(uid)
