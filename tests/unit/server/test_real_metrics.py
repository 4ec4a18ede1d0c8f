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
    probe_metrics,
    resource_metrics,
)

REAL = json.loads(Path(__file__).with_name("real_metrics.json").read_text())
PAGES = {
    "/metrics": kubelet_metrics,
    "/metrics/cadvisor": cadvisor_metrics,
    "/metrics/resource": resource_metrics,
    "/metrics/probes": probe_metrics,
}
EXPECTED = {
    "kubelet_node_name",
    "kubelet_pod_start_duration_seconds",
    "kubelet_running_containers",
    "kubelet_running_pods",
    "kubelet_started_containers_total",
    "kubelet_started_pods_total",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}
"""Of /metrics what says how a node's pods are."""
MISSING = {"/metrics/probes": {"prober_probe_duration_seconds", "prober_probe_total"}}
"""What a real kubelet shows and fleet does not, of the pages that are whole."""
NOT_SHOWN = {
    "/metrics": {"kubelet_admission_rejections_total"},  # until a pod was rejected
    "/metrics/cadvisor": set(),
    "/metrics/resource": set(),
    "/metrics/probes": set(),
}
"""What that kubelet had no reason to show."""
LIMITS = b'{"limits":{"cpu":"1","memory":"64Mi"},"requests":{"cpu":"100m","memory":"16Mi"}}'


class Shown(NamedTuple):
    """One metric as a page shows it."""

    help: str
    type: str
    labels: set[tuple[str, ...]]
    bounds: tuple[str, ...]
    is_stamped: bool


def shown(text: str) -> dict[str, Shown]:
    """Return the metrics of a page by name."""
    found: dict[str, Shown] = {}
    for block in text.split("# HELP ")[1:]:
        head, kind, *lines = block.splitlines()
        name, _, told = head.partition(" ")
        labels, bounds = set(), dict[str, None]()
        for line in lines:
            names = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line)
            labels.add(tuple(sorted(key for key, _ in names if key != "le")))
            bounds |= dict.fromkeys(value for key, value in names if key == "le")
        is_stamped = bool(re.search(r" \d{13}$", lines[-1]))
        assert name not in found, name
        found[name] = Shown(told, kind.split()[-1], labels, tuple(bounds), is_stamped)
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
    return PAGES[path](kubelet_of(world), world.now_ns).decode()


@pytest.mark.parametrize("path", PAGES)
def test_each_metric_is_the_real_one(path: str) -> None:
    real = REAL[path]
    found = shown(page(path))
    assert found.keys() - real.keys() <= NOT_SHOWN[path]
    for name in found.keys() & real.keys():
        one, other = found[name], real[name]
        assert (one.help, one.type) == (other["help"], other["type"]), name
        assert one.labels <= set(map(tuple, other["labels"])), (name, one.labels)
        if other.get("bounds"):
            assert one.bounds == tuple(other["bounds"]), name
    if path == "/metrics":
        assert found.keys() >= EXPECTED
    else:
        assert real.keys() - found.keys() == MISSING.get(path, set())


def test_what_is_timeless_has_no_time() -> None:
    found = shown(page("/metrics/cadvisor"))
    without = {name for name, each in found.items() if not each.is_stamped}
    assert {"container_start_time_seconds", "machine_cpu_cores", "container_scrape_error"} < without
    assert not {name for name in without if name.startswith("container_memory")}
