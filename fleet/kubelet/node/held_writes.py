"""What a kubelet does not write before registration has shown that the Node of its name is its own.

Differs: a kubelet renews the Lease of its name, and reports pods, before it has looked.
"""

from fleet.k8s.effects import ApiCall, Op
from fleet.kubelet.turn import Turn

NEVER_HELD = frozenset((Op.CREATE_NODE, Op.PATCH_NODE_STATUS, Op.CREATE_EVENT, Op.PATCH_EVENT))
"""Registration itself, and events, which only tell about what has the node's name."""


class HeldWrites:
    """The writes of one kubelet, from its start until the Node is known to be its own."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[ApiCall] = []

    def take(self, begin: int, turn: Turn, *, is_ours: bool) -> "HeldWrites | None":
        """Take the writes out of the effects from `begin` on; return who takes the next ones.

        Once the Node is ours it is nobody, and all that was held goes out before those.
        """
        out = turn.out
        if is_ours:
            out[begin:begin] = self._calls
            return None
        mine = [each for each in out[begin:] if isinstance(each, ApiCall) and _is_held(each)]
        if mine:
            out[begin:] = [each for each in out[begin:] if each not in mine]
            self._calls += mine
        return self


def _is_held(call: ApiCall) -> bool:
    """Return whether a call changes what has the node's name."""
    return not call.op.name.startswith(("GET_", "PROBE_")) and call.op not in NEVER_HELD
