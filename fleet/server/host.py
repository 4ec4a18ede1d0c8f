"""What the servers ask of a kubelet: the seam to what its containers say and measure.

Source: pkg/kubelet/server/server.go, HostInterface.
"""

from typing import Protocol

from fleet.k8s.effects import Outbox
from fleet.k8s.pods import Pod
from fleet.k8s.streams import (
    LogChunk,
    LogOptions,
    Output,
    PortOutput,
    Refusal,
    TerminalSize,
)
from fleet.kubelet.kubelet import VirtualKubelet


class LogReader(Protocol):
    """A log that is being read."""

    def read(self, limit: int, now_ns: int) -> LogChunk:
        """Return at most so many bytes of what has not been read."""


class Session(Protocol):
    """A command in a container, or what is attached to one."""

    out: Outbox
    """What follows of the last call for the pod: to be done by the reactor, and cleared."""

    def write(self, data: bytes, now_ns: int) -> int:
        """Take input; return how many bytes there was room for."""

    def close_stdin(self, now_ns: int) -> None:
        """Learn that no more input comes."""

    def resize(self, size: TerminalSize) -> None:
        """Learn how large the terminal is."""

    def advance(self, limit: int, now_ns: int) -> Output:
        """Go on, and return at most so many bytes of output."""

    def close(self, now_ns: int) -> None:
        """Learn that the client went away."""


class PortSession(Protocol):
    """A connection to a port of a pod."""

    tls: tuple[str, str] | None
    """A certificate and its key if TLS is to be spoken, "" for any."""

    def write(self, data: bytes, now_ns: int) -> int:
        """Take what the client sent; return how many bytes there was room for.

        Not all of them only while there is output to be read.
        """

    def end(self, now_ns: int) -> None:
        """Learn that the client sends no more."""

    def advance(self, limit: int, now_ns: int) -> PortOutput:
        """Return at most so many bytes of the answer."""


class Host(Protocol):
    """Everything is called in the reactor's thread, and is short."""

    def container_logs(
        self, kubelet: VirtualKubelet, pod: Pod, container: str, options: LogOptions, now_ns: int
    ) -> LogReader | Refusal:
        """Open the log of a container."""

    def exec_in(
        self,
        kubelet: VirtualKubelet,
        pod: Pod,
        container: str,
        command: tuple[str, ...],
        *,
        stdin: bool,
        tty: bool,
        now_ns: int,
    ) -> Session | Refusal:
        """Start a command in a container."""

    def attach_to(
        self,
        kubelet: VirtualKubelet,
        pod: Pod,
        container: str,
        *,
        stdin: bool,
        tty: bool,
        now_ns: int,
    ) -> Session | Refusal:
        """Attach to what runs in a container."""

    def port_of(
        self, kubelet: VirtualKubelet, pod: Pod, port: int, now_ns: int
    ) -> PortSession | Refusal:
        """Connect to a port of a pod."""
