"""The page of a run, and the same in other forms: what is said, and that it asks no network."""

import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
from run_files import NODES, slow_writes, write_run

from fleet.controlplane.options import APISERVER
from fleet.errors import UsageError
from fleet.metrics import Histogram
from fleet.report.comparison import Row, compare
from fleet.report.control_plane import REQUESTS, Exposition, Sample, Samples
from fleet.report.curves import POINTS_MAX, plots_of, thin
from fleet.report.figure import Json
from fleet.report.figures import RequestFigures
from fleet.report.findings import first_broken, not_proven, recoveries, sentence
from fleet.report.html_report import page, write_report
from fleet.report.report import LONGER, Expectation, Outcome, Phase
from fleet.report.report_command import make_report
from fleet.report.run_directory import RunDirectory, RunRecord, read_run
from fleet.report.service_levels import Evidence, Objective, expectations, measure
from fleet.report.summary_text import summary_text


def embedded(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return what the script of a page draws."""
    [content] = re.findall(r'<script type="application/json" id="plots">(.*?)</script>', text)
    return cast("dict[str, list[dict[str, Any]]]", json.loads(content))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "good"
    write_run(path)
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "slow"
    write_run(path, us=50_000, is_slow=True)
    return path


def test_a_few_slow_calls_stand_out_at_a_moment_too(slow: Path) -> None:
    """None of a kind was called often between two samples; all of the run together were slow."""
    run = read_run(slow)
    [level] = [each for each in run.levels if each.met is False]
    run.levels = [replace(level, worst="PATCH nodes/status")]
    bounds = slow_writes(1, 1.5).bounds
    row = bounds[REQUESTS]

    def told(slow_calls: int, quick_calls: int) -> Exposition:
        rare = [float(slow_calls) if bound > 1.5 else 0.0 for bound in row]
        often = [float(quick_calls)] * len(row)
        buckets = {(REQUESTS, "PATCH|nodes|status|resource"): rare}
        return Exposition({}, {**buckets, (REQUESTS, "PUT|leases||resource"): often}, bounds)

    counts = ((15, 0, 100), (30, 0, 200), (45, 2, 300), (60, 4, 400), (75, 6, 500))
    run.samples.of[APISERVER] = [
        Sample(APISERVER, float(second), 40.0, 9, told(*counted)) for second, *counted in counts
    ]
    broken = first_broken(run)
    assert broken is not None
    assert broken.at_s == 30.0  # the sample before the first of them


def test_the_page_is_whole_and_asks_nothing(slow: Path) -> None:
    text = write_report(read_run(slow)).read_text()
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= {"https://github.com/leeoniya/uPlot"}
    assert not re.search(r"<link|<img|@import|\ssrc=", text)
    assert not re.search(r"href=\"(?!#)", text)
    assert "Permission is hereby granted, free of charge" in text  # of uPlot
    plots = {each["name"]: each for each in embedded(text)["plots"]}
    assert list(plots) == re.findall(r'<figure id="plot-(\w+)"', text)
    assert {"requests", "latency", "leases", "nodes", "pods", "spread", "cpu", "own"} <= {*plots}
    for plot in plots.values():
        for series in plot["series"]:
            assert len(series["x"]) == len(series["y"]) > 0
            assert f"<td>{html.escape(series['label'])}</td>" in text  # where no script runs
    for heading in ("Service levels", "What this run does not prove", "Errors", "Machine"):
        assert heading in text
    assert "&lt;slow&gt;" in text
    assert set(re.findall(r'<span class="tag">(\w+)</span>', text)) == {"simulated", "input"}
    sections = re.findall(r'<section id="([^"]+)"', text)
    assert re.findall(r'<a href="#([^"]+)">', text) == sections
    assert len(set(sections)) == len(sections) >= 8


def test_phases_and_what_broke_first_are_marked(slow: Path) -> None:
    text = page(read_run(slow))
    marks = {each["name"]: each["from_s"] for each in embedded(text)["phases"]}
    assert marks == {"bring-up": 0.0, "steady": 5.0, "first over its limit": 45.0}
    assert "steady 0:05 to 2:00" in text


def test_a_sample_before_all_were_ready_hides_no_moment(slow: Path) -> None:
    """On a busy machine nothing was sampled between 45 s and 60 s; all were Ready at 49 s."""
    run = read_run(slow)
    run.phases = [
        replace(each, from_s=49.0) if each.name == "steady" else each for each in run.phases
    ]
    broken = first_broken(run)
    assert broken is not None
    assert broken.at_s == 49.0


def test_a_slow_server_is_said_in_one_sentence(slow: Path) -> None:
    run = read_run(slow)
    assert run.verdict == "fail"
    broken = first_broken(run)
    assert broken is not None
    assert (broken.sli, broken.at_s) == ("MutatingApiCallLatency", 45.0)  # the sample before 60 s
    assert sentence(run) == (
        "Kubernetes v1.36.3 held 20 nodes for 1 min 55 s and started 120 pods; what broke first, "
        "at 0:45: MutatingApiCallLatency p99 was 2 s, PUT leases, over its limit of 1 s (writes of "
        "single objects, the slowest kind of request)."
    )


def test_what_broke_first_is_never_what_is_only_shown(slow: Path) -> None:
    """Nodes were lost before the writes were slow, but that decides no verdict by default."""
    run = read_run(slow)
    [lost] = [each for each in run.levels if each.sli == "FalseNotReadyNodes"]
    run.levels[run.levels.index(lost)] = replace(lost, measured=3.0, met=False)
    cast("dict[str, int]", run.lines[0]["nodes"])["ever_not_ready"] = 3
    broken = first_broken(run)
    assert broken is not None
    assert (broken.sli, lost.judged) == ("MutatingApiCallLatency", False)


def test_a_good_run_says_that_nothing_broke(good: Path) -> None:
    run = read_run(good)
    assert run.verdict == "pass"
    assert sentence(run).endswith(" pods; it met all that was expected of it.")
    unjudged = replace(run, levels=[replace(each, judged=False) for each in run.levels])
    assert "; no service level was judged; it met all" in sentence(unjudged)
    told = " ".join(not_proven(run))
    assert "etcd ran without fsync" in told
    assert "Ready for 1 min 55 s" in told
    assert "shared this machine" in told


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run whose writes took 2 s and whose nodes were Ready for 35 s only."""
    path = tmp_path_factory.mktemp("runs") / "short"
    write_run(path, seconds=40, us=50_000, is_slow=True)
    return path


def test_a_run_that_was_too_short_names_nothing_as_broken(short: Path) -> None:
    """It passes nothing and fails nothing, in every form, and says what to do."""
    run = read_run(short)
    why = ["all nodes were Ready for less than 60 s", LONGER]
    assert (run.verdict, run.reasons) == (Outcome.NOT_JUDGED, why)
    assert first_broken(run) is None
    assert sentence(run) == (
        "Kubernetes v1.36.3 held 20 nodes for 35.0 s and started 40 pods; not judged: "
        f"{'; '.join(why)}."
    )
    text = page(run)
    assert '<p class="verdict">NOT JUDGED</p>' in text
    assert "broken" not in text.partition("<body")[2].partition("<script")[0]
    assert all(each["kind"] != "broken" for each in embedded(text)["phases"])
    assert '<span class="unjudged">over its limit</span><small>not judged: all nodes' in text
    for said in ("--not-judged:#", "var(--not-judged)"):
        assert said in text
    told = json.loads(asked(short, form="json")[0])
    assert (told["verdict"], told["first_broken"], told["reasons"]) == ("not-judged", None, why)
    markdown = asked(short, form="markdown")[0]
    assert markdown.startswith("## NOT JUDGED: fleet run ")
    assert "BROKEN" not in markdown
    suite = ET.fromstring(asked(short, form="junit")[0].strip())
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")


def test_a_level_that_was_asked_for_and_not_judged_is_an_error_in_ci(tmp_path: Path) -> None:
    figures = write_run(tmp_path / "first")
    objectives = [Objective("WatchDelay", 99, 1.0, "slo.yaml", min_samples=1, phase="run")]
    figures.slis = measure(figures, Evidence(steady_s=300), objectives)
    figures.expectations = expectations(figures.slis)
    RunDirectory("r", tmp_path / "run").finish(figures)
    run = read_run(tmp_path / "run")
    assert (run.verdict, figures.judgement().exit_code) == (Outcome.NOT_JUDGED, 4)
    suite = ET.fromstring(asked(tmp_path / "run", form="junit")[0].strip())
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_what_a_scenario_waited_for_is_what_broke(tmp_path: Path) -> None:
    figures = write_run(tmp_path / "first")
    unmet = Expectation("recovery: NodesReady within 5m", is_met=False, detail="18 of 20")
    figures.expectations = [*figures.expectations, unmet]
    RunDirectory("r", tmp_path / "run").finish(figures)
    told = sentence(read_run(tmp_path / "run"))
    assert told.endswith("; not met: recovery: NodesReady within 5m (18 of 20).")
    suite = ET.fromstring(asked(tmp_path / "run", form="junit")[0].strip())
    assert suite.get("failures") == "1"


def test_every_form_says_the_same_figure(tmp_path: Path) -> None:
    """The terminal said 49.5 ms and Markdown 50 ms: the summary had been rounded to 0.05 s."""
    figures = write_run(tmp_path / "first")
    figures.slis = [replace(each, measured=0.0495) for each in figures.slis]
    figures.expectations = expectations(figures.slis)
    RunDirectory("r", tmp_path / "run").finish(figures)
    assert summary_text(figures).count(" 49.5 ms") > 2
    for form in ("markdown", "junit"):
        assert "50 ms" not in asked(tmp_path / "run", form=form)[0]
    assert "| MutatingApiCallLatency p99 | 49.5 ms |" in asked(tmp_path / "run", form="markdown")[0]


def test_refused_requests_are_in_every_form(tmp_path: Path) -> None:
    figures = write_run(tmp_path / "first")
    refused = RequestFigures("PUT", "leases", 429, 1_200, Histogram())
    figures.requests = [*figures.requests, refused]
    RunDirectory("r", tmp_path / "run").finish(figures)
    words = "the API server REFUSED 1,200 renewals of Leases and 120 other requests (429)"
    assert words in page(read_run(tmp_path / "run")).partition("</header>")[2][:200]
    for form in ("markdown", "json"):
        assert words in asked(tmp_path / "run", form=form)[0]
    figures.requests = [each for each in figures.requests if each.code == 200]
    RunDirectory("r", tmp_path / "fine").finish(figures)
    assert "REFUSED" not in page(read_run(tmp_path / "fine"))


def test_an_invalid_run_is_not_praised(tmp_path: Path) -> None:
    figures = write_run(tmp_path / "run")
    figures.process.timer_lag.record(5_000_000)
    directory = RunDirectory("again", tmp_path / "again")
    directory.finish(figures)
    run = read_run(tmp_path / "again")
    assert run.verdict == "invalid"
    assert sentence(run).startswith("Do not use these figures of Kubernetes v1.36.3: fleet itself ")
    assert "INVALID" in page(run)


def test_a_run_that_was_killed_is_incomplete(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    lines = (tmp_path / "run" / "timeseries.jsonl").read_bytes()
    (tmp_path / "run" / "timeseries.jsonl").write_bytes(lines[:-40])
    run = read_run(tmp_path / "run")
    assert run.verdict == "incomplete"
    text = page(run)
    assert "it was killed, or it is still going on" in text
    assert "plot-requests" in text
    # Its figures are those of the time series.
    assert run.number("pods.started") == sum(
        cast("dict[str, int]", line["pods"])["started"] for line in run.lines
    )
    assert run.number("nodes.ready") == NODES
    assert "none was started" not in text
    assert "0 us" not in text


def test_a_fault_has_its_recovery(tmp_path: Path) -> None:
    write_run(tmp_path / "run", fault=True)
    (found,) = recoveries(read_run(tmp_path / "run"))
    assert (found.fault, found.lost, found.took_s) == ("zone b", 0, 0.0)
    assert "<h2>Recovery</h2>" in page(read_run(tmp_path / "run"))


def test_a_fault_is_not_held_to_what_came_later() -> None:
    """Neither another fault nor the end of processes takes the nodes of one that is over."""
    counts = [(0, 30), (60, 17), (90, 30), (300, 10), (330, 30), (400, 30), (402, 5)]
    lines: list[Json] = [{"wall_s": at_s, "nodes": {"ready": count}} for at_s, count in counts]
    phases = [
        Phase(name="outage", from_s=0.0, until_s=401.0),
        Phase(name="a", kind="fault", from_s=10.0, until_s=30.0),
        Phase(name="b", kind="fault", from_s=250.0, until_s=320.0),
        Phase(name="c", kind="fault", from_s=395.0, until_s=399.0),
    ]
    run = RunRecord(Path(), {}, {}, lines, Samples(), phases=phases)
    found = [(each.lost, each.took_s) for each in recoveries(run)]
    assert found == [(13, 60.0), (20, 10.0), (0, 1.0)]


def test_an_hour_is_told_without_losing_a_spike(tmp_path: Path) -> None:
    write_run(tmp_path / "run", seconds=3600)
    text = page(read_run(tmp_path / "run"))
    assert len(text) < 3_000_000
    for plot in plots_of(read_run(tmp_path / "run")):
        assert all(len(points) <= POINTS_MAX for points in plot.lines.values()), plot.name
    spiky = [(float(at), 100.0 if at == 777 else 1.0) for at in range(3600)]
    assert max(value for _, value in thin(spiky, max)) == 100
    assert fmean([value for _, value in thin(spiky, fmean)]) == pytest.approx(1.0275, rel=0.01)


def asked(*runs: Path, **given: object) -> tuple[str, int]:
    fields = {"baseline": None, "tolerance": "10%", "form": None, "out": None, **given}
    notes: list[str] = []
    text, code = make_report(runs, **fields, note=notes.append)  # type: ignore[arg-type]
    return "\n".join([*notes, text]), code


def test_a_worse_run_fails_the_gate_and_a_good_one_passes(good: Path, slow: Path) -> None:
    text, code = asked(slow, baseline=good)
    assert code == 1
    assert "worse by more than 10%: MutatingApiCallLatency p99" in text
    assert "WORSE" in text
    assert asked(good, baseline=good)[1] == 0
    assert "nothing is worse by more than 10%" in asked(good, baseline=slow)[0]
    assert asked(slow, baseline=good, tolerance="1000%")[1] in {0, 1}
    assert asked(good, slow)[1] == 0  # without a baseline nobody asked for a gate


def test_runs_that_differ_in_what_matters_are_not_compared(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_run(other)
    summary = json.loads((other / "summary.json").read_text())
    summary |= {"etcd_fsync": True, "fidelity": "light"}
    (other / "summary.json").write_text(json.dumps(summary))
    text, code = asked(other, baseline=good)
    assert code == 4
    assert "not comparable: etcd_fsync: False and True; fidelity: kubelet and light" in text
    compared = compare([read_run(good), read_run(other)], 0.1)
    assert len(compared.differences) == 2


def changed(
    path: Path, of: Path, summary: Mapping[str, object], about: Mapping[str, object] | None = None
) -> RunRecord:
    """Return a run as another, but for some of its figures."""
    path.mkdir()
    for name, more in (("summary.json", summary), ("run.json", about or {})):
        content = json.loads((of / name).read_text())
        for key, value in more.items():
            content[key] = {**content[key], **value} if isinstance(value, dict) else value
        (path / name).write_text(json.dumps(content))
    return read_run(path)


def row_of(words: str, first: RunRecord, other: RunRecord) -> Row:
    [found] = [row for row in compare([first, other], 0.1).rows if row.words == words]
    return found


def test_the_memory_of_a_node_in_a_fleet_of_half_the_size_is_not_worse(
    good: Path, tmp_path: Path
) -> None:
    """The process itself is shared by half as many: x 1.96 said WORSE."""
    whole = changed(tmp_path / "whole", good, {"process": {"rss_bytes_per_node": 54_000}})
    half = {"nodes": {"requested": 10, "ready": 10}, "process": {"rss_bytes_per_node": 106_000}}
    found = row_of("memory per node", whole, changed(tmp_path / "half", good, half))
    assert (found.worse, found.unjudged) == ([False, False], ["", "nodes: 20 and 10"])
    text, code = asked(tmp_path / "half", baseline=tmp_path / "whole")
    assert code == 4
    assert "WORSE" not in text
    assert "x 1.96 not judged" in text
    assert "| nodes: 20 and 10 |" in text
    bigger = {"process": {"rss_bytes_per_node": 106_000}}
    assert row_of("memory per node", whole, changed(tmp_path / "same", good, bigger)).worse[1]


def test_each_figure_asks_for_what_it_depends_on(good: Path, tmp_path: Path) -> None:
    """Memory is the same on every machine and beside every server, and latency is not."""
    first = read_run(good)
    worse: Json = {"process": {"rss_bytes_per_node": 9_000_000, "cpu_us_per_request": 90_000.0}}
    machine = {"machine": {"cpu": "other"}}
    other = changed(tmp_path / "machine", good, worse, machine)
    assert row_of("memory per node", first, other).worse[1]
    assert (
        row_of("CPU per request", first, other).unjudged[1]
        == "cpu of the machine: <slow> and other"
    )
    server = changed(tmp_path / "server", good, {**worse, "server_version": "v1.37.0"})
    assert row_of("CPU per request", first, server).worse[1]
    assert row_of("until all were Ready", first, server).unjudged[1].startswith("server_version")
    text, code = asked(tmp_path / "machine", baseline=good)
    assert code == 1
    assert "worse by more than 10%: memory per node; not comparable in part: cpu of the" in text
    profile = {"options": {"profiles": [["gpu", 1]]}}
    assert row_of(
        "memory per node", first, changed(tmp_path / "mix", good, worse, profile)
    ).unjudged[1]
    plane = {"local_control_plane": False}
    assert row_of("until all were Ready", first, changed(tmp_path / "p", good, {}, plane)).unjudged[
        1
    ]


def test_counts_of_runs_of_another_length_and_rare_percentiles_are_not_judged(
    good: Path, tmp_path: Path
) -> None:
    first = read_run(good)
    longer = changed(tmp_path / "longer", good, {"wall_s": 900.0, "lease": {"missed": 9}})
    assert row_of("Leases missed", first, longer).unjudged[1] == "length: 2 min 0 s and 15 min 0 s"
    assert not row_of("lateness of Leases p99", first, longer).unjudged[1]
    assert asked(tmp_path / "longer", baseline=good)[1] == 0, "it is no other experiment"
    late = {"lease": {"late_ms": {"p50": 1.0, "p99": 900.0, "max": 900.0}, "renewals": 29}}
    rare = row_of("lateness of Leases p99", first, changed(tmp_path / "rare", good, late))
    assert rare.unjudged[1] == "fewer than 30 samples"


def test_a_row_names_a_long_reason_and_the_conclusion_says_it_once(
    good: Path, tmp_path: Path
) -> None:
    phases = [{"name": "a fault with a long name", "kind": "fault", "from_s": 1.0, "until_s": 2.0}]
    changed(tmp_path / "other", good, {"phases": phases, "pods": {"started": 9}})
    text, _ = asked(good, tmp_path / "other")
    assert text.count("and a fault with a long name") == 1
    assert "| phases |" in text
    few = [line for line in text.splitlines() if "fewer than 30 samples" in line]
    assert few
    assert all(line.count("fewer than 30 samples") == 1 for line in few)


@pytest.mark.parametrize("form", ["markdown", "json", "junit"])
def test_other_forms_say_the_same(slow: Path, good: Path, form: str, tmp_path: Path) -> None:
    one, _ = asked(slow, form=form)
    several, _ = asked(good, slow, form=form)
    assert "MutatingApiCallLatency" in one
    match form:
        case "json":
            told = json.loads(one)
            assert told["verdict"] == "fail"
            assert told["first_broken"]["at_s"] == 45
            assert json.loads(several)["comparable"]
        case "junit":
            suite = ET.fromstring(one.strip())
            assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
            assert ET.fromstring(several.strip()).get("failures") != "0"
        case _:
            assert (
                "| MutatingApiCallLatency p99 | 2 s | 1 s | SIG Scalability | 400 | BROKEN |" in one
            )
            assert " s x 11.47 WORSE |" in several
    out = tmp_path / "told"
    assert asked(slow, form=form, out=out)[0].strip() == ""
    assert out.read_text().strip() == one.strip()


def test_several_runs_are_no_page(good: Path, slow: Path) -> None:
    with pytest.raises(UsageError, match="compare runs as text or json"):
        asked(good, slow, form="html")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "holds no run"),
        ({"summary.json": "["}, "no JSON"),
        ({"summary.json": "[]"}, "no JSON object"),
    ],
)
def test_what_is_no_run_is_told_in_one_line(
    tmp_path: Path, files: dict[str, str], told: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        asked(tmp_path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tolerance", ["x", "-1%", "5000%", "10", "1", "1.5", "nan", "inf%", "%"])
def test_a_bad_tolerance_is_told(good: Path, tolerance: str) -> None:
    with pytest.raises(UsageError, match="--tolerance"):
        asked(good, good, tolerance=tolerance)


def test_a_tolerance_of_ten_percent_is_written_in_two_ways(good: Path, slow: Path) -> None:
    told = [asked(slow, baseline=good, tolerance=each) for each in ("10%", "0.1")]
    assert told[0] == told[1]
    with pytest.raises(UsageError, match="for 10 percent write 10%"):
        asked(slow, baseline=good, tolerance="10")
