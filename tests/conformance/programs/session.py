"""A command that somebody runs in a container: its input, and what it says when.

    waits for its input --stdin is closed--> runs --its last output was read--> over

A shell without a script reads lines and answers each; with a terminal it has a prompt and echoes
what is typed. Any other command starts at once unless it reads stdin: then it starts when that is
complete, since it runs in no time.
Source: k8s.io/cri-streaming/pkg/streaming/remotecommand; termios(3) for the line discipline.
Differs: `cat` without a file answers when its input is complete, not line by line.
"""

from collections import deque
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

from fleet.k8s.streams import Output

from .agnhost import is_agnhost
from .budget import UNITS, OverBudgetError
from .process import SHELLS, Process, is_shell
from .shell import Shell
from .signals import Exit, InputNeeded
from .surroundings import FileChange, Surroundings, Written
from .syntax import UnknownScriptError, parse_script

INPUT_MAX = 32 << 20
"""What is kept of an input until it is complete: `kubectl cp` of a directory."""
LINE_MAX = 4096
"""A longer line is cut, as a terminal's is (MAX_CANON)."""
ROUNDS_MAX = 50
LINES_MAX = 50
"""So many lines of its input a shell runs before others have a turn."""
FAR_NS = 1 << 62
INTERRUPTED = 130
KILLED = 137
NOT_FOUND = 127
NOT_EXECUTABLE = 126
_INTERRUPT, _END, _ERASE, _BACKSPACE = 0x03, 0x04, 0x7F, 0x08
_OCI = "OCI runtime exec failed: exec failed: unable to start container process: exec: "


class Around(Protocol):
    """What a command finds around it."""

    def __call__(self, given: bytes | None, *, is_trial: bool) -> Surroundings:
        """Return it by the input; what a trial writes nobody sees."""


