"""The built-in reader of commands: what the manifests of the Kubernetes documentation run.

    sleep exit true false : echo cat touch rm test [ trap exec    ; && || newline
    while ...; do ...; done   until ...; do ...; done             > >> of what echo and cat print

An unknown command within a script succeeds at once and prints nothing; so does one whose words come
from a variable or another command. A loop that waits for one ends. From a keyword, a test or an
operator that is not read here on (`if`, `|`, `&`), and from a look at a file that only the image
knows on, the rest of the script is one unknown program, which does as its role asks.
Source: POSIX.1-2024, Shell & Utilities; the words of errors are those of busybox.
"""

import contextlib
import posixpath
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

from fleet.clock import NS_PER_S
from fleet.runtime.files import ANY_FILE, DIRECTORY, FileChange, UnknownFileError
from fleet.runtime.program import Run, Written

STEPS_MAX = 1000  # a run of more commands is taken for one that does not end
UNITS = 1 << 20  # characters that it may read and print until then, about 20 ms of work
COMMAND_UNITS = UNITS // STEPS_MAX
WORDS_MAX = 64  # a longer command line is not read
TEXT_MAX = 16 << 10  # nor is a longer script: what is read of one is kept for the next container
FOREVER_NS = 1 << 62
NOT_READ = 126  # the code of a command that somebody runs and that is not read
SHELLS = frozenset(("sh", "bash", "ash", "dash"))
COMMANDS = frozenset(
    ("sleep", "exit", "true", "false", ":", "echo", "cat", "touch", "rm", "test", "[", "trap")
) | {"exec", "tail", "cd", "set"}
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
_VARIABLE = re.compile(r"(?<!\\)[`$]")
_LOGS = ("", "/dev/stdout", "/dev/fd/1", "/dev/stderr", "/dev/fd/2")  # at last those of errors
_SLEEP = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)([smhd]?)", re.ASCII)
_SLEEP_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


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


@lru_cache(maxsize=256)
def parse(script: str) -> tuple[tuple[Command, ...], bool]:
    """Return the commands of a script up to where it is not read, and whether that is all of it."""
    commands: list[Command] = []
    operator, keyword, words, target = ";", "", list[str | None](), None
    at, script = 0, f"{script}\n"
    while at < len(script):
        token = _TOKEN.match(script, at)
        if token is None:
            return tuple(commands), False
        at = token.end()
        op, to, path, word = token.groups()
        if word and not words and word in _KEYWORDS:
            if keyword:  # `do while`
                commands.append(Command(operator, keyword, ()))
                operator = ";"
            keyword = word
        elif word:
            words.append(_text(word))
        elif to:
            path = f"/dev/fd/{to[-1]}" if path is None else _text(path)
            target = target if to[0] in "02" else (to.lstrip("1")[:2], path)
        elif op:
            if words or keyword:
                if words and (words[0] is None or words[0] in _UNREAD):
                    return tuple(commands), False
                commands.append(Command(operator, keyword, tuple(words), target))
                operator, keyword, words, target = ";", "", [], None
            elif op in {"&&", "||"}:
                return tuple(commands), False
            if op in {"&&", "||"}:
                operator = op
    return tuple(commands), operator == ";"


def _text(word: str) -> str | None:
    """Return a word without its quotes; None if a variable or another command is in it."""
    found = []
    for single, double, escaped, bare in _QUOTED.findall(word):
        if _VARIABLE.search(double + bare):
            return None
        found.append(single + re.sub(r"\\([$`\"\\])", r"\1", double) + escaped + bare)
    return "".join(found)


def script_at(words: tuple[str, ...]) -> int:
    """Return where the script of `bash -euo pipefail -c SCRIPT` is, 0 if there is none."""
    if not words or posixpath.basename(words[0]) not in SHELLS:
        return 0
    flags = (at for at, word in enumerate(words[:-1]) if re.fullmatch("-[abd-z]*c[a-z]*", word))
    return next(flags, -1) + 1


