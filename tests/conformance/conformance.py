"""`make conformance`: the Kubernetes project's own tests on a small fleet, as its users run them.

Two rounds of `fleet spawn --nodes 5 -- ginkgo ... e2e.test`, each on a control plane of its own:
the specs that may run side by side, then the serial ones. cluster.yaml declares the world around
the nodes, and the plug-in in programs/ says what the programs of the suite do. The reports are
compared with expected.toml, and with record.json, which has the counts that the docs state and
which --record writes; the exit code is 0 if everything went as they say, 1 if not, 3 without
programs.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from judgement import (
    Expected,
    Report,
    Result,
    counts,
    ended_badly,
    judge,
    judge_whole,
    read_expected,
    read_junit,
    table,
)

from fleet.controlplane.binaries import cached_binaries
from fleet.controlplane.options import KUBECTL
from fleet.errors import SetupError

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from support.go_program import E2E_TEST, GINKGO, build_e2e_tests  # noqa: E402 - found there

FOCUS = r"\[sig-apps\].*\[Conformance\]"
ROUNDS = {"parallel": "!Serial", "serial": "Serial"}
"""Ginkgo's label filters."""
RECORD = HERE / "record.json"
SUITE_TIMEOUT = "2h"
ROUND_MAX_S = 9000.0
"""Ginkgo ends its suite half an hour earlier."""
END_S = 120.0
"""For a clean-up, before a run is killed."""


def main() -> int:
    """Run the specs and judge them."""
    options = parse()
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    try:
        programs = asyncio.run(build_e2e_tests(lambda line: print(line, file=sys.stderr)))
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    begun = time.monotonic()
    reports: list[Report] = []
    faults: list[str] = []
    for name in ROUNDS if options.round is None else (options.round,):
        report, wrong = run(name, programs, out / name, options)
        reports.append(report)
        faults += [f"round {name}: {each}" for each in wrong]
    results = [result for report in reports for result in report.results]
    expected = read_expected(HERE / "expected.toml")
    faults += judge(results, expected.reasons, wanted(reports, options))
    minutes = round((time.monotonic() - begun) / 60)
    if options.focus == FOCUS and options.round is None:
        if options.record and not faults:
            record(results, expected, options.nodes, minutes)
        faults += judge_whole(
            results, expected.within(FOCUS), json.loads(RECORD.read_text())["counts"]
        )
    text = f"{table(results, expected.reasons)}\n\n{minutes} minutes on {options.nodes} nodes\n"
    (out / "report.md").write_text(text)
    print(text)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def wanted(reports: list[Report], options: argparse.Namespace) -> list[str]:
    """Return the specs in focus; of one round alone nobody knows which are the other's."""
    known = [name for each in reports for name in (*each.idle, *(r.name for r in each.results))]
    is_wanted = re.compile(options.focus).search
    return [name for name in known if is_wanted(name)] if options.round is None else []


def record(results: list[Result], expected: Expected, nodes: int, minutes: int) -> None:
    """Write down what the docs state of a run of all specs."""
    size = {"nodes": nodes, "minutes": minutes, "counts": counts(results, expected.reasons)}
    RECORD.write_text(json.dumps(size, indent=2) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--procs", type=int, default=8, help="specs at a time in the first round")
    parser.add_argument("--focus", default=FOCUS, help="a regular expression, as ginkgo takes it")
    parser.add_argument("--round", choices=tuple(ROUNDS), help="only this one")
    parser.add_argument("--record", action="store_true", help="write record.json for the docs")
    parser.add_argument("--out", type=Path, default=Path("runs/conformance"))
    return parser.parse_args()


def run(
    name: str, programs: Path, out: Path, options: argparse.Namespace
) -> tuple[Report, list[str]]:
    """Run one round; leave report and logs in a directory.

    Returns the report, and what went wrong beside the specs: with fleet, with the runner.
    """
    out.mkdir(exist_ok=True)
    (out / "junit.xml").unlink(missing_ok=True)
    procs = 1 if name == "serial" else options.procs
    suite = [str(programs / GINKGO), "run", f"--procs={procs}", "--no-color", "--silence-skips"]
    suite += [
        "-v",
        f"--timeout={SUITE_TIMEOUT}",
        f"--focus={options.focus}",
        f"--label-filter={ROUNDS[name]}",
    ]
    suite += [f"--output-dir={out}", "--junit-report=junit.xml", str(programs / E2E_TEST), "--"]
    # The kubeconfig comes through the environment.
    suite += ["--provider=skeleton", "--disable-log-dump=true"]
    suite += [f"--kubectl-path={cached_kubectl()}"]
    spawn = [sys.executable, "-m", "fleet.cli", "spawn", f"--nodes={options.nodes}"]
    spawn += ["--start=cold"]  # as the kubelets of a new cluster
    spawn += [f"--programs={HERE / 'programs'}"]
    run_dir = Path(tempfile.mkdtemp(prefix="fleet-", dir=out))
    spawn += [f"--profile={HERE / 'cluster.yaml'}", f"--run-dir={run_dir}", "--", *suite]
    print(f"{name}: the log is {out / 'e2e.log'}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as state, (out / "e2e.log").open("w") as log:
        # No control plane that the user has running is taken.
        environment = {**os.environ, "XDG_STATE_HOME": state}
        code = code_of(subprocess.Popen(spawn, stdout=log, stderr=log, env=environment))
    report = read_junit(out / "junit.xml")
    invalid = troubles(run_dir / "summary.json")
    badly = ended_badly(code, report.results, is_valid=not invalid)
    return report, [*invalid, *(f"the runner {each}" for each in (*report.troubles, *badly))]


def code_of(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the end of a round; None says that it had to be ended."""
    try:
        return process.wait(ROUND_MAX_S)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def cached_kubectl() -> str:
    """Return the kubectl that belongs to the control plane."""
    binaries = cached_binaries()
    assert binaries is not None, "run `fleet controlplane build` first"
    [program] = binaries.commands[KUBECTL]
    return program


def troubles(path: Path) -> list[str]:
    """Return why the fleet itself did not do well in a round."""
    try:
        summary = json.loads(path.read_text())
    except (OSError, ValueError):
        return ["fleet left no summary"]
    return [f"fleet: {reason}" for reason in summary["invalid_reasons"]]


if __name__ == "__main__":
    raise SystemExit(main())
