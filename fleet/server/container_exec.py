"""Commands that somebody runs in a container, or that attach to the one that it runs.

What such a command writes the container's own script sees: its end is computed anew.
Source: pkg/kubelet/kubelet_pods.go, GetExec, GetAttach, findContainer; RunInContainer.
Differs: to attach is to follow the log from now on, and to be heard if its program reads stdin.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Outbox
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.k8s.streams import LogOptions, Output, Refusal, TerminalSize
from fleet.kubelet.environment import Environment
from fleet.kubelet.volumes.watched_objects import PodSources
from fleet.runtime.container_log import LogReader
from fleet.runtime.containers import Container, RunState
from fleet.runtime.exec_session import KILLED, session_in
from fleet.runtime.program import Process, Session
from fleet.runtime.programs import program_of, record
from fleet.runtime.runtime import Runtime

SERVER_ERROR = 500
OnChange = Callable[[int, Outbox], None]
"""Have the kubelet see at an instant what was written into the containers of a pod."""


@dataclass(slots=True, eq=False)
class Target:
    """A container that runs, as a session needs it."""

    pod: Pod
    spec: ContainerSpec
    container: Container
    runtime: Runtime
    env: Environment
    sources: PodSources
    on_change: OnChange

    def has_ended(self, now_ns: int) -> bool:
        """Return whether the container is gone."""
        container = self.container
        if container.state is not RunState.RUNNING or container.exit_ns <= now_ns:
            return True
        sandbox = self.runtime.sandbox(self.pod.uid)
        return sandbox is None or container not in sandbox.containers

    @property
    def start_ns(self) -> int:
        """Return when the container started."""
        return self.container.started_s * NS_PER_S - self.env.wall_offset_ns

    def process(self, now_ns: int) -> Process:
        """Return a process that starts in the container at an instant."""
        at = (self.container.attempt, now_ns, self.env.wall_ns(now_ns))
        found = self.runtime.process_at(self.pod, self.spec, *at, self.sources)
        return found._replace(files=self.runtime.files)


def find_target(
    pod: Pod,
    name: str,
    runtime: Runtime,
    env: Environment,
    sources: PodSources,
    on_change: OnChange,
    now_ns: int,
) -> Target | Refusal:
    """Return a container that runs. Source: findContainer."""
    sandbox = runtime.sandbox(pod.uid)
    container = None if sandbox is None else sandbox.find(name)
    spec = pod.find(name)
    refusal = Refusal(SERVER_ERROR, f'container not found ("{name}")')
    if container is None or spec is None:
        return refusal
    target = Target(pod, spec, container, runtime, env, sources, on_change)
    return refusal if target.has_ended(now_ns) else target


class ExecSession:
    """A command in a container. Effects for the reactor are left in `out`."""

    __slots__ = ("_ends_container", "_is_over", "_session", "_target", "out")

    def __init__(self, target: Target, session: Session, *, ends_container: bool = False) -> None:
        self._target = target
        self._session = session
        self._ends_container = ends_container  # the command is the container's own
        self._is_over = False
        self.out: Outbox = []

    def write(self, data: bytes, now_ns: int) -> int:
        """Take input; return how many bytes of it."""
        taken = self._session.write(data, now_ns)
        self._note_changes(now_ns)
        return taken

    def close_stdin(self, now_ns: int) -> None:
        """Learn that the input is complete."""
        self._session.close_stdin(now_ns)
        self._note_changes(now_ns)

    def resize(self, size: TerminalSize) -> None:
        """Take the size of the terminal."""
        self._session.resize(size)

    def close(self, now_ns: int) -> None:
        """End: the client went away."""
        self._session.close(now_ns)

    def advance(self, limit: int, now_ns: int) -> Output:
        """Return at most so many bytes of what was said up to an instant."""
        found = self._session.advance(limit, now_ns)
        self._note_changes(now_ns)
        if found.exit_code is None and not self._is_over and self._target.has_ended(now_ns):
            self._session.close(now_ns)
            return found._replace(exit_code=KILLED, wake_ns=None, more=False)
        if found.exit_code is not None and not self._is_over:
            self._is_over = True
            if self._ends_container:
                self._end_container(found.exit_code, now_ns)
        if found.exit_code is None and found.wake_ns is None and not found.more:
            return found._replace(wake_ns=now_ns + NS_PER_S)  # the container may end
        return found

    def _end_container(self, code: int, now_ns: int) -> None:
        container = self._target.container
        container.exit_ns = min(container.exit_ns, now_ns)
        container.exit_code = code
        container.reason = "Error" if code else "Completed"
        self._target.on_change(now_ns, self.out)

    def _note_changes(self, now_ns: int) -> None:
        """Have the script of each container of the pod see what was written."""
        target, session = self._target, self._session
        if not session.changes:
            return
        record(target.process(session.start_ns), session.changes, "exec")
        session.changes.clear()
        pod = target.pod
        behavior = target.env.model.behavior_of(pod)
        sandbox = target.runtime.sandbox(pod.uid)
        for container in () if sandbox is None else sandbox.containers:
            if container.state is RunState.RUNNING:
                target.runtime.replan(pod, container, behavior, now_ns, target.sources)
        target.on_change(now_ns, self.out)


class AttachSession:
    """What a container says from now on; it hears nothing."""

    __slots__ = ("_reader", "_target", "out")

    def __init__(self, target: Target, now_ns: int) -> None:
        pod, env = target.pod, target.env
        behavior = env.model.behavior_of(pod)
        container = target.container
        begun_ns = container.begun_ns or target.start_ns
        at = (container.attempt, container.started_s, begun_ns)
        lines = target.runtime.log(pod, target.spec, behavior, *at, target.sources)
        options = LogOptions(follow=True, since_ns=env.wall_ns(now_ns), tail_lines=1)
        self._target = target
        self._reader = LogReader(
            lines, target.start_ns, env.wall_offset_ns, self._ended_ns, options
        )
        self.out: Outbox = []

    def _ended_ns(self, now_ns: int) -> int | None:
        return self._target.container.exit_ns if self._target.has_ended(now_ns) else None

    def write(self, data: bytes, _now_ns: int) -> int:
        """Take input; nobody reads it."""
        return len(data)

    def close_stdin(self, now_ns: int) -> None:
        """Learn that the input is complete."""

    def resize(self, size: TerminalSize) -> None:
        """Take the size of the terminal."""

    def close(self, now_ns: int) -> None:
        """End: the client went away."""

    def advance(self, limit: int, now_ns: int) -> Output:
        """Return at most so many bytes of what was said up to an instant."""
        chunk = self._reader.read(limit, now_ns)
        code = self._target.container.exit_code if chunk.is_over else None
        more = chunk.wake_ns is None and not chunk.is_over
        return Output(chunk.data, b"", chunk.wake_ns, more, code)


def exec_in(
    target: Target, command: tuple[str, ...], now_ns: int, *, stdin: bool, tty: bool
) -> ExecSession:
    """Return a command that somebody runs in a container."""
    program = program_of(target.pod, target.spec)
    behavior = target.env.model.behavior_of(target.pod).container(target.spec.name)
    process = target.process(now_ns)
    return ExecSession(
        target, session_in(process, command, program, behavior, stdin=stdin, tty=tty)
    )


def attach(target: Target, now_ns: int, *, stdin: bool, tty: bool) -> ExecSession | AttachSession:
    """Return a session with the command that a container runs."""
    program = program_of(target.pod, target.spec)
    session = program.attached(target.process(now_ns), tty=tty) if stdin else None
    if session is None:
        return AttachSession(target, now_ns)
    return ExecSession(target, session, ends_container=True)
