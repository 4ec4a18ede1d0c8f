"""Reads the documentation: its fenced blocks, its links and its anchors.

Behind the language of a block may stand what a test does with it:

    untested="needs kind"    it is not run, and the reason is shown
    background               it is started; once its nodes are Ready the page goes on, and it is
                             interrupted at the end of the page
    file=mine.yaml           the text is also that file, which later blocks of the page use
"""

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOT_PAGES = ("README.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
FENCE = re.compile(r"^( *)```(.*)$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *$")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    options: Mapping[str, str]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return everything that is written for users."""
    charts = (ROOT / "charts").rglob("*.md")
    return [
        *map(ROOT.joinpath, ROOT_PAGES),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted(charts),
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    lines = enumerate(page.read_text().splitlines(), 1)
    for number, line in lines:
        if (opened := FENCE.match(line)) is None:
            continue
        indent, info = len(opened[1]), shlex.split(opened[2])
        text = []
        for _, inside in lines:
            if inside.strip() == "```":
                break
            text.append(inside[indent:])
        pairs = (word.partition("=") for word in info[1:])
        options = {key: value for key, _, value in pairs}
        language = info[0] if info else ""
        yield Block(name(page), number, language, options, "\n".join(text) + "\n")


def prose(page: Path) -> Iterator[str]:
    """Yield the lines outside of fenced blocks."""
    is_fenced = False
    for line in page.read_text().splitlines():
        if FENCE.match(line):
            is_fenced = not is_fenced
        elif not is_fenced:
            yield line


def links(page: Path) -> list[str]:
    return [target for line in prose(page) for target in LINK.findall(re.sub("`[^`]*`", "", line))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, made as GitHub makes them."""
    found: set[str] = set()
    for line in prose(page):
        if heading := HEADING.match(line):
            text = re.sub(r"[^\w\- ]", "", LINK.sub("", heading[1]).lower())
            found.add(text.replace(" ", "-"))
    return found
