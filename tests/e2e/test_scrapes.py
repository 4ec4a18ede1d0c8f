"""Prometheus metrics of a run: what they say is what the cluster has."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import documented

from e2e.e2e_world import World, eventually, workload
from e2e.free_ports import free_port

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "metrics"


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        return str(answer.read().decode())


def scrape(port: int) -> dict[tuple[str, str], float]:
    """Return the samples by name and labels."""
    return {
        (sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(scraped(port))
        for sample in family.samples
    }


def test_metrics_say_what_the_cluster_has(world: World) -> None:
    port = free_port()
    with world.spawn(PREFIX, 4, world.quick(), f"--metrics-port={port}") as run:
        run.until_ready()
        world.apply(workload("Deployment", PREFIX, 6))
        eventually(lambda: len(world.ready_pods(PREFIX)) == 6, "6 pods")
        eventually(
            lambda: scrape(port)["fleet_pods", "phase=Running"] == 6,
            "6 pods counted",
            seen=lambda: scrape(port),
        )
        starts = "fleet_pod_start_seconds_count", ""
        eventually(lambda: scrape(port)[starts] == 6, "6 starts timed", seen=lambda: scrape(port))
        # One that the lifecycle controller heard late may have the not-ready taint for a moment.
        found: dict[tuple[str, str], float] = {}

        def all_ready() -> bool:
            found.update(scrape(port))
            return found["fleet_nodes", "condition=Ready"] == 4

        eventually(all_ready, "4 nodes Ready", seen=lambda: found)
        assert found["fleet_nodes", "condition=NotReady"] == 0
        assert found["fleet_watches", ""] >= 20
        is_valid = found["fleet_valid", ""]
        created = found["fleet_requests_total", "code=201,resource=nodes,verb=POST"]
        timed = found["fleet_request_duration_seconds_count", "resource=nodes,verb=POST"]
        assert (created, timed) == (4, 4)
        eventually(lambda: scrape(port)["fleet_lease_renewals_total", ""] > 4, "renewals")
        assert not [name for name, labels in found if PREFIX in labels]  # never nodes or pods
        listed = documented.metrics().items()
        here = {name: labels for name, labels in listed if not name.startswith("fleet_agent")}
        here["fleet_own_limits_total"] = frozenset()  # a sound run hits none: no sample, no label
        assert documented.exposed(scraped(port)) == here
        world.kubectl("delete", "deployment", PREFIX)
        run.end_well_or_late()
    assert is_valid or "lagged" in str(run.summary()["invalid_reasons"])
