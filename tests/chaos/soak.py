"""`make soak`: an hour of churn, after which a process holds what it held before.

Nodes of fidelity kubelet with certificates of their own run while pods come and go; tokens,
certificates and watches live as short as a control plane lets them, and each ten minutes all
kubelets restart at once. Every two seconds the process writes down what it holds. After half of
the time for warming up, a line is fitted through each resource; it has to be flat: its slope an
hour is no more than two standard errors, or than --share of its mean. What is written to disk is
bounded. Writes samples, a table and plots to --out; exits with 1 if something grows.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.guard import guarded

from chaos.chaos import say
from chaos.observed_fleet import SAMPLES
from chaos.slope import Slope, slope
from chaos.stage import Fleet, Stage, staged
from fleet.controlplane.options import APISERVER, CONTROLLER_MANAGER
from fleet.quantity import parse_duration
from fleet.run.control_socket import ask

RESOURCES = ("rss_mb", "descriptors", "threads", "connections", "timers", "tasks", "files")
COLLECTED_MS_MAX = 50.0
DISK_MB_MAX = 24.0
"""Of the run's directory and log, which grow with the logarithm of the time."""
LATE_MS_MAX = 1000.0
STORM_EVERY_S = 600.0
STORM_S = 60.0
"""For so long after a storm renewals may be late."""
WARM = 0.5
"""Memory rises with the first three storms: of an hour, the first half."""
SHORT_LIVES = {
    APISERVER: ("min-request-timeout=60",),
    CONTROLLER_MANAGER: ("cluster-signing-duration=20m",),
}
TOKEN_S = 600
"""The shortest life that the API server grants."""
Sample = dict[str, float]


async def soak(options: argparse.Namespace) -> tuple[list[Sample], list[float], dict[str, Any]]:
    """Run it; return the samples, when storms began, and how late renewals were by second."""
    storms: list[float] = []
    async with staged(random.Random(options.seed), SHORT_LIVES) as stage:
        await stage.deploy(options.pods, token_s=TOKEN_S)
        samples = stage.root / "samples.jsonl"
        fleet = await stage.add_fleet(
            "soak",
            "kubelet",
            options.nodes,
            "--identity=csr",
            f"--bootstrap-token={await stage.bootstrap_token()}",
            script="observed_fleet.py",
            variables={SAMPLES: str(samples)},
        )
        await fleet.until_ready()
        say(f"{options.nodes} nodes are Ready; {options.duration:.0f} s begin")
        begin_s = time.time()
        churning = asyncio.create_task(stage.churn(options.churn))
        files: list[tuple[float, int, float]] = []
        counting = asyncio.create_task(count_files(stage, files))
        try:
            while (left_s := begin_s + options.duration - time.time()) > 0:
                await asyncio.sleep(min(STORM_EVERY_S, left_s))
                if left_s > STORM_EVERY_S:
                    storms.append(time.time())
                    fault = {"type": "KubeletRestart"}
                    say(f"storm: {await ask(fleet.directory, {'do': 'inject', 'fault': fault})}")
        finally:
            churning.cancel()
            counting.cancel()
        found = [json.loads(line) for line in samples.read_text().splitlines()]
        found = [each for each in found if begin_s <= each["at_s"] <= time.time()]
        code = await fleet.end()
        say(f"fleet exits with {code}; {stage.churned} pods were deleted")
        late = lateness(fleet, storms)
        for each in found:
            looks = (look for look in files if look[0] >= each["at_s"])
            _, each["files"], each["disk_mb"] = next(looks, files[-1])
        shown = {"pods": stage.churned, "code": code, "late": late}
        (options.out / "summary.json").write_text(fleet.printed)
        return found, storms, shown


async def count_files(stage: Stage, found: list[tuple[float, int, float]]) -> None:
    """Count files in the run's directory and temporary files of fleet, for ever."""
    while True:
        places = ((stage.root / "disk", "**/*"), (Path("/tmp"), "fleet-[!c]*"))
        count = sum(len(list(root.glob(what))) for root, what in places)
        written = (*(stage.root / "disk").glob("**/*"), *stage.root.glob("*.log"))
        found.append((time.time(), count, sum(each.lstat().st_size for each in written) / 1e6))
        await asyncio.sleep(5)


def lateness(fleet: Fleet, storms: Sequence[float]) -> list[float]:
    """Return how late the latest renewal of each second was, but for those around a storm."""
    found = []
    with contextlib.suppress(OSError):
        for line in (fleet.directory / "timeseries.jsonl").read_text().splitlines():
            row = json.loads(line)
            at_s = fleet.began_s + row["wall_s"]
            if not any(storm <= at_s <= storm + STORM_S for storm in storms):
                found.append(row["lease"]["late_ms"]["max"] or 0.0)
    return found


def judged(samples: Sequence[Sample], share: float) -> tuple[dict[str, Slope], list[str]]:
    """Return the slope of each resource, and what grows."""
    warm = samples[int(WARM * len(samples)) :]
    times = [each["at_s"] for each in warm]
    slopes = {name: slope(times, [each[name] for each in warm]) for name in RESOURCES}
    wrong = [f"{name} grows" for name, each in slopes.items() if not each.is_flat(share)]
    longest_ms = max((each["collected_ms"] for each in warm), default=0.0)
    if longest_ms > COLLECTED_MS_MAX:
        wrong.append(f"the garbage collector took {longest_ms:.0f} ms")
    if warm and warm[-1]["disk_mb"] > DISK_MB_MAX:
        wrong.append(f"the run directory and the log have {warm[-1]['disk_mb']:.1f} MB")
    return slopes, wrong


def table(slopes: dict[str, Slope]) -> str:
    lines = [f"{'resource':<14}{'mean':>12}{'an hour':>12}{'error':>12}"]
    for name, each in slopes.items():
        row = (each.mean, each.per_hour, each.error_per_hour)
        lines.append(f"{name:<14}" + "".join(f"{value:>12,.2f}" for value in row))
    return "\n".join(lines)


def plot(samples: Sequence[Sample], storms: Sequence[float], to: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - for a plot only

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    names = (*RESOURCES, "disk_mb", "collected_ms")
    figure, axes = plt.subplots(len(names), sharex=True, figsize=(9, 2 * len(names)))
    minutes = [(each["at_s"] - samples[0]["at_s"]) / 60 for each in samples]
    for axis, name in zip(axes, names, strict=True):
        axis.plot(minutes, [each[name] for each in samples], linewidth=0.8)
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
        for storm in storms:
            axis.axvline((storm - samples[0]["at_s"]) / 60, color="grey", linewidth=0.5)
    axes[-1].set_xlabel("minutes; grey: all kubelets restart")
    figure.tight_layout()
    figure.savefig(to)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=lambda text: parse_duration(text) / 1e9, default=3600.0)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--churn", type=float, default=5.0, help="pods deleted in a second")
    parser.add_argument("--share", type=float, default=0.02, help="growth an hour that is flat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with guarded(f"/soak/{time.time_ns()}"):
        samples, storms, shown = asyncio.run(soak(options))
    (options.out / "samples.json").write_text(json.dumps([samples, storms, shown]))
    slopes, wrong = judged(samples, options.share)
    plot(samples, storms, options.out / "soak.svg")
    if late := [each for each in shown["late"] if each > LATE_MS_MAX]:
        wrong.append(f"renewals were late in {len(late)} seconds, by up to {max(late):.0f} ms")
    print(f"{table(slopes)}\n{shown['pods']} pods deleted; {'; '.join(wrong) or 'all is flat'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
