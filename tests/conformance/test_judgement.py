"""The judge itself, with a report as Ginkgo writes it and with what can be wrong with one."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from conformance import FOCUS, RECORD, ROUNDS, wanted
from judgement import (
    Expected,
    Report,
    Result,
    counts,
    ended_badly,
    group,
    judge,
    judge_whole,
    read_expected,
    read_junit,
    table,
)

HERE = Path(__file__).parent
FIDELITY = HERE.parents[1] / "docs/explain/fidelity.md"
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
  <testsuites tests="6" disabled="2" errors="0" failures="1" time="312.6">
      <testsuite name="Kubernetes e2e suite" package="/e2e" tests="6" disabled="0" skipped="2"
       errors="0" failures="1" time="312.6" timestamp="2026-11-22T08:00:00">
          <properties>
              <property name="SuiteSucceeded" value="false"></property>
              <property name="SpecialSuiteFailureReason" value=""></property>
          </properties>
          <testcase name="[SynchronizedBeforeSuite]" status="passed" time="0.1"></testcase>
          <testcase name="[It] [sig-apps] Job should delete [Conformance] [sig-apps, Conformance]"
           status="passed" time="12.5"></testcase>
          <testcase name="[It] [sig-apps] Job should wait [Conformance] [sig-apps, Conformance]"
           status="failed" time="300"><failure message="timed out&#10;  after 5m" type="failed">x
           </failure></testcase>
          <testcase name="[It] [sig-node] Pods run [Conformance] [sig-node, Conformance]"
           status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
          <testcase name="[It] [sig-apps] Set [Serial] runs [Conformance] [sig-apps, Serial]"
           status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
          <testcase name="[SynchronizedAfterSuite]" status="passed" time="0.1"></testcase>
      </testsuite>
  </testsuites>"""
DELETES = "[sig-apps] Job should delete [Conformance]"
WAITS = "[sig-apps] Job should wait [Conformance]"
RUNS = "[sig-apps] Set [Serial] runs [Conformance]"

GOOD = Result("[sig-apps] Job good", passed=True, seconds=1)
BAD = Result("[sig-apps] Job bad", passed=False, seconds=2, message="no")


def read(tmp_path: Path, content: str) -> Report:
    path = tmp_path / "junit.xml"
    path.write_text(content)
    return read_junit(path)


def test_a_report_tells_what_ran_and_what_did_not(tmp_path: Path) -> None:
    assert read(tmp_path, REPORT) == Report(
        [
            Result(DELETES, passed=True, seconds=12.5),
            Result(WAITS, passed=False, seconds=300, message="timed out after 5m"),
        ],
        ["[sig-node] Pods run [Conformance]", RUNS],
        [],
    )


