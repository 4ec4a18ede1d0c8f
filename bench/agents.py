"""`python -m bench.agents`: what kube-proxy on every node costs.

A Deployment behind a Service is rolled, once on a fleet without agents and once on one whose nodes
run kube-proxy. Figures are of the time from the change to the end of the roll: the CPU of fleet and
of the API server, and what the agents received. With `--idle` nothing is rolled: the figures are of
so many quiet seconds, of `--rounds` runs of each kind in turns.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson
import psutil

from .accounting import apiserver_of, cpu_s, fleet_tree, rss_mb

ROOT = Path(__file__).resolve().parents[1]
INSIDE = "--inside"
IDLE = "--idle"
SETTLE_S = 15.0
AGENTS: dict[str, tuple[str, ...]] = {"no agents": ("--no-agents",), "kube-proxy": ()}
TIME_MAX = "--timeout=300s"


def run(arguments: tuple[str, ...], nodes: int, *inside: str) -> dict[str, float]:
    """Run one fleet; return the figures of what is done inside of it."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
        out = Path(scratch) / "out.json"
        command = [
            *(sys.executable, "-m", "fleet.cli", "spawn", f"--nodes={nodes}"),
            *(*arguments, f"--run-dir={scratch}/run"),
            *("--", sys.executable, "-m", "bench.agents", INSIDE, str(out), *inside),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": scratch}
        environment["FLEET_NO_AGENTS"] = "0"  # for once: see __init__.py
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
        )
        figures: dict[str, float] = json.loads(out.read_text())
        return {**figures, "exit_code": done.returncode}  # 4: the machine was too busy


def rest(out: Path, seconds: float) -> None:
    """Measure a fleet that has nothing to do."""
    fleet = psutil.Process(os.getppid())
    apiserver = apiserver_of(fleet)
    time.sleep(SETTLE_S)
    before, begun_s = figures(fleet, apiserver), time.monotonic()
    time.sleep(seconds)
    after, took_s = figures(fleet, apiserver), time.monotonic() - begun_s
    rested = {
        "apiserver_cpu_percent": 100 * (after[1] - before[1]) / took_s,
        "fleet_cpu_percent": 100 * (after[0] - before[0]) / took_s,
        "agent_events": after[2] - before[2],
        "agent_received_mb": (after[3] - before[3]) / 1e6,
        "apiserver_cpu_s_until_then": before[1],
        "fleet_cpu_s_until_then": before[0],
        "apiserver_rss_mb": apiserver.memory_info().rss / 1e6,
        "fleet_rss_mb": rss_mb(fleet_tree(fleet, command=os.getpid())),
    }
    out.write_text(json.dumps(rested))


def inside(out: Path, pods: int) -> None:
    """Roll the Deployment from inside of a run."""
    fleet = psutil.Process(os.getppid())
    apiserver = apiserver_of(fleet)
    kubectl("create", "deployment", "web", "--image=registry.k8s.io/pause", f"--replicas={pods}")
    kubectl("expose", "deployment", "web", "--port=80")
    kubectl("rollout", "status", "deployment/web", TIME_MAX)
    time.sleep(SETTLE_S)
    idle = figures(fleet, apiserver)
    time.sleep(SETTLE_S)
    before, begun_s = figures(fleet, apiserver), time.monotonic()
    kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", TIME_MAX)
    time.sleep(2.0)  # the last slices, and the last line of the time series
    after, took_s = figures(fleet, apiserver), time.monotonic() - begun_s
    rolled = {
        "roll_s": took_s,
        "idle_apiserver_cpu_percent": (before[1] - idle[1]) / SETTLE_S * 100,
        "apiserver_cpu_s": after[1] - before[1],
        "fleet_cpu_s": after[0] - before[0],
        "agent_events": after[2] - before[2],
        "agent_received_mb": (after[3] - before[3]) / 1e6,
        "agent_received_mb_per_s": (after[3] - before[3]) / 1e6 / took_s,
        "fleet_rss_mb": rss_mb(fleet_tree(fleet, command=os.getpid())),
        "apiserver_rss_mb": apiserver.memory_info().rss / 1e6,
    }
    out.write_text(json.dumps(rolled))


def kubectl(*arguments: str) -> None:
    """Run kubectl against the run's cluster."""
    subprocess.run(("kubectl", *arguments), check=True, stdout=subprocess.DEVNULL)


def figures(fleet: psutil.Process, apiserver: psutil.Process) -> tuple[float, float, float, float]:
    """Return CPU seconds of both, and events and bytes of all agents so far."""
    path = Path(os.environ["FLEET_RUN_DIR"]) / "timeseries.jsonl"
    events = received = at_s = 0.0
    for line in map(orjson.loads, path.read_bytes().splitlines()):
        span_s, at_s = line["wall_s"] - at_s, line["wall_s"]  # rates are per second
        events += span_s * sum(each["events"] for each in line["agents"].values())
        received += span_s * sum(each["received_bytes"] for each in line["agents"].values())
    return cpu_s(fleet_tree(fleet, command=os.getpid())), cpu_s([apiserver]), events, received


def main() -> None:
    """Run with and without agents and print a table."""
    if IDLE in sys.argv and INSIDE in sys.argv:
        rest(Path(sys.argv[2]), float(sys.argv[4]))
        return
    if INSIDE in sys.argv:
        inside(Path(sys.argv[2]), int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="bench.agents", description=__doc__)
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument(IDLE, type=float, default=0.0, help="quiet seconds, in place of a roll")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    what = (IDLE, str(options.idle)) if options.idle else (str(options.pods),)
    found = [
        (f"{name}, {number + 1}", run(arguments, options.nodes, *what))
        for number in range(options.rounds)
        for name, arguments in AGENTS.items()
    ]
    print(f"{options.nodes} nodes, {' '.join(what)}, {psutil.cpu_count()} cores")
    print("| | " + " | ".join(name for name, _ in found) + " |")
    print("|---|" + "---|" * len(found))
    for row in found[0][1]:
        cells = " | ".join(f"{each[row]:,.1f}" for _, each in found)
        print(f"| {row} | {cells} |")


if __name__ == "__main__":
    main()
