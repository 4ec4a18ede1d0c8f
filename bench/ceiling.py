"""`make bench-ceiling`: how far fleet goes by itself, at a sink in place of an API server.

The sink (`bench/sink`, Go's own HTTP/2 and TLS) keeps what is created and answers at once, so
that fleet is what is measured: memory of a node, CPU of a renewal, how late renewals are, from
1,000 nodes to 20,000; cost that grows with the size shows as a slope. `--renew 1` has each node
renew once a second (a Lease of 4 s): at 20,000 nodes, 20,000 heartbeats/s or as many as one core
sends. Prints a table, writes JSON. Nothing of it says what an API server bears.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psutil

from fleet.controlplane.build import find_go

from .__main__ import ROOT, machine
from .accounting import cpu_s, fleet_tree, rss_mb
from .inside import POD_SPEC, Phases, each, follow, run_time_s, session_of, until
from .scrapes import lateness_ms

INSIDE = "--inside"
SINK = "SINK_KUBECONFIG"
RENEWALS_A_LEASE = 4
"""A kubelet renews a quarter of a Lease after the last time. Source: pkg/kubelet/kubelet.go."""
Json = dict[str, Any]
ROWS = (
    ("ready_s", "all Ready after", "s"),
    ("start_cpu_ms", "CPU until then, a node", "ms"),
    ("rss_mb", "memory, idle", "MB"),
    ("node_kb", "of it each node beyond the smallest size", "KB"),
    ("renewals_s", "renewals", "/s"),
    ("idle_percent", "CPU", "% of a core"),
    ("renewal_us", "CPU, a renewal", "us"),
    ("late_p99_ms", "renewals late, p99", "ms"),
)


class Plan(NamedTuple):
    """What a run at the sink is asked for."""

    fidelity: str = "light"
    renew_s: int = 10
    idle_s: float = 40.0
    spawn: str = ""  # more options of fleet spawn
    pods: int = 0  # bound to its nodes at the end


def main() -> int:
    """Measure every size, and print the table."""
    parser = argparse.ArgumentParser(prog="bench.ceiling", description=__doc__)
    parser.add_argument("--sizes", default="1000,5000,10000,20000")
    parser.add_argument("--fidelity", choices=("light", "kubelet"), default="light")
    parser.add_argument("--renew", type=int, default=10, help="seconds between two renewals")
    parser.add_argument("--idle", type=float, default=40.0, help="seconds of the measurement")
    parser.add_argument("--spawn", default="", metavar="OPTIONS", help="more of fleet spawn")
    parser.add_argument("--out", type=Path, default=Path("runs/ceiling.json"))
    parser.add_argument("--pods", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument(INSIDE, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        found_inside = inside(options.renew, options.idle, options.pods)
        options.inside.write_text(json.dumps(found_inside))
        return 0
    sizes = [int(size) for size in options.sizes.split(",")]
    plan = Plan(options.fidelity, options.renew, options.idle, options.spawn)
    found = [measure(size, plan) for size in sizes]
    for size, one in zip(sizes[1:], found[1:], strict=True):
        beyond_mb = one["rss_mb"] - found[0]["rss_mb"]
        one["node_kb"] = round(beyond_mb * 1e3 / (size - sizes[0]), 1)
    report = {
        "machine": machine(),
        "fidelity": options.fidelity,
        "renew_s": options.renew,
        "spawn": options.spawn,
        "results": dict(zip(sizes, found, strict=True)),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(table(options.fidelity, sizes, found))
    print(f"\n{machine()}; written to {options.out}")
    return 0


def table(fidelity: str, sizes: Sequence[int], found: Sequence[Json]) -> str:
    """Return the table as Markdown."""
    lines = [
        f"| `{fidelity}`, nodes | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for key, what, unit in ROWS:
        values = (f"{one[key]:,} {unit}" if key in one else "-" for one in found)
        lines.append(f"| {what} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def measure(nodes: int, plan: Plan, tree: Path = ROOT) -> Json:
    """Run one fleet of a tree at a sink of its own; return its figures. Raises if it failed."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch, sink(Path(scratch)) as to:
        out, run_dir = Path(scratch) / "out.json", Path(scratch) / "run"
        command = [
            *(sys.executable, "-m", "fleet.cli", "spawn", f"--nodes={nodes}", "--quiet"),
            *(f"--kubeconfig={to}", "--confirm-cluster=sink", "--no-report"),
            *(f"--fidelity={plan.fidelity}", "--encoding=json"),  # the sink reads no other
            *plan.spawn.split(),
            *(
                f"--run-dir={run_dir}",
                f"--profile={profile(Path(scratch), plan.renew_s, tree)}",
                "--",
            ),
            *("env", f"--chdir={ROOT}", f"PYTHONPATH={ROOT}"),
            *(sys.executable, "-m", "bench.ceiling", INSIDE, str(out), f"--pods={plan.pods}"),
            *(f"--idle={plan.idle_s}", f"--renew={plan.renew_s}"),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "XDG_STATE_HOME": scratch,
            SINK: str(to),
        }
        subprocess.run(command, check=False, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
        figures: Json = json.loads(out.read_text())
        lines = (run_dir / "timeseries.jsonl").read_bytes().splitlines()
        figures["late_p99_ms"] = lateness_ms(figures, [orjson.loads(line) for line in lines])
        summary = orjson.loads((run_dir / "summary.json").read_bytes())
        figures["ready_s"] = round(summary["nodes"]["time_to_ready_s"], 1)
        figures["start_cpu_ms"] = round(1e3 * figures.pop("start_cpu_s") / nodes, 2)
        return figures


def profile(scratch: Path, renew_s: int, tree: Path) -> Path:
    """Write the default profile with another Lease; return where."""
    text = (tree / "profiles" / "nodes" / "default.yaml").read_text()
    told = "  kubeletConfiguration:\n"
    lease = f"    nodeLeaseDurationSeconds: {renew_s * RENEWALS_A_LEASE}\n"
    written = scratch / "profile.yaml"
    written.write_text(text.replace(told, told + lease, 1))
    return written


@contextlib.contextmanager
def sink(scratch: Path) -> Iterator[Path]:
    """Build and start a sink that ends with this process; give its kubeconfig."""
    program, kubeconfig = scratch / "sink", scratch / "kubeconfig"
    build = (asyncio.run(find_go()), "build", "-o", str(program), ".")
    subprocess.run(build, cwd=ROOT / "bench" / "sink", check=True)
    running = subprocess.Popen(
        (str(program), f"-kubeconfig={kubeconfig}"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with running:
        assert running.stdout is not None
        running.stdout.readline()  # it listens
        try:
            yield kubeconfig
        finally:
            running.kill()


def reached(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Return where the sink is, and how a client trusts it."""
    found = re.search(r"https://[0-9.:]+", kubeconfig.read_text())
    assert found is not None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it signed its certificate itself
    return found[0], context


def renewals(kubeconfig: Path) -> int:
    """Return how many renewals the sink has answered."""
    url, context = reached(kubeconfig)
    with urllib.request.urlopen(f"{url}/metrics", context=context) as answer:
        text = answer.read().decode()
    return int(re.findall(r"sink_renewals_total (\d+)", text)[0])


async def bind_pods(kubeconfig: Path, count: int) -> None:
    """Create pods that are bound to the nodes in turn, and wait until all of them run."""
    url, context = reached(kubeconfig)
    path, phases = f"{url}/api/v1/namespaces/default/pods", Phases()
    async with session_of(context) as session:
        async with session.get(f"{url}/api/v1/nodes") as answer:
            names = sorted(item["metadata"]["name"] for item in (await answer.json())["items"])

        async def create(index: int) -> None:
            name, node = f"p-{index:05d}", names[index % len(names)]
            pod = {
                "metadata": {"name": name},
                "spec": {"nodeName": node, **POD_SPEC},
                "status": {"phase": "Pending"},
            }
            async with session.post(path, json=pod) as response:
                assert response.status == 201, await response.text()

        watching = asyncio.create_task(follow(session, path, phases.see))
        await each(count, create)
        assert await until(lambda: phases.running == count) is not None, f"{phases.running} run"
        watching.cancel()


def inside(renew_s: int, idle_s: float, pods: int = 0) -> Json:
    """Measure the run that this process is the command of."""
    fleet = psutil.Process(os.getppid())
    kubeconfig = Path(os.environ[SINK])  # $KUBECONFIG asks through the run
    timeseries = Path(os.environ["FLEET_RUN_DIR"]) / "timeseries.jsonl"

    def used_s() -> float:
        return cpu_s(fleet_tree(fleet, command=os.getpid()))

    started_s = used_s()
    time.sleep(2.5 * renew_s)  # every node has renewed
    begun, before_s, sent = time.monotonic(), used_s(), renewals(kubeconfig)
    from_s = run_time_s(timeseries)
    time.sleep(idle_s)
    span_s = time.monotonic() - begun
    spent_s, sent = used_s() - before_s, renewals(kubeconfig) - sent
    idle_mb = rss_mb(fleet_tree(fleet, command=os.getpid()))
    figures: Json = {
        "start_cpu_s": started_s,
        "from_s": from_s,
        "to_s": run_time_s(timeseries),
        "renewals_s": round(sent / span_s),
        "idle_percent": round(100 * spent_s / span_s, 1),
        "renewal_us": round(1e6 * spent_s / sent, 1),
        "rss_mb": round(idle_mb, 1),
    }
    if pods:
        asyncio.run(bind_pods(kubeconfig, pods))
        full_mb = rss_mb(fleet_tree(fleet, command=os.getpid()))
        figures["pod_kb"] = round((full_mb - idle_mb) * 1e3 / pods, 2)
    return figures


if __name__ == "__main__":
    sys.exit(main())
