"""The built-in reader of commands: what the manifests of the Kubernetes documentation run.

    sleep exit true false : echo cat touch rm test [ trap exec    ; && || newline
    while ...; do ...; done   until ...; do ...; done             > >> of what echo and cat print

An unknown command within a script succeeds at once and prints nothing; so does one whose words come
from a variable or another command. A loop that waits for one ends. From a keyword or an operator
that is not read here on (`if`, `|`, `&`), and from a look at a file that only the image knows on,
the rest of the script is one unknown program, which does as its role asks.
A script pays for what it reads and prints until virtual time passes, as `UNITS` says.
Source: POSIX.1-2024, Shell & Utilities; the words of errors are those of busybox.
"""

import posixpath
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

from fleet.clock import NS_PER_S
from fleet.runtime.container_config import ARGUMENT_MAX, TOO_MANY_ARGUMENTS, OverBudgetError
from fleet.runtime.files import ANY_FILE, DIRECTORY, FileChange, UnknownFileError
from fleet.runtime.program import Run, Written

UNITS = 1 << 20  # characters that a script may read and print at one instant: about 20 ms
UNITS_MAX = 4 * UNITS
"""One that goes on for longer, and costs more, is taken for one that does not end."""
COMMAND_UNITS = 500
STEPS_MAX = 1000  # a run of more commands is taken for one that does not end
WORDS_MAX = 64  # a longer command line is not read
KEPT_CHARACTERS_MAX = 16 << 10
"""A longer command is read each time: a hostile pod's may have a megabyte."""
FOREVER_NS = 1 << 62
NOT_READ = 126  # the code of a command that somebody runs and that is not read
SHELLS = frozenset(("sh", "bash", "ash", "dash"))
COMMANDS = frozenset(
    ("sleep", "exit", "true", "false", ":", "echo", "cat", "touch", "rm", "test", "[", "trap")
) | {"exec", "tail", "cd", "set"}
OUTPUT = "\0"  # a word that is what another command prints
_KEYWORDS = ("while", "until", "do", "done")
_DECIDING = frozenset(("sleep", "exit", "exec", "test", "[", "trap"))
"""What must be read: where a script goes, and when, depends on it."""
_UNREAD = frozenset(
    ("if", "for", "case", "select", "function", "{", "}", "!", "[[", "then", "else", "fi", "esac")
) | {"break", "continue", "return", "eval", "source", ".", "shift", "wait"}
"""What would change where a script goes."""
_WORD = r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\([^()`]*\)|\$|[^\s;&|()<>'\"\\$]+)+"
_TOKEN = re.compile(
    rf"[ \t]+|\\\n|\#[^\n]*|(?P<op>&&|\|\||[;\n])"
    rf"|(?P<to>[0-2]?>>?(?:&[0-9]|[ \t]*(?P<path>{_WORD})))|(?P<word>{_WORD})",
    re.DOTALL,
)
_QUOTED = re.compile(r"'([^']*)'|\"((?:\\.|[^\"\\])*)\"|\\(.)|([^'\"\\]+)", re.DOTALL)
_SLEEP = re.compile(r"(\d{1,12})(?:\.(\d{1,9})\d*)?([smhd]?)", re.ASCII)
_SLEEP_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_NO_FILE = "No such file or directory"


class UnreadError(Exception):
    """The rest of a script is not read here."""


class _EndlessError(Exception):
    """A script does not end."""


class _Exit(Exception):  # noqa: N818 - it is none
    """A script ends, with the status of its last command."""


class Command(NamedTuple):
    """One command of a script, or one end of a loop."""

    operator: str  # before it: ";", "&&" or "||"
    keyword: str  # before it: while, until, do, done, or ""
    words: tuple[str | None, ...]  # None: only a running shell knows it
    target: tuple[str, str | None] | None = None  # where its output goes: redirection and path


def parse(script: str) -> tuple[tuple[Command, ...], bool]:  # noqa: C901, PLR0912 - a grammar
    """Return the commands of a script up to where it is not read, and whether that is all of it."""
    commands: list[Command] = []
    operator, keyword, words, target = ";", "", list[str | None](), None
    at = 0
    while at <= len(script):
        token = _TOKEN.match(script, at)
        if at < len(script) and token is None:
            return tuple(commands), False
        kind = "op" if token is None else token.lastgroup or ""
        at = at + 1 if token is None else token.end()
        if token is not None and token["word"]:
            if not words and token["word"] in _KEYWORDS:
                if keyword:  # `do while`
                    commands.append(Command(operator, keyword, ()))
                    operator = ";"
                keyword = token["word"]
            else:
                words.append(_text(token["word"]))
        elif token is not None and token["to"]:
            path = f"/dev/fd/{token['to'][-1]}" if token["path"] is None else _text(token["path"])
            target = target if token["to"][0] in "02" else (token["to"].lstrip("1")[:2], path)
        elif kind == "op":
            if words and (words[0] is None or words[0] in _UNREAD):
                return tuple(commands), False
            if words or keyword:
                commands.append(Command(operator, keyword, tuple(words), target))
                if len(commands) > STEPS_MAX:
                    return tuple(commands), False
                operator, keyword, words, target = ";", "", [], None
            elif token is not None and token["op"] in {"&&", "||"}:
                return tuple(commands), False
            if token is not None and token["op"] in {"&&", "||"}:
                operator = token["op"]
    return tuple(commands), operator == ";"


_parse_short = lru_cache(maxsize=256)(parse)


def _text(word: str) -> str | None:
    """Return a word without its quotes; None if a variable is in it, OUTPUT for a command's."""
    found = []
    for single, double, escaped, bare in _QUOTED.findall(word):
        unknown = re.search(r"(?<!\\)(?:`|\$(\()?)", double + bare)
        if unknown is not None:
            return None if unknown[0] == "$" else OUTPUT
        found.append(single + re.sub(r"\\([$`\"\\])", r"\1", double) + escaped + bare)
    return "".join(found)


def script_at(words: tuple[str, ...]) -> int:
    """Return where the script of `sh -e -c SCRIPT` is, 0 if there is none.

    Source: `bash -euo pipefail -c SCRIPT`: POSIX.1-2024, sh, OPTIONS.
    """
    if not words or posixpath.basename(words[0]) not in SHELLS:
        return 0
    at, is_script = 1, False
    while at < len(words) and words[at][:1] in {"-", "+"} and len(words[at]) > 1:
        word = words[at]
        at += 1
        if word.startswith("-") and not word.startswith("--"):
            is_script = is_script or "c" in word
            at += word.count("o")
    return at if is_script and at < len(words) else 0


def is_shell(words: tuple[str, ...]) -> bool:
    """Return whether a command line starts a shell without any script."""
    is_bare = all(each.startswith("-") and "c" not in each for each in words[1:])
    return bool(words) and posixpath.basename(words[0]) in SHELLS and is_bare


class View(Protocol):
    """The files that a script sees."""

    def read(self, path: str, after_ns: int, /) -> str | None:
        """Return a file's text, None if there is none. Raises UnknownFileError."""

    def write(self, path: str, text: str | None, /) -> bool:
        """Make or replace a file, None removes it; return whether it can be written."""


class NewFiles:
    """Files of which one instant is known: those of a container that starts, or of a probe."""

    def __init__(self, texts: dict[str, str | None], *, is_new: bool) -> None:
        self._texts = texts
        self._is_new = is_new  # what nobody wrote is not there

    def read(self, path: str, _after_ns: int) -> str | None:
        """Return a file's text, None if there is none. Raises UnknownFileError."""
        if path not in self._texts and not self._is_new:
            raise UnknownFileError(path)
        return self._texts.get(path)

    def write(self, path: str, text: str | None) -> bool:
        """Make or replace a file; None removes it."""
        self._texts[path] = text
        return True


class Script:
    """One command as it runs: moved to an instant, it says what it printed and changed up to there.

    It is left between commands, so that one which never ends is followed for as long as somebody
    asks. `is_asked`: somebody runs it and wants an answer, so that what is not read says so.
    """

    def __init__(
        self,
        words: tuple[str, ...],
        files: View,
        term_ns: int | None = None,
        *,
        is_asked: bool = False,
    ) -> None:
        self.written: list[Written] = []
        self.changes: list[FileChange] = []
        self.clock_ns = 0
        self.end_ns: int | None = None
        self.is_lost = False  # it is a program that is not read, or does nothing for ever
        self.unknown_ns: int | None = None  # since when it is such a program
        self.ends_unknown = False
        self.error = ""
        self.status = 0
        self._handler: str | None = None  # of SIGTERM
        self._files = files
        self._term_ns = term_ns
        self._is_asked = is_asked
        self._left, self._paid_ns = UNITS, 0
        self._total, self._count = UNITS_MAX, 0  # what is left, and was run, until it is endless
        at = script_at(words)
        self._stops = any(word[:2] != "--" and "e" in word for word in words[1:at])  # at errors
        self._steps = self._script(words[at]) if at else self._alone(words)

    def run(self) -> Run:
        """Run to the end, or to where it is not read, or does not end."""
        while self.end_ns is None and not self.is_lost:
            self._step()
        written, changes = tuple(self.written), tuple(self.changes)
        return Run(
            *(self.end_ns, self.status, written, changes, self.error, self.unknown_ns),
            *(self.ends_unknown, bool(self._handler), self._handler == ""),
        )

    def advance(self, until_ns: int, rounds: int) -> bool:
        """Run up to an instant, at most so many rounds; return whether it was reached."""
        self._left, self._total, self._count = UNITS, UNITS_MAX, 0
        for _ in range(rounds):
            if self.end_ns is not None or self.is_lost or self.clock_ns > until_ns:
                return True
            self._step()
        return False

    def _step(self) -> None:
        try:
            next(self._steps)
        except (StopIteration, _Exit):
            self.end_ns = self.clock_ns
        except _EndlessError:
            self.is_lost = True
        except OverBudgetError as error:  # one that time passes in is one that does not end
            self.is_lost, self.error = True, "" if self.clock_ns else str(error)
            if self._is_asked:
                self.written.append(Written(self.clock_ns, "", f"sh: {error}\n", is_error=True))
                self.end_ns, self.status = self.clock_ns, 2
        except (UnreadError, UnknownFileError) as error:
            self._lose(str(error))

    def _lose(self, what: str) -> None:
        """Become a program that nobody knows; its handler of SIGTERM still runs."""
        if self._is_asked:
            why = f"fleet runs no programs, and does not read {what!r}" if what else "not read"
            self._complain(
                f"{why}: declare its answer in a PodBehavior or a plug-in (fleet spawn --programs)"
            )
            self.end_ns, self.status = self.clock_ns, NOT_READ
            return
        self.unknown_ns, self.is_lost, self.status = self.clock_ns, True, 0
        self._skip_to_signal()
        try:
            for _ in self._heed_signal():
                pass
        except _Exit:
            self.end_ns = self.clock_ns
        except (UnreadError, UnknownFileError, OverBudgetError, _EndlessError):
            pass

    def _skip_to_signal(self) -> bool:
        """Go to the instant of SIGTERM if it is still to come and has a handler."""
        term_ns = self._term_ns
        if term_ns is None or self.clock_ns >= term_ns or not self._handler:
            return False
        self.clock_ns, self._left, self._total, self._count = term_ns, UNITS, UNITS_MAX, 0
        return True

    def _heed_signal(self) -> Iterator[None]:
        """Run the handler of SIGTERM once it has come."""
        if self._handler and self._term_ns is not None and self.clock_ns >= self._term_ns:
            self._term_ns, status = None, self.status
            yield from self._script(self._handler)
            self.status = status

    def _spend(self, units: int) -> None:
        if self.clock_ns > self._paid_ns:  # time has passed
            self._paid_ns, self._left = self.clock_ns, UNITS
        self._left -= units
        self._total -= units
        if self._left < 0:
            raise OverBudgetError("it reads or prints too much")

    def _alone(self, words: tuple[str, ...]) -> Iterator[None]:
        """Run a command that no shell runs."""
        if not words or len(words) > WORDS_MAX or posixpath.basename(words[0]) not in COMMANDS:
            raise UnreadError(*words[:1])
        self._run(posixpath.basename(words[0]), list(words[1:]), None)
        yield

    def _script(self, script: str) -> Iterator[None]:
        if len(script) > ARGUMENT_MAX:
            raise OverBudgetError(TOO_MANY_ARGUMENTS)
        find = _parse_short if len(script) <= KEPT_CHARACTERS_MAX else parse
        commands, is_whole = find(script)
        loops: list[int] = []  # where they begin that are not over
        at = 0
        while at < len(commands):
            each = commands[at]
            if each.keyword in {"while", "until"} and at not in loops:
                loops.append(at)
            elif each.keyword in {"do", "done"} and not loops:
                raise UnreadError(each.keyword)
            if each.keyword == "done":
                self._pay()
                yield
                at = loops[-1]
                continue
            is_until = each.keyword == "do" and commands[loops[-1]].keyword == "until"
            if each.keyword == "do" and (self.ends_unknown or bool(self.status) is not is_until):
                loops.pop()
                at = _behind(commands, at)
                self.status, self.ends_unknown = 0, False
                continue
            if each.words and each.operator != ("&&" if self.status else "||"):
                self._simple(each, is_alone=len(commands) == 1 and is_whole)
                yield from self._heed_signal()
                follows = commands[at + 1 : at + 2]
                is_tested = follows and (follows[0].operator != ";" or follows[0].keyword == "do")
                if self.status and self._stops and not is_tested:
                    raise _Exit
                yield
            at += 1
        if not is_whole or loops:
            raise UnreadError("all of its script")

    def _pay(self) -> None:
        self._count += 1
        if (self._count > STEPS_MAX or self._total < 0) and not self._skip_to_signal():
            raise _EndlessError
        self._spend(COMMAND_UNITS)

    def _simple(self, command: Command, *, is_alone: bool) -> None:
        self._pay()
        self.ends_unknown = False
        name = posixpath.basename(command.words[0] or "")
        args = [each for each in command.words[1:] if each is not None and each != OUTPUT]
        is_known = len(args) == len(command.words) - 1
        is_known = is_known and (command.target is None or command.target[1] is not None)
        is_test = name in {"test", "["} and None not in command.words
        if is_known and name in COMMANDS:
            self._run(name, args, command.target)
        elif (
            self._is_asked
            or (name in _DECIDING and not is_test)
            or (is_alone and name not in COMMANDS)
        ):
            self._handler = None if name == "exec" else self._handler
            raise UnreadError(command.words[0] or "")
        else:
            self.changes.append(FileChange(self.clock_ns, ANY_FILE, None))
            self.status, self.ends_unknown = 0, True

    def _run(  # noqa: C901, PLR0912 - one case for each command
        self, name: str, args: list[str], target: tuple[str, str | None] | None
    ) -> None:
        """Run a command that is known."""
        before, self.status, output = self.status, 0, ""
        match name, args:
            case (("true" | ":" | "cd" | "set"), _):
                self._stops = self._stops or (name == "set" and args[:1] in (["-e"], ["-ex"]))
            case "false", _:
                self.status = 1
            case "exit", [*code] if not code or (
                len(code) == 1 and re.fullmatch(r"[0-9]+", code[0])
            ):
                self.status = int(code[0][-9:]) % 256 if code else before
                raise _Exit
            case "exec", [program, *rest] if posixpath.basename(program) in COMMANDS - {"exec"}:
                self._run(posixpath.basename(program), rest, target)
                raise _Exit
            case "exec", _:
                self._handler = None  # what replaces the shell has none
                raise UnreadError(*args[:1])
            case ("sleep", ["infinity" | "inf"]) | ("tail", ["-f" | "-F", "/dev/null"]):
                raise _EndlessError
            case "sleep", [_, *_] if all(map(_SLEEP.fullmatch, args)):
                self.clock_ns = min(self.clock_ns + sum(map(_slept_ns, args)), FOREVER_NS)
            case "trap", [action, *names]:
                if {"TERM", "SIGTERM", "15"} & set(names):
                    self._handler = None if action == "-" else action
            case "echo", _:
                words = args[1:] if args[:1] == ["-n"] else args
                output = " ".join(words) + ("" if args[:1] == ["-n"] else "\n")
            case "cat", [_, *_] if not any(arg.startswith("-") for arg in args):
                output = "".join(map(self._cat, args))
            case "touch", _ if not any(arg.startswith("-") for arg in args):
                for path in args:
                    self._touch(path)
            case "rm", _:
                is_forced = any(arg.startswith("-") and "f" in arg for arg in args)
                for path in (arg for arg in args if not arg.startswith("-")):
                    self._remove(path, is_forced=is_forced)
            case ("[", ["-e" | "-f" as kind, path, "]"]) | ("test", ["-e" | "-f" as kind, path]):
                text = self._read(path)
                self.status = int(text is None or (kind == "-f" and text == DIRECTORY))
            case _:
                raise UnreadError(name)
        if output or target is not None:
            self._print(output, target)

    def _print(self, text: str, target: tuple[str, str | None] | None) -> None:
        """Write the output of a command to the log, or to a file."""
        self._spend(len(text))
        redirection, path = target or ("", "")
        if path in {"", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"}:
            is_error = path in {"/dev/stderr", "/dev/fd/2"}
            self.written.append(Written(self.clock_ns, "", text, is_error))
        elif path and path != "/dev/null":
            before = self._read(path) if redirection == ">>" else ""
            self.written.append(Written(self.clock_ns, _normal(path), text))
            self._write(path, (before or "") + text, f"sh: can't create {path}")

    def _complain(self, text: str) -> None:
        self._spend(len(text))
        self.written.append(Written(self.clock_ns, "", f"{text}\n", is_error=True))

    def _read(self, path: str) -> str | None:
        found = self._files.read(_normal(path), self.clock_ns)
        self._spend(len(found or ""))
        return found

    def _write(self, path: str, text: str | None, error: str) -> None:
        where = _normal(path)
        if self._files.write(where, text):
            self.changes.append(FileChange(self.clock_ns, where, text))
        else:
            self._complain(f"{error}: Read-only file system")
            self.status = 1

    def _cat(self, path: str) -> str:
        found = self._read(path)
        if found is None:
            self._complain(f"cat: can't open '{path}': {_NO_FILE}")
            self.status = 1
        return "" if found == DIRECTORY else found or ""

    def _touch(self, path: str) -> None:
        try:
            is_there = self._read(path) is not None
        except UnknownFileError:
            is_there = False
        if not is_there:
            self._write(path, "", f"touch: {path}")

    def _remove(self, path: str, *, is_forced: bool) -> None:
        is_missing = not is_forced and self._read(path) is None
        self._write(path, None, f"rm: can't remove '{path}'")
        if is_missing:
            self._complain(f"rm: can't remove '{path}': {_NO_FILE}")
            self.status = 1


def _behind(commands: tuple[Command, ...], at: int) -> int:
    """Return what comes behind the loop of a `do`."""
    depth = 0
    while at < len(commands):
        depth += {"do": 1, "done": -1}.get(commands[at].keyword, 0)
        at += 1
        if not depth:
            break
    return at


def _slept_ns(arg: str) -> int:
    """Return how long an argument of `sleep` is, as coreutils reads it."""
    part = _SLEEP.fullmatch(arg)
    assert part is not None, arg
    unit_ns, fraction = _SLEEP_UNITS[part[3]] * NS_PER_S, f"{part[2] or ''}000000000"[:9]
    return int(part[1]) * unit_ns + int(fraction) * unit_ns // NS_PER_S


def _normal(path: str) -> str:
    """Return an absolute path; a script begins at the root."""
    return posixpath.normpath(f"/{path}").replace("//", "/")
