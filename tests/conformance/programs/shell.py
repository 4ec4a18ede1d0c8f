"""The interpreter of shell scripts: runs one in no time and notes when what would have happened.

Understood are the programs of `builtins.py`, `programs.py` and `file_programs.py`. In a container
whose image nobody knows, any other command succeeds at once, and what depends on its output is
doubtful: it is as a script hopes. A script that becomes such a program (`exec`), or whose syntax
is not understood, is unknown from there on. To somebody who looks (`Surroundings.is_whole`) an
unknown command is a program that is not found.

SIGTERM does nothing to PID 1 without a `trap`; its handler runs when the command that runs is over.
Source: POSIX.1-2024, Shell & Utilities, 2.8 Exit Status and Errors, 2.14 Special Built-Ins; the
words of errors are those of busybox.
Differs: the commands of a pipe run one after another, each on all that the one before printed.
"""

import contextlib
import posixpath
from collections.abc import Iterable, Iterator, Sequence

from .budget import (
    COMMAND_UNITS,
    COPIED_SHIFT,
    LINE_UNITS,
    UNITS,
    UNITS_WHOLE,
    Budget,
    OverBudgetError,
)
from .builtins import BUILTINS, is_hoped
from .file_programs import FILE_PROGRAMS, NOT_WRITTEN, READ_ONLY
from .programs import TEXT_PROGRAMS, run_program
from .signals import (
    Break,
    Continue,
    Exit,
    InputNeeded,
    Replaced,
    needs_input,
)
from .surroundings import (
    ANY_FILE,
    FileChange,
    Look,
    ReadOnlyFileSystemError,
    Surroundings,
    Written,
)
from .syntax import (
    UNKNOWN,
    AndOr,
    Command,
    Condition,
    EndlessScriptError,
    For,
    Group,
    If,
    Loop,
    Not,
    Pipe,
    Simple,
    UnknownScriptError,
    parse_script,
)
from .words import evaluate_test, expand_text, expand_word

STEPS_MAX = 1000
"""A script that runs more commands, or so many without any time passing, never ends."""
TEXT_MAX = 4096
"""What a variable, or an output that is captured, may hold in a script."""
TEXT_WHOLE_MAX = 16 << 20
"""The same for somebody who looks: `kubectl cp` reads an archive through a pipe."""
ARGUMENT_MAX = 128 << 10
"""Of one argument, or variable. Source: Linux, fs/exec.c, MAX_ARG_STRLEN."""
ARGUMENTS_MAX = 4096
"""Of one command. Source: execve(2), E2BIG, which depends on their lengths too."""
TOO_MANY_ARGUMENTS = "argument list too long"
_FILE_UNITS = 500
"""To find a file among those that were written."""
NOT_FOUND_CODE = 127
USAGE_CODE = 2
_REDIRECTIONS = frozenset((">", ">>", "1>", "1>>", "2>", "2>>", "&>", "<", "0<"))
_DUPLICATES = frozenset((">&", "1>&", "2>&"))
_STREAMS = {
    "/dev/stdout": False,
    "/dev/stderr": True,
    "/proc/1/fd/1": False,
    "/proc/1/fd/2": True,
    "/proc/self/fd/1": False,
    "/proc/self/fd/2": True,
}
_DEVICES = frozenset(("/dev/null", "/dev/termination-log"))
_TESTS = frozenset(("test", "[", "false"))
"""What does not succeed on account of something unknown: a test has found what is hoped for."""
_OUT, _ERR = "\x00out", "\x00err"


class Reading:
    """How a program reads files: it pays for them, and those that are missing are noted."""

    __slots__ = ("_shell", "missing")

    def __init__(self, shell: "Shell") -> None:
        self._shell = shell
        self.missing: list[str] = []

    def __call__(self, path: str) -> str | None:
        """Return the text of a file, None if there is none."""
        text = self._shell.read(path)
        if text is None:
            self.missing.append(path)
        return text

    def spend(self, units: int) -> None:
        """Pay for what is done with a text. Raises OverBudgetError."""
        self._shell.budget.spend(units)


