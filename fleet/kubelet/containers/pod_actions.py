"""What a sync has to do with the containers of a pod: which to kill, which to start now.

Init containers run one after another; a sidecar among them only has to be started. Regular
containers follow together. What ended starts again as restart rules and policies say.
Source: kuberuntime_manager.go, computePodActions, getContainersToReset; kuberuntime_container.go,
computeInitContainerActions; pkg/kubelet/container/helpers.go, ShouldContainerBeRestarted,
ShouldAllContainersRestart; pkg/api/v1/pod/util.go, ContainerShouldRestart.
Differs: no container is ever in an unknown state.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from fleet.k8s.pods import (
    RESTART,
    RESTART_ALL,
    ContainerSpec,
    Pod,
    PodStatus,
    PodUid,
    TerminatedState,
    matching_action,
)
from fleet.kubelet.pod_worker import ContainerKill, KillReason
from fleet.runtime.containers import Container, RunState, Sandbox

ALL_RESTARTING = "AllContainersRestarting"


class PodActions(NamedTuple):
    """What a sync has to do with a pod whose sandbox is ready. Source: podActions."""

    start: tuple[ContainerSpec, ...] = ()  # ephemeral, init, then regular ones
    kill: tuple[ContainerKill, ...] = ()
    kill_pod: bool = False  # stop what still runs: nothing else ever will


class ProbeResults(Protocol):
    """What compute_pod_actions asks the probe manager about a container that runs."""

    def failed_probe(self, uid: PodUid, container: Container) -> KillReason | None:
        """Return which probe wants the container killed."""

    def is_started(self, uid: PodUid, spec: ContainerSpec, container: Container) -> bool:
        """Return whether the startup probe, if there is one, has succeeded."""


_PROBES = {KillReason.STARTUP_PROBE: "startup", KillReason.LIVENESS_PROBE: "liveness"}


def compute_pod_actions(
    pod: Pod, sandbox: Sandbox, probes: ProbeResults | None = None, *, counts_ended: bool = True
) -> PodActions:
    """Return what to kill and what to start now. A sync that began before a deletion ends.

    `counts_ended`: a pod was initialized if one of its regular containers has ended.
    """
    start = [spec for spec in pod.spec.ephemeral_containers if sandbox.find(spec.name) is None]
    kill: list[ContainerKill] = []
    if pod.spec.init_containers:
        inits = _InitActions(pod, sandbox, probes, counts_ended=counts_ended)
        if inits.kill_pod:
            return PodActions(tuple(start), kill_pod=True)
        kill += inits.kill
        if not inits.initialized:
            return PodActions((*start, *inits.start), tuple(kill))
    kept = 0
    wanted = []
    for spec in pod.spec.containers:
        container = sandbox.find(spec.name)
        if container is None or container.state is not RunState.RUNNING:
            if is_wanted(spec, pod, container):
                wanted.append(spec)
            continue
        failed = probes.failed_probe(pod.uid, container) if probes is not None else None
        if is_changed(spec, container):  # whatever its restart policy says
            failed, restart = KillReason.UNKNOWN, True
            message = f"Container {spec.name} definition changed"
        elif failed is not None:
            restart = restarts_when_killed(spec, pod)
            message = f"Container {spec.name} failed {_PROBES[failed]} probe"
        else:
            kept += 1
            continue
        if restart:
            message += ", will be restarted"
            wanted.append(spec)
        kill.append(ContainerKill(spec.name, message, failed))
    if not kept and not wanted:
        return PodActions(tuple(start), kill_pod=sandbox.is_running())
    if pod.spec.init_containers:
        start += inits.start
    return PodActions((*start, *wanted), tuple(kill))


class _InitActions:
    """Source: computeInitContainerActions. The last one that ever started decides."""

    __slots__ = ("initialized", "kill", "kill_pod", "start")

    def __init__(
        self, pod: Pod, sandbox: Sandbox, probes: ProbeResults | None, *, counts_ended: bool
    ) -> None:
        specs = pod.spec.init_containers
        self.start: list[ContainerSpec] = []
        self.kill: list[ContainerKill] = []
        self.kill_pod = False
        self.initialized = any(_runs(sandbox.find(spec.name)) for spec in pod.spec.containers)
        self.initialized |= counts_ended and sandbox.has_begun(pod.spec.containers)
        before = self.initialized  # the one that is looked at was initialized before
        for at in range(len(specs) - 1, -1, -1):
            spec = specs[at]
            container = sandbox.find(spec.name)
            if container is None:
                if before and is_sidecar(spec):
                    self.start.append(spec)
                continue
            if before and not is_sidecar(spec):
                continue
            if container.state is RunState.RUNNING:
                if is_sidecar(spec):
                    self._on_sidecar(pod, at, container, probes, first=not before)
            elif is_sidecar(spec):
                self.start.append(spec)
            elif container.state is RunState.EXITED and not container.exit_code:
                self._go_on(pod, at)
            elif is_wanted(spec, pod, container):
                self.start.append(spec)
            else:
                self.kill_pod = True
                return
            before = True
        if not before:
            self.start.append(specs[0])
        self.start.reverse()

    def _go_on(self, pod: Pod, at: int) -> None:
        """Start the next one: this one is initialized for the first time."""
        if at == len(pod.spec.init_containers) - 1:
            self.initialized = True
        else:
            self.start.append(pod.spec.init_containers[at + 1])

    def _on_sidecar(
        self, pod: Pod, at: int, container: Container, probes: ProbeResults | None, *, first: bool
    ) -> None:
        spec = pod.spec.init_containers[at]
        failed = probes.failed_probe(pod.uid, container) if probes is not None else None
        is_started = probes is None or probes.is_started(pod.uid, spec, container)
        if is_started:
            if first:
                self._go_on(pod, at)
            elif at == len(pod.spec.init_containers) - 1:
                self.initialized = True
        if is_started and is_changed(spec, container):
            failed = KillReason.UNKNOWN
            message = f"Init container {spec.name} definition changed"
        elif failed is not None:
            message = f"Init container {spec.name} failed {_PROBES[failed]} probe"
        else:
            return
        self.kill.append(ContainerKill(spec.name, message, failed))
        self.start.append(spec)


def starts_anew(pod: Pod, sandbox: Sandbox) -> tuple[ContainerSpec, ...]:
    """Return what another sandbox begins with, () if the pod gets none: this one is not ready.

    What runs now counts, whatever its end will be. Source: computePodActions, containersToStart.
    """
    if pod.spec.restart_policy == "Never" and (sandbox.containers or sandbox.attempts):
        return ()
    found = [(spec, sandbox.find(spec.name)) for spec in pod.spec.containers]
    left = tuple(
        spec
        for spec, container in found
        if (spec.restart_policy or pod.spec.restart_policy) != "OnFailure"
        or container is None
        or container.state is not RunState.EXITED
        or container.exit_code
    )
    if not left and any(container is not None for _, container in found):
        return ()
    return pod.spec.init_containers[:1] or left


def is_changed(spec: ContainerSpec, container: Container) -> bool:
    """Return whether a container was created for another image than its spec has by now.

    Source: kuberuntime_manager.go, containerChanged; pkg/kubelet/container/helpers.go,
    HashContainer, which hashes name and image.
    """
    return container.image != spec.image


def is_sidecar(spec: ContainerSpec) -> bool:
    """Return whether an init container keeps running alongside the others."""
    return spec.restart_policy == "Always"


def should_restart(spec: ContainerSpec, pod: Pod, exit_code: int) -> bool:
    """Return whether a container that ended shall run again. Source: ContainerShouldRestart."""
    if spec.restart_policy:
        rules = spec.life.restart_rules
        if rules and matching_action(rules, exit_code) in {RESTART, RESTART_ALL}:
            return True
    policy = spec.restart_policy or pod.spec.restart_policy
    if policy == "Never":
        return False
    return policy == "Always" or exit_code != 0


def restarts_when_killed(spec: ContainerSpec, pod: Pod) -> bool:
    """Return whether a container runs again after a probe had it killed; rules do not count."""
    return (spec.restart_policy or pod.spec.restart_policy) != "Never"


def is_wanted(spec: ContainerSpec, pod: Pod, container: Container | None) -> bool:
    """Return whether a container should be started. Source: ShouldContainerBeRestarted."""
    if container is None:
        return True
    if container.state is not RunState.EXITED:
        return container.state is not RunState.RUNNING
    return should_restart(spec, pod, container.exit_code)


def containers_to_reset(pod: Pod, sandbox: Sandbox) -> tuple[ContainerKill, ...]:
    """Return what runs, to be killed before all containers are removed."""
    names = [spec.name for spec in (*pod.spec.containers, *pod.spec.init_containers)]
    return tuple(
        ContainerKill(name, "killing", KillReason.RESTART_ALL)
        for name in names
        if _runs(sandbox.find(name))
    )


def could_restart_all(pod: Pod) -> bool:
    """Return whether a rule may restart the whole pod. Source: AllContainersCouldRestart."""
    for specs in (pod.spec.init_containers, pod.spec.containers):
        for spec in specs:
            rules = spec.life.restart_rules
            if rules and any(rule.action == RESTART_ALL for rule in rules):
                return True
    return False


def should_restart_all(pod: Pod, sandbox: Sandbox | None, old: PodStatus) -> bool:
    """Return whether a container ended in a way that restarts them all.

    Source: ShouldAllContainersRestart.
    """
    if any(each.type == ALL_RESTARTING and each.status == "True" for each in old.conditions):
        return True
    return any(
        matching_action(spec.life.restart_rules, code) == RESTART_ALL
        for spec, code in _exits(pod, sandbox, old)
    )


def _exits(
    pod: Pod, sandbox: Sandbox | None, old: PodStatus
) -> Iterator[tuple[ContainerSpec, int]]:
    """Yield the containers with rules that ended, and how, as runtime and status know them."""
    shown = {each.name: each.state for each in (*old.init_containers, *old.containers)}
    for spec in (*pod.spec.init_containers, *pod.spec.containers):
        if not spec.life.restart_rules:
            continue
        container = sandbox.find(spec.name) if sandbox is not None else None
        if container is None or container.state is not RunState.EXITED:
            continue
        yield spec, container.exit_code
        state = shown.get(spec.name)
        if isinstance(state, TerminatedState):
            yield spec, state.exit_code


def _runs(container: Container | None) -> bool:
    return container is not None and container.state is not RunState.EXITED
