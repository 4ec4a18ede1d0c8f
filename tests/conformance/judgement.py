"""What a run of the Kubernetes project's tests says about fleet, against what is expected of it.

`expected.toml` names the specs that cannot pass, each with the reason. Whatever else fails is a
fault; so is a listed spec that passes, or one that no longer exists: the list must stay true.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

_NAME = re.compile(r"\[It\] (?P<name>.*?)(?: \[[^][]*, [^][]*\])?")
"""Ginkgo puts its node type before a spec's name and all its labels after it."""
_MESSAGE_MAX = 240


class Result(NamedTuple):
    """How one spec went."""

    name: str
    passed: bool
    seconds: float
    message: str = ""


def read_junit(path: Path) -> list[Result]:
    """Return the specs that ran, in the order of the report. Raises OSError without a report."""
    results = []
    for case in ET.parse(path).iter("testcase"):
        match = _NAME.fullmatch(case.get("name", ""))
        if match is None or case.find("skipped") is not None:
            continue  # set-up and tear-down of the suite, and what was not in focus
        trouble = case.find("failure")
        if trouble is None:
            trouble = case.find("error")
        message = "" if trouble is None else trouble.get("message", "") or (trouble.text or "")
        seconds = float(case.get("time", "0"))
        shown = " ".join(message.split())[:_MESSAGE_MAX]
        results.append(Result(match["name"], trouble is None, seconds, shown))
    return results


def read_expected(path: Path) -> dict[str, str]:
    """Return the reasons of the specs that cannot pass, by their names."""
    document = tomllib.loads(path.read_text())
    expected = {str(spec["name"]): str(spec["reason"]) for spec in document.get("spec", ())}
    assert len(expected) == len(document.get("spec", ())), "a spec is listed twice"
    assert all(expected.values()), "a spec is listed without a reason"
    return expected


def judge(
    results: Sequence[Result], expected: Mapping[str, str], *, is_whole: bool = True
) -> list[str]:
    """Return what is wrong; nothing when the run went as expected.

    `is_whole` says that every listed spec was meant to run.
    """
    faults = []
    for result in results:
        if result.passed and result.name in expected:
            faults.append(f"is listed and passes: {result.name}")
        elif not result.passed and result.name not in expected:
            faults.append(f"fails: {result.name}\n    {result.message}")
    if is_whole:
        ran = {result.name for result in results}
        faults += [f"is listed and did not run: {name}" for name in expected if name not in ran]
    if not results:
        faults.append("no spec ran")
    return faults


def table(results: Sequence[Result], expected: Mapping[str, str]) -> str:
    """Return one line for each group of specs, the total, and the specs that did not pass."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(group(result.name), []).append(result)
    lines = ["| group | specs | passed | listed | failed |", "|---|---|---|---|---|"]
    for name, members in [*sorted(groups.items()), ("all", list(results))]:
        passed = sum(member.passed for member in members)
        listed = sum(not member.passed and member.name in expected for member in members)
        failed = len(members) - passed - listed
        lines.append(f"| {name} | {len(members)} | {passed} | {listed} | {failed} |")
    for result in results:
        if not result.passed:
            why = expected.get(result.name, "NOT LISTED")
            lines.append(f"\n- {result.name} ({result.seconds:.0f} s): {why}")
    return "\n".join(lines)


def group(name: str) -> str:
    """Return the group of a spec: the word after its special interest group."""
    match = re.match(r"(?:\[[^]]*\] )*(\w+)", name)
    return match[1] if match else "other"
