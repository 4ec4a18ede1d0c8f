"""The search of `fleet capacity`, and what its runs are asked."""

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cli import run_scenario
from fleet.controlplane.options import ComponentDeath
from fleet.errors import SetupError, UsageError
from fleet.profile.settings import Settings
from fleet.report.capacity_report import Probe, Search
from fleet.report.control_plane import Samples
from fleet.report.figure import Json
from fleet.report.report import Outcome, ServiceLevel
from fleet.report.run_directory import RunRecord
from fleet.run.capacity import (
    Asked,
    CapacitySearch,
    Workload,
    _is_late,
    answer_of,
    asked_of,
    ended_by,
    environment_of,
    judged,
    nearest,
    options_of,
    search,
    text,
)
from fleet.run.capacity_shards import Part
from fleet.scenario.scenario import parse


def searched(search: CapacitySearch, capacity: int) -> list[int]:
    """Let every size up to a capacity hold; return what was tried."""
    tried = []
    while nodes := search.next():
        tried.append(nodes)
        search.note(nodes, held=nodes <= capacity)
        assert len(tried) < 100
    return tried


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(0, 30_000), st.integers(1, 3))
def test_what_is_found_is_within_the_precision(
    first: int, most: int, capacity: int, tries: int
) -> None:
    search = CapacitySearch(first, most, 0.1, tries)
    tried = searched(search, capacity)
    assert max(tried) <= most
    if capacity >= most:
        assert (search.held, search.broke) == (most, 0)
        return
    assert search.held <= capacity < search.broke
    assert search.broke - search.held <= max(1, search.held * 0.1)
    assert tried.count(search.broke) == tries


def test_a_size_that_broke_by_chance_is_tried_again_at_the_end() -> None:
    """All below it holds, so it would be the answer; then the next one that broke is looked at."""
    search = CapacitySearch(100, 800, 0.1, 2)
    tried = []
    while nodes := search.next():
        by_chance = nodes == 200 and 200 not in tried
        tried.append(nodes)
        search.note(nodes, held=nodes <= 430 and not by_chance)
    assert tried[:2] == [100, 200]
    assert tried.count(200) == 2
    assert (search.held, search.broke) == (420, 450)
    assert tried.count(450) == 2
    assert len(tried) == len(set(tried)) + 2, "no other size is tried twice"


@given(st.integers(200, 10_000), st.lists(st.booleans(), min_size=60, max_size=60))
def test_three_searches_of_one_server_agree_within_fifteen_percent(
    capacity: int, luck: list[bool]
) -> None:
    """Sizes within 2 % of its capacity hold or break by chance."""
    chances = iter(luck * 3)
    found = []
    for _ in range(3):
        search = CapacitySearch(100, 20_000, 0.1, 2)
        while nodes := search.next():
            is_close = 0.98 * capacity <= nodes <= 1.02 * capacity
            search.note(nodes, held=next(chances) if is_close else nodes < capacity)
        found.append(search.held)
    assert max(found) <= 1.15 * min(found)


def test_sizes_are_round_where_the_gap_has_room() -> None:
    assert searched(CapacitySearch(100, 20_000, 0.1, 1), 1_333) == [
        *(100, 200, 400, 800, 1_600),
        *(1_200, 1_400, 1_300),
    ]


def test_real_nodes_are_for_the_pods_of_a_scenario() -> None:
    asked = asked_of("gpu-cluster", "75s", 100, {"real_nodes": True})
    assert asked.arguments == ["run", "gpu-cluster", "--real-nodes"]
    assert run_scenario.make_context("run", asked.arguments[1:]).params["real_nodes"]
    with pytest.raises(UsageError, match="--real-nodes is about pods: add --scenario"):
        asked_of(None, "75s", 100, {"real_nodes": True})


def test_pods_per_node_are_a_scenario_that_each_run_plays(tmp_path: Path) -> None:
    asked = asked_of(None, "90s", 100, {"seed": 3}, Workload(4, 0.1), "3m")
    assert asked.arguments == ["run", "--seed=3"]
    assert asked.load.startswith("4 pods on each node through the scheduler, 0.1 of them")
    scenario = parse(asked.scenario, "in-use.yaml")
    load, use = scenario.spec.phases
    [apply], [churn] = load.apply, use.churn
    assert apply.copies(apply.manifests(tmp_path), 50) == 50
    assert (load.preparation, load.until and load.until.timeout_ns) == (True, 180 * 10**9)
    assert (use.duration_ns, churn.per_second(50)) == (90 * 10**9, 5.0)
    still = parse(asked_of(None, "75s", 9, {}, Workload(1, 0.0)).scenario, "x")
    assert not still.spec.phases[1].churn
    usual = parse(asked_of(None, "75s", 9, {}, Workload(1)).scenario, "x")
    assert usual.spec.phases[1].churn[0].per_second(5_000) == 20


