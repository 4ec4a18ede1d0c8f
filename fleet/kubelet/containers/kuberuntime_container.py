"""Containers are stopped: hooks, pace, what is reported, and the wait until they have ended.

    Killing -> preStop -> wait for one's turn -> SIGTERM -> SIGKILL at the end of the grace period

    kill -> Killing events -> [a preStop hook fails: an event] -> all have ended -> sandbox
                                                               -> some survive: an error

All of it is computed when the kill begins; only a preStop hook that fails has to be reported at
its time. Whole seconds are taken off the grace period, as upstream counts them. What survives has
it computed again when its machine is in order again. The sandbox is stopped after the containers
whether they have ended or not: the runtime then tries to kill those that run. The caller sets the
worker's stage. A hook goes as a PodBehavior declares it, else its command is run in the container,
and its request succeeds. A command that is not understood succeeds, too; tcpSocket never does.
Source: kuberuntime_container.go, killContainer, executePreStopHook, killContainersWithSyncResult,
killPodWithSyncResult; kuberuntime_termination_order.go; pkg/kubelet/lifecycle/handlers.go, Run,
runHTTPHandler, runSleepHandler; pkg/kubelet/container/sync_result.go, PodSyncResult.Error;
cri-client's remote_runtime.go, execSyncV1;
containerd 2, internal/cri/server/sandbox_stop.go, stopPodSandbox.
Differs: a fault that begins while containers are being stopped spares them; one that is over ends
what the runtime still waits for, else the next try does. Hooks send nothing, so that no request
fails unless a PodBehavior says so.
"""

import dataclasses
from typing import NamedTuple

import orjson

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.addresses import first_of, host_port
from fleet.k8s.pods import ContainerSpec, Hook, Pod, PodUid
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason, aggregate
from fleet.kubelet.pod_worker import (
    ContainerKill,
    KillReason,
    PodWorker,
    Survivor,
    SyncStage,
    effective_grace_s,
)
from fleet.kubelet.turn import Turn
from fleet.profile.container_behavior import HANGS, HookBehavior
from fleet.profile.pod_behavior import PodBehavior
from fleet.runtime.containers import ID_PREFIX, Container, RunState, Sandbox, container_id
from fleet.runtime.pod_addresses import tear_down_failed
from fleet.runtime.program import NO_SOURCES, Run, Sources
from fleet.runtime.programs import program_of, record, run_in
from fleet.runtime.runtime import Runtime

KILLED = 137  # the code of a command that is over its budget
HOOK_NS = 10 * NS_PER_MS  # what an exec or a request takes of which nothing is known
ENDLESS_NS = 24 * 3600 * NS_PER_S
"""What one takes that does not end: longer than any grace period that is waited for."""


class HookRun(NamedTuple):
    """How a hook went."""

    takes_ns: int
    error: str  # "" when it succeeded
    dies: bool = False  # it fails when its container ends before it does


class HookPlace(NamedTuple):
    """Where a hook runs, and when."""

    runtime: Runtime
    env: Environment
    pod: Pod
    container: Container
    now_ns: int
    sources: Sources = NO_SOURCES


def run_hook(
    hook: Hook, declared: HookBehavior, spec: ContainerSpec, u: float, place: HookPlace
) -> HookRun:
    """Run a hook; return how long it takes and what its failure says."""
    pod = place.pod
    takes_ns, code = HOOK_NS, int(declared.fails)
    if hook.kind == "tcpSocket":  # which only probes have
        action = f"&TCPSocketAction{{Port:{{0 {hook.port} }},Host:{hook.host},}}"
        what = f"&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{action},Sleep:nil,}}"
        return HookRun(0, f"Cannot run handler: invalid handler: {what}")
    if hook.kind == "sleep":
        takes_ns = hook.seconds * NS_PER_S
    elif hook.kind == "exec":
        run = _run_command(hook, spec, place)
        if run.error:
            code = KILLED
        elif run.run_ns is not None:
            takes_ns = run.run_ns or HOOK_NS
            code = code or run.exit_code
        else:  # of a program that is unknown only what came before it takes time
            takes_ns = ENDLESS_NS if run.unknown_ns is None else run.unknown_ns or HOOK_NS
    if declared.duration is not None:
        takes_ns = declared.duration.sample(u)
    dies = hook.kind != "sleep"
    if not code:
        return HookRun(takes_ns, "", dies)
    who = f'for Container "{spec.name}" in Pod "{pod.full_name}({pod.uid})" failed - error:'
    words = " ".join(hook.command)
    if hook.kind == "exec":
        stdout, stderr = (run.text("", errors=each) for each in (False, True))
        what = f"command '{words}' exited with {code}: {stderr}"
        said = orjson.dumps(stdout + stderr).decode()
        error = f"Exec lifecycle hook ([{words}]) {who} {what}, message: {said}"
    elif hook.kind == "sleep":
        what = "container terminated before sleep hook finished"
        error = f"Sleep lifecycle hook ({hook.seconds}) {who} {what}"
    else:
        sandbox = place.runtime.sandbox(pod.uid)
        address = host_port(hook.host or first_of(sandbox.ips if sandbox else ""), hook.port)
        refused = f"dial tcp {address}: connect: connection refused"
        what = f'Get "http://{address}/{hook.path.removeprefix("/")}": {refused}'
        error = f"HTTP lifecycle hook ({hook.path}) {who} {what}"
    return HookRun(takes_ns, error, dies)


