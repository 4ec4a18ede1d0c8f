"""Shards follow the first one through its Lease: faults, late shards, and a leader that dies."""

import asyncio
from collections.abc import Awaitable, Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from world.cluster_fakes import FakeApi
from world.simulation import Simulation
from world.virtual_loop import Worlds, in_virtual_time
from world.virtual_time import World

from fleet.background import give_up
from fleet.clock import NS_PER_S, Clock
from fleet.cluster.api_client import Cluster as ApiCluster
from fleet.cluster.runs import RunLease
from fleet.errors import SetupError, UsageError
from fleet.faults.fault import FaultSpec
from fleet.host.node_host import NodeHost
from fleet.host.observed_nodes import Readiness
from fleet.profile.settings import Settings
from fleet.report.display import Display
from fleet.report.figures import HostState
from fleet.report.report import Phase
from fleet.run.applied import Applied
from fleet.run.fault_control import FaultControl
from fleet.run.lead import LEADER_LOST_S, Follower, Leader, Plan
from fleet.run.observation import Observation
from fleet.run.run import Run
from fleet.run.scenario_player import ScenarioPlayer, Stage
from fleet.scenario.scenario import parse

pytest_plugins = ("sim_encodings",)

NODES = (1, 3, 3, 3)  # by shard; a zone has every third node, so the first shard has none in it
ZONE = "zone-b"
SCENARIO = """\
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: outage}
spec:
  nodePools: [{name: main, replicas: 12}]
  phases:
  - {name: steady, duration: 30s}
  - name: outage
    duration: 120s
    faults:
    - {type: KubeletRestart, zone: ZONE, at: 5s}
    - {type: Partition, zone: ZONE, at: 10s, duration: 80s}
    - {type: SlowLink, by: 100ms, at: 15s, duration: 45s}
    - {type: ClockSkew, by: 1h, at: 20s}
  - {name: recovery, until: {condition: NodesReady, timeout: 2m}}
"""


class Cluster:
    """The Leases of a run, and its shards."""

    def __init__(self, *, plays: bool = False) -> None:
        self.plays = plays
        self.worlds, self.api = Worlds(), FakeApi()
        self.began_s = self.api.date_s
        self.api.before_request = self.tick

    def tick(self, _method: str, _path: str) -> None:
        self.api.date_s = int(self.now_s())

    def now_s(self) -> float:
        return self.began_s + self.worlds.now_ns / NS_PER_S

    def play(self, count: int, work: "Callable[[list[Shard]], Awaitable[None]]") -> None:
        """Start so many shards, do the work, and stop those that it leaves."""

        async def run() -> None:
            shards = [Shard(self, number) for number in range(count)]
            for shard in shards:
                await shard.start()
            await work(shards)
            for shard in shards:
                shard.stop()

        in_virtual_time(run(), cast("World", self.worlds))


