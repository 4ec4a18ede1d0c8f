"""`fleet capacity`: how many nodes a control plane can handle, by runs of growing size.

Each size is a run of its own, as `fleet spawn` or `fleet run` make it, in a process of its own: on
a local control plane that is new each time, or on the cluster that was named, cleaned up between.

The search is sans-IO:

  first, 2 x first ... --the most held--> over
                       --one breaks--> half-way to what held, until both are near
                       --it breaks as often as it must--> over
                       --it holds--> half-way to the next size that broke

What breaks is tried again only where it would decide the answer: a size that broke by chance has
all that is below it hold, and is the last one left. So a search has few runs more than sizes.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson
import yaml

from fleet.controlplane.binaries import BIN_VARIABLE
from fleet.controlplane.options import ComponentDeath
from fleet.controlplane.process import Component
from fleet.errors import Exit, FleetError, SetupError, UsageError
from fleet.host.siblings import END_S_MAX, INHERITED, SAYS, without_options
from fleet.profile.loader import mix_of
from fleet.profile.option_types import margin
from fleet.profile.settings import Settings, flags_of, is_absent
from fleet.profile.yaml_text import read_document
from fleet.quantity import format_duration, parse_positive_duration
from fleet.report.capacity_report import IDLE, Probe, Search, write_capacity
from fleet.report.findings import of_unit, sentence
from fleet.report.printed import printed, table
from fleet.report.report import Outcome, own_limit_words
from fleet.report.run_directory import SUMMARY, TIMESERIES, RunRecord, read_run
from fleet.report.service_levels import share_of_limit
from fleet.report.summary_text import duration
from fleet.scenario.scenario import find as find_scenario


class CapacitySearch:
    """Which size to try next; see the top of this file.

    `precision` is the share of the largest size that held by which the smallest that broke may be
    above it: 0.1 is 10 %. That one has broken in each of `tries` runs.
    """

    def __init__(self, first: int, most: int, precision: float, tries: int) -> None:
        self._first = min(first, most)
        self._most = most
        self._precision = precision
        self._tries = tries
        self._breaks: dict[int, int] = {}  # by size, of those above what held
        self.held = 0
        """The largest size that held, 0 for none."""

    @property
    def broke(self) -> int:
        """The smallest size that broke, 0 for none."""
        return min(self._breaks, default=0)

    def next(self) -> int:
        """Return how many nodes to try, 0 if the search is over."""
        broke = self.broke
        if not broke:
            return 0 if self.held == self._most else min(self.held * 2 or self._first, self._most)
        gap = broke - self.held
        if gap <= max(1, self.held * self._precision):
            return broke if self._breaks[broke] < self._tries else 0
        return self._round(self.held + gap // 2)

    def note(self, nodes: int, *, held: bool) -> None:
        """Take how the run of a size ended."""
        if held:
            self.held = nodes
            self._breaks = {size: count for size, count in self._breaks.items() if size > nodes}
        else:
            self._breaks[nodes] = self._breaks.get(nodes, 0) + 1

    def _round(self, nodes: int) -> int:
        """Return a size that people can read, if there is one in the gap."""
        step = 10 ** max(0, len(str(nodes)) - 2)
        rounded = nodes // step * step
        return rounded if self.held < rounded < self.broke else nodes


CAPACITY = "capacity.json"
_JUDGED = (Exit.OK, Exit.EXPECTATION_FAILED, Exit.INVALID)
"""What a run ends with that came to a verdict."""
HOLDS = frozenset({Outcome.PASS, Outcome.NOT_JUDGED})
"""Verdicts on a size after which a larger one is tried: nothing broke."""
IN_USE = "cluster-in-use"  # the shipped scenario of `--pods-per-node`
INTERRUPTED = "the search was interrupted"
FIRST = 100  # the first size, unless --max-nodes is less

Note = Callable[[str], None]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """What is searched, and how."""

    sizes: CapacitySearch
    ready_within_ns: int
    directory: Path


class Asked(NamedTuple):
    """The options of each run."""

    arguments: list[str]
    """They begin with `spawn` or `run`; the number of nodes and the run directory are added."""
    variables: dict[str, str]  # what is nobody's to read in a list of processes
    load: str = IDLE  # what the nodes do, in words
    scenario: str = ""  # the scenario of `--pods-per-node`, which the search writes for its runs


class Workload(NamedTuple):
    """What each node has to do."""

    pods_per_node: int | None = None
    churn: float | None = None  # pods replaced per second and node; None: as in the scenario

    def scenario(self, hold: str, ready_within: str) -> tuple[str, str]:
        """Return `cluster-in-use` with these figures, and what is on the nodes in words."""
        made = read_document(find_scenario(IN_USE).read_text("utf-8"))
        load, use = cast("Json", made)["spec"]["phases"]
        [apply], [churn] = load["apply"], use["churn"]
        apply["podsPerNode"] = apply["manifest"]["spec"]["replicas"] = self.pods_per_node
        load["until"]["timeout"], use["duration"] = ready_within, hold
        rate = churn["ratePerNode"] = churn["ratePerNode"] if self.churn is None else self.churn
        use["churn"] = [churn] if rate else []
        pods = f"{self.pods_per_node} pods on each node through the scheduler"
        text = yaml.safe_dump(made, sort_keys=False)
        return text, f"{pods}, {rate:g} of them replaced each second"


def options_of(
    first: int | None,
    most: int,
    precision: str,
    tries: int,
    ready_within: str,
    directory: Path | None,
) -> CapacityOptions:
    """Check the options of the search. Raises UsageError."""
    if first is None:
        first = min(FIRST, most)
    for flag, value in (("--max-nodes", most), ("--first", first), ("--tries", tries)):
        if value < 1:
            raise UsageError(f"{flag}: {value} is below 1")
    if first > most:
        raise UsageError(f"--first: {first} is over the {most} of --max-nodes")
    share = margin("--precision", precision)
    try:
        ready_within_ns = parse_positive_duration(ready_within)
    except ValueError as error:
        raise UsageError(f"--ready-within: {error}") from error
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return CapacityOptions(
        sizes=CapacitySearch(first, most, share, tries),
        ready_within_ns=ready_within_ns,
        directory=directory or Path("runs") / f"capacity-{stamp}",
    )


def asked_of(
    scenario: str | None,
    hold: str,
    most: int,
    given: Mapping[str, object],
    workload: Workload | None = None,
    ready_within: str = "10m",
) -> Asked:
    """Return the options of each run but its size. Raises UsageError for what is not one."""
    options = {key: value for key, value in given.items() if not is_absent(value)}
    try:
        hold_ns = parse_positive_duration(hold)
    except ValueError as error:
        raise UsageError(f"--hold: {error}") from error
    if not hold_ns:
        raise UsageError("--hold: 0s leaves no time")
    settings = Settings.from_options(nodes=most, duration=hold, **options)
    if settings.names_cluster and not settings.confirm_cluster:
        raise UsageError("fleet capacity does not prompt; add --confirm-cluster CONTEXT")
    text, load, mix = "", IDLE, mix_of(settings)
    workload = workload or Workload()
    if workload.pods_per_node is not None:
        if scenario is not None:
            raise UsageError("--pods-per-node excludes --scenario, which has pods of its own")
        room = min(model.pods_max for model in mix.models)
        if not 0 < workload.pods_per_node < room:  # one more comes and goes
            raise UsageError(
                f"--pods-per-node: {workload.pods_per_node} is not between 1 and {room - 1}, which "
                "nodes of the profile have room for"
            )
        if workload.churn is not None and not 0 <= workload.churn <= 1:
            raise UsageError(f"--pod-churn: {workload.churn:g} is not between 0 and 1")
        text, load = workload.scenario(hold, ready_within)
        arguments = ["run"]
    elif workload.churn is not None:
        raise UsageError("--pod-churn goes with --pods-per-node")
    elif scenario is not None:
        find_scenario(scenario)
        arguments, load = ["run", scenario], f"the scenario {scenario}"
    elif settings.real_nodes:
        raise UsageError("--real-nodes is about pods: add --scenario or --pods-per-node")
    else:
        arguments = ["spawn", f"--duration={hold}"]
    kept = {f"FLEET_{key.upper()}": str(options.pop(key)) for key in INHERITED & options.keys()}
    return Asked(arguments + flags_of(options), kept, load, text)


def environment_of(asked: Asked, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of each run: what was asked as an option is none of its variables."""
    kept = {name: environ[name] for name in (BIN_VARIABLE,) if name in environ}
    return without_options(environ) | kept | asked.variables


