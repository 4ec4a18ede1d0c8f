"""NodeFacts: what the parts of one kubelet know of its node, once.

Each fact is set by the one part that is named beside it. All others ask here; none keeps a copy.
"""

from fleet.kubelet.node.tally import NodeTally
from fleet.objects.admission import NO_STATE
from fleet.objects.effects import NodeId
from fleet.runtime.container_usage import NOTHING_SPENT


class NodeFacts:
    """One node, as its own kubelet sees it."""

    __slots__ = (
        "host_ip",
        "is_deleting",
        "name",
        "node",
        "pod_cidr",
        "spent",
        "started_ns",
        "state",
        "tally",
        "uid",
    )

    def __init__(self, node: NodeId, name: str, host_ip: str) -> None:
        self.node = node
        self.name = name
        self.host_ip = host_ip
        # Set by NodeStatus: as the informer shows the Node.
        self.started_ns = 0  # when the kubelet began
        self.uid = ""  # "" while there is no Node
        self.is_deleting = False
        self.state = NO_STATE
        self.pod_cidr = ""
        # Set by the kubelet.
        self.spent = NOTHING_SPENT  # by pods of pod sides that were dropped
        self.tally: NodeTally | None = None  # since the first pod

    def counts(self) -> NodeTally:
        """Return what is counted of the pods of the node."""
        if self.tally is None:
            self.tally = NodeTally()
        return self.tally

    @property
    def owner_uid(self) -> str:
        """Return the uid of the Node that owns mirror pods, "" while there is none to own them."""
        return "" if self.is_deleting else self.uid

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the Node."""
        return self.state.labels_of(self.name)