class Shard:
    """One process; the first of them leads."""

    leader: Leader | None = None
    follower: Follower | None = None
    player: ScenarioPlayer

    def __init__(self, cluster: Cluster, number: int, holder: str = "first") -> None:
        self.cluster, self.number, self.told = cluster, number, list[str]()
        self.nodes = NODES[number]
        self.sim = Simulation(self.nodes, seed=number, settled=True, monitored=True)
        self.sim.world.run_until(cluster.worlds.now_ns)
        cluster.worlds.simulations.append(self.sim)
        self.began_s = cluster.now_s()
        self.wall = cast("Clock", SimpleNamespace(wall_ns=lambda: int(cluster.now_s() * NS_PER_S)))
        self.lease = RunLease(
            cluster.api, self.prefix(number), "run", holder=f"{holder}-{number}", clock=self.wall
        )
        self.tasks: list[asyncio.Task[None]] = []

    @staticmethod
    def prefix(number: int) -> str:
        return f"n-{number:04d}"

    async def start(self, *, is_up: bool = True) -> None:
        await self.lease.acquire()
        settings = SimpleNamespace(shard=self.number, seed=7, follows=self.number > 0)
        host = SimpleNamespace(
            reactor=self.sim.reactor,
            draws=self.sim.draws,
            has_own_connections=True,
            certificates=None,
            settings=settings,
            size=self.nodes,
        )
        api, now_s = self.cluster.api, self.cluster.now_s
        if not self.number:
            self.leader = Leader(self.lease, api, is_played=self.cluster.plays, now_s=now_s)
        self.control = FaultControl(
            cast("NodeHost", host), self.elapsed_s, self.told.append, self.leader
        )
        if self.number:
            self.follower = Follower(
                self.lease, api, self.prefix(0), self.state, self.control.follow
            )
        for work in (self.lease.keep(), (self.leader or self.follower).run()):  # type: ignore[union-attr]
            self.tasks.append(asyncio.ensure_future(work))
        while self.sim.ready() < self.nodes:  # noqa: ASYNC110 - the world says no word
            await asyncio.sleep(1)
        if self.follower is not None:
            self.follower.is_up = is_up

    def elapsed_s(self) -> float:
        return self.cluster.now_s() - self.began_s

    def state(self) -> HostState:
        return cast("HostState", SimpleNamespace(wanted=self.nodes, ready=self.sim.ready()))

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()

    def kill(self) -> None:
        self.stop()
        self.cluster.worlds.simulations.remove(self.sim)

    async def lead(self) -> None:
        """Play the scenario over all shards to its end."""
        assert self.leader is not None
        leader, cluster = self.leader, self.cluster
        self.control.go_on(leader)
        await leader.wait_ready(sum(NODES[1:]))
        text = SCENARIO.replace("ZONE", ZONE)
        self.player = ScenarioPlayer(parse(text, "outage.yaml"), Path("outage.yaml"))
        stage = Stage(
            self.control,
            self.elapsed_s,
            lambda: self.sim.ready() + leader.ready(),
            sum(NODES),
            self.told.append,
            lambda _: None,
            Applied(cluster.api, "run"),
            lambda: asyncio.sleep(0),
            leader,
        )
        await self.player.play(stage)
        await self.control.close()

    def faults(self) -> dict[str, tuple[float, float | None]]:
        """Return when which fault was on, by the time since the test began."""
        late_s = self.began_s - self.cluster.began_s

        def shifted(phase: Phase) -> tuple[float, float | None]:
            until_s = None if phase.until_s is None else round(phase.until_s + late_s)
            return round(phase.from_s + late_s), until_s

        return {each.name: shifted(each) for each in self.control.phases()}


def is_near(found: tuple[float, float | None], wanted: tuple[float, float]) -> bool:
    return found == pytest.approx(wanted, abs=3.0)


def test_faults_reach_every_shard_and_a_scenario_outlives_its_leader() -> None:
    """Nodes of the zone live in all shards but the first; shard 3 is late, then the leader dies."""
    cluster = Cluster(plays=True)

    async def play(shards: list[Shard]) -> None:
        first = shards[0]
        playing = asyncio.ensure_future(first.lead())
        begun_s = cluster.now_s() - cluster.began_s
        await asyncio.sleep(60)
        assert {
            "fault 1: KubeletRestart on 3 of 10 nodes",
            "fault 2: Partition on 3 of 10 nodes",
            "fault 3: SlowLink on 10 of 10 nodes",
            "fault 4: ClockSkew on 10 of 10 nodes",
        } <= {*first.told}
        for shard in shards:
            assert shard.sim.reactor.counts.restarts == (1 if shard.number else 0)

        shards[3].kill()
        await asyncio.sleep(5)
        late = shards[3] = Shard(cluster, 3)
        await late.start()
        await asyncio.sleep(3)
        on = ["Partition", "SlowLink", "ClockSkew"]
        assert [each["fault"] for each in late.control.on()] == on
        assert late.sim.reactor.counts.restarts == 0  # that is long over

        playing.cancel()
        first.kill()
        await asyncio.sleep(10)
        assert [len(shard.control.on()) for shard in shards[1:]] == [3, 3, 3]
        again = shards[0] = Shard(
            cluster, 0, holder="second"
        )  # it waits until the Lease has expired
        await again.start()
        assert cluster.now_s() - cluster.began_s - begun_s < 119
        assert [each["fault"] for each in again.control.on()] == []
        await again.lead()
        for shard in shards[1:]:
            assert shard.follower is not None
            await asyncio.wait_for(shard.follower.is_over.wait(), 5)
            assert not shard.follower.lost
            found = shard.faults()
            partition, skew = found["Partition"], found["ClockSkew"]
            if shard is not late:
                assert is_near(found["KubeletRestart"], (begun_s + 35, begun_s + 35))
                assert is_near(partition, (begun_s + 40, begun_s + 120))
                assert is_near(skew, (begun_s + 50, begun_s + 150))
            assert partition[1] == pytest.approx(begun_s + 120, abs=3.0)
            slow = found["SlowLink"][1] or 0.0  # its time was over while nobody led
            assert 91 < slow - begun_s < 119
            assert skew[1] == pytest.approx(begun_s + 150, abs=3.0)
        phases = [(each.name, each.until_s is not None) for each in again.player.phases]
        assert phases == [("steady", True), ("outage", True), ("recovery", True)]
        steady, outage, _ = again.player.phases
        assert outage.until_s is not None
        assert outage.until_s - steady.from_s == pytest.approx(150, abs=3.0)
        assert [each.is_met for each in again.player.expectations] == [True]

    cluster.play(4, play)


