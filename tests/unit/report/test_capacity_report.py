"""The page of a capacity search: the curve, what broke first, and that it asks no network."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from run_files import write_run

from fleet.report.capacity_report import Probe, Search, write_capacity
from fleet.report.report import Outcome


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of runs: three sizes, of which the largest broke."""
    path = tmp_path_factory.mktemp("capacity")
    for nodes in (100, 200, 400):
        run = path / f"{nodes:06}-1"
        write_run(run, us=50_000 if nodes == 400 else 5_000, is_slow=nodes == 400)
    return path


def searched(directory: Path, *, verdict: Outcome = Outcome.FAIL) -> Search:
    probes = [
        Probe(
            nodes=nodes,
            verdict=verdict if nodes == 400 else Outcome.PASS,
            told="On Kubernetes v1.36.3 the PATCHes were slow.",
            ready_s=nodes / 20,
            nearest="MutatingApiCallLatency",
            share=nodes / 250,
            shown="MutatingApiCallLatency 1.6 s of 1 s",
            directory=str(directory / f"{nodes:06}-1"),
        )
        for nodes in (400, 100, 200)
    ]
    return Search(
        verdict=Outcome.PASS,
        held=200,
        broke=400,
        what_broke=probes[0].told,
        took_s=300.0,
        command=["spawn", "--duration=75s", "--etcd-flag=<&>"],
        probes=probes,
    )


def test_the_page_says_what_held_what_broke_first_and_shows_the_curve(directory: Path) -> None:
    (directory / "000100-1/report.html").touch()
    path = write_capacity(searched(directory), directory)
    assert path == directory / "capacity.html"
    text = path.read_text()
    assert path.stat().st_size < 3_000_000
    assert "200 nodes held on Kubernetes v1.36.3; 400 did not." in text
    assert "On Kubernetes v1.36.3 the PATCHes were slow." in text
    assert re.findall(r'<figure id="plot-(\w+)"', text) == ["capacity", "ready"]
    curve = text.partition('<figure id="plot-capacity"')[2].partition("</figure>")[0]
    assert "MutatingApiCallLatency" in curve
    assert "the limit" in curve
    assert '"size failed","colour":"--s2","x":[400.0],"y":[1.6]' in text
    runs = text.partition("<h2>Runs")[2]
    shown = [
        int(each) for each in re.findall(r'<td class="n">(\d+)</td><td class="n">1</td>', runs)
    ]
    assert shown == [100, 200, 400]
    assert '<a href="000100-1/report.html">' in text
    assert '<a href="000200-1/report.html">' not in text  # there is none
    assert "--etcd-flag=&lt;&amp;&gt;" in text
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= {"https://github.com/leeoniya/uPlot"}
    assert not re.search(r"<link|<img|@import|\ssrc=", text)


def test_a_limit_of_fleet_s_own_is_not_the_control_plane_s(directory: Path) -> None:
    content = searched(directory, verdict=Outcome.INVALID)
    text = write_capacity(content, directory).read_text()
    assert "That run is INVALID: fleet, or the machine that both share, was the limit" in text
    content = searched(directory)  # of the same size the scenario's pods were late
    content.probes[0].share = 0.4
    text = write_capacity(content, directory).read_text()
    assert "INVALID" not in text
    assert '"size failed","colour":"--s2","x":[400.0],"y":[1.0]' in text


@pytest.mark.parametrize(
    ("verdict", "words", "told"),
    [
        (Outcome.INCOMPLETE, "INCOMPLETE", "the search ended early"),
        (Outcome.INVALID, "INVALID", "the search ended early"),
        (Outcome.NOT_JUDGED, "NOT JUDGED", "a larger one cannot be tried"),
        (Outcome.PASS, "HELD", "a larger one cannot be tried"),
    ],
)
def test_a_search_that_ended_early_has_a_page(
    tmp_path: Path, verdict: Outcome, words: str, told: str
) -> None:
    content = replace(searched(tmp_path), verdict=verdict, broke=None, what_broke="")
    content.problem = "/readyz of the API server answered 500 for 30s (--stop-if)"
    text = write_capacity(content, tmp_path).read_text()
    assert f'<p class="verdict">{words}</p>' in text
    assert f"200 nodes held on Kubernetes of unknown version, {told}." in text
    assert f"<p>{content.problem}</p>" in text
    assert ("--hold 5m" in text) == (verdict is Outcome.NOT_JUDGED)
    content.command = ["run", "zone-outage"]  # which --hold says nothing of
    text = write_capacity(content, tmp_path).read_text()
    assert "--hold 5m" not in text
    assert ("give the scenario a longer phase" in text) == (verdict is Outcome.NOT_JUDGED)


def test_there_is_a_page_without_the_runs_files(tmp_path: Path) -> None:
    content = searched(tmp_path)
    content.held, content.broke = 0, None
    text = write_capacity(content, tmp_path).read_text()
    assert "No size held on Kubernetes of unknown version" in text
    assert re.findall(r'<figure id="plot-(\w+)"', text) == ["ready"]
