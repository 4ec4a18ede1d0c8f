"""The documentation as text: links lead somewhere, index and generated pages are true."""

import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import markdown

from fleet.kubelet.pod_worker import SyncStage
from tools import reference

UNTESTED_MAX = 12
PUZZLES = re.compile(
    r"(?<![\w-])(anew|beside|in vain|meanwhile|tells|to be had|told|whoever)\b", re.IGNORECASE
)
"""Words that readers of English have to decode: report, again, next to, while, not available."""


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in markdown.links(page):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{markdown.name(page)}: {link}"
        assert path.is_relative_to(markdown.ROOT), link
        if anchor:
            assert anchor in markdown.anchors(path), f"{markdown.name(page)}: {link}"


def test_the_index_names_every_page() -> None:
    index = markdown.ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in markdown.links(index)}
    pages = {page for page in markdown.pages() if page.is_relative_to(index.parent)}
    missing = {markdown.name(page) for page in pages - {index} - linked}
    assert not missing, "docs/README.md does not link these"


def puzzling(text: str) -> bool:
    return PUZZLES.search(re.sub("`[^`]*`|{[^}]*}", "", text)) is not None


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name)
def test_pages_use_plain_words(page: Path) -> None:
    assert not list(filter(puzzling, markdown.prose(page)))


@pytest.mark.parametrize("folder", ["fleet", "profiles", "tools"])
def test_docstrings_help_and_comments_use_plain_words(folder: str) -> None:
    puzzles = []
    for path in (markdown.ROOT / folder).rglob("*.py"):
        text = path.read_text()
        tokens = tokenize.generate_tokens(io.StringIO(text).readline) if puzzling(text) else ()
        for token in tokens:
            is_text = token.type in {tokenize.COMMENT, tokenize.STRING} and " " in token.string
            if is_text and puzzling(token.string):
                puzzles.append(f"{markdown.name(path)}:{token.start[0]}: {token.string}")
    assert not puzzles


def test_the_readme_is_short() -> None:
    assert len((markdown.ROOT / "README.md").read_text().splitlines()) <= 80


def test_code_stands_between_fences_where_tests_find_it() -> None:
    for page in markdown.pages():
        is_fenced, before = False, ""
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_fenced = not is_fenced
            is_code = line.startswith("    ") and not before
            assert is_fenced or not is_code, f"{markdown.name(page)}:{number}: {line}"
            before = line


def test_few_blocks_are_untested_and_each_says_why() -> None:
    untested = [
        (block.place, block.options["untested"])
        for page in markdown.pages()
        for block in markdown.blocks(page)
        if "untested" in block.options
    ]
    assert all(reason for _, reason in untested), untested
    assert len(untested) <= UNTESTED_MAX, untested


@pytest.mark.parametrize(
    ("page", "text"),
    [pytest.param(*each, id=markdown.name(each[0])) for each in reference.pages().items()],
)
def test_the_generated_pages_are_what_the_code_says(page: Path, text: str) -> None:
    assert page.read_text() == text, "run `make docs`"


def test_the_files_that_the_design_names_are_there() -> None:
    page = (markdown.ROOT / "docs" / "explain" / "design.md").read_text()
    there = {path.name for path in (markdown.ROOT / "fleet").rglob("*.py")}
    named = set(re.findall(r"([a-z_0-9]+\.py)`", page))
    assert len(named) > 30
    assert named <= there, f"docs/explain/design.md names {sorted(named - there)}"


def test_the_table_of_a_pod_names_its_stages_and_steps() -> None:
    page = (markdown.ROOT / "docs" / "explain" / "design.md").read_text()
    rows = page.partition("## The table of a pod\n")[2].partition("\n## ")[0].splitlines()
    cells = [row.split("|") for row in rows if row.startswith("| `")]
    named = {word for row in cells for word in re.findall(r"`([A-Z_]+)`", row[1])}
    assert named == {stage.name for stage in SyncStage}
    kubelet = markdown.ROOT / "fleet" / "kubelet"
    code = (kubelet / "pods" / "pod_sync.py").read_text()
    code += (kubelet / "containers" / "kuberuntime_manager.py").read_text()
    steps = {word for row in cells for word in re.findall(r"`(?:\w+\.)?([a-z_]+)`", row[2])}
    assert [each for each in steps if f"def {each}(" not in code] == []


def hops(heading: str) -> Iterator[list[tuple[Path, list[str]]]]:
    """Yield of each row of a path on the design page its files, and the functions in each."""
    page = (markdown.ROOT / "docs" / "explain" / "design.md").read_text()
    lines = page.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [line for line in lines if re.match(r"\| \d", line)]
    fleet = markdown.ROOT / "fleet"
    for row in rows:
        places: list[tuple[Path, list[str]]] = []
        for word in re.findall(r"`([\w/.]+)`", row.split("|")[-3]):
            if word.endswith(".py"):
                beside = [places[-1][0].parent / word] if places else []
                found = (each for each in (*beside, *fleet.rglob(word)) if each.is_file())
                places.append((next(found), []))
            else:
                places[-1][1].append(word)
        yield places


@pytest.mark.parametrize(
    ("heading", "hops_max"), [("The path of a heartbeat", 9), ("The path of a pod", 40)]
)
def test_the_paths_of_the_design_page_go_through_code(heading: str, hops_max: int) -> None:
    rows = list(hops(heading))
    assert 0 < len(rows) <= hops_max
    for path, functions in itertools.chain.from_iterable(rows):
        text = path.read_text()
        missing = [each for each in functions if f"def {each}(" not in text]
        assert not missing, f"{path.name} has no {missing}"
