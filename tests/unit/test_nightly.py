"""`make nightly` is red for whatever failed, took too long or did not run."""

import sys
from pathlib import Path

import pytest

from tools import nightly
from tools.nightly import PYTEST, Step, play, table

CODE = "import sys; sys.exit({})"


def command(code: int) -> tuple[str, ...]:
    return (sys.executable, "-c", CODE.format(code))


def pytest_of(path: Path, text: str) -> tuple[str, ...]:
    path.write_text(text)
    return (*PYTEST, "-p", "no:cacheprovider", "-c", str(path.with_name("none.ini")), str(path))


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ((0, 0), "green"),
        ((0, 1), "RED: exit code 1"),
        ((1, 0), "RED: exit code 1"),
        ((3, 0), "DID NOT RUN: exit code 3"),
    ],
)
def test_a_step_is_as_good_as_its_worst_command(
    tmp_path: Path, codes: tuple[int, ...], verdict: str
) -> None:
    assert play(Step("some step", 1, tuple(map(command, codes))), tmp_path).verdict == verdict


@pytest.mark.parametrize(
    ("text", "verdict", "tests"),
    [
        ("def test_it(): ...", "green", "1"),
        ("def test_it(): assert False", "RED: exit code 1", "1"),
        ("", "DID NOT RUN: exit code 5", ""),
        (
            "import pytest\ndef test_it(): ...\ndef test_no(): pytest.skip()",
            "DID NOT RUN: 1 skipped",
            "2",
        ),
    ],
)
def test_what_is_skipped_has_not_run(tmp_path: Path, text: str, verdict: str, tests: str) -> None:
    (tmp_path / "none.ini").write_text("[pytest]\n")
    step = Step("tests", 20, (pytest_of(tmp_path / "test_it.py", text),))
    result = play(step, tmp_path)
    assert (result.verdict, result.tests) == (verdict, tests), (tmp_path / "tests.log").read_text()


def test_a_step_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    result = play(Step("sleeps", 0, (sleeps,)), tmp_path)
    assert result.verdict == "RED: killed, it took too long"
    assert result.verdict in table([result])


def test_each_step_names_files_that_are_there() -> None:
    for step in nightly.steps():
        for command in step.commands:
            for word in command:
                if word.startswith(("tests/", "tools/")):
                    assert (nightly.ROOT / word).exists(), (step.name, word)