class Shell:
    """One run; programs read and write through it."""

    __slots__ = (
        "_captured",
        "_complaints",
        *("_doubtful", "_doubts"),
        "_files",
        "_is_piped_doubtful",
        "_is_single",
        "_is_tested",
        "_knows_cwd",
        "_paid_ns",
        "_random",
        "_shift",
        "_steps",
        *("_subshells", "_term_ns"),
        "_wall_ns",
        *("budget", "changes", "clock_ns"),
        "cwd",
        "ends_unknown",
        "fails_in_pipes",
        *("is_doubtful", "is_whole", "loops"),
        "name",
        *("no_new_privs", "own_names"),
        "piped",
        "status",
        "stops_at_error",
        "text_max",
        "traps",
        "user",
        "variables",
        "written",
    )

    def __init__(
        self, around: Surroundings, *, stops_at_error: bool = False, name: str = "sh"
    ) -> None:
        self.name = name
        self.variables = dict(around.variables)
        self.is_whole = around.is_whole
        self.text_max = TEXT_WHOLE_MAX if around.is_whole else TEXT_MAX
        own_units = UNITS_WHOLE if around.is_whole else UNITS
        self.budget = Budget(own_units) if around.budget is None else around.budget
        # What a script prints is kept with its run; what a user's command does is sent.
        self._shift = COPIED_SHIFT if around.is_whole else 0
        given = around.input
        self.piped = None if given is None else given.decode("utf-8", "surrogateescape")
        self.stops_at_error = stops_at_error
        self.user = around.user
        self.no_new_privs = around.no_new_privs
        self.cwd = around.cwd or "/"
        # An image that nobody knows may begin elsewhere.
        self._knows_cwd = around.is_whole or around.cwd != ""
        self.clock_ns = 0  # since the start
        self.status = 0
        self.written: list[Written] = []
        self.changes: list[FileChange] = []
        self._files = around.files
        self._wall_ns = around.start_ns
        self._random = int(around.draw * 2**31)
        self._is_tested = 0
        self._steps = 0
        self._paid_ns = 0  # up to when the budget is that of now
        self._captured: list[str] = []  # what the commands around this one printed so far
        self._complaints: list[str] = []  # the same of stderr
        self._subshells = 0  # around the command that runs
        self.loops = 0
        self._is_single = False  # the script is nothing but one command
        self.fails_in_pipes = False  # set -o pipefail
        self.traps: dict[str, str] = {}  # handlers, by the names of signals
        self._term_ns = around.term_ns  # None once its handler has run
        self._doubts = 0  # how often something unknown was met
        self._doubtful: set[str] = set()  # variables that depend on it
        self.own_names: frozenset[str] = frozenset()  # that the script sets: unset is "" there
        self._is_piped_doubtful = False
        self.is_doubtful = False  # the arguments or the input of the command that runs are
        self.ends_unknown = False  # the last command was unknown

    @property
    def wall_ns(self) -> int:
        """Return the time of day. Raises UnknownScriptError."""
        if not self._wall_ns:
            raise UnknownScriptError("date")
        return self._wall_ns + self.clock_ns

    def steps(self, script: Group) -> Iterator[None]:
        """Run a script; between its commands, and the rounds of its loops, it can be left.

        Raises Exit, Replaced, UnknownScriptError, InputNeeded.
        """
        self._is_single = len(script.commands) == 1 and isinstance(script.commands[0], Simple)
        for command in script.commands:
            if isinstance(command, Loop):
                while self._goes_on(command) and self._round(command.body):
                    yield
                self.status = 0
            else:
                self.run(command)
                yield

    def forget_steps(self) -> None:
        """Allow as many commands again, between two of a script's own."""
        self._steps = self._is_tested = 0
        self.forget_output()
        self.budget.begin()

    def forget_output(self) -> None:
        """Drop what commands printed so far that were left in their middle."""
        self._captured.clear()
        self._complaints.clear()

    def run(self, command: Command) -> None:
        """Run a command; one that is unknown succeeds at once.

        Raises Exit, Replaced, UnknownScriptError, InputNeeded, OverBudgetError.
        """
        self._steps += 1
        if self._steps > STEPS_MAX and not self.skip_to_signal():
            raise EndlessScriptError("it does not end")
        if self.clock_ns > self._paid_ns:
            self._paid_ns = self.clock_ns
            if not self.budget.refill() and not self.skip_to_signal():
                raise EndlessScriptError("it does not end")
        self.budget.spend(COMMAND_UNITS)
        try:
            with self.budget:
                self._run(command)
        except EndlessScriptError:
            raise
        except UnknownScriptError:
            if self.is_whole:
                raise
            if self._is_single:
                self.be_replaced()
            self._doubts += 1
            self.changes.append(FileChange(self.clock_ns, ANY_FILE, None))
            self.status, self.ends_unknown = 0, True
        self.heed_signal()

    def be_replaced(self) -> None:
        """Become a program that is not understood, unless this is a subshell. Raises Replaced."""
        if not self._subshells:
            raise Replaced
        self.status = 0

    def skip_to_signal(self) -> bool:
        """Go to the instant of SIGTERM if it is still to come and has a handler.

        A script of many rounds is then what it was in the last one that was run.
        """
        if self._term_ns is None or self.clock_ns >= self._term_ns or not self.traps.get("TERM"):
            return False
        self.clock_ns, self._steps = self._term_ns, 0
        self.budget.begin()
        return True

    def heed_signal(self) -> None:
        """Run the handler of SIGTERM once it has come. Raises Exit."""
        handler = self.traps.get("TERM")
        if not handler or self._subshells or self._term_ns is None:
            return
        if self.clock_ns >= self._term_ns:
            self._term_ns = None
            status = self.status
            self._group(parse_script(handler).commands, is_subshell=False)
            self.status = status

    def run_exit_trap(self) -> None:
        """Run what the script wants to be run at its end."""
        handler = self.traps.pop("EXIT", "")
        if handler:
            status, ends_unknown = self.status, self.ends_unknown
            self.stops_at_error = False
            with contextlib.suppress(EndlessScriptError, OverBudgetError):
                self._group(parse_script(handler).commands, is_subshell=True)
            self.status, self.ends_unknown = status, ends_unknown

    def _run(self, command: Command) -> None:
        match command:
            case Simple(words):
                if UNKNOWN in words and not (self.is_whole or self._subshells):
                    raise Replaced
                self._simple(command)
                self._stop_at_error()
            case Condition(words):
                before = self._doubts
                texts = [self._text(each) for each in words]
                is_doubtful = self._doubts != before
                found = is_hoped(texts) if is_doubtful else evaluate_test(texts, self.read)
                self.status, self.ends_unknown = int(not found), False
                self._stop_at_error()
            case Group(commands, is_subshell):
                self._group(commands, is_subshell=is_subshell)
            case AndOr(first, rest):
                self._and_or(first, rest)
            case Pipe(commands):
                self._pipe(commands)
                self._stop_at_error()
            case Not(inner):
                self.status = int(self._is_true(inner))
            case If(branches):
                self._if(branches)
            case Loop() | For():
                self._repeat(command)

    def run_alone(self, name: str, args: list[str]) -> None:
        """Run a program that no shell runs. Raises Exit, UnknownScriptError, InputNeeded."""
        self._simple(Simple((), ()), [name, *args])

    def run_program(self, path: str, args: list[str]) -> None:
        """Run a program by its name or path."""
        name = path.rpartition("/")[2]
        try:
            with self.budget:  # `exec exec exec true`
                if not self._run_known(name, args):
                    self._not_found(path)
        except UnknownScriptError as error:
            if not self.is_whole:
                raise
            self.complain(f"{name}: {error}: not emulated\n")
            self.status = USAGE_CODE

    def _run_known(self, name: str, args: list[str]) -> bool:
        """Run a program; False if there is none of that name."""
        read = Reading(self)
        if self.piped is None and self.is_whole and needs_input(name, args):
            raise InputNeeded(name)
        done = run_program(name, args, read, self.piped)
        if done is not None:
            printed, self.status = done
            self.print(printed)
            opened = "can't open '%s': " if name == "cat" else "%s: "
            for path in read.missing:
                self.complain(f"{name}: {opened % path}No such file or directory\n")
            return True
        program = BUILTINS.get(name) or FILE_PROGRAMS.get(name)
        if program is None:
            return False
        try:
            self.status = program(self, args)
        except ReadOnlyFileSystemError as error:
            self.complain(f"{name}: {NOT_WRITTEN.get(name, '%s') % error}: {READ_ONLY}\n")
            self.status = 1
        return True

    def _not_found(self, path: str) -> None:
        if not self.is_whole:
            raise UnknownScriptError(path)
        if path == UNKNOWN:
            self.complain(f"{self.name}: syntax error: not emulated\n")
            self.status = USAGE_CODE
            return
        if "/" in path and self.read(path) is not None:
            self.complain(f"{self.name}: {path}: Permission denied\n")
            self.status = NOT_FOUND_CODE - 1
            return
        self.complain(f"{self.name}: {path}: not found\n")
        self.status = NOT_FOUND_CODE

    @staticmethod
    def knows(path: str) -> bool:
        """Return whether there is a program of a name or path."""
        name = path.rpartition("/")[2]
        return name in BUILTINS or name in FILE_PROGRAMS or name in TEXT_PROGRAMS

    def print(self, text: str) -> None:
        """Write to stdout."""
        if not self._shift:
            self.budget.spend(LINE_UNITS * text.count("\n"))
        if self._captured:
            text = text[: self.text_max - len(self._captured[-1])]
            self.budget.spend(len(text) >> self._shift)
            self._captured[-1] += text
        elif text:
            self.written.append(Written(self.clock_ns, "", text))

    def complain(self, text: str) -> None:
        """Write to stderr."""
        if not self._shift:
            self.budget.spend(LINE_UNITS * text.count("\n"))
        if self._complaints:
            text = text[: self.text_max - len(self._complaints[-1])]
            self.budget.spend(len(text) >> self._shift)
            self._complaints[-1] += text
        elif text:
            self.written.append(Written(self.clock_ns, "", text, is_error=True))

    def flush(self) -> None:
        """Let go what the program that runs has printed so far: it ends the script."""
        if self._captured:
            self.print(self._captured.pop())

    def path(self, path: str) -> str:
        """Return the absolute path of one. Raises UnknownScriptError."""
        if path.startswith("/"):
            return path
        if not self._knows_cwd:
            raise UnknownScriptError(path)
        return posixpath.normpath(posixpath.join(self.cwd, path))

    def enter(self, path: str) -> None:
        """Make a directory the current one."""
        self.cwd = path
        self._knows_cwd = True

    def read(self, path: str) -> str | None:
        """Return a file's text, None if there is none, "/" for a directory."""
        if self._files is None:
            raise UnknownScriptError(path)
        self._files.at(self.clock_ns)
        text = self._files.read(self.path(path))
        self.budget.spend(_FILE_UNITS + (len(text or "") >> COPIED_SHIFT))
        return text

    def look(self, path: str) -> Look | None:
        """Return what is said of a file, None if there is none."""
        if self._files is None:
            raise UnknownScriptError(path)
        self._files.at(self.clock_ns)
        return self._files.look(self.path(path))

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it, and what is below it.

        Raises ReadOnlyFileSystemError with the path as it was given.
        """
        where = self.path(path)
        self.budget.spend(_FILE_UNITS + (len(text or "") >> self._shift))
        if self._files is not None:
            self._files.at(self.clock_ns)
            try:
                self._files.write(where, text)
            except ReadOnlyFileSystemError:
                raise ReadOnlyFileSystemError(path) from None
            self.changes.append(FileChange(self.clock_ns, where, text))

    def names(self, path: str) -> Sequence[str]:
        """Return what is in a directory."""
        if self._files is None:
            raise UnknownScriptError(path)
        self._files.at(self.clock_ns)
        return self._files.names(self.path(path))

    def _stop_at_error(self) -> None:
        if self.status and self.stops_at_error and not self._is_tested:
            raise Exit

    def _is_true(self, command: Command) -> bool:
        """Run a command whose failure is no error. Source: the rules of `set -e`."""
        self._is_tested += 1
        self.run(command)
        self._is_tested -= 1
        return not self.status

    def _group(self, commands: Iterable[Command], *, is_subshell: bool) -> None:
        if not is_subshell:
            for each in commands:
                self.run(each)
            return
        self.budget.spend(len(self.variables))
        self._subshells += 1
        variables, cwd, knows_cwd = dict(self.variables), self.cwd, self._knows_cwd
        tested, captured = self._is_tested, len(self._captured)
        complained = len(self._complaints)
        try:
            for each in commands:
                self.run(each)
        except (Exit, Break, Continue):
            self._is_tested = tested
            del self._captured[captured:]
            del self._complaints[complained:]
        self._subshells -= 1
        self.variables, self.cwd, self._knows_cwd = variables, cwd, knows_cwd
        self._stop_at_error()

    def _pipe(self, commands: tuple[Command, ...]) -> None:
        """Run commands side by side, each in a subshell; the last one decides."""
        before, start_ns, end_ns = self.piped, self.clock_ns, self.clock_ns
        was_doubtful, failure = self._is_piped_doubtful, 0
        self._is_tested += 1
        for command in commands:
            self._captured.append("")
            self.clock_ns = start_ns
            doubts = self._doubts
            self._group((command,), is_subshell=True)
            self._is_piped_doubtful = self._is_piped_doubtful or self._doubts != doubts
            failure = self.status or failure
            end_ns = max(end_ns, self.clock_ns)
            self.piped = self._captured.pop()
        self._is_tested -= 1
        self._is_piped_doubtful = was_doubtful
        if self.fails_in_pipes:
            self.status = failure
        printed, self.piped, self.clock_ns = self.piped or "", before, end_ns
        self.print(printed)

    def _and_or(self, first: Command, rest: tuple[tuple[str, Command], ...]) -> None:
        last = rest[-1]
        self._is_true(first)
        for pair in rest:
            operator, command = pair
            if (operator == "&&") == bool(self.status):
                continue
            if pair is last:
                self.run(command)
            else:
                self._is_true(command)

    def _if(self, branches: tuple[tuple[Group | None, Group], ...]) -> None:
        for condition, body in branches:
            if condition is None or self._is_true(condition):
                self.status = 0
                self.run(body)
                return
        self.status = 0

    def _repeat(self, loop: Loop | For) -> None:
        if isinstance(loop, Loop):
            while self._goes_on(loop) and self._round(loop.body):
                pass
            self.status = 0
            return
        for value in [field for word in loop.words for field in self._fields(word)]:
            self.variables[loop.name] = value
            if not self._round(loop.body):
                return

    def _goes_on(self, loop: Loop) -> bool:
        """Return whether a loop has another round; one that waits for what is unknown is over."""
        before = self._doubts
        is_true = self._is_true(loop.condition)
        return self._doubts == before and is_true is not loop.until

    def _round(self, body: Group) -> bool:
        """Run the body of a loop once; return whether the loop may go on."""
        self.loops += 1
        try:
            self.run(body)
        except Continue:
            pass
        except Break:
            return False
        finally:
            self.loops -= 1
        return True

    def _simple(self, command: Simple, fields: list[str] | None = None) -> None:
        before = self._doubts
        if fields is None:
            fields = self._expanded(command.words)
        piped = self.piped
        sinks = self._sinks(command.redirections)
        self.is_doubtful = is_doubtful = self._is_piped_doubtful or self._doubts != before
        self.ends_unknown = False
        self._captured.append("")
        self._complaints.append("")
        depth = len(self._captured)
        try:
            if len(fields) > ARGUMENTS_MAX:
                raise OverBudgetError(TOO_MANY_ARGUMENTS)
            if fields and sinks is not None:
                self.run_program(fields[0], fields[1:])
                if is_doubtful and fields[0] not in _TESTS:
                    self.status = 0
                self.ends_unknown = self._is_piped_doubtful
        finally:
            # `exec` has let its program's output go already.
            printed = self._captured.pop() if len(self._captured) == depth else ""
            complained = self._complaints.pop()
            self.piped = piped
            if sinks is not None:
                self._deliver(printed, sinks[0])
                self._deliver(complained, sinks[1])
            else:
                self.complain(complained)

    def _expanded(self, raw: Iterable[str]) -> list[str]:
        """Return the fields of a command; assignments alone change the variables."""
        words = list(raw)
        assigned = {}
        while words and (pair := words[0].partition("="))[1] and pair[0].isidentifier():
            before = self._doubts
            assigned[pair[0]] = self._text(pair[2]), self._doubts != before
            del words[0]
        fields = [field for word in words for field in self._fields(word)]
        if not fields:
            for name, (value, is_doubtful) in assigned.items():
                self.assign(name, value, is_doubtful=is_doubtful)
            self.status = 0
        return fields

    def assign(self, name: str, value: str, *, is_doubtful: bool) -> None:
        """Set a variable, which depends on something unknown or does not."""
        self.variables[name] = value
        self._doubtful.discard(name)
        if is_doubtful:
            self._doubtful.add(name)

    def _sinks(self, redirections: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
        """Open what a command reads and writes; return where stdout and stderr go, None if not."""
        out, err = _OUT, _ERR
        for operator, raw in redirections:
            target = self._text(raw)
            if operator in _DUPLICATES:
                if operator == "2>&":
                    err = out if target == "1" else err
                else:
                    out = err if target == "2" else out
                continue
            if operator not in _REDIRECTIONS:
                raise UnknownScriptError(operator)
            if operator in {"<", "0<"}:
                text = "" if target == "/dev/null" else self.read(target)
                if text is None:
                    self.complain(f"{self.name}: can't open {target}: no such file\n")
                    self.status = 1
                    return None
                self.piped = text
                continue
            try:
                sink = self._open(target, appends=operator.endswith(">>"))
            except ReadOnlyFileSystemError:
                self.complain(f"{self.name}: can't create {target}: {READ_ONLY}\n")
                self.status = 1
                return None
            if not operator.startswith("2"):
                out = sink
            if operator.startswith(("2", "&")):
                err = sink
        return out, err

    def _open(self, target: str, *, appends: bool) -> str:
        """Return where a redirection leads; a file is emptied."""
        if target in _STREAMS:
            return _ERR if _STREAMS[target] else _OUT
        if target not in _DEVICES:
            kept = self._files is not None and appends
            if not kept or self.read(target) is None:
                self.write(target, "")
        return target

    def _deliver(self, text: str, sink: str) -> None:
        if sink == _OUT:
            self.print(text)
        elif sink == _ERR:
            self.complain(text)
        elif text and sink != "/dev/null":
            if sink not in _DEVICES and self._files is not None:
                self.write(sink, ((self.read(sink) or "") + text)[: self.text_max])
            self.written.append(Written(self.clock_ns, sink, text))

    def _text(self, raw: str) -> str:
        text = expand_text(raw, self._lookup, self._substitute, self.budget)
        return text[: min(self.text_max, ARGUMENT_MAX)]

    def _fields(self, raw: str) -> list[str]:
        fields = expand_word(raw, self._lookup, self._substitute, self.budget)
        if any(len(field) > ARGUMENT_MAX for field in fields):
            raise OverBudgetError(TOO_MANY_ARGUMENTS)
        return fields

    def draw(self) -> int:
        """Return a number of 15 bits.

        Source: any generator will do; this is the example of the C standard.
        """
        self._random = (self._random * 1103515245 + 12345) % 2**31
        return self._random >> 16

    def _lookup(self, name: str) -> str:
        if name == "?":
            return str(self.status)
        if name == "RANDOM":
            return str(self.draw())
        value = self.variables.get(name)
        if value is not None:
            self._doubts += name in self._doubtful
            return value
        if self.is_whole:
            return self.cwd if name == "PWD" else ""
        self._doubts += name not in self.own_names
        return ""

    def _substitute(self, script: str) -> str:
        self._captured.append("")
        self._group(parse_script(script).commands, is_subshell=True)
        return self._captured.pop()
