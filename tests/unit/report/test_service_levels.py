"""The arithmetic of service levels, on what a real control plane of 20 nodes told twice.

Between the two scrapes a Deployment went from 10 to 20 pods. The numbers below were counted in the
files by hand: `grep 'verb="PATCH".*resource="pods"' scraped/apiserver-2.txt` and so on.
"""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controlplane.options import APISERVER, SCHEDULER
from fleet.errors import UsageError
from fleet.metrics import Histogram
from fleet.report.control_plane import (
    FAMILIES,
    PARSE_COST,
    REQUESTS,
    SEPARATOR,
    SLICE_CREDIT,
    Exposition,
    Sample,
    Samples,
    Wanted,
    line_of,
    quantile,
)
from fleet.report.figures import NodeFigures, PodFigures, WatchFigures
from fleet.report.report import Phase, RunFigures
from fleet.report.service_levels import (
    DEFAULTS,
    FAILED,
    SCHEDULING,
    SIG,
    Evidence,
    Objective,
    calls_of,
    expectations,
    load_objectives,
    measure,
    slowest,
)

SCRAPED = Path(__file__).parent / "scraped"


def scraped(component: str, number: int) -> Exposition:
    wanted = Wanted(FAMILIES[component])
    name = component.removeprefix("kube-")
    return wanted.read(wanted.keep((SCRAPED / f"{name}-{number}.txt").read_bytes().split(b"\n")))


@pytest.fixture(scope="module")
def period() -> Exposition:
    return scraped(APISERVER, 2).since(scraped(APISERVER, 1))


def test_only_wanted_lines_are_kept_and_added_up() -> None:
    wanted = Wanted(FAMILIES[APISERVER])
    lines = (SCRAPED / "apiserver-1.txt").read_bytes().split(b"\n")
    kept = wanted.keep(lines)
    assert not any(
        line.startswith((b"#", b"apiserver_request_sli_duration_seconds_sum")) for line in kept
    )
    told = wanted.read(kept)
    assert told.total("process_cpu_seconds_total") == 3.05
    assert told.of("apiserver_flowcontrol_dispatched_requests_total")["system-node-high"] == 195
    assert told.of("apiserver_longrunning_requests").keys() == {"pods", "nodes"}
    assert told.bounds[REQUESTS][0] == 0.05
    assert math.isinf(told.bounds[REQUESTS][-1])


def test_an_answer_that_is_read_in_slices_is_the_same() -> None:
    wanted = Wanted(FAMILIES[APISERVER])
    kept = wanted.keep((SCRAPED / "apiserver-2.txt").read_bytes().split(b"\n"))
    found = Exposition()
    slices = sum(1 for _ in wanted.slices(kept, found))
    assert slices == len(kept) * (1 + PARSE_COST) // SLICE_CREDIT
    assert found == scraped(APISERVER, 2)


def test_a_period_is_what_came_in_between(period: Exposition) -> None:
    assert period.buckets[REQUESTS, "PATCH|pods|status|resource"][:4] == [20, 26, 28, 28]
    assert period.of("apiserver_flowcontrol_dispatched_requests_total")["system-nodes"] == 122
    assert period.total("process_cpu_seconds_total") == pytest.approx(0.89)
    assert period.total("nobody_has_this") is None


def test_a_component_that_was_started_again_counts_from_zero() -> None:
    early, late = scraped(APISERVER, 1), scraped(APISERVER, 2)
    again = early.since(late)
    assert again.total("process_cpu_seconds_total") == 3.05
    key = REQUESTS, "PATCH|pods|status|resource"
    assert again.buckets[key] == early.buckets[key]


def test_the_slowest_kind_of_call_is_named_with_its_percentile(period: Exposition) -> None:
    bounds = period.bounds[REQUESTS]
    writes = [each for each in calls_of(period) if each.sli == "MutatingApiCallLatency"]
    found = slowest(writes, bounds, 99, least=1)
    # 28 calls, the 27.72nd is the second of two in the bucket from 0.1 to 0.2 s
    assert found.seconds == pytest.approx(0.186)
    assert (found.samples, found.worst) == (28, "PATCH pods/status")
    reads = [each for each in calls_of(period) if each.sli == "SingleObjectReadLatency"]
    assert slowest(reads, bounds, 99, least=1).seconds == pytest.approx(0.172)


