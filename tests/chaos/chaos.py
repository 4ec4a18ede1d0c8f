"""`make chaos`: an hour of trouble in ten minutes, and nothing may be lost.

Two fleets of nodes run on a control plane of their own while pods come and go. Every 5 to 20 s one
fault of the table in trouble.py is drawn and begun. After each episode of some faults everything is
healed, and the invariants (invariants.py) must come true. At the end both fleets are ended: what
they counted is what the audit log has, their verdicts say what happened, and `fleet clean` leaves
nothing. The faults, their order and their lengths are those of the seed; `--seed` plays them again.
Each kind is drawn once before any is drawn again.

Several seeds run one after the other. After each, --out has its logs and figures, and tables.md the
tables (faults, and invariants by fault) of all seeds that are there. Exits with 1 if an invariant
did not hold.
"""

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import psutil
from e2e.e2e_world import FLEET
from support.guard import guarded

from chaos.admin import (
    CSI_NODES,
    DEPLOYMENTS,
    ERRORS,
    LEASES,
    NODES,
    PODS,
    Json,
    RefusedError,
    until,
)
from chaos.invariants import check, expected, some, tracebacks
from chaos.stage import RUNS, Fleet, Stage, staged
from chaos.story import Story, stories, tables
from chaos.trouble import KINDS, Blow, Deck, possible
from fleet.errors import FleetError
from fleet.k8s.times import rfc3339_micro

GAP_S = (5.0, 20.0)
EPISODE_S = 90.0
"""After so long what is wrong is healed, and looked at."""
RECOVERY_S_MAX = 300.0
FAILED_SHARE = 0.01
"""If more of a fleet's requests fail, it must not pass."""
LOST_MAX = 50
"""Answers of one kind that may have come from API servers that were killed and are in no log."""
ENDS_EARLY = (AssertionError, FleetError, psutil.Error, subprocess.SubprocessError, *ERRORS)
COUNTS, VERDICT, CLEAN = (
    "fleet counts what the audit log has",
    "the verdict says what happened",
    "fleet clean leaves nothing",
)


def say(words: str) -> None:
    print(f"{datetime.now(tz=UTC):%H:%M:%S} {words}", flush=True)


async def recovered(stage: Stage, story: Story, blow: Blow) -> None:
    """Measure how long after a fault every node has renewed its Lease again."""
    loop = asyncio.get_running_loop()
    begin_s, healed = loop.time(), rfc3339_micro(time.time_ns()).decode()
    while loop.time() - begin_s < RECOVERY_S_MAX:
        await asyncio.sleep(1)
        try:
            leases = await stage.leases()
        except ERRORS:
            continue
        if all(leases.get(name, "") > healed for name in expected(stage)):
            break
    story.recovery_s.setdefault(blow.kind, []).append(loop.time() - begin_s)


async def play(options: argparse.Namespace, seed: int) -> Story:
    """Play one seed; what ends it early is among what is wrong."""
    size = f"{options.full} + {options.lean} nodes, {options.pods} pods, {options.minutes:g} min"
    story = Story(seed, size)
    try:
        async with staged(random.Random(seed + 1)) as stage:
            try:
                await tell(stage, story, options)
            finally:
                story.churned, story.unasked = stage.churned, stage.unasked
                keep(stage, options.out / str(seed))
    except* ENDS_EARLY as group:
        story.wrong += [f"the story ended early: {error!r}" for error in group.exceptions]
    return story


async def tell(stage: Stage, story: Story, options: argparse.Namespace) -> None:
    await bring_up(stage, options)
    story.note({"start"}, await check(stage, options.limit), "before any fault")
    say(f"seed {story.seed}: {story.size}")
    await go_wrong(stage, story, options)
    story.note(set(story.counts), await ended(stage), "at the end")


async def bring_up(stage: Stage, options: argparse.Namespace) -> None:
    await stage.deploy(options.pods)
    fleets = [
        await stage.add_fleet("full", "kubelet", options.full),
        await stage.add_fleet("lean", "light", options.lean),
    ]
    await asyncio.gather(*(fleet.until_ready() for fleet in fleets))


async def go_wrong(stage: Stage, story: Story, options: argparse.Namespace) -> None:
    """Play episodes of faults until the time is over, with a calm after each."""
    draws = random.Random(story.seed)
    deck = Deck(draws, options.only or possible(stage))
    end_s = time.monotonic() + options.minutes * 60
    async with asyncio.TaskGroup() as watching:
        while time.monotonic() < end_s:
            churning = watching.create_task(stage.churn(options.churn))
            episode = set()
            calm_s = min(time.monotonic() + EPISODE_S, end_s)
            while time.monotonic() < calm_s:
                blow = deck.deal()
                fleet = stage.fleets[int(draws.random() * len(stage.fleets))]
                gap_s = draws.uniform(*GAP_S)
                await stage.revive_all()
                say(f"{blow.kind} for {blow.hold_s:.1f} s, {fleet.prefix}, {blow.share:.2f}")
                await strike(stage, fleet, blow)
                episode.add(blow.kind)
                story.counts[blow.kind] += 1
                watching.create_task(recovered(stage, story, blow))
                await asyncio.sleep(gap_s)
            churning.cancel()
            await stage.revive_all()
            found = await check(stage, options.limit)
            story.note(episode, found, f"{datetime.now(tz=UTC):%H:%M:%S}")
            say(f"calm: {[f'{name}: {wrong}' for name, wrong in found.items() if wrong] or 'well'}")


