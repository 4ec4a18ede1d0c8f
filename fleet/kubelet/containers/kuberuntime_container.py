"""The edges of a container's life: its hooks, and the pace at which containers are stopped.

    Killing -> preStop -> wait for one's turn -> SIGTERM -> SIGKILL at the end of the grace period

All of it is computed when the kill begins; only a preStop hook that fails has to be reported at
its time. Whole seconds are taken off the grace period, as upstream counts them.
Source: kuberuntime_container.go, killContainer, executePreStopHook, killContainersWithSyncResult;
kuberuntime_termination_order.go.
"""

from collections.abc import Iterable
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.kubelet.containers.hooks import HookPlace, HookRun, run_hook
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.pod_worker import ContainerKill, KillReason, Survivor
from fleet.kubelet.turn import Turn
from fleet.profile.container_behavior import HANGS
from fleet.profile.pod_behavior import PodBehavior
from fleet.runtime.containers import Container, RunState
from fleet.runtime.runtime import Runtime

GRACE_MIN_S = 2  # minimumGracePeriodInSeconds
"""minimumGracePeriodInSeconds: what SIGTERM always gets."""
_STREAM_POST_START = 0x9057
_STREAM_PRE_STOP = 0x94E5


class Stops(NamedTuple):
    """The end of some containers."""

    end_ns: int
    failed_hooks: tuple[tuple[int, str], ...] = ()  # when, and of which container
    survivors: tuple[Survivor, ...] = ()


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


def stop_containers(
    runtime: Runtime,
    pod: Pod,
    containers: Iterable[Container],
    grace_s: int,
    turn: Turn,
) -> Stops:
    """Stop containers of a pod: sidecars wait for the others, and end last started first."""
    now_ns, behavior = turn.now_ns, turn.behavior(pod)
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
    return Stops(end_ns, tuple(sorted(failed)), tuple(survivors))


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
