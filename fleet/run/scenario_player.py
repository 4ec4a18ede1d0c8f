"""Plays a scenario on a fleet that is Ready: its phases one after the other, their faults in time.

A condition that does not come within its time-out is an expectation that was not met, and the next
phase begins. What is still on at the end of its phase is healed, unless it has a duration.

Over several shards the first one plays it, and the others follow; see `lead.py`. Started again, it
goes on in the phase that it was in: what has begun is not begun again, and what is overdue comes at
once.

`settings_of` joins the options of `fleet run FILE` with those that the file stands for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fleet import KUBERNETES_VERSION
from fleet.background import give_up
from fleet.cluster.leftovers import left_words
from fleet.controlplane.binaries import built_release
from fleet.errors import SetupError, UsageError
from fleet.profile.loader import mix_of
from fleet.profile.settings import Settings
from fleet.quantity import format_duration
from fleet.report.display import clock
from fleet.report.printed import printed
from fleet.report.report import Expectation, Phase
from fleet.report.service_levels import Objective, objectives_of
from fleet.run.applied import Applied, Created
from fleet.run.cli_options import ENDS_BY_ITSELF
from fleet.run.fault_control import FaultControl
from fleet.run.lead import Leader
from fleet.run.target import find_standing
from fleet.scenario import scenario
from fleet.scenario.placement import Placement, has_path
from fleet.scenario.preview import demand, forecast, rate_words, time_line

POLL_S = 0.2
PODS_POLL_S = 1.0  # the API server is asked
AT_ONCE_MAX = 32  # requests about objects: as many as fleet has connections for


class Stage(NamedTuple):
    """What a scenario is played on."""

    faults: FaultControl
    elapsed_s: Callable[[], float]
    ready: Callable[[], int]  # nodes of the whole run that others see Ready now
    nodes: int  # of the whole run
    note: Callable[[str], None]
    phase: Callable[[str], None]  # shown on the terminal as what the run does
    applied: Applied
    steady: Callable[[], Awaitable[None]]  # what prepares the run is over
    lead: Leader | None = None  # of a run that has several shards


@dataclass(eq=False)
class ScenarioPlayer:
    """One scenario of a run; see the top of this file. Raises UsageError for a bad manifest."""

    _scenario: scenario.Scenario
    _origin: Path
    _: KW_ONLY
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    phases: list[Phase] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)
    """What was waited for, and whether it came."""
    _is_over: bool = False
    _waits_for: str = ""  # what it is, and how far it has come

    def __post_init__(self) -> None:
        self._manifests = {
            id(each): each.manifests(self._origin)
            for phase in self._scenario.spec.phases
            for each in (*phase.apply, *phase.churn)
        }

    def place(self, placement: Placement) -> None:
        """Keep the pods of all objects on some nodes.

        Raises UsageError for an object of which fleet cannot say where its pods would run.
        """
        for number, phase in enumerate(self._scenario.spec.phases):
            for each in (*phase.apply, *phase.churn):
                manifests, paths = self._manifests[id(each)], each.pod_templates
                where = f"{self._origin}: spec.phases[{number}]"
                for path in paths:
                    if not any(has_path(manifest, path) for manifest in manifests):
                        raise UsageError(f"{where}: podTemplates: no object has {path}")
                try:
                    placed = [placement.placed(manifest, paths) for manifest in manifests]
                except UsageError as error:
                    raise UsageError(f"{where}: {error}") from error
                self._manifests[id(each)] = placed

    def demand(self, nodes: int) -> list[str]:
        """Return a line for each object that it creates: how many, with how many pods, of what."""
        return demand(self._scenario, self._origin, nodes)

    def objectives(self) -> tuple[Objective, ...]:
        """Return the service levels that the file asks for."""
        spec = self._scenario.spec
        return objectives_of(spec.expectations, str(self._origin), with_defaults=spec.defaults)

    @property
    def prepares(self) -> bool:
        """Return whether its first phases belong to the bring-up."""
        return self._scenario.spec.prepared > 0

    def progress(self, now_s: float) -> str:
        """Return which phase is played, how long it has been, and what it waits for."""
        number = len(self.phases)
        if not number or self.phases[-1].until_s is not None:
            return ""
        phase, for_s = self._scenario.spec.phases[number - 1], now_s - self.phases[-1].from_s
        words = f"phase {number} of {len(self._scenario.spec.phases)}, {phase.name}"
        if self._waits_for:
            return f"{words}: {self._waits_for}"
        left_s = phase.duration_ns / 1e9 - for_s
        return f"{words}: {clock(left_s)} left" if left_s > 0 else f"{words}: {clock(for_s)}"

    def unplayed(self) -> str:
        """Return what has not been played of it, "" if it is over."""
        done = len(self.phases) - (not self._is_over and bool(self.phases))
        left = [each.name for each in self._scenario.spec.phases[done:]]
        if self._is_over or not left:
            return ""
        return f"the scenario did not come to its end: {', '.join(left)}"

    async def play(self, stage: Stage) -> None:
        """Play it to its end.

        Raises UsageError if a fault cannot be: it hits no node; or if an object is refused.
        """
        first, prepared = await self._go_on(stage), self._scenario.spec.prepared
        for number, phase in enumerate(self._scenario.spec.phases):
            if number < first:
                continue
            if prepared and number == max(prepared, first):
                await stage.steady()
            await self._play(number, phase, stage)
        self._is_over = True

    async def _go_on(self, stage: Stage) -> int:
        """Take over what an earlier start of this shard has played; return the phase it was in."""
        if stage.lead is None or not stage.lead.plan.phases:
            return 0
        plan, origin_s = stage.lead.plan, stage.lead.now_s() - stage.elapsed_s()
        self.phases = [_shifted(each, -origin_s) for each in plan.phases]
        self.expectations = [*plan.waited]
        first = len(self.phases) - 1
        stage.note(f"going on with phase {plan.phases[-1].name}, as an earlier process left it")
        phases = self._scenario.spec.phases[: first + 1]
        applied = [
            manifest
            for spec in chain.from_iterable(phase.apply for phase in phases)
            for manifest in self._all_of(spec, stage)
        ]
        churned = [
            manifest
            for spec in phases[-1].churn
            for manifest in scenario.named(self._manifests[id(spec)], 0, is_only=False)
        ]
        await stage.applied.adopt(applied, churned)
        return first

    def _all_of(self, spec: scenario.ApplySpec, stage: Stage) -> Iterator[scenario.Named]:
        manifests = self._manifests[id(spec)]
        count = spec.copies(manifests, stage.nodes)
        for number in range(count):
            yield from scenario.named(manifests, number, is_only=count == 1)

    def _tell(self, stage: Stage) -> None:
        """Have the plan say what was played, for another start of this shard."""
        if (lead := stage.lead) is not None:
            origin_s = lead.now_s() - stage.elapsed_s()
            lead.plan.phases = [_shifted(each, origin_s) for each in self.phases]
            lead.plan.waited = [*self.expectations]
            lead.change()

    async def clean_up(self, stage: Stage) -> str:
        """Delete what was applied, and nothing else; return why that failed, "" if it did not."""
        if not self._manifests:
            return ""
        stage.phase("deleting what the scenario applied")
        try:
            left = await stage.applied.clean_up()
        except SetupError as error:  # the run still has to end in order
            return f"what the scenario applied may be left: {error}"
        for path in left:
            stage.note(left_words(path))
        return ""

    async def _play(self, number: int, phase: scenario.PhaseSpec, stage: Stage) -> None:
        if number == len(self.phases):
            self.phases.append(Phase(name=phase.name, from_s=stage.elapsed_s()))
            if stage.lead is not None:
                stage.lead.plan.begun = []
            self._tell(stage)
        begun_s = self.phases[number].from_s
        spent_s = stage.elapsed_s() - begun_s
        stage.phase(_words(phase))
        stage.note(f"phase {_words(phase)}")
        on: list[int] = []
        seed = stage.faults.seed if phase.random_faults else 0
        faults = [
            asyncio.ensure_future(self._inject(_place(phase, number, at), at, fault, on, stage))
            for at, fault in enumerate(scenario.faults_of(phase, number, seed))
        ]
        rest = asyncio.ensure_future(self.sleep(max(phase.duration_ns / 1e9 - spent_s, 0)))
        applied = [asyncio.ensure_future(self._apply(number, each, stage)) for each in phase.apply]
        churned = [
            asyncio.ensure_future(self._churn(number, each, spent_s, stage)) for each in phase.churn
        ]
        work = (rest, *faults, *applied, *churned)
        try:
            await asyncio.gather(*work)
            for fault in on:
                await stage.faults.heal(fault)
            if phase.until is not None:
                is_paced = any(each.pods_per_node is not None for each in phase.apply)
                since_s = begun_s + phase.duration_ns / 1e9 if is_paced else stage.elapsed_s()
                missing = sum(each.result() for each in applied)
                await self._wait(phase.name, phase.until, since_s, missing, stage)
        finally:
            await give_up(*work)
            self.phases[-1] = Phase(name=phase.name, from_s=begun_s, until_s=stage.elapsed_s())

    async def _inject(
        self, where: str, at: int, fault: scenario.PhaseFault, on: list[int], stage: Stage
    ) -> None:
        """Let a fault begin when it is due; those that the phase ends are added to `on`."""
        lasts_ns, of = fault.duration_ns, f"{len(self.phases) - 1}/{at}"
        if stage.lead is not None and of in (plan := stage.lead.plan).begun:
            left = [each.number for each in plan.faults if each.of == of]
            on += left if lasts_ns is None and not fault.is_instant else []
            return
        due_s = self.phases[-1].from_s + fault.at_ns / 1e9 - stage.elapsed_s()
        if lasts_ns is not None and due_s < 0:  # for the rest of its time
            lasts_ns += round(due_s * 1e9)
            if lasts_ns <= 0:
                stage.note(f"{where}: it was to be while no process played the scenario")
                return
        await self.sleep(max(due_s, 0))
        try:
            begun = await stage.faults.inject(fault.fault(), lasts_ns, of)
        except UsageError as error:
            raise UsageError(f"{self._origin}: spec.{where}: {error}") from error
        if fault.duration_ns is None:
            on.append(begun.number)

    async def _apply(self, number: int, spec: scenario.ApplySpec, stage: Stage) -> int:
        """Create objects at a rate, or change those that were created before.

        Pods by the node come as fast as the cluster starts them: the pods of at most `AT_ONCE_MAX`
        objects are not Ready. Once the time of `until` is over, nothing waits for pods that do not
        start, and if the phase is to wait until pods are Ready, nothing more is created: return how
        many pods are missing then.
        """
        phase, begun_s = self._scenario.spec.phases[number], self.phases[number].from_s
        until, missing = phase.until, 0
        until_ns = until.timeout_ns if until is not None else scenario.TIMEOUT_NS
        until_s = begun_s + (phase.duration_ns + until_ns) / 1e9
        await self.sleep(max(begun_s + spec.at_ns / 1e9 - stage.elapsed_s(), 0))
        count = spec.copies(self._manifests[id(spec)], stage.nodes)
        by_node = spec.pods_per_node is not None
        is_awaited = by_node and until is not None and until.condition == "PodsReady"
        pods = sum(map(scenario.pods_of, self._manifests[id(spec)]))

        def copies() -> Iterator[int]:
            nonlocal missing
            for copy in range(count):
                if is_awaited and stage.elapsed_s() >= until_s:
                    missing = pods * (count - copy)
                    return
                yield copy

        async def act(copy: int) -> None:
            created = await self._create(number, spec, copy, stage, is_only=count == 1)
            for each in created if by_node else ():
                while stage.elapsed_s() < until_s and not await stage.applied.is_ready(each):
                    await self.sleep(PODS_POLL_S)

        await self._paced(copies(), spec.rate, act, stage)
        return missing

    async def _paced(
        self,
        numbers: Iterable[int],
        rate: float,
        act: Callable[[int], Awaitable[None]],
        stage: Stage,
    ) -> None:
        """Do something at a rate, in parallel; a server that is slow gets less."""
        begun_s = stage.elapsed_s()
        free = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(number: int) -> None:
            try:
                await act(number)
            finally:
                free.release()

        try:
            async with asyncio.TaskGroup() as group:
                for at, number in enumerate(numbers):
                    await self.sleep(max(begun_s + at / rate - stage.elapsed_s(), 0))
                    await free.acquire()
                    group.create_task(one(number))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _create(
        self, number: int, spec: scenario.ManifestSpec, copy: int, stage: Stage, *, is_only: bool
    ) -> list[Created]:
        wanted = scenario.named(self._manifests[id(spec)], copy, is_only=is_only)
        try:
            return [await stage.applied.apply(each) for each in wanted]
        except UsageError as error:
            raise UsageError(f"{self._origin}: spec.phases[{number}]: {error}") from error

    async def _churn(
        self, number: int, spec: scenario.ChurnSpec, spent_s: float, stage: Stage
    ) -> None:
        """Create objects at a rate until the phase is over, each for its lifetime."""
        made, rate = 0, spec.per_second(stage.nodes)
        first = int(spent_s * rate)  # names before it are an earlier process's
        phase, begun_s = self._scenario.spec.phases[number], self.phases[number].from_s
        ends_s = begun_s + phase.duration_ns / 1e9
        free = asyncio.Semaphore(AT_ONCE_MAX)
        alive = asyncio.TaskGroup()

        async def live(created: list[Created]) -> None:
            left_s = ends_s - stage.elapsed_s()
            await self.sleep(max(min(spec.lifetime_ns / 1e9, left_s), 0))
            async with free:
                for each in created:
                    await stage.applied.delete(each)

        async def act(copy: int) -> None:
            nonlocal made
            created = await self._create(number, spec, copy, stage, is_only=False)
            made += 1
            alive.create_task(live(created))

        def copies() -> Iterator[int]:
            copy = first
            while stage.elapsed_s() + 1 / rate < ends_s:
                yield copy
                copy += 1

        try:
            async with alive:
                await self._paced(copies(), rate, act, stage)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        stage.note(f"churn: {made} times, {rate_words(rate)} were asked for")

    async def _wait(
        self, name: str, until: scenario.Until, begun_s: float, missing: int, stage: Stage
    ) -> None:
        """Wait for a condition, and write down whether it came."""
        limit_s = until.timeout_ns / 1e9
        what = "pods" if until.condition == "PodsReady" else "nodes"
        ready, wanted = await self._ready(until, missing, stage)
        while ready < wanted and (took_s := stage.elapsed_s() - begun_s) < limit_s:
            left = f"gives up in {clock(limit_s - took_s)}"
            self._waits_for = f"{ready:,} of {wanted:,} {what} Ready, {left}"
            await self.sleep(POLL_S if what == "nodes" else PODS_POLL_S)
            ready, wanted = await self._ready(until, missing, stage)
        self._waits_for = ""
        took_s = stage.elapsed_s() - begun_s
        is_met = ready >= wanted
        told = f"{ready} of {wanted} {what} Ready after {took_s:.1f} s"
        limit = format_duration(until.timeout_ns)
        expectation = Expectation(f"{name}: {until.condition} within {limit}", is_met, told)
        self.expectations.append(expectation)
        self._tell(stage)
        stage.note(f"phase {name}: {told}")

    async def _ready(self, until: scenario.Until, missing: int, stage: Stage) -> tuple[int, int]:
        if until.condition == "PodsReady":
            ready, wanted = await stage.applied.ready()
            return ready, wanted + missing
        return stage.ready(), stage.nodes


def _place(phase: scenario.PhaseSpec, number: int, at: int) -> str:
    """Say where in the file a fault of a phase is from; those that were drawn come last."""
    where = f"phases[{number}]"
    return f"{where}.faults[{at}]" if at < len(phase.faults) else f"{where}.randomFaults"


def _shifted(phase: Phase, by_s: float) -> Phase:
    until_s = None if phase.until_s is None else phase.until_s + by_s
    return replace(phase, from_s=phase.from_s + by_s, until_s=until_s)


def _words(phase: scenario.PhaseSpec) -> str:
    waits = []
    if phase.duration_ns:
        waits.append(format_duration(phase.duration_ns))
    if phase.until is not None:
        waits.append(f"until {phase.until.condition}")
    return f"{phase.name}: {', then '.join(waits)}"


def settings_of(scenario: scenario.Scenario, path: Path, given: Mapping[str, object]) -> Settings:
    """Return the settings of a run: the file's, where the command line says nothing else.

    Raises UsageError.
    """
    for option in ENDS_BY_ITSELF:
        if given.get(option):
            flag = "--" + option.replace("_", "-")
            raise UsageError(f"{flag}: a scenario says itself how the run goes; see {path}")
    options = {key: value for key, value in given.items() if value is not None and value != ()}
    if options.get("shard") is not None:
        if "nodes" not in options or "run_id" not in options:
            raise UsageError("--shard: say how many --nodes a shard has, and the --run-id of all")
        options.setdefault("nodes_total", scenario.nodes)
    options.setdefault("nodes", scenario.nodes)
    options.setdefault("profile", scenario.profiles(path))
    options.setdefault("seed", scenario.spec.seed)
    options.setdefault("start", scenario.spec.start)
    settings = Settings.from_options(**options)
    if scenario.cuts_off and not settings.has_own_watches:
        raise UsageError(
            f"{path}: Partition needs connections of the nodes' own: --fidelity kubelet and "
            "--watches per-node"
        )
    if scenario.stops_components and settings.names_cluster:
        raise UsageError(
            f"{path}: ComponentDown and ComponentStall are of a local control plane that the run "
            "starts; leave the cluster's name out"
        )
    return settings


def dry_run(scenario: scenario.Scenario, path: Path, settings: Settings) -> str:
    """Return what `--dry-run` prints: the time line, and a forecast of the load."""
    if not settings.names_cluster:
        find_standing(settings)
    mix = mix_of(settings)
    server = built_release(settings.kubernetes_version) or settings.kubelet_version
    mix.choose_version(settings.kubelet_version, server or KUBERNETES_VERSION)
    is_light = settings.fidelity == "light"
    plan = time_line(scenario, settings.nodes_of_run, settings.seed)
    told = forecast(scenario, path, settings.nodes_of_run, mix, light=is_light)
    found = {"time_line": plan.splitlines(), "forecast": told.splitlines()}
    return printed(settings.output, found, f"{plan}\n{told}")
