"""What limited a run is named, with its figure, its limit and what to try next."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fleet.controlplane.options import APISERVER, ETCD, SCHEDULER
from fleet.report.control_plane import Exposition, Sample, Samples
from fleet.report.figure import Json
from fleet.report.limits import ADVICE, limited_by, resources
from fleet.report.report import Phase
from fleet.report.run_directory import RunRecord

BOUNDS = [0.001, 0.01, 0.1, 1.0, 10.0, float("inf")]
WAITED = "apiserver_flowcontrol_request_wait_duration_seconds"
COMMIT = "etcd_disk_backend_commit_duration_seconds"
SCHEDULING = "scheduler_pod_scheduling_sli_duration_seconds"

Told = Mapping[str, float | tuple[float, int]]
"""The value of a family, or of a histogram the time of its samples and their number."""


def exposition(told: Told) -> Exposition:
    found = Exposition()
    for family, value in told.items():
        if isinstance(value, tuple):
            seconds, count = value
            counts = [float(count) if bound >= seconds else 0.0 for bound in BOUNDS]
            found.buckets[family, "level"] = counts
            found.bounds[family] = BOUNDS
        else:
            found.values[family, ""] = value
    return found


def run_of(
    *rows: tuple[float, str, Told], about: Json | None = None, lag_ms: float = 20
) -> RunRecord:
    """Return a run whose nodes were Ready after 30 s, and what its control plane said."""
    samples = Samples()
    for at_s, component, told in rows:
        sample = Sample(component, at_s, 1.0, 1, exposition(told))
        samples.of.setdefault(component, []).append(sample)
    summary: Json = {"process": {"timer_lag_ms": {"p50": 20.0, "p99": lag_ms}}, "wall_s": 90.0}
    steady = Phase(name="steady", from_s=30.0, until_s=90.0)
    return RunRecord(Path(), summary, about or {}, [], samples, phases=[steady])


def cpu(*totals: float) -> list[tuple[float, str, Told]]:
    """Return what an API server of two cores says every 20 s."""
    family = "process_cpu_seconds_total"
    return [
        (20.0 * at, APISERVER, {family: total, "go_sched_gomaxprocs_threads": 2.0})
        for at, total in enumerate(totals)
    ]


def told(run: RunRecord) -> tuple[str, str]:
    return limited_by(run, resources(run))


def test_the_cpu_of_the_api_server() -> None:
    sentence, advice = told(run_of(*cpu(0, 10, 48, 86)))
    assert sentence == (
        "The CPU of the API server limited the run: 1.9 cores at 0:40; the limit is 2 cores."
    )
    assert "more CPU" in advice


def test_a_storm_of_the_bring_up_is_called_one() -> None:
    [use] = resources(run_of(*cpu(0, 38, 48, 58)))
    assert (use.bring_up, use.after) == ((20.0, 1.9), (40.0, 0.5))
    assert (
        " limited the run during the bring-up: 1.9 cores at 0:20"
        in told(run_of(*cpu(0, 38, 48, 58)))[0]
    )


def test_nothing_is_blamed_that_was_far_from_its_limit() -> None:
    sentence, advice = told(run_of(*cpu(0, 10, 20)))
    assert sentence == (
        "Nothing reached its limit. Nearest came the CPU of the API server: 0.5 cores at 0:20; "
        "the limit is 2 cores."
    )
    assert advice == ADVICE["larger"]


@pytest.mark.parametrize(
    ("component", "family", "value", "words"),
    [
        (APISERVER, WAITED, (5.0, 50), "The wait in the queues of the API server (p99)"),
        (APISERVER, "apiserver_flowcontrol_rejected_requests_total", 90.0, "The rate of refused"),
        (ETCD, COMMIT, (0.09, 50), "The commit time of etcd (p99)"),
        (SCHEDULER, SCHEDULING, (9.0, 50), "The scheduling time of pods (p99)"),
    ],
)
def test_what_waits_and_what_is_slow(
    component: str, family: str, value: float | tuple[float, int], words: str
) -> None:
    def advised(last: float | tuple[float, int]) -> tuple[str, str]:
        none = (last[0], 0) if isinstance(last, tuple) else 0.0
        rows: list[tuple[float, str, Told]] = [(40.0, component, {family: none})]
        return told(run_of(*cpu(0, 10, 20), *rows, (60.0, component, {family: last})))

    sentence, advice = advised(value)
    assert sentence.startswith(f"{words}")
    assert "limited the run: " in sentence
    assert advice not in {ADVICE["larger"], ADVICE["own"], ADVICE["unknown"]}
    assert advised((value[0], 9) if isinstance(value, tuple) else 0.0)[1] == ADVICE["larger"]


def test_a_full_etcd() -> None:
    size, quota = "etcd_mvcc_db_total_size_in_bytes", "etcd_server_quota_backend_bytes"
    rows = [(at_s, ETCD, {size: 7.5e9, quota: 8.0e9}) for at_s in (40.0, 60.0)]
    sentence, advice = told(run_of(*cpu(0, 10, 20), *rows))
    assert sentence.startswith(
        "The size of etcd limited the run: 7.50 GB at 0:40; the limit is 8.00 GB"
    )
    assert "--quota-backend-bytes" in advice


def test_a_machine_that_the_control_plane_and_fleet_share() -> None:
    about: Json = {"local_control_plane": True, "machine": {"cores": 2}}
    rows = [(20.0 * at, ETCD, {"process_cpu_seconds_total": 6.0 * at}) for at in range(4)]
    run = run_of(*cpu(0, 20, 40, 60), *rows, about=about)
    run.lines = [{"wall_s": float(at), "process": {"cpu_s": 0.5}} for at in range(90)]
    sentence, advice = told(run)
    assert sentence.startswith(
        "The CPU of the control plane and fleet together limited the run: 1.8 cores at 0:20"
    )
    assert "--context" in advice


def test_fleet_itself_comes_first_and_nothing_is_guessed() -> None:
    late = run_of(*cpu(0, 40, 80), lag_ms=510)
    assert told(late) == (
        "fleet itself limited the run: its timers fired 510 ms late (p99); the limit is 100 ms.",
        ADVICE["own"],
    )
    silent = run_of()
    silent.summary["controlplane"] = {"problem": "no permission (RBAC) to get /metrics"}
    assert told(silent) == (
        "What limited the run is not known: no permission (RBAC) to get /metrics.",
        ADVICE["unknown"],
    )
