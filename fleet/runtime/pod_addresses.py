"""The pod addresses of one node."""

import hashlib

from fleet.objects.pods import PodUid

ADDRESS_FIRST = 2


class AddressPool:
    """The pod addresses of one node, given out in rotation as host-local IPAM does."""

    __slots__ = ("_base", "_last", "_size", "_used", "cidr")

    def __init__(self, cidr: str) -> None:
        self.cidr = cidr
        address, _, bits = cidr.partition("/")
        octets = [int(part) for part in address.split(".")]
        assert len(octets) == 4, cidr
        self._base = int.from_bytes(bytes(octets), "big")
        self._size = 1 << (32 - int(bits))
        self._used = 0
        self._last = ADDRESS_FIRST - 1

    @property
    def range(self) -> str:
        """Return the first and the last address as host-local names them: its gateway first."""
        return f"{self._text(1)}-{self._text(self._size - 2)}"

    def _text(self, number: int) -> str:
        return ".".join(str(part) for part in (self._base + number).to_bytes(4, "big"))

    def take(self) -> str:
        """Return a free address, "" when there is none. The last one is the broadcast's."""
        usable = (1 << self._size - 1) - (1 << ADDRESS_FIRST)
        free = usable & ~self._used
        above = free >> self._last + 1 << self._last + 1
        free = above or free
        if not free:
            return ""
        self._last = (free & -free).bit_length() - 1
        self._used |= free & -free
        return self._text(self._last)

    def claim(self, ip: str) -> None:
        """Mark an address that a pod already has, if it is one of ours."""
        number = self._number(ip)
        if number >= ADDRESS_FIRST:
            self._used |= 1 << number

    def is_ours(self, ip: str) -> bool:
        """Return whether it is an address of the pool."""
        return self._number(ip) >= 0

    def free(self, ip: str) -> None:
        """Return an address to the pool, if it is one of ours."""
        number = self._number(ip)
        if number >= ADDRESS_FIRST:
            self._used &= ~(1 << number)

    def _number(self, ip: str) -> int:
        octets = ip.split(".")
        if len(octets) != 4:
            return -1
        number = int.from_bytes(bytes(int(part) for part in octets), "big") - self._base
        return number if number < self._size else -1


def fallback_cidr(node: int) -> str:
    """Return a range of pod addresses for a node that was given none."""
    return f"10.{node >> 8 & 0xFF}.{node & 0xFF}.0/24"


def set_up_failed(uid: PodUid, now_ns: int) -> str:
    """Return how containerd begins to say that a network plugin failed."""
    sandbox = sandbox_id(uid, now_ns)
    return f'rpc error: code = Unknown desc = failed to setup network for sandbox "{sandbox}"'


def no_runtime(handler: str, uid: PodUid, now_ns: int) -> str:
    """Return what containerd says of a handler that it does not have.

    Source: containerd 2, internal/cri/server/sandbox_run.go, RunPodSandbox.
    """
    sandbox = sandbox_id(uid, now_ns)
    text = f'unable to get OCI runtime for sandbox "{sandbox}": no runtime for "{handler}"'
    return f"rpc error: code = Unknown desc = {text} is configured"


def sandbox_id(uid: PodUid, now_ns: int) -> str:
    """Return the ID of a sandbox that is not made after all."""
    return hashlib.sha256(f"{uid}/{now_ns}".encode()).hexdigest()
