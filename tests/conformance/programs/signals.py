"""What leaves the middle of a script: its end, that of a loop, and a wait for somebody to type."""

from collections.abc import Sequence

_READERS = frozenset(
    ("cat", "wc", "head", "tail", "grep", "cut", "awk", "tr", "sort", "uniq", "md5sum", "sha256sum")
)


class Exit(Exception):  # noqa: N818 - it is no error
    """The script runs `exit`; the status is the shell's."""


class Replaced(Exception):  # noqa: N818 - it is no error
    """From here on the script is a program that is not understood."""


class Break(Exception):  # noqa: N818 - it is no error
    """The script leaves a loop."""


class Continue(Exception):  # noqa: N818 - it is no error
    """The script goes on with the next round of a loop."""


class InputNeeded(Exception):  # noqa: N818 - it is no error
    """A program reads stdin, and nothing is there yet."""


def needs_input(name: str, args: Sequence[str]) -> bool:
    """Return whether a program is given no file to read: then it reads stdin."""
    if name == "tar":
        return bool(args) and "x" in args[0] and "-" in args
    if name == "nc":
        return not any("z" in arg for arg in args if arg.startswith("-"))
    return name in _READERS and _files(name, args) == 0


def _files(name: str, args: Sequence[str]) -> int:
    """Count the files among the arguments of a program."""
    plain = [arg for arg in args if not arg.startswith("-")]
    if name in {"grep", "awk", "tr"}:
        return len(plain) - 1 if name != "tr" else 0
    if name in {"head", "tail"} and "-n" in args:
        return len(plain) - 1
    if name == "cut":
        return len(plain) - sum(arg in {"-d", "-f"} for arg in args)
    return len(plain)
