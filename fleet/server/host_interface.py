"""What the kubelet's own server asks of it: logs, commands in containers, ports.

Every function is called in the reactor's thread, is bounded, and keeps nothing: what it returns is
all there is of a session, and ends when it is dropped. What a command writes the container's own
script sees: its end is computed again.
Source: pkg/kubelet/server/server.go, HostInterface; pkg/kubelet/kubelet_pods.go, GetExec,
GetAttach, findContainer, RunInContainer, GetKubeletContainerLogs, validateContainerLogStatus.
Differs: to attach is to follow the log from now on, and to be heard if its program reads stdin.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Outbox
from fleet.k8s.pods import (
    ContainerSpec,
    ContainerStatus,
    Pod,
    RunningState,
    TerminatedState,
    WaitingState,
)
from fleet.k8s.streams import LogOptions, Output, Refusal
from fleet.kubelet.environment import Environment
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.volumes.watched_objects import PodSources
from fleet.runtime.container_log import LogReader
from fleet.runtime.containers import Container, RunState
from fleet.runtime.exec_session import KILLED, DeafSession, session_in
from fleet.runtime.ports import PortSession, container_of_port
from fleet.runtime.program import HttpReply, Process
from fleet.runtime.program import Session as ProgramSession
from fleet.runtime.programs import http_reply, program_of, record
from fleet.runtime.runtime import Runtime

BAD_REQUEST, SERVER_ERROR = 400, 500
ATTACHED = 0  # how an attachment ends, whatever the container's exit code. Source: ServeAttach
_EMPTIED = frozenset(("Evicted", "Preempting"))
"""Why pods ended whose containers a kubelet removes at once. Source: ShouldPodContentBeRemoved."""
_PULL_FAILURES = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


REFUSED = (
    'failed to execute portforward in network namespace "/var/run/netns/cni-{id}": failed to '
    'connect to localhost:{port} inside namespace "{id}", IPv4: dial tcp4 127.0.0.1:{port}: '
    "connect: connection refused IPv6 dial tcp6 [::1]:{port}: connect: connection refused "
)
"""What containerd says of a port on which nobody listens: its container does not run."""


@dataclass(slots=True, eq=False)
class Target:
    """A container that runs, as a session needs it."""

    pod: Pod
    spec: ContainerSpec
    container: Container
    runtime: Runtime
    env: Environment
    sources: PodSources
    on_change: Callable[[int, Outbox], None]
    """Have the kubelet see at an instant what was written into the containers of a pod."""

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


class ExecSession:
    """A command in a container. Effects for the reactor are left in `out`."""

    def __init__(
        self, target: Target, session: ProgramSession, *, ends_container: bool = False
    ) -> None:
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

    def close(self, now_ns: int) -> None:
        """End: the client went away."""
        self._session.close(now_ns)

    def advance(self, limit: int, now_ns: int) -> Output:
        """Return at most so many bytes of what was said up to an instant."""
        found = self._session.advance(limit, now_ns)
        self._note_changes(now_ns)
        if found.exit_code is None and not self._is_over and self._target.has_ended(now_ns):
            self._session.close(now_ns)
            found = found._replace(exit_code=KILLED, wake_ns=None, more=False)
        elif found.exit_code is not None and not self._is_over:
            self._is_over = True
            if self._ends_container:
                self._end_container(found.exit_code, now_ns)
        if found.exit_code is None and found.wake_ns is None and not found.more:
            return found._replace(wake_ns=now_ns + NS_PER_S)  # the container may end
        if found.exit_code and self._ends_container:
            return found._replace(exit_code=ATTACHED)
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


class AttachSession(DeafSession):
    """What a container says from now on; it hears nothing."""

    def __init__(self, target: Target, now_ns: int, *, tty: bool) -> None:
        pod, env = target.pod, target.env
        behavior = env.model.behavior_of(pod)
        container = target.container
        begun_ns = container.begun_ns or target.start_ns
        at = (container.attempt, container.started_s, begun_ns)
        lines = target.runtime.log(pod, target.spec, behavior, *at, target.sources)
        options = LogOptions(follow=True, since_ns=env.wall_ns(now_ns), tail_lines=1)
        self._target = target
        self._line_end = b"\r\n" if tty else b"\n"  # a terminal writes both, a log keeps one
        self._reader = LogReader(
            lines, target.start_ns, env.wall_offset_ns, self._ended_ns, options
        )
        self.out: Outbox = []

    def _ended_ns(self, now_ns: int) -> int | None:
        return self._target.container.exit_ns if self._target.has_ended(now_ns) else None

    def close(self, now_ns: int) -> None:
        """End: the client went away."""

    def advance(self, limit: int, now_ns: int) -> Output:
        """Return at most so many bytes of what was said up to an instant."""
        chunk = self._reader.read(limit, now_ns)
        code = ATTACHED if chunk.is_over else None
        more = chunk.wake_ns is None and not chunk.is_over
        data = chunk.data.replace(b"\n", self._line_end)
        return Output(data, b"", chunk.wake_ns, more, code)


Session = ExecSession | AttachSession


def exec_in(
    kubelet: VirtualKubelet,
    pod: Pod,
    container: str,
    command: tuple[str, ...],
    *,
    stdin: bool,
    tty: bool,
    now_ns: int,
) -> Session | Refusal:
    """Run a command in a container. Source: GetExec, RunInContainer."""
    target = _target(kubelet, pod, container, now_ns)
    if target is None:
        return Refusal(SERVER_ERROR, f'container not found ("{container}")')
    program = program_of(pod, target.spec)
    behavior = kubelet.env.model.behavior_of(pod).container(container)
    process = target.process(now_ns)
    return ExecSession(
        target, session_in(process, command, program, behavior, stdin=stdin, tty=tty)
    )


def attach_to(
    kubelet: VirtualKubelet, pod: Pod, name: str, *, uid: str, stdin: bool, tty: bool, now_ns: int
) -> Session | Refusal:
    """Attach to the command of a container; `uid`: of its pod, "" for any. Source: GetAttach."""
    target = _target(kubelet, pod, name, now_ns)
    if target is None:
        return Refusal(SERVER_ERROR, f"container {name} not found in pod {pod.full_name}")
    if uid not in {"", pod.uid}:
        return Refusal(SERVER_ERROR, f"pod {pod.full_name} not found")
    program = program_of(pod, target.spec)
    session = program.attached(target.process(now_ns), tty=tty) if stdin else None
    if session is None:
        return AttachSession(target, now_ns, tty=tty)
    return ExecSession(target, session, ends_container=True)


def port_of(kubelet: VirtualKubelet, pod: Pod, port: int, now_ns: int) -> PortSession | Refusal:
    """Connect to a port of a pod. Source: GetPortForward; containerd's portForward."""
    target = _target(kubelet, pod, container_of_port(pod, port), now_ns)
    if target is None:
        return Refusal(SERVER_ERROR, REFUSED.format(id=pod.uid, port=port))
    behavior = kubelet.env.model.behavior_of(pod).container(target.spec.name)

    def answer(path: str, at_ns: int) -> HttpReply:
        process, program = target.process(at_ns), program_of(pod, target.spec)
        found = http_reply(process, port, path, program, behavior)
        return HttpReply(200, pod.name.encode()) if found is None else found

    return PortSession(answer)