MUTANTS = {
    "a report that is cut off": (REPORT[: len(REPORT) // 2], "ends too soon"),
    "an empty file": ("", "ends too soon"),
    "a report without a suite": ("<testsuites></testsuites>", "without a suite"),
    "a suite whose set-up crashes": (
        REPORT.replace('BeforeSuite]" status="passed"', 'BeforeSuite]" status="panicked"'),
        "[SynchronizedBeforeSuite] panicked",
    ),
    "a suite whose tear-down fails": (
        REPORT.replace('AfterSuite]" status="passed"', 'AfterSuite]" status="failed"'),
        "[SynchronizedAfterSuite] failed",
    ),
    "a suite that ran out of time": (
        REPORT.replace('Reason" value=""', 'Reason" value="Suite Timeout Elapsed"'),
        "gave up: Suite Timeout Elapsed",
    ),
    "a case that is lost": (
        REPORT.replace('tests="6" disabled="0"', 'tests="7" disabled="0"'),
        "reports 7 specs and has 6",
    ),
    "a failure that is lost": (
        REPORT.replace('failures="1"', 'failures="2"'),
        "reports 2 failures and has 1",
    ),
    "a head that is not of these cases": (
        REPORT.replace('Succeeded" value="false"', 'Succeeded" value="true"'),
        "says succeeded: true",
    ),
    "a head without a word": (REPORT.replace("SuiteSucceeded", "x"), "says succeeded: None"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_runner_that_ended_badly_is_told(mutant: str, tmp_path: Path) -> None:
    content, expected = MUTANTS[mutant]
    assert content != REPORT
    assert any(expected in each for each in read(tmp_path, content).troubles)


def test_a_report_that_is_missing_is_told(tmp_path: Path) -> None:
    assert read_junit(tmp_path / "none.xml") == Report([], [], ["left no report"])


@pytest.mark.parametrize("status", ["timedout", "interrupted", "aborted", ""])
def test_only_what_has_passed_passes(status: str, tmp_path: Path) -> None:
    report = read(tmp_path, REPORT.replace('status="passed" time="12.5"', f'status="{status}"'))
    assert report.results[0] == Result(DELETES, passed=False, seconds=0, message=status)


@pytest.mark.parametrize(
    ("code", "results", "fault"),
    [
        (0, [GOOD], ""),
        (1, [GOOD, BAD], ""),
        (1, [GOOD], "ended with code 1, its report calls for 0"),
        (0, [GOOD, BAD], "ended with code 0, its report calls for 1"),
        (197, [GOOD], "ended with code 197, its report calls for 0"),
        (137, [GOOD, BAD], "ended with code 137, its report calls for 1"),
        (None, [GOOD], "did not end by itself"),
    ],
)
def test_the_exit_code_fits_the_report(code: int | None, results: list[Result], fault: str) -> None:
    assert ended_badly(code, results, is_valid=True) == [fault] * bool(fault)
    assert not ended_badly(4, results, is_valid=False)


@pytest.mark.parametrize(
    ("results", "listed", "fault"),
    [
        ([GOOD, BAD], [BAD.name], ""),
        ([GOOD, BAD], [], "fails: [sig-apps] Job bad\n    no"),
        ([GOOD, BAD], [GOOD.name, BAD.name], "is listed and passes: [sig-apps] Job good"),
        ([GOOD, GOOD], [], "ran 2 times: [sig-apps] Job good"),
        ([], [], "no spec ran"),
    ],
)
def test_every_surprise_is_a_fault(results: list[Result], listed: list[str], fault: str) -> None:
    assert judge(results, dict.fromkeys(listed, "why")) == [fault] * bool(fault)


def test_a_spec_in_focus_that_no_round_ran_is_a_fault(tmp_path: Path) -> None:
    report = read(tmp_path, REPORT)
    options = SimpleNamespace(focus=FOCUS, round=None)
    focused = wanted([report], options)  # type: ignore[arg-type]
    assert focused == [RUNS, DELETES, WAITS]
    assert judge(report.results, {WAITS: "why"}, focused) == [f"did not run: {RUNS}"]
    options.round = "parallel"
    assert not wanted([report], options)  # type: ignore[arg-type]


def test_a_whole_run_has_the_counts_that_are_known() -> None:
    expected = Expected(2, {BAD.name: "why", "[sig-x] other": "why"}).within("sig-apps")
    assert expected.reasons == {BAD.name: "why"}
    known = counts([GOOD, BAD], expected.reasons)
    assert judge_whole([GOOD, BAD], expected, known) == []
    assert judge_whole([GOOD], expected, known) == [
        "is listed and did not run: [sig-apps] Job bad",
        "1 specs ran, 2 are expected",
        f"the docs have other counts: {known}, not {counts([GOOD], expected.reasons)}",
    ]
    more = GOOD._replace(name="[sig-apps] Job new")
    assert judge_whole([GOOD, BAD, more], expected, known)[0] == "3 specs ran, 2 are expected"


def test_the_table_counts_by_group() -> None:
    shown = table([GOOD, BAD], {BAD.name: "needs a program"})
    assert "| Job | 2 | 1 | 1 | 0 |" in shown
    assert "- [sig-apps] Job bad (2 s): needs a program" in shown
    assert group("[sig-apps] [Serial] DaemonSet x") == "DaemonSet"
    assert group("[sig-apps] Daemon set [Serial] should run") == "DaemonSet"


def test_what_is_listed_has_a_reason() -> None:
    for name, reason in read_expected(HERE / "expected.toml").reasons.items():
        assert name.startswith("[sig-")
        assert len(reason) > 20


RECORDED = {name: HERE / "recorded" / f"{name}.xml" for name in ROUNDS}


def judged(reports: list[Report]) -> list[str]:
    """Judge reports as a whole run is."""
    results = [result for each in reports for result in each.results]
    options = SimpleNamespace(focus=FOCUS, round=None)
    expected = read_expected(HERE / "expected.toml").within(FOCUS)
    known = json.loads(RECORD.read_text())["counts"]
    return [
        *(trouble for each in reports for trouble in each.troubles),
        *judge(results, expected.reasons, wanted(reports, options)),  # type: ignore[arg-type]
        *judge_whole(results, expected, known),
    ]


def test_a_recorded_run_went_as_expected() -> None:
    reports = [read_junit(path) for path in RECORDED.values()]
    assert judged(reports) == []
    for each, code in zip(reports, (1, 0), strict=True):  # two listed specs fail in the first
        assert ended_badly(code, each.results, is_valid=True) == []


@pytest.mark.parametrize("name", ROUNDS)
def test_no_spec_of_a_recorded_run_can_be_lost(name: str) -> None:
    reports = {each: read_junit(path) for each, path in RECORDED.items()}
    of_round = reports.pop(name)
    others = list(reports.values())
    for at, lost in enumerate(of_round.results):
        kept = [*of_round.results[:at], *of_round.results[at + 1 :]]
        skipped = of_round._replace(results=kept, idle=[*of_round.idle, lost.name])
        assert f"did not run: {lost.name}" in judged([skipped, *others])
        assert "59 specs ran, 60 are expected" in judged([of_round._replace(results=kept), *others])
        turned = of_round._replace(results=[*kept, lost._replace(passed=not lost.passed)])
        assert any(lost.name in fault for fault in judged([turned, *others]))


@pytest.mark.parametrize("name", ROUNDS)
def test_a_recorded_report_that_is_cut_anywhere_is_told(name: str, tmp_path: Path) -> None:
    text = RECORDED[name].read_text()
    for share in range(0, 100, 7):
        assert read(tmp_path, text[: len(text) * share // 100]).troubles


def test_the_docs_state_what_the_run_wrote_down() -> None:
    record = json.loads(RECORD.read_text())
    known, expected = record["counts"], read_expected(HERE / "expected.toml").within(FOCUS)
    every = known.pop("all")
    assert every["specs"] == expected.specs
    assert every["listed"] == len(expected.reasons)
    assert not every["failed"]
    page = " ".join(FIDELITY.read_text().partition("\n## Conformance")[2].split())
    assert f"the {every['specs']} conformance specs of sig-apps on {record['nodes']} nodes" in page
    assert f"{every['passed']} pass" in page
    assert f"It takes {record['minutes']} minutes" in page
    rows = re.findall(r"\| (\w+) \| (\d+) \| (\d+) \| (\d*)", page)
    assert rows == [
        (name, str(each["specs"]), str(each["passed"]), str(each["listed"] or ""))
        for name, each in known.items()
    ]
