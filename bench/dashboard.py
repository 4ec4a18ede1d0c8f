"""`python -m bench.dashboard`: what the dashboard costs the processes that host nodes.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from .accounting import cpu_s, tree
from .bench_table import NO_FIGURE

POLL_S = 1.0
SETTLE_S = 15.0
START_S_MAX = 1200.0  # 5,000 kubelets with two cores for all: 3 to 6 minutes
END_S_MAX = 300.0
PROGRESS_S = 15.0
FIGURES = 5
FULL_SPEED = Path(__file__).with_name("full_speed.py")


class Address(NamedTuple):
    """Where a dashboard is, and what opens it."""

    url: str
    token: str


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
    parser = argparse.ArgumentParser(prog="bench.dashboard", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--users", type=int, default=12, help="API users beside the nodes")
    parser.add_argument("--idle", type=int, default=60, help="seconds of the measurement")
    parser.add_argument("--fidelity", choices=("kubelet", "light"), default="kubelet")
    options = parser.parse_args()
    print(f"{options.nodes} nodes, {options.processes} processes, {options.fidelity}, "
          f"{psutil.cpu_count()} cores, Python {platform.python_version()}")  # fmt: skip
    print(
        "| run | valid | fleet, % of a core | Locust master | API users | requests/s | failures |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, arguments in runs(options.users).items():
        tell(f"{name}: fleet spawn {' '.join(arguments)}")
        found = measure(options, arguments)
        print(f"| {name} | " + " | ".join(found) + " |", flush=True)


def measure(options: argparse.Namespace, arguments: tuple[str, ...]) -> list[str]:
    """Run once; return validity, CPU of fleet, master and users, requests' rate and failures."""
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
            before, since_s = used_s(process.pid), time.monotonic()
            time.sleep(options.idle)
            after, took_s = used_s(process.pid), time.monotonic() - since_s
            used = {kind: (after[kind] - before[kind]) / took_s * 100 for kind in after}
            cells = [f"{used[kind]:.2f}" for kind in ("fleet", "master", "users")]
            if dashboard:
                now = statistics(dashboard)["stats"][-1]
                rate = (now["num_requests"] - total["num_requests"]) / took_s
                cells += [f"{rate:.0f}", str(now["num_failures"] - total["num_failures"])]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(END_S_MAX)
        return row_of(process.returncode, cells)


def row_of(code: int, cells: list[str]) -> list[str]:
    """Return the cells of a run; one that was not valid has no figures."""
    if code:
        return [f"no: exit code {code}", *[NO_FIGURE] * FIGURES]
    return ["yes", *cells, *[NO_FIGURE] * (FIGURES - len(cells))]


def wait_ready(
    process: "subprocess.Popen[bytes]", log: Path, nodes: int, *, is_steered: bool
) -> Address | None:
    """Wait until all nodes are Ready; return the dashboard's address, if there is one."""
    began_s = told_s = time.monotonic()
    while time.monotonic() < began_s + START_S_MAX:
        text = log.read_text()
        assert process.poll() is None, text
        found = re.findall(r"dashboard: (http://\S+)/\?token=(\S+)", text)
        if not is_steered and "nodes are Ready after" in text:
            return None
        if found:
            rows = statistics(Address(*found[-1]))["extended_stats"][0]["data"]
            ready = sum(row["ready"] for row in rows)
            text = f"{ready} of {nodes} Ready"
            if ready == nodes:
                return Address(*found[-1])
        if time.monotonic() > told_s + PROGRESS_S:
            told_s = time.monotonic()
            tell(f"{told_s - began_s:.0f} s: {text.splitlines()[-1] if text else 'starting'}")
        time.sleep(POLL_S)
    raise TimeoutError(log.read_text())


def tell(words: str) -> None:
    """Show how it goes, beside the table."""
    print(words, file=sys.stderr, flush=True)


def statistics(dashboard: Address) -> dict[str, Any]:
    """Return what the dashboard's page asks for; `stats` ends with the row Aggregated."""
    key = {"Authorization": f"Bearer {dashboard.token}"}
    request = urllib.request.Request(f"{dashboard.url}/stats/requests", headers=key)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def used_s(pid: int) -> dict[str, float]:
    """Return CPU seconds so far of the processes that host nodes, and of Locust's."""
    parent = psutil.Process(pid)
    children = {child: kind_of(child.cmdline()) for child in parent.children()}
    used = {"fleet": cpu_s(tree(parent, {child.pid for child in children})), "master": 0.0}
    used["users"] = 0.0
    for child, kind in children.items():
        if kind is not None:
            used[kind] += cpu_s(tree(child))
    return used


def kind_of(words: Sequence[str]) -> str | None:
    """Return what a child of a run does, by its command line; None is the control plane."""
    if "locust" in words:
        return "master" if "--master" in words else "users"
    return "fleet" if "fleet.cli" in words else None


if __name__ == "__main__":
    main()
