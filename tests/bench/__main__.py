"""`make bench`: 5,000 nodes in both fidelities on a local control plane, as users run them.

Each column is one `fleet spawn --nodes N OPTIONS -- python -m tests.bench.inside`: the command runs
once all nodes are Ready, waits, watches a quiet minute, then creates and deletes N bound pods.
Figures come from the run directory and from the processes' own accounting. Prints a table, writes
JSON. Other columns show what options cost: `--column="--encoding json"`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import psutil

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, object]
ROWS = (
    ("all_ready_s", "all Ready after", "s"),
    ("bring_up_fleet_cpu_s", "CPU of fleet until then, start of the process included", "s"),
    ("bring_up_controlplane_cpu_s", "CPU of the control plane until then", "s"),
    ("bring_up_requests", "requests until then", ""),
    ("idle_cpu_percent", "CPU of fleet, idle", "% of a core"),
    ("idle_renewals_per_s", "lease renewals, idle", "/s"),
    ("idle_rss_mb", "memory of fleet, idle", "MB"),
    ("lease_late_p99_ms", "lease lateness p99, idle", "ms"),
    ("lease_interval_max_s", "longest renew interval", "s"),
    ("ever_not_ready", "nodes that went NotReady", ""),
    ("idle_apiserver_cpu_percent", "CPU of the API server, idle", "% of a core"),
    ("apiserver_rss_mb", "memory of the API server", "MB"),
    ("pods_running_s", "bound pods all Running after", "s"),
    ("pods_gone_s", "all gone after", "s"),
)


def main() -> int:
    """Run the bench; the exit code tells whether every run was valid."""
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
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
    return 0 if all(result["valid"] for result in results.values()) else 4


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
            *(sys.executable, "-m", "tests.bench.inside", str(inside), str(pods), str(idle_s)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": scratch}
        finished = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, stdout=subprocess.PIPE
        )
        if finished.returncode and not inside.exists():
            shown = " ".join(spawn_options)
            raise SystemExit(f"the run with {shown} failed: exit {finished.returncode}")
        summary = json.loads(finished.stdout)
        lines = [orjson.loads(line) for line in (run_dir / "timeseries.jsonl").open("rb")]
        return figures(summary, lines, json.loads(inside.read_text()))


def figures(summary: dict, lines: list[dict], inside: dict) -> Json:  # type: ignore[type-arg]
    """Put the figures of one run together."""
    begin_s, end_s = inside["idle_from_s"], inside["idle_to_s"]
    idle = [line for line in lines if begin_s <= line["wall_s"] <= end_s]
    bring_up = [line for line in lines if line["nodes"]["ready"] < summary["nodes"]["requested"]]
    late = sorted(line["lease"]["late_ms"]["p99"] or 0.0 for line in idle)
    return {
        "valid": summary["valid"],
        "invalid_reasons": summary["invalid_reasons"],
        "all_ready_s": round(summary["nodes"]["time_to_ready_s"], 1),
        "bring_up_fleet_cpu_s": inside["fleet_cpu_s_at_start"],
        "bring_up_controlplane_cpu_s": inside["controlplane_cpu_s_at_start"],
        "bring_up_requests": round(sum(line["requests_total"] for line in bring_up)),
        "idle_cpu_percent": inside["idle_fleet_cpu_percent"],
        "idle_renewals_per_s": round(statistics.mean(x["lease"]["renewals"] for x in idle), 1),
        "idle_rss_mb": round(idle[-1]["process"]["rss_bytes"] / 1e6, 1),
        "lease_late_p99_ms": late[int(len(late) * 0.99)],
        "lease_interval_max_s": summary["lease"]["interval_max_s"],
        "ever_not_ready": summary["nodes"]["ever_not_ready"],
        "idle_apiserver_cpu_percent": inside["idle_apiserver_cpu_percent"],
        "apiserver_rss_mb": inside["apiserver_rss_mb"],
        "pods_running_s": inside["pods_running_s"],
        "pods_gone_s": inside["pods_gone_s"],
        "pods": inside["pods"],
        "requests": summary["requests"],
    }


def table(results: dict[str, Json], nodes: int) -> str:
    """Return the figures as a Markdown table."""
    names = list(results)
    lines = [
        f"| {nodes:,} nodes | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for key, label, unit in ROWS:
        values = [results[name][key] for name in names]
        cells = ["not in time" if v is None else f"{v:,} {unit}".strip() for v in values]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
