import json
from pathlib import Path

import pytest
from world.sim_clock import SimClock

from fleet.cluster.run_id import new_run_id, run_started_s
from fleet.errors import Exit, UsageError
from fleet.metrics import Histogram
from fleet.report.figures import (
    EventFigures,
    LeaseFigures,
    NodeFigures,
    PodFigures,
    ProcessFigures,
    RequestFigures,
    WatchFigures,
)
from fleet.report.record import merge
from fleet.report.report import LONGER, Expectation, RunFigures, ServiceLevel, summary
from fleet.report.run_directory import RunDirectory
from fleet.report.service_levels import SIG
from fleet.report.summary_text import duration, summary_text


def histogram(*samples_us: int) -> Histogram:
    made = Histogram()
    for sample_us in samples_us:
        made.record(sample_us)
    return made


def figures() -> RunFigures:
    return RunFigures(
        run_id="20261121-033617-ab12",
        server_version="v1.36.3",
        etcd_fsync=False,
        nodes=NodeFigures(requested=10, registered=10, ready=10, time_to_ready_s=2.0),
        lease=LeaseFigures(renewals=30, interval_max_s=10.4, late=histogram(100, 200, 9_000)),
        pods=PodFigures(started=4, deleted=1, start=histogram(400_000)),
        requests=[
            RequestFigures("PUT", "leases", 200, 30, histogram(2_000, 3_000)),
            RequestFigures("POST", "nodes", 201, 10, histogram(5_000)),
            RequestFigures("GET", "nodes", 429, 2, histogram(1_000)),
        ],
        events=EventFigures(sent=60, dropped=1),
        watch=WatchFigures(open=50, events=120),
        process=ProcessFigures(cpu_s=0.42, rss_bytes=60_000_000, timer_lag=histogram(15_000)),
        wall_s=20.0,
    )


def test_the_summary_has_counts_and_percentiles() -> None:
    content = summary(figures())
    assert content["lease"] == {
        "renewals": 30,
        "interval_max_s": 10.4,
        "late_ms": {"p50": 0.3, "p99": 9.0, "max": 9.0},
        "missed": 0,
    }
    requests = content["requests"]
    assert isinstance(requests, list)
    assert requests[0] == {
        "verb": "PUT",
        "resource": "leases",
        "code": 200,
        "count": 30,
        "ms": {"p50": 2.1, "p99": 3.0},
    }
    assert content["process"] == {
        "cpu_s": 0.42,
        "rss_bytes": 60_000_000,
        "rss_bytes_per_node": 6_000_000,
        "cpu_us_per_request": 10_000.0,
        "timer_lag_ms": {"p50": 15.0, "p99": 15.0},
        "throttled_ms": {"p50": None, "p99": None},
        "gc_collections": 0,
    }


def test_what_was_not_measured_is_null_not_zero() -> None:
    content = summary(RunFigures(run_id="a"))
    pods = content["pods"]
    assert isinstance(pods, dict)
    assert pods.pop("started_per_s_max") == 0.0
    assert {key for key, value in pods.items() if value == 0} == {"started", "deleted", "failed"}
    unknown = {"p50": None, "p99": None}
    assert [key for key, value in pods.items() if value == unknown] == [
        f"start_{each}ms" for each in ("", "sli_", "scheduler_", "api_", "fleet_", "simulated_")
    ]
    assert content["etcd_fsync"] is None
    assert json.dumps(content)


def held() -> RunFigures:
    """Return a run that met what it was held to."""
    run = figures()
    run.expectations = [Expectation("ready in 5 s", is_met=True, detail="took 2 s")]
    return run


def test_a_good_run_passes() -> None:
    assert held().judgement().outcome == "pass"
    assert held().judgement().exit_code is Exit.OK
    assert summary(held())["valid"] is True
    assert summary_text(held()).splitlines()[0].endswith(": PASS")


