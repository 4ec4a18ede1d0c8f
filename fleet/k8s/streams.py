"""What a kubelet's server and what its containers say hand each other: options, chunks, refusals.

Times named `wake_ns` are monotonic; everything else is as the API says it.
"""

from typing import NamedTuple


class Refusal(NamedTuple):
    """Why a request about a pod is not served, in upstream's words without a trailing newline."""

    code: int  # of HTTP
    text: str


class LogOptions(NamedTuple):
    """What of a log is wanted. Source: core/v1 PodLogOptions."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_ns: int = 0  # of the wall clock; lines before are left out
    tail_lines: int | None = None
    limit_bytes: int | None = None
    stream: str = "All"  # or Stdout, Stderr


class LogChunk(NamedTuple):
    """A piece of a log, as a kubelet writes it."""

    data: bytes
    wake_ns: int | None  # when there may be more; None for at once
    is_over: bool


class Output(NamedTuple):
    """What a command said since it was asked last; with a terminal all of it is stdout."""

    stdout: bytes = b""
    stderr: bytes = b""
    wake_ns: int | None = None  # when it goes on by itself; None if it waits for its input
    more: bool = False  # there is more to say now
    exit_code: int | None = None  # None while it runs
    error: str = ""  # why it could not run at all


class PortOutput(NamedTuple):
    """What a port of a pod answered."""

    data: bytes = b""
    more: bool = False
    is_over: bool = False
