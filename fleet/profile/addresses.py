"""Which addresses the nodes of one process have, where their servers are, and their pods' ranges.

A node has a position: its index in the whole fleet plus the shift of its process. Position p is the
address p + 1 of every pool, and block p of the ranges for pods of Nodes without podCIDRs. No two
fleets of a cluster share one: a process claims the positions of all nodes that it may have; see
cluster/runs.py. The servers of its kubelets are

NOWHERE      no port and no feature that needs a server is declared
loopback     at one address of 127.128.0.0/9 for each node, one port for all
ports        at one address for all, one port for each node
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleet.k8s.addresses import each_of, is_ipv6

LOOPBACK_POOL = ipaddress.IPv4Network("127.128.0.0/9")
"""All of it is on `lo` already; the lower half is left to resolvers and other programs."""
PORT_MAX = 65535


class Serving(NamedTuple):
    """Where the kubelets of one process answer. Without an address: as the profile says."""

    address: str = ""  # of all nodes; "" for one of the pool each
    port: int = 0  # of all nodes; with an address, that of the node `first`
    first: int = 0  # the lowest index of the process
    shift: int = 0  # within LOOPBACK_POOL, see address_plan.py

    def address_of(self, index: int) -> str:
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


AddressPool = ipaddress.IPv4Network | ipaddress.IPv6Network

POD_POOL_V4 = ipaddress.IPv4Network("240.0.0.0/4")
"""RFC 1112, section 4: reserved. No network routes it, so a fake pod address reaches nobody."""
POD_POOL_V6 = ipaddress.IPv6Network("fd00:10::/32")
POD_BLOCK_BITS = {4: 10, 6: 64}
"""A node has a /22 or a /64: more than the pods that a kubelet takes."""


class AddressRange(NamedTuple):
    """Addresses of one family, both ends included."""

    version: int
    first: int
    last: int

    def __str__(self) -> str:
        kind = ipaddress.IPv4Address if self.version == 4 else ipaddress.IPv6Address
        return f"{kind(self.first)}-{kind(self.last)}"


class _Part(NamedTuple):
    """A pool, and how positions lie in it."""

    pool: AddressPool
    bits: int  # of the block of one position
    skipped: int  # addresses in front that no node has

    @property
    def room(self) -> int:
        return (self.pool.num_addresses >> self.bits) - 2 * self.skipped

    def range_of(self, first: int, count: int) -> AddressRange:
        low = int(self.pool.network_address) + (first + self.skipped << self.bits)
        return AddressRange(self.pool.version, low, low + (count << self.bits) - 1)

    def positions_of(self, found: AddressRange) -> tuple[int, int] | None:
        """Return the first and the last position that a range takes, None for none."""
        base, end = int(self.pool.network_address), int(self.pool.broadcast_address)
        if found.version != self.pool.version or found.last < base or found.first > end:
            return None
        low, high = max(found.first, base) - base, min(found.last, end) - base
        return (low >> self.bits) - self.skipped, (high >> self.bits) - self.skipped


class AddressPlan:
    """The pools of all profiles of a run, and where in them a process has room."""

    def __init__(self, pools: Iterable[AddressPool]) -> None:
        self._pools = tuple(dict.fromkeys(pools))
        self._parts = (
            *(_Part(pool, 0, 1) for pool in (*self._pools, LOOPBACK_POOL)),
            _Part(POD_POOL_V4, POD_BLOCK_BITS[4], 0),
            _Part(POD_POOL_V6, POD_BLOCK_BITS[6], 0),
        )
        self.room = min(part.room for part in self._parts)

    def __str__(self) -> str:
        return ",".join(map(str, self._pools))

    def ranges(self, first: int, count: int) -> tuple[AddressRange, ...]:
        """Return all addresses of so many positions."""
        return tuple(part.range_of(first, count) for part in self._parts)

    def position_of(self, addresses: Iterable[str]) -> int | None:
        """Return the position of the node that has these InternalIPs, None if it is not ours."""
        for found in filter(None, map(range_of, addresses)):
            for part in self._parts[:-2]:
                position, _ = part.positions_of(found) or (-1, -1)
                if 0 <= position < self.room:
                    return position
        return None

    def free(self, start: int, count: int, taken: Sequence[AddressRange]) -> int | None:
        """Return the first free position from `start` on, else from 0 on; None if there is none."""
        found = (part.positions_of(each) for each in taken for part in self._parts)
        blocked = sorted(filter(None, found))
        for first in (start, 0):
            at = first
            for low, high in blocked:
                if low >= at + count:
                    break
                at = max(at, high + 1)
            if at + count <= self.room:
                return at
        return None


def range_of(text: str) -> AddressRange | None:
    """Return the range of an address, of a CIDR or of FIRST-LAST; None if it is none."""
    try:
        if "-" in text:
            first, last = (ipaddress.ip_address(each) for each in text.split("-"))
            if first.version != last.version or int(first) > int(last):
                return None
            return AddressRange(first.version, int(first), int(last))
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    return AddressRange(
        network.version, int(network.network_address), int(network.broadcast_address)
    )


def pod_cidrs(position: int, host_ips: str) -> str:
    """Return ranges for the pods of a node whose Node has none, one of each of its families."""
    return ",".join(
        _block(position, POD_POOL_V6 if is_ipv6(ip) else POD_POOL_V4) for ip in each_of(host_ips)
    )


def _block(position: int, pool: AddressPool) -> str:
    bits = POD_BLOCK_BITS[pool.version]
    # Nodes of others (`--manage`) and those of tests have addresses of no pool.
    first = pool.network_address + (position % (pool.num_addresses >> bits) << bits)
    return f"{first}/{pool.max_prefixlen - bits}"


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
    """How the controllers of a cluster allocate, by their flags."""

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
