"""A command that somebody runs in a container: what it says, as it comes.

Its input is taken and dropped: only a plug-in's program reads it (`Program.session`).
Source: k8s.io/cri-streaming/pkg/streaming/remotecommand.
"""

from collections import deque

from fleet.k8s.streams import Output
from fleet.profile.pod_behavior import ContainerBehavior
from fleet.runtime.files import FileChange
from fleet.runtime.program import Process, Program, Run, Session, Steps, Written
from fleet.runtime.programs import declared_run, script_in

ROUNDS_MAX = 50
KILLED = 137


class _Answer:
    """A command of which all is known in advance, as the steps of one that is followed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._coming = deque(run.written)
        self.written: list[Written] = []
        self.changes = list(run.changes)
        self.end_ns: int | None = None
        self.is_lost = run.run_ns is None
        self.status = run.exit_code
        self.clock_ns = self._coming[0].after_ns if self._coming else run.run_ns or 0

    def advance(self, until_ns: int, _rounds: int) -> bool:
        """Say what is due by an instant."""
        while self._coming and self._coming[0].after_ns <= until_ns:
            self.written.append(self._coming.popleft())
        self.clock_ns = self._coming[0].after_ns if self._coming else self._run.run_ns or 0
        if not self._coming and self._run.run_ns is not None and self._run.run_ns <= until_ns:
            self.end_ns = self._run.run_ns
        return True


class DeafSession:
    """What the sessions of commands share that read no input."""

    def write(self, data: bytes, _now_ns: int) -> int:
        """Take input, which nobody reads."""
        return len(data)

    def close_stdin(self, now_ns: int) -> None:
        """Learn that the input is complete."""


class StepsSession(DeafSession):
    """One command in a container, from its start at an instant on."""

    def __init__(self, steps: Steps, start_ns: int, *, tty: bool) -> None:
        self._steps = steps
        self._tty = tty
        self._pending: deque[tuple[bool, bytes]] = deque()  # whether to stderr, and what
        self._is_killed = False
        self.start_ns = start_ns
        self.changes: list[FileChange] = []
        self._follow(start_ns)

    def close(self, _now_ns: int) -> None:
        """End: the client went away."""
        self._is_killed = True
        self._pending.clear()

    def advance(self, limit: int, now_ns: int) -> Output:
        """Return at most so many bytes of what was said up to an instant."""
        reached = self._is_killed or self._follow(now_ns)
        out, err = bytearray(), bytearray()
        while self._pending and (room := limit - len(out) - len(err)) > 0:
            is_error, data = self._pending.popleft()
            target = err if is_error and not self._tty else out
            target += data[:room]
            if len(data) > room:
                self._pending.appendleft((is_error, data[room:]))
        more, steps = bool(self._pending) or not reached, self._steps
        code = None
        if not more and (self._is_killed or steps.end_ns is not None):
            code = KILLED if self._is_killed else steps.status
        is_waiting = more or code is not None or steps.is_lost
        wake_ns = None if is_waiting else self.start_ns + steps.clock_ns
        return Output(bytes(out), bytes(err), wake_ns, more, code)

    def _follow(self, now_ns: int) -> bool:
        """Let the command run up to an instant; return whether it was reached."""
        steps = self._steps
        reached = steps.advance(now_ns - self.start_ns, ROUNDS_MAX)
        for each in steps.written:
            if not each.path:
                data = each.text.encode("utf-8", "surrogateescape")
                self._pending.append(
                    (each.is_error, data.replace(b"\n", b"\r\n") if self._tty else data)
                )
        steps.written.clear()
        self.changes += steps.changes
        steps.changes.clear()
        return reached


def session_in(
    process: Process,
    words: tuple[str, ...],
    program: Program,
    behavior: ContainerBehavior,
    *,
    stdin: bool,
    tty: bool,
) -> Session:
    """Return a command of a user in a container: as declared, as its program says, as read."""
    declared = declared_run(words, behavior)
    if declared is None:
        found = program.session(process, words, stdin=stdin, tty=tty)
        if found is not None:
            return found
        declared = program.exec(process, words)
    steps = script_in(process, words) if declared is None else _Answer(declared)
    return StepsSession(steps, process.start_ns, tty=tty)