def test_service_levels_of_a_file_are_those_of_the_scenario(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: ServiceLevelObjectives\nmetadata: {name: own}\n"
        "spec: {defaults: false, expectations: [{sli: TimeToNodesReady, max: 9s}]}\n"
    )
    asked = asked_of(None, "75s", 9, {"slo": slo}, Workload(1))
    assert asked.arguments == ["run"]
    spec = parse(asked.scenario, "x").spec
    assert not spec.defaults
    assert [each.sli for each in spec.expectations] == ["TimeToNodesReady"]


def test_several_machines_play_a_scenario_also_without_pods() -> None:
    given = {"context": "test", "confirm_cluster": "test", "seed": 3}
    asked = asked_of(None, "90s", 9, given, None, "3m", Part.parse("1/2"))
    assert asked.arguments[0] == "run"
    assert asked.load.startswith("no pods")
    [phase] = parse(asked.scenario, "x").spec.phases
    assert (phase.duration_ns, phase.until) == (90 * 10**9, None)
    with pytest.raises(UsageError, match="--shard: machines meet at an existing cluster"):
        asked_of(None, "90s", 9, {}, None, "3m", Part(1, 2))


@pytest.mark.parametrize("text", ["", "1", "2/2", "-1/2", "0/0", "a/b"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--shard: .* is not K/N, such as 0/3"):
        Part.parse(text)


@given(st.integers(1, 300), st.integers(1, 9))
def test_all_nodes_have_a_machine(nodes: int, shards: int) -> None:
    parts = []
    for shard in range(Part(0, shards).of(nodes)):
        flags = Part(shard, shards).flags("r", nodes)
        given_ = dict(
            each.removeprefix("--").replace("-", "_").partition("=")[::2] for each in flags
        )
        parts.append(Settings.from_options(**given_).nodes)
    assert (sum(parts), len(parts) <= shards) == (nodes, True)


@pytest.mark.parametrize(
    ("scenario", "workload", "told"),
    [
        ("zone-outage", Workload(1), "--pods-per-node excludes --scenario"),
        (None, Workload(0), "--pods-per-node: 0 is not between 1 and 109"),
        (None, Workload(110), "--pods-per-node: 110 is not between 1 and 109"),
        (None, Workload(1, -1.0), "--pod-churn: -1 is not between 0 and 1"),
        (None, Workload(None, 0.1), "--pod-churn goes with --pods-per-node"),
    ],
)
def test_a_workload_that_cannot_be_is_one_line(
    scenario: str | None, workload: Workload, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        asked_of(scenario, "75s", 100, {}, workload)


def test_runs_have_the_options_of_spawn_as_they_were_given() -> None:
    given = {"fidelity": "light", "profile": ("a=1", "b=2"), "fsync": True, "no_taint": False}
    assert asked_of(None, "75s", 100, {**given, "profile": (), "seed": None}).arguments == [
        *("spawn", "--duration=75s", "--fidelity=light", "--fsync"),
    ]
    assert asked_of("zone-outage", "75s", 100, {"etcd_flag": ("a=1", "b=2")}).arguments == [
        *("run", "zone-outage", "--etcd-flag=a=1", "--etcd-flag=b=2"),
    ]
    assert asked_of(None, "75s", 100, {"seed": 0}).arguments[2:] == ["--seed=0"]


def test_a_credential_goes_by_the_environment_and_an_option_does_not() -> None:
    token = "abcdef.0123456789abcdef"
    asked = asked_of(
        *(None, "75s", 100),
        {"identity": "csr", "bootstrap_token": token, "cert_dir": Path("kept"), "seed": 1},
    )
    assert asked.arguments[2:] == ["--identity=csr", "--seed=1"]
    environ = {"PATH": "/bin", "FLEET_SEED": "2", "FLEET_CONTROLPLANE_BIN": "/programs"}
    assert environment_of(asked, environ) == {
        "PATH": "/bin",
        "FLEET_CONTROLPLANE_BIN": "/programs",
        "FLEET_BOOTSTRAP_TOKEN": token,
        "FLEET_CERT_DIR": "kept",
    }


@pytest.mark.parametrize(
    ("scenario", "options", "told"),
    [
        (None, {"kubeconfig": Path("k")}, "fleet capacity does not prompt; add --confirm-cluster"),
        (None, {"seed": -1}, "--seed: "),
        ("zone-outrage", {}, "did you mean 'zone-outage'"),
    ],
)
def test_what_no_run_would_take_is_one_line(
    scenario: str | None, options: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        asked_of(scenario, "75s", 100, options)


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"first": 0}, "--first"),
        ({"most": 0}, "--max-nodes"),
        ({"tries": 0}, "--tries"),
        ({"precision": "ten"}, "--precision"),
        ({"precision": "10"}, "--precision"),  # percent is meant, and 1000 % was taken
        ({"precision": "1"}, "--precision"),
        ({"first": 10}, "--first"),  # over --max-nodes
        ({"ready_within": "1 day"}, "--ready-within"),
    ],
)
def test_an_option_of_the_search_that_is_wrong_is_named(
    changed: dict[str, object], flag: str
) -> None:
    good = {"first": 1, "most": 9, "precision": "10%", "tries": 1, "ready_within": "1m"}
    with pytest.raises(UsageError, match=f"^{flag}: "):
        options_of(**{**good, **changed}, directory=None)  # type: ignore[arg-type]