def test_a_run_that_hit_a_limit_of_fleets_own_is_invalid_and_names_it() -> None:
    run = held()
    run.own_limits = {"open files": 2, "streams to the API server": 280_000}
    words = "streams to the API server (280,000 times), open files (2 times)"
    assert run.judgement().outcome == "invalid"
    assert run.judgement().exit_code is Exit.INVALID
    [reason] = run.all_invalid_reasons()
    assert reason == f"fleet hit its own limits, the API server did not: {words}"
    assert words in summary_text(run)
    assert summary(run)["own_limits"] == run.own_limits
    assert merge([run, run]).own_limits == {"open files": 4, "streams to the API server": 560_000}


def test_a_run_of_which_nothing_could_be_judged_is_not_judged_and_says_what_to_do() -> None:
    run = figures()
    level = ServiceLevel(
        sli="MutatingApiCallLatency",
        measured=1.62,
        limit=1.0,
        source=SIG,
        met=False,
        note="not judged: all nodes were Ready for less than 60 s",
        unjudged="all nodes were Ready for less than 60 s",
    )
    run.slis = [level]
    content = summary(run)
    assert (content["verdict"], content["valid"]) == ("not-judged", True)
    assert run.judgement().exit_code is Exit.OK
    why = ["all nodes were Ready for less than 60 s", LONGER]
    assert content["verdict_reasons"] == why
    lines = summary_text(run).splitlines()
    assert lines[0].endswith(": NOT JUDGED")
    assert [line.strip(" -") for line in lines[1:3]] == why
    [shown] = [line for line in lines if "1.62 s, over 1 s" in line]
    assert not any("\x1b" in line for line in lines)
    assert f"\x1b[90m{shown}\x1b[0m" in summary_text(run, has_colours=True)


def test_what_the_user_asked_for_and_nobody_could_judge_exits_with_4() -> None:
    run = held()
    asked = Expectation("PodStartupLatency p99 <= 5 s", is_met=None, detail="not measured")
    run.expectations = [*run.expectations, asked]
    assert (run.judgement().outcome, run.judgement().exit_code) == ("not-judged", Exit.INVALID)
    assert summary(run)["verdict_reasons"] == [
        "not judged: PodStartupLatency p99 <= 5 s (not measured)",
        LONGER,
    ]
    text = summary_text(run)
    assert "\n  not judged: PodStartupLatency p99 <= 5 s (not measured)\n" in text
    assert (text.count("not judged: PodStartupLatency"), text.count(LONGER)) == (1, 1)
    run.expectations = [*run.expectations, Expectation("x", is_met=False)]
    assert run.judgement().outcome == "fail", "what was broken is graver than what is not known"


@pytest.mark.parametrize(
    ("wall_s", "timers", "verdict"),
    [(3.0, 1_000, "pass"), (9.9, 1_000, "pass"), (10.0, 99, "pass"), (10.0, 100, "invalid")],
)
def test_lag_is_judged_over_ten_seconds_and_enough_timers(
    wall_s: float, timers: int, verdict: str
) -> None:
    run = held()
    run.wall_s, run.process.timer_lag = wall_s, histogram(*[150_000] * timers)
    assert run.judgement().outcome == verdict


@pytest.mark.parametrize(("wall_s", "verdict"), [(9.0, "pass"), (20.0, "invalid")])
def test_a_standstill_needs_one_timer_but_no_short_run(wall_s: float, verdict: str) -> None:
    run = held()
    run.wall_s, run.process.timer_lag = wall_s, histogram(5_000_000)
    assert run.judgement().outcome == verdict


def test_an_expectation_that_was_not_met_fails() -> None:
    run = figures()
    run.expectations = [Expectation("ready in 1 s", is_met=False, detail="took 2 s")]
    assert run.judgement().outcome == "fail"
    assert run.judgement().exit_code is Exit.EXPECTATION_FAILED
    assert summary(run)["valid"] is True
    assert "NOT MET: ready in 1 s (took 2 s)" in summary_text(run)


