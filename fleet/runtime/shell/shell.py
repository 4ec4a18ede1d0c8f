"""A shell script, run in no time: how long it would take, how it ends, which files it leaves.

Understood are the commands below, on files that other runs left in the pod's volumes. Whatever
else a script has makes it unknown as a whole: an unknown program may do anything.
Source: POSIX.1-2024, Shell & Utilities, 2.8 Exit Status and Errors, 2.14 Special Built-Ins.
Differs: files change when the script starts, not after its sleeps.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from fleet.clock import NS_PER_S
from fleet.runtime.shell.programs import run_program
from fleet.runtime.shell.syntax import (
    AndOr,
    Command,
    Condition,
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
from fleet.runtime.shell.words import evaluate_expr, evaluate_test, expand_text, expand_word

SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_SCRIPT_OPTIONS = frozenset(("-c", "-ec", "-ce", "-exc", "-xec", "-xc"))
WORDS_MAX = 64
"""A longer command line is not understood rather than read."""
STEPS_MAX = 1000
"""A script that runs more commands is taken for one that never ends."""
TEXT_MAX = 4096
"""What a variable or a file may hold."""
NOT_FOUND = 1
_SLEEP = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?([smhd]?)")
_SLEEP_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_REDIRECTIONS = frozenset((">", ">>", "1>", "1>>", "2>", "2>>", "&>"))
_STREAMS = frozenset(("/dev/stdout", "/dev/stderr", "/proc/1/fd/1", "/proc/1/fd/2"))
_DEVICES = frozenset(("/dev/null", "/dev/termination-log"))


class Files(Protocol):
    """The file system that a script sees; every path is absolute. A directory's text is "/"."""

    def read(self, path: str) -> str | None:
        """Return a file's text, None if there is none. Raises UnknownScriptError if unknown."""

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it."""


class Surroundings(NamedTuple):
    """What a command finds around it. A variable that is not here is unknown: images set some."""

    variables: Mapping[str, str]
    files: Files | None
    draw: float  # of [0, 1), for $RANDOM


class Written(NamedTuple):
    """A piece of output: when, where to ("" for the log), what."""

    after_ns: int
    path: str
    text: str


class FileChange(NamedTuple):
    """A file that a script made, replaced or removed (None), and when."""

    after_ns: int
    path: str
    text: str | None


class CommandRun(NamedTuple):
    """What a command does. `run_ns` is None when it runs until it is stopped."""

    run_ns: int | None
    exit_code: int = 0
    written: tuple[Written, ...] = ()
    changes: tuple[FileChange, ...] = ()

    def text(self, path: str, until_ns: int | None = None) -> str:
        """Return what was written to a path, "" for the log, within a time from the start."""
        return "".join(
            each.text
            for each in self.written
            if each.path == path and (until_ns is None or each.after_ns <= until_ns)
        )


NOWHERE = Surroundings({}, files=None, draw=0.0)
FOR_EVER = CommandRun(None)


def run_words(words: Sequence[str], around: Surroundings = NOWHERE) -> CommandRun:
    """Run a program, or a script through `sh -c`.

    From the first command that is not understood it runs for ever; so does what never ends.
    """
    if not words or len(words) > WORDS_MAX:
        return FOR_EVER
    program = words[0].rpartition("/")[2]
    if program in SHELLS and (len(words) < 3 or words[1] not in _SCRIPT_OPTIONS):
        return FOR_EVER
    shell = _Shell(around, stops_at_error=program in SHELLS and "e" in words[1])
    run_ns: int | None = None
    try:
        if program in SHELLS:
            shell.run(parse_script(words[2]))
        else:
            shell.run_alone(program, list(words[1:]))
        run_ns = shell.after_ns
    except _Exit:
        run_ns = shell.after_ns
    except UnknownScriptError:
        shell.status = 0
    return CommandRun(run_ns, shell.status, tuple(shell.written), tuple(shell.changes))


class _Exit(Exception):  # noqa: N818 - it is no error
    """The script runs `exit`; the status is the shell's."""


