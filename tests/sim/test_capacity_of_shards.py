"""`fleet capacity --shard K/N` in virtual time: three machines search, with simulated nodes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.summary_schema import read_summary
from world.cluster_fakes import FakeApi
from world.simulation import Simulation
from world.virtual_loop import Worlds, in_virtual_time
from world.virtual_time import World

from fleet.background import give_up
from fleet.clock import NS_PER_S, Clock
from fleet.cluster.api_client import Cluster
from fleet.cluster.kept_records import keep_record, packed, record_name
from fleet.cluster.runs import RUN_LEASES, RunLease
from fleet.controlplane.options import ComponentDeath
from fleet.errors import IncompleteError, SetupError
from fleet.profile.settings import Settings
from fleet.report.figures import HostState
from fleet.report.record import Record, dump
from fleet.report.report import Expectation, Phase, RunFigures
from fleet.report.run_directory import RECORD, SUMMARY
from fleet.run import capacity, capacity_shards
from fleet.run.capacity import Asked, options_of, search_with_others
from fleet.run.capacity_shards import OVER, RUN_ANNOTATION, Part, SharedSearch
from fleet.run.interrupts import Interrupts
from fleet.run.lead import LEADER_LOST_S, Follower, Leader, Plan

pytest_plugins = ("sim_encodings",)

RELEASE = RunLease.release  # of a run, also while that of the search fails
MACHINES, CAPACITY, HOLD_S, START_S = 3, 9, 5.0, 3.0


class Place:
    """One API server, and one virtual time, for all machines and all runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worlds, self.api = Worlds(), FakeApi()
        self.began_s = self.api.date_s
        self.api.before_request = self.tick
        self.runs: list[Played] = []
        self.broken: set[int] = set()
        """Machines whose runs cannot begin."""
        self.stuck: set[tuple[int, int]] = set()
        """Machines, and sizes of which one of their nodes does not become Ready."""
        self.codes: dict[int, int] = {}
        """What runs end with, by machine."""
        self.notes: list[str] = []
        place = self

        class Connected:
            async def __aenter__(self) -> SimpleNamespace:
                return SimpleNamespace(api=lambda *_purpose, **_how: place.api)

            async def __aexit__(self, *_error: object) -> None:
                """There is nothing to close."""

        async def connect(_selection: object) -> Connected:
            return Connected()

        def run(name: str, command: Sequence[str], _log: Path, **_how: object) -> Played:
            return Played(place, name, command)

        monkeypatch.setattr(Cluster, "connect", connect)
        monkeypatch.setattr(capacity, "Component", run)
        monkeypatch.setattr(capacity, "ask", self._ask)
        monkeypatch.setattr("fleet.cluster.runs.SystemClock.wall_ns", lambda _: self.wall.wall_ns())

    def tick(self, _method: str, _path: str) -> None:
        self.api.date_s = int(self.now_s())

    async def _ask(self, directory: Path, _order: object) -> dict[str, int]:
        [run] = [each for each in self.runs if each.directory == directory]
        if run.ready is None:
            raise SetupError("it has not begun")
        return {"ready": run.ready()}

    def now_s(self) -> float:
        return self.began_s + self.worlds.now_ns / NS_PER_S

    @property
    def wall(self) -> Clock:
        return cast("Clock", SimpleNamespace(wall_ns=lambda: int(self.now_s() * NS_PER_S)))

    def play(self, work: Callable[[], Awaitable[None]], *, leaves: bool = False) -> None:
        """Play in virtual time; nothing is left at the API server afterwards, unless `leaves`."""

        async def run() -> None:
            await work()

        in_virtual_time(run(), cast("World", self.worlds))
        assert leaves or not self.api.objects, "records and Leases are gone"


