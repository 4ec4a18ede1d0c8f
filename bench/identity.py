"""`python -m bench.identity`: what it costs the API server to know who a node is.

The same fleet once for each identity, with Leases of 8 s, so that idle nodes do little but renew
them, every 2 s. Figures are the processes' own CPU, by renewal; whatever else the API server does
for idle nodes (bookmarks, controllers) is in them, and the same for all. The runs take turns, so
that a change of the machine's speed shows: `--rounds`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson
import psutil
import yaml

from fleet.profile.loader import show_profile

from .accounting import apiserver_of, cpu_s, fleet_tree, rss_mb

ROOT = Path(__file__).resolve().parents[1]
SETTLE_S = 15.0
IDENTITIES = ("impersonate", "csr", "shared")
INSIDE = "--inside"


def run(identity: str, nodes: int, seconds: int) -> dict[str, float]:
    """Run one fleet; return its figures."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
        profile = yaml.safe_load(show_profile("default"))
        profile["spec"]["kubeletConfiguration"]["nodeLeaseDurationSeconds"] = 8
        quick, out = Path(scratch) / "quick.yaml", Path(scratch) / "out.json"
        quick.write_text(yaml.safe_dump(profile))
        command = [
            *(sys.executable, "-m", "fleet.cli", "spawn", f"--nodes={nodes}"),
            *(f"--identity={identity}", f"--profile={quick}", f"--run-dir={scratch}/run"),
            *("--", sys.executable, "-m", "bench.identity", INSIDE, str(out), str(seconds)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": scratch}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        figures: dict[str, float] = json.loads(out.read_text())
        summary = json.loads((Path(scratch) / "run" / "summary.json").read_text())
        return {"ready_s": summary["nodes"]["time_to_ready_s"], **figures}


def inside(out: Path, seconds: float) -> None:
    """Measure from inside of a run: CPU and memory of fleet and the API server, and renewals."""
    fleet = psutil.Process(os.getppid())
    apiserver = apiserver_of(fleet)
    time.sleep(SETTLE_S)
    before = (cpu_s(fleet_tree(fleet, command=os.getpid())), cpu_s([apiserver]), renewals())
    time.sleep(seconds)
    after = (cpu_s(fleet_tree(fleet, command=os.getpid())), cpu_s([apiserver]), renewals())
    count = after[2] - before[2]
    figures = {
        "renewals_per_s": count / seconds,
        "fleet_us": (after[0] - before[0]) / count * 1e6,
        "apiserver_us": (after[1] - before[1]) / count * 1e6,
        "fleet_rss_mb": rss_mb(fleet_tree(fleet, command=os.getpid())),
        "apiserver_rss_mb": apiserver.memory_info().rss / 1e6,
    }
    out.write_text(json.dumps(figures))


def renewals() -> float:
    """Return how many Leases were renewed so far, by the run's time series."""
    path = Path(os.environ["FLEET_RUN_DIR"]) / "timeseries.jsonl"
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return float(sum(line["lease"]["renewals"] for line in lines))  # of a second each


def main() -> None:
    """Run every identity and print a table."""
    if INSIDE in sys.argv:
        inside(Path(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="bench.identity", description=__doc__)
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--idle", type=int, default=60, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {each: [] for each in IDENTITIES}
    for _ in range(options.rounds):
        for identity in IDENTITIES:
            found[identity].append(run(identity, options.nodes, options.idle))
    rows = list(found[IDENTITIES[0]][0])
    print(f"{options.nodes} nodes, {psutil.cpu_count()} cores; median of {options.rounds}")
    print("| | " + " | ".join(f"`{each}`" for each in IDENTITIES) + " |")
    print("|---|" + "---|" * len(IDENTITIES))
    for row in rows:
        cells = [statistics.median(each[row] for each in found[name]) for name in IDENTITIES]
        print(f"| {row} | " + " | ".join(f"{cell:,.1f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
