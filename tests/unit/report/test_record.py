"""What shards leave adds up to one run with one verdict, whoever adds it up."""

import math
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from run_files import figures_at

from fleet.errors import Exit, UsageError
from fleet.metrics import Histogram
from fleet.report.control_plane import REQUESTS, Exposition
from fleet.report.figures import LeaseFigures
from fleet.report.merge_command import find_records, merge_runs
from fleet.report.record import Record, judged, merged_lines
from fleet.report.report import ControlPlaneFigures, Outcome, Phase, RunFigures
from fleet.report.run_directory import CONTROLPLANE, RunDirectory, read_run
from fleet.report.service_levels import DEFAULTS, Evidence, Objective


def figures_of(shard: int, requests: int, took_ms: int = 10) -> RunFigures:
    figures = replace(figures_at(100, requests), run_id="r", wall_s=200.0)
    figures.lease = LeaseFigures()
    figures.nodes.requested = figures.nodes.registered = figures.nodes.ready = 50
    figures.nodes.time_to_ready_s = 5.0 + shard
    for _ in range(requests):
        figures.lease.late.record(took_ms * 1_000)
        figures.requests[0].latency.record(took_ms * 1_000)
    return figures


def record_of(shard: int, requests: int = 100, took_ms: int = 10) -> Record:
    """Return a record of a run whose steady part lasted from second 10 to second 190."""
    figures = figures_of(shard, requests, took_ms)
    figures.phases = [Phase(name="bring-up"), Phase(name="steady", from_s=10.0, until_s=190.0)]
    return Record(
        shard=shard,
        name=f"fleet-{shard:04d}",
        shards=4,
        began_s=1_000.0,
        ready_s=1_009.0,
        is_over=True,
        is_leader=shard == 0,
        figures=figures,
        evidence=Evidence(steady_s=180.0 if shard == 0 else 0.0),
        objectives=(Objective("LeaseLateness", 99, 0.05, "fleet"),) if shard == 0 else DEFAULTS,
    )


def test_shards_add_up_and_the_slowest_one_is_named() -> None:
    figures = judged([record_of(2), record_of(0), record_of(3, took_ms=40), record_of(1)])
    assert figures.judgement().outcome is Outcome.PASS
    assert (figures.nodes.requested, figures.nodes.time_to_ready_s) == (200, 8.0)
    assert figures.lease.late.count == 400
    [level] = [each for each in figures.slis if each.sli == "LeaseLateness"]
    assert level.samples == 400
    assert level.measured == pytest.approx(0.04, rel=0.05)  # of all, not of the leader
    assert figures.slowest_shard == "fleet-0003"
    assert [each.name for each in figures.shards] == [f"fleet-000{n}" for n in range(4)]
    assert {each.state for each in figures.shards} == {"ended"}


def test_a_slow_shard_fails_the_whole_run() -> None:
    figures = judged([*map(record_of, range(3)), record_of(3, took_ms=400)])
    assert figures.judgement().outcome is Outcome.FAIL


def test_a_shard_without_a_record_makes_the_run_incomplete() -> None:
    decided = judged([record_of(0), record_of(1), record_of(3)]).judgement()
    assert decided.outcome is Outcome.INCOMPLETE
    assert decided.exit_code is Exit.INVALID
    assert decided.reasons == ["shard 2 of 4 left no record"]
    last = judged([record_of(0), record_of(1), record_of(2)]).judgement()
    assert last.reasons == ["shard 3 of 4 left no record"]


def test_a_part_of_a_run_says_nothing_of_shards_that_are_elsewhere() -> None:
    """A pod has the processes of its ordinal; its own summary is of these."""
    part = [record_of(2), record_of(3)]
    assert judged(part, is_whole=False).judgement().exit_code is Exit.OK
    assert judged(part).judgement().reasons == [
        "shard 0 of 4 left no record",
        "shard 1 of 4 left no record",
    ]
    assert judged([record_of(3)]).judgement().outcome is Outcome.INCOMPLETE


def test_a_phase_of_a_scenario_may_have_the_name_of_one_of_the_run() -> None:
    record = record_of(0)
    played = Phase(name="steady", from_s=10.1, until_s=13.1)
    record.figures.phases = phases = [*record.figures.phases, played]
    assert judged([record]).phases == phases


