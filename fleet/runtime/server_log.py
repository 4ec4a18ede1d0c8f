"""The log of a server that is known: what it said at its start, and what each request made it say.

Source: k8s.io/component-base/logs, InitLogs: the lines of Go's log become klog's; klog.go, header.
"""

from fleet.clock import NS_PER_S
from fleet.runtime.container_log import NEVER, LogLine, Rotation
from fleet.runtime.servers import ServerRecord
from fleet.runtime.shell.agnhost import klog_header


class ServerLines:
    """The lines of one run of a server."""

    __slots__ = ("_at", "_greeting", "_record", "_start_wall_ns")

    def __init__(self, greeting: tuple[str, ...], record: ServerRecord, start_wall_ns: int) -> None:
        self._greeting = greeting
        self._record = record
        self._start_wall_ns = start_wall_ns
        self._at = 0  # the next line, counted from the first one ever

    def _line(self, at: int) -> LogLine | None:
        """Return a line by its number, None if there is none yet."""
        if at < len(self._greeting):
            after_ns, text = 0, self._greeting[at]
        else:
            at -= len(self._greeting) + self._record.dropped
            if at >= len(self._record.lines):
                return None
            after_ns, text = self._record.lines[max(at, 0)]
        shown = f"{klog_header(self._start_wall_ns + after_ns, 'log.go:245')} {text}"
        return LogLine(after_ns, is_error=True, text=shown.encode("utf-8", "surrogateescape"))

    def next(self, until_ns: int) -> LogLine | None:
        """Return the next line if it was written by then, and go on behind it."""
        found = self._line(self._at)
        if found is None or found.after_ns > until_ns:
            return None
        self._at += 1
        return found

    def wake_ns(self, until_ns: int) -> int:
        """Return when there may be another line: when somebody asks again."""
        return until_ns + NS_PER_S if self._line(self._at) is None else NEVER

    def seek(self, until_ns: int, since_ns: int, tail: int | None, _rotation: Rotation) -> bool:
        """Go to the first line wanted of those up to an instant."""
        count = 0
        first = 0
        while (line := self._line(count)) is not None and line.after_ns <= until_ns:
            count += 1
            if line.after_ns < since_ns:
                first = count
        self._at = first if tail is None else max(first, count - tail)
        return True