def _target(kubelet: VirtualKubelet, pod: Pod, name: str, now_ns: int) -> Target | None:
    """Return a container if it runs. Source: findContainer."""
    pods, env = kubelet.pods, kubelet.env
    sandbox = None if pods is None else pods.runtime.sandbox(pod.uid)
    container = None if sandbox is None else sandbox.find(name)
    spec = pod.find(name)
    if pods is None or container is None or spec is None:
        return None
    on_change = partial(kubelet.on_container_changed, pod.uid)
    target = Target(pod, spec, container, pods.runtime, env, pods.sources(env), on_change)
    return None if target.has_ended(now_ns) else target


def container_logs(
    kubelet: VirtualKubelet, pod: Pod, name: str, options: LogOptions, _now_ns: int
) -> LogReader | Refusal:
    """Return a reader of a container's log, or why there is none.

    A kubelet keeps the last one of a container's instances that have ended, with its log.
    Source: pkg/kubelet/pod_container_deletor.go, getContainersToDeleteInPod.
    """
    pods, env = kubelet.pods, kubelet.env
    assert pods is not None, pod.name
    status, runtime = pods.last_status(pod), pods.runtime
    listed = chain(status.containers, status.init_containers, status.ephemeral_containers)
    found, spec = next((each for each in listed if each.name == name), None), pod.find(name)
    where = f'container "{name}" in pod "{pod.name}"'
    if found is None or spec is None:
        return _refusal(f"{where} is not available")
    container_id = _container_id(found, where, previous=options.previous)
    if isinstance(container_id, Refusal):
        return container_id
    sandbox = runtime.sandbox(pod.uid)
    container = None if sandbox is None else sandbox.find(name)
    ended: Callable[[int], int | None]
    if container is not None and container.id == container_id:
        attempt, started_s = container.attempt, container.started_s
        begun_ns = container.begun_ns or started_s * NS_PER_S - env.wall_offset_ns
        ended = partial(_ended_ns, runtime, pod, container)
    else:
        # It is gone, but its log may stay as long as its pod: its status says when it ran.
        state = _terminated(found, container_id)
        is_replaced = state is found.last_state and isinstance(found.state, TerminatedState)
        if state is None or is_replaced or status.reason in _EMPTIED:
            return _refusal(f"unable to retrieve container logs for {container_id}")
        attempt = found.restart_count - (state is found.last_state)
        started_s = state.started_s
        begun_ns = started_s * NS_PER_S - env.wall_offset_ns
        if container is not None and container.attempt == attempt + 1:
            begun_ns = container.last_begun_ns or begun_ns
        ended = partial(_at, (state.finished_s + 1) * NS_PER_S - env.wall_offset_ns - 1)
    behavior = env.model.behavior_of(pod)
    offset_ns = env.wall_offset_ns
    at = (attempt, started_s, begun_ns)
    lines = runtime.log(pod, spec, behavior, *at, pods.sources(env))
    return LogReader(lines, started_s * NS_PER_S - offset_ns, offset_ns, ended, options)


