"""`make nightly`: run every test and bench that `make test` leaves out, one after the other.

Prints one table at the end, and keeps the output of each step in runs/nightly. Exits with 1 if a
step failed, took too long, or did not run: a step of pytest that skips a test has not run, and
neither has one that a missing program ends.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from xml.etree import ElementTree as ET

from fleet import KUBERNETES_VERSION
from fleet.profile.release import RELEASES

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
PYTEST = (PYTHON, "-m", "pytest", "-rs")
WORKERS = ("--dist=loadfile", "--no-loadscope-reorder")
GROUPS = ("--dist=loadgroup", "--no-loadscope-reorder")
REAL = ("tests/e2e", "tests/chart")
MINUTE_S = 60
WELL, NO_PROGRAMS, NOTHING_COLLECTED = 0, 3, 5


class Step(NamedTuple):
    """One kind of test: the commands that run it, and how many minutes they may take."""

    name: str
    minutes_max: int
    commands: tuple[tuple[str, ...], ...]
    variables: Mapping[str, str] = MappingProxyType({})


class Result(NamedTuple):
    """How a step ended."""

    name: str
    verdict: str
    tests: str
    took_s: float


def steps() -> list[Step]:
    """Return all steps; the seeds of the simulations are those of the day."""
    today = f"{datetime.now(tz=UTC):%Y%m%d}000"
    seeds = {"FLEET_SIM_FIRST_SEED": today, "FLEET_SIM_SEEDS": "200"}
    all_planes = (PYTHON, "tests/support/go_program.py", "controlplanes")
    go_programs = (PYTHON, "tests/support/go_program.py", "metrics-server")
    fuzz = (PYTHON, "tests/fuzz/fuzz.py", "--inputs=10000000", f"--first={today}")
    return [
        Step(
            "slow end-to-end tests",
            180,
            ((*PYTEST, "--numprocesses=2", *WORKERS, "-m", "slow", *REAL),),
        ),
        Step(
            "live judge",
            60,
            ((*PYTEST, "--numprocesses=3", *GROUPS, "-m", "e2e", "tests/oracle"),),
        ),
        *judges(),
        Step("conformance", 240, ((PYTHON, "tests/conformance/conformance.py"),)),
        Step("versions", 60, (all_planes, (*PYTEST, "-m", "e2e", "tests/versions"))),
        Step("pythons", 90, ((PYTHON, "tools/pythons.py"),)),
        Step("metrics-server", 60, (go_programs, (*PYTEST, "tests/metrics_server"))),
        Step(
            "seeds of the day",
            120,
            ((*PYTEST, "--numprocesses=2", "-m", "seeded", "tests/sim"),),
            seeds,
        ),
        Step("chaos", 60, ((PYTHON, "-m", "chaos.chaos"),), {"PYTHONPATH": "tests"}),
        Step("fuzz-server", 90, ((PYTHON, "-m", "chaos.fuzzed"),), {"PYTHONPATH": "tests"}),
        Step("soak", 90, ((PYTHON, "-m", "chaos.soak"),), {"PYTHONPATH": "tests"}),
        Step("fuzz", 90, (fuzz,)),
        Step("installed", 60, ((PYTHON, "tools/release.py"), (*PYTEST, "tests/installed"))),
        Step("bench", 60, ((PYTHON, "-m", "bench"),)),
        Step(
            "bench-gate",
            60,
            ((*PYTEST, "-m", "slow", "tests/unit"), (PYTHON, "-m", "bench.gate")),
        ),
        Step("bench-ceiling", 60, ((PYTHON, "-m", "bench.ceiling"),)),
    ]


def judges() -> list[Step]:
    """Return the live judge of each other minor: the half that has no long waits."""
    kubelet = (PYTHON, "tests/support/go_program.py", "kubelet")
    judge = (*PYTEST, "-m", "e2e", "tests/oracle/test_oracle.py", "-k", "short")
    return [
        Step(f"judge of {each.name}", 45, (kubelet, judge), {"FLEET_TEST_MINOR": each.name})
        for each in RELEASES
        if each.newest != KUBERNETES_VERSION
    ]


def play(step: Step, directory: Path) -> Result:
    """Run the commands of a step until one fails; keep what they print."""
    begin_s = time.monotonic()
    log, junit = directory / f"{file_name(step)}.log", directory / f"{file_name(step)}.xml"
    junit.unlink(missing_ok=True)
    verdict = "green"
    with log.open("wb") as output:
        for command in step.commands:
            is_pytest = command[: len(PYTEST)] == PYTEST
            whole = (*command, f"--junitxml={junit}") if is_pytest else command
            left_s = step.minutes_max * MINUTE_S - (time.monotonic() - begin_s)
            code = run(whole, step.variables, output.fileno(), left_s)
            verdict = verdict_of(code, is_pytest=is_pytest)
            if verdict != "green":
                break
    tests, skipped = counts(junit)
    if verdict == "green" and skipped:
        verdict = f"DID NOT RUN: {skipped} skipped"
    return Result(step.name, verdict, f"{tests:,}" if tests else "", time.monotonic() - begin_s)


def run(command: tuple[str, ...], variables: Mapping[str, str], output: int, limit_s: float) -> int:
    """Run a command with a time limit; return its exit code, or that of the signal that ends it."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(max(limit_s, 0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return -signal.SIGKILL
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def verdict_of(code: int, *, is_pytest: bool) -> str:
    """Return in words what an exit code says."""
    if code == WELL:
        return "green"
    if code == -signal.SIGKILL:
        return "RED: killed, it took too long"
    if code == (NOTHING_COLLECTED if is_pytest else NO_PROGRAMS):
        return f"DID NOT RUN: exit code {code}"
    return f"RED: exit code {code}"


def counts(junit: Path) -> tuple[int, int]:
    """Return how many tests a report of pytest has, and how many of them were skipped."""
    if not junit.exists():
        return 0, 0
    suites = ET.parse(junit).getroot().iter("testsuite")  # noqa: S314 - pytest has just written it
    found = [(int(each.get("tests", 0)), int(each.get("skipped", 0))) for each in suites]
    return sum(tests for tests, _ in found), sum(skipped for _, skipped in found)


def file_name(step: Step) -> str:
    """Return the name of a step as `--only` and its files have it."""
    return step.name.replace(" ", "-")


def table(results: list[Result]) -> str:
    """Return one line for each step, and their sum."""
    lines = [f"{'step':<24}{'tests':>8}{'minutes':>10}  verdict"]
    lines += [
        f"{each.name:<24}{each.tests:>8}{each.took_s / MINUTE_S:>10.1f}  {each.verdict}"
        for each in results
    ]
    whole_s = sum(each.took_s for each in results)
    return "\n".join([*lines, f"{'all':<24}{'':>8}{whole_s / MINUTE_S:>10.1f}"])


def main() -> int:
    """Run the chosen steps; return 1 unless all are green."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [file_name(each) for each in steps()]
    parser.add_argument("--only", action="append", choices=names, help="a step; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the steps, run nothing")
    options = parser.parse_args()
    if options.list:
        print("\n".join(names))
        return 0
    directory = ROOT / "runs" / "nightly"
    directory.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for step in steps():
        if not options.only or file_name(step) in options.only:
            print(f"{step.name}: {directory.relative_to(ROOT)}/{file_name(step)}.log", flush=True)
            results.append(play(step, directory))
            print(f"{step.name}: {results[-1].verdict}", flush=True)
    print(f"\n{table(results)}")
    return int(any(each.verdict != "green" for each in results))


if __name__ == "__main__":
    raise SystemExit(main())
