"""The pod addresses of one node."""

import hashlib
import ipaddress

from fleet.k8s.addresses import each_of, is_ipv6
from fleet.k8s.pods import PodUid

ADDRESS_FIRST = 2
SIZE_MAX = 1 << 16
"""Of a range of IPv6: those beyond are not given out, for a bit is kept of each one below."""


class AddressPool:
    """The pod addresses of one range, given out in rotation as host-local IPAM does."""

    __slots__ = ("_base", "_last", "_size", "_used", "cidrs")

    def __init__(self, cidr: str) -> None:
        self.cidrs = cidr
        address, _, bits = cidr.partition("/")
        self._base = _as_number(address)
        if is_ipv6(cidr):
            # The last address of IPv4 is the broadcast's: containernetworking's range.go, lastIP.
            self._size = min((1 << 128 - int(bits)) + 1, SIZE_MAX)
        else:
            self._size = 1 << 32 - int(bits)
        self._used = 0
        self._last = ADDRESS_FIRST - 1

    @property
    def shortage(self) -> str:
        """Return how host-local says that its only range has no address left."""
        return f"range 0: no IP addresses available in range set: {self.range}"

    @property
    def range(self) -> str:
        """Return the first and the last address as host-local names them: its gateway first."""
        network = ipaddress.ip_network(self.cidrs, strict=False)
        return f"{network[1]}-{network[-1 if network.version == 6 else -2]}"

    def _text(self, number: int) -> str:
        if is_ipv6(self.cidrs):
            return str(ipaddress.IPv6Address(self._base + number))
        return ".".join(str(part) for part in (self._base + number).to_bytes(4, "big"))

    def take(self) -> str:
        """Return a free address, "" when there is none."""
        number = self._free_from(self._last + 1) or self._free_from(ADDRESS_FIRST)
        if not number:
            return ""
        self._last = number
        self._used |= 1 << number
        return self._text(number)

    @property
    def is_empty(self) -> bool:
        """Return whether no address is free."""
        return not self._free_from(ADDRESS_FIRST)

    def _free_from(self, first: int) -> int:
        """Return the lowest free number from one on, 0 if there is none."""
        used = self._used >> first
        number = first + (~used & used + 1).bit_length() - 1
        return number if number < self._size - 1 else 0

    def claim(self, ips: str) -> None:
        """Mark addresses that a pod already has, as far as they are ours."""
        for ip in each_of(ips):
            number = self._number(ip)
            if number >= ADDRESS_FIRST:
                self._used |= 1 << number

    def free(self, ips: str) -> None:
        """Return addresses to the pool, as far as they are ours."""
        for ip in each_of(ips):
            number = self._number(ip)
            if number >= ADDRESS_FIRST:
                self._used &= ~(1 << number)

    def _number(self, ip: str) -> int:
        if is_ipv6(ip) is not is_ipv6(self.cidrs):
            return -1
        number = _as_number(ip) - self._base
        return number if number < self._size else -1


def _as_number(ip: str) -> int:
    if is_ipv6(ip):
        return int(ipaddress.IPv6Address(ip))
    return int.from_bytes(bytes([int(octet) for octet in ip.split(".")]), "big")


class DualPool:
    """The ranges of a node of two families: a pod has an address of each.

    Source: containernetworking/plugins host-local main.go, cmdAdd; containerd 2,
    internal/cri/server/sandbox_run.go, selectPodIPs: without an ip_pref, IPv4 comes first.
    """

    __slots__ = ("_pools", "cidrs")

    def __init__(self, cidrs: str) -> None:
        self.cidrs = cidrs
        self._pools = tuple(map(AddressPool, each_of(cidrs)))

    @property
    def shortage(self) -> str:
        """Return how host-local says which of the ranges has no address left."""
        at, pool = next((at, pool) for at, pool in enumerate(self._pools) if pool.is_empty)
        return f"range {at}: no IP addresses available in range set: {pool.range}"

    def take(self) -> str:
        """Return a free address of each range, "" when one has none."""
        taken = [pool.take() for pool in self._pools]
        if not all(taken):
            self.free(",".join(filter(None, taken)))
            return ""
        return ",".join(sorted(taken, key=is_ipv6))

    def claim(self, ips: str) -> None:
        """Mark addresses that a pod already has, as far as they are ours."""
        for pool in self._pools:
            pool.claim(ips)

    def free(self, ips: str) -> None:
        """Return addresses to their ranges, as far as they are ours."""
        for pool in self._pools:
            pool.free(ips)


def pool_of(cidrs: str) -> AddressPool | DualPool:
    """Return the pool of a node's ranges."""
    return DualPool(cidrs) if "," in cidrs else AddressPool(cidrs)


def set_up_failed(uid: PodUid, now_ns: int) -> str:
    """Return how containerd begins to say that a network plugin failed."""
    sandbox = sandbox_id(uid, now_ns)
    return f'rpc error: code = Unknown desc = failed to setup network for sandbox "{sandbox}"'


def no_address(uid: PodUid, now_ns: int, shortage: str) -> str:
    """Return how containerd and the ptp plugin say that no address of a range is free.

    Each try is about another sandbox, so no two of them are the same event.
    """
    return (
        f"{set_up_failed(uid, now_ns)}: "
        f'plugin type="ptp" failed (add): failed to allocate for {shortage}'
    )


def tear_down_failed(uid: PodUid, error: str) -> str:
    """Return what containerd says of a network plugin that does not free a sandbox.

    Source: containerd 2, internal/cri/server/sandbox_stop.go, stopPodSandbox.
    """
    text = f'failed to destroy network for sandbox "{sandbox_id(uid, 0)}": {error}'
    return f"rpc error: code = Unknown desc = {text}"


def no_runtime(handler: str, uid: PodUid, now_ns: int) -> str:
    """Return what containerd says of a handler that it does not have.

    Source: containerd 2, internal/cri/server/sandbox_run.go, RunPodSandbox.
    """
    sandbox = sandbox_id(uid, now_ns)
    text = f'unable to get OCI runtime for sandbox "{sandbox}": no runtime for "{handler}"'
    return f"rpc error: code = Unknown desc = {text} is configured"


def sandbox_id(uid: PodUid, now_ns: int) -> str:
    """Return the ID of a sandbox: of the tries to make it each has its own, once made it has 0."""
    return hashlib.sha256(f"{uid}/{now_ns}".encode()).hexdigest()