def test_orders_reach_the_shards_of_a_run_whose_first_one_comes_again() -> None:
    cluster = Cluster()

    async def play(shards: list[Shard]) -> None:
        control = shards[0].control
        await asyncio.sleep(6)
        with pytest.raises(UsageError, match="hits none of 4 nodes"):
            await control.inject(FaultSpec.model_validate({"type": "Partition", "zone": "none"}))
        begun = await control.inject(FaultSpec.model_validate({"type": "NodeDown", "zone": ZONE}))
        assert (begun.hit, begun.of) == (1, 4)
        await control.heal(begun.number)
        await asyncio.sleep(3)
        assert [shard.control.on() for shard in shards] == [[], []]

        # A first shard that ends in order and comes again, as a pod of a StatefulSet does.
        await control.inject(FaultSpec.model_validate({"type": "Partition", "zone": ZONE}))
        await control.close()
        await asyncio.sleep(3)
        assert shards[1].control.on() == []
        shards[0].kill()
        await shards[0].lease.release()
        shards[0] = Shard(cluster, 0)
        await shards[0].start()
        await asyncio.sleep(3)
        restart = FaultSpec.model_validate({"type": "KubeletRestart"})
        begun = await shards[0].control.inject(restart)
        assert (begun.number, begun.hit, begun.of) == (1, 4, 4)

        shards[0].kill()
        follower = shards[1].follower
        assert follower is not None
        follower.is_over.clear()  # of the one before
        await asyncio.sleep(290)
        assert not follower.is_over.is_set()
        await asyncio.sleep(25)
        assert follower.is_over.is_set()
        assert "the first shard of the run, n-0000, was gone for 3" in follower.lost

    cluster.play(2, play)


def test_faults_that_begin_after_the_first_shard_was_killed_reach_the_others() -> None:
    """Also one that is ordered before the nodes of the new process are all up."""
    cluster = Cluster()

    async def play(shards: list[Shard]) -> None:
        await asyncio.sleep(3)
        partition = FaultSpec.model_validate({"type": "Partition", "zone": ZONE})
        for _ in range(2):
            begun = await shards[0].control.inject(partition)
            await shards[0].control.heal(begun.number)
        await asyncio.sleep(3)

        shards[0].kill()
        again = shards[0] = Shard(cluster, 0, holder="second")
        await again.start()
        begun = await again.control.inject(partition)
        assert (begun.hit, begun.of) == (1, 4)
        assert again.leader is not None
        again.control.go_on(again.leader)
        await asyncio.sleep(3)
        assert [len(shard.control.on()) for shard in shards] == [1, 1]

        shards[1].kill()
        await asyncio.sleep(45)  # no shard that lives has a node of the zone now
        begun = await again.control.inject(partition)
        assert (begun.hit, begun.of) == (0, 1)
        shards[1] = Shard(cluster, 1)
        await shards[1].start()
        await asyncio.sleep(3)
        assert [len(shard.control.on()) for shard in shards] == [2, 2]

    cluster.play(2, play)


