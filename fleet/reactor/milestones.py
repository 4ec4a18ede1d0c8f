"""What a fleet has come to: the milestones that kubelets report, counted for the summary."""

from fleet.k8s.effects import Milestone, Report
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.node.node_status import RegistrationPhase
from fleet.metrics import FleetCounts

_COUNTERS = {milestone: milestone.name.lower() for milestone in Milestone} | {
    Milestone.POD_ADDED: "pods_added",
    Milestone.POD_RUNNING: "pods_running",
    Milestone.POD_FAILED: "pods_failed",
    Milestone.POD_REMOVED: "pods_removed",
    Milestone.EVENT_DROPPED: "events_dropped",
}
"""The counters of `FleetCounts`."""


def count(counts: FleetCounts, report: Report) -> None:
    """Count one report, and how long it took where that is told."""
    counter = _COUNTERS[report.milestone]
    setattr(counts, counter, getattr(counts, counter) + 1)
    if report.milestone is Milestone.REGISTERED:
        counts.node_start.record(report.value_ns // 1000)
    elif report.milestone is Milestone.POD_RUNNING:
        counts.pod_start.record(report.value_ns // 1000)
        rest_ns = report.value_ns - report.simulated_ns
        counts.pod_start_sli.record(rest_ns // 1000)
        counts.pod_start_api.record(report.api_ns // 1000)
        counts.pod_start_fleet.record((rest_ns - report.api_ns) // 1000)
        counts.pod_start_simulated.record(report.simulated_ns // 1000)


def uncount(counts: FleetCounts, kubelet: VirtualKubelet) -> None:
    """Take back what the next kubelet of a node will report once more."""
    counts.registered -= kubelet.status.phase is RegistrationPhase.REGISTERED
    if kubelet.pods is not None:
        counts.pods_added -= sum(1 for _ in kubelet.pods)
