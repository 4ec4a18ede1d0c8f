"""NodeFacts: what the parts of one kubelet know of its node, once; NodeCounts: what they count.

Each fact is set by the one part that is named with it. All others ask here; none keeps a copy.
The counts are a kubelet's own metrics, as far as they cannot be computed: a node that never had a
pod has none. Histograms are arrays of counts; their bounds are shared.
Source: pkg/kubelet/metrics/metrics.go.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from fleet.clock import NS_PER_S
from fleet.k8s.admission import NO_STATE, NodeState
from fleet.k8s.effects import NodeId
from fleet.runtime.container_usage import NOTHING_SPENT, Spent

CONTAINER_TYPES = ("container", "init_container", "ephemeral_container")


class Durations:
    """A histogram of durations."""

    __slots__ = ("counts", "total_ns")

    bounds = (
        *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600),
        *(900, 1200, 1800, 2700, 3600),
    )
    """podStartupDurationBuckets."""

    def __init__(self) -> None:
        self.counts = array("I", bytes(4 * (len(self.bounds) + 1)))
        self.total_ns = 0

    def add(self, took_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, took_ns / NS_PER_S)] += 1
        self.total_ns += took_ns


@dataclass(slots=True, eq=False)
class NodeCounts:
    """The counts of one node that has, or had, pods."""

    sandboxes: int = 0
    sandbox_errors: int = 0
    containers: "array[int]" = field(default_factory=lambda: array("I", bytes(4 * 3)))  # by kind
    pod_start: Durations = field(default_factory=Durations)
    pod_start_sli: Durations = field(default_factory=Durations)
    pod_start_total: Durations = field(default_factory=Durations)
    rejections: dict[str, int] = field(default_factory=dict)  # by reason

    def on_pod_running(self, seen_ns: int, total_ns: int, pull_ns: int) -> None:
        """Count a start: since the kubelet saw the pod, since it was created, and its pulls."""
        self.pod_start.add(seen_ns)
        self.pod_start_total.add(total_ns)
        self.pod_start_sli.add(max(total_ns - pull_ns, 0))

    def on_rejection(self, reason: str) -> None:
        """Count a pod that was not admitted."""
        self.rejections[reason] = self.rejections.get(reason, 0) + 1


@dataclass(slots=True, eq=False)
class NodeFacts:
    """One node, as its own kubelet sees it."""

    node: NodeId
    name: str
    host_ips: str  # of up to two families, the primary one first
    # Set by NodeStatus: as the informer shows the Node.
    started_ns: int = 0  # when the kubelet began
    booted_ns: int = 0  # when the first one since the machine booted did
    uid: str = ""  # "" while there is no Node
    is_deleting: bool = False
    state: NodeState = NO_STATE
    pod_cidrs: str = ""
    # Set by the kubelet.
    last_boot: int = -1  # which boot of the machine the kubelet before this one ran in, if any
    spent: Spent = NOTHING_SPENT  # by pods of pod sides that were dropped
    counted: NodeCounts | None = None  # since the first pod

    def counts(self) -> NodeCounts:
        """Return what is counted of the pods of the node."""
        if self.counted is None:
            self.counted = NodeCounts()
        return self.counted

    @property
    def owner_uid(self) -> str:
        """Return the uid of the Node that owns mirror pods, "" while there is none to own them."""
        return "" if self.is_deleting else self.uid

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the Node."""
        return self.state.labels_of(self.name)
