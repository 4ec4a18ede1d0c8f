"""The table of `make bench-peers`, and what it reads of Nodes and Leases."""

import json
from pathlib import Path

import pytest

from bench.inside import Json
from bench.outage import Leases, Nodes
from bench.peer_table import (
    ROWS,
    DifferentReportsError,
    is_sound,
    judged,
    read,
    settled,
    table,
    write,
)
from bench.peers import refused

NODES = 5000
RUN: Json = {"nodes": NODES, **{row.key: 10.0 for row in ROWS}}
SLOW: Json = {**RUN, "ready_s": 30.0}
SMALL: Json = {**RUN, "nodes": 20, "rss_mb": 2.5}
HOW = "it ended by itself with 2: panic"


def without(part: str, run: Json) -> Json:
    """Return a run that a part is missing of."""
    keys = {row.key for row in ROWS if row.part == part}
    return {key: value for key, value in run.items() if key not in keys}


def lines_of(rounds: dict[str, list[Json]]) -> dict[str, list[str]]:
    """Return the cells of each row by the key of its figure, and those above as `head`."""
    lines = table(rounds, NODES).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    keys = [row.key for row in ROWS]
    return {
        key: [cell.strip() for cell in line.split("|")[2:-1]]
        for key, line in zip(["head", "rule", "sound", *keys], lines, strict=False)
    }


def test_the_other_columns_are_compared_with_the_first() -> None:
    cells = lines_of({"KWOK": [RUN, SLOW], "light": [RUN, RUN]})
    assert cells["head"] == ["KWOK", "light"]
    assert cells["sound"] == ["2 of 2", "2 of 2"]
    assert cells["ready_s"] == ["20.0 s (10.0 to 30.0)", "10.0 s (10.0 to 10.0), 0.50"]
    assert cells["outage_lost"] == ["10 (10 to 10)", "10 (10 to 10), 1.00"]


@pytest.mark.parametrize("tools", [("KWOK", "kubemark"), ("kubemark", "KWOK")])
def test_a_column_with_few_nodes_is_extrapolated_where_it_grows(tools: tuple[str, str]) -> None:
    runs = {"KWOK": [RUN], "kubemark": [SMALL]}
    cells = {
        key: dict(zip(tools, row, strict=True))
        for key, row in lines_of({tool: runs[tool] for tool in tools}).items()
    }
    assert cells["head"] == {"KWOK": "KWOK", "kubemark": "kubemark, 20 nodes"}
    assert cells["rss_mb"]["kubemark"] == "2.5 MB, x250 = 625.0 MB extrapolated"
    assert cells["ready_s"] == {"KWOK": "10.0 s", "kubemark": "10.0 s"}
    grown = {key for key, row in cells.items() if "extrapolated" in row["kubemark"]}
    assert grown == {"tool_cpu_s", "idle_percent", "rss_mb", "outage_cpu_s"}


def test_a_tool_that_ended_lacks_what_came_later() -> None:
    ended = {**without("outage", RUN), "ended": {"outage": HOW}}
    cells = lines_of({"KWOK": [ended], "light": [RUN]})
    assert cells["sound"] == [f"1 of 1: no outage: {HOW}", "1 of 1"]
    assert cells["outage_back_s"] == ["ended", "10.0 s"]
    assert cells["deployment_gone_s"] == ["10.0 s", "10.0 s, 1.00"]
    assert lines_of({"KWOK": [ended, RUN]})["outage_back_s"] == ["10.0 s, 1 ended"]
    assert is_sound({"KWOK": [RUN]})
    assert not is_sound({"KWOK": [RUN], "light": [ended]})


SLOWLY = "fleet read too slowly: watches that the server closed: 2"


LAGGED = "fleet itself lagged: timers fired 150 ms late (p99), more than 100 ms"


def samples(*closed_slow: int, lag_ms: float = 20.0) -> list[Json]:
    """Return a time series; before its last second, timers were so late."""
    last = len(closed_slow) - 1
    return [
        {
            "wall_s": float(at),
            "watch": {"closed_slow": count},
            "process": {"timer_lag_ms": {"p50": 10.0, "p99": 400.0 if at == last else lag_ms}},
        }
        for at, count in enumerate(closed_slow)
    ]


def test_watches_closed_since_the_outage_void_the_outage_only() -> None:
    run = {**RUN, "outage_from_s": 2.0}
    late = judged(run, [SLOWLY], samples(0, 0, 0, 2))
    cells = lines_of({"kubelet": [late]})
    assert cells["sound"] == [f"1 of 1: no outage: {SLOWLY}"]
    assert cells["outage_back_s"] == ["unsound"]
    assert cells["ready_s"] == ["10.0 s"]
    assert judged(run, [], samples(1)) == run
    assert judged(run, [LAGGED], samples(0, 0, 0, 0))["unsound"] == {"outage": LAGGED}
    both = judged({**run, "unsound": {"deployment": HOW}}, [LAGGED], samples(0, 0, 0, 0))
    assert both["unsound"] == {"deployment": HOW, "outage": LAGGED}
    assert "problem" in judged(run, [LAGGED], samples(0, 0, 0, 0, lag_ms=101.0))
    for early in (
        judged(run, [SLOWLY], samples(0, 2, 0, 0)),
        judged(RUN, [SLOWLY], samples(0, 0, 0, 2)),
        judged(run, [SLOWLY, "a bug in fleet"], samples(0, 0, 0, 2)),
    ):
        assert early["problem"].startswith(SLOWLY)
        assert "ready_s" not in early