class Session:
    """One command in a container, from its start at an instant on."""

    __slots__ = (
        "_around",
        "_echoed",
        "_error",
        "_exit",
        "_input",
        "_is_input_open",
        "_line",
        "_pending",
        "_process",
        "_shell",
        "_tty",
        "_words",
        "changes",
        "start_ns",
    )

    def __init__(
        self, words: Sequence[str], around: Around, now_ns: int, *, stdin: bool, tty: bool
    ) -> None:
        self._words = tuple(words)
        self._around = around
        self.start_ns = now_ns
        self._tty = tty
        self._input = bytearray()
        self._is_input_open = stdin
        self._line = bytearray()  # that is being typed
        self._pending: deque[tuple[int, bool, bytes]] = deque()  # when, to stderr, what
        self._echoed = bytearray()
        self._process: Process | None = None
        self._shell: Shell | None = None
        self._exit: tuple[int, int] | None = None  # when, and the code
        self._error = ""
        self.changes: list[FileChange] = []  # of files, since somebody looked
        self._begin()

    def _begin(self) -> None:
        if is_shell(self._words):
            self._shell = Shell(self._around(None, is_trial=False))
            self._prompt()
            if not self._is_input_open:
                self._end(0)
            return
        self._error = self._start_error()
        if self._error:
            return
        if not self._is_input_open:
            self._start(b"")
        elif not self.reads_input(self._words, self._around(None, is_trial=True)):
            self._start(None)

    def _start_error(self) -> str:
        """Return why the runtime cannot start a command. Source: runc, libcontainer."""
        program = self._words[0] if self._words else ""
        if is_agnhost(self._words) or Shell.knows(program) or program.rpartition("/")[2] in SHELLS:
            return ""
        files = self._around(None, is_trial=True).files
        is_path = "/" in program
        if is_path and files is not None and files.read(program) is not None:
            self._exit = (0, NOT_EXECUTABLE)
            return self._not_started(f'"{program}": permission denied')
        self._exit = (0, NOT_FOUND)
        why = "executable file not found in $PATH"
        if is_path:
            why = f"stat {program}: no such file or directory"
        return self._not_started(f'"{program}": {why}')

    def _not_started(self, why: str) -> str:
        """Say it as containerd does, which gives each exec a number of 256 bits.

        Source: containerd/internal/cri/server, container_execsync.go, execInternal.
        """
        number = sha256(f"{self.start_ns} {self._words}".encode()).hexdigest()
        return f'failed to exec in container: failed to start exec "{number}": {_OCI}{why}: unknown'

    @staticmethod
    def reads_input(words: Sequence[str], around: Surroundings) -> bool:
        """Return whether a command reads stdin; it is tried in surroundings made for that."""
        try:
            Process(words, around).advance(FAR_NS, ROUNDS_MAX)
        except InputNeeded:
            return True
        return False

    def _start(self, given: bytes | None) -> None:
        self._process = Process(self._words, self._around(given, is_trial=False))

    # ---- what comes in ----

    def write(self, data: bytes, now_ns: int) -> int:
        """Take input; return how many bytes of it."""
        if not self._is_input_open:
            return len(data)
        room = INPUT_MAX - len(self._input)
        taken = data[: max(room, 0)]
        if self._tty:
            for char in taken:
                self._type(char, now_ns)
        else:
            self._input += taken
            if self._shell is not None:
                self._run_lines(now_ns)
        return len(taken)

    def close_stdin(self, now_ns: int) -> None:
        """Learn that the input is complete."""
        if not self._is_input_open:
            return
        self._is_input_open = False
        if self._shell is not None:
            if self._input and not self._input.endswith(b"\n"):
                self._input += b"\n"
            self._run_lines(now_ns)
        elif self._process is None and not self._error:
            self.start_ns = now_ns
            self._start(bytes(self._input))
            self._input.clear()

    def close(self, _now_ns: int) -> None:
        """End: the client went away. What is not written yet never will be."""
        self._exit = self._exit or (0, KILLED)
        self._pending.clear()
        self._process = self._shell = None

    def _type(self, char: int, now_ns: int) -> None:
        """Take a character as a terminal does: a line is read when it is complete."""
        if char == _INTERRUPT:
            self._interrupt(now_ns)
        elif char == _END:
            if not self._line:
                self.close_stdin(now_ns)
        elif char in {_ERASE, _BACKSPACE}:
            if self._line:
                del self._line[-1]
                self._echoed += b"\b \b"
        elif char in b"\r\n":
            self._echoed += b"\r\n"
            self._input += self._line + b"\n"
            self._line.clear()
            if self._shell is not None:
                self._run_lines(now_ns)
        elif len(self._line) < LINE_MAX:
            self._line.append(char)
            self._echoed.append(char)

    def _interrupt(self, now_ns: int) -> None:
        self._echoed += b"^C\r\n"
        self._line.clear()
        self._pending.clear()
        if self._shell is None:
            self._process = None
            self._is_input_open = False
            self._exit = (now_ns - self.start_ns, INTERRUPTED)
            return
        self._shell.clock_ns = now_ns - self.start_ns
        self._shell.status = INTERRUPTED
        self._exit = None
        self._prompt()
        self._run_lines(now_ns)

    # ---- a shell that reads lines ----

    def _prompt(self) -> None:
        shell = self._shell
        if self._tty and shell is not None:
            prompt = f"{shell.cwd} # ".encode()
            self._pending.append((shell.clock_ns, False, prompt))

    def _run_lines(self, now_ns: int) -> None:
        """Run lines that were read, as long as none of them takes time and others do not wait."""
        shell = self._shell
        spent = count = 0
        while shell is not None and self._exit is None:
            if shell.clock_ns > now_ns - self.start_ns or spent > UNITS or count == LINES_MAX:
                return  # the line before runs, or `advance` is called again
            end = self._input.find(b"\n")
            if end < 0:
                break
            line = bytes(self._input[:end])
            del self._input[: end + 1]
            shell.clock_ns = now_ns - self.start_ns
            self._run_line(shell, line.decode("utf-8", "surrogateescape"))
            spent += shell.budget.spent
            count += 1
        if shell is not None and self._exit is None and not self._is_input_open:
            self._end(shell.clock_ns)

    def _run_line(self, shell: Shell, line: str) -> None:
        shell.forget_steps()
        try:
            for _ in shell.steps(parse_script(line)):
                pass
        except Exit:
            self._end(shell.clock_ns)
        except InputNeeded:
            shell.status = 0
        except (UnknownScriptError, OverBudgetError) as error:
            shell.forget_output()
            shell.complain(f"{shell.name}: {error}\n")
            shell.status = 2
        self._take(shell.written, shell.changes)
        if self._exit is None:
            self._prompt()

    def _end(self, after_ns: int) -> None:
        assert self._shell is not None
        self._exit = (after_ns, self._shell.status)

    # ---- what goes out ----

    def advance(self, limit: int, now_ns: int) -> Output:
        """Return at most so many bytes of what was said up to an instant."""
        if self._error:
            assert self._exit is not None
            return Output(exit_code=self._exit[1], error=self._error)
        after_ns = now_ns - self.start_ns
        if self._shell is not None:
            self._run_lines(now_ns)
        reached = self._follow(after_ns)
        out, err = bytearray(self._echoed[:limit]), bytearray()
        del self._echoed[:limit]
        while self._pending and self._pending[0][0] <= after_ns:
            room = limit - len(out) - len(err)
            if room <= 0:
                break
            at_ns, is_error, data = self._pending.popleft()
            target = err if is_error and not self._tty else out
            target += data[:room]
            if len(data) > room:
                self._pending.appendleft((at_ns, is_error, data[room:]))
        more = bool(self._echoed) or bool(self._pending and self._pending[0][0] <= after_ns)
        code = None
        if self._exit is not None and self._exit[0] <= after_ns and not more and not self._pending:
            code = self._exit[1]
        wake_ns = None if more or code is not None else self._wake_ns()
        if not reached and code is None:
            more = True
        return Output(bytes(out), bytes(err), wake_ns, more, code)

    def _follow(self, after_ns: int) -> bool:
        """Let the command run up to an instant; return whether it was reached."""
        process = self._process
        if process is None:
            return True
        try:
            reached = process.advance(after_ns, ROUNDS_MAX)
        except InputNeeded:
            process.end_ns = process.shell.clock_ns
            reached = True
        self._take(process.written, process.changes)
        if process.end_ns is not None and self._exit is None:
            self._exit = (process.end_ns, process.status)
        return reached

    def _take(self, written: list[Written], changes: list[FileChange]) -> None:
        """Take what a command printed, and note which files it changed."""
        for each in written:
            if not each.path:
                data = each.text.encode("utf-8", "surrogateescape")
                if self._tty:
                    data = data.replace(b"\n", b"\r\n")
                self._pending.append((each.after_ns, each.is_error, data))
        written.clear()
        self.changes += changes
        changes.clear()

    def _wake_ns(self) -> int | None:
        """Return when it goes on by itself; None: it waits for its input."""
        due = []
        if self._pending:
            due.append(self._pending[0][0])
        if self._exit is not None:
            due.append(self._exit[0])
        elif self._process is not None and not self._process.is_lost:
            due.append(self._process.shell.clock_ns)
        elif self._shell is not None and b"\n" in self._input:
            due.append(self._shell.clock_ns)
        return self.start_ns + min(due) if due else None