def test_the_first_shard_may_be_the_one_that_was_started_again() -> None:
    killed = replace(record_of(0, requests=60), is_over=False, evidence=Evidence(steady_s=20.0))
    again = replace(record_of(0, requests=40), began_s=1_060.0, ready_s=1_062.0)
    dark = Phase(name="Partition", kind="fault", from_s=32.0, until_s=50.0)
    killed.figures.phases = [*killed.figures.phases, Phase(name="outage", from_s=30.0), dark]
    went_on = Phase(name="outage", from_s=-30.0, until_s=90.0)
    again.figures.phases = [*again.figures.phases, went_on]
    figures = judged([again, killed, *map(record_of, range(1, 4))])
    assert figures.lease.late.count == 400
    outage = Phase(name="outage", from_s=30.0, until_s=150.0)
    assert [each for each in figures.phases if each.name in {"outage", "Partition"}] == [
        dark,
        outage,
    ]
    assert figures.wall_s == 260.0
    first = figures.shards[0]
    assert (first.state, first.starts) == ("ended", 2)
    assert figures.judgement().outcome is Outcome.INVALID


def test_a_shard_that_has_not_ended_makes_the_run_incomplete() -> None:
    killed = replace(record_of(3), is_over=False)
    figures = judged([*map(record_of, range(3)), killed])
    assert figures.judgement().outcome is Outcome.INCOMPLETE
    assert figures.judgement().reasons[0].startswith("shard fleet-0003 has not ended")
    assert [each.state for each in figures.shards][3] == "lost"
    assert figures.lease.late.count == 400  # what it had measured counts


@pytest.mark.parametrize(
    ("ready_s", "reason"),
    [
        (1_027.0, ""),
        (1_040.0, "all its nodes were Ready 30 s after the steady part began"),
        (None, "all its nodes were Ready never"),
    ],
)
def test_a_late_shard_makes_the_run_incomplete(ready_s: float | None, reason: str) -> None:
    figures = judged([*map(record_of, range(3)), replace(record_of(3), ready_s=ready_s)])
    found = figures.judgement()
    assert found.outcome is (Outcome.INCOMPLETE if reason else Outcome.PASS)
    assert not reason or found.reasons == [f"shard fleet-0003 was late: {reason}"]


def test_nothing_is_late_in_a_run_of_seconds() -> None:
    """A process learns of its last Ready node a moment after the first one does."""
    records = [replace(record_of(number), ready_s=1_014.0) for number in range(4)]
    for each in records:
        each.figures.phases = [Phase(name="steady", from_s=10.0, until_s=14.0)]
    assert judged(records).judgement().outcome is not Outcome.INCOMPLETE


def test_a_shard_that_was_started_again_counts_once_as_nodes_and_twice_as_requests() -> None:
    killed = replace(record_of(1, requests=60), is_over=False)
    again = replace(record_of(1, requests=40), began_s=1_100.0, ready_s=1_102.0)
    figures = judged([record_of(0), again, killed, record_of(2), record_of(3)])
    assert figures.nodes.requested == figures.nodes.ready == 200
    assert figures.lease.late.count == 400
    assert [each.starts for each in figures.shards] == [1, 2, 1, 1]
    found = figures.judgement()
    assert found.outcome is Outcome.INVALID  # its nodes had no kubelet for a while
    assert found.reasons == ["a process of the fleet died and was started again"]


def of_ms(*took_ms: int) -> Histogram:
    made = Histogram()
    for each in took_ms:
        made.record(each * 1_000)
    return made


def test_what_every_shard_asked_and_saw_counts() -> None:
    """The control plane's own figures are the leader's; the other shards did not look."""
    writes = {(REQUESTS, "PUT|leases||resource"): [50.0, 100.0]}
    told = Exposition(buckets=writes, bounds={REQUESTS: [0.1, math.inf]})
    records = []
    for shard in range(4):
        record = record_of(shard)
        record.figures.wall_s = 200.0 + shard
        record.figures.controlplane = ControlPlaneFigures(asked_by_fleet={"run": 2, f"{shard}": 1})
        client = [("PUT", "leases", 200, of_ms(*[10 if shard < 2 else 900] * 50))]
        pods = of_ms(*[100 + 400 * shard] * 25)
        record.evidence = Evidence(steady_s=180.0, client=client, pod_starts=pods)
        record.evidence.steady = told if shard == 0 else None
        records.append(record)
    figures = judged(records)
    assert figures.wall_s == 203.0
    asked = {"run": 8, "0": 1, "1": 1, "2": 1, "3": 1}
    assert figures.controlplane.asked_by_fleet == asked
    levels = {each.sli: each for each in figures.slis}
    assert levels["MutatingApiCallLatency"].client == pytest.approx(0.9, rel=0.05)
    assert levels["PodStartupLatency"].samples == 100
    assert levels["PodStartupLatency"].measured == pytest.approx(1.3, rel=0.05)


def test_nodes_that_lost_ready_in_both_starts_of_a_shard_count_once() -> None:
    starts = [record_of(1), replace(record_of(1), began_s=1_100.0)]
    for record, lost in zip(starts, (3, 2), strict=True):
        record.figures.nodes.ever_not_ready = lost
    assert judged([record_of(0), *starts]).nodes.ever_not_ready == 3


