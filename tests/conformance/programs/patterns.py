r"""The patterns of `grep` that are understood, matched in one pass over a line.

A pattern is a row of places, some of which may repeat (`*`). The places that a match may have come
to are the bits of one integer, and a character moves all of them at once. So a match never goes
back, whatever the pattern has of `.*`; a matcher that goes back takes hours for `.*.*.*x`.
Source: POSIX.1-2024, Base Definitions, 9.3 Basic Regular Expressions; `\s` of GNU and busybox.
The bits: Navarro and Raffinot, Flexible Pattern Matching in Strings, 4.3.
"""

import re

from .budget import MATCH_UNITS

_PLACE = re.compile(r"(\\s|.)(\*?)", re.DOTALL)
_WORD_BITS = 64


class Pattern:
    """One pattern; `units` is what a character costs that it is held against."""

    __slots__ = (
        *("_any", "_ends", "_first", "_last", "_literal", "_masks", "_repeats", "_spaces"),
        *("_starts", "units"),
    )

    def __init__(self, text: str, *, is_literal: bool, is_whole: bool) -> None:
        self._starts = self._ends = is_whole
        if not is_literal:
            self._starts = is_whole or text.startswith("^")
            self._ends = is_whole or text.endswith("$")
            text = text.removeprefix("^").removesuffix("$")
        self._literal = text if is_literal or not set(text) & set(".*\\") else None
        self._masks: dict[str, int] = {}
        self._any = self._spaces = self._repeats = 0
        count = 0
        for place in _PLACE.finditer(text) if self._literal is None else ():
            bit = 1 << count
            count += 1
            self._repeats |= bit if place[2] else 0
            if place[1] == ".":
                self._any |= bit
            elif place[1] == "\\s":
                self._spaces |= bit
            else:
                self._masks[place[1]] = self._masks.get(place[1], 0) | bit
        self._last = 1 << count
        self._first = self._closed(1)
        self.units = 1 if self._literal is not None else MATCH_UNITS * (1 + count // _WORD_BITS)

    def finds(self, line: str) -> bool:
        """Return whether a line has a match."""
        literal = self._literal
        if literal is None:
            return self._moves(line)
        if self._starts:
            return line == literal if self._ends else line.startswith(literal)
        return line.endswith(literal) if self._ends else literal in line

    def _moves(self, line: str) -> bool:
        masks, repeats, last = self._masks, self._repeats, self._last
        reached = self._first
        again = 0 if self._starts else self._first
        for char in line:
            if reached & last and not self._ends:
                return True
            taken = self._any | masks.get(char, 0)
            if char.isspace():
                taken |= self._spaces
            taken &= reached
            reached = self._closed((taken & ~repeats) << 1 | taken & repeats) | again
        return bool(reached & last)

    def _closed(self, reached: int) -> int:
        """Add the places that are reached without a character: behind those that may repeat.

        The carry of the sum runs through a row of such places from the first that is reached.
        """
        repeats = self._repeats
        return reached | (repeats + (reached & repeats)) ^ repeats
