"""The reference pages list exactly what the code has: keys of the summary, metrics, exit codes.

What a real run and a real scrape have is compared in tests/e2e (test_endings.py, test_scrapes.py).
"""

import json
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from support import documented

from fleet.errors import Exit
from fleet.metrics import Requests
from fleet.report.figures import AgentFigures, RequestFigures
from fleet.report.prometheus import agent_metrics
from fleet.report.report import (
    Expectation,
    Phase,
    RunFigures,
    ServiceLevel,
    ShardFigures,
    summary,
)
from fleet.report.run_directory import TIMESERIES, RunDirectory

OF_TIMESERIES = {
    "requests_total",
    "agents.NAME.requests",
    "agents.NAME.events",
    "agents.NAME.received_bytes",
    "requests_ms.p50",
    "requests_ms.p99",
}
"""What a line a second has beside the keys of the summary, as the page says."""


def requests() -> Requests:
    found = Requests()
    found.record(("GET", "pods"), 200, 1_000)
    return found


def full() -> RunFigures:
    """Return figures that leave no list of the summary empty."""
    latency = requests().rows["GET", "pods"][200]
    return RunFigures(
        run_id="a",
        wall_s=1.0,
        requests=[RequestFigures("GET", "pods", 200, 1, latency)],
        expectations=[Expectation("a", is_met=True)],
        slis=[ServiceLevel(sli="a")],
        phases=[Phase(name="a")],
        shards=[ShardFigures()],
        invalid_reasons=["a"],
        agents={"kube-proxy": AgentFigures(requests=requests())},
    )


def test_every_key_of_the_summary_is_documented_and_no_other() -> None:
    assert set(documented.paths(summary(full()))) == documented.summary_keys()


def test_the_time_series_has_keys_of_the_summary(tmp_path: Path) -> None:
    directory = RunDirectory("a", tmp_path / "run")
    directory.sample(full())
    directory.close()
    [line] = (tmp_path / "run" / TIMESERIES).read_text().splitlines()
    keys = set(documented.paths(json.loads(line)))
    assert keys >= OF_TIMESERIES
    assert keys - OF_TIMESERIES < documented.summary_keys()
    page = (documented.REFERENCE / "summary.md").read_text()
    assert all(f"`{key.rpartition('.')[2]}`" in page for key in OF_TIMESERIES)


def test_the_metrics_of_agents_are_documented() -> None:
    class Agents(Collector):
        def collect(self) -> list[Metric]:
            return list(agent_metrics({"kube-proxy": AgentFigures(requests=requests())}))

    registry = CollectorRegistry()
    registry.register(Agents())
    found = documented.exposed(generate_latest(registry).decode())
    listed = documented.metrics().items()
    assert found == {name: labels for name, labels in listed if name.startswith("fleet_agent")}


def test_every_exit_code_is_documented_and_no_other() -> None:
    rows = documented.rows(documented.REFERENCE / "summary.md", "Exit codes")
    codes = [int(row) for row in rows if row.strip().isdigit()]
    assert codes == sorted(Exit)
