"""The process of a container, run again for somebody who looks: its log."""

from fleet.clock import NS_PER_S
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.profile.container_behavior import LogBehavior
from fleet.profile.pod_behavior import PodBehavior
from fleet.runtime.command import command_of, process_of
from fleet.runtime.container_log import DeclaredLines, Lines, ScriptLines
from fleet.runtime.files import ContainerFiles
from fleet.runtime.known_servers import server_of
from fleet.runtime.runtime import Runtime
from fleet.runtime.server_log import ServerLines
from fleet.runtime.servers import ServerRecord
from fleet.runtime.shell.process import Process, is_understood
from fleet.runtime.shell.surroundings import Surroundings
from fleet.runtime.surroundings import NO_SOURCES, Sources

_STREAM_LOG = 0x106


def start_of(started_s: int, wall_offset_ns: int) -> int:
    """Return when a container started that says so by a second of the wall clock."""
    return started_s * NS_PER_S - wall_offset_ns


def _greeting(pod: Pod, spec: ContainerSpec) -> LogBehavior | None:
    """Return what a container says of which nobody knows what it does: one line, at its start."""
    if is_understood(command_of(spec)):
        return None
    text = f"{spec.image} is started as container {spec.name} of {pod.namespace}/{pod.name}"
    return LogBehavior(template=text, max_lines=1)


def log_lines(
    runtime: Runtime,
    pod: Pod,
    spec: ContainerSpec,
    behavior: PodBehavior,
    attempt: int,
    started_s: int,
    begun_ns: int,
    sources: Sources = NO_SOURCES,
) -> Lines:
    """Return the lines of one run of a container that started at a second of the wall clock.

    `begun_ns` is the instant of which it finds the files of others.
    """
    declared = behavior.container(spec.name).logs
    server = server_of(spec)
    if declared is None and server is not None:
        record = runtime.files.records.known(pod.uid, spec.name, attempt)
        wall_ns = started_s * NS_PER_S
        return ServerLines(server.greeting, record or ServerRecord(), wall_ns)
    declared = declared or _greeting(pod, spec)
    start_wall_ns = started_s * NS_PER_S
    if declared is not None:
        values = {
            "pod": pod.name,
            "namespace": pod.namespace,
            "container": spec.name,
            "node": pod.node_name,
        }
        seed = int(runtime.uniform(_STREAM_LOG, pod.uid, spec.name, attempt) * 2**53)
        return DeclaredLines(declared, start_wall_ns, seed, values)

    sandbox = runtime.sandbox(pod.uid)
    container = None if sandbox is None else sandbox.find(spec.name)
    term_ns: int | None = None
    if container is not None and container.attempt == attempt and container.term_ns:
        term_ns = container.term_ns - begun_ns

    def process() -> Process:
        around = runtime.around(pod, spec, attempt, begun_ns, started_s, sources)
        if around is None:
            around = Surroundings({}, None, 0.0, start_wall_ns)
        elif isinstance(around.files, ContainerFiles):
            around.files.as_run_again()
        return process_of(command_of(spec), around._replace(term_ns=term_ns))

    return ScriptLines(process)