def _terminated(status: ContainerStatus, container_id: str) -> TerminatedState | None:
    """Return how the container of an id ended, None if the status has none of it."""
    for state in (status.state, status.last_state):
        if isinstance(state, TerminatedState) and state.container_id == container_id:
            return state
    return None


def _at(end_ns: int, _now_ns: int) -> int:
    return end_ns


def _ended_ns(runtime: Runtime, pod: Pod, container: Container, now_ns: int) -> int | None:
    """Return when a container ended, None while it runs."""
    if container.state is RunState.EXITED or container.exit_ns <= now_ns:
        return container.exit_ns
    sandbox = runtime.sandbox(pod.uid)
    if sandbox is None or container not in sandbox.containers:
        return now_ns  # it went with its pod
    return None


def _container_id(found: ContainerStatus, where: str, *, previous: bool) -> str | Refusal:
    """Return the container whose log is meant. Source: validateContainerLogStatus."""
    last = found.last_state.container_id if found.last_state is not None else ""
    if previous:
        return last or _refusal(f"previous terminated {where} not found")
    state = found.state
    if isinstance(state, RunningState):
        return found.container_id
    if isinstance(state, TerminatedState):
        return state.container_id or last or _refusal(f"{where} is terminated")
    if found.last_state is not None:
        return last or _refusal(f"{where} is terminated")
    assert isinstance(state, WaitingState), state
    why = _PULL_FAILURES.get(state.reason, state.reason)
    return _refusal(f"{where} is waiting to start: {why}")


def _refusal(text: str) -> Refusal:
    return Refusal(BAD_REQUEST, text)
