"""Which part of a kubelet a timer belongs to, and what all of them watch."""

from fleet.k8s.effects import Timer, WatchKind

BASE_WATCHES = (
    WatchKind.NODE,
    WatchKind.SERVICES,
    WatchKind.CSI_DRIVERS,
    WatchKind.RUNTIME_CLASSES,
)
"""What a kubelet watches from its start; its pods follow."""

POD_TIMERS = frozenset(
    (
        Timer.POD_SYNC,
        Timer.POD_KILL,
        Timer.RUNTIME,
        Timer.STATUS_SYNC,
        Timer.HOUSEKEEPING,
        Timer.VOLUMES,
        Timer.EVICTION,
        Timer.PROBES,
        Timer.RESIZE,
    )
)
LOOP_TIMERS = frozenset((Timer.EVICTION, Timer.HOUSEKEEPING, Timer.RESIZE, Timer.STATUS_SYNC))
"""About no single pod."""
