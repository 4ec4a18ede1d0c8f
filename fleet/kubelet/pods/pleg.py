"""PLEG: look at the runtime each second and say what has changed.

Nothing ticks. The relist that would find a change is computed from the node's phase, and only
that one is armed; a sync that did something asks for a relist of its pod at once.
With the feature gate EventedPLEG the runtime's own events take the place of that relist.
Source: pkg/kubelet/pleg/generic.go, Relist, RequestRelist; evented.go; KEP 5420 for on-demand
relists. Differs: the stream of events never breaks, so generic relists are never fallen back to.
"""

import enum
import zlib
from typing import NamedTuple

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.pods import PodUid
from fleet.runtime.containers import RunState, Sandbox

RELIST_NS = 1 * NS_PER_S  # genericPlegRelistPeriod
GLOBAL_CACHE_NS = 5 * NS_PER_S  # globalCacheUpdatePeriod: without relists the cache ages so long
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

    __slots__ = ("_phase_ns", "_records", "is_evented")

    def __init__(self, node: int, draws: Draws, *, is_evented: bool = False) -> None:
        self._phase_ns = int(draws.uniform(node, _STREAM_PHASE, 0) * RELIST_NS)
        self._records: dict[PodUid, tuple[int, ...]] = {}
        self.is_evented = is_evented  # the runtime streams its events: a relist is not waited for

    def seen_ns(self, change_ns: int) -> int:
        """Return when a change is seen: at the next relist, or at once. Source: evented.go."""
        return change_ns if self.is_evented else self.next_relist_ns(change_ns)

    def last_cached_ns(self, now_ns: int) -> int:
        """Return since when the pod cache is known to be current. Source: updateGlobalCache."""
        period_ns = GLOBAL_CACHE_NS if self.is_evented else RELIST_NS
        return now_ns - (now_ns - self._phase_ns) % period_ns

    def next_cached_ns(self, now_ns: int) -> int:
        """Return when the pod cache is next known to be current, at or after an instant."""
        period_ns = GLOBAL_CACHE_NS if self.is_evented else RELIST_NS
        return now_ns + (self._phase_ns - now_ns) % period_ns

    def next_relist_ns(self, now_ns: int) -> int:
        """Return the first relist at or after an instant."""
        return now_ns + (self._phase_ns - now_ns) % RELIST_NS

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