class Played:
    """The run of one size on one machine, in place of a process."""

    def __init__(self, place: Place, name: str, command: Sequence[str]) -> None:
        self.place = place
        given = dict(each.removeprefix("--").partition("=")[::2] for each in command)
        self.nodes, self.total = int(given["nodes"]), int(given["nodes-total"])
        self.shard, self.run_id = int(given["shard"]), given["run-id"]
        self.nodes = min(self.nodes, self.total - self.shard * self.nodes)
        self.directory = Path(given["run-dir"])
        self.name = name
        self.ready: Callable[[], int] | None = None  # nodes of all shards
        self.interrupts, self.steady_s, self.uid = Interrupts(), 0.0, ""
        place.runs.append(self)

    async def start(self) -> None:
        self.task = asyncio.ensure_future(self._play())

    @property
    def is_running(self) -> bool:
        return not self.task.done()

    async def wait(self) -> ComponentDeath:
        await asyncio.wait((self.task,))
        is_refused = self.shard in self.place.broken
        lines = ("fleet: not enough memory",) if is_refused else ()
        code = 3 if is_refused else self.place.codes.get(self.shard, 0)
        return ComponentDeath(self.name, code, Path("log"), lines)

    def signal(self, _number: object) -> None:
        self.interrupts.stop.set()

    async def stop(self, _grace_s: float, **_how: object) -> None:
        self.interrupts.stop.set()
        await asyncio.wait((self.task,))

    def output(self) -> str:
        return ""

    async def _play(self) -> None:
        place = self.place
        await asyncio.sleep(START_S)
        if self.shard in place.broken:
            return
        began_s = place.now_s()
        lease = RunLease(place.api, f"n-{self.shard:04d}", self.run_id, holder="h")
        await lease.acquire()
        sim = Simulation(self.nodes, seed=self.shard, settled=True)
        sim.world.run_until(place.worlds.now_ns)
        place.worlds.simulations.append(sim)
        lacking = (self.shard, self.total) in place.stuck

        def state() -> HostState:
            return cast("HostState", SimpleNamespace(wanted=self.nodes, ready=own()))

        def own() -> int:
            return min(sim.ready(), self.nodes - lacking)

        async def act(_plan: Plan, _before_s: float, _now_s: float) -> dict[int, int]:
            return {}

        leader = Leader(lease, place.api, is_played=True, now_s=place.now_s)
        self.ready = lambda: own() + leader.ready()
        follower = Follower(lease, place.api, "n-0000", state, act)
        following = asyncio.ensure_future(follower.run() if self.shard else leader.run())
        keeping = asyncio.ensure_future(lease.keep())
        self.directory.mkdir(parents=True)
        await self._leave(began_s)
        await self.interrupts.until_stopped(self._work(leader, follower, own))
        if not self.shard:
            await leader.close()
        await give_up(following, keeping)
        place.worlds.simulations.remove(sim)
        await RELEASE(lease)
        self.took_s = place.now_s() - began_s
        await self._leave(began_s, is_over=True)

    async def _work(self, leader: Leader, follower: Follower, own: Callable[[], int]) -> None:
        if self.shard:
            while not follower.is_over.is_set():
                follower.is_up = follower.is_up or own() == self.nodes
                await asyncio.sleep(1)
            return
        while own() < self.nodes:  # noqa: ASYNC110 - the world says no word
            await asyncio.sleep(1)
        await leader.wait_ready(self.total - self.nodes)
        self.steady_s = self.place.now_s()
        await asyncio.sleep(HOLD_S)

    async def keep(self, name: str, files: dict[str, bytes]) -> str:
        return await keep_record(self.place.api, self.run_id, name, files, self.uid)

    async def _leave(self, began_s: float, *, is_over: bool = False) -> None:
        """Leave the record, and what the search reads."""
        place = self.place
        figures = RunFigures(run_id=self.run_id, wall_s=place.now_s() - began_s)
        figures.nodes.requested = figures.nodes.ready = self.nodes
        is_stuck = (self.shard, self.total) in place.stuck
        if not is_stuck:
            figures.nodes.time_to_ready_s = 5.0
        waited: tuple[Expectation, ...] = ()
        if self.steady_s:
            ends_s = figures.wall_s
            figures.phases = [Phase(name="steady", from_s=self.steady_s - began_s, until_s=ends_s)]
            waited = (Expectation("it holds", is_met=self.total <= CAPACITY),)
        record = Record(
            shard=self.shard,
            name=f"n-{self.shard:04d}",
            shards=-(-self.total // -(-self.total // MACHINES)),
            began_s=began_s,
            ready_s=None if is_stuck else began_s + 5.0,
            is_over=is_over,
            is_leader=not self.shard,
            figures=figures,
            waited=waited,
            about={},
        )
        name = record_name(self.run_id, self.shard, began_s)
        files = {RECORD: packed(dump(record))}
        self.uid = await self.keep(name, files)
        (self.directory / SUMMARY).write_text("{}")


def machine(
    shard: int, root: Path, note: Callable[[str], None] = lambda _line: None
) -> Awaitable[Any]:
    options = options_of(4, 12, "10%", 1, "1m", root / f"machine-{shard}")
    settings = Settings(name_prefix="n", no_report=True)
    asked = Asked(["run", "--no-report"], {}, "idle", "x", Part(shard, MACHINES), settings)
    return search_with_others(asked, options, note)


def machines(place: Place, root: Path) -> "list[asyncio.Future[Any]]":
    """Have all begin."""
    each = range(MACHINES)
    return [asyncio.ensure_future(machine(one, root, place.notes.append)) for one in each]


def test_three_machines_find_one_capacity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = Place(monkeypatch)

    async def search() -> None:
        found, *parts = await asyncio.gather(*machines(place, tmp_path))
        assert [each.nodes for each in found.probes] == [4, 8, 12, 10, 9]
        assert (found.held, found.broke) == (9, 10)
        shards = []
        for probe in found.probes:
            summary = read_summary(Path(probe.directory) / SUMMARY)
            assert not (Path(probe.directory) / "report.html").exists(), "--no-report"
            shards.append([each["nodes"] for each in summary["shards"]])
        # A part is as large as the first: two of four nodes need two machines.
        assert shards == [[2, 2], [3, 3, 2], [4, 4, 4], [4, 4, 2], [3, 3, 3]]
        assert parts == [5, 4]

    place.play(search)


def test_a_machine_that_cannot_take_part_ends_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)
    place.broken.add(2)

    async def search() -> None:
        searching = machines(place, tmp_path)
        await asyncio.wait(searching)
        found, why = searching[0].result(), searching[2].exception()
        assert str(why) == "the run of 8 nodes: not enough memory"
        assert (found.held, found.verdict) == (4, "pass")
        assert found.problem == "no machine takes part with --shard 2/3: see its output"

    place.play(search)


