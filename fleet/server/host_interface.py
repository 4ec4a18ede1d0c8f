"""What the kubelet's own server asks of it: logs, commands in containers, ports.

Every function is called in the reactor's thread, is bounded, and keeps nothing: what it returns is
all there is of a session, and ends when it is dropped.
Source: pkg/kubelet/server/server.go, HostInterface.
"""

from functools import partial

from fleet.k8s.pods import Pod
from fleet.k8s.streams import LogOptions, Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.runtime.container_log import LogReader
from fleet.runtime.ports import PortSession, container_of_port, usual_answer
from fleet.runtime.program import HttpReply
from fleet.runtime.programs import http_reply, program_of
from fleet.server import container_exec
from fleet.server.container_exec import (
    AttachSession,
    ExecSession,
    Target,
    attach,
    find_target,
)
from fleet.server.container_logs import read_log

NOT_FOUND = 404
Session = ExecSession | AttachSession


def container_logs(
    kubelet: VirtualKubelet, pod: Pod, container: str, options: LogOptions, _now_ns: int
) -> LogReader | Refusal:
    """Return a reader of a container's log. Source: GetKubeletContainerLogs."""
    loop = kubelet.pods
    if loop is None:
        return _no_pod(pod)
    status = loop.last_status(pod)
    env = kubelet.env
    return read_log(pod, status, container, options, loop.runtime, env, loop.sources(env))


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
    if isinstance(target, Refusal):
        return target
    return container_exec.exec_in(target, command, now_ns, stdin=stdin, tty=tty)


def attach_to(
    kubelet: VirtualKubelet, pod: Pod, container: str, *, stdin: bool, tty: bool, now_ns: int
) -> Session | Refusal:
    """Attach to the command that a container runs. Source: GetAttach."""
    target = _target(kubelet, pod, container, now_ns)
    if isinstance(target, Refusal):
        return target
    return attach(target, now_ns, stdin=stdin, tty=tty)


def port_of(kubelet: VirtualKubelet, pod: Pod, port: int, now_ns: int) -> PortSession | Refusal:
    """Connect to a port of a pod. Source: GetPortForward; containerd's portForward."""
    target = _target(kubelet, pod, container_of_port(pod, port), now_ns)
    if isinstance(target, Refusal):
        return target
    behavior = kubelet.env.model.behavior_of(pod).container(target.spec.name)

    def answer(method: str, path: str, body: bytes, at_ns: int) -> HttpReply:
        found = None
        if method in {"GET", "HEAD"}:
            process, program = target.process(at_ns), program_of(pod, target.spec)
            found = http_reply(process, port, path, program, behavior)
        return usual_answer(pod, method, body) if found is None else found

    return PortSession(answer)


def _target(kubelet: VirtualKubelet, pod: Pod, name: str, now_ns: int) -> Target | Refusal:
    loop = kubelet.pods
    if loop is None:
        return _no_pod(pod)
    env = kubelet.env
    on_change = partial(kubelet.on_container_changed, pod.uid)
    return find_target(pod, name, loop.runtime, env, loop.sources(env), on_change, now_ns)


def _no_pod(pod: Pod) -> Refusal:
    return Refusal(NOT_FOUND, f'pod "{pod.name}" does not exist')
