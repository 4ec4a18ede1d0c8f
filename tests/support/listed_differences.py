"""What a differences.md says: which lines a comparison may have, and the limits of chance."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LIMIT = re.compile(r"`(\w+) = ([\d., ]+)`")
_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)(?!\?)")
"""Alternatives in a regular expression, none of which has groups of its own."""
CHANCE = re.compile(r"by chance, (\d+) at most: ")
"""Stands in the reason of a row that not every run needs, with how many lines it may match."""
OR = "\0"
"""In place of the bar that is no border of a cell."""


def cells_of(path: Path) -> list[list[str]]:
    """Return the rows of the page's tables whose first cell is code."""
    rows = [line for line in path.read_text().splitlines() if line.startswith("| `")]
    cells = [row.replace("\\|", OR).split("|")[1:-1] for row in rows]
    return [[cell.strip().replace(OR, "|") for cell in row] for row in cells]


def read_limits(path: Path) -> dict[str, tuple[float, ...]]:
    """Read what is left to chance, and how much of it: the rows `name = value`."""
    found = (_LIMIT.fullmatch(row[0]) for row in cells_of(path))
    return {
        match[1]: tuple(float(value) for value in match[2].split(",")) for match in found if match
    }


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of differences.md."""

    match: str
    """A regular expression for whole lines."""
    reason: str
    source: str

    @property
    def most(self) -> int | None:
        """How many lines it may match if chance needs it; None if each run does."""
        match = CHANCE.search(self.reason)
        assert match or "by chance" not in self.reason, self.reason
        return int(match[1]) if match else None


COLUMNS = 3


def read_listed(path: Path) -> list[Listed]:
    """Read which lines may be there: the other rows of the tables whose first cell is code."""
    rows = [row for row in cells_of(path) if not _LIMIT.fullmatch(row[0])]
    return [Listed(row[0].strip("`"), *row[1:]) for row in rows if len(row) == COLUMNS]


def judge(lines: Iterable[str], listed: Sequence[Listed]) -> list[str]:
    """Return what is wrong: a difference that is not listed, or an entry that nothing needs.

    `lines` may say with each line how often it was found. Of a row's alternatives each must be
    needed, or the row would allow what nobody has seen; but for rows that chance needs, which
    have a count.
    """
    counts = Counter(lines)
    unused = [
        narrow
        for each in listed
        if each.most is None
        for narrow in alternatives(each.match)
        if not any(re.fullmatch(narrow, line) for line in counts)
    ]
    often = [
        f"more than by chance: {each.match}: {times}"
        for each in listed
        if each.most is not None
        and (times := sum(counts[line] for line in counts if re.fullmatch(each.match, line)))
        > each.most
    ]
    found = unlisted([*counts], listed)
    return (
        [f"not listed: {line}" for line in found] + [f"unused: {each}" for each in unused] + often
    )


def alternatives(pattern: str) -> list[str]:
    """Return a regular expression once for each alternative of each of its groups."""
    found = [
        f"{pattern[: match.start()]}({choice}){pattern[match.end() :]}"
        for match in _CHOICE.finditer(pattern)
        for choice in match[1].split("|")
    ]
    return found or [pattern]


def unlisted(lines: Sequence[str], listed: Sequence[Listed]) -> list[str]:
    return [line for line in lines if not any(re.fullmatch(each.match, line) for each in listed)]


def too_often(replays: Mapping[str, int], limits: Mapping[str, tuple[float, ...]]) -> list[str]:
    """Return what is wrong with how often scenes were played again because the nodes differed."""
    [of_scene], [in_all] = limits["replays_of_a_scene"], limits["replays"]
    lines = [
        f"scene {name} was played again {count} times"
        for name, count in replays.items()
        if count > of_scene
    ]
    if sum(replays.values()) > in_all:
        lines.append(f"scenes were played again {sum(replays.values())} times in all")
    return lines
