"""The documentation as text: links lead somewhere, index and generated pages are true."""

import re
from pathlib import Path

import markdown
import pytest
import reference

UNTESTED_MAX = 20


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


@pytest.mark.parametrize(("page", "text"), reference.pages().items(), ids=str)
def test_the_generated_pages_are_what_the_code_says(page: Path, text: str) -> None:
    assert page.read_text() == text, "run `make docs`"


def test_the_files_that_the_design_names_are_there() -> None:
    page = (markdown.ROOT / "docs" / "explain" / "design.md").read_text()
    there = {path.name for path in (markdown.ROOT / "fleet").rglob("*.py")}
    named = set(re.findall(r"([a-z_0-9]+\.py)`", page))
    assert len(named) > 30
    assert named <= there, f"docs/explain/design.md names {sorted(named - there)}"
