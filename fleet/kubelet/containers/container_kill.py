"""Containers are killed: what is told of it, and the wait until they have ended, or will not.

    kill -> Killing events -> [a preStop hook fails: told at its time] -> all have ended -> sandbox
                                                                       -> some survive: an error

The pace is computed once, see kuberuntime_container.py; the caller sets the worker's stage. What
survives has it computed anew when its machine is in order again. The sandbox is stopped after the
containers whether they have ended or not: the runtime then tries to kill those that run.
Source: pkg/kubelet/kuberuntime: killPodWithSyncResult, killContainersWithSyncResult;
pkg/kubelet/container/sync_result.go, PodSyncResult.Error; containerd 2,
internal/cri/server/sandbox_stop.go, stopPodSandbox.
Differs: a fault that begins while containers are being stopped spares them; one that is over ends
what the runtime still waits for, else the next try does.
"""

import dataclasses

import orjson

from fleet.k8s.pods import Pod, PodUid
from fleet.kubelet.containers.kuberuntime_container import problem_of, stop_containers
from fleet.kubelet.events import Reason
from fleet.kubelet.pod_worker import PodWorker, Survivor, SyncStage, effective_grace_s
from fleet.kubelet.turn import Turn
from fleet.profile.container_behavior import HANGS
from fleet.runtime.containers import ID_PREFIX, Container, RunState, Sandbox, container_id
from fleet.runtime.pod_addresses import tear_down_failed
from fleet.runtime.runtime import Runtime

ORPHAN_GRACE_S = 1
"""Of pods that run and have no worker: kubelet_pods.go, HandlePodCleanups."""


def kill_containers(runtime: Runtime, worker: PodWorker, sandbox: Sandbox, turn: Turn) -> None:
    """Stop every container of a pod that runs."""
    _tell(worker.pod, sandbox, turn)
    grace_s = worker.grace_s or effective_grace_s(0, worker.pod)
    stop(runtime, worker, sandbox.containers, grace_s, turn)


def kill_orphan(runtime: Runtime, worker: PodWorker, sandbox: Sandbox, turn: Turn) -> None:
    """Stop what runs of a pod that has no worker.

    What is known of the pod then is what the runtime has as labels: no version of the object.
    Source: HandlePodCleanups, SyncTerminatingRuntimePod, restoreSpecsFromContainerLabels.
    """
    _tell(dataclasses.replace(worker.pod, resource_version=""), sandbox, turn)
    stop(runtime, worker, sandbox.containers, ORPHAN_GRACE_S, turn)


def _tell(pod: Pod, sandbox: Sandbox, turn: Turn) -> None:
    for each in sandbox.containers:
        if each.state is RunState.RUNNING:
            message = f"Stopping container {each.name}"
            turn.event(pod, Reason.KILLING, message, pod.find(each.name))


def stop(
    runtime: Runtime,
    worker: PodWorker,
    containers: tuple[Container, ...],
    grace_s: int,
    turn: Turn,
) -> None:
    """Stop some containers of a pod, and wait for the first thing that is to be told of it."""
    stops = stop_containers(runtime, worker.pod, containers, grace_s, turn)
    worker.kills = worker.kills._replace(
        failed_hooks=stops.failed_hooks, survivors=stops.survivors, sandbox_ns=0
    )
    _wait(worker, stops.end_ns, turn)


def _wait(worker: PodWorker, end_ns: int, turn: Turn) -> None:
    """Wait for the end of what is stopped, or for a hook that has failed by then."""
    first_ns = min((at_ns for at_ns, _ in worker.kills.failed_hooks), default=end_ns)
    turn.wait(worker, min(end_ns, first_ns))


def outcome(runtime: Runtime, worker: PodWorker, turn: Turn) -> str | None:
    """Return None while what is being killed has not ended, "" once it has, else the error.

    The sandbox of a pod that is killed as a whole is stopped last. Hooks that failed are told.
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
    failed = [each for each in worker.kills.survivors if _has_survived(each, sandbox)]
    errors = [
        _failed_to("KillContainer", each.name, _kill_error(uid, each, sandbox)) for each in failed
    ]
    if not is_one:
        error = _stop_sandbox(runtime, worker, sandbox, failed, turn)
        if error is None:
            return None
        if error:
            errors.append(_failed_to("KillPodSandbox", uid, error))
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""


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


def _has_survived(survivor: Survivor, sandbox: Sandbox) -> bool:
    container = sandbox.find(survivor.name)
    return container is not None and container.exit_ns > survivor.end_ns


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
    running = [each for each in failed if _is_running(each, sandbox)]
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


def _is_running(survivor: Survivor, sandbox: Sandbox) -> bool:
    container = sandbox.find(survivor.name)
    return container is not None and container.state is RunState.RUNNING


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
