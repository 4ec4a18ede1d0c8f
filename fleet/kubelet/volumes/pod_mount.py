"""The volumes of one pod while they are being mounted, or mounted anew."""

import enum

from fleet.clock import NS_PER_MS
from fleet.k8s.pods import VolumeSpec
from fleet.kubelet.volumes.claim_volume import AT_ONCE, ClaimVolume

MOUNT_POLL_NS = 300 * NS_PER_MS  # podAttachAndMountRetryInterval


class MountResult(enum.Enum):
    """How an attempt to mount the volumes of a pod went."""

    WAITING = 0
    MOUNTED = 1
    FAILED = 2  # an operation did; it is tried again
    GIVEN_UP = 3  # the pod's sync fails
    REJECTED = 4  # the node takes no more volumes: the last event says so, and ends the pod


class PendingVolume:
    """A volume that is not mounted yet."""

    __slots__ = (
        *("claim", "due_ns", "error", "patience_ns", "reads", "secret", "spec", "tokens"),
        "tries",
    )

    def __init__(self, spec: VolumeSpec, claim: ClaimVolume | None) -> None:
        self.spec = spec
        self.claim = claim
        self.due_ns = AT_ONCE  # of the next attempt, 0 while an answer is awaited
        self.tokens = -1 if spec.tokens else 0  # awaited ones; -1 when they are to be asked for
        self.reads = -1  # awaited objects that are not watched, as the tokens
        self.secret = -1 if spec.driver and spec.secret else 0  # 1 while it is awaited
        self.error = ""  # why a token was refused, or a secret
        self.patience_ns = 0  # until when an unsynced cache is waited for
        self.tries = 0


class PodMount:
    """The volumes of one pod while they are being mounted."""

    __slots__ = ("began_ns", "due_ns", "is_remount", "limits_asked", "seen_ns", "volumes", "waited")

    def __init__(self, volumes: list[PendingVolume], *, is_remount: bool = False) -> None:
        self.volumes = volumes
        self.is_remount = is_remount  # the pod runs already
        self.began_ns = 0
        self.waited = False  # by a sync of the pod
        self.due_ns = 0
        self.limits_asked = False  # whether the node is full, before that sync gives up
        self.seen_ns = 0  # when that sync sees a claim that is no good


def mount_seen_ns(began_ns: int, now_ns: int) -> int:
    """Return when a sync that waits since `began_ns` sees what was mounted now.

    Source: volume_manager.go, WaitForAttachAndMount: it looks at once, then every 300 ms.
    """
    return began_ns - (began_ns - now_ns) // MOUNT_POLL_NS * MOUNT_POLL_NS
