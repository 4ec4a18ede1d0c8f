"""Reports to a Locust master: deltas of running histograms."""

from fleet.dashboard.locust_worker import LocustStats, describe
from fleet.metrics import FleetCounts, is_failure

NODES = ("POST", "nodes")
LEASES = ("PUT", "leases")


def test_a_report_holds_what_came_since_the_last() -> None:
    counts = FleetCounts()
    stats = LocustStats(counts, epoch_s=1000.0)
    counts.requests.record(NODES, 201, 1_250, 4_000)
    counts.requests.record(NODES, 201, 3_900, 500)
    first = stats.report(1003.5)
    [row] = first["stats"]
    assert row == {
        "name": "nodes",
        "method": "POST",
        "last_request_timestamp": 1003.5,
        "start_time": 1000.0,
        "num_requests": 2,
        "num_none_requests": 0,
        "num_failures": 0,
        "total_response_time": 5.15,
        "max_response_time": 3.9,
        "min_response_time": 1.2,
        "total_content_length": 4500,
        "response_times": {1.2: 1, 3.9: 1},
        "num_reqs_per_sec": {1003: 2},
        "num_fail_per_sec": {},
    }
    assert first["stats_total"] | {"name": "nodes", "method": "POST"} == row
    assert stats.report(1006.0)["stats"] == []
    counts.requests.record(NODES, 201, 7_000, 30)
    [row] = stats.report(1009.0)["stats"]
    assert (row["num_requests"], row["response_times"]) == (1, {7.0: 1})
    assert row["total_content_length"] == 30
    assert row["start_time"] == 1006.0


def test_rates_belong_to_the_seconds_in_which_answers_came() -> None:
    counts = FleetCounts()
    stats = LocustStats(counts, epoch_s=1000.0)
    for second, answers in ((1001, 3), (1002, 0), (1003, 2)):
        for _ in range(answers):
            counts.requests.record(LEASES, 200, 500)
        stats.sample(second + 0.4)
    [row] = stats.report(1003.9)["stats"]
    assert row["num_reqs_per_sec"] == {1001: 3, 1003: 2}


def test_failures_are_listed_by_code_and_expected_answers_are_none() -> None:
    counts = FleetCounts()
    stats = LocustStats(counts, epoch_s=1000.0)
    for code in (404, 409, 429, 429, 0):
        counts.requests.record(LEASES, code, 1_000)
    report = stats.report(1001.0)
    [row] = report["stats"]
    assert (row["num_requests"], row["num_failures"]) == (5, 3)
    assert row["num_fail_per_sec"] == {1001: 3}
    found = {error["error"]: error["occurrences"] for error in report["errors"].values()}
    assert found == {describe(429): 2, describe(0): 1}
    counts.requests.record(LEASES, 429, 1_000)
    [error] = stats.report(1005.0)["errors"].values()
    assert (error["occurrences"], error["first_seen"], error["last_seen"]) == (1, 1001.0, 1005.0)


def test_node_level_rows_stay_out_of_the_total() -> None:
    counts = FleetCounts()
    stats = LocustStats(counts, epoch_s=1000.0)
    counts.pod_start.record(2_000_000)
    counts.lease_late.record(3_000)
    report = stats.report(1001.0)
    names = {(row["method"], row["name"]) for row in report["stats"]}
    assert names == {("POD", "startup"), ("LEASE", "lateness")}
    assert report["stats_total"]["num_requests"] == 0


def test_what_came_before_a_run_is_dropped() -> None:
    counts = FleetCounts()
    stats = LocustStats(counts, epoch_s=1000.0)
    counts.requests.record(NODES, 201, 1_000)
    stats.report(1001.0)
    assert stats.report(1002.0)["stats"] == []


def test_which_answers_are_failures() -> None:
    codes = (0, 200, 201, 401, 403, 404, 409, 410, 429, 500)
    assert [code for code in codes if is_failure("nodes", code)] == [0, 401, 403, 429, 500]
    assert [code for code in codes if is_failure("pods", code)] == [0, 401, 429, 500]
    assert describe(503) == "503 Service Unavailable"
    assert describe(599) == "599"
