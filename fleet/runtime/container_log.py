"""The log of a container: computed when it is read, line by line, never kept.

A line is a function of its number: the behaviour says how often there is one and what it looks
like, else the container's own script is run again and says what it prints.
Source: k8s.io/cri-client/pkg/logs/logs.go, ReadLogs, logWriter; containerd's
internal/cri/io/logger.go for lines without an end.
Differs: no file is rotated; of declared lines the newest 10 MiB are there, as of one file.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from fleet.clock import NS_PER_S, mix
from fleet.k8s.streams import LogChunk, LogOptions
from fleet.k8s.times import rfc3339_micro, rfc3339_nano
from fleet.profile.container_behavior import LogBehavior
from fleet.profile.pod_behavior import PodBehavior
from fleet.runtime.program import Process, Steps, Written
from fleet.runtime.programs import program_of

NEVER = 1 << 62
HEAD_BYTES = len(b"2026-11-21T02:06:48.123456789Z stdout F ")
"""What stands before each line in the file."""
FILE_BYTES = 10 << 20  # Source: containerLogMaxSize
ROUNDS_MAX = 100  # how far a script is followed in one call: about 2 ms
OPEN_MAX = 64 << 10
"""What is kept of a line without an end. Differs: containerd splits it each 16 KiB."""
LINES_MAX = 500  # how many lines one call looks at
LEVELS = ("INFO", "INFO", "INFO", "INFO", "INFO", "INFO", "DEBUG", "DEBUG", "WARN", "ERROR")
"""How often each is drawn."""
POLL_NS = NS_PER_S
"""logForceCheckPeriod: how soon a reader that follows looks whether the container ended."""
FILLER = "abcdefghijklmnopqrstuvwxyz0123456789"


class LogLine(NamedTuple):
    """One line of the file, as a reader of the log sees it: only the last may have no end."""

    after_ns: int  # since the start of the container
    is_error: bool  # written to stderr
    text: bytes


class Lines(Protocol):
    """The lines of a container, read from the first one on."""

    def next(self, until_ns: int) -> LogLine | None:
        """Return the next line if it was written by then, and go on behind it."""

    def wake_ns(self, until_ns: int) -> int:
        """Return when there may be another line; `until_ns`: ask again at once."""

    def seek(self, until_ns: int, since_ns: int, tail: int | None) -> bool:
        """Go to the first line wanted of those up to an instant; False: call again, it is far."""


@dataclass(eq=False)
class DeclaredLines:
    """Lines as a behaviour declares them."""

    _behavior: LogBehavior
    _start_wall_ns: int
    _seed: int
    _values: Mapping[str, str]  # of the placeholders that are the same for all lines
    _at: int = 0

    def _after_ns(self, index: int) -> int:
        return index * self._behavior.interval_ns

    def _count(self, until_ns: int) -> int:
        """Return how many lines there are at an instant."""
        if until_ns < 0:
            return 0
        count = until_ns // self._behavior.interval_ns + 1
        return min(count, self._behavior.max_lines or count)

    def next(self, until_ns: int) -> LogLine | None:
        """Return the next line if it was written by then, and go on behind it."""
        if self._at >= self._count(until_ns):
            return None
        self._at += 1
        return self.line(self._at - 1)

    def wake_ns(self, until_ns: int) -> int:
        """Return when there is another line."""
        ended = self._behavior.max_lines and self._at >= self._behavior.max_lines
        return NEVER if ended else max(self._after_ns(self._at), until_ns)

    def seek(self, until_ns: int, since_ns: int, tail: int | None) -> bool:
        """Go to the first line wanted of those up to an instant."""
        count, line_bytes = self._count(until_ns), len(self.line(0).text) + HEAD_BYTES
        first = max(count - FILE_BYTES // line_bytes, 0)
        if since_ns > 0:
            first = max(first, -(-since_ns // self._behavior.interval_ns))
        if tail is not None:
            first = max(first, count - tail)
        self._at = first
        return True

    def line(self, index: int) -> LogLine:
        """Return a line by its number, from 0."""
        behavior = self._behavior
        after_ns = self._after_ns(index)
        drawn = mix(self._seed, index)
        values = {
            **self._values,
            "index": str(index),
            "time": rfc3339_micro(self._start_wall_ns + after_ns).decode(),
            "level": LEVELS[drawn % len(LEVELS)],
            "random": str(drawn >> 16 & 0xFFFF),
        }
        text = behavior.text(values)
        missing = behavior.size - len(text.encode()) - 1
        filler = (FILLER * (max(missing, 0) // len(FILLER) + 1))[: max(missing, 0)]
        line = f"{text} {filler}\n" if filler else f"{text}\n"
        return LogLine(after_ns, is_error=False, text=line.encode())


class ScriptLines:
    """Lines that the container's own command prints; it is run again from its start."""

    def __init__(self, make: Callable[[], Steps]) -> None:
        self._make = make
        self._process = make()
        self._buffer: deque[LogLine] = deque()
        self._open: dict[bool, str] = {}  # what has no end yet, by whether it is of stderr
        self._counted = 0  # lines, for a reader that wants the last ones
        self._skipped = -1  # lines that are to be passed over, once it is known how many

    def next(self, until_ns: int) -> LogLine | None:
        """Return the next line if it was written by then, and go on behind it."""
        if not self._buffer:
            self._follow(until_ns)
        if self._buffer and self._buffer[0].after_ns <= until_ns:
            return self._buffer.popleft()
        return None

    def _follow(self, until_ns: int) -> bool:
        """Run on for a while; return whether the instant was reached."""
        process = self._process
        reached = process.advance(until_ns, ROUNDS_MAX)
        for each in process.written:
            if not each.path:
                self._split(each)
        process.written.clear()
        process.changes.clear()
        if process.end_ns is not None and process.end_ns <= until_ns:
            for is_error, text in self._open.items():
                self._buffer.append(LogLine(process.end_ns, is_error, _encoded(text)))
            self._open = {}
        return reached

    def _split(self, written: Written) -> None:
        *lines, rest = (self._open.get(written.is_error, "") + written.text).split("\n")
        for line in lines:
            self._buffer.append(LogLine(written.after_ns, written.is_error, _encoded(f"{line}\n")))
        if rest or written.is_error in self._open:
            self._open[written.is_error] = rest[:OPEN_MAX]
            if not rest:
                del self._open[written.is_error]

    def wake_ns(self, until_ns: int) -> int:
        """Return when there may be another line."""
        if self._buffer:
            return self._buffer[0].after_ns
        process = self._process
        if process.end_ns is not None:
            return process.end_ns if self._open else NEVER
        if process.is_lost:
            return NEVER
        return max(process.clock_ns, until_ns)

    def seek(self, until_ns: int, _since_ns: int, tail: int | None) -> bool:
        """Go to the first line wanted of those up to an instant; False: call again, it is far."""
        if tail is None:
            return True
        for _ in range(LINES_MAX):
            if not self._skipped:
                return True
            is_line = self.next(until_ns) is not None
            if self._skipped > 0:
                if not is_line:
                    return False
                self._skipped -= 1
            elif is_line:
                self._counted += 1
            elif self._buffer or not self._is_at(until_ns):
                return False
            else:
                self._skipped = max(self._counted - tail, 0)
                self._process, self._open = self._make(), {}
                self._buffer.clear()
        return False

    def _is_at(self, until_ns: int) -> bool:
        process = self._process
        over = process.end_ns is not None or process.is_lost
        return over or process.clock_ns > until_ns


