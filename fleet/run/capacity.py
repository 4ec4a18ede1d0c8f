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
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from fleet.background import give_up
from fleet.cluster.api_client import RUN, Cluster
from fleet.cluster.cleanup import PATIENCE_S
from fleet.cluster.run_id import new_run_id
from fleet.cluster.runs import RunLease
from fleet.controlplane.binaries import BIN_VARIABLE
from fleet.controlplane.options import ComponentDeath
from fleet.controlplane.process import Component
from fleet.errors import Exit, FleetError, SetupError, UsageError
from fleet.host.siblings import END_S_MAX, INHERITED, refusal, without_options
from fleet.profile.loader import NodeMix, mix_of
from fleet.profile.option_types import margin
from fleet.profile.settings import Settings, flags_of, is_absent
from fleet.profile.yaml_text import read_document
from fleet.quantity import format_duration, parse_positive_duration
from fleet.report.capacity_report import IDLE, Probe, Search, write_capacity
from fleet.report.findings import of_unit, sentence
from fleet.report.printed import printed, table
from fleet.report.report import Outcome, own_limit_words
from fleet.report.run_directory import SUMMARY, RunRecord, read_run
from fleet.report.service_levels import load_objectives, share_of_limit
from fleet.report.summary_text import duration
from fleet.run.capacity_shards import ALONE, JUDGED, OVER, Part, SharedSearch, take_part
from fleet.run.control_socket import ask
from fleet.run.records import SHARDS
from fleet.run.target import named_cluster
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
HOLDS = frozenset({Outcome.PASS, Outcome.NOT_JUDGED})
"""Verdicts on a size after which a larger one is tried: nothing broke."""
IN_USE = "cluster-in-use"  # the shipped scenario of `--pods-per-node`
INTERRUPTED = "the search was interrupted"
LOOK_S = 0.5
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
    scenario: str = ""  # one that the search writes for its runs
    part: Part = ALONE
    settings: Settings = Settings()


class Workload(NamedTuple):
    """What each node has to do."""

    pods_per_node: int | None = None
    churn: float | None = None  # pods replaced per second and node; None: as in the scenario

    def check(self, scenario: str | None, mix: NodeMix) -> None:
        """Raise UsageError for pods that nodes have no room for, or that a scenario has."""
        if self.pods_per_node is None:
            if self.churn is not None:
                raise UsageError("--pod-churn goes with --pods-per-node")
            return
        if scenario is not None:
            raise UsageError("--pods-per-node excludes --scenario, which has pods of its own")
        room = min(model.pods_max for model in mix.models)
        if not 0 < self.pods_per_node < room:  # one more comes and goes
            raise UsageError(
                f"--pods-per-node: {self.pods_per_node} is not between 1 and {room - 1}, which "
                "nodes of the profile have room for"
            )
        if self.churn is not None and not 0 <= self.churn <= 1:
            raise UsageError(f"--pod-churn: {self.churn:g} is not between 0 and 1")

    def scenario(self, hold: str, ready_within: str, slo: Path | None) -> tuple[str, str]:
        """Return `cluster-in-use` with these figures, and what is on the nodes in words.

        Without pods it is a scenario that holds still.
        """
        made = cast("Json", read_document(find_scenario(IN_USE).read_text("utf-8")))
        spec = made["spec"]
        load, use = spec["phases"]
        [apply], [churn] = load["apply"], use["churn"]
        if slo is not None:
            load_objectives(slo)
            asked = cast("Json", read_document(slo.read_text("utf-8")))["spec"]
            spec |= {key: asked[key] for key in ("defaults", "expectations") if key in asked}
        if self.pods_per_node is None:
            spec["phases"] = [{"name": "hold", "duration": hold}]
            return yaml.safe_dump(made, sort_keys=False), IDLE
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
    part: Part = ALONE,
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
    if part.shards > 1 and not settings.names_cluster:
        raise UsageError("--shard: machines meet at an existing cluster; name it with --context")
    text, load, mix = "", IDLE, mix_of(settings)
    workload = workload or Workload()
    workload.check(scenario, mix)
    if scenario is not None:
        find_scenario(scenario)
        arguments, load = ["run", scenario], f"the scenario {scenario}"
    elif workload.pods_per_node is not None or part.shards > 1:
        options.pop("slo", None)  # the scenario has it
        text, load = workload.scenario(hold, ready_within, settings.slo)
        arguments = ["run"]
    else:
        arguments = ["spawn", f"--duration={hold}"]
    if settings.real_nodes and load == IDLE:
        raise UsageError("--real-nodes is about pods: add --scenario or --pods-per-node")
    kept = {f"FLEET_{key.upper()}": str(options.pop(key)) for key in INHERITED & options.keys()}
    return Asked(arguments + flags_of(options), kept, load, text, part, settings)


