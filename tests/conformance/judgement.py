"""What a run of the Kubernetes project's tests says about fleet, against what is expected of it.

`expected.toml` names the specs that cannot pass, each with the reason, and says how many there are
in all. Whatever else fails is a fault; so is a listed spec that passes, one that did not run, and a
runner that ended badly: a report that says nothing must not read as one that says that all is well.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

_NAME = re.compile(r"\[It\] (?P<name>.*?)(?: \[[^][]*, [^][]*\])?")
"""Ginkgo puts its node type before a spec's name and all its labels after it."""
_MESSAGE_MAX = 240
_NOT_RUN = {"skipped", "pending"}
_FAILED = 1
"""Ginkgo's exit code when a spec failed; others but 0 say that it could not do its work."""


class Result(NamedTuple):
    """How one spec went."""

    name: str
    passed: bool
    seconds: float
    message: str = ""


class Report(NamedTuple):
    """What a runner has left."""

    results: list[Result]
    """The specs that ran, in the order of the report."""
    idle: list[str]
    """The specs that did not run: out of focus, skipped, or never reached."""
    troubles: list[str]
    """What is wrong with the runner or the report, whatever its specs say."""


class Expected(NamedTuple):
    """What expected.toml says."""

    specs: int
    reasons: dict[str, str]
    """Of the specs that cannot pass, by their names; also of others than `specs` counts."""

    def within(self, focus: str) -> "Expected":
        """Return it without the specs that are out of focus, a regular expression."""
        found = {name: why for name, why in self.reasons.items() if re.search(focus, name)}
        return self._replace(reasons=found)


def read_junit(path: Path) -> Report:
    """Read what a runner has left; a report that is missing or cut off is a trouble."""
    try:
        suites = list(ET.parse(path).iter("testsuite"))
    except OSError:
        return Report([], [], ["left no report"])
    except ET.ParseError as error:
        return Report([], [], [f"left a report that ends too soon: {error}"])
    report = Report([], [], [] if suites else ["left a report without a suite"])
    for suite in suites:
        _read_suite(suite, report)
    return report


def _read_suite(suite: ET.Element, report: Report) -> None:
    cases = suite.findall("testcase")
    failed = 0
    for case in cases:
        name, status = case.get("name", ""), case.get("status", "")
        trouble = case.find("failure")
        if trouble is None:
            trouble = case.find("error")
        has_passed = trouble is None and status == "passed"
        match = _NAME.fullmatch(name)
        if status in _NOT_RUN and trouble is None:
            report.idle.extend([match["name"]] if match else [])
            continue
        failed += not has_passed
        message = "" if trouble is None else trouble.get("message", "") or (trouble.text or "")
        shown = " ".join(message.split())[:_MESSAGE_MAX] or ("" if has_passed else status)
        if match is not None:
            seconds = float(case.get("time", "0"))
            report.results.append(Result(match["name"], has_passed, seconds, shown))
        elif not has_passed:  # the suite's own set-up or tear-down
            report.troubles.append(f"{name} {status}: {shown}")
    report.troubles.extend(_contradictions(suite, len(cases), failed))


def _contradictions(suite: ET.Element, count: int, failed: int) -> list[str]:
    """Return in what the head of a suite's report is bad, or not what its cases say."""
    said = {
        each.get("name"): each.get("value", "") for each in suite.findall("properties/property")
    }
    counted = sum(int(suite.get(key, "0")) for key in ("failures", "errors"))
    troubles = []
    if said.get("SpecialSuiteFailureReason"):
        troubles.append(f"gave up: {said['SpecialSuiteFailureReason']}")
    if int(suite.get("tests", "-1")) != count:
        troubles.append(f"reports {suite.get('tests')} specs and has {count}")
    if counted != failed:
        troubles.append(f"reports {counted} failures and has {failed}")
    if said.get("SuiteSucceeded") != ("false" if failed else "true"):
        troubles.append(f"says succeeded: {said.get('SuiteSucceeded')}, with {failed} failures")
    return troubles


def ended_badly(code: int | None, results: Sequence[Result], *, is_valid: bool) -> list[str]:
    """Return what the exit code has against the report; None is a runner that had to be ended.

    `is_valid` is fleet's word on its run: the code of one that is not valid is fleet's own.
    """
    if code is None:
        return ["did not end by itself"]
    if not is_valid:
        return []  # and its reasons are faults
    due = 0 if all(result.passed for result in results) else _FAILED
    return [] if code == due else [f"ended with code {code}, its report calls for {due}"]


def read_expected(path: Path) -> Expected:
    """Return how many specs there are, and why some cannot pass."""
    document = tomllib.loads(path.read_text())
    reasons = {str(spec["name"]): str(spec["reason"]) for spec in document.get("spec", ())}
    assert len(reasons) == len(document.get("spec", ())), "a spec is listed twice"
    assert all(reasons.values()), "a spec is listed without a reason"
    return Expected(int(document["specs"]), reasons)


def judge(
    results: Sequence[Result], expected: Mapping[str, str], wanted: Sequence[str] = ()
) -> list[str]:
    """Return what is wrong with what ran; nothing when the run went as expected.

    `wanted` are the specs that were meant to run.
    """
    faults = []
    for result in results:
        if result.passed and result.name in expected:
            faults.append(f"is listed and passes: {result.name}")
        elif not result.passed and result.name not in expected:
            faults.append(f"fails: {result.name}\n    {result.message}")
    ran = Counter(result.name for result in results)
    faults += [f"ran {count} times: {name}" for name, count in ran.items() if count > 1]
    faults += [f"did not run: {name}" for name in dict.fromkeys(wanted) if name not in ran]
    return faults or ([] if results else ["no spec ran"])


def judge_whole(results: Sequence[Result], expected: Expected, record: object) -> list[str]:
    """Return what is wrong with the counts of a run of all specs. `record` is that of the docs."""
    ran = {result.name for result in results}
    faults = [f"is listed and did not run: {name}" for name in expected.reasons if name not in ran]
    if len(results) != expected.specs:
        faults.append(f"{len(results)} specs ran, {expected.specs} are expected")
    found = counts(results, expected.reasons)
    if found != record:
        faults.append(f"the docs have other counts: {record}, not {found}")
    return faults


def counts(results: Sequence[Result], expected: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Count the specs of each group, and all."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(group(result.name), []).append(result)
    found = {}
    for name, members in [*sorted(groups.items()), ("all", list(results))]:
        passed = sum(member.passed for member in members)
        listed = sum(not member.passed and member.name in expected for member in members)
        failed = len(members) - passed - listed
        found[name] = {"specs": len(members), "passed": passed, "listed": listed, "failed": failed}
    return found


def table(results: Sequence[Result], expected: Mapping[str, str]) -> str:
    """Return one line for each group of specs, the total, and the specs that did not pass."""
    lines = ["| group | specs | passed | listed | failed |", "|---|---|---|---|---|"]
    for name, each in counts(results, expected).items():
        lines.append(f"| {name} | {' | '.join(str(count) for count in each.values())} |")
    for result in results:
        if not result.passed:
            why = expected.get(result.name, "NOT LISTED")
            lines.append(f"\n- {result.name} ({result.seconds:.0f} s): {why}")
    return "\n".join(lines)


def group(name: str) -> str:
    """Return the group of a spec: what stands after its special interest group."""
    match = re.match(r"(?:\[[^]]*\] )*(\w+)( set\b)?", name)
    return (match[1] + ("Set" if match[2] else "")) if match else "other"
