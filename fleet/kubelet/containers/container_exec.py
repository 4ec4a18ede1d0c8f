"""Commands that somebody runs in a container, or that attach to the one that it runs.

What such a command writes the container's own script sees: its end is computed anew.
Source: pkg/kubelet/kubelet_pods.go, GetExec, GetAttach, findContainer; RunInContainer.
Differs: to attach is to follow the log from now on, and to be heard by a shell if it runs one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Outbox
from fleet.k8s.pods import ContainerSpec, Pod
from fleet.k8s.streams import LogOptions, Output, Refusal, TerminalSize
from fleet.kubelet.containers.pod_sources import PodSources
from fleet.kubelet.environment import Environment
from fleet.runtime.command import command_of
from fleet.runtime.container_log import LogReader
from fleet.runtime.container_process import log_lines, start_of
from fleet.runtime.containers import Container, RunState
from fleet.runtime.files import ContainerFiles
from fleet.runtime.runtime import Runtime
from fleet.runtime.servers import Site
from fleet.runtime.session import KILLED, Session
from fleet.runtime.shell.budget import UNITS_SERVED, Budget
from fleet.runtime.shell.process import is_shell, run_words
from fleet.runtime.shell.surroundings import Surroundings
from fleet.runtime.surroundings import hostname, whole_surroundings

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
        return start_of(self.container.started_s, self.env.wall_offset_ns)

    def surroundings(self, now_ns: int, given: bytes | None, *, is_trial: bool) -> Surroundings:
        """Return what a command finds that starts at an instant."""
        place = self.runtime.place(
            self.pod,
            self.spec,
            self.container.attempt,
            now_ns,
            self.env.wall_ns(now_ns),
            self.sources,
        )
        found = whole_surroundings(self.runtime.files, self.pod, self.spec, place, given)
        if is_trial:
            assert isinstance(found.files, ContainerFiles), found
            found.files.as_replay()
        return found

    def site(self, now_ns: int) -> Site:
        """Return what a server in the container finds around it when it is asked."""

        def read(path: str) -> str | None:
            files = self.surroundings(now_ns, None, is_trial=True).files
            return None if files is None else files.read(path)

        def run(script: str) -> tuple[str, int]:
            around = self.surroundings(now_ns, b"", is_trial=False)
            done = run_words(("sh", "-c", script), around._replace(budget=Budget(UNITS_SERVED)))
            return "".join(each.text for each in done.written if not each.path), done.exit_code

        pod, container, env = self.pod, self.container, self.env
        return Site(
            hostname(pod),
            self.runtime.files.records.of(pod.uid, container.name, container.attempt),
            max(now_ns - self.start_ns, 0),
            env.wall_ns(now_ns),
            read,
            run,
        )


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

    def __init__(
        self,
        target: Target,
        command: tuple[str, ...],
        now_ns: int,
        *,
        stdin: bool,
        tty: bool,
        ends_container: bool = False,
    ) -> None:
        def around(given: bytes | None, *, is_trial: bool) -> Surroundings:
            return target.surroundings(now_ns, given, is_trial=is_trial)

        self._target = target
        self._session = Session(command, around, now_ns, stdin=stdin, tty=tty)
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
        if not self._session.changes:
            return
        self._session.changes.clear()
        target = self._target
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
        lines = log_lines(
            target.runtime,
            pod,
            target.spec,
            behavior,
            container.attempt,
            container.started_s,
            container.begun_ns or target.start_ns,
            target.sources,
        )
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


def attach(target: Target, now_ns: int, *, stdin: bool, tty: bool) -> ExecSession | AttachSession:
    """Return a session with the command that a container runs."""
    command = command_of(target.spec)
    if stdin and (not command or is_shell(command)):
        words = command or ("sh",)
        return ExecSession(target, words, now_ns, stdin=True, tty=tty, ends_container=True)
    if stdin and _waits_for_input(target, command, now_ns):
        return ExecSession(target, command, now_ns, stdin=True, tty=tty, ends_container=True)
    return AttachSession(target, now_ns)


def _waits_for_input(target: Target, command: tuple[str, ...], now_ns: int) -> bool:
    """Return whether a container's own command reads stdin first of all."""
    around = target.surroundings(now_ns, None, is_trial=True)
    return Session.reads_input(command, around)
