from pathlib import Path

import pytest
from judgement import Result, group, judge, read_expected, read_junit, table

HERE = Path(__file__).parent
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="0.1"></testcase>
<testcase name="[It] [sig-apps] Job should delete a job [Conformance] [sig-apps, Conformance]"
 status="passed" time="12.5"></testcase>
<testcase name="[It] [sig-apps] Job should wait [Slow] [sig-apps, Slow]"
 status="failed" time="300"><failure message="timed out&#10;  after 5m" type="failed">x</failure>
</testcase>
<testcase name="[It] [sig-node] Pods run [sig-node, Conformance]" status="skipped" time="0">
<skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>"""

GOOD = Result("[sig-apps] Job good", passed=True, seconds=1)
BAD = Result("[sig-apps] Job bad", passed=False, seconds=2, message="no")


def test_a_report_tells_what_ran(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(REPORT)
    assert read_junit(path) == [
        Result("[sig-apps] Job should delete a job [Conformance]", passed=True, seconds=12.5),
        Result(
            "[sig-apps] Job should wait [Slow]",
            passed=False,
            seconds=300,
            message="timed out after 5m",
        ),
    ]


@pytest.mark.parametrize(
    ("results", "listed", "fault"),
    [
        ([GOOD, BAD], [BAD.name], ""),
        ([GOOD, BAD], [], "fails: [sig-apps] Job bad\n    no"),
        ([GOOD, BAD], [GOOD.name, BAD.name], "is listed and passes: [sig-apps] Job good"),
        ([GOOD], [BAD.name], "is listed and did not run: [sig-apps] Job bad"),
        ([], [], "no spec ran"),
    ],
)
def test_every_surprise_is_a_fault(results: list[Result], listed: list[str], fault: str) -> None:
    assert judge(results, dict.fromkeys(listed, "why")) == [fault] * bool(fault)


def test_a_part_of_the_specs_says_nothing_of_the_others() -> None:
    assert judge([GOOD], {BAD.name: "why"}, is_whole=False) == []


def test_the_table_counts_by_group() -> None:
    shown = table([GOOD, BAD], {BAD.name: "needs a program"})
    assert "| Job | 2 | 1 | 1 | 0 |" in shown
    assert "- [sig-apps] Job bad (2 s): needs a program" in shown
    assert group("[sig-apps] [Serial] DaemonSet x") == "DaemonSet"
    assert group("[sig-apps] Daemon set [Serial] should run") == "Daemon"


def test_what_is_listed_has_a_reason() -> None:
    for name, reason in read_expected(HERE / "expected.toml").items():
        assert name.startswith("[sig-apps] ")
        assert len(reason) > 20
