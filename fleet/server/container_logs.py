"""What a kubelet answers when the log of a container is asked for.

Source: pkg/kubelet/kubelet_pods.go, GetKubeletContainerLogs, validateContainerLogStatus.
"""

from collections.abc import Callable
from functools import partial

from fleet.clock import NS_PER_S
from fleet.k8s.pods import (
    ContainerStatus,
    Pod,
    PodStatus,
    RunningState,
    TerminatedState,
    WaitingState,
)
from fleet.k8s.streams import LogOptions, Refusal
from fleet.kubelet.environment import Environment
from fleet.kubelet.volumes.watched_objects import PodSources
from fleet.runtime.container_log import LogReader, Rotation
from fleet.runtime.containers import Container, RunState
from fleet.runtime.runtime import Runtime

BAD_REQUEST = 400
_PULL_FAILURES = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


def read_log(
    pod: Pod,
    status: PodStatus,
    name: str,
    options: LogOptions,
    runtime: Runtime,
    env: Environment,
    sources: PodSources,
) -> LogReader | Refusal:
    """Return a reader of the log of a container, or why there is none."""
    container_id = _container_id(pod.name, status, name, previous=options.previous)
    if isinstance(container_id, Refusal):
        return container_id
    spec = pod.find(name)
    found = _find(status, name)
    if spec is None or found is None:
        return _not_available(pod.name, name)
    sandbox = runtime.sandbox(pod.uid)
    container = None if sandbox is None else sandbox.find(name)
    ended: Callable[[int], int | None]
    if container is not None and container.id == container_id:
        attempt, started_s = container.attempt, container.started_s
        begun_ns = container.begun_ns or started_s * NS_PER_S - env.wall_offset_ns
        ended = partial(_ended_ns, runtime, pod, container)
    else:
        # It is gone, but its log stays as long as its pod: its status says when it ran.
        state = _terminated(found, container_id)
        if state is None:
            return _not_available(pod.name, name)
        attempt = found.restart_count - (state is found.last_state)
        started_s = state.started_s
        begun_ns = started_s * NS_PER_S - env.wall_offset_ns
        if container is not None and container.attempt == attempt + 1:
            begun_ns = container.last_begun_ns or begun_ns
        ended = partial(_at, (state.finished_s + 1) * NS_PER_S - env.wall_offset_ns - 1)
    behavior = env.model.behavior_of(pod)
    offset_ns = env.wall_offset_ns
    lines = runtime.log(pod, spec, behavior, attempt, started_s, begun_ns, sources)
    kubelet = env.model.kubelet
    rotation = Rotation(
        kubelet.container_log_max_size.value, kubelet.container_log_monitor_interval_ns
    )
    return LogReader(lines, started_s * NS_PER_S - offset_ns, offset_ns, ended, options, rotation)


def _terminated(status: ContainerStatus, container_id: str) -> TerminatedState | None:
    """Return how the container of an id ended, None if the status has none of it."""
    for state in (status.state, status.last_state):
        if isinstance(state, TerminatedState) and state.container_id == container_id:
            return state
    return None


def _not_available(pod_name: str, name: str) -> Refusal:
    return _refusal(f'container "{name}" in pod "{pod_name}" is not available')


def _at(end_ns: int, _now_ns: int) -> int:
    return end_ns


def _ended_ns(runtime: Runtime, pod: Pod, container: Container, now_ns: int) -> int | None:
    """Return when a container ended, None while it runs."""
    if container.state is RunState.EXITED or container.exit_ns <= now_ns:
        return container.exit_ns
    sandbox = runtime.sandbox(pod.uid)
    if sandbox is None or container not in sandbox.containers:
        return now_ns  # it went with its pod
    return None


def _container_id(pod_name: str, status: PodStatus, name: str, *, previous: bool) -> str | Refusal:
    """Return the container whose log is meant. Source: validateContainerLogStatus."""
    found = _find(status, name)
    where = f'container "{name}" in pod "{pod_name}"'
    if found is None:
        return _refusal(f"{where} is not available")
    last = found.last_state.container_id if found.last_state is not None else ""
    if previous:
        return last or _refusal(f"previous terminated {where} not found")
    state = found.state
    if isinstance(state, RunningState):
        return found.container_id
    if isinstance(state, TerminatedState):
        return state.container_id or last or _refusal(f"{where} is terminated")
    if found.last_state is not None:
        return last or _refusal(f"{where} is terminated")
    assert isinstance(state, WaitingState), state
    why = _PULL_FAILURES.get(state.reason, state.reason)
    return _refusal(f"{where} is waiting to start: {why}")


def _find(status: PodStatus, name: str) -> ContainerStatus | None:
    for statuses in (status.containers, status.init_containers, status.ephemeral_containers):
        for each in statuses:
            if each.name == name:
                return each
    return None


def _refusal(text: str) -> Refusal:
    return Refusal(BAD_REQUEST, text)
