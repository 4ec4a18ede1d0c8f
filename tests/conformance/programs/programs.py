"""Programs of scripts that read text and print some: cat, wc, head, tail, grep, cut, sort, ...

Each takes its arguments, a function that reads a file, and what the command before it in a pipe
printed; it returns what it prints and its exit code. Options that are not understood make the
script unknown.
Source: POSIX.1-2024, Shell & Utilities, Utilities; the output is that of busybox.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from .budget import COPIED_SHIFT
from .patterns import Pattern
from .syntax import EndlessScriptError, UnknownScriptError


class Read(Protocol):
    """How a program reads files, and pays for what it does with their texts."""

    def __call__(self, path: str) -> str | None:
        """Return the text of a file, None if there is none. May raise UnknownScriptError."""

    def spend(self, units: int) -> None:
        """Pay for something before it is done. Raises OverBudgetError."""


Done = tuple[str, int]
SEQUENCE_MAX = 1000
_IN_C = frozenset(("cat", "md5sum", "sha256sum"))
"""What these do with a text takes no more than to copy it."""
_DUMPED = 16  # bytes in a row of hexdump
_PLAIN = re.compile(r"\^?(?:(?:\\s|[\w ./:=,%@-])\*?)*\$?")
_AWK = re.compile(r"\{\s*print\s*(?:\$([0-9]))?\s*;?\s*\}")


def run_program(name: str, args: Sequence[str], read: Read, piped: str | None) -> Done | None:
    """Run one of these programs; None if it is another one. Raises UnknownScriptError."""
    program = TEXT_PROGRAMS.get(name)
    return None if program is None else program(args, read, piped)


def _input(files: Sequence[str], read: Read, piped: str | None, name: str) -> Done:
    """Return the text of some files, else what comes through the pipe; 1 if a file is missing."""
    if not files or files == ["-"]:
        if piped is None:
            raise UnknownScriptError(name)
        read.spend(len(piped) >> COPIED_SHIFT if name in _IN_C else len(piped))
        return piped, 0
    texts = [read(path) for path in files]
    if "/" in texts:
        raise UnknownScriptError("a directory")
    size = sum(len(text or "") for text in texts)
    read.spend(size >> COPIED_SHIFT if name in _IN_C else size)
    return "".join(text for text in texts if text is not None), int(None in texts)


def _cat(args: Sequence[str], read: Read, piped: str | None) -> Done:
    if any(arg.startswith("-") and arg != "-" for arg in args):
        raise UnknownScriptError("cat")
    return _input(args, read, piped, "cat")


def _wc(args: Sequence[str], read: Read, piped: str | None) -> Done:
    option, *files = args or ("",)
    counts: Mapping[str, Callable[[str], int]] = {
        "-l": lambda text: text.count("\n"),
        "-w": lambda text: len(text.split()),
        "-c": lambda text: len(text.encode()),
    }
    if option not in counts or len(files) > 1:
        raise UnknownScriptError("wc")
    text, code = _input(files, read, piped, "wc")
    if code:
        return "", code
    return " ".join((str(counts[option](text)), *files)) + "\n", 0


def _some_lines(name: str) -> Callable[[Sequence[str], Read, str | None], Done]:
    def run(args: Sequence[str], read: Read, piped: str | None) -> Done:
        if name == "tail" and {"-f", "-F"} & set(args):
            raise EndlessScriptError(name)
        match = re.match(r"-n ([0-9]{1,6})(?: |$)|-n?([0-9]{1,6})(?: |$)|(?!-)", " ".join(args))
        if match is None:
            raise UnknownScriptError(name)
        files = " ".join(args)[match.end() :].split()
        count = int(match[1] or match[2] or 10)
        text, code = _input(files, read, piped, name)
        lines = text.splitlines(keepends=True)
        chosen = lines[:count] if name == "head" else lines[max(len(lines) - count, 0) :]
        return "".join(chosen), code

    return run


def _grep(args: Sequence[str], read: Read, piped: str | None) -> Done:
    options = {letter for arg in args if arg.startswith("-") for letter in arg[1:]}
    rest = [arg for arg in args if not arg.startswith("-")]
    if not rest or options - set("qvcxF") or not _PLAIN.fullmatch(rest[0]):
        raise UnknownScriptError("grep")
    text, code = _input(rest[1:], read, piped, "grep")
    if code:
        return "", 2
    pattern = Pattern(rest[0], is_literal="F" in options, is_whole="x" in options)
    read.spend(pattern.units * len(text))
    lines = [line for line in text.splitlines() if pattern.finds(line) != ("v" in options)]
    if "q" in options:
        return "", int(not lines)
    if "c" in options:
        return f"{len(lines)}\n", int(not lines)
    return "".join(f"{line}\n" for line in lines), int(not lines)


def _cut(args: Sequence[str], read: Read, piped: str | None) -> Done:
    match = re.match(r"-d ?(\S) -f ?([0-9]{1,3})(?: |$)", " ".join(args))
    if match is None:
        raise UnknownScriptError("cut")
    text, code = _input(" ".join(args)[match.end() :].split(), read, piped, "cut")
    return "".join(f"{_field(line.split(match[1]), line, match)}\n" for line in _lines(text)), code


def _field(fields: list[str], line: str, match: re.Match[str]) -> str:
    """Return a field of a line; a line without the delimiter is printed whole."""
    at = int(match[2]) - 1
    if len(fields) == 1:
        return line
    return fields[at] if at < len(fields) else ""


def _lines(text: str) -> list[str]:
    return text.splitlines()


def _awk(args: Sequence[str], read: Read, piped: str | None) -> Done:
    match = _AWK.fullmatch(args[0].strip()) if args else None
    if match is None:
        raise UnknownScriptError("awk")
    text, code = _input(args[1:], read, piped, "awk")
    at = int(match[1] or 0)
    printed = []
    for line in _lines(text):
        fields = [line, *line.split()]
        printed.append(fields[at] if at < len(fields) else "")
    return "".join(f"{line}\n" for line in printed), code


def _tr(args: Sequence[str], _read: Read, piped: str | None) -> Done:
    if len(args) != 2 or args[0] != "-d" or piped is None:
        raise UnknownScriptError("tr")
    wanted = args[1].replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")
    if not re.fullmatch(r"[\w\s.,:\"'/]+", wanted):
        raise UnknownScriptError("tr")
    return "".join(char for char in piped if char not in wanted), 0


def _seq(args: Sequence[str], _read: Read, _piped: str | None) -> Done:
    if not 1 <= len(args) <= 2 or not all(arg.isdecimal() and len(arg) < 7 for arg in args):
        raise UnknownScriptError("seq")
    first, last = (1, int(args[0])) if len(args) == 1 else (int(args[0]), int(args[1]))
    if last - first >= SEQUENCE_MAX:
        raise UnknownScriptError("seq")
    return "".join(f"{number}\n" for number in range(first, last + 1)), 0


def _sort(args: Sequence[str], read: Read, piped: str | None) -> Done:
    options = {letter for arg in args if arg.startswith("-") for letter in arg[1:]}
    if options - set("nru"):
        raise UnknownScriptError("sort")
    files = [arg for arg in args if not arg.startswith("-")]
    text, code = _input(files, read, piped, "sort")
    lines = _lines(text)
    if "u" in options:
        lines = list(dict.fromkeys(lines))
    lines.sort(key=_number_first if "n" in options else None, reverse="r" in options)
    return "".join(f"{line}\n" for line in lines), code


def _number_first(line: str) -> tuple[int, str]:
    match = re.match(r"\s*(-?[0-9]{1,18})", line)
    return (int(match[1]) if match else 0, line)


def _uniq(args: Sequence[str], read: Read, piped: str | None) -> Done:
    if any(arg.startswith("-") and arg != "-c" for arg in args):
        raise UnknownScriptError("uniq")
    files = [arg for arg in args if arg != "-c"]
    text, code = _input(files, read, piped, "uniq")
    groups = [(line, len(list(same))) for line, same in itertools.groupby(_lines(text))]
    if "-c" in args:
        return "".join(f"{count:>7} {line}\n" for line, count in groups), code
    return "".join(f"{line}\n" for line, _ in groups), code


def _digest(name: str) -> Callable[[Sequence[str], Read, str | None], Done]:
    def run(args: Sequence[str], read: Read, piped: str | None) -> Done:
        printed, worst = "", 0
        for path in args or ("-",):
            text, code = _input([path], read, piped, name)
            worst = max(worst, code)
            if not code:
                data = text.encode("utf-8", "surrogateescape")
                algorithm = name.removesuffix("sum")
                found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
                printed += f"{found}  {path}\n"
        return printed, worst

    return run


def _hexdump(args: Sequence[str], read: Read, piped: str | None) -> Done:
    if not args or args[0] != "-C":
        raise UnknownScriptError("hexdump")
    text, code = _input(args[1:], read, piped, "hexdump")
    data = text.encode("utf-8", "surrogateescape")
    printed = "".join(_dumped(data, at) for at in range(0, len(data), _DUMPED))
    return f"{printed}{len(data):08x}\n" if data else "", code


def _dumped(data: bytes, at: int) -> str:
    row = data[at : at + _DUMPED]
    halves = (row[: _DUMPED // 2].hex(" "), row[_DUMPED // 2 :].hex(" "))
    shown = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
    return f"{at:08x}  {halves[0]:<23}  {halves[1]:<23}  |{shown}|\n"


def _sysctl(args: Sequence[str], read: Read, _piped: str | None) -> Done:
    names = [arg for arg in args if arg != "-n"]
    if any(arg.startswith("-") or "=" in arg for arg in names):
        raise UnknownScriptError("sysctl")
    printed, code = "", 0
    for name in names:
        shown = name.translate(str.maketrans("/", ".")) if "." not in name else name
        text = read(f"/proc/sys/{shown.translate(str.maketrans('./', '/.'))}")
        if text is None:
            code = 1
            continue
        printed += text if "-n" in args else f"{shown} = {text}"
    return printed, code


TEXT_PROGRAMS: Mapping[str, Callable[[Sequence[str], Read, str | None], Done]] = {
    "cat": _cat,
    "wc": _wc,
    "head": _some_lines("head"),
    "tail": _some_lines("tail"),
    "grep": _grep,
    "cut": _cut,
    "awk": _awk,
    "tr": _tr,
    "seq": _seq,
    "sort": _sort,
    "uniq": _uniq,
    "md5sum": _digest("md5sum"),
    "sha256sum": _digest("sha256sum"),
    "hexdump": _hexdump,
    "sysctl": _sysctl,
}
