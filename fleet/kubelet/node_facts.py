"""NodeFacts: what the parts of one kubelet know of its node, once.

Each fact is set by the one part that is named with it. All others ask here; none keeps a copy.
"""

from dataclasses import dataclass

from fleet.k8s.admission import NO_STATE, NodeState
from fleet.k8s.effects import NodeId
from fleet.runtime.container_usage import NOTHING_SPENT, Spent


@dataclass(slots=True, eq=False)
class NodeFacts:
    """One node, as its own kubelet sees it."""

    node: NodeId
    name: str
    host_ips: str  # of up to two families, the primary one first
    # Set by NodeStatus: as the informer shows the Node.
    started_ns: int = 0  # when the kubelet began
    uid: str = ""  # "" while there is no Node
    is_deleting: bool = False
    state: NodeState = NO_STATE
    pod_cidrs: str = ""
    # Set by the kubelet.
    last_boot: int = -1  # which boot of the machine the kubelet before this one ran in, if any
    spent: Spent = NOTHING_SPENT  # by pods of pod sides that were dropped

    @property
    def owner_uid(self) -> str:
        """Return the uid of the Node that owns mirror pods, "" while there is none to own them."""
        return "" if self.is_deleting else self.uid

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the Node."""
        return self.state.labels_of(self.name)
