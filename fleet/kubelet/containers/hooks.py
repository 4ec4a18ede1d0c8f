"""A hook as it goes: its command is run in the container, its request succeeds.

    declared -> as declared | exec -> in the container | httpGet, tcpSocket -> succeeds

A command that is not understood succeeds, too.
Source: pkg/kubelet/lifecycle/handlers.go, Run, runHTTPHandler, runSleepHandler.
Differs: nothing is sent, so that no request fails unless a PodBehavior says so.
"""

from typing import NamedTuple

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.pods import ContainerSpec, Hook, Pod
from fleet.kubelet.environment import Environment
from fleet.profile.container_behavior import HookBehavior
from fleet.runtime.containers import Container
from fleet.runtime.program import NO_SOURCES, Run, Sources
from fleet.runtime.programs import program_of, record, run_in
from fleet.runtime.runtime import Runtime

KILLED = 137
"""The code of a command that is over its budget."""
HOOK_NS = 10 * NS_PER_MS
"""What an exec or a request takes of which nothing is known."""
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
        what = f"command '{words}' exited with {code}: "
        error = f'Exec lifecycle hook ([{words}]) {who} {what}, message: ""'
    elif hook.kind == "sleep":
        what = "container terminated before sleep hook finished"
        error = f"Sleep lifecycle hook ({hook.seconds}) {who} {what}"
    else:
        what = f'Get "http://{hook.path}": context deadline exceeded'
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