def probe(nodes: int, verdict: Outcome, exit_code: int) -> Probe:
    return Probe(
        nodes=nodes, verdict=verdict, told="", ready_s=2.0, directory="there", exit_code=exit_code
    )


def test_the_first_size_is_never_over_the_most() -> None:
    good = {"precision": "0.1", "tries": 1, "ready_within": "1m", "directory": None}
    found = [options_of(None, most, **good).sizes.next() for most in (50, 5_000)]  # type: ignore[arg-type]
    assert found == [50, 100]


@pytest.mark.parametrize(
    ("hold", "words"), [("5", "'5' is not a duration"), ("0s", "0s leaves no time")]
)
def test_a_bad_hold_is_named_as_it_was_given(hold: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^--hold: {words}"):
        asked_of(None, hold, 100, {})


def test_the_verdict_on_the_answer_is_that_on_the_largest_size_that_held() -> None:
    """A size that was too short to be judged is no capacity; if it was asked for, CI is told."""
    short = [probe(100, Outcome.PASS, 0), probe(200, Outcome.NOT_JUDGED, 0)]
    assert answer_of(short, 200) == (Outcome.NOT_JUDGED, 0)
    assert answer_of(short, 100) == (Outcome.PASS, 0)
    assert answer_of([probe(3, Outcome.NOT_JUDGED, 4)], 3) == (Outcome.NOT_JUDGED, 4)
    assert answer_of([probe(3, Outcome.FAIL, 1)], 0) == (Outcome.FAIL, 1)
    found = Search(verdict=Outcome.NOT_JUDGED, held=3, took_s=9.0)
    lines = text(found, Path("there")).splitlines()
    assert lines[0].startswith("fleet capacity: NOT JUDGED: 3 nodes held")
    assert lines[1].startswith("  on the nodes: no pods: idle kubelets")
    assert "--hold 5m" in lines[2]


def ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *probes: Probe
) -> tuple[Search, list[str]]:
    """Search with runs that end as given, one after the other, until somebody interrupts it."""
    left, notes = list(probes), list[str]()

    async def run(nodes: int, *_how: object) -> Probe:
        if not left:
            raise asyncio.CancelledError
        return replace(left.pop(0), nodes=nodes)

    monkeypatch.setattr("fleet.run.capacity._probe", run)
    options = options_of(100, 1_000, "10%", 2, "1m", tmp_path / "capacity")
    asked = Asked(["spawn", "--no-report"], {})
    found = asyncio.run(search(asked, options, notes.append))
    assert not left
    assert json.loads((tmp_path / "capacity/capacity.json").read_text()) == json.loads(
        json.dumps(asdict(found))
    )
    return found, notes


def test_a_sick_server_ends_a_search_and_broke_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sick = "/readyz of the API server answered 500 for 30s (--stop-if)"
    stopped = replace(probe(0, Outcome.INCOMPLETE, 4), ended=sick)
    found, notes = ran(monkeypatch, tmp_path, probe(0, Outcome.PASS, 0), stopped)
    assert (found.held, found.broke, found.problem) == (100, None, sick)
    assert (found.verdict, found.exit_code) == ("incomplete", 4)
    assert notes[-1] == f"the search ends: {sick}"
    lines = text(found, tmp_path).splitlines()
    assert lines[0].startswith("fleet capacity: 100 nodes held, the search ended early (")
    assert lines[2].strip() == sick


def test_an_interrupted_search_says_what_it_had_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, _ = ran(monkeypatch, tmp_path, probe(0, Outcome.PASS, 0))
    assert (found.verdict, found.exit_code, found.held) == ("incomplete", 130, 100)
    assert found.problem == "the search was interrupted"
    with pytest.raises(asyncio.CancelledError):  # nothing was found
        ran(monkeypatch, tmp_path / "other")


@pytest.mark.parametrize(("before", "verdict", "code"), [(1, "pass", 0), (0, "invalid", 4)])
def test_a_limit_of_fleets_own_is_no_capacity_of_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: int, verdict: str, code: int
) -> None:
    full = replace(probe(0, Outcome.INVALID, 4), ended="fleet hit its own limits: open files")
    found, _ = ran(monkeypatch, tmp_path, *[probe(0, Outcome.PASS, 0)] * before, full)
    assert (found.held, found.broke) == (100 * before, None)
    assert (found.verdict, found.exit_code) == (verdict, code)


