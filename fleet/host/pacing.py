"""How many nodes may start now: a bring-up is preparation, not the experiment.

    STARTING --its kubelet says Ready; in light it has a Lease--> SAID --others see it--> SETTLED
    at most as many as `StartLimit` finds     at most UNSETTLED_MAX with those that start

What a kubelet says and what others see part on a busy API server: the node-lifecycle controller has
eight workers, each of whose requests waits like all others, and a node that keeps the not-ready
taint is no use to a scheduler, yet renews its Lease. See docs/explain/performance.md.
Where nobody takes the taint away, nobody is waited for.
"""

import enum
import logging
from collections.abc import Callable

from fleet.host.start_limit import Rows, StartLimit
from fleet.k8s.effects import NodeId

UNSETTLED_MAX = 96
"""Or twice as many as may start, if that is more."""
PATIENCE_S = 15.0
"""After so long without one more node that others see Ready, they are not waited for."""
LOOKED_AT_ALWAYS = 256  # of more than this, a look a second is enough
LOOK_S = 1.0
SHOWN_S = 2.0

log = logging.getLogger(__name__)


class StartStage(enum.IntEnum):
    """How far a node has come."""

    STARTING = 0
    SAID = 1
    SETTLED = 2


class Pacing:
    """The nodes that are on their way. Time is in seconds of any clock that does not go back."""

    __slots__ = (
        "_held_by",
        "_held_s",
        "_look_s",
        "_moved_s",
        "_said",
        "_starting",
        "is_blind",
        "limit",
    )

    def __init__(self, limit: StartLimit) -> None:
        self.limit = limit
        self._starting: dict[NodeId, None] = {}
        self._said: dict[NodeId, None] = {}
        self._look_s = 0.0
        self._moved_s = 0.0  # when a node was seen last, or when there was room for more
        self._held_by = ""
        self._held_s = 0.0
        self.is_blind = False  # nobody sees nodes Ready: what they say is all there is

    def add(self, node: NodeId) -> None:
        """Take a node that starts now."""
        self._starting[node] = None

    def remove(self, node: NodeId) -> None:
        """Forget a node that is gone, however far it came."""
        self._starting.pop(node, None)
        self._said.pop(node, None)

    def room(self, stage_of: Callable[[NodeId], StartStage], answered: Rows, now_s: float) -> int:
        """Return how many nodes may start now; `answered` is what the server did so far."""
        is_used = 2 * len(self._starting) > self.limit.nodes
        for node in list(self._starting):
            stage = stage_of(node)
            if stage is not StartStage.STARTING:
                del self._starting[node]
                self.limit.through += 1
            if stage is StartStage.SAID:
                self._said[node] = None
        self.limit.look(answered, now_s, is_used=is_used)
        starting_max = self.limit.nodes
        self._look(stage_of, now_s)
        starting, said = len(self._starting), len(self._said)
        if starting >= starting_max:
            self._hold(f"the API server: {starting} nodes are starting", now_s)
            return 0
        room = starting_max - starting
        if said == 0 or self.is_blind:
            return room
        unsettled_room = max(UNSETTLED_MAX, 2 * starting_max) - starting - said
        if unsettled_room <= 0:
            self._hold(f"the controllers: {said} Ready nodes keep the not-ready taint", now_s)
        return max(0, min(room, unsettled_room))

    def held_by(self, now_s: float) -> str:
        """Return what has just kept nodes from starting, "" for nothing."""
        return self._held_by if now_s - self._held_s < SHOWN_S else ""

    def _hold(self, by: str, now_s: float) -> None:
        self._held_by, self._held_s = by, now_s

    def _look(self, stage_of: Callable[[NodeId], StartStage], now_s: float) -> None:
        """See which of the nodes that say Ready others see so, and whether any is."""
        if len(self._said) > LOOKED_AT_ALWAYS and now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        seen = [node for node in self._said if stage_of(node) is StartStage.SETTLED]
        for node in seen:
            del self._said[node]
        crowd = len(self._starting) + len(self._said)
        if seen or crowd < UNSETTLED_MAX or not self._said:
            self._moved_s = now_s
        if len(self._said) <= UNSETTLED_MAX // 2:
            self.is_blind = False
        elif not self.is_blind and now_s - self._moved_s > PATIENCE_S:
            self.is_blind = True
            log.warning(
                "%d nodes say they are Ready and keep the not-ready taint for %d s: more nodes "
                "start without waiting for that",
                len(self._said),
                PATIENCE_S,
            )