async def search(asked: Asked, options: CapacityOptions, note: Note) -> Search:
    """Look for the largest size that holds, and write `capacity.json`.

    Raises UsageError or SetupError if a run does not come to a verdict.
    """
    try:
        options.directory.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"--run-dir: {options.directory} exists already") from error
    if asked.scenario:
        file = options.directory / f"{IN_USE}.yaml"
        file.write_text(asked.scenario, "utf-8")
        asked.arguments.insert(1, str(file))
    began_s = time.monotonic()
    sizes = options.sizes
    probes: list[Probe] = []
    problem = ""
    while (nodes := sizes.next()) and not problem:
        attempt = 1 + sum(each.nodes == nodes for each in probes)
        note(f"{nodes:,} nodes{f', try {attempt}' if attempt > 1 else ''} ...")
        try:
            probe = await _probe(nodes, attempt, asked, options)
        except asyncio.CancelledError:  # Ctrl-C or SIGTERM
            if not probes:
                raise
            problem = INTERRUPTED
            break
        except SetupError as error:
            if not sizes.held:
                raise
            problem = str(error)  # such as a limit of open files, that smaller runs were within
            note(f"{nodes:,} nodes cannot be tried: {problem}")
            break
        probes.append(probe)
        note(f"{nodes:,} nodes: {probe.verdict.words}, {probe.shown or probe.told}")
        if problem := probe.ended:
            note(f"the search ends: {problem}")
        else:
            sizes.note(nodes, held=probe.verdict in HOLDS)
    verdict, code = answer_of(probes, sizes.held)
    if problem == INTERRUPTED:
        verdict, code = Outcome.INCOMPLETE, Exit.INTERRUPTED
    found = Search(
        verdict=verdict,
        exit_code=code,
        held=sizes.held,
        broke=sizes.broke or None,
        what_broke=next((each.told for each in probes if each.nodes == sizes.broke), ""),
        problem=problem,
        took_s=round(time.monotonic() - began_s, 1),
        command=asked.arguments,
        load=asked.load,
        probes=probes,
    )
    (options.directory / CAPACITY).write_text(printed("json", found))
    if "--no-report" not in asked.arguments:
        try:
            note(f"report: {write_capacity(found, options.directory)}")
        except FleetError as error:  # it spoils no search
            note(f"no report: {error}")
    return found