def test_what_was_not_in_time_is_said() -> None:
    late = {**RUN, "outage_back_s": None}
    assert lines_of({"KWOK": [late]})["outage_back_s"] == ["not in time"]
    assert lines_of({"KWOK": [late, RUN]})["outage_back_s"] == ["10.0 s, 1 not in time"]


def test_a_run_that_was_not_sound_has_no_figure() -> None:
    cells = lines_of({"KWOK": [{"nodes": NODES, "problem": "a | b"}], "light": [RUN]})
    assert cells["sound"] == ["0 of 1: a / b", "1 of 1"]
    assert {cells[row.key][0] for row in ROWS} == {"-"}


def test_what_nobody_asked_for_has_no_row() -> None:
    whole = table({"KWOK": [RUN]}, NODES).splitlines()
    short = table({"KWOK": [without("outage", RUN)]}, NODES).splitlines()
    assert short == whole[:-4]


def report(**changes: object) -> Json:
    return {"machine": "m", "nodes": NODES, "replicas": NODES, "rounds": {}, **changes}


def test_rounds_of_several_reports_are_one_table(tmp_path: Path) -> None:
    one, two = tmp_path / "new" / "1.json", tmp_path / "2.json"
    write(report(rounds={"KWOK": [RUN], "light": [RUN]}), one)
    write(report(rounds={"KWOK": [SLOW], "kubemark": [SMALL]}), two)
    assert read([one, two])["rounds"] == {
        "KWOK": [RUN, SLOW],
        "light": [RUN],
        "kubemark": [SMALL],
    }
    assert sorted(path.name for path in tmp_path.rglob("*.json*")) == ["1.json", "2.json"]


MUTANTS: dict[str, tuple[Json, str]] = {
    "machine": (report(machine="n"), "has machine n, "),
    "nodes": (report(nodes=1), "has nodes 1, "),
    "replicas": (report(replicas=1), "has replicas 1, "),
    "hollow nodes": (report(rounds={"kubemark": [{**SMALL, "nodes": 10}]}), r"\[10, 20\]"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_reports_that_do_not_compare_are_refused(mutant: str, tmp_path: Path) -> None:
    other, expected = MUTANTS[mutant]
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for path, content in zip(paths, (report(rounds={"kubemark": [SMALL]}), other), strict=True):
        path.write_text(json.dumps(content))
    with pytest.raises(DifferentReportsError, match=expected):
        read(paths)


def node(status: str, *taints: str, version: int = 7, kind: str = "MODIFIED") -> Json:
    """Return an event of the one Node."""
    return {
        "type": kind,
        "object": {
            "metadata": {"name": "n", "resourceVersion": str(version)},
            "spec": {"taints": [{"key": taint} for taint in taints]},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        },
    }


TAINT = "node.kubernetes.io/not-ready"


def test_a_node_is_lost_when_it_was_ready_and_back_without_its_taint() -> None:
    nodes = Nodes()
    nodes.see(node("False", TAINT), 0)
    nodes.see(node("True", TAINT), 0)
    assert (nodes.fine, nodes.lost) == (set(), set())
    assert nodes.see(node("True", version=9), 8) == 9
    assert nodes.fine == {"n"}
    nodes.see(node("Unknown"), 0)
    assert (nodes.fine, nodes.lost) == (set(), {"n"})
    before_s = nodes.gained_s
    nodes.see(node("True", TAINT), 0)
    assert (nodes.fine, nodes.gained_s) == (set(), before_s)
    nodes.see(node("True"), 0)
    assert nodes.fine == {"n"}
    assert nodes.gained_s >= before_s


def test_what_was_ready_is_known_across_a_watch_that_begins_anew() -> None:
    nodes = Nodes()
    nodes.see(node("True"), 0)
    assert nodes.see({"type": "ERROR", "object": {"code": 410}}, 7) == 0
    nodes.see(node("Unknown", kind="ADDED"), 0)
    assert nodes.lost == {"n"}


def test_a_lease_is_renewed_when_its_time_changes() -> None:
    def lease(renewed_at: str) -> Json:
        metadata = {"name": "n", "resourceVersion": "7"}
        return {
            "type": "ADDED",
            "object": {"metadata": metadata, "spec": {"renewTime": renewed_at}},
        }

    leases = Leases()
    leases.see(lease("12:00"), 0)
    leases.begin()
    leases.see(lease("12:00"), 0)
    assert leases.old
    leases.see(lease("12:01"), 0)
    assert not leases.old
    assert leases.done_s > 0


def test_what_a_node_sends_is_counted_until_all_watches_are_open() -> None:
    samples = [{"wall_s": at_s, "requests_total": 40.0} for at_s in (1.0, 3.0, 4.0, 9.0)]
    nodes = {"ready": 16, "time_to_settled_s": 3.5}
    assert settled({"nodes": nodes}, samples) == {"settled_s": 3.5, "node_requests": 10.0}
    assert settled({"nodes": {**nodes, "time_to_settled_s": None}}, samples) == {}


def test_refusals_are_those_of_all_resources_and_verbs() -> None:
    lines = (
        'apiserver_request_total{code="429",resource="leases",verb="PUT"} 12',
        'apiserver_request_total{code="200",resource="leases",verb="PUT"} 500',
        'apiserver_request_total{code="429",resource="nodes",verb="PATCH"} 1e+02',
        'apiserver_other_total{code="429"} 7',
    )
    assert refused("\n".join(lines)) == 112
