"""A record that somebody else wrote: what it says is shown, and never obeyed."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_files import write_run

from fleet.errors import UsageError
from fleet.report.capacity_report import Probe, Search, write_capacity
from fleet.report.figure import Json
from fleet.report.html_report import page
from fleet.report.report import Outcome
from fleet.report.report_command import junit
from fleet.report.run_directory import (
    CONTROLPLANE,
    HISTOGRAMS,
    RUN,
    SUMMARY,
    TIMESERIES,
    read_run,
)

HARM = '"\'><script>alert(1)</script><img src=x onerror=alert(2)> style="} body{} $x$ &amp; '
KEPT = {"verdict", "kind", "component"}
"""Keys whose values decide what is shown; of `phases` the kind is one of two words."""


def harmed(value: object, key: str = "") -> object:
    """Return a value in which every text says something harmful."""
    if isinstance(value, str):
        return value if key in KEPT else HARM + value
    if isinstance(value, list):
        return [harmed(each, key) for each in value]
    if isinstance(value, dict):
        return {name: harmed(inside, name) for name, inside in value.items()}
    return value


def harm(directory: Path) -> None:
    for name in (SUMMARY, RUN):
        content = json.loads((directory / name).read_text())
        if name == RUN:
            content["options"][HARM] = HARM
            content["machine"][HARM] = HARM
        else:
            content["controlplane"]["asked_by_fleet"] = {HARM: 3}
            content["controlplane"]["problem"] = HARM
        (directory / name).write_text(json.dumps(harmed(content)))
    for name in (TIMESERIES, CONTROLPLANE):
        lines = [json.loads(line) for line in (directory / name).read_text().splitlines()]
        for line in lines if name == CONTROLPLANE else ():
            for rows in line["values"].values():
                rows.update({HARM + labels: value for labels, value in rows.items()})
        text = "".join(f"{json.dumps(harmed(line))}\n" for line in lines)
        (directory / name).write_text(text)


class Elements(HTMLParser):
    """Everything of a page that a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        self.attributes |= given.keys()
        self.links |= {str(given[name]) for name in ("href", "xlink:href", "src") if name in given}
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(given["content"])


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def check(text: str) -> None:
    """Nothing of a record is more than text; the policy allows the page's own style and script."""
    found = Elements(text)
    assert not found.tags & {"img", "iframe", "object", "embed", "link", "base", "form"}
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"]
    assert not [
        link for link in found.links if not re.fullmatch(r"#[\w-]+|[\w-]+/report\.html", link)
    ]
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "body{}" not in style
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    [script] = [content for attributes, content in scripts if not attributes]
    assert f"style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(script)}';" in (
        found.policy
    )
    for attributes, content in scripts[:-1]:
        assert attributes == ' type="application/json" id="plots"'
        assert not set("<>&") & set(content)
    assert "alert(" not in script
    assert found.policy.startswith("default-src 'none';")
    assert "unsafe" not in found.policy
    assert "url(" not in style


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", fault=True, is_slow=True)
    harm(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("verdict", Outcome)
def test_every_text_of_a_record_is_text_on_the_page(hostile: Path, verdict: Outcome) -> None:
    summary = json.loads((hostile / SUMMARY).read_text())
    (hostile / SUMMARY).write_text(json.dumps({**summary, "verdict": verdict}))
    text = page(read_run(hostile))
    check(text)
    assert f'<body class="{verdict}">' in text
    assert text.count("&lt;script&gt;alert(1)") > 20
    assert '<figure id="plot-requests">' in text
    junit(read_run(hostile))


def test_so_are_those_of_a_search(hostile: Path, tmp_path: Path) -> None:
    probe = Probe(
        nodes=20,
        verdict=Outcome.FAIL,
        ready_s=1.0,
        directory=str(hostile),
        told=HARM,
        nearest=HARM,
        shown=HARM,
        share=1.5,
    )
    content = Search(
        verdict=Outcome.FAIL,
        held=0,
        broke=20,
        what_broke=HARM,
        took_s=3.0,
        command=[HARM],
        probes=[probe],
    )
    check(write_capacity(content, tmp_path).read_text())


def texts_for_numbers(directory: Path) -> Iterator[tuple[str, Json]]:
    summary = json.loads((directory / SUMMARY).read_text())
    for part, keys in {
        "slis": ("measured", "limit", "client", "samples", "percentile"),
        "requests": ("code", "count", "ms"),
        "phases": ("from_s", "until_s"),
    }.items():
        for key in keys:
            first, *rest = summary[part]
            yield SUMMARY, {**summary, part: [{**first, key: HARM}, *rest]}
        yield SUMMARY, {**summary, part: HARM}
        yield SUMMARY, {**summary, part: [HARM]}
    yield SUMMARY, {**summary, "expectations": [{"name": "some"}]}
    yield SUMMARY, {**summary, "invalid_reasons": HARM}
    yield SUMMARY, {**summary, "verdict": HARM}
    yield SUMMARY, {**summary, "verdict": "passed"}
    yield RUN, {"machine": HARM}
    yield HISTOGRAMS, {"pods.start": {HARM: 1}}
    line = json.loads((directory / TIMESERIES).read_text().splitlines()[0])
    for key in ("wall_s", "nodes", "pods", "requests", "requests_total"):
        yield TIMESERIES, {**line, key: HARM}
    yield CONTROLPLANE, {"component": "kube-apiserver", "values": HARM}


def test_a_text_in_place_of_a_number_or_an_unknown_verdict_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    for number, (name, content) in enumerate(texts_for_numbers(tmp_path / "run")):
        path = tmp_path / f"run-{number}"
        path.mkdir()
        for each in (SUMMARY, RUN, TIMESERIES):
            (path / each).write_bytes((tmp_path / "run" / each).read_bytes())
        (path / name).write_text(json.dumps(content))
        with pytest.raises(UsageError) as refused:
            read_run(path)
        assert str(refused.value).startswith(str(path / name))
        assert "\n" not in str(refused.value)


def test_two_steady_parts_of_a_dashboard_s_run_make_a_page(tmp_path: Path) -> None:
    """fleet writes one; a record may have any number."""
    write_run(tmp_path)
    summary = json.loads((tmp_path / SUMMARY).read_text())
    (tmp_path / RUN).write_text(json.dumps({"options": {"dashboard": True}}))
    steady = {"name": "steady", "kind": "phase", "from_s": 0.0, "until_s": None}
    for count in (0, 1, 2):
        (tmp_path / SUMMARY).write_text(json.dumps({**summary, "phases": [steady] * count}))
        assert "<h1>" in page(read_run(tmp_path))