def _run_command(hook: Hook, spec: ContainerSpec, place: HookPlace) -> Run:
    """Run a command in the container; what it writes is seen there."""
    runtime, pod, now_ns = place.runtime, place.pod, place.now_ns
    at = (place.container.attempt, now_ns, place.env.wall_ns(now_ns))
    process = runtime.process_at(pod, spec, *at, place.sources)
    behavior = place.env.model.behavior_of(pod).container(spec.name)
    run = run_in(process, hook.command, program_of(pod, spec), behavior)
    if run.changes:
        record(process._replace(files=runtime.files), run.changes, "hook")
    return run


GRACE_MIN_S = 2  # minimumGracePeriodInSeconds: what SIGTERM always gets
_STREAM_POST_START = 0x9057
_STREAM_PRE_STOP = 0x94E5


def kill_grace_s(pod: Pod, kill: ContainerKill) -> int:
    """Return the grace period of one container that is killed while its pod goes on.

    Source: setTerminationGracePeriod.
    """
    if kill.reason is KillReason.RESTART_ALL:
        return 0
    if pod.deletion_grace_s is not None:
        return pod.deletion_grace_s
    spec = pod.find(kill.name)
    probe = None
    if spec is not None and kill.reason is KillReason.STARTUP_PROBE:
        probe = spec.startup_probe
    elif spec is not None and kill.reason is KillReason.LIVENESS_PROBE:
        probe = spec.liveness_probe
    if probe is not None and probe.termination_grace_s is not None:
        return probe.termination_grace_s
    return pod.spec.termination_grace_s


def post_start(place: HookPlace, spec: ContainerSpec, behavior: PodBehavior) -> HookRun:
    """Run the postStart hook of a container; return how it goes."""
    hook = spec.life.post_start
    assert hook is not None, spec.name
    declared = behavior.container(spec.name).life.post_start
    attempt = place.container.attempt
    u = place.runtime.uniform(_STREAM_POST_START, place.pod.uid, spec.name, attempt)
    return run_hook(hook, declared, spec, u, place)


def stop(
    runtime: Runtime, worker: PodWorker, containers: tuple[Container, ...], grace_s: int, turn: Turn
) -> None:
    """Stop some containers of a pod, and wait for the first thing that is to be reported of it.

    Sidecars wait for the others, and end last started first.
    """
    pod, now_ns, behavior = worker.pod, turn.now_ns, turn.behavior(worker.pod)
    order = [spec.name for spec in reversed(pod.spec.init_containers) if is_sidecar(spec)]
    running = [each for each in containers if each.state is RunState.RUNNING]
    running.sort(key=lambda each: order.index(each.name) if each.name in order else -1)
    end_ns = now_ns
    turn_ns = now_ns  # when the next sidecar may be stopped
    failed: list[tuple[int, str]] = []
    survivors: list[Survivor] = []
    for each in running:
        place = HookPlace(runtime, turn.env, pod, each, now_ns)
        hook = _pre_stop(place, behavior, grace_s)
        at_ns = now_ns + min(hook.takes_ns, grace_s * NS_PER_S)
        left_s = grace_s - (at_ns - now_ns) // NS_PER_S
        if each.name in order and left_s > 0 and turn_ns > at_ns:
            waited_ns = min(turn_ns - at_ns, left_s * NS_PER_S)
            at_ns += waited_ns
            left_s -= waited_ns // NS_PER_S
        grace_ns = max(left_s, GRACE_MIN_S) * NS_PER_S
        survivor = _survivor(each, problem_of(each, behavior, turn), at_ns + grace_ns, turn)
        if survivor is None:
            offset_ns = turn.env.wall_offset_ns
            stopped_ns = runtime.stop_container(pod, each, behavior, at_ns, grace_ns, offset_ns)
        else:
            stopped_ns = min(survivor.end_ns, each.exit_ns)
            survivors.append(survivor)
        end_ns = max(end_ns, stopped_ns)
        if hook.error or (hook.dies and at_ns < now_ns + hook.takes_ns):
            failed.append((min(now_ns + hook.takes_ns, stopped_ns), each.name))
        spec = pod.find(each.name)
        if spec is None or spec in pod.spec.containers or is_sidecar(spec):
            turn_ns = max(turn_ns, stopped_ns)
    worker.kills = worker.kills._replace(
        failed_hooks=tuple(sorted(failed)), survivors=tuple(survivors), sandbox_ns=0
    )
    _wait(worker, end_ns, turn)