class _Shell:
    """One run."""

    __slots__ = (
        "_captured",
        "_files",
        "_is_tested",
        "_piped",
        "_random",
        "_steps",
        "_stops_at_error",
        "_variables",
        "after_ns",
        "changes",
        "status",
        "written",
    )

    def __init__(self, around: Surroundings, *, stops_at_error: bool) -> None:
        self._variables = dict(around.variables)
        self._files = around.files
        self._piped: str | None = None  # what the command before this one in a pipe printed
        self._random = int(around.draw * 2**31)
        self._stops_at_error = stops_at_error
        self._is_tested = 0
        self._steps = 0
        self._captured: list[str] = []  # what the commands around this one printed so far
        self.after_ns = 0
        self.status = 0
        self.written: list[Written] = []
        self.changes: list[FileChange] = []

    def run(self, command: Command) -> None:
        """Run a command. Raises _Exit, UnknownScriptError."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise UnknownScriptError("it does not end")
        match command:
            case Simple():
                self._simple(command)
                self._stop_at_error()
            case Condition(words):
                texts = [self._text(each) for each in words]
                self.status = int(not evaluate_test(texts, self._read))
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

    def _stop_at_error(self) -> None:
        if self.status and self._stops_at_error and not self._is_tested:
            raise _Exit

    def _is_true(self, command: Command) -> bool:
        """Run a command whose failure is no error. Source: the rules of `set -e`."""
        self._is_tested += 1
        self.run(command)
        self._is_tested -= 1
        return not self.status

    def _group(self, commands: Iterable[Command], *, is_subshell: bool) -> None:
        before = dict(self._variables) if is_subshell else self._variables
        tested, captured = self._is_tested, len(self._captured)
        try:
            for each in commands:
                self.run(each)
        except _Exit:
            if not is_subshell:
                raise
            self._is_tested = tested
            del self._captured[captured:]
        self._variables = before
        if is_subshell:
            self._stop_at_error()

    def _pipe(self, commands: tuple[Command, ...]) -> None:
        """Run commands side by side, each in a subshell; the last one decides."""
        before, start_ns, end_ns = self._piped, self.after_ns, self.after_ns
        self._is_tested += 1
        for command in commands:
            self._captured.append("")
            self.after_ns = start_ns
            self._group((command,), is_subshell=True)
            end_ns = max(end_ns, self.after_ns)
            self._piped = self._captured.pop()
        self._is_tested -= 1
        printed, self._piped, self.after_ns = self._piped or "", before, end_ns
        self._print(printed)

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
            while self._is_true(loop.condition) is not loop.until:
                self.run(loop.body)
            self.status = 0
            return
        for value in [field for word in loop.words for field in self._fields(word)]:
            self._variables[loop.name] = value
            self.run(loop.body)

    def _simple(self, command: Simple) -> None:
        words = list(command.words)
        assigned = {}
        while words and (pair := words[0].partition("="))[1] and pair[0].isidentifier():
            assigned[pair[0]] = self._text(pair[2])
            del words[0]
        fields = [field for word in words for field in self._fields(word)]
        if not fields:
            self._variables.update(assigned)
            self.status = 0
        self._captured.append("")
        if fields:
            self._run_program(fields[0].rpartition("/")[2], fields[1:])
        printed = self._captured.pop()
        for operator, target in command.redirections:
            printed = self._redirect(operator, self._text(target), printed)
        self._print(printed)

    def run_alone(self, name: str, args: list[str]) -> None:
        """Run a program that no shell runs. Raises _Exit, UnknownScriptError."""
        self._captured.append("")
        self._run_program(name, args)
        self._print(self._captured.pop())

    def _print(self, text: str) -> None:
        if self._captured:
            self._captured[-1] = (self._captured[-1] + text)[:TEXT_MAX]
        elif text:
            self.written.append(Written(self.after_ns, "", text))

    def _redirect(self, operator: str, target: str, printed: str) -> str:
        """Write what a command printed into a file; return what is left for the output."""
        if operator in {">&", "1>&", "2>&"}:  # the log has both streams
            return printed
        if operator not in _REDIRECTIONS:
            raise UnknownScriptError(operator)
        is_error = operator.startswith("2")
        if target in _STREAMS:
            return printed
        text = "" if is_error else printed
        if target not in _DEVICES:
            appends = self._files is not None and operator.endswith(">>")
            before = (self._read(target) or "") if appends else ""
            self._write(target, (before + text)[:TEXT_MAX])
        if text and target != "/dev/null":
            self.written.append(Written(self.after_ns, target, text))
        return printed if is_error else ""

    def _run_program(self, name: str, args: list[str]) -> None:
        done = run_program(name, args, self._read, self._piped)
        if done is not None:
            printed, self.status = done
            self._print(printed)
            return
        program = self._PROGRAMS.get(name)
        if program is None:
            raise UnknownScriptError(name)
        self.status = program(self, args)

    def _text(self, raw: str) -> str:
        return expand_text(raw, self._lookup, self._substitute)[:TEXT_MAX]

    def _fields(self, raw: str) -> list[str]:
        return expand_word(raw, self._lookup, self._substitute)

    def _lookup(self, name: str) -> str:
        if name == "?":
            return str(self.status)
        if name == "RANDOM":
            # Source: any generator will do; this is the example of the C standard.
            self._random = (self._random * 1103515245 + 12345) % 2**31
            return str(self._random >> 16)
        value = self._variables.get(name)
        if value is None:
            raise UnknownScriptError(name)
        return value

    def _substitute(self, script: str) -> str:
        self._captured.append("")
        self._group(parse_script(script).commands, is_subshell=True)
        return self._captured.pop()

    def _read(self, path: str) -> str | None:
        if self._files is None or not path.startswith("/"):
            raise UnknownScriptError(path)
        return self._files.read(path)

    def _write(self, path: str, text: str | None) -> None:
        if not path.startswith("/"):
            raise UnknownScriptError(path)
        if self._files is not None:
            self._files.write(path, text)
            self.changes.append(FileChange(self.after_ns, path, text))

    def _true(self, _args: list[str]) -> int:
        return 0

    def _false(self, _args: list[str]) -> int:
        return 1

    def _exit(self, args: list[str]) -> int:
        if args:
            if len(args) > 1 or not args[0].isdecimal() or len(args[0]) > 9:
                raise UnknownScriptError("exit")
            self.status = int(args[0]) & 0xFF
        raise _Exit

    def _exec(self, args: list[str]) -> int:
        if args:
            self._run_program(args[0].rpartition("/")[2], args[1:])
            self._print(self._captured.pop())
            raise _Exit
        return 0

    def _sleep(self, args: list[str]) -> int:
        if not args or (slept_ns := _sleep_ns(args)) is None:
            raise UnknownScriptError("sleep")
        self.after_ns += slept_ns
        return 0

    def _echo(self, args: list[str]) -> int:
        is_open = args[:1] == ["-n"]
        self._print(" ".join(args[is_open:]) + ("" if is_open else "\n"))
        return 0

    def _test(self, args: list[str]) -> int:
        return int(not evaluate_test(args, self._read))

    def _bracket(self, args: list[str]) -> int:
        if args[-1:] != ["]"]:
            raise UnknownScriptError("[")
        return self._test(args[:-1])

    def _expr(self, args: list[str]) -> int:
        printed, code = evaluate_expr(args)
        self._print(printed + "\n")
        return code

    def _touch(self, args: list[str]) -> int:
        for path in args:
            if self._read(path) is None:
                self._write(path, "")
        return 0

    def _mkdir(self, args: list[str]) -> int:
        paths = [arg for arg in args if arg != "-p"]
        found = [path for path in paths if self._read(path) is not None]
        for path in paths:
            if path not in found:
                self._write(path, "/")
        return NOT_FOUND if found and "-p" not in args else 0

    def _rm(self, args: list[str]) -> int:
        paths = [arg for arg in args if not arg.startswith("-")]
        missing = [path for path in paths if self._read(path) is None]
        for path in paths:
            self._write(path, None)
        return NOT_FOUND if missing and not any("f" in arg for arg in args if arg[:1] == "-") else 0

    def _set(self, args: list[str]) -> int:
        if args not in (["-e"], ["-x"], ["-ex"], ["-eu"], ["-u"], ["+e"], ["+x"]):
            raise UnknownScriptError("set")
        if "e" in args[0]:
            self._stops_at_error = args[0][0] == "-"
        return 0

    def _export(self, args: list[str]) -> int:
        for arg in args:
            name, is_set, value = arg.partition("=")
            if is_set:
                self._variables[name] = value
        return 0

    _PROGRAMS: ClassVar[Mapping[str, Callable[["_Shell", list[str]], int]]] = {
        ":": _true,
        "true": _true,
        "false": _false,
        "exit": _exit,
        "exec": _exec,
        "sleep": _sleep,
        "echo": _echo,
        "test": _test,
        "[": _bracket,
        "expr": _expr,
        "touch": _touch,
        "mkdir": _mkdir,
        "rm": _rm,
        "set": _set,
        "export": _export,
    }


def _sleep_ns(args: Iterable[str]) -> int | None:
    """Add up the arguments of `sleep` as coreutils does; None for `infinity` and for errors."""
    total_ns = 0
    for arg in args:
        part = _SLEEP.fullmatch(arg)
        if part is None:
            return None
        fraction = part[2] or ""
        unit_ns = _SLEEP_UNITS[part[3]] * NS_PER_S
        total_ns += int(part[1]) * unit_ns + int(fraction or "0") * unit_ns // 10 ** len(fraction)
    return total_ns