def test_what_is_over_at_once_hits_a_shard_that_came_up_between_two_looks() -> None:
    """Its first act finds a fault that is younger than its last look, and drops an older one."""
    cluster = Cluster()

    async def play(shards: list[Shard]) -> None:
        late = Shard(cluster, 1)
        await late.start(is_up=False)
        control, follower = shards[0].control, late.follower
        assert follower is not None
        restart = FaultSpec.model_validate({"type": "KubeletRestart"})
        earlier = asyncio.ensure_future(control.inject(restart))
        await asyncio.sleep(20)  # an order waits for 15 s at most
        assert (await earlier).hit == 1
        await asyncio.sleep(20)  # the plan names it no more: the next look is in 5 s
        ordered = asyncio.ensure_future(control.inject(restart))
        await asyncio.sleep(0.1)
        follower.is_up = True
        assert ((await ordered).hit, late.sim.reactor.counts.restarts) == (4, late.nodes)
        late.stop()

    cluster.play(1, play)


def test_shards_outlive_an_api_server_that_is_away_for_longer_than_a_first_shard_may_be() -> None:
    """Nobody can renew a Lease then: that of the first shard is as old as all others."""
    cluster = Cluster()

    async def play(shards: list[Shard]) -> None:
        await asyncio.sleep(15)
        follower, is_away = shards[1].follower, True
        assert follower is not None

        def fail(method: str, path: str) -> None:
            if is_away:
                raise SetupError("nobody answers")
            cluster.tick(method, path)

        cluster.api.before_request = fail
        await asyncio.sleep(LEADER_LOST_S + 20)
        is_away = False
        await asyncio.sleep(15)
        partition = FaultSpec.model_validate({"type": "Partition", "zone": ZONE})
        begun = await shards[0].control.inject(partition)
        assert (begun.hit, begun.of) == (1, 4)
        assert not follower.is_over.is_set()

    cluster.play(2, play)


def test_shards_look_at_their_leases_seldom_while_nothing_is_expected() -> None:
    cluster = Cluster()

    def looked() -> int:
        return sum(method == "GET" for method, _ in cluster.api.log)

    async def play(shards: list[Shard]) -> None:
        await asyncio.sleep(30)
        before = looked()
        await asyncio.sleep(60)
        assert 4 * 11 <= looked() - before <= 4 * 13  # once in 5 s each
        begun = await shards[0].control.inject(
            FaultSpec.model_validate({"type": "ClockSkew", "by": "1s"})
        )
        assert (begun.hit, begun.of) == (10, 10)
        before = looked()
        await asyncio.sleep(60)
        assert 4 * 58 <= looked() - before <= 4 * 62

    cluster.play(4, play)


@pytest.mark.parametrize("first", [None, "another"])
def test_a_shard_whose_first_one_never_comes_ends(first: str | None) -> None:
    """Also while another run has its names."""
    cluster = Cluster(plays=True)

    async def play(_shards: list[Shard]) -> None:
        if first is not None:
            other = RunLease(cluster.api, Shard.prefix(0), first)
            await other.acquire()
        shard = Shard(cluster, 1)
        await shard.start()
        follower = shard.follower
        assert follower is not None
        await asyncio.sleep(LEADER_LOST_S - 10)
        assert not follower.is_over.is_set()
        await asyncio.wait_for(follower.is_over.wait(), 20)
        assert follower.lost == "the first shard of the run, n-0000, did not come for 305 s"
        shard.stop()

    cluster.play(0, play)


def test_a_fault_that_comes_and_goes_does_so_in_step_in_a_shard_that_joins_late() -> None:
    cluster = Cluster()

    async def play(shards: list[Shard]) -> None:
        await asyncio.sleep(6)
        came = {"type": "NodeCondition", "condition": "Odd", "status": "True", "every": "120s"}
        lead = shards[0].control
        for spec in (came, {"type": "KubeletRestart", "every": "120s"}):
            await lead.inject(FaultSpec.model_validate(spec))
        await asyncio.sleep(70)  # it is off now
        late = Shard(cluster, 2)
        await late.start()
        await asyncio.sleep(6)
        assert [each["fault"].split()[0] for each in late.control.on()] == [
            "NodeCondition",
            "KubeletRestart",
        ]
        counts = late.sim.reactor.counts
        assert counts.restarts == 0
        seen = set[bool]()
        for _ in range(24):
            await asyncio.sleep(10)
            early_odd, late_odd = (is_odd(shard) for shard in (shards[1], late))
            assert early_odd == late_odd
            seen.add(late_odd)
        assert seen == {True, False}
        assert counts.restarts == 2 * late.nodes

    cluster.play(2, play)


