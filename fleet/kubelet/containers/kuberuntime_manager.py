"""The runtime's half of a pod sync: sandbox, containers to kill, containers to start, back-off.

Each public step returns the stage that follows at once, or None: it then has left the stage that
waits in the worker, and one timer in the wheel. The table of `pods/pod_sync.py` says which step is
of which stage. A container that cannot be started leaves its reason in the reason cache, and an
error that has the sync tried again.
Source: pkg/kubelet/kuberuntime/kuberuntime_manager.go, SyncPod, computePodActions, doBackOff,
kuberuntime_container.go, startContainer.
"""

from dataclasses import dataclass, field

import orjson

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import Timer, WatchKind
from fleet.k8s.pods import ContainerSpec, Pod, PodUid, WaitingState
from fleet.kubelet.containers import kuberuntime_container, pod_actions
from fleet.kubelet.containers.allocation_manager import NO_ACTIONS, AllocationManager
from fleet.kubelet.containers.image_manager import Ensured, ImageManager, Wanted, begin_lookup
from fleet.kubelet.containers.kuberuntime_sandbox import (
    has_dns_events,
    mounts_recursively,
    sandbox_error,
    tell_dns,
)
from fleet.kubelet.containers.probe_manager import ProbeManager
from fleet.kubelet.events import Reason, back_off_texts
from fleet.kubelet.pod_worker import (
    NO_KILLS,
    PENDING_HOLD_NS,
    ContainerKill,
    KillReason,
    Kills,
    PodWorker,
    SyncStage,
    WorkerState,
)
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.volume_manager import VolumeManager
from fleet.kubelet.volumes.watched_objects import PodSources
from fleet.profile.container_behavior import CONFIG_ERROR, RUN_ERROR, StartFailure
from fleet.profile.image_behavior import parse_image
from fleet.runtime.container_config import TOO_MANY_ARGUMENTS, config_error
from fleet.runtime.containers import BackOff, RunState, Sandbox
from fleet.runtime.image_store import SOMEBODY
from fleet.runtime.programs import is_unknown
from fleet.runtime.runtime import OVER_BUDGET, Runtime

POST_START_ERROR = "PostStartHookError"
SANDBOX_CHANGED = "Pod sandbox changed, it will be killed and re-created."
ANSWER_POLL_NS = 20 * NS_PER_MS  # until what an environment needs was read
NO_PULL_SECRETS = (
    "Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed."
)


def _kind_of(pod: Pod, spec: ContainerSpec) -> int:
    """Return the place of a container's kind among those that are counted."""
    if spec in pod.spec.containers:
        return 0
    return 1 if spec in pod.spec.init_containers else 2


