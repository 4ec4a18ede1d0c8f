"""What a container's process does: when it ends and how, and what it makes of SIGTERM.

    declared (a PodBehavior, annotations) -> understood (its command) -> by role

Who declares nothing and runs what is not understood gets what its role asks for:

    role      who                                          ends by itself      SIGTERM
    INIT      an init container that is no sidecar         0, after 1 s        143
    BATCH     not restarted always, owned by a controller  0, after 5 s        143
    SERVER    any other, a sidecar too                     never               0; 143 if the pod is
                                                                               not restarted always

An understood process is PID 1: without a handler it ignores SIGTERM. Where processes are shared,
with the node or within the pod, it is not, and SIGTERM kills it.
Source: signal(7), pid_namespaces(7) for PID 1; pkg/apis/batch for who wants its pods to end.
"""

import enum
from typing import NamedTuple

from fleet.k8s.pods import ContainerSpec, Pod
from fleet.profile.distribution import Distribution
from fleet.profile.pod_behavior import RunTimes
from fleet.runtime.command import CommandRun, command_of
from fleet.runtime.known_servers import server_of
from fleet.runtime.shell.agnhost import is_agnhost

TERM_EXIT_CODE = 143
ALWAYS = "Always"


class Role(enum.Enum):
    """What a pod asks of a container, whatever its program is."""

    INIT = "init container"
    BATCH = "batch"
    SERVER = "server"

    def run_time(self, run_times: RunTimes) -> Distribution | None:
        """Return how long an unknown program runs, None if until it is stopped."""
        if self is Role.SERVER:
            return None
        return run_times.init_container if self is Role.INIT else run_times.batch


class End(NamedTuple):
    """How a process ends, and how long after the start of its container."""

    after_ns: int
    exit_code: int


def role_of(pod: Pod, spec: ContainerSpec) -> Role:
    """Return the role of a container in its pod."""
    if is_restarted(pod, spec):
        return Role.SERVER
    if _is_of(pod.spec.init_containers, spec):
        return Role.INIT
    if not pod.is_controlled or _is_of(pod.spec.ephemeral_containers, spec):
        return Role.SERVER
    return Role.BATCH if server_of(spec) is None else Role.SERVER


def is_restarted(pod: Pod, spec: ContainerSpec) -> bool:
    """Return whether a container that ends is always restarted, as a server or a sidecar is."""
    if pod.spec.init_containers and _is_of(pod.spec.init_containers, spec):
        return spec.restart_policy == ALWAYS
    if _is_of(pod.spec.ephemeral_containers, spec):
        return False
    return (spec.restart_policy or pod.spec.restart_policy) == ALWAYS


def unknown_from(pod: Pod, spec: ContainerSpec, run: CommandRun) -> int | None:
    """Return since when, from its start, a container runs an unknown program; None: it does not.

    The last command of a script that is always restarted is its server, `exec` or not.
    """
    if run.unknown_ns is None and run.ends_unknown and is_restarted(pod, spec):
        return run.run_ns
    return run.unknown_ns


def natural_end(
    pod: Pod, spec: ContainerSpec, run: CommandRun, run_times: RunTimes, u: float
) -> End | None:
    """Return how a process of which nothing is declared ends by itself, None if it does not."""
    unknown_ns = unknown_from(pod, spec, run)
    if unknown_ns is None:
        return None if run.run_ns is None else End(run.run_ns, run.exit_code)
    run_time = role_of(pod, spec).run_time(run_times)
    return None if run_time is None else End(unknown_ns + run_time.sample(u), 0)


def heeds_term(pod: Pod, spec: ContainerSpec, run: CommandRun, after_ns: int) -> bool:
    """Return whether SIGTERM at an age of its container ends a process though no `trap` says so."""
    unknown_ns = unknown_from(pod, spec, run)
    is_unknown = unknown_ns is not None and unknown_ns <= after_ns
    return is_unknown or is_agnhost(command_of(spec))


def is_killed_by_term(pod: Pod, run: CommandRun) -> bool:
    """Return whether SIGTERM kills an understood process, as it does any but PID 1."""
    return pod.spec.shares_pids and not (run.traps or run.ignores_term)


def term_exit_code(pod: Pod, spec: ContainerSpec) -> int:
    """Return with which code a process ends that heeds SIGTERM.

    What is not restarted did not do its work: its pod is Failed, and a Job replaces it.
    """
    if is_restarted(pod, spec) or _is_of(pod.spec.ephemeral_containers, spec):
        return 0
    is_server = server_of(spec) is not None or is_agnhost(command_of(spec))
    return 0 if is_server else TERM_EXIT_CODE


def _is_of(specs: tuple[ContainerSpec, ...], spec: ContainerSpec) -> bool:
    return any(each.name == spec.name for each in specs)
