"""The grammar of a shell script, as far as containers of tests and examples use it.

    list     = and_or {(";" | newline) and_or}
    and_or   = pipe {("&&" | "||") pipe}
    pipe     = ["!"] command {"|" command}
    command  = (if | while | until | for | "{" list "}" | "(" list ")" | simple)
    simple   = words and redirections

Words keep their quotes: they are expanded when the script runs (shell_words.py). Background jobs,
functions, `case` and here-documents are not understood: a script that has them is unknown from
there on.
Source: POSIX.1-2024, Shell & Utilities, 2.10 Shell Grammar; `[[` as bash and busybox have it.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import ClassVar, NamedTuple

from .budget import check_nesting

SCRIPT_MAX = 4096
"""A longer script is not understood rather than read."""
_OPERATOR = re.compile(r"[0-9]*(?:>>|>&|>|<)|&>|&&|\|\||;;|[;\n|&()]")
_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_PLAIN = re.compile(r"[^ \t\r\n;&|<>()'\"$`\\]+")
_SINGLE = re.compile(r"'[^']*'")
_REDIRECTION = re.compile(r"[0-9]*[<>]|&>")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDS = frozenset({";", "\n"})
_CLOSERS = frozenset({"then", "else", "elif", "fi", "do", "done", "}", ")"})
_UNKNOWN = frozenset({"case", "function", "select", "!"})


class UnknownScriptError(Exception):
    """The script has something that is not understood, or it never ends."""


class EndlessScriptError(UnknownScriptError):
    """It runs so many commands that it is taken for one that never ends."""


class Simple(NamedTuple):
    """A command and where its output goes: (operator, target)."""

    words: tuple[str, ...]
    redirections: tuple[tuple[str, str], ...] = ()


class Condition(NamedTuple):
    """What stands between `[[` and `]]`."""

    words: tuple[str, ...]


class AndOr(NamedTuple):
    """The first command, and what follows it: ("&&" or "||", command)."""

    first: "Command"
    rest: tuple[tuple[str, "Command"], ...]


class Pipe(NamedTuple):
    """`command | command`."""

    commands: tuple["Command", ...]


class Not(NamedTuple):
    """`! command`."""

    command: "Command"


class Group(NamedTuple):
    """Commands one after another; a subshell keeps its `exit` to itself."""

    commands: tuple["Command", ...]
    is_subshell: bool = False


class If(NamedTuple):
    """Pairs of condition and body; the last condition may be None for `else`."""

    branches: tuple[tuple[Group | None, Group], ...]


class Loop(NamedTuple):
    """`while`, or `until`."""

    condition: Group
    body: Group
    until: bool


class For(NamedTuple):
    """`for name in words`."""

    name: str
    words: tuple[str, ...]
    body: Group


UNKNOWN = "`"
"""A word that no script can have here, for what is not understood."""
Command = Simple | Condition | AndOr | Pipe | Not | Group | If | Loop | For
_UNKNOWN_SCRIPT = Group((Simple((UNKNOWN,)),))


@lru_cache(maxsize=128)
def parse_script(script: str) -> Group:
    """Return the commands of a script; the last one is UNKNOWN if it is not understood whole.

    Raises OverBudgetError where it is nested too deeply.
    """
    if len(script) > SCRIPT_MAX:
        return _UNKNOWN_SCRIPT
    return _Parser(_tokens(script)).script()


def _tokens(script: str) -> list[str]:
    """Split a script into operators and raw words, up to what is not understood."""
    found: list[str] = []
    at = 0
    while at < len(script):
        if (blank := _BLANK.match(script, at)) or (blank := _COMMENT.match(script, at)):
            at = blank.end()
            continue
        operator = _OPERATOR.match(script, at)
        try:
            end = operator.end() if operator else word_end(script, at)
        except UnknownScriptError:
            return [*found, UNKNOWN]
        assert end > at, script[at : at + 20]
        found.append(script[at:end])
        at = end
    return found


def word_end(text: str, at: int) -> int:
    """Return where the word ends that starts at a position."""
    while at < len(text):
        plain = _PLAIN.match(text, at) or _SINGLE.match(text, at)
        if plain:
            at = plain.end()
        elif text[at] == '"':
            at = quoted_end(text, at)
        elif text[at] == "$":
            at = expansion_end(text, at)
        elif text[at] == "\\":
            at += 2
        elif text[at] in "'`":
            raise UnknownScriptError(text[at:])
        else:
            return at
    return at


def quoted_end(text: str, at: int, depth: int = 1) -> int:
    """Return where a double-quoted string ends; `depth` counts what it is quoted in."""
    check_nesting(depth)
    at += 1
    while at < len(text) and text[at] != '"':
        if text[at] == "`":
            raise UnknownScriptError(text[at:])
        if text[at] == "$":
            at = expansion_end(text, at, depth)
        else:
            at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise UnknownScriptError("a quote is open")
    return at + 1


def expansion_end(text: str, at: int, depth: int = 0) -> int:
    """Return where an expansion ends that starts with a dollar sign."""
    if name := _NAME.match(text, at + 1):
        return name.end()
    opener = text[at + 1 : at + 2]
    if opener not in {"(", "{"}:
        return at + (2 if opener and opener in "?#@*$!0123456789" else 1)
    closer = {"(": ")", "{": "}"}[opener]
    opened = 0
    at += 1
    while at < len(text):
        char = text[at]
        if char == '"':
            at = quoted_end(text, at, depth + 1)
            continue
        if single := _SINGLE.match(text, at):
            at = single.end()
            continue
        opened += (char == opener) - (char == closer)
        at += 1
        if not opened:
            return at
    raise UnknownScriptError("an expansion is open")


class _Parser:
    """Reads tokens; raises UnknownScriptError where it does not know on."""

    __slots__ = ("_at", "_depth", "_tokens")

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def is_at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self) -> str:
        return "" if self.is_at_end() else self._tokens[self._at]

    def script(self) -> Group:
        """Read all commands, or those before the first that is not understood."""
        commands: list[Command] = []
        try:
            self._skip_ends()
            while not self.is_at_end():
                commands.append(self._and_or())
                if not self.is_at_end() and self.peek() not in _ENDS:
                    commands[-1] = Simple((UNKNOWN,))  # in the background
                    break
                self._skip_ends()
        except UnknownScriptError:
            commands.append(Simple((UNKNOWN,)))
        return Group(tuple(commands))

    def group(self, closers: frozenset[str], *, is_subshell: bool = False) -> Group:
        """Read commands up to a closing word, which is left."""
        commands = []
        self._skip_ends()
        while not self.is_at_end() and self.peek() not in closers:
            commands.append(self._and_or())
            if not self.is_at_end() and self.peek() not in _ENDS | closers:
                raise UnknownScriptError(self.peek())
            self._skip_ends()
        return Group(tuple(commands), is_subshell)

    def _skip_ends(self) -> None:
        while self.peek() in _ENDS:
            self._at += 1

    def _skip_lines(self) -> None:
        while self.peek() == "\n":
            self._at += 1

    def _take(self) -> str:
        if self.is_at_end():
            raise UnknownScriptError("the script ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, wanted: str) -> None:
        found = self._take()
        if found != wanted:
            raise UnknownScriptError(found)

    def _and_or(self) -> Command:
        first = self._pipe()
        rest = []
        while self.peek() in {"&&", "||"}:
            operator = self._take()
            self._skip_lines()
            rest.append((operator, self._pipe()))
        return AndOr(first, tuple(rest)) if rest else first

    def _pipe(self) -> Command:
        negations = 0
        while self.peek() == "!":
            self._at += 1
            negations += 1
        if negations:
            inner = Not(self._pipe())
            return inner if negations % 2 else Not(inner)
        commands = [self._command()]
        while self.peek() == "|":
            self._at += 1
            self._skip_lines()
            commands.append(self._command())
        return Pipe(tuple(commands)) if len(commands) > 1 else commands[0]

    def _command(self) -> Command:
        start = self.peek()
        compound = self._COMPOUNDS.get(start)
        if compound is not None:
            self._depth += 1
            check_nesting(self._depth)
            found = compound(self)
            self._depth -= 1
            return found
        if start in _UNKNOWN or start in _CLOSERS:
            raise UnknownScriptError(start)
        return self._simple()

    def _braces(self) -> Group:
        closer = "}" if self._take() == "{" else ")"
        inner = self.group(frozenset({closer}), is_subshell=closer == ")")
        self._expect(closer)
        return inner

    def _if(self) -> If:
        branches: list[tuple[Group | None, Group]] = []
        word = self._take()
        while word in {"if", "elif"}:
            condition = self.group(frozenset({"then"}))
            self._expect("then")
            branches.append((condition, self.group(frozenset({"else", "elif", "fi"}))))
            word = self._take()
        if word == "else":
            branches.append((None, self.group(frozenset({"fi"}))))
            word = self._take()
        if word != "fi":
            raise UnknownScriptError(word)
        return If(tuple(branches))

    def _loop(self) -> Loop:
        until = self._take() == "until"
        condition = self.group(frozenset({"do"}))
        return Loop(condition, self._body(), until)

    def _for(self) -> For:
        self._expect("for")
        name = self._take()
        if not _NAME.fullmatch(name):
            raise UnknownScriptError(name)
        self._skip_lines()
        self._expect("in")
        words = []
        while self.peek() not in _ENDS:
            words.append(self._take())
        self._skip_ends()
        return For(name, tuple(words), self._body())

    def _body(self) -> Group:
        self._expect("do")
        body = self.group(frozenset({"done"}))
        self._expect("done")
        return body

    def _condition(self) -> Condition:
        self._expect("[[")
        words = []
        while (word := self._take()) != "]]":
            words.append(word)
        return Condition(tuple(words))

    def _simple(self) -> Simple:
        words: list[str] = []
        redirections = []
        while not self.is_at_end():
            if _REDIRECTION.match(self.peek()):
                operator = self._take()
                redirections.append((operator, self._take()))
            elif _OPERATOR.fullmatch(self.peek()):
                break
            else:
                words.append(self._take())
        if not words and not redirections:
            raise UnknownScriptError(self.peek())
        return Simple(tuple(words), tuple(redirections))

    _COMPOUNDS: ClassVar[Mapping[str, Callable[["_Parser"], Command]]] = {
        "if": _if,
        "while": _loop,
        "until": _loop,
        "for": _for,
        "{": _braces,
        "(": _braces,
        "[[": _condition,
    }