def test_a_start_that_left_no_record_is_known_by_who_started_it() -> None:
    decided = judged([*map(record_of, range(4))], 2).judgement()
    assert decided.outcome is Outcome.INVALID
    assert decided.reasons == ["a process of the fleet died and was started again, 2 times"]


def test_a_run_has_as_many_shards_as_the_first_of_them_knew() -> None:
    """A StatefulSet that was scaled up has started the others with a larger total."""
    larger = replace(record_of(3), shards=9)
    assert judged([*map(record_of, range(3)), larger]).judgement().outcome is Outcome.PASS


def test_the_time_series_of_shards_is_added_up_by_the_second() -> None:
    one = [{"wall_s": at + 0.1, "nodes": {"ready": 2}, "requests_ms": {"p99": 5}} for at in (1, 2)]
    other = [
        {
            "wall_s": 0.9 + at,
            "nodes": {"ready": 3},
            "requests_ms": {"p99": 7},
            "requests": [{"verb": "GET", "resource": "x", "code": 200, "count": 4, "ms": {}}],
        }
        for at in (0, 1)
    ]
    lines = merged_lines([(100.0, one), (101.0, other)])
    assert [line["wall_s"] for line in lines] == [1.0, 2.0, 3.0]
    assert [line["nodes"] for line in lines] == [{"ready": 2}, {"ready": 5}, {"ready": 3}]
    assert lines[1]["requests_ms"] == {"p99": 7}
    assert lines[1]["requests"] == other[0]["requests"]
    slow = [{"wall_s": at, "lag_ms": {"p50": 2, "p99": 3, "max": 4}, "n": 1} for at in (1.0, 3.0)]
    lines = merged_lines(
        [
            (100.0, slow),
            (
                100.0,
                [
                    each | {"wall_s": at}
                    for at, each in zip((1, 2, 3), (*slow, slow[0]), strict=True)
                ],
            ),
        ]
    )
    assert [line["n"] for line in lines] == [
        2,
        2,
        2,
    ]  # a second without a line is as the one before
    assert lines[0]["lag_ms"] == {"p50": 2, "p99": 3, "max": 4}


def leave(path: Path, record: Record) -> Path:
    directory = RunDirectory("r", path)
    directory.describe({"options": {"nodes": 50}})
    directory.sample(record.figures)
    directory.keep(record)
    directory.finish(judged([record]))
    return path


def test_run_directories_become_one_directory_page_and_verdict(tmp_path: Path) -> None:
    paths = [leave(tmp_path / "shards" / f"{number}", record_of(number)) for number in range(4)]
    assert len(find_records([tmp_path / "shards", paths[2]])) == 4  # that is named twice
    out = tmp_path / "whole"
    for _ in range(2):  # it may be made again
        text, code = merge_runs(find_records(paths), None, out, "All of it")
    assert code is Exit.OK
    assert "PASS" in text
    assert "4, slowest fleet-000" in text
    run = read_run(out)
    assert (run.title, run.verdict) == ("All of it", Outcome.PASS)
    assert len(run.lines) == 1
    assert "fleet-0003" in (out / "report.html").read_text()
    bare = tmp_path / "bare"
    assert "report" not in merge_runs(find_records(paths), None, bare, has_page=False)[0]
    assert not (bare / "report.html").exists()


def test_the_samples_of_a_merged_run_are_those_that_it_is_judged_by(tmp_path: Path) -> None:
    """The first shard died early; its second start saw the steady part."""
    killed = replace(record_of(0), is_over=False, evidence=Evidence(steady_s=20.0))
    again = replace(record_of(0), began_s=1_060.0, ready_s=1_062.0)
    starts = [leave(tmp_path / f"{at}", each) for at, each in enumerate((killed, again))]
    for path in starts:
        sample = {"component": path.name, "took_ms": 1, "bytes": 9, "histograms": {}, "bounds": {}}
        sample |= {"wall_s": 1, "values": {"x": {"": 1}}}
        (path / CONTROLPLANE).write_bytes(orjson.dumps(sample) + b"\n")
    merge_runs(find_records(starts), None, tmp_path / "whole")
    kept = (tmp_path / "whole" / CONTROLPLANE).read_bytes()
    assert kept == (starts[1] / CONTROLPLANE).read_bytes()


def test_what_is_not_one_run_is_refused(tmp_path: Path) -> None:
    one = leave(tmp_path / "one", record_of(0))
    other = record_of(1)
    two = leave(tmp_path / "two", replace(other, figures=replace(other.figures, run_id="s")))
    with pytest.raises(UsageError, match=r"shards of several runs: r .*s .*--run-id"):
        find_records([one, two])
    with pytest.raises(UsageError, match=r"holds no record.msgpack"):
        find_records([tmp_path / "none"])
    with pytest.raises(UsageError, match=r"--out .*one already holds a run"):
        merge_runs(find_records([one]), None, one)
