"""PLEG: look at the runtime each second and say what has changed.

Nothing ticks. The relist that would find a change is computed from the node's phase, and only
that one is armed; a sync that did something asks for a relist of its pod at once.
Source: pkg/kubelet/pleg/generic.go, Relist, RequestRelist; KEP 5420 for on-demand relists.
Differs: the alpha gate EventedPLEG changes nothing.
"""

import zlib
from functools import lru_cache

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.pods import PodUid
from fleet.runtime.containers import Container, RunState, Sandbox

RELIST_NS = 1 * NS_PER_S  # genericPlegRelistPeriod
_STREAM_PHASE = 0x91E6


class Pleg:
    """What the last relist saw of each pod: its containers, each in an int."""

    __slots__ = ("_phase_ns", "_records")

    def __init__(self, node: int, draws: Draws) -> None:
        self._phase_ns = int(draws.uniform(node, _STREAM_PHASE, 0) * RELIST_NS)
        self._records: dict[PodUid, tuple[int, ...]] = {}

    def last_relist_ns(self, now_ns: int) -> int:
        """Return the last relist at or before an instant: the pod cache is as of then."""
        return now_ns - (now_ns - self._phase_ns) % RELIST_NS

    def next_relist_ns(self, now_ns: int) -> int:
        """Return the first relist at or after an instant."""
        return now_ns + (self._phase_ns - now_ns) % RELIST_NS

    def relist(self, uid: PodUid, sandbox: Sandbox) -> bool:
        """Look at a pod; return whether a container has started or died since the last look."""
        old = self._records.get(uid, ())
        seen = _shape(sandbox)
        if seen == old:
            return False
        self._records[uid] = _share(seen)
        return any(word not in old for word in seen)

    def has_reported(self, uid: PodUid, sandbox: Sandbox, now_ns: int, wall_offset_ns: int) -> bool:
        """Return whether a relist saw a container start that was not there at the last look."""
        seen_s = (self.last_relist_ns(now_ns) + wall_offset_ns) // NS_PER_S
        return any(0 < each.started_s < seen_s for each in self._new(uid, sandbox))

    def reports(self, uid: PodUid, sandbox: Sandbox, now_ns: int, wall_offset_ns: int) -> bool:
        """Return whether the last relist saw what the one before did not see."""
        before_ns = self.last_relist_ns(now_ns) - RELIST_NS
        before_s = -(-(before_ns + wall_offset_ns) // NS_PER_S)
        return any(
            each.exit_ns > before_ns
            if each.state is RunState.EXITED
            else each.state is RunState.RUNNING and each.started_s >= before_s
            for each in self._new(uid, sandbox)
        )

    def _new(self, uid: PodUid, sandbox: Sandbox) -> list[Container]:
        old = self._records.get(uid, ())
        shape = zip(sandbox.containers, _shape(sandbox), strict=True)
        return [each for each, word in shape if word not in old]

    def is_stale(self, uid: PodUid, sandbox: Sandbox) -> bool:
        """Return whether a relist would see something new."""
        return self._records.get(uid, ()) != _shape(sandbox)

    def forget(self, uid: PodUid) -> None:
        """Drop what is known of a pod."""
        self._records.pop(uid, None)


def _shape(sandbox: Sandbox) -> tuple[int, ...]:
    return tuple(
        [
            zlib.crc32(each.name.encode()) << 24 | each.attempt << 2 | each.state
            for each in sandbox.containers
        ]
    )


@lru_cache(maxsize=1024)
def _share(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the one tuple of this shape: most pods of a fleet look the same."""
    return shape