def environment_of(asked: Asked, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of each run: what was asked as an option is none of its variables."""
    kept = {name: environ[name] for name in (BIN_VARIABLE,) if name in environ}
    return without_options(environ) | kept | asked.variables


def prepare(asked: Asked, options: CapacityOptions) -> None:
    """Make the directory of the search, with the scenario of its runs. Raises UsageError."""
    try:
        options.directory.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"--run-dir: {options.directory} exists already") from error
    if asked.scenario:
        file = options.directory / f"{IN_USE}.yaml"
        file.write_text(asked.scenario, "utf-8")
        asked.arguments.insert(1, str(file))


async def search_with_others(asked: Asked, options: CapacityOptions, note: Note) -> Search | int:
    """Search as one of several machines; all but shard 0 return in how many sizes they took part.

    Raises FleetError.
    """
    settings, part = asked.settings, asked.part
    async with await Cluster.connect(named_cluster(settings)) as cluster:
        api, prefix = cluster.api("capacity", patience_s=PATIENCE_S), settings.name_prefix
        if part.shard:
            prepare(asked, options)
            run_of = partial(_run_of, asked, options, inside="")
            return await take_part(api, part, prefix, run_of, note)
        run_id = new_run_id(time.time_ns(), os.getpid())
        holder = f"{platform.node()}-{os.getpid()}"
        lease = RunLease(cluster.api(RUN), prefix, run_id, holder=holder)
        shared = SharedSearch(api, lease, part, settings, note)
        try:
            await lease.acquire()
            keeping = asyncio.ensure_future(lease.keep())
            try:
                return await search(asked, options, note, shared)
            finally:
                await shared.end(OVER)
                await give_up(keeping)
        finally:
            with contextlib.suppress(FleetError):  # it runs out, and the answer stands
                await lease.release()


async def search(
    asked: Asked, options: CapacityOptions, note: Note, shared: SharedSearch | None = None
) -> Search:
    """Look for the largest size that holds, and write `capacity.json`.

    `shared` is what other machines take part by. Raises UsageError or SetupError if a run does not
    come to a verdict.
    """
    prepare(asked, options)
    began_s = time.monotonic()
    sizes = options.sizes
    probes: list[Probe] = []
    problem = ""
    while (nodes := sizes.next()) and not problem:
        attempt = 1 + sum(each.nodes == nodes for each in probes)
        note(f"{nodes:,} nodes{f', try {attempt}' if attempt > 1 else ''} ...")
        try:
            probe = await _probe(nodes, attempt, asked, options, shared)
        except asyncio.CancelledError:  # Ctrl-C or SIGTERM
            if not probes:
                raise
            problem = INTERRUPTED
            break
        except FleetError as error:
            if not sizes.held:
                raise
            problem = str(error)  # such as a limit of open files, that smaller runs were within
            note(f"{nodes:,} nodes cannot be tried: {problem}")
            break
        probes.append(probe)
        note(f"{nodes:,} nodes: {probe.verdict.words}, {probe.words}")
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


def _run_of(
    asked: Asked, options: CapacityOptions, nodes: int, name: str, flags: Sequence[str], inside: str
) -> Component:
    """Return a run that writes `NAME.log`, and into the directory `NAME/INSIDE`."""
    command = (sys.executable, "-m", "fleet.cli", *asked.arguments, *flags)
    return Component(
        f"the run of {nodes} nodes",
        (*command, f"--run-dir={options.directory / name / inside}"),
        options.directory / f"{name}.log",
        environment=environment_of(asked, os.environ),
    )


async def _probe(
    nodes: int,
    attempt: int,
    asked: Asked,
    options: CapacityOptions,
    shared: SharedSearch | None,
) -> Probe:
    """Make the run of one size."""
    name, inside, flags = f"{nodes:06}-{attempt}", "", [f"--nodes={nodes}"]
    directory = options.directory / name
    if shared is not None:
        inside, flags = f"{SHARDS}/first", await shared.begin(nodes, attempt, directory)
    own = directory / inside
    run = _run_of(asked, options, nodes, name, flags, inside)
    await run.start()
    ended = asyncio.ensure_future(run.wait())
    try:
        is_late = await _is_late(ended, own, nodes, options.ready_within_ns / 1e9, shared)
        if is_late:
            run.signal(signal.SIGINT)
        death = await ended
    finally:
        await run.stop(END_S_MAX, politely=signal.SIGINT)
    code = death.returncode
    if code not in JUDGED or not (own / SUMMARY).exists():
        raise refusal(death) or SetupError(f"{run.name}: {run.output().strip()[-400:]}")
    if shared is not None:
        code = await shared.judge()
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
        exit_code=code,
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
    ended: "asyncio.Future[ComponentDeath]",
    directory: Path,
    nodes: int,
    limit_s: float,
    shared: SharedSearch | None = None,
) -> bool:
    """Wait until a run has ended or its nodes are Ready; return whether that took too long.

    The time that a local control plane takes to start does not count, nor that until other machines
    take part.
    """

    async def come_up() -> None:
        while await _ready(directory) is None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(LOOK_S)
        if shared is not None:
            await shared.joined()
        async with asyncio.timeout(limit_s):
            while (await _ready(directory) or 0) < nodes:  # noqa: ASYNC110 - another process
                await asyncio.sleep(LOOK_S)

    coming = asyncio.ensure_future(come_up())
    try:
        await asyncio.wait((ended, coming), return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            coming.result()
    except TimeoutError:
        return True
    finally:
        coming.cancel()
    return False


async def _ready(directory: Path) -> int | None:
    """Return how many nodes of a run are Ready, in all its processes; None if it does not say."""
    try:
        return int((await ask(directory, {"do": "ready"}))["ready"])
    except FleetError:  # it has not begun, or is busy
        return None


def nearest(run: RunRecord) -> tuple[str, float | None, str]:
    """Return which service level came nearest to its limit, how near, and that in words.

    It is one that was judged, if any was.
    """
    limited = [(share, each) for each in run.levels if (share := share_of_limit(each)) is not None]
    if not limited:
        return "", None, ""
    share, level = max(limited, key=lambda each: (each[1].judged, each[0]))
    used = f"{of_unit(level.sli, level.measured)} of {of_unit(level.sli, level.limit)}"
    is_said = level.judged or run.verdict is Outcome.NOT_JUDGED
    return level.sli, round(share, 3), f"{level.sli} {used}{'' if is_said else ' (not judged)'}"


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
    rows = [("NODES", "VERDICT", "ALL READY", "WHAT BROKE, OR CAME NEAREST TO ITS LIMIT")]
    for each in sorted(found.probes, key=lambda probe: probe.nodes):
        ready = f"{each.ready_s:,.1f} s" if each.ready_s is not None else "-"
        rows.append((f"{each.nodes:,}", each.verdict, ready, each.words))
    return "\n".join([*lines, "", *table(rows, indent="  "), "", str(directory / CAPACITY)])
