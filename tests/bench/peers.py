"""`make bench-peers`: KWOK and fleet side by side, as another client of the API server sees them.

Each run has a local control plane of its own, new each time; the tools take turns, and every second
round in the opposite order, since the speed of a machine changes within the hour. A tool begins
when it is started; KWOK's Nodes are created then, by many requests at a time. The other client is
one JSON watch of all Nodes, which resumes, and for pods what `inside.py` says. Prints medians and
ranges; of a run that was not sound there is the reason and no figure.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from fleet.controlplane.build import find_go

from .__main__ import ROOT, machine
from .accounting import PLANE, cpu_s, rss_mb, tree
from .inside import IN_FLIGHT, SETTLE_S, client, each, follow, pods, until

sys.path.append(str(ROOT / "tests"))
from go_program import KWOK

Json = dict[str, Any]
FLEET = (sys.executable, "-m", "fleet.cli")
TOOLS = {
    "KWOK": (),
    "light": ("--fidelity", "light"),
    "kubelet": ("--fidelity", "kubelet"),
}
"""What is compared, and the options of fleet for it."""
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
"""What kwokctl gives KWOK to play unless it is told otherwise. Source: pkg/kwokctl/runtime."""
READY_WITHIN_S = 900.0
NOT_READY = "node.kubernetes.io/not-ready"
ROWS = (
    ("ready_s", "all Ready and without the not-ready taint", "s"),
    ("lost", "nodes that turned NotReady on the way", ""),
    ("tool_cpu_s", "CPU of the tool until then", "s"),
    ("plane_cpu_s", "CPU of the control plane until then", "s"),
    ("idle_percent", "idle CPU of the tool", "% of a core"),
    ("idle_apiserver_percent", "CPU of the API server meanwhile", "% of a core"),
    ("rss_mb", "memory of the tool", "MB"),
    ("pods_running_s", "bound pods all Running", "s"),
    ("pods_gone_s", "all gone", "s"),
)


@dataclass(slots=True)
class Nodes:
    """The Nodes as a watch shows them."""

    fine: set[str] = field(default_factory=set)
    """Ready, and without the not-ready taint."""
    lost: set[str] = field(default_factory=set)
    """Ready once, then not."""

    def see(self, event: Json, version: int) -> int:
        """Take one event of the watch; return the version to go on from."""
        if event["type"] == "ERROR":
            return 0
        node = event["object"]
        name, status = node["metadata"]["name"], node.get("status", {})
        taints = {taint["key"] for taint in node["spec"].get("taints", ())}
        is_ready = any(
            (each["type"], each["status"]) == ("Ready", "True")
            for each in status.get("conditions", ())
        )
        if is_ready and NOT_READY not in taints:
            self.fine.add(name)
        elif not is_ready and name in self.fine:
            self.fine.discard(name)
            self.lost.add(name)
        return max(version, int(node["metadata"]["resourceVersion"]))


def kwok_command() -> tuple[str, ...]:
    """Return KWOK as kwokctl runs it, but for the kubeconfig; build it if it is not there."""
    download = (asyncio.run(find_go()), "mod", "download", "-json", "sigs.k8s.io/kwok")
    told = subprocess.run(download, cwd=KWOK.module, stdout=subprocess.PIPE, check=True)
    stages = Path(json.loads(told.stdout)["Dir"]) / "kustomize" / "stage"
    files = (file for name in STAGES for file in sorted((stages / name).glob("*-*.yaml")))
    return (
        *(str(KWOK.path()), "--manage-all-nodes=true", "--node-lease-duration-seconds=40"),
        *(f"--config={file}" for file in files),
    )


def kwok_node(index: int) -> Json:
    """Return a Node as `kwokctl scale node` makes them."""
    name = f"node-{index:06d}"
    size = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/role": "agent",
                "node-role.kubernetes.io/agent": "",
                "type": "kwok",
            },
        },
        "spec": {},
        "status": {"allocatable": size, "capacity": size},
    }


@contextlib.contextmanager
def control_plane(scratch: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Start a control plane; give its administrator's kubeconfig."""
    told = subprocess.run(
        (*FLEET, "controlplane", "up"),
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        cwd=scratch,
        text=True,
    )
    try:
        yield Path(told.stdout.strip().partition("=")[2])
    finally:
        down = (*FLEET, "controlplane", "down")
        subprocess.run(down, env=environment, check=True, cwd=scratch, stdout=subprocess.DEVNULL)


