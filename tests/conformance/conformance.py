"""`make conformance`: the Kubernetes project's own tests on a small fleet, as its users run them.

Two rounds of `fleet spawn --nodes 5 -- ginkgo ... e2e.test`, each on a control plane of its own:
the specs that may run side by side, then the serial ones. cluster.yaml declares the world around
the nodes. The reports are compared with expected.toml; the exit code is 0 if everything went as
that says, 1 if not, 3 without programs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from judgement import Result, judge, read_expected, read_junit, table

from fleet.controlplane.binaries import cached_binaries
from fleet.controlplane.build import E2E_TEST, GINKGO, build_e2e_tests
from fleet.controlplane.options import KUBECTL
from fleet.errors import SetupError

HERE = Path(__file__).resolve().parent
FOCUS = r"\[sig-apps\].*\[Conformance\]"
ROUNDS = {"parallel": "!Serial", "serial": "Serial"}
"""Ginkgo's label filters."""


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
    results: list[Result] = []
    faults: list[str] = []
    for name in ROUNDS if options.round is None else (options.round,):
        faults += run(name, programs, out / name, options)
        report = out / name / "junit.xml"
        results += read_junit(report) if report.exists() else ()
    expected = read_expected(HERE / "expected.toml")
    is_whole = options.focus == FOCUS and options.round is None
    faults += judge(results, expected, is_whole=is_whole)
    minutes = (time.monotonic() - begun) / 60
    text = f"{table(results, expected)}\n\n{minutes:.0f} minutes on {options.nodes} nodes\n"
    (out / "report.md").write_text(text)
    print(text)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--procs", type=int, default=8, help="specs at a time in the first round")
    parser.add_argument("--focus", default=FOCUS, help="a regular expression, as ginkgo takes it")
    parser.add_argument("--round", choices=tuple(ROUNDS), help="only this one")
    parser.add_argument("--out", type=Path, default=Path("runs/conformance"))
    return parser.parse_args()


def run(name: str, programs: Path, out: Path, options: argparse.Namespace) -> list[str]:
    """Run one round; leave report and logs in a directory. Returns what went wrong with fleet."""
    out.mkdir(exist_ok=True)
    (out / "junit.xml").unlink(missing_ok=True)
    procs = 1 if name == "serial" else options.procs
    suite = [str(programs / GINKGO), "run", f"--procs={procs}", "--no-color", "--silence-skips"]
    suite += ["-v", "--timeout=2h", f"--focus={options.focus}", f"--label-filter={ROUNDS[name]}"]
    suite += [f"--output-dir={out}", "--junit-report=junit.xml", str(programs / E2E_TEST), "--"]
    # The kubeconfig comes through the environment.
    suite += ["--provider=skeleton", "--disable-log-dump=true"]
    suite += [f"--kubectl-path={cached_kubectl()}"]
    spawn = [sys.executable, "-m", "fleet.cli", "spawn", f"--nodes={options.nodes}"]
    run_dir = Path(tempfile.mkdtemp(prefix="fleet-", dir=out))
    spawn += [f"--profile={HERE / 'cluster.yaml'}", f"--run-dir={run_dir}", "--", *suite]
    print(f"{name}: the log is {out / 'e2e.log'}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as state, (out / "e2e.log").open("w") as log:
        # No control plane that the user has running is taken.
        environment = {**os.environ, "XDG_STATE_HOME": state}
        subprocess.run(spawn, stdout=log, stderr=log, env=environment, check=False)
    return troubles(name, run_dir / "summary.json")


def cached_kubectl() -> str:
    """Return the kubectl that belongs to the control plane."""
    binaries = cached_binaries()
    assert binaries is not None, "run `fleet controlplane build` first"
    [program] = binaries.commands[KUBECTL]
    return program


def troubles(name: str, path: Path) -> list[str]:
    """Return why the fleet itself did not do well in a round."""
    if not path.exists():
        return [f"fleet left no summary of the round {name}"]
    summary = json.loads(path.read_text())
    return [f"fleet, round {name}: {reason}" for reason in summary["invalid_reasons"]]


if __name__ == "__main__":
    raise SystemExit(main())
