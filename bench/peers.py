"""`make bench-peers`: KWOK, kubemark and fleet beside each other, as another client sees them.

Each run has a local control plane of its own, new each time; the tools take turns, and every second
round in the opposite order, since the speed of a machine changes within the hour. A tool begins
when it is started; KWOK's Nodes are created then, by many requests at a time. The other client is
one JSON watch of all Nodes, which resumes, and for pods what `inside.py` and `deployment.py` say;
at last the API server is gone for 45 s (`outage.py`). kubemark has a process for each hollow node,
so it has few nodes, and a column that compares with none. Prints medians and ranges; of a run that
was not sound there is the reason and no figure, and of a tool that ended late what it lacks.
`--table FILE...` prints those of runs that were.
"""

import argparse
import asyncio
import json
import re
import ssl
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

from .__main__ import machine
from .accounting import cpu_s
from .deployment import deployment
from .inside import SETTLE_S, Json, client, follow, pods, run_time_s, session_of, until
from .outage import Nodes, UnsoundError, outage
from .peer_plane import Plane, control_plane
from .peer_table import (
    DEPLOYMENT,
    ENDED,
    OUTAGE,
    OUTAGE_FROM,
    UNSOUND,
    DifferentReportsError,
    Rounds,
    is_sound,
    judged,
    read,
    settled,
    table,
    write,
)
from .peer_tools import (
    COLD,
    KUBEMARK,
    KWOK_TOOL,
    TOOLS,
    Programs,
    Running,
    commands_of,
    create_kwok_nodes,
    end_of,
    environment_of,
)