def is_shell(words: tuple[str, ...]) -> bool:
    """Return whether a command line starts a shell without any script."""
    is_bare = all(each.startswith("-") and "c" not in each for each in words[1:])
    return bool(words) and posixpath.basename(words[0]) in SHELLS and is_bare


class View(Protocol):
    """The files that a script sees."""

    def read(self, path: str, after_ns: int, /) -> str | None:
        """Return a file's text, None if there is none. Raises UnknownFileError."""

    def write(self, path: str, text: str | None, /) -> None:
        """Make or replace a file; None removes it."""


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

    def write(self, path: str, text: str | None) -> None:
        """Make or replace a file; None removes it."""
        self._texts[path] = text


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
        self.status = 0
        self._handler: str | None = None  # of SIGTERM
        self._files = files
        self._term_ns = term_ns
        self._is_asked = is_asked
        self._left = UNITS  # of work, until it is taken for one that does not end
        at = script_at(words)
        self._steps = self._script(words[at]) if at else self._alone(words)

    def run(self) -> Run:
        """Run to the end, or to where it is not read, or does not end."""
        while self.end_ns is None and not self.is_lost:
            self._step()
        return Run(
            self.end_ns,
            self.status,
            tuple(self.written),
            tuple(self.changes),
            unknown_ns=self.unknown_ns,
            ends_unknown=self.ends_unknown,
            traps=bool(self._handler),
            ignores_term=self._handler == "",
        )

    def advance(self, until_ns: int, rounds: int) -> bool:
        """Run up to an instant, at most so many rounds; return whether it was reached."""
        self._left, began_ns = UNITS, self.clock_ns
        for _ in range(rounds):
            if self.end_ns is not None or self.is_lost or self.clock_ns > until_ns:
                return True
            if self._left < UNITS // 2 and self.clock_ns > began_ns:  # a loop that sleeps
                return False
            self._step()
        return False

    def _step(self) -> None:
        try:
            next(self._steps)
        except (StopIteration, _Exit):
            self.end_ns = self.clock_ns
        except _EndlessError as error:
            self.is_lost = True
            if self._is_asked and str(error):
                self._complain(f"sh: {error}")
                self.end_ns, self.status = self.clock_ns, 2
        except (UnreadError, UnknownFileError) as error:
            self._lose(str(error))

    def _lose(self, what: str) -> None:
        """Become a program that nobody knows; its handler of SIGTERM still runs."""
        if self._is_asked:
            self._complain(
                f"fleet runs no programs, and does not read {what!r}:"
                " declare its answer in a PodBehavior or a plug-in (fleet spawn --programs)"
            )
            self.end_ns, self.status = self.clock_ns, NOT_READ
            return
        if self.unknown_ns is None:
            self.unknown_ns = self.clock_ns
        self.status, self.is_lost = 0, not self._skip_to_signal()
        self._steps = self._go_on_lost()

    def _go_on_lost(self) -> Iterator[None]:
        yield from self._heed_signal()
        raise _EndlessError

    def _skip_to_signal(self) -> bool:
        """Go to the instant of SIGTERM if it is still to come and has a handler."""
        if self._term_ns is None or self.clock_ns >= self._term_ns or not self._handler:
            return False
        self.clock_ns, self._left = self._term_ns, UNITS
        return True

    def _heed_signal(self) -> Iterator[None]:
        """Run the handler of SIGTERM once it has come."""
        if self._handler and self._term_ns is not None and self.clock_ns >= self._term_ns:
            self._term_ns, status = None, self.status
            yield from self._script(self._handler)
            self.status = status

    def _pay(self, units: int = COMMAND_UNITS) -> None:
        self._left -= units
        if self._left < 0 and not self._skip_to_signal():
            raise _EndlessError("it reads or prints too much")

    def _alone(self, words: tuple[str, ...]) -> Iterator[None]:
        """Run a command that no shell runs."""
        if not words or len(words) > WORDS_MAX:
            raise UnreadError(*words[:1])
        self._simple(Command(";", "", words), is_alone=True)
        yield

    def _script(self, script: str) -> Iterator[None]:
        commands, is_whole = parse(script) if len(script) <= TEXT_MAX else ((), False)
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
                yield
            at += 1
        if not is_whole or loops:
            raise UnreadError("all of its script")

    def _simple(self, command: Command, *, is_alone: bool) -> None:
        self._pay()
        self.ends_unknown = False
        name = posixpath.basename(command.words[0] or "")
        args = [each for each in command.words[1:] if each is not None]
        is_known = None not in (*command.words[1:], *(command.target or ()))
        if is_known and name in COMMANDS:
            self._run(name, args, command.target)
        elif self._is_asked or name in _DECIDING or (is_alone and name not in COMMANDS):
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
                pass
            case "false", _:
                self.status = 1
            case "exit", [*code] if not code or (
                len(code) == 1 and re.fullmatch(r"[0-9]+", code[0])
            ):
                self.status = int(code[0][-9:]) % 256 if code else before
                raise _Exit
            case "exec", [program, *rest] if posixpath.basename(program) != "exec":
                self._handler = None  # what replaces the shell has none
                self._run(posixpath.basename(program), rest, target)
                raise _Exit
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
                texts = [self._read(path, "cat: can't open") for path in args]
                output = "".join(text for text in texts if text and text != DIRECTORY)
            case "touch", _ if not any(arg.startswith("-") for arg in args):
                for path in args:
                    self._touch(path)
            case "rm", _:
                error = (
                    "" if any(arg[:1] == "-" and "f" in arg for arg in args) else "rm: can't remove"
                )
                for path in (arg for arg in args if not arg.startswith("-")):
                    if not error or self._read(path, error) is not None:
                        self._write(path, None)
            case ("[", ["-e" | "-f" as kind, path, "]"]) | ("test", ["-e" | "-f" as kind, path]):
                self.status = int(self._read(path) in {None, DIRECTORY if kind == "-f" else None})
            case _:
                raise UnreadError(name)
        if output or target is not None:
            self._print(output, target)

    def _print(self, text: str, target: tuple[str, str | None] | None) -> None:
        """Write the output of a command to the log, or to a file."""
        self._pay(len(text))
        redirection, path = target or ("", "")
        if path in _LOGS:
            self.written.append(Written(self.clock_ns, "", text, path in _LOGS[3:]))
        elif path and path != "/dev/null":
            before = self._read(path) if redirection == ">>" else ""
            self.written.append(Written(self.clock_ns, _normal(path), text))
            self._write(path, (before or "") + text)

    def _complain(self, text: str) -> None:
        self.written.append(Written(self.clock_ns, "", f"{text}\n", is_error=True))

    def _read(self, path: str, error: str = "") -> str | None:
        """Return a file's text; of one that must be there, `error` begins what is said if not."""
        found = self._files.read(_normal(path), self.clock_ns)
        self._pay(len(found or ""))
        if found is None and error:
            self._complain(f"{error} '{path}': No such file or directory")
            self.status = 1
        return found

    def _write(self, path: str, text: str | None) -> None:
        self._pay(COMMAND_UNITS // 16)  # one command may write thousands of files
        self._files.write(_normal(path), text)
        self.changes.append(FileChange(self.clock_ns, _normal(path), text))

    def _touch(self, path: str) -> None:
        with contextlib.suppress(UnknownFileError):
            if self._read(path) is not None:
                return
        self._write(path, "")


def _behind(commands: tuple[Command, ...], at: int) -> int:
    """Return what comes behind the loop of a `do`."""
    depth = 0
    for index in range(at, len(commands)):
        depth += {"do": 1, "done": -1}.get(commands[index].keyword, 0)
        if not depth:
            return index + 1
    return len(commands)


def _slept_ns(arg: str) -> int:
    """Return how long an argument of `sleep` is, as coreutils reads it."""
    part = _SLEEP.fullmatch(arg)
    assert part is not None, arg
    return int(float(part[1]) * _SLEEP_UNITS[part[2]] * NS_PER_S)


def _normal(path: str) -> str:
    """Return an absolute path; a script begins at the root."""
    return posixpath.normpath(f"/{path}").replace("//", "/")
