"""What a node costs, from what `make bench-ceiling` measured at several sizes.

    python -m bench.slopes runs/ceiling-light.json runs/ceiling-kubelet.json [--plot FILE]

Draws the figures over the size, fits a line through each, and prints what the lines say of a fleet
that no machine here can hold. A cost for each node that grew with the fleet would bend the plot.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fleet.host.transports import LIGHT_CONNECTIONS

PORTS = 28_232
"""What net.ipv4.ip_local_port_range spares by default, of one source address to one server."""
BUSY_PERCENT = 50
"""Of a core, when idle: so much of a process may be spoken for before its work begins."""
FIGURES = (
    ("rss_mb", "memory, MB"),
    ("idle_percent", "CPU when idle, % of a core"),
    ("start_s", "CPU to bring them up, s"),
)
COLOURS = {"light": "#0072b2", "kubelet": "#d55e00"}
Json = dict[str, Any]


class Line(NamedTuple):
    """A least-squares line."""

    base: float
    slope: float

    def at(self, size: float) -> float:
        """Return what it says of a size."""
        return self.base + self.slope * size


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Fit a line through at least two points."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return Line(mean_y - slope * mean_x, slope)


def points_of(report: Json, key: str) -> list[tuple[float, float]]:
    """Return a figure at each size that was measured."""
    found = []
    for size, each in report["results"].items():
        nodes = int(size)
        value = each["start_cpu_ms"] * nodes / 1e3 if key == "start_s" else each[key]
        found.append((float(nodes), float(value)))
    return sorted(found)


def table(reports: Sequence[Json], nodes: int) -> str:
    """Return in Markdown what a fleet of so many nodes would take."""
    rows: dict[str, list[str]] = {}
    for report in reports:
        lines = {key: line(points_of(report, key)) for key, _ in FIGURES}
        idle, memory = lines["idle_percent"], lines["rss_mb"]
        each_percent = idle.slope * nodes
        processes = max(1, math.ceil(each_percent / (BUSY_PERCENT - idle.base)))
        connections = nodes if report["fidelity"] == "kubelet" else LIGHT_CONNECTIONS * processes
        told = {
            f"processes, each with {BUSY_PERCENT} % of a core when idle": f"{processes:,}",
            "CPU of all, idle": f"{(each_percent + idle.base * processes) / 100:.1f} cores",
            "CPU to bring them up": f"{lines['start_s'].slope * nodes:,.0f} s",
            "memory of all": f"{(memory.slope * nodes + memory.base * processes) / 1e3:.1f} GB",
            "memory of it, a node": f"{memory.slope * 1e3:.1f} KB",
            "connections": f"{connections:,}",
            "source addresses for them": f"{math.ceil(connections / PORTS):,}",
            "renewals": f"{nodes / (1.02 * report['renew_s']):,.0f} /s",
        }
        for what, value in told.items():
            rows.setdefault(what, []).append(value)
    heads = (f"`{report['fidelity']}`" for report in reports)
    head = f"| {nodes:,} nodes | {' | '.join(heads)} |\n|---" + "|---" * len(reports) + "|\n"
    return head + "\n".join(f"| {what} | {' | '.join(each)} |" for what, each in rows.items())


def plot(reports: Sequence[Json], to: Path) -> None:
    """Draw each figure over the number of nodes, and the lines."""
    import matplotlib as mpl  # noqa: PLC0415 - for a plot only

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "fleet"
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, len(FIGURES), figsize=(12, 3.6), layout="constrained")
    for (key, what), axis in zip(FIGURES, axes, strict=True):
        for report in reports:
            points = points_of(report, key)
            xs, ys = [x for x, _ in points], [y for _, y in points]
            fitted, colour = line(points), COLOURS[report["fidelity"]]
            axis.plot(xs, ys, "o", color=colour, label=report["fidelity"])
            axis.plot([0, xs[-1]], [fitted.base, fitted.at(xs[-1])], color=colour, linewidth=1)
        axis.set_title(what, loc="left", fontsize=11)
        axis.set_xlabel("nodes")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, metadata={"Date": None} if to.suffix == ".svg" else None, dpi=110)


def main() -> int:
    """Print the table, and draw."""
    parser = argparse.ArgumentParser(prog="bench.slopes", description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in options.reports]
    print(table(reports, options.nodes))
    if options.plot is not None:
        plot(reports, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