READY_WITHIN_S = 900.0
LOOK_S = 0.2
"""How often a tool is looked at that may end by itself."""
UNSOUND_RUNS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to each tool."""

    nodes: int
    pods: int  # bound to nodes at once
    replicas: int
    kubemark_nodes: int
    idle_s: float
    parts: tuple[str, ...]
    """Of those that can be left out."""

    def nodes_of(self, tool: str) -> int:
        """Return how many nodes a tool has."""
        return min(self.kubemark_nodes, self.nodes) if tool == KUBEMARK else self.nodes


def refused(metrics: str) -> int:
    """Return how many requests an API server has refused with 429, by its metrics."""
    found = re.findall(
        r'^apiserver_request_total\{[^}]*code="429"[^}]*\} (\S+)', metrics, re.MULTILINE
    )
    return int(sum(map(float, found)))


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one tool, which has been started."""

    plan: Plan
    plane: Plane
    running: Running
    count: int
    """Of its nodes."""
    context: ssl.SSLContext
    timeseries: Path
    """Of fleet's run."""

    async def bring_up(self, nodes: Nodes, began_s: float, before_s: float) -> Json:
        """Wait for all nodes; `before_s` is the CPU of the control plane at the start."""
        is_ready = await until(
            lambda: len(nodes.fine) == self.count or bool(self.running.how_ended()),
            READY_WITHIN_S,
        )
        if is_ready is None:
            raise UnsoundError(f"{len(nodes.fine)} of {self.count} nodes were Ready in time")
        self.assert_running()
        result = {
            "nodes": self.count,
            "ready_s": time.monotonic() - began_s,
            "tool_cpu_s": self.running.cpu_s(),
            "plane_cpu_s": self.plane.cpu_s() - before_s,
            "lost": len(nodes.lost),
        }
        url = f"{self.plane.info.url}/metrics"
        async with session_of(self.context) as session, session.get(url) as answer:
            return {**result, "refused": refused(await answer.text())}

    async def idle(self) -> Json:
        """Watch the tool do nothing but what it must."""
        await asyncio.sleep(SETTLE_S)
        apiserver = [self.plane.apiserver]
        began_s, used_s, served_s = time.monotonic(), self.running.cpu_s(), cpu_s(apiserver)
        await asyncio.sleep(self.plan.idle_s)
        span_s = time.monotonic() - began_s
        return {
            "idle_percent": 100 * (self.running.cpu_s() - used_s) / span_s,
            "idle_apiserver_percent": 100 * (cpu_s(apiserver) - served_s) / span_s,
            "rss_mb": self.running.rss_mb(),
        }

    async def parts(self) -> Json:
        """Do what a tool may end in, or not be fit for: the run lacks no more than that."""
        url, result = self.plane.info.url, Json()
        ended, unsound = dict[str, str](), dict[str, str]()
        for part in self.plan.parts:
            work = (
                deployment(url, self.context, min(self.plan.replicas, self.count))
                if part == DEPLOYMENT
                else outage(self.plane, self.context, self.count, self.running.cpu_s)
            )
            if part == OUTAGE and self.timeseries.exists():
                result[OUTAGE_FROM] = run_time_s(self.timeseries)
            how = self.running.how_ended()
            try:
                if how:
                    work.close()
                else:
                    how = await self._unless_ended(work, result)
            except UnsoundError as error:
                unsound[part] = str(error)
            if how:
                ended[part] = how
        lacking = {ENDED: ended, UNSOUND: unsound}
        return result | {word: reasons for word, reasons in lacking.items() if reasons}

    async def _unless_ended(self, work: Coroutine[None, None, Json], result: Json) -> str:
        """Add to the result what the work finds; say how the tool ended, if it did."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
                if how := self.running.how_ended():
                    return how
            if how := self.running.how_ended():
                return how
            result |= task.result()
            return ""
        finally:
            task.cancel()

    def assert_running(self) -> None:
        """Raise UnsoundError if the tool has ended."""
        if how := self.running.how_ended():
            raise UnsoundError(how)


async def measure(tool: str, programs: Programs, plan: Plan, scratch: Path) -> Json:
    """Run one tool on a control plane of its own; return its figures."""
    environment, count = environment_of(tool, scratch), plan.nodes_of(tool)
    summary, timeseries = (scratch / "run" / name for name in ("summary.json", "timeseries.jsonl"))
    try:
        with control_plane(scratch, environment) as plane:
            commands = commands_of(tool, programs, plane.info, count, scratch)
            url, context = client(plane.info.kubeconfig)
            nodes = Nodes()
            async with session_of(context) as session:
                watching = asyncio.create_task(follow(session, f"{url}/api/v1/nodes", nodes.see))
                before_s, began_s = plane.cpu_s(), time.monotonic()
                running = Running(commands, environment, scratch)
                trial = Trial(plan, plane, running, count, context, timeseries)
                try:
                    if tool == KWOK_TOOL:
                        await create_kwok_nodes(session, url, count)
                    result = await trial.bring_up(nodes, began_s, before_s)
                    result |= await trial.idle()
                    watching.cancel()
                    if plan.pods:
                        result |= await pods(url, context, min(plan.pods, count))
                    trial.assert_running()
                    result |= await trial.parts()
                finally:
                    watching.cancel()
                    running.end(end_of(tool))
    except UnsoundError as error:
        return {"nodes": count, "problem": str(error)}
    if not summary.exists():
        return result
    figures = json.loads(summary.read_bytes())
    samples = [json.loads(line) for line in timeseries.read_bytes().splitlines()]
    return judged(result | settled(figures, samples), figures["invalid_reasons"], samples)


def compare(plan: Plan, tools: list[str], rounds_max: int, out: Path) -> Json:
    """Let the tools take turns; return the report, written after each run."""
    programs = Programs.of(tools)
    rounds: Rounds = {tool: [] for tool in tools}
    report = {
        "machine": machine(),
        "nodes": plan.nodes,
        "replicas": plan.replicas,
        "idle_s": plan.idle_s,
        "rounds": rounds,
    }
    for number in range(rounds_max):
        for tool in tools if number % 2 == 0 else reversed(tools):
            with tempfile.TemporaryDirectory(prefix="fleet-peers-") as scratch:
                result = asyncio.run(measure(tool, programs, plan, Path(scratch)))
            rounds[tool].append(result)
            print(f"round {number + 1}, {tool}: {json.dumps(result)}", file=sys.stderr, flush=True)
            write(report, out)
    return report


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds")
    parser.add_argument(
        "--tool", action="append", choices=(*TOOLS, COLD), help=f"default: all but {COLD}"
    )
    parser.add_argument(
        "--pods", type=int, help="bound to nodes at once, 0 for none; default: as many as nodes"
    )
    parser.add_argument("--replicas", type=int, help="of the Deployment; default: as many as nodes")
    parser.add_argument("--kubemark-nodes", type=int, default=20, help="a process each")
    parser.add_argument("--no-deployment", action="store_true")
    parser.add_argument("--no-outage", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-peers.json"))
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print, run nothing")
    return parser.parse_args()


def main() -> int:
    """Run the rounds; the exit code tells whether all runs were sound."""
    options = parsed()
    if options.table:
        try:
            report = read(options.table)
        except DifferentReportsError as error:
            print(error, file=sys.stderr)
            return 2
        source = ", ".join(map(str, options.table))
    else:
        replicas = options.nodes if options.replicas is None else options.replicas
        parts = ((DEPLOYMENT, options.no_deployment), (OUTAGE, options.no_outage))
        plan = Plan(
            nodes=options.nodes,
            pods=options.nodes if options.pods is None else options.pods,
            replicas=min(replicas, options.nodes),
            kubemark_nodes=options.kubemark_nodes,
            idle_s=options.idle,
            parts=tuple(part for part, is_out in parts if not is_out),
        )
        report = compare(plan, options.tool or list(TOOLS), options.rounds, options.out)
        source = f"written to {options.out}"
    print(table(report["rounds"], report["nodes"]))
    print(f"\n{report['machine']}; {source}")
    return 0 if is_sound(report["rounds"]) else UNSOUND_RUNS


if __name__ == "__main__":
    sys.exit(main())
