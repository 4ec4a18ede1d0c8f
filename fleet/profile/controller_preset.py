"""What the controllers would patch into a new Node, for Nodes that register with it.

It saves the API server and the controllers two patches a Node, each with its watch events. Only
Nodes of fidelity `light` have it, and only where nobody else's can be: see run/presets.py.
"""

import ipaddress
from typing import NamedTuple

TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
_TTLS = ((100, "0"), (500, "15"), (1000, "30"), (2000, "60"))
_TTL_MOST = "300"


class ControllerPreset(NamedTuple):
    """How the controllers of a cluster were told to allocate."""

    cluster_cidr: ipaddress.IPv4Network
    mask: int  # of a node's part

    def pod_cidr(self, index: int) -> str:
        """Return the part of a node, "" if there is none: from the end, as they begin in front.

        Source: pkg/controller/nodeipam/ipam/range_allocator.go, AllocateOrOccupyCIDR: a range that
        a Node has is taken as occupied.
        """
        size = 1 << (32 - self.mask)
        first = int(self.cluster_cidr.broadcast_address) + 1 - (index + 1) * size
        if first < int(self.cluster_cidr.network_address):
            return ""
        return f"{ipaddress.IPv4Address(first)}/{self.mask}"

    def ttl(self, index: int) -> str:
        """Return for how many seconds kubelets keep Secrets in a cluster with so many Nodes.

        Source: pkg/controller/ttl/ttl_controller.go, ttlBoundaries.
        """
        return next((ttl for size, ttl in _TTLS if index < size), _TTL_MOST)
