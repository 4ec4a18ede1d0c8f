"""The phase of a pod, from the statuses of its containers.

Pending until every container has started once, Running while any runs or will run again, else
Succeeded or Failed. Sidecars count while they run, but do not decide how the pod ends.
Source: pkg/kubelet/kubelet_pods.go, getPhase.
"""

from collections.abc import Iterable
from typing import NamedTuple

from fleet.k8s.pods import (
    ContainerSpec,
    ContainerStatus,
    Pod,
    RunningState,
    TerminatedState,
    WaitingState,
)
from fleet.k8s.static_pods import StaticPod
from fleet.kubelet.containers.pod_actions import is_sidecar, should_restart

RESTARTING_ALL = "RestartingAllContainers"


class _Inits(NamedTuple):
    pending: int  # regular ones that have not ended
    failed: int  # regular ones that failed for good
    sidecars_pending: int  # not started yet
    sidecars_waiting: int  # that never ran
    sidecars_running: int


class _Counts(NamedTuple):
    running: int
    waiting: int
    stopped: int
    final: int  # stopped for good
    succeeded: int


def pod_phase(
    pod: Pod,
    containers: tuple[ContainerStatus, ...],
    inits: tuple[ContainerStatus, ...],
    *,
    is_terminal: bool,
    has_run: bool,
) -> str:
    """Return the phase; `has_run`: a regular container was started in this sandbox."""
    begun = _count_inits(pod, inits)
    if begun.failed:
        return "Failed"
    counts = _count(pod, containers)
    starting = begun.sidecars_pending and not has_run
    if begun.pending or starting or counts.waiting + begun.sidecars_waiting:
        return "Pending"
    if counts.running + begun.sidecars_running:
        return "Running"
    if not counts.stopped:
        return "Pending"
    ends = is_terminal and not isinstance(pod, StaticPod)  # upstream's TODO(#116484)
    if not ends and counts.stopped != counts.final:
        return "Running"  # at least one will be restarted
    return "Succeeded" if counts.stopped == counts.succeeded else "Failed"


def _count_inits(pod: Pod, inits: Iterable[ContainerStatus]) -> _Inits:
    pending = failed = unstarted = waiting = running = 0
    for spec, status in zip(pod.spec.init_containers, inits, strict=True):
        state = status.state
        ended = status.last_state if isinstance(state, WaitingState) else state
        if is_sidecar(spec):
            never = isinstance(state, WaitingState) and status.last_state is None
            runs = isinstance(state, RunningState)
            waiting += never
            running += runs
            unstarted += never or (runs and not status.started)
        elif isinstance(ended, TerminatedState):
            failed += bool(ended.exit_code) and not _restarts(spec, pod, ended)
        else:
            pending += 1
    return _Inits(pending, failed, unstarted, waiting, running)


def _count(pod: Pod, containers: Iterable[ContainerStatus]) -> _Counts:
    specs = {spec.name: spec for spec in pod.spec.containers}
    running = waiting = stopped = final = succeeded = 0
    for status in containers:
        state = status.state
        ended = status.last_state if isinstance(state, WaitingState) else state
        if isinstance(ended, TerminatedState):
            stopped += 1
            final += not _restarts(specs[status.name], pod, ended)
            succeeded += isinstance(state, TerminatedState) and not ended.exit_code
        elif isinstance(state, RunningState):
            running += 1
        else:
            waiting += 1
    return _Counts(running, waiting, stopped, final, succeeded)


def _restarts(spec: ContainerSpec, pod: Pod, ended: TerminatedState) -> bool:
    return ended.reason == RESTARTING_ALL or should_restart(spec, pod, ended.exit_code)
