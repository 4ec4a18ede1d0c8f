"""Which containers of a pod should be started now.

Init containers run one after another; a sidecar among them only has to be running. Regular
containers follow together. What ended starts again as its restart policy says.
Source: kuberuntime_manager.go, computePodActions; kuberuntime_container.go,
computeInitContainerActions; pkg/api/v1/pod/util.go, ContainerShouldRestart.
Differs: a container that runs is never killed to be changed; restart rules are not read.
"""

from typing import NamedTuple

from fleet.objects import ContainerSpec, Pod
from fleet.runtime import Container, RunState, Sandbox


class PodActions(NamedTuple):
    """What a sync has to do with a pod whose sandbox is ready. Source: podActions."""

    start: tuple[ContainerSpec, ...] = ()  # ephemeral, init, then regular ones
    kill_pod: bool = False  # stop what still runs: nothing else ever will


def compute_pod_actions(pod: Pod, sandbox: Sandbox) -> PodActions:
    """Return what to kill and what to start now."""
    start = containers_to_start(pod, sandbox)
    if not start and is_done_but_for_sidecars(pod, sandbox):
        return PodActions(kill_pod=True)
    return PodActions(start)


def is_sidecar(spec: ContainerSpec) -> bool:
    """Return whether an init container keeps running beside the others."""
    return spec.restart_policy == "Always"


def should_restart(spec: ContainerSpec, pod: Pod, exit_code: int) -> bool:
    """Return whether a container that ended shall run again."""
    policy = spec.restart_policy or pod.restart_policy
    if policy == "Never":
        return False
    return policy == "Always" or exit_code != 0


def containers_to_start(pod: Pod, sandbox: Sandbox) -> tuple[ContainerSpec, ...]:
    """Return the containers to start, in order. A sync that began before a deletion ends."""
    found = [spec for spec in pod.ephemeral_containers if sandbox.find(spec.name) is None]
    initialized = True
    if pod.init_containers:
        inits, initialized = _init_containers(pod, sandbox)
        found += inits
    if initialized:
        found += [spec for spec in pod.containers if _is_wanted(spec, pod, sandbox)]
    return tuple(found)


def is_done_but_for_sidecars(pod: Pod, sandbox: Sandbox) -> bool:
    """Return whether only sidecars still run, and nothing will: then they are to be stopped."""
    return sandbox.is_running() and not any(
        _runs(sandbox.find(spec.name)) or _is_wanted(spec, pod, sandbox) for spec in pod.containers
    )


def _is_wanted(spec: ContainerSpec, pod: Pod, sandbox: Sandbox) -> bool:
    """Return whether a container that does not run should."""
    container = sandbox.find(spec.name)
    if container is None:
        return True
    if container.state is RunState.RUNNING:
        return False
    return should_restart(spec, pod, container.exit_code)


def _init_containers(pod: Pod, sandbox: Sandbox) -> tuple[list[ContainerSpec], bool]:
    """Return the init containers to start, and whether the regular ones may run."""
    specs = pod.init_containers
    if any(_runs(sandbox.find(spec.name)) for spec in pod.containers):
        lost = [s for s in specs if is_sidecar(s) and not _runs(sandbox.find(s.name))]
        return lost, True
    # The last one that ever started decides; sidecars before it are kept running.
    last = len(specs) - 1
    while last >= 0 and sandbox.find(specs[last].name) is None:
        last -= 1
    if last < 0:
        return [specs[0]], False
    sidecars = [s for s in specs[:last] if is_sidecar(s) and not _runs(sandbox.find(s.name))]
    if not _is_done(specs[last], sandbox):
        again = _is_wanted(specs[last], pod, sandbox)
        return [*sidecars, specs[last]] if again else sidecars, False
    if last + 1 < len(specs):
        return [*sidecars, specs[last + 1]], False
    return sidecars, True


def _is_done(spec: ContainerSpec, sandbox: Sandbox) -> bool:
    """Return whether the next init container may start: this one succeeded, or is a sidecar."""
    container = sandbox.find(spec.name)
    if container is None or container.state is RunState.RUNNING:
        return container is not None and is_sidecar(spec)
    return not container.exit_code and not is_sidecar(spec)


def _runs(container: Container | None) -> bool:
    return container is not None and container.state is RunState.RUNNING
