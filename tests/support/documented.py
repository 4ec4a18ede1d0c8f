"""Reads the tables of docs/reference, to compare what they say there is with what there is."""

import re
from collections.abc import Iterator
from pathlib import Path

from support.markdown import ROOT

REFERENCE = ROOT / "docs" / "reference"
NAME = re.compile(r"`([^`]+)`")


def rows(page: Path, heading: str = "") -> Iterator[str]:
    """Yield the first cell of each row of the tables of a page, or of those below a heading."""
    is_there = not heading
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            is_there = not heading or line.lstrip("# ") == heading
        elif is_there and line.startswith("|") and not line.startswith(("|---", "| key |")):
            yield line.split("|")[1]


def summary_keys() -> set[str]:
    """Return the paths of the values in summary.json; `[]` is each of a list, NAME any key."""
    found: list[str] = []
    for row in rows(REFERENCE / "summary.md", "summary.json"):
        for name in NAME.findall(row):
            whole = found[-1].rpartition(".")[0] + name if name.startswith(".") else name
            found.append(whole)
    assert len(found) == len(set(found)), found
    return set(found)


COUNTERS = frozenset({"rejected", "controlplane.asked_by_fleet"})
"""Maps whose keys are what came, and not named by anybody."""


def paths(value: object, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the values in a summary. An empty list or map is one itself."""
    if prefix in COUNTERS:
        yield prefix
    elif isinstance(value, dict) and value:
        for key, inside in value.items():
            name = "NAME" if prefix == "agents" else key
            yield from paths(inside, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list) and value:
        for inside in value:
            yield from paths(inside, f"{prefix}[]")
    else:
        yield f"{prefix}[]" if isinstance(value, list) else prefix


def metrics() -> dict[str, frozenset[str]]:
    """Return the labels of each documented metric by its name; of `process_*` nothing."""
    found = {}
    for row in rows(REFERENCE / "metrics.md"):
        for name in NAME.findall(row):
            bare, _, labels = name.rstrip("}").partition("{")
            if bare != "process_*":
                found[bare] = frozenset(filter(None, labels.split(",")))
    return found


def exposed(text: str) -> dict[str, frozenset[str]]:
    """Return the labels of each metric of fleet that a scrape has, by its name."""
    labels: dict[str, set[str]] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family = line.split()[2]
            labels.setdefault(family, set())
        elif not line.startswith("#"):
            inside = re.search(r"\{(.*)\}", line)
            labels[family] |= set(re.findall(r'(\w+)="', inside[1])) if inside else set()
    return {
        name: frozenset(each - {"le"})
        for name, each in labels.items()
        if not name.startswith("process_")
    }
