"""Four shards of a run in virtual time, one killed and started again: one report that adds up."""

from collections import Counter

from world.simulation import Simulation

from fleet.report.figure import filled
from fleet.report.figures import LeaseFigures, NodeFigures, PodFigures, request_figures
from fleet.report.record import Record, dump, judged, load
from fleet.report.report import Outcome, Phase, RunFigures

pytest_plugins = ("sim_encodings",)

NODES, PODS_EVERY_S, RECORD_EVERY_S = 5, 4, 1
BEGAN_S, READY_S, ENDS_S = 1_800_000_000.0, 5.0, 240.0


class Shard:
    """One process of the run, from `from_s` on. What it leaves is what its file would have."""

    def __init__(self, number: int, from_s: float = 0.0) -> None:
        self.simulation = Simulation(NODES, seed=number, settled=True)
        self.number, self.from_s = number, from_s
        self.answered = Counter[str]()
        self.kept = b""
        server, handle = self.simulation.server, self.simulation.server.handle

        def counted(method: str, path: str, body: bytes) -> object:
            self.answered[method] += 1
            return handle(method, path, body)

        server.handle = counted  # type: ignore[method-assign,assignment]
        self.keep()

    def run(self, until_s: float, *, is_killed: bool = False) -> None:
        """Run with pods that come and go, and keep the record, until it ends or is killed."""
        simulation = self.simulation
        for second in range(int(until_s - self.from_s)):
            if second % PODS_EVERY_S == 0:
                simulation.create_pod(f"p-{second}", f"n-{second % NODES}")
            if second >= 30 and second % PODS_EVERY_S == 2:
                simulation.server.delete_pod(f"p-{second - 30}")
            simulation.run_for(1)
            if second % RECORD_EVERY_S == 0:
                self.keep()
        if not is_killed:
            self.keep(is_over=True)

    def keep(self, *, is_over: bool = False) -> None:
        counts = self.simulation.reactor.counts
        figures = RunFigures(
            run_id="sim",
            nodes=filled(NodeFigures, counts),
            lease=filled(LeaseFigures, counts),
            pods=filled(PodFigures, counts),
            requests=request_figures(counts.requests),
            phases=[Phase(name="steady", from_s=READY_S, until_s=ENDS_S)],
            wall_s=self.simulation.now_s,
        )
        figures.nodes.requested = figures.nodes.ready = NODES
        record = Record(
            shard=self.number,
            name=f"n-{self.number:04d}",
            shards=4,
            began_s=BEGAN_S + self.from_s,
            ready_s=BEGAN_S + self.from_s + READY_S,
            is_over=is_over,
            is_leader=self.number == 0,
            figures=figures,
        )
        self.kept = dump(record)


def test_a_killed_shard_costs_a_second_of_its_counts_and_the_verdict_says_so() -> None:
    shards = [Shard(number) for number in range(4)]
    for number, shard in enumerate(shards):
        shard.run(83 if number == 2 else ENDS_S, is_killed=number == 2)
    again = Shard(2, from_s=90)
    again.run(ENDS_S)
    shards.append(again)

    figures = judged([load(shard.kept) for shard in shards])

    counted = sum(row.count for row in figures.requests if row.verb != "WATCH")
    answered = sum(sum(shard.answered.values()) for shard in shards)
    assert answered > 4_000
    assert abs(counted - answered) < 0.01 * answered, (counted, answered)
    started = sum(shard.simulation.reactor.counts.pods_running for shard in shards)
    assert abs(figures.pods.started - started) <= 1
    assert (figures.nodes.requested, figures.nodes.ready) == (4 * NODES, 4 * NODES)
    assert [each.starts for each in figures.shards] == [1, 1, 2, 1]
    decided = figures.judgement()
    assert decided.outcome is Outcome.INVALID
    assert decided.reasons == ["a process of the fleet died and was started again"]


def test_a_killed_shard_that_does_not_come_back_makes_the_run_incomplete() -> None:
    shards = [Shard(number) for number in range(4)]
    for number, shard in enumerate(shards):
        shard.run(60, is_killed=number == 3)
    decided = judged([load(shard.kept) for shard in shards]).judgement()
    assert decided.outcome is Outcome.INCOMPLETE
    assert decided.reasons == ["shard n-0003 has not ended: it was killed, or it still runs"]