def problem_of(container: Container, behavior: PodBehavior, turn: Turn) -> str:
    """Return why a container cannot be killed now, "" if it can."""
    return behavior.container(container.name).life.stop.problem or turn.env.model.broken.kills


def _survivor(container: Container, problem: str, kill_ns: int, turn: Turn) -> Survivor | None:
    """Return what is known of a kill that fails, None of one that does not.

    What does not answer is waited for until the grace period and the time-out of requests are over.
    Source: cri-client/pkg/remote_runtime.go, StopContainer; containerd 2,
    internal/cri/server/container_stop.go, stopContainer.
    """
    if not problem:
        return None
    end_ns = kill_ns
    if problem == HANGS:
        end_ns += turn.env.model.kubelet.runtime_request_timeout_ns
    return Survivor(container.name, kill_ns, end_ns, problem)


def _pre_stop(place: HookPlace, behavior: PodBehavior, grace_s: int) -> HookRun:
    pod, container = place.pod, place.container
    spec = pod.find(container.name)
    if spec is None or spec.life.pre_stop is None or grace_s <= 0:
        return HookRun(0, "")
    declared = behavior.container(spec.name).life.pre_stop
    u = place.runtime.uniform(_STREAM_PRE_STOP, pod.uid, spec.name, container.attempt)
    return run_hook(spec.life.pre_stop, declared, spec, u, place)


ORPHAN_GRACE_S = 1  # of pods that run and have no worker: kubelet_pods.go, HandlePodCleanups


def kill_containers(
    runtime: Runtime, worker: PodWorker, sandbox: Sandbox, turn: Turn, *, is_orphan: bool = False
) -> None:
    """Stop every container of a pod that runs.

    What is known of an orphan is what the runtime has as labels: no version of the object.
    Source: HandlePodCleanups, SyncTerminatingRuntimePod, restoreSpecsFromContainerLabels.
    """
    pod, grace_s = worker.pod, worker.grace_s or effective_grace_s(0, worker.pod)
    if is_orphan:
        pod, grace_s = dataclasses.replace(pod, resource_version=""), ORPHAN_GRACE_S
    for each in sandbox.containers:
        if each.state is RunState.RUNNING:
            message = f"Stopping container {each.name}"
            turn.event(pod, Reason.KILLING, message, pod.find(each.name))
    stop(runtime, worker, sandbox.containers, grace_s, turn)


def _wait(worker: PodWorker, end_ns: int, turn: Turn) -> None:
    """Wait for the end of what is stopped, or for a hook that has failed by then."""
    first_ns = min((at_ns for at_ns, _ in worker.kills.failed_hooks), default=end_ns)
    turn.wait(worker, min(end_ns, first_ns))


def outcome(runtime: Runtime, worker: PodWorker, turn: Turn) -> str | None:
    """Return None while what is being killed has not ended, "" once it has, else the error.

    The sandbox of a pod that is killed as a whole is stopped last. Hooks that failed are reported.
    """
    _tell_hooks(worker, turn)
    uid = worker.pod.uid
    sandbox = runtime.sandbox(uid)
    assert sandbox is not None, uid
    runtime.advance(uid, turn.now_ns, turn.env.wall_offset_ns)
    is_one = worker.stage is SyncStage.KILL
    stopping = sandbox.containers
    if is_one:
        stopping = tuple(each for each in stopping if each.name == worker.kills.done[-1])
    end_ns = max((_end_ns(worker, each) for each in stopping), default=0)
    if end_ns > turn.now_ns:
        _wait(worker, end_ns, turn)
        return None
    failed = [
        each
        for each in worker.kills.survivors
        if (container := sandbox.find(each.name)) is not None and container.exit_ns > each.end_ns
    ]
    errors = [
        _failed_to("KillContainer", each.name, _kill_error(uid, each, sandbox)) for each in failed
    ]
    if not is_one:
        error = _stop_sandbox(runtime, worker, sandbox, failed, turn)
        if error is None:
            return None
        if error:
            errors.append(_failed_to("KillPodSandbox", uid, error))
    return aggregate(errors)


