"""Where the servers of a fleet's kubelets are: what their Nodes say of it, by index.

NOWHERE      no port and no feature that needs a server is declared
loopback     one address of 127.128.0.0/9 for each node, one port for all
ports        one address for all, one port for each node
"""

import ipaddress
from typing import NamedTuple

LOOPBACK_POOL = ipaddress.IPv4Network("127.128.0.0/9")
"""All of it is on `lo` already; the lower half is left to resolvers and other programs."""
SERVER_FEATURES = frozenset({"ExtendWebSocketsToKubelet"})
"""Of `status.declaredFeatures`: what only a kubelet with a server can do."""
PORT_MAX = 65535


class Serving(NamedTuple):
    """Where the kubelets of one process answer. Without an address: as the profile says."""

    address: str = ""  # of all nodes; "" for one of the pool each
    port: int = 0  # of all nodes; with an address, that of the node `first`
    first: int = 0  # the lowest index of the process
    shift: int = 0  # within LOOPBACK_POOL, see address_plan.py

    def address_of(self, index: int) -> str:
        """Return the address of a node."""
        return self.address or str(LOOPBACK_POOL[index + self.shift + 1])

    def port_of(self, index: int) -> int:
        """Return the port of a node, 0 for none."""
        return self.port + index - self.first if self.address else self.port

    def index_of(self, address: str, port: int) -> int:
        """Return the index of the node that answers there; of no node if there is none."""
        if self.address:
            return port - self.port + self.first
        first = int(LOOPBACK_POOL.network_address) + 1 + self.shift
        return int(ipaddress.IPv4Address(address)) - first


NOWHERE = Serving()
