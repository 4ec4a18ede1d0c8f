"""`make bench-gate`: what a renewal, a node, a pod and a start cost, against the last release.

Runs this tree and the base in turns at the sink of bench.ceiling, so that both see the same
machine, and compares the best run of each: CPU of a renewal, memory of a node and of a pod, time
until all nodes are Ready. The base is the newest tag; without one, the commit in bench/gate-base.
Exits with 1 if a figure is more than 10 % worse, and with 3 if there is no base.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from .__main__ import ROOT, machine
from .ceiling import Json, Plan, measure

WORSE_MAX = 1.1
FEW = 50
"""Nodes of the small run: what a node costs is what those beyond it cost."""
ROWS = (
    ("renewal_us", "CPU of a renewal", "us"),
    ("node_kb", "memory of a node", "KB"),
    ("pod_kb", "memory of a pod", "KB"),
    ("ready_s", "all Ready after", "s"),
)
NO_BASE = 3


def main() -> int:
    """Measure both trees in turns, and print the table."""
    parser = argparse.ArgumentParser(prog="bench.gate", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base", default=base(), help="what to compare with (default: see above)")
    parser.add_argument("--out", type=Path, default=Path("runs/gate.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-gate-") as scratch:
        if not unpacked(options.base, Path(scratch)):
            print(f"no base: this clone has no commit {options.base!r}", file=sys.stderr)
            return NO_BASE
        rounds: list[tuple[Json, Json]] = []
        for number in range(options.rounds):
            # Who goes first changes: a machine that warms up or slows down favours one place.
            trees = (Path(scratch), ROOT) if number % 2 else (ROOT, Path(scratch))
            found = {tree: figures(tree, options.nodes) for tree in trees}
            rounds.append((found[Path(scratch)], found[ROOT]))
            print(f"round {number + 1}: base {rounds[-1][0]}, now {rounds[-1][1]}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine(), "rounds": rounds}, indent=2) + "\n")
    lines, worse = judged(rounds)
    print("\n".join(lines))
    print(f"\nbase {options.base}; {machine()}; written to {options.out}")
    return int(bool(worse))


def base() -> str:
    """Return the newest tag, else the commit that bench/gate-base names."""
    command = ("git", "describe", "--tags", "--abbrev=0")
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or (ROOT / "bench" / "gate-base").read_text().strip()


def unpacked(commit: str, target: Path) -> bool:
    """Write the tree of a commit; return whether there is one."""
    packed = target / "base.tar"
    command = ("git", "archive", f"--output={packed}", commit)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        return False
    with tarfile.open(packed) as archive:
        archive.extractall(target, filter="data")
    return True


def figures(tree: Path, nodes: int) -> Json:
    """Return what a tree costs at the sink."""
    few = measure(FEW, Plan("kubelet", idle_s=5), tree)
    many = measure(nodes, Plan("kubelet", pods=nodes), tree)
    return {
        "renewal_us": many["renewal_us"],
        "node_kb": round((many["rss_mb"] - few["rss_mb"]) * 1e3 / (nodes - FEW), 2),
        "pod_kb": many["pod_kb"],
        "ready_s": many["ready_s"],
    }


def judged(rounds: list[tuple[Json, Json]]) -> tuple[list[str], list[str]]:
    """Return the table as Markdown, and which figures are worse.

    Noise only adds to a cost, so that the least of each tree is nearest to the truth.
    """
    lines = ["| | base | now | ratio | |", "|---|---|---|---|---|"]
    worse: list[str] = []
    for key, what, unit in ROWS:
        before, now = (min(each[at][key] for each in rounds) for at in (0, 1))
        ratio = now / before
        if ratio > WORSE_MAX:
            worse.append(key)
        verdict = "WORSE" if ratio > WORSE_MAX else "ok"
        lines.append(f"| {what} | {before:,} {unit} | {now:,} {unit} | {ratio:.2f} | {verdict} |")
    return lines, worse


if __name__ == "__main__":
    sys.exit(main())