@pytest.mark.parametrize(
    ("summary", "ended"),
    [
        ({}, ""),
        ({"own_limits": {}, "stop_reason": ""}, ""),
        ({"stop_reason": "sick (--stop-if)"}, "sick (--stop-if)"),
        ({"own_limits": {"open files": 2}}, "fleet hit its own limits: open files (2 times)"),
    ],
)
def test_why_a_search_cannot_go_on(tmp_path: Path, summary: Json, ended: str) -> None:
    assert ended_by(RunRecord(tmp_path, summary, {}, [], Samples())) == ended


def test_the_nearest_level_is_one_that_was_judged_if_any_was(tmp_path: Path) -> None:
    run = RunRecord(tmp_path, {"verdict": "pass"}, {}, [], Samples())
    assert nearest(run) == ("", None, "")
    shown = ServiceLevel(sli="PodStartupLatency", measured=4.5, limit=5.0)
    run.levels = [ServiceLevel(sli="LeaseLateness", measured=1.0), shown]
    assert nearest(run) == ("PodStartupLatency", 0.9, "PodStartupLatency 4.5 s of 5 s (not judged)")
    run.levels.append(ServiceLevel(sli="ListLatency", measured=3.0, limit=30.0, judged=True))
    assert nearest(run) == ("ListLatency", 0.1, "ListLatency 3 s of 30 s")


def test_the_answer_lists_the_sizes_in_order() -> None:
    broke = Probe(
        nodes=8, verdict=Outcome.FAIL, told="No.", shown="Latency 1 s of 2 s", directory=""
    )
    held = replace(probe(4, Outcome.PASS, 0), shown="Latency 1 s of 2 s")
    found = Search(
        verdict=Outcome.PASS, held=4, broke=8, what_broke="No.", took_s=60.0, probes=[broke, held]
    )
    lines = text(found, Path("there")).splitlines()
    assert lines[0] == "fleet capacity: 4 nodes held, 8 did not (60.0 s)"
    ends = [(line.split()[0], line.split("  ")[-1].strip()) for line in lines[5:7]]
    assert ends == [("4", "Latency 1 s of 2 s"), ("8", "No.")]
    assert lines[-1] == "there/capacity.json"


@pytest.mark.parametrize(
    ("verdict", "ready_s", "late_ns", "judgement"),
    [
        ("pass", 9.0, None, "pass"),
        ("fail", 9.0, None, "fail"),
        ("pass", None, 45 * 10**9, "fail"),
        ("pass", None, None, "fail"),
        ("invalid", None, 45 * 10**9, "invalid"),
        ("not-judged", 9.0, None, "not-judged"),
        ("not-judged", None, None, "fail"),
    ],
)
def test_a_size_whose_nodes_were_not_all_ready_did_not_hold(
    tmp_path: Path, verdict: str, ready_s: float | None, late_ns: int | None, judgement: str
) -> None:
    summary: Json = {"verdict": verdict, "nodes": {"requested": 9, "time_to_ready_s": ready_s}}
    found, told = judged(RunRecord(tmp_path, summary, {}, [], Samples()), 9, late_ns)
    assert found == judgement
    assert (told == "Not all 9 nodes were Ready within 45s.") is (late_ns is not None)


def test_the_time_to_become_ready_begins_with_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before that a local control plane starts, or is built."""
    answers: list[int | None] = []

    async def ask(_directory: Path, order: Json) -> Json:
        assert order == {"do": "ready"}
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise SetupError("no fleet runs there")
        return {"ready": answer}

    async def is_late(*told: int | None) -> bool:
        answers[:] = told
        ended: asyncio.Future[ComponentDeath] = asyncio.Future()
        return await _is_late(ended, tmp_path, 5, limit_s=0.1)

    monkeypatch.setattr("fleet.run.capacity.ask", ask)
    monkeypatch.setattr("fleet.run.capacity.LOOK_S", 0.001)
    assert not asyncio.run(is_late(*[None] * 200, 0, 4, 5))
    assert asyncio.run(is_late(None, 4))


async def test_nobody_looks_at_the_run_of_a_search_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def ask(_directory: Path, _order: Json) -> Json:
        return {"ready": 0}

    monkeypatch.setattr("fleet.run.capacity.ask", ask)
    ended: asyncio.Future[ComponentDeath] = asyncio.Future()
    looking = asyncio.ensure_future(_is_late(ended, tmp_path, 5, limit_s=60))
    for work in (lambda: None, looking.cancel):
        work()
        for _ in range(9):
            await asyncio.sleep(0)
    assert looking.cancelled()
    assert len(asyncio.all_tasks()) == 1
