"""What happened in the runs of `make chaos`: a file for each seed, and tables of all of them."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Self

from chaos.trouble import KINDS

NAME = "story.json"
WORDS_MAX = 300
"""Characters that the tables show of what is wrong."""


@dataclass
class Story:
    """What happened in one run."""

    seed: int
    size: str = ""
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    held: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By invariant and fault: how often it held after an episode with the fault."""
    looks: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """And how often it was looked at."""
    wrong: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    churned: int = 0

    def note(self, episode: set[str], found: dict[str, str], when: str) -> None:
        for name, wrong in found.items():
            for kind in episode:
                self.held[name][kind] += not wrong
                self.looks[name][kind] += 1
            if wrong:
                self.wrong.append(f"{when}: {name}: {wrong} (after {', '.join(sorted(episode))})")

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / NAME).write_text(json.dumps(vars(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        story = cls(**json.loads(path.read_text()))
        story.counts = Counter(story.counts)
        for table in (story.held, story.looks):
            table.update({name: Counter(row) for name, row in table.items()})
        return story


def stories(directory: Path) -> list[Story]:
    """Return what happened in each seed that is kept in a directory."""
    found = [Story.read(path) for path in directory.glob(f"*/{NAME}")]
    return sorted(found, key=lambda story: story.seed)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table: one column of text, the others of figures."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def recoveries(stories: list[Story]) -> list[str]:
    """Return how often each fault was drawn, and how long all nodes took to renew after it."""
    rows = []
    for kind in KINDS:
        values = [each for story in stories for each in story.recovery_s.get(kind, ())]
        times = sum(story.counts[kind] for story in stories)
        figures = (percentile(values, 0.5), percentile(values, 0.99), max(values, default=0))
        rows.append([kind, str(times), *(f"{each:.0f}" for each in figures)])
    return table(["fault", "times", "p50 s", "p99 s", "max s"], rows)


def proofs(stories: list[Story]) -> list[str]:
    """Return how often each invariant held after each fault, of how often it was looked at."""
    names = list(dict.fromkeys(name for story in stories for name in story.looks))
    letters = dict(zip(ascii_lowercase, names, strict=False))
    rows = []
    for kind in ("start", *KINDS):
        looks = [
            [(s.held[n][kind], s.looks[n][kind]) for s in stories if n in s.looks] for n in names
        ]
        cells = [[sum(figures) for figures in zip(*each, strict=True)] for each in looks]
        rows.append([kind, *(f"{held}/{looked}" for held, looked in cells)])
    legend = [f"- {letter}: {name}" for letter, name in letters.items()]
    return [*legend, "", *table(["held / looked at", *letters], rows)]


def tables(stories: list[Story]) -> str:
    """Return the tables of all seeds together, and what was wrong in each."""
    verdicts = [
        [
            str(story.seed),
            story.size,
            "RED" if story.wrong else "green",
            str(sum(story.counts.values())),
            str(story.churned),
            ", ".join(story.unasked),
        ]
        for story in stories
    ]
    heads = ["seed", "size", "verdict", "faults", "pods deleted", "ended by themselves"]
    wrong = [
        f"- seed {story.seed}: {' '.join(each.split())[:WORDS_MAX]}"
        for story in stories
        for each in story.wrong
    ]
    parts = (recoveries(stories), proofs(stories), table(heads, verdicts), wrong)
    return "\n\n".join("\n".join(lines) for lines in parts if lines)
