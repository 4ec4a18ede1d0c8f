"""PLEG: look at the runtime each second and tell what has changed.

Nothing ticks. The relist that would find a change is computed from the node's phase, and only
that one is armed; a sync that did something asks for a relist of its pod at once.
Source: pkg/kubelet/pleg/generic.go, Relist, RequestRelist; KEP 5420 for on-demand relists.
"""

import enum
import zlib
from typing import NamedTuple

from fleet.clock import NS_PER_S, Draws
from fleet.objects import PodUid
from fleet.runtime import RunState, Sandbox

RELIST_NS = 1 * NS_PER_S
_STREAM_PHASE = 0x91E6


class PodEventType(enum.IntEnum):
    """Source: pkg/kubelet/pleg/pleg.go, PodLifeCycleEventType."""

    CONTAINER_STARTED = 0
    CONTAINER_DIED = 1


class PodLifecycleEvent(NamedTuple):
    """One change between two relists."""

    type: PodEventType
    container: str


class Pleg:
    """What the last relist saw of each pod: its containers, each in an int."""

    __slots__ = ("_phase_ns", "_records")

    def __init__(self, node: int, draws: Draws) -> None:
        self._phase_ns = int(draws.uniform(node, _STREAM_PHASE, 0) * RELIST_NS)
        self._records: dict[PodUid, tuple[int, ...]] = {}

    def next_relist_ns(self, now_ns: int) -> int:
        """Return the first relist at or after an instant."""
        return now_ns + (self._phase_ns - now_ns) % RELIST_NS

    def last_relist_ns(self, now_ns: int) -> int:
        """Return the last relist at or before an instant."""
        return now_ns - (now_ns - self._phase_ns) % RELIST_NS

    def relist(self, uid: PodUid, sandbox: Sandbox) -> list[PodLifecycleEvent]:
        """Compare a pod with what was seen of it last."""
        old = self._records.get(uid, ())
        seen = _shape(sandbox)
        if seen == old:
            return []
        self._records[uid] = _share(seen)
        return [
            PodLifecycleEvent(
                PodEventType.CONTAINER_STARTED
                if each.state is RunState.RUNNING
                else PodEventType.CONTAINER_DIED,
                each.name,
            )
            for each, word in zip(sandbox.containers, seen, strict=True)
            if word not in old
        ]

    def is_stale(self, uid: PodUid, sandbox: Sandbox) -> bool:
        """Return whether a relist would see something new."""
        return self._records.get(uid, ()) != _shape(sandbox)

    def forget(self, uid: PodUid) -> None:
        """Drop what is known of a pod."""
        self._records.pop(uid, None)


_SHAPES_MAX = 1024
_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}


def _shape(sandbox: Sandbox) -> tuple[int, ...]:
    return tuple(
        [
            zlib.crc32(each.name.encode()) << 24 | each.attempt << 2 | each.state
            for each in sandbox.containers
        ]
    )


def _share(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the one tuple of this shape: most pods of a fleet look the same."""
    if len(_shapes) > _SHAPES_MAX:
        _shapes.clear()
    return _shapes.setdefault(shape, shape)
