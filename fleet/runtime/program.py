"""What a container's process does: the one interface by which anything learns of it.

    declared (a PodBehavior, annotations) -> a plug-in's Program -> its command -> by role

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
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from fleet.k8s.objects import ServiceView
from fleet.k8s.pods import ContainerSpec, Pod, PodUid, ProbeSpec, TokenSource
from fleet.k8s.streams import Output
from fleet.profile.container_behavior import LogBehavior, ProbeBehavior
from fleet.profile.distribution import Distribution
from fleet.profile.kubelet_configuration import DNSSettings
from fleet.profile.pod_behavior import RunTimes
from fleet.runtime.files import FileChange, NodeFiles

TERM_EXIT_CODE = 143
ALWAYS = "Always"


class Sources:
    """What a kubelet knows of the objects that pods refer to; here nothing."""

    __slots__ = ()

    def texts(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:  # noqa: ARG002
        """Return what a ConfigMap or Secret holds, None if that is unknown."""
        return None

    def token(self, uid: PodUid, source: TokenSource) -> str:  # noqa: ARG002
        """Return the token of a pod that a volume shows, "" if there is none."""
        return ""

    @property
    def services(self) -> Mapping[tuple[str, str], ServiceView]:
        """Return the Services of the cluster, by namespace and name."""
        return {}

    def allocatable(self, resource: str) -> str:  # noqa: ARG002
        """Return what the node has of a resource for its pods, "" if that is unknown."""
        return ""

    @property
    def dns(self) -> DNSSettings:
        """Return what the DNS settings of pods are made of."""
        return DNSSettings()


NO_SOURCES = Sources()


class Process(NamedTuple):
    """One process of a container: its own, or a command that somebody runs in it."""

    pod: Pod
    spec: ContainerSpec
    attempt: int = 0  # how many containers of this name were there before
    start_ns: int = 0
    start_wall_ns: int = 0
    pod_ips: str = ""
    host_ips: str = ""
    draw: float = 0.0  # of [0, 1), for random numbers
    sources: Sources = NO_SOURCES
    files: NodeFiles | None = None  # of the node, if somebody wrote any


class Written(NamedTuple):
    """A piece of output: when, where to ("" for the log), what, and whether to stderr."""

    after_ns: int
    path: str
    text: str
    is_error: bool = False


class Run(NamedTuple):
    """What a process does by itself. `run_ns` is None when it runs until it is stopped.

    With `unknown_ns` it does so only as far as anybody knows: what it does from then on is unknown,
    and it behaves as its role asks.
    """

    run_ns: int | None
    exit_code: int = 0
    written: tuple[Written, ...] = ()
    changes: tuple[FileChange, ...] = ()
    error: str = ""  # why it costs more than fleet spends on a command
    unknown_ns: int | None = None
    ends_unknown: bool = False  # the last command of the script is unknown
    traps: bool = False  # it has a handler for SIGTERM
    ignores_term: bool = False  # `trap '' TERM`

    def text(self, path: str, until_ns: int | None = None, *, errors: bool | None = None) -> str:
        """Return what was written to a path, "" for the log, within a time from the start.

        Of the log all, or only what went to stderr or did not.

        Bytes that are no UTF-8 become U+FFFD, as where Go writes JSON.
        """
        text = "".join(
            each.text
            for each in self.written
            if each.path == path
            and (until_ns is None or each.after_ns <= until_ns)
            and errors in {None, each.is_error}
        )
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


UNKNOWN = Run(None, unknown_ns=0)  # what is known of a program that is not understood


def says(stdout: str = "", *, stderr: str = "", exit_code: int = 0, after_ns: int = 0) -> Run:
    """Return the run of a command that says something and ends."""
    said = (Written(after_ns, "", stdout), Written(after_ns, "", stderr, is_error=True))
    return Run(after_ns, exit_code, tuple(each for each in said if each.text))


class HttpReply(NamedTuple):
    """What a program answers to a request on a port."""

    code: int = 200
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"


class Steps(Protocol):
    """A process that is followed for its log: it is run again from its start."""

    written: list[Written]  # and not taken yet, as the next
    changes: list[FileChange]
    end_ns: int | None  # when it ended, since its start; None while it runs
    is_lost: bool  # what it does next is unknown, or nothing

    @property
    def clock_ns(self) -> int:
        """How far it came."""

    @property
    def status(self) -> int:
        """The exit code, once it ended."""

    def advance(self, until_ns: int, rounds: int) -> bool:
        """Run up to an instant, at most so many rounds; return whether it was reached."""


class Session(Protocol):
    """A command that somebody runs in a container, and talks to."""

    changes: list[FileChange]  # of files, since somebody looked; they count from the start
    start_ns: int

    def write(self, data: bytes, now_ns: int) -> int:
        """Take input; return how many bytes of it."""

    def close_stdin(self, now_ns: int) -> None:
        """Learn that the input is complete."""

    def close(self, now_ns: int) -> None:
        """End: the client went away."""

    def advance(self, limit: int, now_ns: int) -> Output:
        """Return at most so many bytes of what was said up to an instant."""


class Program:
    """What the process of one container does: here, as its role in the pod asks.

    A plug-in overrides what it knows better. None says that it does not know: then the next source
    answers. Nothing may block, wait or keep what belongs to one container.
    """

    __slots__ = ()
    is_server = False  # it serves in a Job's pod, too: it runs until it is stopped, and ends with 0
    heeds_term = False  # SIGTERM ends it at once, though all of its run is known
    reads_files = False  # what it does depends on files, variables or the instant

    def run(self, process: Process, term_ns: int | None = None) -> Run:  # noqa: ARG002
        """Return what the process does by itself; `term_ns`: when SIGTERM comes to its handler."""
        return UNKNOWN

    def log(self, process: Process, term_ns: int | None = None) -> LogBehavior | Steps:  # noqa: ARG002
        """Return what it logs: here one line, at its start."""
        pod, spec = process.pod, process.spec
        text = f"{spec.image} is started as container {spec.name} of {pod.namespace}/{pod.name}"
        return LogBehavior(template=text, max_lines=1)

    def exec(self, process: Process, words: tuple[str, ...]) -> Run | None:  # noqa: ARG002
        """Return what a command does in the container: of kubectl exec, a probe, a hook.

        The process is that command's: it starts when the command does.
        """
        return None

    def session(
        self,
        process: Process,  # noqa: ARG002
        words: tuple[str, ...],  # noqa: ARG002
        *,
        stdin: bool,  # noqa: ARG002
        tty: bool,  # noqa: ARG002
    ) -> Session | None:
        """Return a command that reads its input, or answers piece by piece."""
        return None

    def attached(self, process: Process, *, tty: bool) -> Session | None:  # noqa: ARG002
        """Return the container's own process where it reads its stdin."""
        return None

    def probe(self, pod: Pod, spec: ContainerSpec, probe: ProbeSpec) -> ProbeBehavior | None:  # noqa: ARG002
        """Return what a probe finds over the life of a container."""
        return None

    def http(self, process: Process, port: int, path: str) -> HttpReply | None:  # noqa: ARG002
        """Return the answer to a GET on a port."""
        return None


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