def _tell_hooks(worker: PodWorker, turn: Turn) -> None:
    pod, hooks = worker.pod, worker.kills.failed_hooks
    for at_ns, name in hooks:
        if at_ns <= turn.now_ns:
            turn.event(pod, Reason.FAILED_PRE_STOP_HOOK, "PreStopHook failed", pod.find(name))
    if hooks:
        later = tuple(each for each in hooks if each[0] > turn.now_ns)
        worker.kills = worker.kills._replace(failed_hooks=later)


def _end_ns(worker: PodWorker, container: Container) -> int:
    """Return until when the call that stops a container takes, 0 once it has ended."""
    if container.state is not RunState.RUNNING:
        return 0
    for each in worker.kills.survivors:
        if each.name == container.name:
            return min(each.end_ns, container.exit_ns)
    return container.exit_ns


def sandbox_problem(runtime: Runtime, pod: Pod, turn: Turn) -> str:
    """Return why the sandbox of a pod cannot be stopped, "" if it can, or need not."""
    sandbox, problem = runtime.sandbox(pod.uid), turn.env.model.broken.sandbox_kills
    if not problem or sandbox is None or not sandbox.holds_address or pod.spec.host_network:
        return ""
    return tear_down_failed(pod.uid, problem)


def _stop_sandbox(
    runtime: Runtime, worker: PodWorker, sandbox: Sandbox, failed: list[Survivor], turn: Turn
) -> str | None:
    """Stop the sandbox; return None while that takes, "" once it is done, else the error."""
    uid, kills, now_ns = worker.pod.uid, worker.kills, turn.now_ns
    if failed and not kills.sandbox_ns:
        takes_ns = 0
        if any(each.problem == HANGS for each in failed):
            takes_ns = turn.env.model.kubelet.runtime_request_timeout_ns
        worker.kills = kills = kills._replace(sandbox_ns=now_ns + takes_ns)
    if now_ns < kills.sandbox_ns:
        turn.wait(worker, kills.sandbox_ns)
        return None
    names = {each.name for each in sandbox.containers if each.state is RunState.RUNNING}
    running = [each for each in failed if each.name in names]
    if any(each.problem == HANGS for each in running):
        return HANGS
    if running:
        found = _id_of(uid, running[0], sandbox)
        error = f'failed to kill container "{found}": {running[0].problem}'
        return f'rpc error: code = Unknown desc = failed to stop container "{found}": {error}'
    error = sandbox_problem(runtime, worker.pod, turn)
    if error:
        runtime.hold_sandbox(uid)
    else:
        runtime.stop_sandbox(uid)
    return error


def _kill_error(uid: PodUid, survivor: Survivor, sandbox: Sandbox) -> str:
    if survivor.problem == HANGS:
        return HANGS
    found = _id_of(uid, survivor, sandbox)
    error = f'failed to kill container "{found}": {survivor.problem}'
    return f"rpc error: code = Unknown desc = {error}"


def _id_of(uid: PodUid, survivor: Survivor, sandbox: Sandbox) -> str:
    container = sandbox.find(survivor.name)
    found = container_id(uid, survivor.name, 0) if container is None else container.id
    return found.removeprefix(ID_PREFIX)


def _failed_to(action: str, target: str, error: str) -> str:
    """Word one action that failed, quoted as Go does. Source: sync_result.go, Error."""
    text = orjson.dumps(error).decode()
    return f'failed to "{action}" for "{target}" with {action}Error: {text}'


def go_on_killing(runtime: Runtime, worker: PodWorker, turn: Turn) -> None:
    """End what is no longer hindered, and is still waited for: signals were sent to it."""
    pod, kills = worker.pod, worker.kills
    sandbox = runtime.sandbox(pod.uid)
    if not kills.survivors or sandbox is None:
        return
    behavior, offset_ns = turn.behavior(pod), turn.env.wall_offset_ns
    ended = set()
    for each in kills.survivors:
        container = sandbox.find(each.name)
        if container is None or container.state is not RunState.RUNNING:
            continue
        if container.exit_ns <= turn.now_ns:  # something else has ended it
            ended.add(each.name)
            continue
        if problem_of(container, behavior, turn) or turn.now_ns >= max(
            each.end_ns, kills.sandbox_ns
        ):
            continue
        left_ns = max(each.kill_ns - turn.now_ns, 0)
        runtime.stop_container(pod, container, behavior, turn.now_ns, left_ns, offset_ns)
        ended.add(each.name)
    if ended:
        survivors = [
            each for each in kills.survivors if each.name not in ended or turn.now_ns >= each.end_ns
        ]
        sandbox_ns = min(kills.sandbox_ns, turn.now_ns)
        worker.kills = kills._replace(survivors=tuple(survivors), sandbox_ns=sandbox_ns)
        turn.wait(worker, turn.now_ns)
