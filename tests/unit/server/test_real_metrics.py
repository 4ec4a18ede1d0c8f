"""fleet's metrics against those of a real kubelet of the same version.

real_metrics.json was read from one: an idle machine with four pods, on cgroup v1, whose containers
were simulated. Left out there are metrics of its Go process and of its libraries.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from stats_world import kubelet_of, pod, world_with
from world.pod_world import container, make_pod

from fleet.k8s.pods import ProbeSpec
from fleet.server.node_metrics import (
    cadvisor_metrics,
    kubelet_metrics,
    resource_metrics,
)

REAL = json.loads(Path(__file__).with_name("real_metrics.json").read_text())
PAGES = {
    "/metrics": kubelet_metrics,
    "/metrics/cadvisor": cadvisor_metrics,
    "/metrics/resource": resource_metrics,
}
EXPECTED = {
    "kubelet_node_name",
    "kubelet_running_containers",
    "kubelet_running_pods",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "volume_manager_total_volumes",
}
"""Of /metrics what dashboards read of what is there now: kubernetes-mixin's."""
LIMITS = b'{"limits":{"cpu":"1","memory":"64Mi"},"requests":{"cpu":"100m","memory":"16Mi"}}'


class Shown(NamedTuple):
    """One metric as a page shows it."""

    help: str
    type: str
    labels: set[tuple[str, ...]]
    is_stamped: bool


def shown(text: str) -> dict[str, Shown]:
    """Return the metrics of a page by name."""
    found: dict[str, Shown] = {}
    for block in text.split("# HELP ")[1:]:
        head, kind, *lines = block.splitlines()
        name, _, told = head.partition(" ")
        labels = set()
        for line in lines:
            names = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line)
            labels.add(tuple(sorted(key for key, _ in names)))
        is_stamped = bool(re.search(r" \d{13}$", lines[-1]))
        assert name not in found, name
        found[name] = Shown(told, kind.split()[-1], labels, is_stamped)
    return found


def page(path: str) -> str:
    """Return a page of a node with a few pods, as its server shows it."""
    probe = ProbeSpec("exec", command=("true",))
    probed = container("c", resources_json=LIMITS, readiness_probe=probe)
    fails = container("c", "sh", "-c", "exit 3")
    world = world_with(
        pod(),
        make_pod(probed, uid="u-2", name="probed", qos_class="Burstable"),
        make_pod(fails, uid="u-3", name="fails", restart_policy="Never"),
    )
    kubelet = kubelet_of(world)
    return PAGES[path](kubelet, world.now_ns).decode()


@pytest.mark.parametrize("path", PAGES)
def test_each_metric_is_the_real_one(path: str) -> None:
    real = REAL[path]
    found = shown(page(path))
    assert found.keys() <= real.keys()
    for name in found.keys() & real.keys():
        one, other = found[name], real[name]
        assert (one.help, one.type) == (other["help"], other["type"]), name
        assert one.labels <= set(map(tuple, other["labels"])), (name, one.labels)
    if path == "/metrics":
        assert found.keys() >= EXPECTED
    else:
        assert real.keys() == found.keys()


def test_what_is_timeless_has_no_time() -> None:
    found = shown(page("/metrics/cadvisor"))
    without = {name for name, each in found.items() if not each.is_stamped}
    assert {"container_start_time_seconds", "machine_cpu_cores", "container_scrape_error"} < without
    assert not {name for name in without if name.startswith("container_memory")}