def role_of(pod: Pod, spec: ContainerSpec, program: Program) -> Role:
    """Return the role of a container in its pod."""
    if is_restarted(pod, spec):
        return Role.SERVER
    if _is_of(pod.spec.init_containers, spec):
        return Role.INIT
    if not pod.is_controlled or _is_of(pod.spec.ephemeral_containers, spec):
        return Role.SERVER
    return Role.SERVER if program.is_server else Role.BATCH


def is_restarted(pod: Pod, spec: ContainerSpec) -> bool:
    """Return whether a container that ends is always restarted, as a server or a sidecar is."""
    if pod.spec.init_containers and _is_of(pod.spec.init_containers, spec):
        return spec.restart_policy == ALWAYS
    if _is_of(pod.spec.ephemeral_containers, spec):
        return False
    return (spec.restart_policy or pod.spec.restart_policy) == ALWAYS


def unknown_from(pod: Pod, spec: ContainerSpec, run: Run) -> int | None:
    """Return since when, from its start, a container runs an unknown program; None: it does not.

    The last command of a script that is always restarted is its server, `exec` or not.
    """
    if run.unknown_ns is None and run.ends_unknown and is_restarted(pod, spec):
        return run.run_ns
    return run.unknown_ns


def natural_end(
    pod: Pod, spec: ContainerSpec, program: Program, run: Run, run_times: RunTimes, u: float
) -> End | None:
    """Return how a process of which nothing is declared ends by itself, None if it does not."""
    unknown_ns = unknown_from(pod, spec, run)
    if unknown_ns is None:
        return None if run.run_ns is None else End(run.run_ns, run.exit_code)
    run_time = role_of(pod, spec, program).run_time(run_times)
    return None if run_time is None else End(unknown_ns + run_time.sample(u), 0)


def heeds_term(pod: Pod, spec: ContainerSpec, program: Program, run: Run, after_ns: int) -> bool:
    """Return whether SIGTERM at an age of its container ends a process though no `trap` says so."""
    unknown_ns = unknown_from(pod, spec, run)
    return program.heeds_term or (unknown_ns is not None and unknown_ns <= after_ns)


def is_killed_by_term(pod: Pod, run: Run) -> bool:
    """Return whether SIGTERM kills an understood process, as it does any but PID 1."""
    return pod.spec.shares_pids and not (run.traps or run.ignores_term)


def term_exit_code(pod: Pod, spec: ContainerSpec, program: Program) -> int:
    """Return with which code a process ends that heeds SIGTERM.

    What is not restarted did not do its work: its pod is Failed, and a Job replaces it.
    """
    if is_restarted(pod, spec) or _is_of(pod.spec.ephemeral_containers, spec):
        return 0
    return 0 if program.is_server or program.heeds_term else TERM_EXIT_CODE


def _is_of(specs: tuple[ContainerSpec, ...], spec: ContainerSpec) -> bool:
    return any(each.name == spec.name for each in specs)
