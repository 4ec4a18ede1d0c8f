"""Hold: what is fleet's own on a Node that others make, so that another kubelet shows at once.

    Lease   its renewTime must be one that fleet sent, or the one that stood there at the take-over
    Node    the ids of its machine must be fleet's, or those that it showed at the take-over

A renewal without an answer may have been done, so its time counts as fleet's until a later one is
confirmed: a PUT names the version that it replaces, so whatever was sent before then fails.
No clock is compared with another machine's.
"""

from collections.abc import Collection, Iterable, Mapping

from fleet.k8s.times import rfc3339_micro

MACHINE_IDS = ("bootID", "machineID", "systemUUID")
"""Members of `status.nodeInfo` that no two machines share."""
SENT_MAX = 64
"""Renewals without an answer that are remembered: those of a minute, at ten tries each 10 s."""
RENEWED = "another kubelet renews its Lease"


class Hold:
    """One Node of others while fleet is its kubelet; it outlives restarts of the kubelet.

    `why` says why fleet lost the Node, "" while fleet has it. `version` is that of the Node when it
    was last found to be fleet's.
    """

    __slots__ = ("_first", "_ids", "_sent", "uid", "version", "why")

    def __init__(self, uid: str, renewed: str = "", machine: Iterable[str] = ()) -> None:
        self.uid = uid
        self.version = ""
        self.why = ""
        self._first = renewed.encode()  # of the Lease at the take-over
        self._ids = frozenset(machine)
        self._sent: tuple[int, ...] = ()  # wall times: the last one confirmed, and later ones

    def on_sent(self, wall_ns: int) -> None:
        """Note a Lease that is created or renewed with this time."""
        self._sent = (*self._sent[-SENT_MAX:], wall_ns)

    def on_confirmed(self, wall_ns: int) -> None:
        """Note that the Lease has this time: nothing that was sent before can be done any more."""
        self._sent = self._sent[self._sent.index(wall_ns) :] if wall_ns in self._sent else ()
        self._first = b""

    def is_own_renewal(self, renewed: bytes) -> bool:
        """Return whether a Lease with this renewTime is as fleet, or nobody since, has left it."""
        if renewed == self._first and renewed:
            return True
        return any(rfc3339_micro(each) == renewed for each in reversed(self._sent))

    def is_renewed_by_others(self, renewed: str, version: str, known: str) -> bool:
        """Return whether an event of the Lease's watch shows another kubelet.

        What is not newer than the version that fleet knows is an event that comes late. Where
        versions are no numbers the next renewal finds another kubelet out, by its conflict.
        """
        if self.is_own_renewal(renewed.encode()):
            return False
        return known.isdecimal() and version.isdecimal() and int(version) > int(known)

    def other_machine(self, info: Mapping[str, object], own: Collection[object]) -> str:
        """Return why a Node is another machine's by its nodeInfo, "" if it is not."""
        for member in MACHINE_IDS:
            found = info.get(member)
            if found and found not in self._ids and found not in own:
                return f"another kubelet reports its machine ({member} {found})"
        return ""