async def _probe(nodes: int, attempt: int, asked: Asked, options: CapacityOptions) -> Probe:
    """Make the run of one size."""
    directory = options.directory / f"{nodes:06}-{attempt}"
    command = (sys.executable, "-m", "fleet.cli", *asked.arguments, f"--nodes={nodes}")
    run = Component(
        f"the run of {nodes} nodes",
        (*command, f"--run-dir={directory}"),
        options.directory / f"{directory.name}.log",
        environment=environment_of(asked, os.environ),
    )
    await run.start()
    ended = asyncio.ensure_future(run.wait())
    try:
        is_late = await _is_late(ended, directory, nodes, options.ready_within_ns / 1e9)
        if is_late:
            run.signal(signal.SIGINT)
        death = await ended
    finally:
        await run.stop(END_S_MAX, politely=signal.SIGINT)
    if death.returncode not in _JUDGED or not (directory / SUMMARY).exists():
        lines = [line for line in death.last_lines if line.startswith(SAYS)] or ["", run.output()]
        kind = UsageError if death.returncode == Exit.USAGE else SetupError
        raise kind(f"{run.name}: {lines[-1].removeprefix(SAYS).strip()[-400:]}")
    record = read_run(directory)
    verdict, told = judged(record, nodes, options.ready_within_ns if is_late else None)
    name, share, shown = nearest(record) if not is_late else ("", None, "")
    return Probe(
        nodes=nodes,
        attempt=attempt,
        verdict=verdict,
        told=told,
        ready_s=record.number("nodes.time_to_ready_s"),
        nearest=name,
        share=share,
        shown=shown,
        directory=str(directory),
        exit_code=death.returncode,
        ended=ended_by(record),
    )


def ended_by(run: RunRecord) -> str:
    """Return why no other size can be tried after a run, "" if one can."""
    limits = run.get("own_limits")
    if isinstance(limits, dict) and limits:
        return f"fleet hit its own limits: {own_limit_words(limits)}"
    return str(run.get("stop_reason") or "")