@dataclass(slots=True, eq=False)
class KubeRuntimeManager:
    """Starts and kills the containers of one node's pods."""

    _runtime: Runtime
    _volumes: VolumeManager
    _probes: ProbeManager
    _allocations: AllocationManager
    _back_off: BackOff = field(default_factory=BackOff)
    _images: ImageManager = field(init=False)

    def __post_init__(self) -> None:
        self._images = ImageManager(self._back_off)

    def sync_pod(
        self, worker: PodWorker, turn: Turn, *, restart_all: bool = False
    ) -> SyncStage | None:
        """Choose what comes first: a sandbox, another one, or what to do with containers.

        `restart_all`: a rule said RestartAllContainers; this sync removes them, the next one
        starts them.
        """
        pod = worker.pod
        worker.plan = ()
        sandbox = self._runtime.sandbox(pod.uid)
        if sandbox is None:
            return SyncStage.SANDBOX
        if sandbox.ready and restart_all:
            worker.kills = Kills(pod_actions.containers_to_reset(pod, sandbox), resets=True)
            return SyncStage.KILL
        if sandbox.ready:
            return SyncStage.PLAN
        # It has died: what still runs in it is killed, then it is replaced if that is needed.
        worker.plan = pod_actions.starts_anew(pod, sandbox)
        if worker.plan:
            turn.event(pod, Reason.SANDBOX_CHANGED, SANDBOX_CHANGED)
        if sandbox.is_running():
            running = (each.name for each in sandbox.containers if each.state is RunState.RUNNING)
            worker.kills = Kills(done=tuple(running), replaces=bool(worker.plan))
            self._stop_all(worker, sandbox, turn)
            return None
        return SyncStage.SANDBOX if worker.plan else SyncStage.CONFIGURE

    def _stop_all(self, worker: PodWorker, sandbox: Sandbox, turn: Turn) -> None:
        worker.stage = SyncStage.STOP
        kuberuntime_container.kill_containers(self._runtime, worker, sandbox, turn)

    def begin_sandbox(self, worker: PodWorker, turn: Turn) -> None:
        """Have the sandbox made; it takes as long as the profile says."""
        pod = worker.pod
        tell_dns(pod, turn)
        behavior = turn.behavior(pod)
        delay_ns = self._runtime.sandbox_delay_ns(pod, behavior)
        if not turn.env.fidelity.starts_in_steps:  # one timer for sandbox and containers
            for spec in pod.spec.init_containers[:1] or pod.spec.containers:
                delay_ns += self._runtime.start_delay_ns(pod, spec, behavior)
        turn.wait(worker, turn.now_ns + delay_ns)
        held_until_ns = worker.seen_ns + PENDING_HOLD_NS
        if worker.due_ns > held_until_ns and not turn.env.fidelity.reports_each_step:
            turn.enqueue(worker, held_until_ns)

    def make_sandbox(self, worker: PodWorker, turn: Turn) -> SyncStage:
        """Take the sandbox that was made, or report why it could not be."""
        pod = worker.pod
        counts = turn.facts.counts()
        error = sandbox_error(pod, turn)
        if not error:
            error = self._runtime.make_sandbox(pod, turn.env.model.broken.sandboxes, turn.now_ns)
        if error and worker.state is not WorkerState.SYNC:
            return SyncStage.COMPLETE  # a pod that is to end needs none
        if error:
            counts.sandbox_errors += 1
            message = f"Failed to create pod sandbox: {error}"
            turn.event(pod, Reason.FAILED_CREATE_POD_SANDBOX, message)
            worker.fail()
            return SyncStage.COMPLETE
        worker.had_actions = True
        counts.sandboxes += 1
        return SyncStage.SANDBOX_READY

    def plan(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Choose what to kill and what to start now. Source: SyncPod, computePodActions."""
        pod = worker.pod
        sandbox = self._runtime.sandbox(pod.uid)
        assert sandbox is not None, pod.uid
        if worker.plan:  # chosen when the sandbox was found not to be ready
            return SyncStage.KILL
        counts = turn.env.model.release.counts_ended
        actions = pod_actions.compute_pod_actions(pod, sandbox, self._probes, counts_ended=counts)
        if actions.kill_pod:
            self._stop_all(worker, sandbox, turn)
            return None
        killed = {each.name for each in actions.kill}
        resize = self._allocations.actions(pod, sandbox, actions.start)
        restarts = tuple(each for each in resize.kill if each.name not in killed)
        wanted = {spec.name for spec in actions.start}.union(each.name for each in restarts)
        spec = pod.spec
        order = (*spec.ephemeral_containers, *spec.init_containers, *spec.containers)
        worker.plan = tuple(each for each in order if each.name in wanted)
        worker.kills = Kills((*actions.kill, *restarts), resizes=resize != NO_ACTIONS)
        return SyncStage.KILL

    def _resize(self, worker: PodWorker, turn: Turn) -> None:
        """Give the pod and what runs its new resources, once what must start again has ended.

        Source: SyncPod, steps 3 and 6; doPodResizeAction. The next sync sees that it is done.
        """
        pod, allocations = worker.pod, self._allocations
        sandbox = self._runtime.sandbox(pod.uid)
        assert sandbox is not None, pod.uid
        resize = allocations.actions(pod, sandbox, worker.plan)
        error = allocations.error(worker, sandbox, resize, turn)
        if not error and resize.whole:
            allocations.actuate(pod.uid)
        for name in resize.update:
            error = error or turn.behavior(pod).container(name).life.resize_error
            if not error:
                allocations.update(pod, name)
        if error:
            allocations.fail(pod, error, turn)
            worker.fail()
        else:
            worker.had_actions = True
            worker.pending = True

    def kill_next(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Kill the next container that shall not run, else go on with those to start."""
        kills = worker.kills
        pod = worker.pod
        sandbox = self._runtime.sandbox(pod.uid)
        assert sandbox is not None, pod.uid
        for at, kill in enumerate(kills.left):
            container = sandbox.find(kill.name)
            if container is None or container.state is not RunState.RUNNING:
                continue
            done = (*kills.done, kill.name)
            worker.kills = kills._replace(left=kills.left[at + 1 :], done=done)
            turn.event(pod, Reason.KILLING, kill.message, pod.find(kill.name))
            grace_s = kuberuntime_container.kill_grace_s(pod, kill)
            kuberuntime_container.stop(self._runtime, worker, (container,), grace_s, turn)
            return None
        if kills.resets:
            worker.had_actions = True
            worker.pending = True
            self._runtime.remove_containers(pod)
            return SyncStage.COMPLETE
        return SyncStage.NEXT if kills.is_of_hook else SyncStage.CONFIGURE

    def on_stopped(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Go on once what is killed has ended: one container, or all of them.

        If that fails the sync is over, without an event. Source: SyncPod, steps 2 and 3.
        """
        error = kuberuntime_container.outcome(self._runtime, worker, turn)
        if error is None:
            return None
        if error:
            worker.fail()
            worker.plan = ()
            return SyncStage.COMPLETE
        worker.had_actions = True
        if worker.stage is SyncStage.KILL:
            return SyncStage.KILL
        replaces, worker.kills = worker.kills.replaces, Kills(done=worker.kills.done)
        return SyncStage.SANDBOX if replaces else SyncStage.CONFIGURE

    def configure(self, worker: PodWorker, turn: Turn) -> SyncStage:
        """Do what a sync does before it starts containers; an old kubelet also without any.

        Source: SyncPod, generatePodSandboxConfig and getImageVolumes.
        """
        if worker.kills.resizes:
            self._resize(worker, turn)
        always = turn.env.model.release.configures_each_sync
        if worker.plan or always:
            tell_dns(worker.pod, turn)
        if worker.plan or (always and turn.env.fidelity.pulls_images):
            worker.image_volumes = tuple(each for each in worker.pod.spec.volumes if each.image)
            worker.image_failures = None
        return SyncStage.NEXT

    def repeats(self, pod: Pod, turn: Turn) -> bool:
        """Return whether each further sync of a pod has something to say, or to pull."""
        release = turn.env.model.release
        if release.reports_secrets_early and self._missing_secrets(pod, turn):
            return True
        has_images = any(each.image for each in pod.spec.volumes)
        return release.configures_each_sync and (has_images or has_dns_events(pod, turn))

    def look_for_secrets(self, pod: Pod, turn: Turn) -> None:
        """Report the pull secrets that cannot be read. Source: getPullSecretsForPod."""
        missing = self._missing_secrets(pod, turn)
        if missing:
            turn.event(pod, Reason.FAILED_PULL_SECRET, NO_PULL_SECRETS % ", ".join(missing))

    def next_container(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Begin with the next container of the plan that may be started now."""
        if self._pulls_volume(worker, turn):
            return None
        while worker.plan:
            spec = worker.plan[0]
            if worker.lookup is None and self._is_in_back_off(worker, spec, turn):
                self._skip_first(worker)
                continue
            image = (spec.name, spec.image, spec.pull_policy)
            ensured = self._without_volume(worker, spec)
            if ensured is None and self._looks_up(worker, *image, turn):
                return None
            ensured = ensured or self._ensure(worker, *image, turn)
            if not self._take_image(worker, ensured, turn):
                continue
            if ensured.due_ns:
                worker.stage = SyncStage.PULL
                turn.wait(worker, ensured.due_ns)
                return None
            if self._create_first(worker, turn) is None:
                return None
        return SyncStage.COMPLETE

    def on_lookup(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Pull with the credentials that were found, once the lookup is over."""
        return None if self._waits_for_lookup(worker, turn) else SyncStage.NEXT

    def on_pulled(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Take the image that was pulled, of a volume or of the first container of the plan."""
        done = self._images.finish(worker.pod.uid, turn)
        if worker.image_volumes:
            self._take_volume(worker, done, turn)
        elif self._take_image(worker, done, turn):
            return self._create_first(worker, turn)
        return SyncStage.NEXT

    def _create_first(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        if turn.env.fidelity.reads_objects:
            env_sources = worker.plan[0].env_sources
            self._volumes.objects.ask_environment(worker.pod, env_sources, turn)
        return self.on_environment(worker, turn)

    def on_environment(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Create the first container of the plan, once what its environment needs was read.

        What the runtime takes lies between Created and Started, so that the status that says
        running follows Started. Source: kuberuntime_container.go, startContainer.
        """
        pod, spec = worker.pod, worker.plan[0]
        if self._volumes.objects.is_asking(pod.uid):
            worker.stage = SyncStage.CREATE
            worker.due_ns = turn.now_ns + ANSWER_POLL_NS
            turn.arm(worker.due_ns, Timer.RUNTIME, pod.uid)
            return None
        behavior = turn.behavior(pod)
        failure = behavior.container(spec.name).life.failure(self._runtime.attempt(pod, spec))
        error = self._config_error(pod, spec, turn)
        if error == TOO_MANY_ARGUMENTS:  # no kubelet minds; the kernel does, as runc starts it
            failure = StartFailure(reason=RUN_ERROR, message=OVER_BUDGET % error)
        elif error:
            failure = StartFailure(reason=CONFIG_ERROR, message=error)
        is_created = failure is None or failure.reason == RUN_ERROR
        if is_created:
            text = turn.env.model.release.created_text.format(spec.name)
            turn.event(pod, Reason.CREATED, text, spec)
        if failure is not None:
            if failure.reason == RUN_ERROR:
                now_ns, wall_s = turn.now_ns, turn.wall_s
                self._runtime.fail_container(pod, spec, failure.text, now_ns, wall_s)
            return self._fail_first(worker, failure, turn)
        if worker.had_actions and not turn.env.fidelity.starts_in_steps:
            return self.on_created(worker, turn)  # the wait for the sandbox covered it
        worker.stage = SyncStage.START
        turn.wait(worker, turn.now_ns + self._runtime.start_delay_ns(pod, spec, behavior))
        return None

    def _skip_first(self, worker: PodWorker) -> None:
        """Leave out a container; without a regular init container nothing after it may start."""
        spec, *rest = worker.plan
        stops = spec in worker.pod.spec.init_containers and not pod_actions.is_sidecar(spec)
        worker.plan = () if stops else tuple(rest)

    def _is_in_back_off(self, worker: PodWorker, spec: ContainerSpec, turn: Turn) -> bool:
        """Return whether a container must wait before it starts again. Source: doBackOff."""
        pod = worker.pod
        sandbox = self._runtime.sandbox(pod.uid)
        assert sandbox is not None, pod.uid
        old = sandbox.find(spec.name)
        if old is None and worker.had_actions:  # init containers that went with the sandbox before
            old = next((each for each in sandbox.older if each.name == spec.name), None)
        if old is None:
            return False
        exit_ns = old.exit_ns
        if spec.name in worker.kills.done:
            if old.last is None:  # as of before the kill: nothing of this name had exited
                return False
            exit_ns = old.last.finished_s * NS_PER_S - turn.env.wall_offset_ns
        key = f"{spec.name}/{spec.image}/{spec.resources_json.decode()}"
        wait_ns = self._back_off.wait_ns(pod.uid, key, exit_ns, turn.now_ns)
        if not wait_ns:
            max_ns = turn.env.model.crash_loop_max_ns
            self._back_off.next(pod.uid, key, exit_ns, turn.now_ns, max_ns)
            return False
        event, waiting = back_off_texts(pod, spec, wait_ns)
        turn.event(pod, Reason.BACK_OFF, event, spec)
        worker.note_reason(spec.name, WaitingState("CrashLoopBackOff", waiting))
        worker.fail(exit_ns + wait_ns if turn.env.model.release.awaits_back_off else 0)
        return True

    def _missing_secrets(self, pod: Pod, turn: Turn) -> list[str]:
        """Return the pull secrets that cannot be read; `light` does not look.

        Source: kubelet_pods.go, getPullSecretsForPod.
        """
        if not (pod.spec.pull_secrets and turn.env.fidelity.reads_objects):
            return []
        exists, space = self._volumes.objects.exists, pod.namespace
        return [each for each in pod.spec.pull_secrets if not exists(WatchKind.SECRET, space, each)]

    def _without_volume(self, worker: PodWorker, spec: ContainerSpec) -> Ensured | None:
        """Return how a container fails for want of a volume's image, None if it has them all.

        Each mount is reported, the last one counts. Source: toKubeContainerImageVolumes.
        """
        failures = worker.image_failures or {}
        mounts = orjson.loads(spec.volume_mounts_json or b"[]") if failures else ()
        found = [failures[each["name"]] for each in mounts if each["name"] in failures]
        events = ((Reason.FAILED, f"Error: {each.reason}") for each in found)
        return Ensured(tuple(events), 0, found[-1]) if found else None

    def _ensure(self, worker: PodWorker, name: str, image: str, policy: str, turn: Turn) -> Ensured:
        wanted, lookup = self._wanted(worker.pod, name, image, policy, turn), worker.lookup
        if lookup and not lookup.left and lookup.image == parse_image(image).full_name:
            worker.lookup = None
            account = f"{worker.pod.namespace}/{worker.pod.spec.service_account}"
            wanted = wanted._replace(owner=wanted.owner or (account if lookup.is_found else ""))
        return self._images.ensure(wanted, turn)

    def _wanted(self, pod: Pod, name: str, image: str, policy: str, turn: Turn) -> Wanted:
        behavior = turn.behavior(pod).container(name).image
        has_secret = len(pod.spec.pull_secrets) > len(self._missing_secrets(pod, turn))
        return Wanted(pod.uid, image, policy, behavior, SOMEBODY if has_secret else "")

    def _looks_up(self, worker: PodWorker, name: str, image: str, policy: str, turn: Turn) -> bool:
        """Look up credentials for an image that is to be pulled; return whether that takes time.

        Differs: `light` looks nothing up.
        """
        if not (turn.env.model.credential_providers and turn.env.fidelity.pulls_images):
            return False
        wanted, lookup = self._wanted(worker.pod, name, image, policy, turn), worker.lookup
        full_name = self._images.looks_up(wanted, turn)
        is_done = lookup is not None and not lookup.left and lookup.image == full_name
        if not full_name or is_done or not begin_lookup(worker, full_name, turn):
            return False
        worker.stage = SyncStage.CREDENTIALS
        return self._waits_for_lookup(worker, turn)

    def _waits_for_lookup(self, worker: PodWorker, turn: Turn) -> bool:
        """Look again soon unless a lookup of credentials is over."""
        if worker.lookup is None or not worker.lookup.left:
            return False
        worker.due_ns = turn.now_ns + ANSWER_POLL_NS
        turn.arm(worker.due_ns, Timer.RUNTIME, worker.pod.uid)
        return True

    def _pulls_volume(self, worker: PodWorker, turn: Turn) -> bool:
        """Look at the images of volumes; return whether one is being pulled.

        Source: getImageVolumes.
        """
        while worker.image_volumes:
            volume = worker.image_volumes[0]
            if self._looks_up(worker, volume.name, volume.image, volume.pull_policy, turn):
                return True
            ensured = self._ensure(worker, volume.name, volume.image, volume.pull_policy, turn)
            if ensured.due_ns:
                turn.event(worker.pod, *ensured.events[0])
                worker.stage = SyncStage.PULL
                turn.wait(worker, ensured.due_ns)
                return True
            self._take_volume(worker, ensured, turn)
        return False

    def _take_volume(self, worker: PodWorker, ensured: Ensured, turn: Turn) -> None:
        """Report about the image of a volume; a failure is one of the containers that mount it."""
        for reason, message in ensured.events[:1]:
            turn.event(worker.pod, reason, message)
        volume, worker.image_volumes = worker.image_volumes[0], worker.image_volumes[1:]
        if ensured.failure is not None:
            failed = worker.image_failures or {}
            worker.image_failures = {**failed, volume.name: ensured.failure}

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

    def on_created(self, worker: PodWorker, turn: Turn) -> SyncStage | None:
        """Start the first container of the plan; its postStart hook is waited for.

        Source: kuberuntime_container.go, startContainer.
        """
        pod, spec = worker.pod, worker.plan[0]
        behavior = turn.behavior(pod)
        sources = PodSources(self._volumes.objects, self._volumes.tokens, turn.env)
        now_ns, wall_s = turn.now_ns, turn.wall_s
        turn.facts.counts().containers[_kind_of(pod, spec)] += 1
        container = self._runtime.start_container(pod, spec, behavior, now_ns, wall_s, sources)
        if container.state is RunState.EXITED:  # over the budget of a command
            failure = StartFailure(reason=RUN_ERROR, message=container.message)
            return self._fail_first(worker, failure, turn)
        worker.plan = worker.plan[1:]
        worker.had_actions = True
        self._allocations.actuate(pod.uid, spec.name)
        text = turn.env.model.release.started_text.format(spec.name)
        turn.event(pod, Reason.STARTED, text, spec)
        if spec.life.post_start is None:
            worker.forget_reason(spec.name)
            return SyncStage.NEXT
        place = kuberuntime_container.HookPlace(
            self._runtime, turn.env, pod, container, turn.now_ns, sources
        )
        hook = kuberuntime_container.post_start(place, spec, behavior)
        worker.kills = Kills(hook_error=hook.error, hook_dies=hook.dies)
        worker.stage = SyncStage.POST_START
        turn.wait(worker, turn.now_ns + hook.takes_ns)
        return None

    def _config_error(self, pod: Pod, spec: ContainerSpec, turn: Turn) -> str:
        """Return why the configuration of a container cannot be made, "" if it can.

        Source: kuberuntime_container.go, startContainer, getTargetID, generateContainerConfig.
        """
        sandbox, env = self._runtime.sandbox(pod.uid), turn.env
        if spec.target and (sandbox is None or sandbox.find(spec.target) is None):
            return f"unable to find target container {spec.target}"
        objects = self._volumes.objects
        reads = env.fidelity.reads_objects
        error = objects.missing(pod, spec.env_sources, turn) if reads else ""
        sources = PodSources(objects, self._volumes.tokens, env)
        return error or config_error(
            self._runtime.process_at(pod, spec, 0, turn.now_ns, 0, sources),
            is_unknown,
            windows=env.model.is_windows,
            recursive=mounts_recursively(pod, env),
            has_env_files=env.model.release.has_env_files,
        )

    def _fail_first(self, worker: PodWorker, failure: StartFailure, turn: Turn) -> SyncStage:
        """Report why the first container of the plan could not be made or run; leave it out."""
        pod, spec = worker.pod, worker.plan[0]
        if failure.reason == RUN_ERROR:
            worker.had_actions = True
        turn.event(pod, Reason.FAILED, f"Error: {failure.text}", spec)
        worker.note_reason(spec.name, WaitingState(failure.reason, failure.text))
        worker.fail()
        self._skip_first(worker)
        return SyncStage.NEXT

    def on_post_start(self, worker: PodWorker, turn: Turn) -> SyncStage:
        """Go on after the hook of the container that was started last."""
        pod = worker.pod
        sandbox = self._runtime.sandbox(pod.uid)
        assert sandbox is not None, pod.uid
        self._runtime.advance(pod.uid, turn.now_ns, turn.env.wall_offset_ns)
        container = sandbox.containers[-1]
        spec = pod.find(container.name)
        if spec is None or spec.life.post_start is None:  # the pod has another spec by now
            return SyncStage.NEXT
        hook, worker.kills = worker.kills, NO_KILLS
        error = hook.hook_error
        if not error and hook.hook_dies and container.state is RunState.EXITED:
            error = f'lifecycle hook for Container "{spec.name}" failed: it is not running'
        if not error:
            worker.forget_reason(spec.name)
            return SyncStage.NEXT
        turn.event(pod, Reason.FAILED_POST_START_HOOK, "PostStartHook failed", spec)
        worker.note_reason(spec.name, WaitingState(POST_START_ERROR, error))
        worker.fail()
        if spec in pod.spec.init_containers and not pod_actions.is_sidecar(spec):
            worker.plan = ()
        kill = ContainerKill(spec.name, "FailedPostStartHook", KillReason.POST_START_HOOK)
        worker.kills = Kills((kill,), is_of_hook=True)
        return SyncStage.KILL

    def forget(self, uid: PodUid) -> None:
        """Drop what is kept of a pod."""
        self._runtime.remove(uid)
        self._back_off.forget(uid)
