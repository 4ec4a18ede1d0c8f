"""Run directories as fleet writes them, with what a real control plane told in them."""

from pathlib import Path

from fleet.controlplane.options import APISERVER, SCHEDULER
from fleet.metrics import Histogram
from fleet.report.control_plane import FAMILIES, REQUESTS, Exposition, Sample, Wanted, line_of
from fleet.report.figures import (
    LeaseFigures,
    NodeFigures,
    PodFigures,
    ProcessFigures,
    RequestFigures,
    WatchFigures,
)
from fleet.report.report import Phase, RunFigures
from fleet.report.run_directory import RunDirectory
from fleet.report.service_levels import DEFAULTS, Evidence, expectations, measure

SCRAPED = Path(__file__).parent / "scraped"
NODES = 20


def scraped(component: str, number: int) -> Exposition:
    wanted = Wanted(FAMILIES[component])
    name = component.removeprefix("kube-")
    return wanted.read(wanted.keep((SCRAPED / f"{name}-{number}.txt").read_bytes().split(b"\n")))


def histogram(count: int, us: int) -> Histogram:
    """Return so many durations in ten buckets, at once however many."""
    made = Histogram()
    for number in range(min(count, 10)):
        made.record(us + number * 100)
    for bucket in made.buckets:
        made.buckets[bucket] *= max(1, count // 10)
    made.count = sum(made.buckets.values())
    return made


def figures_at(second: int, us: int) -> RunFigures:
    """Return how a run of 20 nodes stands after so many seconds."""
    return RunFigures(
        run_id="20261122-120000-ab12",
        server_version="v1.36.3",
        etcd_fsync=False,
        nodes=NodeFigures(
            requested=NODES,
            registered=NODES,
            ready=NODES if second > 5 else second,
            time_to_ready_s=5.0,
        ),
        lease=LeaseFigures(renewals=2 * second, late=histogram(2 * second, 8_000)),
        pods=PodFigures(
            started=second,
            start=histogram(second, 2_000_000),
            start_sli=histogram(second, 900_000),
        ),
        requests=[
            RequestFigures("PUT", "leases", 200, 2 * second, histogram(2 * second, us)),
            RequestFigures("GET", "nodes", 429, second, histogram(second, 900)),
        ],
        watch=WatchFigures(open=100, events=9 * second),
        process=ProcessFigures(
            cpu_s=second / 10, rss_bytes=90_000_000, timer_lag=histogram(9 * second, 9_000)
        ),
        wall_s=float(second),
    )


def slow_writes(count: int, le: float) -> Exposition:
    """Return what an API server tells whose writes take longer than a bound."""
    bounds = scraped(APISERVER, 1).bounds[REQUESTS]
    row = [float(count) if bound > le else 0.0 for bound in bounds]
    return Exposition(
        {("process_cpu_seconds_total", ""): float(count)},
        {(REQUESTS, "PUT|leases||resource"): row},
        {REQUESTS: bounds},
    )


def write_run(
    path: Path, *, seconds: int = 120, us: int = 5_000, is_slow: bool = False, fault: bool = False
) -> RunFigures:
    """Write a whole run directory; return the figures of its end."""
    directory = RunDirectory("r", path)
    directory.describe(
        {
            "fleet_version": "0.1.0",
            "local_control_plane": True,
            "options": {"nodes": NODES},
            "machine": {"cpu": "<slow>", "cores": 2},
        }
    )
    told = Exposition()
    for second in range(1, seconds + 1):
        directory.sample(figures_at(second, us))
        if second % 15 == 0:
            now = scraped(APISERVER, 1 if second < 60 else 2)
            if is_slow and second >= 60:
                now = slow_writes(10 * second, 1.5)
            sample = Sample(APISERVER, float(second), 40.0, 2_000_000, now)
            assert directory.keep_control_plane(line_of(sample, told))
            told = now
    figures = figures_at(seconds, us)
    period = (
        slow_writes(400, 1.5) if is_slow else scraped(APISERVER, 2).since(scraped(APISERVER, 1))
    )
    scheduler = scraped(SCHEDULER, 2).since(scraped(SCHEDULER, 1))
    evidence = Evidence(steady_s=seconds - 5, steady=period, whole=period, scheduler=scheduler)
    figures.phases = [Phase(name="bring-up", until_s=5.0)]
    figures.phases.append(Phase(name="steady", from_s=5.0, until_s=float(seconds)))
    if fault:
        figures.phases.append(Phase(name="zone b", kind="fault", from_s=60.0, until_s=80.0))
    figures.slis = measure(figures, evidence, DEFAULTS)
    figures.expectations = expectations(figures.slis)
    directory.finish(figures)
    return figures