def answer_of(probes: Sequence[Probe], held: int) -> tuple[Outcome, Exit]:
    """Return the verdict on the answer of a search: that on the largest size that held.

    A search that `--stop-if` ended has no answer, whatever held before.
    """
    last = probes[-1]
    if last.ended and (last.verdict is Outcome.INCOMPLETE or not held):
        return last.verdict, Exit.INVALID
    for each in reversed(probes):
        if each.nodes == held and each.verdict in HOLDS:
            return each.verdict, Exit(each.exit_code)
    return Outcome.FAIL, Exit.EXPECTATION_FAILED


def judged(run: RunRecord, nodes: int, late_ns: int | None) -> tuple[Outcome, str]:
    """Return the verdict on a size and its sentence.

    A run that is ended before it has held has broken nothing yet, and passes; its size did not
    hold. `late_ns` is by when all nodes were to be Ready, None if they were.
    """
    ready = run.number("nodes.time_to_ready_s")
    if late_ns is None and (ready is not None or run.verdict not in HOLDS):
        return run.verdict, sentence(run)
    within = f" within {format_duration(late_ns)}" if late_ns is not None else ""
    verdict = Outcome.FAIL if run.verdict in HOLDS else run.verdict
    return verdict, f"Not all {nodes:,} nodes were Ready{within}."


async def _is_late(
    ended: "asyncio.Future[ComponentDeath]", directory: Path, nodes: int, limit_s: float
) -> bool:
    """Wait until a run has ended or its nodes are Ready; return whether that took too long.

    The time that a local control plane takes to start does not count.
    """
    for step, most_s in ((_has_begun(directory), None), (_all_ready(directory, nodes), limit_s)):
        waits = asyncio.ensure_future(step)
        await asyncio.wait((ended, waits), timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        is_late = not ended.done() and not waits.done()
        waits.cancel()
    return is_late


async def _has_begun(directory: Path) -> None:
    """Wait for the first line of a run's time series; the file itself is there before."""
    path = directory / TIMESERIES
    while not path.exists() or not path.stat().st_size:  # noqa: ASYNC110 - another process writes
        await asyncio.sleep(0.1)


async def _all_ready(directory: Path, nodes: int) -> None:
    """Wait until the time series of a run, one a process, have seen all of its nodes Ready."""
    while _ready(directory) < nodes:  # noqa: ASYNC110 - other processes write
        await asyncio.sleep(0.5)


def _ready(directory: Path) -> int:
    """Return how many nodes of all processes were Ready last."""
    others = sorted(directory.glob(f"process-*/*/{TIMESERIES}"))
    present = {each.parent.parent: each for each in others}  # of one that was started again
    return sum(map(_last_ready, (directory / TIMESERIES, *present.values())))


def _last_ready(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        lines = file.read().splitlines()
    for line in reversed(lines):  # the last may be half written
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):
            return int(orjson.loads(line)["nodes"]["ready"])
    return 0


def nearest(run: RunRecord) -> tuple[str, float | None, str]:
    """Return which service level came nearest to its limit, how near, and that in words."""
    found: tuple[str, float | None, str] = ("", None, "")
    for level in run.levels:
        share, name = share_of_limit(level), level.sli
        if share is not None and (found[1] is None or share > found[1]):
            told = f"{of_unit(name, level.measured)} of {of_unit(name, level.limit)}"
            found = name, round(share, 3), f"{name} {told}"
    return found


def text(found: Search, directory: Path) -> str:
    """Return the answer for people."""
    held = f"{found.held:,} nodes held" if found.held else "no size held"
    judged = f"{found.verdict.words}: " if found.unjudged else ""
    lines = [
        f"fleet capacity: {judged}{held}, {found.end} ({duration(found.took_s)})",
        f"  on the nodes: {found.load}",
    ]
    told = filter(None, (found.unjudged, found.problem, found.what_broke))
    lines += [f"  {each}" for each in told]
    rows = [("NODES", "VERDICT", "ALL READY", "NEAREST TO ITS LIMIT")]
    for each in sorted(found.probes, key=lambda probe: probe.nodes):
        ready = f"{each.ready_s:,.1f} s" if each.ready_s is not None else "-"
        rows.append((f"{each.nodes:,}", each.verdict, ready, each.shown or each.told))
    return "\n".join([*lines, "", *table(rows, indent="  "), "", str(directory / CAPACITY)])