def test_kinds_that_are_rare_are_judged_together(period: Exposition) -> None:
    writes = [each for each in calls_of(period) if each.sli == "MutatingApiCallLatency"]
    found = slowest(writes, period.bounds[REQUESTS], 99, least=1000)
    assert found.worst == "all kinds"
    assert found.samples == sum(each.buckets[-1] for each in writes)


def test_health_checks_and_streams_are_no_api_calls(period: Exposition) -> None:
    period.buckets[REQUESTS, "GET|pods|log|resource"] = [1.0] * 22
    assert {each.resource for each in calls_of(period)} <= {
        "leases", "pods", "pods/status", "nodes", "nodes/status"
    }  # fmt: skip


@given(st.lists(st.floats(0.001, 80), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_sample(samples: list[float], share: float) -> None:
    bounds = [0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, math.inf]
    cumulative = [float(sum(each <= bound for each in samples)) for bound in bounds]
    exact = sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]
    low, high = next((a, b) for a, b in pairwise((0.0, *bounds)) if a < exact <= b)
    found = quantile(share, bounds, cumulative)
    assert found is not None
    assert low <= found <= high or (math.isinf(high) and found == 60.0)


def test_no_samples_have_no_quantile() -> None:
    assert quantile(0.99, [1.0, math.inf], [0.0, 0.0]) is None
    assert quantile(0.99, [], []) is None


def test_what_is_written_is_read_back() -> None:
    first, second = scraped(APISERVER, 1), scraped(APISERVER, 2)
    first.values["apiserver_longrunning_requests", "gone"] = 7.0
    samples = [
        Sample(APISERVER, 5.0, 41.0, 2_000_000, first),
        Sample(APISERVER, 10.0, 42.5, 2_100_000, second),
    ]
    lines = [line_of(samples[0], Exposition()), line_of(samples[1], first)]
    assert len(lines[1]) < len(lines[0])  # only what changed
    read = Samples.read([*lines, b'{"wall_s": 15'])  # cut off by a crash
    assert [each.at_s for each in read.of[APISERVER]] == [5.0, 10.0]
    for told, wanted in zip(read.of[APISERVER], (first, second), strict=True):
        assert told.told.values == {k: round(v, 6) for k, v in wanted.values.items()}
        assert told.told.buckets == wanted.buckets
        assert told.told.bounds == wanted.bounds


def histogram(count: int, us: int) -> Histogram:
    made = Histogram()
    for _ in range(count):
        made.record(us)
    return made


def run(pods: int = 0, us: int = 0) -> RunFigures:
    return RunFigures(
        run_id="r",
        nodes=NodeFigures(requested=20, registered=20, ready=20, time_to_ready_s=3.0),
        pods=PodFigures(start_sli=histogram(pods, us)),
    )


def evidence(period: Exposition, steady_s: float = 300) -> Evidence:
    return Evidence(steady_s=steady_s, steady=period, whole=period)


def slow(period: Exposition, count: int, le: float) -> Exposition:
    """Let so many writes take longer than all but one bound."""
    bounds = period.bounds[REQUESTS]
    row = [float(count) if bound > le else 0.0 for bound in bounds]
    return Exposition({}, {(REQUESTS, "PUT|leases||resource"): row}, {REQUESTS: bounds})


def test_a_slow_server_fails_the_run_and_says_which_call(period: Exposition) -> None:
    figures = run()
    figures.slis = measure(figures, evidence(slow(period, 400, 1.5)), DEFAULTS)
    figures.expectations = expectations(figures.slis)
    (found,) = figures.expectations
    assert not found.is_met
    assert found.name == "MutatingApiCallLatency p99 <= 1 s"
    assert found.detail == "2 s, PUT leases, 400 samples"
    assert (figures.judgement().outcome, figures.judgement().exit_code) == ("fail", 1)


@pytest.mark.parametrize(
    ("count", "steady_s", "why"),
    [(99, 300, "fewer than 100 samples"), (400, 59, "all nodes were Ready for less than 60 s")],
)
def test_what_fleet_expects_by_itself_is_no_verdict_on_little(
    period: Exposition, count: int, steady_s: float, why: str
) -> None:
    figures = run()
    levels = measure(figures, evidence(slow(period, count, 1.5), steady_s), DEFAULTS)
    assert expectations(levels) == []
    (level,) = [each for each in levels if each.sli == "MutatingApiCallLatency"]
    assert (level.met, level.judged, level.note) == (False, False, f"not judged: {why}")


def test_what_a_file_asks_is_a_verdict_however_little_there_is(period: Exposition) -> None:
    asked = [Objective("MutatingApiCallLatency", 99, 1.0, "slo.yaml", min_samples=1)]
    levels = measure(run(), evidence(slow(period, 3, 1.5), 2), asked)
    assert [each.is_met for each in expectations(levels)] == [False]


def test_what_a_file_asks_and_nobody_measured_is_not_judged() -> None:
    asked = [Objective("MutatingApiCallLatency", 99, 1.0, "slo.yaml", min_samples=1)]
    levels = measure(run(), Evidence(problem="no metrics of the API server: forbidden"), asked)
    (found,) = expectations(levels)
    assert found.is_met is None
    assert found.detail == "not measured; not judged: no metrics of the API server: forbidden"


def test_a_watch_s_delay_is_told_at_most_and_at_least() -> None:
    figures = run()
    figures.watch = WatchFigures(delay=histogram(3, 40_000), behind=histogram(3, 9_000))
    asked = [Objective("WatchDelay", 99, 0.03, "slo.yaml", min_samples=1, phase="run")]
    (level,) = [each for each in measure(figures, Evidence(), asked) if each.sli == "WatchDelay"]
    assert (level.measured, level.samples, level.met) == (0.04, 3, False)
    assert level.note == "at least 9 ms"
    figures.watch.delay_lost = 2
    (level,) = [each for each in measure(figures, Evidence(), ()) if each.sli == "WatchDelay"]
    assert level.note == "at least 9 ms; 2 events did not come within a minute"
    assert (level.limit, level.judged) == (None, False)


def test_a_pod_start_has_the_scheduler_s_part_in_it() -> None:
    scheduler = scraped(SCHEDULER, 2).since(scraped(SCHEDULER, 1))
    assert scheduler.buckets[SCHEDULING, ""][-1] == 10
    waited = quantile(0.99, scheduler.bounds[SCHEDULING], scheduler.buckets[SCHEDULING, ""])
    assert waited is not None
    shown = Evidence(steady_s=300, scheduler=scheduler)
    levels = {each.sli: each for each in measure(run(200, 2_000_000), shown, DEFAULTS)}
    start = levels["PodStartupLatency"]
    assert start.measured == pytest.approx(2.0 + waited)
    assert (start.judged, start.met, start.samples) == (True, True, 200)
    alone = {each.sli: each for each in measure(run(200, 6_000_000), Evidence(), DEFAULTS)}
    assert "without the scheduler" in alone["PodStartupLatency"].note
    assert alone["PodStartupLatency"].met is False


def test_a_burst_of_pods_is_not_what_the_slo_is_about() -> None:
    figures = run(500, 8_000_000)
    figures.pods.started_per_s_max = 60.0
    shown = measure(figures, Evidence(steady_s=300), DEFAULTS)
    (start,) = [each for each in shown if each.sli == "PodStartupLatency"]
    assert (start.met, start.judged) == (False, False)
    figures.pods.started_per_s_max = 19.0
    (found,) = expectations(measure(figures, Evidence(steady_s=300), DEFAULTS))
    assert not found.is_met


def test_nodes_that_were_lost_are_shown_but_no_verdict() -> None:
    figures = run()
    figures.nodes.ever_not_ready = 3
    levels = measure(figures, Evidence(), DEFAULTS)
    (lost,) = [each for each in levels if each.sli == "FalseNotReadyNodes"]
    assert (lost.measured, lost.met, lost.judged) == (3, False, False)
    assert expectations(levels) == []


def test_a_run_in_which_requests_fail_does_not_pass() -> None:
    """By its latencies alone it would: who is killed counts nothing slow."""
    key = SEPARATOR.join(("PUT", "leases", "", "resource"))
    told = Exposition({}, {(REQUESTS, key): [500.0, 500.0]}, {REQUESTS: [0.5, math.inf]})

    def judged(failed: int, *, server: bool = True, fault: bool = False) -> dict[str, bool | None]:
        figures = run()
        figures.phases = [Phase(name="restart", kind="fault")] if fault else []
        rows = ((200, 880), (404, 100), (409, 20), (0, failed), (429, failed), (503, failed))
        client = [("PUT", "leases", code, Histogram(count=count)) for code, count in rows]
        evidence = Evidence(steady_s=300, steady=told if server else None, client=client)
        found = expectations(measure(figures, evidence, DEFAULTS))
        return {each.name.partition(" ")[0]: each.is_met for each in found}

    assert judged(3) == {"MutatingApiCallLatency": True, FAILED: True}
    assert judged(4) == {"MutatingApiCallLatency": True, FAILED: False}
    assert FAILED not in judged(4, fault=True)
    assert judged(4, server=False) == {FAILED: False}
    assert not judged(3, server=False)  # that is not enough to pass


HEAD = "apiVersion: fleet.emulator/v1alpha1\nkind: ServiceLevelObjectives\nmetadata: {name: a}\n"


def test_a_file_changes_and_adds(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(
        HEAD + "spec:\n  expectations:\n"
        "  - {sli: MutatingApiCallLatency, percentile: 50, max: 200ms, phase: run}\n"
        "  - {sli: FalseNotReadyNodes, max: 2}\n"
        "  - {sli: TimeToNodesReady, max: 2m}\n"
    )
    found = {each.sli: each for each in load_objectives(path)}
    changed = found["MutatingApiCallLatency"]
    assert (changed.percentile, changed.limit, changed.phase) == (50, 0.2, "run")
    assert (changed.source, changed.is_judged) == (str(path), True)
    assert found["ListLatency"].source == SIG
    assert found["FalseNotReadyNodes"].limit == 2
    assert found["FalseNotReadyNodes"].is_judged
    assert found["TimeToNodesReady"].limit == 120
    path.write_text(HEAD + "spec: {defaults: false, expectations: []}\n")
    assert load_objectives(path) == ()


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("{expectations: [{sli: Speed, max: 1s}]}", "'Speed' is not one of MutatingApiCallLatency"),
        ("{expectations: [{sli: ListLatency, max: 5}]}", "5 has no unit; write it as 500ms or 1s"),
        ("{expectations: [{sli: ListLatency, max: 5 s}]}", "'5 s' is not a duration"),
        ("{expectations: [{sli: FalseNotReadyNodes, max: 1s}]}", "'1s' is not a number of nodes"),
        ("{expectations: [{sli: FalseNotReadyNodes, max: -1}]}", "-1 is negative"),
        ("{expectations: [{sli: TimeToNodesReady, percentile: 9, max: 1s}]}", "a single figure"),
        ("{expectations: [{sli: LeaseLateness, max: 1s, phase: steady}]}", "the whole run"),
        ("{expectations: [{sli: ListLatency, percentile: 101, max: 1s}]}", "percentile: 101"),
        ("{expectations: [{sli: ListLatency}]}", "spec.expectations[0].max: is required"),
        ("{expect: []}", "unknown key 'expect'; did you mean 'expectations'?"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, spec: str, told: str) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(f"{HEAD}spec: {spec}\n")
    with pytest.raises(UsageError) as caught:
        load_objectives(path)
    text = str(caught.value)
    assert text.startswith(f"--slo {path}: spec")
    assert told in text
    assert "\n" not in text


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [\n", "kind: Pod\n", "\udcff"])
def test_what_is_no_such_file_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slo.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"\A--slo [^\n]+\Z"):
        load_objectives(path)
    with pytest.raises(UsageError, match="No such file"):
        load_objectives(tmp_path / "none.yaml")
