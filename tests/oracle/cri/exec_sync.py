"""What a command finds that is run in a container: that of a probe, of a hook, or any other.

The behaviour of the pod decides, as it does for the virtual kubelet; where it says nothing, the
command does on the container's own files.
"""

import asyncio
from typing import NamedTuple

import grpc

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.pods import ProbeSpec
from fleet.kubelet.containers.prober import behavior_of
from fleet.profile.container_behavior import (
    ALWAYS_GOOD,
    FOREVER,
    HookBehavior,
    ProbeAnswer,
    ProbeAttempt,
    ProbeBehavior,
    ProbeKind,
    attempt,
)
from fleet.runtime.containers import RunState
from fleet.runtime.program import Process
from fleet.runtime.programs import probe_of, program_of, run_in
from oracle.cri.applications import EXEC, HOOKS, Asked
from oracle.cri.errors import CriError, unknown
from oracle.cri.machine import Machine
from oracle.cri.pods import Pods
from oracle.cri.records import CriContainer

HOOK_NS = 10 * NS_PER_MS
KILLED_EXIT_CODE = 137
NOT_RUNNING = "failed to exec in container: container is in CONTAINER_EXITED state"
_STREAM_FAILURE = 0x9B2E
_STREAM_LATENCY = 0x9B3E
_STREAM_HOOK = 0x9B4E


class Done(NamedTuple):
    """How a command ended."""

    exit_code: int
    output: bytes = b""


async def exec_sync(
    machine: Machine, pods: Pods, found: CriContainer, command: tuple[str, ...], timeout_s: int
) -> Done:
    """Run a command in a container. Raises CriError if it cannot be, or when its time is over."""
    if found.state is not RunState.RUNNING:
        raise unknown(NOT_RUNNING)
    takes_ns, done = _plan(machine, found, command)
    limit_ns = timeout_s * NS_PER_S if timeout_s else FOREVER
    ended = asyncio.ensure_future(pods.ended(found))
    try:
        await asyncio.wait((ended,), timeout=min(takes_ns, limit_ns) / NS_PER_S)
        if ended.done():
            return Done(KILLED_EXIT_CODE)
    finally:
        ended.cancel()
    if takes_ns >= limit_ns:
        text = (
            f"failed to exec in container: timeout {timeout_s}s exceeded: context deadline exceeded"
        )
        raise CriError(grpc.StatusCode.DEADLINE_EXCEEDED, text)
    if isinstance(done, CriError):
        raise done
    return done


def _plan(
    machine: Machine, found: CriContainer, command: tuple[str, ...]
) -> tuple[int, Done | CriError]:
    """Return how long a command takes, and how it ends."""
    asked = found.application.asked if found.application is not None else ()
    known = [each for each in asked if each.handler == EXEC and each.command == command]
    hooks = [each.kind for each in known if each.kind in HOOKS]
    if hooks:
        return _run_hook(machine, found, command, str(hooks[0]))
    behavior = probe_behavior(found, known)
    if behavior is ALWAYS_GOOD:
        program, probe = program_of(found.pod, found.spec), ProbeSpec(EXEC, command=command)
        behavior = probe_of(found.pod, found.spec, probe, program, found.declared)
    tried = try_probe(machine, found, behavior)
    output = tried.phase.output
    if tried.answer is ProbeAnswer.ERROR:
        return 0, unknown(output or NOT_RUNNING)
    if tried.answer is ProbeAnswer.TIMEOUT:
        return FOREVER, Done(KILLED_EXIT_CODE)
    return tried.took_ns, Done(0 if tried.answer.is_good else 1, output.encode())


def probe_behavior(found: CriContainer, asked: list[Asked]) -> ProbeBehavior:
    """Return what a request finds; of several probes that it may be of, one that is declared."""
    kinds = [each.kind for each in asked if isinstance(each.kind, ProbeKind)]
    behaviors = (behavior_of_probe(found, kind) for kind in kinds)
    return next((each for each in behaviors if each is not ALWAYS_GOOD), ALWAYS_GOOD)


def behavior_of_probe(found: CriContainer, kind: ProbeKind) -> ProbeBehavior:
    """Return what a probe of a container finds, by the rule that virtual kubelets go by."""
    spec = found.spec
    probe = (spec.startup_probe, spec.readiness_probe, spec.liveness_probe)[kind]
    if probe is None:
        return found.declared.probes.of(kind)
    return behavior_of(found.pod, spec, probe, kind, found.declared)


def age_ns(machine: Machine, found: CriContainer) -> int:
    """Return the age by which a behaviour goes: from the second in which the container started."""
    started_s = found.started_wall_ns // NS_PER_S
    return machine.wall_ns(machine.now_ns()) - started_s * NS_PER_S


def try_probe(machine: Machine, found: CriContainer, behavior: ProbeBehavior) -> ProbeAttempt:
    """Return how one attempt ends now; whoever asks has his own patience."""
    now_ns = machine.now_ns()
    phase, _ = behavior.at(age_ns(machine, found))
    failure, latency = (
        machine.draws.uniform(machine.node, stream, now_ns)
        for stream in (_STREAM_FAILURE, _STREAM_LATENCY)
    )
    return attempt(phase, FOREVER, failure, latency)


def _run_hook(
    machine: Machine, found: CriContainer, command: tuple[str, ...], name: str
) -> tuple[int, Done]:
    """Return how the command of a hook goes: as declared, else as it says itself."""
    declared = hook_behavior(found, name)
    program = program_of(found.pod, found.spec)
    run = run_in(Process(found.pod, found.spec), command, program, found.declared)
    takes_ns, code = HOOK_NS, 0
    if run.run_ns is None and run.unknown_ns is None:
        takes_ns = FOREVER
    elif run.run_ns is not None:
        takes_ns, code = run.run_ns or HOOK_NS, run.exit_code
    if declared.duration is not None:
        u = machine.draws.uniform(machine.node, _STREAM_HOOK, machine.now_ns())
        takes_ns = declared.duration.sample(u)
    return takes_ns, Done(code or int(declared.fails))


def hook_behavior(found: CriContainer, name: str) -> HookBehavior:
    """Return what is declared of a hook."""
    life = found.declared.life
    return life.post_start if name == HOOKS[0] else life.pre_stop
