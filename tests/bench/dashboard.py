"""`python -m tests.bench.dashboard`: what the dashboard costs the processes that host nodes.

The same nodes in the same two processes four times: alone, with the dashboard, with the shipped API
users beside them, and with ones that never wait. CPU is what the processes themselves account over
a quiet time, start and ramp apart. Progress goes to stderr.
"""

import argparse
import json
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

POLL_S = 1.0
SETTLE_S = 15.0
START_S_MAX = 1200.0  # 5,000 kubelets with two cores for all: 3 to 6 minutes
END_S_MAX = 300.0
PROGRESS_S = 15.0
FULL_SPEED = Path(__file__).with_name("full_speed.py")


def runs(users: int) -> dict[str, tuple[str, ...]]:
    """Return the options of each run by its name."""
    steered = ("--dashboard", "--rate=200")
    return {
        "alone": (),
        "dashboard": steered,
        f"{users} API users": (*steered, "--load=api_users", f"--api-users={users}"),
        f"{users} at full speed": (*steered, f"--load={FULL_SPEED}", f"--api-users={users}"),
    }


def main() -> None:
    """Print one row a run."""
    parser = argparse.ArgumentParser(prog="tests.bench.dashboard", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--users", type=int, default=12, help="API users beside the nodes")
    parser.add_argument("--idle", type=int, default=60, help="seconds of the measurement")
    parser.add_argument("--fidelity", choices=("kubelet", "light"), default="kubelet")
    options = parser.parse_args()
    print(f"{options.nodes} nodes, {options.processes} processes, {options.fidelity}, "
          f"{psutil.cpu_count()} cores, Python {platform.python_version()}")  # fmt: skip
    print("| run | fleet, % of a core | Locust master | API users | requests/s | failures |")
    print("|---|---|---|---|---|---|")
    for name, arguments in runs(options.users).items():
        tell(f"{name}: fleet spawn {' '.join(arguments)}")
        found = measure(options, arguments)
        print(f"| {name} | " + " | ".join(found) + " |", flush=True)


def measure(options: argparse.Namespace, arguments: tuple[str, ...]) -> list[str]:
    """Run once; return CPU of fleet, master and API users, the requests' rate and failures."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                (
                    *(sys.executable, "-m", "fleet.cli", "spawn", f"--nodes={options.nodes}"),
                    *(f"--processes={options.processes}", f"--fidelity={options.fidelity}"),
                    *(f"--run-dir={directory}/run", *arguments),
                ),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        try:
            dashboard = wait_ready(process, log, options.nodes, is_steered=bool(arguments))
            tell(f"all Ready, measuring for {options.idle} s")
            time.sleep(SETTLE_S)
            total = statistics(dashboard)["stats"][-1] if dashboard else {}
            before, since_s = cpu_s(process.pid), time.monotonic()
            time.sleep(options.idle)
            after, took_s = cpu_s(process.pid), time.monotonic() - since_s
            used = {kind: (after[kind] - before[kind]) / took_s * 100 for kind in after}
            cells = [f"{used[kind]:.2f}" for kind in ("fleet", "master", "users")]
            if not dashboard:
                return [*cells, "-", "-"]
            now = statistics(dashboard)["stats"][-1]
            rate = (now["num_requests"] - total["num_requests"]) / took_s
            return [*cells, f"{rate:.0f}", str(now["num_failures"] - total["num_failures"])]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(END_S_MAX)


def wait_ready(
    process: "subprocess.Popen[bytes]", log: Path, nodes: int, *, is_steered: bool
) -> str:
    """Wait until all nodes are Ready; return the dashboard's address, "" without one."""
    began_s = told_s = time.monotonic()
    while time.monotonic() < began_s + START_S_MAX:
        text = log.read_text()
        assert process.poll() is None, text
        found = re.findall(r"dashboard: (http://\S+)", text)
        if not is_steered and "nodes are Ready after" in text:
            return ""
        if found:
            rows = statistics(found[-1])["extended_stats"][0]["data"]
            ready = sum(row["ready"] for row in rows)
            text = f"{ready} of {nodes} Ready"
            if ready == nodes:
                return str(found[-1])
        if time.monotonic() > told_s + PROGRESS_S:
            told_s = time.monotonic()
            tell(f"{told_s - began_s:.0f} s: {text.splitlines()[-1] if text else 'starting'}")
        time.sleep(POLL_S)
    raise TimeoutError(log.read_text())


def tell(words: str) -> None:
    """Show how it goes, beside the table."""
    print(words, file=sys.stderr, flush=True)


def statistics(url: str) -> dict[str, Any]:
    """Return what the dashboard's page asks for; `stats` ends with the row Aggregated."""
    with urllib.request.urlopen(f"{url}/stats/requests", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def cpu_s(pid: int) -> dict[str, float]:
    """Return CPU seconds so far of the processes that host nodes, and of Locust's."""
    used = {"fleet": 0.0, "master": 0.0, "users": 0.0}
    parent = psutil.Process(pid)
    for process in (parent, *parent.children()):
        words = process.cmdline()
        if "locust" in words:
            kind = "master" if "--master" in words else "users"
        elif process.pid == pid or "fleet.cli" in words:
            kind = "fleet"
        else:
            continue
        times = process.cpu_times()
        used[kind] += times.user + times.system
    return used


if __name__ == "__main__":
    main()