def test_a_run_that_the_first_machine_refuses_ends_on_the_others_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their processes are only starting then."""
    place = Place(monkeypatch)
    place.broken.add(0)

    async def search() -> None:
        first, *others = machines(place, tmp_path)
        await asyncio.wait((first, *others))
        assert str(first.exception()) == "the run of 4 nodes: not enough memory"
        assert [each.result() for each in others] == [1, 0]

    place.play(search)


def test_machines_end_when_the_first_one_does_not_come_or_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)

    async def search() -> None:
        told = (
            "shard 0/3 did not start within 300 s: run `fleet capacity --shard 0/3` with the same"
        )
        with pytest.raises(SetupError, match=rf"^{told} --name-prefix \(n\) and cluster$"):
            await machine(1, tmp_path / "alone")
        first = asyncio.ensure_future(machine(0, tmp_path))
        second = asyncio.ensure_future(machine(1, tmp_path))
        while not any(run.shard == 1 for run in place.runs):  # noqa: ASYNC110
            await asyncio.sleep(1)
        monkeypatch.setattr(RunLease, "release", lambda _lease: asyncio.sleep(0))  # it is killed
        monkeypatch.setattr(SharedSearch, "end", lambda _shared, _says: asyncio.sleep(0))
        await give_up(first)
        with pytest.raises(SetupError, match=r"^shard 0/3 was gone for 300 s: run `fleet capacity"):
            await second

    place.play(search, leaves=True)


def test_a_size_that_another_machine_cannot_bring_up_breaks_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)
    place.stuck.add((1, 8))

    async def search() -> None:
        found, *_parts = await asyncio.gather(*machines(place, tmp_path))
        assert (found.held, found.broke) == (7, 8)
        assert found.what_broke == "Not all 8 nodes were Ready within 1m0s."
        [until_s] = [each.took_s for each in place.runs if (each.shard, each.total) == (1, 8)]
        assert until_s < 75, "it ends with the first machine"

    place.play(search)
    created = place.api.log.count(("POST", RUN_LEASES))
    assert created == len(place.runs) + 1, "no Lease was made again after the clean-up"


def test_an_interrupted_search_ends_all_machines_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)

    async def search() -> None:
        searching = machines(place, tmp_path)
        while not any(run.total == 8 and run.steady_s for run in place.runs):  # noqa: ASYNC110
            await asyncio.sleep(1)
        searching[0].cancel()
        found, *parts = await asyncio.gather(*searching)
        assert (found.held, found.problem) == (4, "the search was interrupted")
        assert parts == [2, 1]

    place.play(search)


def test_a_search_goes_on_when_a_size_cannot_be_cleaned_up_and_its_answer_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)

    async def refuse(*_what: object) -> None:
        raise IncompleteError("no answer; left: everything")

    monkeypatch.setattr(capacity_shards, "clean_run", refuse)
    monkeypatch.setattr(RunLease, "release", refuse)

    async def search() -> None:
        found, *parts = await asyncio.gather(*machines(place, tmp_path))
        assert (found.held, found.broke, found.problem) == (9, 10, "")
        assert parts == [5, 4]

    place.play(search, leaves=True)
    failed = [each for each in place.notes if each.startswith("the clean-up failed: no answer;")]
    assert len(failed) == 5
    assert failed[0].endswith("-4-1"), failed


def test_a_machine_outlives_an_api_server_that_is_away_and_says_what_its_run_died_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Shard 0 says that it is over: its Lease stays for the objects of an earlier run."""
    place = Place(monkeypatch)
    place.codes[1] = -9

    async def search() -> None:
        lease = RunLease(place.api, "n", "s", holder="h")
        await lease.acquire()
        keeping = asyncio.ensure_future(lease.keep())
        second = asyncio.ensure_future(machine(1, tmp_path, place.notes.append))
        await lease.say(RUN_ANNOTATION, "4/one")
        while not place.runs:  # noqa: ASYNC110
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        place.runs[0].signal(None)
        await asyncio.sleep(15)
        assert place.notes == ["4 nodes ...", "the run of 4 nodes ended with -9: see log"]

        def fail(_method: str, _path: str) -> None:
            raise SetupError("nobody answers")

        place.api.before_request = fail
        await asyncio.sleep(LEADER_LOST_S + 60)
        place.api.before_request = place.tick
        await asyncio.sleep(60)
        assert not second.done()
        await lease.say(RUN_ANNOTATION, OVER)
        await asyncio.sleep(3)
        assert second.result() == 1
        await give_up(keeping)

    place.play(search, leaves=True)