def is_odd(shard: Shard) -> bool:
    """Return whether all nodes of a shard have the condition, or none has it."""
    found = {shard.sim.condition(name, "Odd") for name in shard.sim.names}
    assert len(found) == 1, found
    return found == {"True"}


def test_a_hundred_shards_follow_one() -> None:
    """Without kubelets: who asks how often, and whether a fault and the end reach all."""
    cluster, count = Cluster(plays=True), 100

    async def play(_shards: list[Shard]) -> None:
        wall = cast("Clock", SimpleNamespace(wall_ns=lambda: int(cluster.now_s() * NS_PER_S)))
        leases = [
            RunLease(cluster.api, Shard.prefix(number), "run", holder="h", clock=wall)
            for number in range(count)
        ]
        for lease in leases:
            await lease.acquire()
        leader = Leader(leases[0], cluster.api, is_played=True, now_s=cluster.now_s)
        state = cast("HostState", SimpleNamespace(wanted=1, ready=1))

        async def act(plan: Plan, _before_s: float, _now_s: float) -> dict[int, int]:
            return {each.number: 1 for each in plan.faults}

        followers = [
            Follower(lease, cluster.api, Shard.prefix(0), lambda: state, act)
            for lease in leases[1:]
        ]
        for each in followers:
            each.is_up = True
        work = [leader.run(), *(each.run() for each in followers)]
        tasks = [asyncio.ensure_future(each) for each in work]
        await asyncio.wait_for(leader.wait_ready(count - 1), 15)
        skew = FaultSpec.model_validate({"type": "ClockSkew", "by": "1s"})
        assert await leader.begin(1, skew, None, "") == (count - 1, count - 1, True)
        cluster.api.log.clear()
        await asyncio.sleep(10)
        assert len(cluster.api.log) <= 11 * count
        assert {method for method, _path in cluster.api.log} == {"GET"}
        await leader.close()
        await asyncio.sleep(2)
        assert all(each.is_over.is_set() and not each.lost for each in followers)
        for task in tasks:
            task.cancel()

    cluster.play(0, play)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_shard_whose_nodes_are_not_ready_ends_with_the_scenario(*, is_killed: bool) -> None:
    """The first shard ends for its reasons, such as a size of a search that took too long."""
    cluster = Cluster(plays=True)

    async def play(shards: list[Shard]) -> None:
        leader = shards[0].leader
        assert leader is not None
        lease = RunLease(cluster.api, Shard.prefix(1), "run", clock=shards[0].wall)
        await lease.acquire()
        run = follower_run(3)
        ready = run._node_host.readiness
        ready.ready.add("n-1")
        state = cast("HostState", SimpleNamespace(wanted=3, ready=1))
        run._follower = Follower(lease, cluster.api, Shard.prefix(0), lambda: state, no_act)
        following = asyncio.ensure_future(run._follower.run())
        playing = asyncio.ensure_future(run._ready_then_work())
        await asyncio.sleep(60)
        assert not playing.done()
        if is_killed:
            shards[0].kill()
            await asyncio.wait_for(playing, LEADER_LOST_S + 20)
            [reason] = run._figures.incomplete_reasons
            assert reason.startswith("the first shard of the run, n-0000, was gone for 30")
        else:
            await leader.close()
            await asyncio.wait_for(playing, 10)
            told = "it was stopped when 1 of 3 nodes were Ready"
            assert run._figures.incomplete_reasons == [told]
        await give_up(following)
        await run._background.stop()

    cluster.play(1, play)


def follower_run(nodes: int) -> Run:
    """Return a run that plays a scenario as shard 1, and whose nodes never become Ready."""
    settings = Settings.from_options(nodes=nodes, nodes_total=2 * nodes, shard=1, run_id="run")
    player = ScenarioPlayer(parse(SCENARIO, "outage.yaml"), Path("outage.yaml"))
    run = Run(settings, display=Display(stream=StringIO()), player=player)
    run._observation = cast("Observation", SimpleNamespace(begun=lambda: asyncio.sleep(0)))
    run._cluster = cast("ApiCluster", None)
    host = SimpleNamespace(settings=settings, managed=None, admin_labels=None)
    host.bring_up = host.note_settled = lambda: asyncio.sleep(0)
    host.readiness = Readiness(nodes)
    run._node_host = cast("NodeHost", host)
    return run


async def no_act(_plan: Plan, _before_s: float, _now_s: float) -> dict[int, int]:
    return {}
