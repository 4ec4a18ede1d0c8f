"""A hook of MkDocs (`mkdocs.yml`): makes a site of the pages that GitHub shows.

docs/README.md is the start page; its links, heading by heading, are the navigation. The site drops
the options for tests that follow the language of a block. A link to a file that is no page leads to
the repository if `pyproject.toml` has its address (`project.urls.Repository`).
"""

import logging
import posixpath
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LOG = logging.getLogger("mkdocs.hooks.fleet")
ROOT = Path(__file__).parent.parent
OUTSIDE_DOCS = {
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "charts/fleet/README.md": "reference/chart.md",
}
"""Pages of the repository by their place in the site; all others lie below docs/."""
FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
SHORT_CODE = re.compile(r"<code>([^<]{1,30})</code>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the navigation from the start page, and the repository's address from the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Repository", "")
    parts = HEADING.split((ROOT / "docs" / "README.md").read_text())
    config.nav = [{"Home": "README.md"}]
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        linked = {
            _in_site(posixpath.join("docs", target)): words
            for words, target, _ in LINK.findall(text)
        }
        config.nav.append({title: [{words: uri} for uri, words in linked.items() if uri]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie below docs/."""
    for path, uri in OUTSIDE_DOCS.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Files) -> str:
    """Return a page without the options of its blocks, its links made for the site."""
    here = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # which would be the page itself
    places = {uri: path for path, uri in OUTSIDE_DOCS.items()}
    folder = posixpath.dirname(places.get(here, f"docs/{here}"))

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match.groups(default="")
        if "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if uri := _in_site(path):
            return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(here))}{anchor})"
        return f"[{text}]({config.repo_url}/blob/main/{path})" if config.repo_url else text

    return LINK.sub(link, FENCE.sub(r"\1", markdown))


def on_page_content(html: str, page: Page, **_: Files | MkDocsConfig) -> str:
    """Keep short code such as --max-nodes on one line, and warn of an item that is read as text.

    GitHub needs no empty line before a list.
    """
    if item := re.search(r"\n- .*", re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL)):
        LOG.warning("%s: no empty line before %s", page.file.src_uri, item[0].strip())
    return SHORT_CODE.sub(r'<code class="short">\1</code>', html)


def _in_site(path: str) -> str:
    """Return the place in the site of a page of the repository, or nothing for other files."""
    path = posixpath.normpath(path)
    is_page = path.startswith("docs/") and path.endswith(".md")
    return path.removeprefix("docs/") if is_page else OUTSIDE_DOCS.get(path, "")