@pytest.mark.parametrize("trouble", ["lag", "closed", "reported"])
def test_a_run_whose_instrument_lagged_is_invalid_and_says_so_first(trouble: str) -> None:
    run = figures()
    run.expectations = [Expectation("x", is_met=False)]
    if trouble == "lag":
        run.process.timer_lag = histogram(*[150_000] * 100)
    elif trouble == "closed":
        run.watch.closed_slow = 3
    else:
        run.invalid_reasons = ["one node was quarantined"]
    content = summary(run)
    assert (content["verdict"], content["valid"]) == ("invalid", False)
    assert content["invalid_reasons"] == run.all_invalid_reasons()
    assert len(run.all_invalid_reasons()) == 1
    assert run.judgement().exit_code is Exit.INVALID
    first, second = summary_text(run).splitlines()[:2]
    assert first.endswith("INVALID: do not use these figures")
    assert second == f"  - {run.all_invalid_reasons()[0]}"


def test_run_ids_sort_by_time_and_tell_it() -> None:
    wall_ns = SimClock.EPOCH_NS
    first, later = new_run_id(wall_ns, 7), new_run_id(wall_ns + 10**9, 7)
    assert first.startswith("20260101-000000-")
    assert first < later
    assert first != new_run_id(wall_ns, 8)
    assert run_started_s(first) == wall_ns // 10**9
    assert run_started_s("something-else") is None


def test_the_run_directory_holds_a_line_a_second_and_the_summary(tmp_path: Path) -> None:
    directory = RunDirectory("r", tmp_path / "deep" / "run")
    run = figures()
    run.wall_s = 10.0
    directory.sample(run)
    directory.sample(run)  # no time has passed: no line
    run.wall_s = 12.0
    run.lease.renewals += 10
    run.lease.late.record(50_000)
    run.requests = [*run.requests[:1], RequestFigures("GET", "nodes", 429, 6, histogram(1, 1))]
    directory.sample(run)
    directory.finish(run)
    lines = [
        json.loads(line) for line in (directory.path / "timeseries.jsonl").read_text().splitlines()
    ]
    assert [line["wall_s"] for line in lines] == [10.0, 12.0]
    assert lines[0]["lease"]["renewals"] == 3.0
    assert lines[1]["lease"]["renewals"] == 5.0
    assert lines[1]["lease"]["late_ms"]["p50"] == 50.0
    assert lines[1]["pods"]["started"] == 0
    assert lines[1]["nodes"]["ready"] == 10
    assert [(row["verb"], row["count"]) for row in lines[1]["requests"]] == [("GET", 2.0)]
    assert json.loads((directory.path / "summary.json").read_text()) == summary(run)


def test_each_second_s_percentiles_are_of_that_second(tmp_path: Path) -> None:
    directory = RunDirectory("r", tmp_path / "run")
    latency = histogram(*[900_000] * 100)
    run = RunFigures(run_id="r", wall_s=1.0)
    run.requests = [RequestFigures("PUT", "leases", 200, 100, latency)]
    directory.sample(run)
    latency.record(1_000)
    run.requests = [RequestFigures("PUT", "leases", 200, 101, latency)]
    run.wall_s = 2.0
    directory.sample(run)
    directory.close()
    line = json.loads((directory.path / "timeseries.jsonl").read_text().splitlines()[1])
    assert line["requests"][0]["ms"]["p99"] == 1.1


def test_an_earlier_run_is_never_overwritten(tmp_path: Path) -> None:
    RunDirectory("r", tmp_path).finish(figures())
    with pytest.raises(UsageError, match="already holds a run"):
        RunDirectory("r", tmp_path)


def test_the_text_says_what_happened() -> None:
    text = summary_text(figures(), Path("runs/r"), ["fleet spawn --nodes 20"])
    assert text.splitlines()[0] == "fleet run 20261121-033617-ab12: NOT JUDGED"
    assert "10 of 10 Ready, all after 2.0 s (5/s)" in text
    assert "none missed" in text
    assert "etcd fsync OFF" in text
    assert "42 in 20.0 s (2/s on average), 2 errors" in text
    assert "PUT   leases     200     30" in text
    assert text.endswith("  runs/r/summary.json\nTry next:\n  fleet spawn --nodes 20\n")


def test_the_text_says_how_nodes_started_and_when_their_watches_were_open() -> None:
    found = figures()
    assert "cold" not in summary_text(found)
    found.nodes.time_to_settled_s = 1.5
    found.start = "cold"
    assert "after 2.0 s (5/s), watches open after 1.5 s, started cold" in summary_text(found)


