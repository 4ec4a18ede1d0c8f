"""Where the servers of a fleet's kubelets are: what their Nodes say of it, by index.

NOWHERE      no port and no feature that needs a server is declared
loopback     one address of 127.128.0.0/9 for each node, one port for all
a range      the same out of addresses that are routed to `lo`; and so have pods
ports        one address for all, one port for each node
"""

import ipaddress
from typing import NamedTuple

LOOPBACK_POOL = ipaddress.IPv4Network("127.128.0.0/9")
"""All of it is on `lo` already; the lower half is left to resolvers and other programs."""
SERVER_FEATURES = frozenset({"ExtendWebSocketsToKubelet"})
"""Of `status.declaredFeatures`: what only a kubelet with a server can do."""
PORT_MAX = 65535
POD_ADDRESSES_LOST = 3
"""Of each node's pod addresses: the network's, the gateway's and the last one."""


class NodeRange(NamedTuple):
    """Addresses of a run: the lower half are the nodes', blocks of the upper one their pods'."""

    whole: ipaddress.IPv4Network
    pods_max: int  # of a node

    @property
    def nodes(self) -> ipaddress.IPv4Network:
        """Return the addresses of the nodes."""
        return next(self.whole.subnets())

    @property
    def block_bits(self) -> int:
        """Return of how many bits the addresses of one node's pods are."""
        return (self.pods_max + POD_ADDRESSES_LOST - 1).bit_length()

    @property
    def room(self) -> int:
        """Return how many nodes there are addresses for."""
        return max(self.nodes.num_addresses >> self.block_bits, 0)

    def pod_cidr_of(self, index: int) -> str:
        """Return the addresses of the pods of a node."""
        assert 0 <= index < self.room, (index, self)
        upper = int(self.nodes.broadcast_address) + 1
        first = ipaddress.IPv4Address(upper + (index << self.block_bits))
        return f"{first}/{32 - self.block_bits}"


class Serving(NamedTuple):
    """Where the kubelets of one process answer. Without an address: as the profile says."""

    address: str = ""  # of all nodes; "" for one of the pool each
    port: int = 0  # of all nodes; with an address, that of the node `first`
    first: int = 0  # the lowest index of the process
    range: NodeRange | None = None  # None: LOOPBACK_POOL, and pods have no address of ours
    shift: int = 0  # within LOOPBACK_POOL, see address_plan.py

    @property
    def pool(self) -> ipaddress.IPv4Network:
        """Return where each node has an address of its own."""
        return LOOPBACK_POOL if self.range is None else self.range.nodes

    def address_of(self, index: int) -> str:
        """Return the address of a node."""
        return self.address or str(self.pool[index + self.shift + 1])

    def port_of(self, index: int) -> int:
        """Return the port of a node, 0 for none."""
        return self.port + index - self.first if self.address else self.port

    def index_of(self, address: str, port: int) -> int:
        """Return the index of the node that answers there; of no node if there is none."""
        if self.address:
            return port - self.port + self.first
        first = int(self.pool.network_address) + 1 + self.shift
        return int(ipaddress.IPv4Address(address)) - first


NOWHERE = Serving()
