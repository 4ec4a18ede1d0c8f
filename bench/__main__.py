"""`make bench`: 5,000 nodes in both fidelities on a local control plane, as users run them.

Each column is one `fleet spawn --nodes N OPTIONS -- python -m bench.inside`: the command runs
once all nodes are Ready, waits, watches a quiet minute, then creates and deletes N bound pods.
Figures come from the run directory and from the processes' own accounting, children included.
Prints a table, writes JSON; of a run that failed or was not valid both have the reason and no
figure. Other columns show what options cost: `--column="--encoding json"`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import psutil

from .bench_table import VALID, Json, result_of, table

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the bench; the exit code tells whether every run was valid."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, help="default: one for each node; 0 for none")
    parser.add_argument("--idle", type=int, default=60, help="seconds of the quiet measurement")
    parser.add_argument("--column", action="append", metavar="OPTIONS", help="of fleet spawn")
    parser.add_argument("--out", type=Path, default=Path("runs/bench.json"))
    options = parser.parse_args()
    results: dict[str, Json] = {}
    pods = options.nodes if options.pods is None else options.pods
    for column in options.column or ("--fidelity light", "--fidelity kubelet"):
        results[column] = run(column.split(), options.nodes, pods, options.idle)
    report = {"machine": machine(), "nodes": options.nodes, "results": results}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(table(results, options.nodes))
    print(f"\n{machine()}; written to {options.out}")
    return 0 if all(result[VALID] for result in results.values()) else 4


def machine() -> str:
    """Name the machine."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gb = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{psutil.cpu_count()} cores ({model}), {memory_gb:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def run(spawn_options: list[str], nodes: int, pods: int, idle_s: int) -> Json:
    """Run one column; return its figures."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
        run_dir, inside = Path(scratch) / "run", Path(scratch) / "inside.json"
        command = [
            *(sys.executable, "-m", "fleet.cli", "spawn", "--nodes", str(nodes)),
            *(*spawn_options, "--run-dir", str(run_dir), "--output", "json", "--"),
            *(sys.executable, "-m", "bench.inside", str(inside), str(pods), str(idle_s)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": scratch}
        finished = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, stdout=subprocess.PIPE
        )
        summary = read(run_dir / "summary.json")
        return result_of(finished.returncode, summary, read(inside), series_of(run_dir))


def read(path: Path) -> Json | None:
    """Return what a run wrote, None if it did not come so far."""
    return json.loads(path.read_bytes()) if path.exists() else None


def series_of(run_dir: Path) -> list[list[Json]]:
    """Return the time series of all processes of a run, its own first."""
    paths = sorted(run_dir.rglob("timeseries.jsonl"), key=lambda path: len(path.parts))
    return [[orjson.loads(line) for line in path.open("rb")] for path in paths]


if __name__ == "__main__":
    sys.exit(main())
