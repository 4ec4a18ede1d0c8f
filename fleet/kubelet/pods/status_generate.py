"""The status of a pod, generated from its spec and what the runtime has.

Pure: transition times and the start time are the status manager's.
Phase: Pending until every container has started once, Running while any runs or will run again,
else Succeeded or Failed. Sidecars count while they run, but do not decide how the pod ends.
Resources of the pod and of its containers: all that was asked for while it is Pending, then CPU and
memory as its cgroup has them. A kubelet reads them back from the pod's cgroup, and what that cannot
tell stays as it was shown: a limit that not every container has, and the request of memory, which a
resize therefore leaves as it was.
Source: pkg/kubelet/kubelet_pods.go, generateAPIPodStatus, getPhase, convertToAPIContainerStatuses,
convertToAPIPodLevelResourcesStatus; pkg/kubelet/status/generate.go;
pkg/kubelet/prober/prober_manager.go, UpdatePodStatus; pkg/kubelet/active_deadline.go.
Differs: a pod that does not tolerate the emulator never becomes ready. A cgroup is there until the
last status; a kubelet may have removed it by then. Nothing looks at every pod's deadline each
second; the tick that would find one is computed.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.addresses import by_family, with_second
from fleet.k8s.pods import (
    ContainerSpec,
    ContainerStatus,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    RunningState,
    TerminatedState,
    WaitingState,
)
from fleet.k8s.static_pods import StaticPod
from fleet.kubelet.containers.allocation_manager import amounts, limited_json, rendered
from fleet.kubelet.containers.pod_actions import (
    ALL_RESTARTING,
    could_restart_all,
    is_sidecar,
    is_wanted,
    should_restart,
)
from fleet.kubelet.containers.probe_worker import NOT_PROBED, Probed, ProbeResult, ProbeUpdate
from fleet.kubelet.pod_worker import TERMINAL_PHASES
from fleet.profile.container_behavior import ProbeKind
from fleet.quantity import parse_quantity
from fleet.runtime.container_config import user_json
from fleet.runtime.containers import Container, RunState, Sandbox, shown_image
from fleet.runtime.runtime import KILLED_EXIT_CODE

OWNED_CONDITIONS = frozenset(
    (
        "PodScheduled",
        "Ready",
        "Initialized",
        "ContainersReady",
        "PodResizeInProgress",
        "PodResizePending",
        "PodReadyToStartContainers",
        ALL_RESTARTING,
    )
)
CREATING = WaitingState("ContainerCreating")
INITIALIZING = WaitingState("PodInitializing")
SANDBOX_READY = "PodReadyToStartContainers"
REMOVED_MESSAGE = "The container is removed because RestartAllContainers in place"
STATUS_UNKNOWN = "ContainerStatusUnknown"
LOST_MESSAGE = (
    "The container could not be located when the pod was deleted.  The container used to be Running"
)
NOT_TOLERATED = "EmulatedNodeNotTolerated"
NOT_TOLERATED_MESSAGE = "the node is emulated and the pod does not tolerate the taint %s by name"
DEADLINE_REASON = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
FINAL_REASONS = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}


NOT_RESIZED: Mapping[str, bytes] = {}


class PodInputs(NamedTuple):
    """What a status is generated from, the pod and its sandbox apart."""

    old: PodStatus  # the one generated last, else the API's
    host_ips: str
    reasons: Mapping[str, WaitingState]  # why containers could not be started
    restarting: bool = False  # a rule said RestartAllContainers
    past_deadline: bool = False
    resize: tuple[PodCondition, ...] = ()  # conditions of a resize
    actuated: Mapping[str, bytes] = NOT_RESIZED  # resources of containers, if not as asked
    is_terminal: bool = False  # nothing runs any more, and nothing will
    untolerated: str = ""  # the taint key for want of which the pod is never ready
    probed: Mapping[str, Probed] = NOT_PROBED  # by container
    in_cgroup: PodSpec | None = None  # by which the pod's cgroup is, if not as asked
    pod_resources: bool = True  # the status shows the resources of the whole pod
    keeps_memory: bool = True
    explains_sandbox: bool = False  # why it is not ready
    keeps_last: bool = True  # lastState of a container that ended, though that one is removed
    keeps_initialized: bool = True  # though an init container runs again
    shows_user: bool = True  # Source: containerd, toCRIContainerUser: not on Windows
    shown_image: Callable[[str], tuple[str, str]] = shown_image
    recursive: bool = True  # the runtime handler supports recursive read-only mounts


def generate_pod_status(pod: Pod, sandbox: Sandbox | None, inputs: PodInputs) -> PodStatus:
    """Return the status of a pod as a kubelet would report it now."""
    old = inputs.old
    waiting = INITIALIZING if pod.spec.init_containers else CREATING
    containers = tuple(
        _container_status(spec, pod, sandbox, inputs, waiting, old.containers)
        for spec in pod.spec.containers
    )
    if len(containers) > 1:
        containers = tuple(sorted(containers, key=attrgetter("name")))
    inits = tuple(
        _container_status(spec, pod, sandbox, inputs, waiting, old.init_containers, init=True)
        for spec in pod.spec.init_containers
    )
    ephemeral = tuple(
        _container_status(spec, pod, sandbox, inputs, waiting, old.ephemeral_containers)._replace(
            ready=False, started=False
        )
        for spec in sorted(pod.spec.ephemeral_containers, key=attrgetter("name"))
    )
    has_run = sandbox is not None and sandbox.has_begun(pod.spec.containers)
    phase = pod_phase(pod, containers, inits, is_terminal=inputs.is_terminal, has_run=has_run)
    api_phase = pod.status.phase
    if api_phase in TERMINAL_PHASES:
        phase = api_phase  # pods do not leave a terminal phase
    elif phase not in TERMINAL_PHASES and old.phase in TERMINAL_PHASES:
        phase = old.phase
    reason = message = ""
    if phase == old.phase:
        reason = old.reason or pod.status.reason
        message = old.message or pod.status.message
    if inputs.past_deadline:
        if api_phase not in TERMINAL_PHASES:
            phase = "Failed"
        reason, message = DEADLINE_REASON, DEADLINE_MESSAGE
    in_cgroup = inputs.in_cgroup or pod.spec
    resources = resources_shown(pod, in_cgroup, old, keeps_memory=inputs.keeps_memory)
    pod_ips = by_family(sandbox.ips, inputs.host_ips) if sandbox is not None else old.pod_ips
    if pod.spec.host_network:
        pod_ips = with_second(pod_ips, inputs.host_ips)
    return PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        conditions=_conditions(pod, sandbox, inputs, phase, containers, inits),
        host_ips=inputs.host_ips,
        pod_ips=pod_ips,
        start_time_s=old.start_time_s,
        qos_class=pod.spec.qos_class,
        observed_generation=pod.generation,
        init_containers=inits,
        containers=containers,
        ephemeral_containers=ephemeral,
        allocated_json=pod.spec.allocated_json if inputs.pod_resources else b"",
        resources_json=resources if inputs.pod_resources else b"",
    )


@lru_cache(maxsize=4096)
def shared_condition(
    name: str, status: str, reason: str, message: str, transition_s: int, observed_generation: int
) -> PodCondition:
    """Return a condition; pods of one generation that flip in one second share it."""
    return PodCondition(name, status, reason, message, transition_s, observed_generation)


_running_since = lru_cache(maxsize=4096)(RunningState)


def _container_status(
    spec: ContainerSpec,
    pod: Pod,
    sandbox: Sandbox | None,
    inputs: PodInputs,
    waiting: WaitingState,
    before: tuple[ContainerStatus, ...],
    *,
    init: bool = False,
) -> ContainerStatus:
    old = next((each for each in before if each.name == spec.name), None)
    container = sandbox.find(spec.name) if sandbox is not None else None
    if container is None:
        status = _absent_status(spec, pod, inputs, waiting, old)
    else:
        status = _present_status(spec, pod, container, inputs, old, init=init)
    reason = inputs.reasons.get(spec.name)
    if reason is None or pod.deleting or not is_wanted(spec, pod, container):
        return status
    if init and container is not None and not container.exit_code:
        return status  # a sidecar, too, although it starts again
    state = status.state
    last = state if isinstance(state, TerminatedState) else status.last_state
    return status._replace(state=reason, last_state=last)


def _absent_status(
    spec: ContainerSpec,
    pod: Pod,
    inputs: PodInputs,
    waiting: WaitingState,
    old: ContainerStatus | None,
) -> ContainerStatus:
    """Return the status of a container that the runtime does not have, or has no longer."""
    if old is not None and isinstance(old.state, TerminatedState):
        return _reset(old, old.restart_count) if inputs.restarting else old
    fresh = ContainerStatus(
        name=spec.name,
        state=waiting,
        last_state=old.last_state if old is not None else None,
        ready=False,
        started=False,
        restart_count=old.restart_count if old is not None else 0,
        image=spec.image,
        image_id="",
        container_id="",
        volume_mounts_json=_mounts(spec, inputs),
    )
    if old is None or not isinstance(old.state, RunningState):
        return fresh
    if inputs.restarting:
        return _reset(fresh, old.restart_count)
    if old.last_state is not None:
        return fresh
    return fresh._replace(
        last_state=TerminatedState(KILLED_EXIT_CODE, STATUS_UNKNOWN, LOST_MESSAGE, 0, 0, ""),
        restart_count=old.restart_count + (not pod.deleting),
    )


def _reset(status: ContainerStatus, restart_count: int) -> ContainerStatus:
    """Return the status of a container that was removed because all are restarted.

    All that is not named here stays: a container that had ended before shows its image, its ID and
    whether it had initialized the pod.
    """
    return status._replace(
        state=WaitingState(RESTARTING_ALL, REMOVED_MESSAGE),
        last_state=TerminatedState(KILLED_EXIT_CODE, RESTARTING_ALL, REMOVED_MESSAGE, 0, 0, ""),
        started=False,
        restart_count=restart_count + 1,
    )


def _present_status(
    spec: ContainerSpec,
    pod: Pod,
    container: Container,
    inputs: PodInputs,
    old: ContainerStatus | None,
    *,
    init: bool,
) -> ContainerStatus:
    """Return the status of a container that the runtime has. Source: convertContainerStatus."""
    running = container.state is RunState.RUNNING
    started = ready = running
    if spec.name in inputs.probed:
        started, ready = inputs.probed[spec.name]
    ready = ready and not inputs.untolerated and (not init or is_sidecar(spec))
    state: RunningState | TerminatedState
    last = container.last
    if old is not None and old.container_id == container.id:
        if not running and not isinstance(old.state, RunningState):
            # Of the containers that have ended a kubelet keeps one.
            last = old.last_state if inputs.keeps_last else None
        elif last is None:
            last = old.last_state
    elif last is None and old is not None:
        last = old.state if isinstance(old.state, TerminatedState) else old.last_state
    if running:
        state = _running_since(container.started_s)
    else:
        state = container.terminated()
        ready = init and not is_sidecar(spec) and container.exit_code == 0
    image, image_id = inputs.shown_image(container.image)
    return ContainerStatus(
        name=spec.name,
        state=state,
        last_state=last,
        ready=ready,
        started=started,
        restart_count=container.attempt,
        image=image,
        image_id=image_id,
        container_id=container.id,
        allocated_json=spec.requests_json,
        resources_json=_resources(spec, pod, inputs) if running else spec.resources_json,
        volume_mounts_json=_mounts(spec, inputs),
        user_json=user_json(spec.user) if inputs.shows_user else b"",
    )


def _mounts(spec: ContainerSpec, inputs: PodInputs) -> bytes:
    """Source: kubelet_pods.go, convertToAPIContainerStatuses: without support none is recursive."""
    if inputs.recursive:
        return spec.volume_mounts_json
    return _not_recursive(spec.volume_mounts_json)


@lru_cache(maxsize=1024)
def _not_recursive(mounts: bytes) -> bytes:
    return mounts.replace(b'"recursiveReadOnly":"Enabled"', b'"recursiveReadOnly":"Disabled"')


def _resources(spec: ContainerSpec, pod: Pod, inputs: PodInputs) -> bytes:
    had = inputs.actuated.get(spec.name) or limited_json(spec, pod.spec)
    if had is spec.resources_json:
        return had
    return container_resources_shown(spec.resources_json, had)


def _conditions(
    pod: Pod,
    sandbox: Sandbox | None,
    inputs: PodInputs,
    phase: str,
    containers: tuple[ContainerStatus, ...],
    inits: tuple[ContainerStatus, ...],
) -> tuple[PodCondition, ...]:
    foreign = [each for each in pod.status.conditions if each.type not in OWNED_CONDITIONS]
    generation = pod.generation
    sandbox_ready = _sandbox_ready(sandbox, inputs)
    initialized = _initialized(pod, inputs, phase, containers, inits)
    first = (
        *foreign,
        *inputs.resize,
        shared_condition(SANDBOX_READY, *sandbox_ready, 0, generation),
        shared_condition("Initialized", *initialized, 0, generation),
    )
    containers_ready = _containers_ready(phase, _unready(pod, (*inits, *containers)))
    ready = _ready(pod, first, containers_ready)
    if inputs.untolerated and phase not in TERMINAL_PHASES:
        ready = ("False", NOT_TOLERATED, NOT_TOLERATED_MESSAGE % inputs.untolerated)
    return (
        *first,
        shared_condition("Ready", *ready, 0, generation),
        shared_condition("ContainersReady", *containers_ready, 0, generation),
        shared_condition("PodScheduled", "True", "", "", 0, generation),
        *_all_restarting(pod, sandbox, inputs, phase),
    )


def _sandbox_ready(sandbox: Sandbox | None, inputs: PodInputs) -> tuple[str, str, str]:
    """Source: GeneratePodReadyToStartContainersCondition, PodSandboxChanged."""
    if sandbox is not None and sandbox.ready:
        return "True", "", ""
    if not inputs.explains_sandbox:
        return "False", "", ""
    message = "no pod sandbox exists" if sandbox is None else "pod sandbox is not ready"
    return "False", "PodSandboxNotReady", message


def _all_restarting(
    pod: Pod, sandbox: Sandbox | None, inputs: PodInputs, phase: str
) -> tuple[PodCondition, ...]:
    """Source: GenerateAllContainersRestartingCondition; it has no observedGeneration."""
    if not could_restart_all(pod):
        return ()
    if phase in TERMINAL_PHASES:
        return (shared_condition(ALL_RESTARTING, "False", FINAL_REASONS[phase], "", 0, 0),)
    names = (spec.name for spec in (*pod.spec.containers, *pod.spec.init_containers))
    if not inputs.restarting or sandbox is None or not any(map(sandbox.find, names)):
        return (shared_condition(ALL_RESTARTING, "False", "", "", 0, 0),)
    reason = "RestartAllContainersStarted"
    message = "container exited with restart policy rule"
    return (shared_condition(ALL_RESTARTING, "True", reason, message, 0, 0),)


def _unready(pod: Pod, statuses: Iterable[ContainerStatus]) -> list[str]:
    """Return the containers that keep a pod from being ready, in the order of its spec."""
    unready = {each.name for each in statuses if not each.ready}
    if not unready:
        return []
    specs = (*filter(is_sidecar, pod.spec.init_containers), *pod.spec.containers)
    return [spec.name for spec in specs if spec.name in unready]


def _containers_ready(phase: str, unready: list[str]) -> tuple[str, str, str]:
    """Source: GenerateContainersReadyCondition."""
    if phase in TERMINAL_PHASES:
        return "False", FINAL_REASONS[phase], ""
    if unready:
        names = " ".join(unready)
        return "False", "ContainersNotReady", f"containers with unready status: [{names}]"
    return "True", "", ""


def _ready(
    pod: Pod, conditions: tuple[PodCondition, ...], containers_ready: tuple[str, str, str]
) -> tuple[str, str, str]:
    """Return the condition Ready, from the conditions that stand before it.

    Source: GeneratePodReadyCondition.
    """
    if containers_ready[0] != "True" or not pod.spec.readiness_gates:
        return containers_ready
    messages = []
    for gate in pod.spec.readiness_gates:
        value = next((each.status for each in conditions if each.type == gate), None)
        if value is None:
            messages.append(
                f'corresponding condition of pod readiness gate "{gate}" does not exist.'
            )
        elif value != "True":
            messages.append(f'the status of pod readiness gate "{gate}" is not "True", but {value}')
    if messages:
        return "False", "ReadinessGatesNotReady", ", ".join(messages)
    return containers_ready


def has_wrong_readiness(pod: Pod) -> bool:
    """Return whether a pod with gates shows itself ready, or not, otherwise than it is.

    The status of a sidecar is not looked at, and so unknown.
    Source: status_manager.go, NeedToReconcilePodReadiness.
    """
    status = pod.status
    shown = next((each for each in status.conditions if each.type == "Ready"), None)
    if shown is None or not pod.spec.readiness_gates:
        return False
    if status.phase != "Failed" and any(map(is_sidecar, pod.spec.init_containers)):
        return True
    containers_ready = _containers_ready(status.phase, _unready(pod, status.containers))
    ready, _reason, message = _ready(pod, status.conditions, containers_ready)
    return (shown.status, shown.message) != (ready, message)


def _initialized(
    pod: Pod,
    inputs: PodInputs,
    phase: str,
    containers: tuple[ContainerStatus, ...],
    inits: tuple[ContainerStatus, ...],
) -> tuple[str, str, str]:
    """Source: GeneratePodInitializedCondition, HasAnyRegularContainerStarted."""
    if phase == "Succeeded":
        return "True", "PodCompleted", ""
    incomplete = [
        spec.name
        for spec, status in zip(pod.spec.init_containers, inits, strict=True)
        if not (status.started if is_sidecar(spec) else status.ready)
    ]
    if not incomplete or not all(isinstance(each.state, WaitingState) for each in containers):
        return "True", "", ""
    old = inputs.old.conditions if inputs.keeps_initialized else ()
    if any(each.type == "Initialized" and each.status == "True" for each in old):
        return "True", "", ""
    names = " ".join(incomplete)
    return "False", "ContainersNotInitialized", f"containers with incomplete status: [{names}]"


def untolerated_key(pod: Pod, key: str) -> str:
    """Return the key that the pod had to tolerate by name and does not, "" when all is well."""
    if not key or any(each.key == key for each in pod.spec.tolerations):
        return ""
    return key


def with_sandbox_ready(status: PodStatus, generation: int) -> PodStatus:
    """Return a status in which only the sandbox became ready. Source: OnPodSandboxReady."""
    return _with_conditions(status, generation, {SANDBOX_READY: ("True", "", "")})


def _with_conditions(
    status: PodStatus, generation: int, new: Mapping[str, tuple[str, str, str]]
) -> PodStatus:
    conditions = tuple(
        shared_condition(each.type, *new[each.type], 0, generation) if each.type in new else each
        for each in status.conditions
    )
    return status._replace(conditions=conditions)


def apply_update(pod: Pod, status: PodStatus, update: ProbeUpdate) -> PodStatus:
    """Return the status with what a probe found of a container.

    Source: kubelet.go, syncLoopIteration; status_manager.go, SetContainerStartup,
    SetContainerReadiness.
    """
    kind, name, result = update
    if kind is ProbeKind.LIVENESS:
        return status
    found = {"started" if kind is ProbeKind.STARTUP else "ready": result is ProbeResult.SUCCESS}
    inits, containers = (
        tuple(
            each._replace(**found)
            if each.name == name and isinstance(each.state, RunningState)
            else each
            for each in statuses
        )
        for statuses in (status.init_containers, status.containers)
    )
    status = status._replace(init_containers=inits, containers=containers)
    if kind is ProbeKind.STARTUP:
        return status
    all_ready = _containers_ready(status.phase, _unready(pod, (*inits, *containers)))
    told = {"Ready": _ready(pod, status.conditions, all_ready), "ContainersReady": all_ready}
    return _with_conditions(status, pod.generation, told)


def terminate_pod_status(pod: Pod, status: PodStatus, told: PodStatus) -> PodStatus:
    """Return the last status of a pod: whatever never ended is counted as failed.

    Whether it was initialized is judged by what the API server said of it last (`told`).

    Source: status_manager.go, TerminatePod, hasPodInitialized, initializedContainers.
    """
    containers = status.containers
    if not pod.spec.init_containers or _was_initialized(pod, told):
        containers = tuple(_ended(each) for each in containers)
    inits = status.init_containers
    begun = len(inits)
    while begun > 1 and not _was_started(inits[begun - 1]):
        begun -= 1
    keeps_phase = status.phase in TERMINAL_PHASES or isinstance(pod, StaticPod)
    return status._replace(
        phase=status.phase if keeps_phase else "Failed",
        containers=containers,
        init_containers=(*map(_ended, inits[:begun]), *inits[begun:]),
    )


def _was_started(status: ContainerStatus) -> bool:
    return not isinstance(status.state, WaitingState) or status.last_state is not None


def _was_initialized(pod: Pod, status: PodStatus) -> bool:
    if any(_was_started(each) for each in status.containers):
        return True
    if not status.init_containers:
        return False
    last = status.init_containers[-1]
    if is_sidecar(pod.spec.init_containers[-1]):
        return isinstance(last.state, RunningState) and last.started
    ends = (last.last_state, last.state)
    return any(isinstance(each, TerminatedState) and not each.exit_code for each in ends)


def _ended(status: ContainerStatus) -> ContainerStatus:
    if isinstance(status.state, TerminatedState):
        return status
    message = "The container could not be located when the pod was terminated"
    state = TerminatedState(KILLED_EXIT_CODE, STATUS_UNKNOWN, message, 0, 0, "")
    return status._replace(state=state)


RESTARTING_ALL = "RestartingAllContainers"


def pod_phase(
    pod: Pod,
    containers: tuple[ContainerStatus, ...],
    inits: tuple[ContainerStatus, ...],
    *,
    is_terminal: bool,
    has_run: bool,
) -> str:
    """Return the phase; `has_run`: a regular container was started in this sandbox."""
    failed, pending, unstarted, waits, runs = _count_inits(pod, inits)
    if failed:
        return "Failed"
    running, waiting, stopped, final, succeeded = _count(pod, containers)
    if pending or (unstarted and not has_run) or waiting or waits:
        return "Pending"
    if running or runs:
        return "Running"
    if not stopped:
        return "Pending"
    ends = is_terminal and not isinstance(pod, StaticPod)  # upstream's TODO(#116484)
    if not ends and stopped != final:
        return "Running"  # at least one will be restarted
    return "Succeeded" if stopped == succeeded else "Failed"


def _count_inits(pod: Pod, inits: Iterable[ContainerStatus]) -> tuple[int, int, int, int, int]:
    """Count the regular ones that failed for good, and that have not ended.

    And the sidecars that have not started, that never ran, and that run.
    """
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
    return failed, pending, unstarted, waiting, running


def _count(pod: Pod, containers: Iterable[ContainerStatus]) -> tuple[int, int, int, int, int]:
    """Count those that run, wait, have stopped, stopped for good, and stopped well."""
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
    return running, waiting, stopped, final, succeeded


def _restarts(spec: ContainerSpec, pod: Pod, ended: TerminatedState) -> bool:
    return ended.reason == RESTARTING_ALL or should_restart(spec, pod, ended.exit_code)


RESIZES_MAX = 256
SHARES_MIN_MILLI = 2
"""What cpu.shares of 2 are read as, which a container without a request has (MinShares)."""
QUOTA_MIN_MILLI = 10  # a shorter quota than 1 ms of 100 there is not (MinMilliCPULimit)


def resources_shown(
    pod: Pod, in_cgroup: PodSpec, old: PodStatus, *, keeps_memory: bool = True
) -> bytes:
    """Return the resources of a pod as JSON; `in_cgroup` is the spec that its cgroup is by."""
    phase, shown = pod.status.phase, old.resources_json
    asked = pod.spec.resources_json
    # A worker goes on with the pod as it was synced last: the end is not in it yet.
    has_run = phase == "Running" or (
        phase in TERMINAL_PHASES and shown and (shown != asked or asked == pod.spec.running_json)
    )
    if not has_run:  # the API's phase counts, not the one just made
        return asked
    if old.phase != "Running":
        return in_cgroup.ended_json
    is_settled = shown in {in_cgroup.running_json, in_cgroup.resources_json, b""}
    if is_settled and (keeps_memory or in_cgroup is pod.spec):
        return in_cgroup.running_json
    given = b"" if keeps_memory else pod.spec.running_json
    return _kept(in_cgroup.running_json, in_cgroup.ended_json, shown or b"{}", given)


@lru_cache(maxsize=RESIZES_MAX)
def _kept(running: bytes, ended: bytes, shown: bytes, given: bytes) -> bytes:
    """Return the resources after a resize. Source: preserveOldResourcesValue."""
    new, cgroup, old = (amounts(each) for each in (running, ended, shown))
    limits, requests = new["limits"], new["requests"]
    for name in limits.keys() - cgroup["limits"]:
        limits[name] = old["limits"].get(name)
    memory_of = amounts(given) if given else old
    requests["memory"] = memory_of["requests"].get("memory", requests.get("memory"))
    kinds = {"limits": limits, "requests": requests}
    return rendered(
        {kind: {k: v for k, v in each.items() if v is not None} for kind, each in kinds.items()}
    )


@lru_cache(maxsize=RESIZES_MAX)
def container_resources_shown(allocated: bytes, actuated: bytes) -> bytes:
    """Return what is said of a running container that has not all it was given yet, as JSON.

    What it was given, but for what its cgroup can be asked: so a limit that it never had is said
    at once, and one that only changes when it is applied.
    Source: pkg/kubelet/kubelet_pods.go, convertContainerStatusResources;
    kuberuntime_container.go, toKubeContainerStatus.
    """
    if allocated == actuated:
        return allocated
    told, had = orjson.loads(allocated), amounts(actuated)
    limits, requests = had["limits"], had["requests"]
    if "limits" in told:
        _tell_cpu(told["limits"], limits.get("cpu"), QUOTA_MIN_MILLI)
        if "memory" in limits:
            told["limits"]["memory"] = limits["memory"]
    if "requests" in told:
        shares = requests.get("cpu") or limits.get("cpu") or f"{SHARES_MIN_MILLI}m"
        _tell_cpu(told["requests"], shares, SHARES_MIN_MILLI)
        if "memory" in requests:
            told["requests"]["memory"] = requests["memory"]
    return bytes(orjson.dumps(told, option=orjson.OPT_SORT_KEYS))


def _tell_cpu(told: dict[str, Any], had: str | None, least_milli: int) -> None:
    """Say of CPU what a container has; up to the least that there is, what it was given."""
    if had is None:
        return
    if parse_quantity(had).milli <= least_milli:
        if parse_quantity(told.get("cpu", "0")).milli <= least_milli:
            return
        had = f"{least_milli}m"
    told["cpu"] = had


def deadline_ns(pod: Pod, status: PodStatus, wall_offset_ns: int) -> int:
    """Return when a pod has been active for too long, 0 for never or not known yet."""
    if not pod.spec.active_deadline_s or not status.start_time_s:
        return 0
    return (status.start_time_s + pod.spec.active_deadline_s) * NS_PER_S - wall_offset_ns


def is_past_deadline(pod: Pod, status: PodStatus, now_ns: int, wall_offset_ns: int) -> bool:
    """Return whether a pod has been active for too long. Source: pastActiveDeadline."""
    due_ns = deadline_ns(pod, status, wall_offset_ns)
    return due_ns != 0 and now_ns >= due_ns
