"""`python -m bench.sampling`: what it costs that fleet samples the control plane's metrics.

One fleet, quiet. In turns it samples as it does in every run, and not at all, in the order
off on, on off, off on ..., since the speed of a machine changes within minutes. Whether it samples
is told by a file that a wrapper around fleet's own sampler looks for; all else is `fleet spawn`.
CPU is the processes' own, lateness that of the Leases in the time series of the same stretches.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import orjson

from fleet.cli import main as fleet_main
from fleet.controlplane.options import APISERVER
from fleet.report.control_plane import INTERVAL_S, ControlPlaneSampler

from .inside import SETTLE_S
from .scrapes import begin, lateness_ms

ROOT = Path(__file__).resolve().parents[1]
MODULE = (sys.executable, "-m", "bench.sampling")
GATE = "FLEET_BENCH_NO_SAMPLES"
"""Names the file; while it exists fleet does not sample."""
Json = dict[str, Any]


def main() -> int:
    """Run one fleet, and print its figures as JSON; the exit code tells whether it was valid."""
    if GATE in os.environ and sys.argv[1:2] == ["spawn"]:
        return gated_fleet(Path(os.environ[GATE]))
    parser = argparse.ArgumentParser(prog="bench.sampling", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--fidelity", choices=("light", "kubelet"), default="light")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each stretch")
    parser.add_argument("--rounds", type=int, default=3, help="each is a stretch of both")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        options.inside.write_text(json.dumps(inside(options.seconds, options.rounds)))
        return 0
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
        out, run_dir = Path(scratch) / "out.json", Path(scratch) / "run"
        command = [
            *(*MODULE, "spawn", f"--nodes={options.nodes}", f"--fidelity={options.fidelity}"),
            *("--no-report", f"--run-dir={run_dir}", "--", *MODULE, f"--inside={out}"),
            *(f"--seconds={options.seconds}", f"--rounds={options.rounds}"),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": scratch,
            GATE: str(Path(scratch) / "no-samples"),
        }
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
        )
        stretches = json.loads(out.read_text()) if out.exists() else []
        series = read_lines(run_dir / "timeseries.jsonl")
        told = read_lines(run_dir / "controlplane.jsonl")
    found = summed_up(stretches, series, told)
    found |= {"nodes": options.nodes, "fidelity": options.fidelity, "exit_code": done.returncode}
    print(json.dumps(found, indent=2))
    return done.returncode


def read_lines(path: Path) -> list[Json]:
    """Return the whole lines of a file of JSON."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def gated_fleet(gate: Path) -> int:
    """Be `fleet`, but sample only while there is no gate."""
    ask = ControlPlaneSampler.sample

    def is_shut() -> bool:
        return gate.exists()

    async def sample(sampler: ControlPlaneSampler) -> float:
        return 0.0 if is_shut() else await ask(sampler)

    ControlPlaneSampler.sample = sample  # type: ignore[assignment,method-assign]
    fleet_main()
    return 0


def inside(seconds: float, rounds: int) -> list[Json]:
    """Measure from inside of a run; return each stretch."""
    gate = Path(os.environ[GATE])
    time.sleep(SETTLE_S)
    found = []
    for number in range(rounds):
        for is_on in (False, True) if number % 2 == 0 else (True, False):
            if is_on:
                gate.unlink(missing_ok=True)
            else:
                gate.touch()
            time.sleep(INTERVAL_S + 1)  # so late it notices, and ends what it began
            end = begin()
            time.sleep(seconds)
            found.append({"sampling": is_on, **end()._asdict()})
    gate.unlink(missing_ok=True)
    return found


def summed_up(stretches: Sequence[Json], series: Sequence[Json], told: Sequence[Json]) -> Json:
    """Return the stretches, the means of both kinds, and what sampling adds, in % of a core."""
    asked = [each for each in told if each["component"] == APISERVER]
    for each in stretches:
        each["lease_late_p99_ms"] = lateness_ms(each, series)
        inside_it = [one for one in asked if each["from_s"] <= one["wall_s"] <= each["to_s"]]
        each["samples"] = len(inside_it)
        each["sample_ms"] = round(mean(one["took_ms"] for one in inside_it), 1) if inside_it else 0
    found: Json = {"stretches": list(stretches)}
    figures = ("apiserver_cpu_percent", "fleet_cpu_percent", "lease_late_p99_ms", "samples")
    for name, is_on in (("off", False), ("on", True)):
        rows = [each for each in stretches if each["sampling"] is is_on]
        found[name] = {key: round(mean(row[key] for row in rows), 2) for key in figures if rows}
    found["sampling_adds"] = {
        key: round(found["on"][key] - found["off"][key], 2) for key in found["on"]
    }
    return found


if __name__ == "__main__":
    sys.exit(main())