def test_a_search_that_is_interrupted_while_it_takes_its_lease_gives_it_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)

    async def search() -> None:
        first = asyncio.ensure_future(machine(0, tmp_path))

        def interrupt(method: str, _path: str) -> None:
            if method == "POST":
                first.cancel()

        place.api.before_request = interrupt
        await asyncio.wait((first,))
        assert first.cancelled()

    place.play(search)
    assert ("POST", RUN_LEASES) in place.api.log
    assert not place.api.objects


def test_a_lease_that_fleet_did_not_make_is_no_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)
    place.api.put(f"{RUN_LEASES}/fleet-run-n", spec={"holderIdentity": "x"})

    async def search() -> None:
        for shard, told in ((0, "fleet-run-n is not one that fleet made"), (1, "did not start")):
            with pytest.raises(SetupError, match=told):
                await machine(shard, tmp_path)

    place.play(search, leaves=True)


def test_machines_that_cannot_leave_records_are_told_how_to_grant_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(monkeypatch)
    monkeypatch.setattr(Played, "keep", lambda _played, *_what: asyncio.sleep(0, ""))

    async def search() -> None:
        searching = machines(place, tmp_path)
        await asyncio.wait(searching)
        told = r"no machine has left a record .*-4-1: grant the rights with fleet rbac --record"
        with pytest.raises(SetupError, match=told):
            searching[0].result()

    place.play(search)
    assert not place.api.objects
