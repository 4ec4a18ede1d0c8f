"""What a shell does itself, and programs that look at nothing: exit, sleep, echo, env, date, id.

Each takes the shell and its arguments, and returns its exit code.
Source: POSIX.1-2024, Shell & Utilities, 2.14 Special Built-In Utilities; busybox.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fleet.clock import NS_PER_S
from fleet.k8s.times import rfc3339

from .signals import Break, Continue, Exit
from .surroundings import DIRECTORY
from .syntax import EndlessScriptError, UnknownScriptError
from .words import evaluate_expr, evaluate_test

if TYPE_CHECKING:
    from .shell import Shell

Program = Callable[["Shell", list[str]], int]
OPTIONS = frozenset("abceilmuxo")
"""Of a shell that are understood; what `-x` would print on stderr is left out."""
_SLEEP = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?([smhd]?)")
FOREVER_NS = 1 << 61
"""73 years: whoever sleeps longer is not seen to wake up."""
_VARIABLE_UNITS = 20
"""What a variable costs that is printed, beside its characters."""
_SLEEP_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DAYS = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")
"""From 1970-01-01 on."""
_MONTHS = (
    "",
    *["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
)
_FORMAT = re.compile(r"%([YmdHMSsFTZabeNz%])")
_ESCAPE = re.compile(r"\\([abfnrtv\\]|0[0-7]{0,3})")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


def _true(_shell: "Shell", _args: list[str]) -> int:
    return 0


def _false(_shell: "Shell", _args: list[str]) -> int:
    return 1


def _exit(shell: "Shell", args: list[str]) -> int:
    if args and shell.is_doubtful:
        shell.status = 0
    elif args:
        if len(args) > 1 or not args[0].isdecimal() or len(args[0]) > 9:
            raise UnknownScriptError("exit")
        shell.status = int(args[0]) & 0xFF
    raise Exit


def _exec(shell: "Shell", args: list[str]) -> int:
    if args:
        shell.traps.clear()
        try:
            shell.run_program(args[0], args[1:])
        except EndlessScriptError:
            raise
        except UnknownScriptError:
            shell.be_replaced()
        shell.flush()
        raise Exit
    return 0


def _break(shell: "Shell", _args: list[str]) -> int:
    if shell.loops:
        raise Break
    return 0


def _continue(shell: "Shell", _args: list[str]) -> int:
    if shell.loops:
        raise Continue
    return 0


_SIGNALS = {"15": "TERM", "SIGTERM": "TERM", "0": "EXIT"}


def _trap(shell: "Shell", args: list[str]) -> int:
    args = args[1:] if args[:1] == ["--"] else args
    if not args:
        raise UnknownScriptError("trap")
    action, *names = args
    for name in (_SIGNALS.get(each, each) for each in names):
        shell.traps.pop(name, None)
        if action != "-":
            shell.traps[name] = action
    return 0


def _sleep(shell: "Shell", args: list[str]) -> int:
    if args[:1] in (["infinity"], ["inf"]):
        raise EndlessScriptError("sleep")
    if not args or (slept_ns := sleep_ns(args)) is None:
        raise UnknownScriptError("sleep")
    shell.clock_ns = min(shell.clock_ns + slept_ns, FOREVER_NS)
    return 0


def sleep_ns(args: Iterable[str]) -> int | None:
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


def _echo(shell: "Shell", args: list[str]) -> int:
    is_open = escapes = False
    while args and re.fullmatch(r"-[neE]+", args[0]):
        is_open = is_open or "n" in args[0]
        escapes = escapes or "e" in args[0]
        args = args[1:]
    text = " ".join(args)
    shell.print((_unescaped(text) if escapes else text) + ("" if is_open else "\n"))
    return 0


def _unescaped(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        return _ESCAPES.get(found[1]) or chr(int(found[1], 8))

    return _ESCAPE.sub(replace, text)


def _printf(shell: "Shell", args: list[str]) -> int:
    if not args or re.sub(r"%[sd%]", "", args[0]).count("%"):
        raise UnknownScriptError("printf")
    parts = re.split(r"(%[sd])", _unescaped(args[0]))
    wanted = len(parts) // 2
    rounds = max(-(-len(args[1:]) // wanted), 1) if wanted else 1
    shell.budget.spend(rounds * len(args[0]) + sum(map(len, args)))
    rest = iter(args[1:])
    text = []
    for _ in range(rounds):
        for part in parts:
            if part in {"%s", "%d"}:
                text.append(next(rest, "" if part == "%s" else "0"))
            else:
                text.append(part.replace("%%", "%"))
    shell.print("".join(text))
    return 0


def _test(shell: "Shell", args: list[str]) -> int:
    if shell.is_doubtful:
        return int(not is_hoped(args))
    return int(not evaluate_test(args, shell.read))


def is_hoped(words: Sequence[str]) -> bool:
    """Return what `test` finds in what is unknown: it is there, and as it should be."""
    return (words[:1] == ["!"]) is ("-z" in words or "!=" in words)


def _bracket(shell: "Shell", args: list[str]) -> int:
    if args[-1:] != ["]"]:
        raise UnknownScriptError("[")
    return _test(shell, args[:-1])


def _expr(shell: "Shell", args: list[str]) -> int:
    printed, code = evaluate_expr(args)
    shell.print(printed + "\n")
    return code


def _set(shell: "Shell", args: list[str]) -> int:
    rest = list(args)
    while rest:
        word = rest.pop(0)
        sign, letters = word[:1], word[1:]
        if sign not in {"-", "+"} or not letters or not OPTIONS.issuperset(letters):
            raise UnknownScriptError("set")
        names = {*letters, *(rest.pop(0) for each in letters if each == "o" and rest)}
        if names & {"e", "errexit"}:
            shell.stops_at_error = sign == "-"
        if "pipefail" in names:
            shell.fails_in_pipes = sign == "-"
    return 0


def _export(shell: "Shell", args: list[str]) -> int:
    for arg in args:
        name, is_set, value = arg.partition("=")
        if is_set:
            shell.assign(name, value, is_doubtful=shell.is_doubtful)
    return 0


def _unset(shell: "Shell", args: list[str]) -> int:
    for name in args:
        shell.variables.pop(name, None)
    return 0


def _env(shell: "Shell", args: list[str]) -> int:
    while args and "=" in args[0]:
        name, _, value = args.pop(0).partition("=")
        shell.variables[name] = value
    if args:
        shell.run_program(args[0], args[1:])
        return shell.status
    shell.budget.spend(sum(_VARIABLE_UNITS + len(each) for each in shell.variables.values()))
    shell.print("".join(f"{name}={value}\n" for name, value in shell.variables.items()))
    return 0


def _printenv(shell: "Shell", args: list[str]) -> int:
    if not args:
        return _env(shell, args)
    found = [shell.variables[name] for name in args if name in shell.variables]
    if not shell.is_whole and len(found) < len(args):
        raise UnknownScriptError("printenv")
    shell.print("".join(f"{value}\n" for value in found))
    return int(len(found) < len(args))


def _hostname(shell: "Shell", args: list[str]) -> int:
    name = shell.variables.get("HOSTNAME")
    if args or name is None:
        raise UnknownScriptError("hostname")
    shell.print(f"{name}\n")
    return 0


def _pwd(shell: "Shell", _args: list[str]) -> int:
    shell.print(f"{shell.cwd}\n")
    return 0


def _cd(shell: "Shell", args: list[str]) -> int:
    path = args[0] if args else shell.variables.get("HOME", "/")
    if shell.read(path) != DIRECTORY:
        shell.complain(f"{shell.name}: cd: can't cd to {path}: No such file or directory\n")
        return 2
    shell.enter(posixpath.normpath(shell.path(path)))
    return 0


def _date(shell: "Shell", args: list[str]) -> int:
    args = [arg for arg in args if arg not in {"-u", "--utc"}]
    if len(args) > 1 or (args and not args[0].startswith("+")):
        raise UnknownScriptError("date")
    text = args[0][1:] if args else "%a %b %e %T %Z %Y"
    if _FORMAT.sub("", text).count("%"):
        raise UnknownScriptError("date")
    shell.print(_FORMAT.sub(lambda found: _time_part(found[1], shell.wall_ns), text) + "\n")
    return 0


def _time_part(letter: str, wall_ns: int) -> str:
    seconds = wall_ns // NS_PER_S
    stamp = rfc3339(seconds).decode()
    parts = {
        "Y": stamp[:4],
        "m": stamp[5:7],
        "d": stamp[8:10],
        "e": stamp[8:10].lstrip("0").rjust(2),
        "H": stamp[11:13],
        "M": stamp[14:16],
        "S": stamp[17:19],
        "F": stamp[:10],
        "T": stamp[11:19],
        "s": str(seconds),
        "N": f"{wall_ns % NS_PER_S:09d}",
        "Z": "UTC",
        "z": "+0000",
        "a": _DAYS[seconds // 86400 % 7],
        "b": _MONTHS[int(stamp[5:7])],
        "%": "%",
    }
    return parts[letter]


def _id(shell: "Shell", args: list[str]) -> int:
    uid, gid = map(str, shell.user)
    if args not in ([], ["-u"], ["-g"]):
        raise UnknownScriptError("id")
    name = "(root)" if uid == "0" else ""
    group = "(root)" if gid == "0" else ""
    whole = f"uid={uid}{name} gid={gid}{group} groups={gid}{group}"
    shell.print(f"{whole if not args else uid if args == ['-u'] else gid}\n")
    return 0


def _whoami(shell: "Shell", _args: list[str]) -> int:
    if shell.user[0]:
        shell.complain(f"whoami: unknown uid {shell.user[0]}\n")
        return 1
    shell.print("root\n")
    return 0


def _uname(shell: "Shell", args: list[str]) -> int:
    if args not in ([], ["-s"]):
        raise UnknownScriptError("uname")
    shell.print("Linux\n")
    return 0


BUILTINS: Mapping[str, Program] = {
    ":": _true,
    "true": _true,
    "false": _false,
    "exit": _exit,
    "exec": _exec,
    "break": _break,
    "continue": _continue,
    "trap": _trap,
    "sleep": _sleep,
    "echo": _echo,
    "printf": _printf,
    "test": _test,
    "[": _bracket,
    "expr": _expr,
    "set": _set,
    "export": _export,
    "unset": _unset,
    "env": _env,
    "printenv": _printenv,
    "hostname": _hostname,
    "pwd": _pwd,
    "cd": _cd,
    "date": _date,
    "id": _id,
    "whoami": _whoami,
    "uname": _uname,
}
