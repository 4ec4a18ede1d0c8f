"""`fleet report --format openmetrics`: the numbers of summary.json for a Prometheus or a CI trend.

Each number is a gauge named by its path: `nodes.ready` is `fleet_run_nodes_ready`. What stands in a
list, or under a name that a user chose, has that in labels. `fleet_run_info` has the verdict.
"""

import re
from collections.abc import Iterator, Mapping
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from fleet.report.figure import Json
from fleet.report.run_directory import RunRecord

NAMED = frozenset({"agents", "asked_by_fleet", "own_limits", "rejected", "unregistered"})
"""Maps whose keys are names."""
TEXTS = frozenset({"detail", "note", "worst"})
"""Of rows: what is no label, since it changes from run to run."""
INFO = ("verdict", "server_version", "fidelity", "identity", "encoding", "watches", "pace", "start")


class _Summary(Collector):
    def __init__(self, run: RunRecord) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        run = self._run
        yield InfoMetricFamily(
            "fleet_run",
            "What the run was.",
            {"run_id": run.name} | {key: str(run.get(key) or "") for key in INFO},
        )
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for name, labels, value in _numbers("fleet_run", run.summary, {"run_id": run.name}):
            found.setdefault(name, []).append((labels, value))
        for name, samples in found.items():
            keys = list(dict.fromkeys(key for labels, _ in samples for key in labels))
            gauge = GaugeMetricFamily(name, f"{name} of summary.json.", labels=keys)
            for labels, value in samples:
                gauge.add_metric([labels.get(key, "") for key in keys], value)
            yield gauge


def _numbers(
    name: str, value: object, labels: dict[str, str]
) -> Iterator[tuple[str, dict[str, str], float]]:
    match value:
        case int() | float():
            yield name, labels, float(value)
        case Mapping():
            for key, each in cast("Json", value).items():
                part = re.sub(r"\W", "_", key)
                if key in NAMED and isinstance(each, Mapping):
                    for given, inside in each.items():
                        yield from _numbers(f"{name}_{part}", inside, labels | {"name": str(given)})
                else:
                    yield from _numbers(f"{name}_{part}", each, labels)
        case list():
            for row in value:
                if isinstance(row, Mapping):
                    texts = {key for key, each in row.items() if isinstance(each, str)} - TEXTS
                    own = {key: str(each) for key, each in row.items() if key in texts | {"code"}}
                    numbers = {key: each for key, each in row.items() if key not in own}
                    yield from _numbers(name, numbers, labels | own)


def openmetrics(run: RunRecord) -> str:
    """Return the text, which ends with `# EOF`."""
    registry = CollectorRegistry()
    registry.register(_Summary(run))
    return str(generate_latest(registry).decode())  # type: ignore[no-untyped-call]
