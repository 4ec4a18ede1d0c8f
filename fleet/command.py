"""What a container's own command says about how it ends.

Only what needs no shell: `sleep N`, `true`, `false`, `exit N`, alone or through `sh -c`, so that
Jobs complete. Anything else is unknown, and the container runs for ever.
"""

import re
from typing import NamedTuple

from fleet.distribution import ZERO, Distribution, constant
from fleet.quantity import NS_PER_S

SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_SLEEP_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SLEEP = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?([smhd]?)")
_SHELL_SYNTAX = frozenset("|<>&$`")
_SEPARATOR = re.compile(r"\s*(;|&&|\n)\s*")
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


def outcome_of_command(command: tuple[str, ...], args: tuple[str, ...]) -> Outcome | None:
    """Return how a command ends, or None when it is unknown or never ends.

    Differs: `$(VAR)` is not expanded, and an image's own entry point is unknown.
    """
    words = (*command, *args)
    if not words or len(words) > _WORDS_MAX:
        return None
    program = words[0].rpartition("/")[2]
    if program in SHELLS:
        if len(words) < 3 or words[1] not in {"-c", "-ec"}:
            return None
        return _of_script(words[2], stops_at_error=words[1] == "-ec")
    step = _of_words(program, words[1:])
    return None if step is None else Outcome(constant(step[0]), step[1])


def _of_script(script: str, *, stops_at_error: bool) -> Outcome | None:
    """Understand simple commands that are joined by `;`, `&&` or a new line."""
    parts = _SEPARATOR.split(script.strip().removesuffix(";").rstrip())
    if len(parts) > _WORDS_MAX:
        return None
    total_ns = code = 0
    for at in range(0, len(parts), 2):
        if at and parts[at - 1] == "&&" and code:
            continue
        words = parts[at].split()
        if not words:
            continue
        program = words[0].rpartition("/")[2]
        if words == ["exit"]:
            break  # with the status of what ran before
        step = _of_words(program, tuple(words[1:]))
        if step is None:
            return None
        total_ns += step[0]
        code = step[1]
        if program == "exit" or (code and stops_at_error):
            break
    return Outcome(constant(total_ns) if total_ns else ZERO, code)


def _of_words(program: str, args: tuple[str, ...]) -> tuple[int, int] | None:
    """Return nanoseconds and exit code of one simple command."""
    if program in {"true", ":"} and not args:
        return 0, 0
    if program == "false" and not args:
        return 0, 1
    if program == "echo" and not set("".join(args)) & _SHELL_SYNTAX:
        return 0, 0
    if program == "sleep" and args:
        total_ns = _sleep_ns(args)
        return None if total_ns is None else (total_ns, 0)
    if program == "exit" and len(args) <= 1:
        code = args[0] if args else "0"
        return (0, int(code) & 0xFF) if re.fullmatch(r"[0-9]{1,9}", code) else None
    return None


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
