"""What the controllers would patch into a new Node, for Nodes that register with it.

It saves the API server and the controllers two patches a Node, each with its watch events. Only
Nodes of fidelity `light` have it, and only where nobody else's can be: see run/presets.py.
"""

import ipaddress
from typing import NamedTuple

TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
_TTLS = ((100, "0"), (500, "15"), (1000, "30"), (2000, "60"))
_TTL_MOST = "300"


class ClusterRange(NamedTuple):
    """A range that a cluster has for its pods, in parts for its nodes."""

    whole: ipaddress.IPv4Network | ipaddress.IPv6Network
    mask: int  # of a node's part

    def part_of(self, index: int) -> str:
        """Return the part of a node, "" for none: from the end, as controllers begin in front."""
        size = 1 << (self.whole.max_prefixlen - self.mask)
        first = int(self.whole.broadcast_address) + 1 - (index + 1) * size
        if first < int(self.whole.network_address):
            return ""
        address = type(self.whole.network_address)(first)
        return f"{address}/{self.mask}"


class ControllerPreset(NamedTuple):
    """How the controllers of a cluster were told to allocate."""

    ranges: tuple[ClusterRange, ...]  # of one family each, in their order

    def pod_cidrs(self, index: int) -> list[str]:
        """Return the parts of a node, none if a range has no more.

        Source: pkg/controller/nodeipam/ipam/range_allocator.go, AllocateOrOccupyCIDR: a range that
        a Node has is taken as occupied; without one of each, a Node gets none.
        """
        parts = [each.part_of(index) for each in self.ranges]
        return parts if all(parts) else []

    def ttl(self, index: int) -> str:
        """Return for how many seconds kubelets keep Secrets in a cluster with so many Nodes.

        Source: pkg/controller/ttl/ttl_controller.go, ttlBoundaries.
        """
        return next((ttl for size, ttl in _TTLS if index < size), _TTL_MOST)
