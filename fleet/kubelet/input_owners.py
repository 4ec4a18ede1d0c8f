"""Which part of a kubelet a timer or the answer to a call belongs to."""

from fleet.objects.effects import Op, Timer, WatchKind

BASE_WATCHES = (
    WatchKind.NODE,
    WatchKind.SERVICES,
    WatchKind.CSI_DRIVERS,
    WatchKind.RUNTIME_CLASSES,
)
"""What a kubelet watches from its start; its pods follow."""

VOLUME_OPS = frozenset((Op.GET_CLAIM, Op.GET_VOLUME, Op.GET_ATTACHMENT, Op.GET_NODE_ATTACHED))
MIRROR_OPS = frozenset((Op.CREATE_MIRROR_POD, Op.DELETE_MIRROR_POD))
CSI_OPS = frozenset(
    (Op.PROBE_CSINODE, Op.GET_CSINODE, Op.CREATE_CSINODE, Op.DELETE_CSINODE, Op.UPDATE_CSINODE)
)
LEASE_OPS = frozenset((Op.GET_LEASE, Op.CREATE_LEASE, Op.RENEW_LEASE))
POD_OPS = frozenset(
    (
        Op.GET_POD,
        Op.PATCH_POD_STATUS,
        Op.DELETE_POD,
        *MIRROR_OPS,
        Op.CREATE_TOKEN,
        Op.GET_RESOURCE_CLAIM,
        *VOLUME_OPS,
    )
)
POD_TIMERS = frozenset(
    (
        Timer.POD_SYNC,
        Timer.RUNTIME,
        Timer.STATUS_SYNC,
        Timer.HOUSEKEEPING,
        Timer.VOLUMES,
        Timer.EVICTION,
        Timer.PROBES,
        Timer.RESIZE,
    )
)
DRIVER_OPS = frozenset((Op.CREATE_RESOURCE_SLICE, Op.DELETE_DRIVER_SLICES))
EVENT_OPS = frozenset((Op.CREATE_EVENT, Op.PATCH_EVENT))
LOOP_TIMERS = frozenset((Timer.EVICTION, Timer.HOUSEKEEPING, Timer.RESIZE, Timer.STATUS_SYNC))
"""About no single pod."""