def log_lines(process: Process, behavior: PodBehavior, seed: int, term_ns: int | None) -> Lines:
    """Return the lines of one run of a container, up to its SIGTERM and from there on."""
    pod, spec = process.pod, process.spec
    program = program_of(pod, spec)
    found = behavior.container(spec.name).logs or program.log(process, term_ns)
    if not isinstance(found, LogBehavior):
        return ScriptLines(lambda: cast("Steps", program.log(process, term_ns)))
    values = {
        "pod": pod.name,
        "namespace": pod.namespace,
        "container": spec.name,
        "node": pod.node_name,
    }
    return DeclaredLines(found, process.start_wall_ns, seed, values)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@dataclass(slots=True, eq=False)
class LogReader:
    """One reader of a log. Nothing of it is kept elsewhere: who drops the reader has ended it."""

    _lines: Lines
    _start_ns: int  # of the container
    _wall_offset_ns: int
    _ended_ns: Callable[[int], int | None]  # of the container at an instant, None while it runs
    _options: LogOptions
    _rest: bytes = b""
    _is_sought: bool = False
    _left: int | None = None  # bytes that may still be read, None for no limit

    def __post_init__(self) -> None:
        self._left = self._options.limit_bytes

    def read(self, limit: int, now_ns: int) -> LogChunk:
        """Return at most so many bytes of what there is at an instant."""
        ended_ns = self._ended_ns(now_ns)
        until_ns = (now_ns if ended_ns is None else min(ended_ns, now_ns)) - self._start_ns
        if not self._is_sought and not self._seek(until_ns):
            return LogChunk(b"", None, is_over=False)
        found = [self._rest]
        size = len(self._rest)
        self._rest = b""
        looked = 0
        line = None
        while size < limit and looked < LINES_MAX and self._left != 0:
            line = self._lines.next(until_ns)
            if line is None:
                break
            looked += 1
            text = self._shown(line)
            if text:
                found.append(text)
                size += len(text)
        data = b"".join(found)
        if len(data) > limit:
            data, self._rest = data[:limit], data[limit:]
        return self._chunk(data, until_ns, ended_ns, is_behind=line is not None)

    def _seek(self, until_ns: int) -> bool:
        options = self._options
        tail = options.tail_lines
        since_ns = 0
        if options.since_ns:
            since_ns = options.since_ns - self._wall_offset_ns - self._start_ns
        self._is_sought = self._lines.seek(until_ns, since_ns, tail)
        return self._is_sought

    def _shown(self, line: LogLine) -> bytes:
        """Return a line as the reader wants it, b"" if it does not."""
        options = self._options
        wall_ns = line.after_ns + self._start_ns + self._wall_offset_ns
        if wall_ns < options.since_ns or options.stream == (
            "Stdout" if line.is_error else "Stderr"
        ):
            return b""
        text = line.text
        if options.timestamps:
            text = b"%b %b" % (rfc3339_nano(wall_ns), text)
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        return text

    def _chunk(
        self, data: bytes, until_ns: int, ended_ns: int | None, *, is_behind: bool
    ) -> LogChunk:
        if self._rest:
            return LogChunk(data, None, is_over=False)
        if self._left == 0:
            return LogChunk(data, None, is_over=True)
        wake_ns = self._lines.wake_ns(until_ns)
        if is_behind or wake_ns <= until_ns:
            return LogChunk(data, None, is_over=False)
        if not self._options.follow or ended_ns is not None:
            return LogChunk(data, None, is_over=True)
        due_ns = min(wake_ns, until_ns + POLL_NS)
        return LogChunk(data, self._start_ns + due_ns, is_over=False)