def test_nodes_that_went_before_the_end_are_not_said_to_be_there() -> None:
    found = figures()
    found.nodes.ready = 0  # a dashboard has stopped them
    assert "0 of 10 Ready at the end; all were Ready after 2.0 s" in summary_text(found)


def test_failures_are_tabulated_however_rare() -> None:
    run = figures()
    run.requests = [RequestFigures("GET", f"r{i}", 200, 100, histogram(1)) for i in range(20)]
    run.requests = [*run.requests, RequestFigures("GET", "x", 0, 1, Histogram())]
    lines = summary_text(run).splitlines()
    assert any("none" in line and "GET    x" in line for line in lines)
    assert any("8 more kinds" in line and "800" in line for line in lines)


def test_what_a_healthy_server_answers_by_design_is_no_error() -> None:
    """A GET before a create, a conflict, a watch of an old version; all codes stay in the JSON."""
    run = figures()
    codes = {404: "nodes", 409: "leases", 410: "pods", 403: "secrets"}
    by_design = [RequestFigures("GET", of, code, 5, histogram(1)) for code, of in codes.items()]
    run.requests = [*run.requests[:2], *by_design]
    assert "60 in 20.0 s (3/s on average), 0 errors" in summary_text(run)
    listed = summary(run)["requests"]
    assert isinstance(listed, list)
    assert {row["code"] for row in listed} == {200, 201, *codes}
    run.requests = [*run.requests, RequestFigures("GET", "nodes", 500, 1, histogram(1))]
    assert "1 error\n" in summary_text(run)


def test_refused_requests_stand_on_top() -> None:
    run = figures()
    run.requests = [
        *(RequestFigures("GET", f"r{i}", 500, 100, histogram(1)) for i in range(20)),
        RequestFigures("POST", "leases", 429, 9, histogram(1)),  # a Lease to be made
        RequestFigures("PATCH", "leases", 429, 3, histogram(1)),
        RequestFigures("PUT", "leases", 429, 4, histogram(1)),
    ]
    lines = summary_text(run).splitlines()
    words = "  the API server REFUSED 7 renewals of Leases and 9 other requests (429)"
    assert words in lines[:3]
    table = [line.split()[:3] for line in lines if line.startswith(("  P", "  GET"))]
    assert table[:3] == [[verb, "leases", "429"] for verb in ("PUT", "PATCH", "POST")]


def test_a_remote_server_says_nothing_about_fsync() -> None:
    run = figures()
    run.etcd_fsync = None
    assert "fsync" not in summary_text(run)
    run.etcd_fsync = True
    assert "etcd fsync on" in summary_text(run)


def test_trouble_stands_out() -> None:
    run = figures()
    run.nodes = NodeFigures(requested=10, registered=8, ready=7, ever_not_ready=2)
    run.lease.missed = 3
    run.pods.failed = 1
    text = summary_text(run)
    assert "7 of 10 Ready, 8 registered; 2 WENT NotReady" in text
    assert "3 MISSED" in text
    assert "1 FAILED" in text


@pytest.mark.parametrize(
    ("seconds", "said"), [(4.24, "4.2 s"), (185, "3 min 5 s"), (7_800, "2 h 10 min")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_runs_lie_under_runs_and_one_with_a_fixed_name_never_writes_over_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = []
    for _ in range(3):  # a container that is started again finds what it left
        directory = RunDirectory("r")
        directory.close()
        paths.append(directory.path)
    assert paths == [Path("runs/r"), Path("runs/r-2"), Path("runs/r-3")]


def test_the_summary_says_why_nodes_could_not_register() -> None:
    run = figures()
    run.unregistered = {"NODE may not set the label x": 2, "quota": 7}
    [line] = [each for each in summary_text(run).splitlines() if "could not register" in each]
    said = "7 could not register: quota; 2 could not register: NODE may not set the label x"
    assert line.split(maxsplit=1) == ["unregistered", said]
    assert "register:" not in summary_text(figures())
