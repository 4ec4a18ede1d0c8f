"""The tables of the benches: no figure of a run that was no measurement, no process left out."""

from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from bench.accounting import cpu_s, tree
from bench.bench_table import ROWS, Json, result_of, table
from bench.dashboard import FIGURES, kind_of, row_of

SUMMARY: Json = {
    "valid": True,
    "invalid_reasons": [],
    "nodes": {"time_to_ready_s": 4.04, "ever_not_ready": 0},
    "lease": {"interval_max_s": 10.4},
    "requests": [],
}
INSIDE: Json = {
    "idle_from_s": 10.0,
    "idle_to_s": 12.0,
    "fleet_cpu_s_at_start": 7.5,
    "controlplane_cpu_s_at_start": 9.5,
    "idle_fleet_cpu_percent": 3.21,
    "idle_fleet_rss_mb": 99.0,
    "idle_apiserver_cpu_percent": 11.0,
    "apiserver_rss_mb": 512,
    "pods_running_s": 2.5,
    "pods_gone_s": None,
    "pods": 5,
}


def series(renewals: float, ready: int) -> list[Json]:
    """Return the time series of a process with so many nodes."""
    return [
        {
            "wall_s": float(at),
            "nodes": {"ready": ready if at > 2 else 0},
            "lease": {"renewals": renewals, "late_ms": {"p99": 1.5}},
            "requests_total": 10,
        }
        for at in range(14)
    ]


SERIES = [series(4, 3), series(6, 2)]
GOOD = result_of(0, SUMMARY, INSIDE, SERIES)


def test_a_valid_run_has_figures_of_all_its_processes() -> None:
    assert GOOD["idle_renewals_per_s"] == 10
    assert GOOD["bring_up_requests"] == 60
    lines = table({"--processes 2": GOOD}, 5).splitlines()
    assert lines[0] == "| 5 nodes | `--processes 2` |"
    assert lines[2] == "| valid | yes |"
    assert "| CPU of fleet, idle | 3.21 % of a core |" in lines
    assert "| all gone after | not in time |" in lines


INVALID = {**SUMMARY, "valid": False, "invalid_reasons": ["the instrument lagged | p99 90 ms"]}
MUTANTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "invalid": ((4, INVALID, INSIDE, SERIES), "no: the instrument lagged / p99 90 ms"),
    "invalid, yet it ended well": (
        (0, INVALID, INSIDE, SERIES),
        "no: the instrument lagged / p99 90 ms",
    ),
    "failed in its set-up": ((3, None, None, []), "no: ended with exit code 3"),
    "failed in its command": ((1, SUMMARY, INSIDE, SERIES), "no: ended with exit code 1"),
    "without what the command measured": ((0, SUMMARY, None, SERIES), "no: left no figures"),
    "without a time series": ((0, SUMMARY, INSIDE, []), "no: left no figures"),
    "with an empty time series": ((0, SUMMARY, INSIDE, [SERIES[0], []]), "no: left no figures"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_run_that_is_no_measurement_has_its_reason_and_no_figure(mutant: str) -> None:
    arguments, expected = MUTANTS[mutant]
    lines = table({"bad": result_of(*arguments), "good": GOOD}, 5).splitlines()
    assert lines[2] == f"| valid | {expected} | yes |"
    assert len(lines) == 3 + len(ROWS)
    for line in lines[3:]:
        _, _, bad, good, _ = line.split("|")
        assert bad.strip() == "-"
        assert good.strip() != "-"


def test_the_dashboards_bench_has_no_figures_of_a_run_that_failed() -> None:
    assert row_of(0, ["1.00", "2.00", "3.00"]) == ["yes", "1.00", "2.00", "3.00", "-", "-"]
    assert row_of(4, ["1.00"] * FIGURES) == ["no: exit code 4", *["-"] * FIGURES]


@dataclass
class Times:
    user: float
    system: float = 0.0
    children_user: float = 0.0
    children_system: float = 0.0


@dataclass
class FakeProcess:
    """A process with its children, as psutil would show it."""

    pid: int
    times: Times
    under: "list[FakeProcess]" = field(default_factory=list)
    is_gone: bool = False

    def children(self) -> "list[Any]":
        return self.under

    def cpu_times(self) -> Times:
        if self.is_gone:
            raise psutil.NoSuchProcess(self.pid)
        return self.times


def test_the_cpu_of_children_counts_and_that_of_the_control_plane_does_not() -> None:
    grandchild = FakeProcess(4, Times(8.0))
    shard = FakeProcess(2, Times(4.0, 0.5), [grandchild])
    plane = FakeProcess(3, Times(100.0), [FakeProcess(5, Times(100.0))])
    gone = FakeProcess(6, Times(0.0), is_gone=True)
    root = FakeProcess(1, Times(1.0, 1.0, children_user=0.25, children_system=0.25), [])
    root.under = [shard, plane, gone]
    assert cpu_s(tree(root, without={3})) == 1 + 1 + 0.5 + 4.5 + 8
    assert {each.pid for each in tree(root, without={3})} == {1, 2, 4, 6}


def test_a_child_is_known_by_its_command_line() -> None:
    assert kind_of(["python", "-m", "locust", "--master"]) == "master"
    assert kind_of(["python", "-m", "locust", "--worker"]) == "users"
    assert kind_of(["python", "-m", "fleet.cli", "spawn"]) == "fleet"
    assert kind_of(["etcd"]) is None
