"""Containers are killed: what is told of it, and the wait until they have ended.

    kill -> Killing events -> [a preStop hook fails: told at its time] -> all have ended

The pace is computed once, see kuberuntime_container.py; the caller sets the worker's stage.
Source: pkg/kubelet/kuberuntime: killPodWithSyncResult, killContainersWithSyncResult.
"""

import dataclasses

from fleet.kubelet.containers.kuberuntime_container import stop_containers
from fleet.kubelet.events import Reason
from fleet.kubelet.pods.pod_workers import PodWorker, SyncStage, effective_grace_s
from fleet.kubelet.turn import Turn
from fleet.objects.pods import Pod
from fleet.runtime.containers import Container, RunState, Sandbox
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
    pod = worker.pod
    stops = stop_containers(
        runtime, pod, containers, turn.behavior(pod), grace_s, turn.now_ns, turn.env
    )
    worker.kills = worker.kills._replace(failed_hooks=stops.failed_hooks)
    _wait(worker, stops.end_ns, turn)


def _wait(worker: PodWorker, end_ns: int, turn: Turn) -> None:
    """Wait for the end of what is stopped, or for a hook that has failed by then."""
    first_ns = min((at_ns for at_ns, _ in worker.kills.failed_hooks), default=end_ns)
    turn.wait(worker, min(end_ns, first_ns))


def is_stopped(runtime: Runtime, worker: PodWorker, turn: Turn) -> bool:
    """Report hooks that failed; tell whether all that was stopped has ended, else wait."""
    pod = worker.pod
    hooks = worker.kills.failed_hooks
    for at_ns, name in hooks:
        if at_ns <= turn.now_ns:
            turn.event(pod, Reason.FAILED_PRE_STOP_HOOK, "PreStopHook failed", pod.find(name))
    if hooks:
        later = tuple(each for each in hooks if each[0] > turn.now_ns)
        worker.kills = worker.kills._replace(failed_hooks=later)
    sandbox = runtime.sandbox(pod.uid)
    assert sandbox is not None, pod.uid
    runtime.advance(pod.uid, turn.now_ns, turn.env.wall_offset_ns)
    stopping = sandbox.containers
    if worker.stage is SyncStage.KILL:
        stopping = tuple(each for each in stopping if each.name == worker.kills.done[-1])
    end_ns = max((each.exit_ns for each in stopping if each.state is RunState.RUNNING), default=0)
    if end_ns:
        _wait(worker, end_ns, turn)
    return not end_ns
