"""What a container's own command does: how long it runs, how it ends, and what it writes.

Only what needs no real shell is understood: `sleep N`, `true`, `false`, `exit N`, `pause`, `echo`,
alone or in `sh -c` scripts that join them by `;`, `&&`, `||` and new lines. A command that is not
understood runs for ever, and so does a script from that command on. Nothing is stored of what a
container writes: it is derived anew from its command whenever somebody asks.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from fleet.distribution import Distribution, constant
from fleet.quantity import NS_PER_S

SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_SLEEP_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SLEEP = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?([smhd]?)")
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r]+|\\\n)|(?P<join>&&|\|\||;|\n)|(?P<into>>>?)"""
    r"""|(?P<word>(?:[^\s;&|<>()'"`$\\#*?{}!]|'[^']*'|"[^"`$\\]*")+)"""
)
_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_WORDS_MAX = 64
"""A longer script is not understood rather than read."""


class Outcome(NamedTuple):
    """How a container ends, and after which time from its start."""

    after: Distribution
    exit_code: int = 0
    reason: str = ""

    @property
    def reason_shown(self) -> str:
        """Return the reason of the terminated state. Source: kuberuntime_container.go."""
        return self.reason or ("Error" if self.exit_code else "Completed")


class Written(NamedTuple):
    """A piece of output: when, where to ("" for the log), what."""

    after_ns: int
    path: str
    text: str


class CommandRun(NamedTuple):
    """What a command does. `run_ns` is None when it runs until it is stopped."""

    run_ns: int | None
    exit_code: int = 0
    written: tuple[Written, ...] = ()

    def text(self, path: str, until_ns: int | None = None) -> str:
        """Return what was written to a path, "" for the log, within a time from the start."""
        return "".join(
            each.text
            for each in self.written
            if each.path == path and (until_ns is None or each.after_ns <= until_ns)
        )


class _Simple(NamedTuple):
    """One simple command of a script."""

    words: tuple[str, ...]
    into: str  # where its output goes, "" for the log
    join: str  # what stands behind it


FOR_EVER = CommandRun(None)


def outcome_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> Outcome | None:
    """Return how a command ends, or None when it is unknown or never ends."""
    run = run_of_command(command, args)
    return None if run.run_ns is None else Outcome(constant(run.run_ns), run.exit_code)


@lru_cache(maxsize=1024)
def run_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> CommandRun:
    """Return what a command does.

    Differs: `$(VAR)` is not expanded, and an image's own entry point is unknown.
    """
    words = (*command, *args)
    if not words or len(words) > _WORDS_MAX:
        return FOR_EVER
    if _program(words) not in SHELLS:
        return _run((_Simple(words, "", ""),), stops_at_error=False)
    if len(words) < 3 or words[1] not in {"-c", "-ec", "-ce"}:
        return FOR_EVER
    return _run(_parse(words[2]), stops_at_error=words[1] != "-c")


def _program(words: tuple[str, ...]) -> str:
    return words[0].rpartition("/")[2]


def _parse(script: str) -> tuple[_Simple, ...]:
    """Split a script into simple commands; from the first thing that is not understood, one."""
    found: list[_Simple] = []
    words: list[str] = []
    into = ""
    at = 0
    redirected = False
    while at < len(script):
        token = _TOKEN.match(script, at)
        if token is None or len(words) + len(found) > _WORDS_MAX:
            found.append(_Simple(("?",), "", ""))
            return tuple(found)
        at = token.end()
        kind = token.lastgroup
        if kind == "join":
            if words:
                found.append(_Simple(tuple(words), into, token[0]))
            words, into = [], ""
        elif kind == "into":
            redirected = True
        elif kind == "word":
            word = _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", token[0])
            if redirected:
                into, redirected = word, False
            else:
                words.append(word)
    if words:
        found.append(_Simple(tuple(words), into, ""))
    return tuple(found)


def _run(script: tuple[_Simple, ...], *, stops_at_error: bool) -> CommandRun:
    """Run simple commands one after another."""
    total_ns = code = 0
    join = ""
    written: list[Written] = []
    for each in script:
        if (join == "&&" and code) or (join == "||" and not code):
            join = each.join
            continue
        join = each.join
        words = each.words[1:] if each.words[0] == "exec" and len(each.words) > 1 else each.words
        if words == ("exit",):
            break  # with the status of what ran before
        step = _step(_program(words), words[1:])
        if step is None or step[0] is None:
            return CommandRun(None, 0, tuple(written))
        if step[2]:
            written.append(Written(total_ns, each.into, step[2]))
        total_ns += step[0]
        code = step[1]
        if words[0] == "exit" or words is not each.words:
            break
        if code and stops_at_error and join not in {"&&", "||"}:
            break
    return CommandRun(total_ns, code, tuple(written))


def _step(program: str, args: tuple[str, ...]) -> tuple[int | None, int, str] | None:
    """Return nanoseconds, exit code and output of one simple command."""
    if program in {"true", ":"}:
        return 0, 0, ""
    if program == "false":
        return 0, 1, ""
    if program == "echo":
        return 0, 0, _echoed(args)
    if program == "sleep" and args:
        return _sleep_ns(args), 0, ""
    if program == "exit" and len(args) <= 1:
        code = args[0] if args else "0"
        return (0, int(code) & 0xFF, "") if re.fullmatch(r"[0-9]{1,9}", code) else None
    return None


def _echoed(args: tuple[str, ...]) -> str:
    if args[:1] == ("-n",):
        return " ".join(args[1:])
    return " ".join(args) + "\n"


def _sleep_ns(args: tuple[str, ...]) -> int | None:
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