async def strike(stage: Stage, fleet: Fleet, blow: Blow) -> None:
    async with KINDS[blow.kind].player(stage, fleet, blow):
        await asyncio.sleep(blow.hold_s)


async def ended(stage: Stage) -> dict[str, str]:
    """End the fleets; return what is wrong with what they leave and say."""
    for name in stage.replicas:
        await stage.admin.change("DELETE", f"{DEPLOYMENTS}/{name}")
    await until_none(stage, PODS)
    codes = [await fleet.end() for fleet in stage.fleets]
    stage.audit.read()
    wrong: dict[str, list[str]] = {COUNTS: [], VERDICT: [], CLEAN: []}
    for fleet, code in zip(stage.fleets, codes, strict=True):
        try:
            summary = json.loads(fleet.printed)
        except json.JSONDecodeError:
            wrong[VERDICT].append(f"{fleet.prefix} exits with {code} and prints no summary")
            continue
        say(f"{fleet.prefix}: {summary['verdict']}: {summary['verdict_reasons']}")
        if not is_told(summary):
            wrong[VERDICT].append(f"{fleet.prefix} exits with {code}: {summary['verdict']}")
        wrong[VERDICT] += tracebacks(fleet)
        wrong[COUNTS] += miscounted(stage, fleet, summary)
    wrong[CLEAN] = await cleaned(stage)
    return {name: "; ".join(found) for name, found in wrong.items()}


def is_told(summary: Json) -> bool:
    """Return whether a verdict says what happened.

    A fleet that was killed and started again near the end may have seen nothing: it may pass.
    """
    if summary["verdict"] != "pass":
        return bool(summary["verdict_reasons"])
    counts: Counter[bool] = Counter()
    for row in summary["requests"]:
        counts[row["code"] in {0, 429} or row["code"] >= 500] += row["count"]
    return counts[True] <= FAILED_SHARE * counts.total()


def miscounted(stage: Stage, fleet: Fleet, summary: Json) -> list[str]:
    """Compare what a fleet counted since its process started with what the audit log has.

    A request whose answer was lost has code 0 with fleet, and its code in the log if it got there.
    Of a token that is refused (401) the API server does not know whose it is.
    """
    audited = stage.audit.of(fleet)
    audited.subtract(fleet.audited_before)
    counted = {
        (row["verb"], row["resource"], row["code"]): row["count"] for row in summary["requests"]
    }
    lost: Counter[tuple[str, str]] = Counter()
    for (verb, resource, code), count in counted.items():
        lost[verb, resource] += count if code == 0 else 0
    wrong = []
    for kind in sorted(counted.keys() | audited.keys()):
        verb, resource, code = kind
        ours, theirs = counted.get(kind, 0), audited[kind]
        if (
            code not in {0, 401}
            and not -LOST_MAX <= theirs - ours <= lost[verb, resource] + LOST_MAX
        ):
            wrong.append(
                f"{fleet.prefix} {verb} {resource} {code}: {ours} counted, {theirs} in log"
            )
    return wrong


async def until_none(stage: Stage, path: str) -> None:
    """Wait until there is no object of a kind."""

    async def is_none() -> bool:
        names = await stage.admin.names(path)
        if names:
            raise RefusedError(some(names))
        return True

    await until(is_none, f"no object at {path}", RECOVERY_S_MAX)


async def cleaned(stage: Stage) -> list[str]:
    """Run `fleet clean`; return what is left after it."""
    command = (*FLEET, "clean", "--all", "--yes", f"--kubeconfig={stage.plane.info.kubeconfig}")
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=stage.root, capture_output=True, text=True, check=False
    )
    left: list[str] = [] if done.returncode == 0 else [done.stdout + done.stderr]
    for path in (NODES, LEASES, CSI_NODES):
        try:
            await until_none(stage, path)  # some are the garbage collector's
        except TimeoutError as error:
            left.append(str(error))
    runs = await stage.admin.names(RUNS)
    return left[:5] + [f"run lease {name}" for name in runs if name.startswith("fleet-run")]


def keep(stage: Stage, directory: Path) -> None:
    """Keep the logs and summaries of the fleets."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in (*stage.root.glob("*.log"), *stage.root.glob("*.out")):
        shutil.copy(path, directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", action="append", type=int, help="once or more; else the day")
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults, for each seed")
    parser.add_argument("--full", type=int, default=300, help="nodes of fidelity kubelet")
    parser.add_argument("--lean", type=int, default=700, help="nodes of fidelity light")
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--churn", type=float, default=5.0, help="pods deleted in a second")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds until all is well")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="a kind of fault")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    options = parser.parse_args()
    played = []
    with guarded(f"/chaos/{time.time_ns()}"):
        for seed in options.seed or [int(f"{datetime.now(tz=UTC):%Y%m%d}")]:
            story = asyncio.run(play(options, seed))
            story.write(options.out / str(seed))
            (options.out / "tables.md").write_text(tables(stories(options.out)) + "\n")
            say("\n".join([f"seed {seed}: {'RED' if story.wrong else 'green'}", *story.wrong]))
            played.append(story)
    print((options.out / "tables.md").read_text())
    return int(any(story.wrong for story in played))


if __name__ == "__main__":
    sys.exit(main())