def started(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a tool that writes to a log."""
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def ended(process: subprocess.Popen[bytes], log: Path) -> str:
    """Say that a tool ended by itself."""
    last = log.read_text(errors="replace").splitlines()[-1:]
    return f"it ended by itself with {process.returncode}: {''.join(last)[-400:]}"


def components_below(scratch: Path) -> dict[str, psutil.Process]:
    """Return the components of the control plane that lives in a folder."""
    found = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        name, command = process.info["name"] or "", process.info["cmdline"] or []
        if name.startswith(PLANE) and any(str(scratch) in each for each in command):
            found[name] = process
    return found


async def measure(tool: str, kwok: Sequence[str], count: int, idle_s: float, scratch: Path) -> Json:
    """Run one tool on a control plane of its own; return its figures. `kwok`: its command."""
    environment = {**os.environ, "XDG_STATE_HOME": str(scratch), "PYTHONPATH": str(ROOT)}
    with control_plane(scratch, environment) as kubeconfig:
        plane = components_below(scratch)
        apiserver = next(process for name, process in plane.items() if "apiserver" in name)
        if tool == "KWOK":
            command: Sequence[str] = (*kwok, f"--kubeconfig={kubeconfig}")
        else:
            command = (
                *(*FLEET, "spawn", f"--nodes={count}", "--no-report", *TOOLS[tool]),
                f"--run-dir={scratch / 'run'}",
            )
        url, context = client(kubeconfig)
        connector = aiohttp.TCPConnector(ssl=context, limit=IN_FLIGHT + 2)
        async with aiohttp.ClientSession(connector=connector) as session:
            nodes = Nodes()
            watching = asyncio.create_task(follow(session, f"{url}/api/v1/nodes", nodes.see))
            before_s, began_s = cpu_s(plane.values()), time.monotonic()
            process = started(command, environment, scratch / "log")
            try:
                if tool == "KWOK":

                    async def create(index: int) -> None:
                        made = session.post(f"{url}/api/v1/nodes", json=kwok_node(index))
                        async with made as answer:
                            assert answer.status == 201, await answer.text()

                    await each(count, create)
                root = psutil.Process(process.pid)
                is_ready = await until(
                    lambda: len(nodes.fine) == count or process.poll() is not None, READY_WITHIN_S
                )
                if process.poll() is not None:
                    return {"problem": ended(process, scratch / "log")}
                result: Json = {
                    "ready_s": None if is_ready is None else time.monotonic() - began_s,
                    "tool_cpu_s": cpu_s(tree(root)),
                    "plane_cpu_s": cpu_s(plane.values()) - before_s,
                    "lost": len(nodes.lost),
                }
                if is_ready is None:
                    return {"problem": f"{len(nodes.fine)} of {count} nodes were Ready in time"}
                await asyncio.sleep(SETTLE_S)
                used = time.monotonic(), cpu_s(tree(root)), cpu_s([apiserver])
                await asyncio.sleep(idle_s)
                span_s = time.monotonic() - used[0]
                result["idle_percent"] = 100 * (cpu_s(tree(root)) - used[1]) / span_s
                result["idle_apiserver_percent"] = 100 * (cpu_s([apiserver]) - used[2]) / span_s
                result["rss_mb"] = rss_mb(tree(root))
                watching.cancel()
                result |= await pods(url, context, count)
                if process.poll() is not None:
                    return {"problem": ended(process, scratch / "log")}
            finally:
                watching.cancel()
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(300)
                process.kill()
    summary = scratch / "run" / "summary.json"
    if summary.exists() and (reasons := json.loads(summary.read_bytes())["invalid_reasons"]):
        return {"problem": "; ".join(reasons)}
    return result


def table(rounds: Mapping[str, Sequence[Json]], nodes: int) -> str:
    """Return medians, ranges and what they are to the first column's, as a Markdown table."""
    names = list(rounds)
    sound = {
        name: [each for each in runs if "problem" not in each] for name, runs in rounds.items()
    }
    lines = [
        f"| {nodes:,} nodes | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
        "| sound runs | " + " | ".join(_sound(rounds[name]) for name in names) + " |",
    ]
    for key, label, unit in ROWS:
        known = {name: [run[key] for run in sound[name] if run[key] is not None] for name in names}
        base = statistics.median(known[names[0]]) if known[names[0]] else None
        cells = []
        for name in names:
            values = known[name]
            if not values:
                cells.append("-")
                continue
            middle = statistics.median(values)
            text = f"{middle:,.1f} {unit}".strip()
            if len(values) > 1:
                text += f" ({min(values):,.1f} to {max(values):,.1f})"
            if name != names[0] and base:
                text += f", {middle / base:.2f}"
            cells.append(text)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _sound(runs: Sequence[Json]) -> str:
    problems = "; ".join(each["problem"] for each in runs if "problem" in each)
    count = sum("problem" not in each for each in runs)
    return f"{count} of {len(runs)}" + (f": {problems}" if problems else "")


def main() -> int:
    """Run the rounds; the exit code tells whether all runs were sound."""
    parser = argparse.ArgumentParser(prog="tests.bench.peers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-peers.json"))
    options = parser.parse_args()
    tools = options.tool or list(TOOLS)
    kwok = kwok_command() if "KWOK" in tools else ()
    rounds: dict[str, list[Json]] = {tool: [] for tool in tools}
    for number in range(options.rounds):
        for tool in tools if number % 2 == 0 else reversed(tools):
            with tempfile.TemporaryDirectory(prefix="fleet-peers-") as scratch:
                work = measure(tool, kwok, options.nodes, options.idle, Path(scratch))
                result = asyncio.run(work)
            rounds[tool].append(result)
            print(f"round {number + 1}, {tool}: {json.dumps(result)}", file=sys.stderr, flush=True)
    report = {"machine": machine(), "nodes": options.nodes, "rounds": rounds}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(table(rounds, options.nodes))
    print(f"\n{machine()}; written to {options.out}")
    return 4 if any("problem" in each for runs in rounds.values() for each in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
