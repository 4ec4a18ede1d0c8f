"""Unmounts: the volumes of pods that have ended and are still mounted, as something fails.

    TearDown fails -> 0.5 s -> again -> 1 s ... 122 s -> again -> it is unmounted

Each volume is tried by itself, and no event tells of it: UnmountVolume has no EventRecorderFunc.
Only what fails is kept; a pod whose volumes go at once leaves nothing here.
Source: pkg/kubelet/volumemanager/reconciler/reconciler_common.go, unmountVolumes;
pkg/volume/util/operationexecutor/operation_generator.go, GenerateUnmountVolumeFunc;
pkg/volume/util/nestedpendingoperations; pkg/util/goroutinemap/exponentialbackoff.
Differs: what is mounted once for all pods of a node (UnmountDevice) never fails.
"""

from fleet.k8s.pods import Pod, PodUid, VolumeSpec
from fleet.kubelet.counts import UNMOUNT_FAILED
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.volume_manager import LOOP_NS, RETRY_FIRST_NS, RETRY_MAX_NS
from fleet.profile.pod_behavior import volume_behavior

_STREAM_UNMOUNT = 0x70107
_STEPS_MAX = 8  # RETRY_FIRST_NS << 8 is above RETRY_MAX_NS


class _Mounted:
    """A volume that could not be unmounted."""

    __slots__ = ("due_ns", "spec", "tries")

    def __init__(self, spec: VolumeSpec) -> None:
        self.spec = spec
        self.due_ns = 0  # when it may be tried again
        self.tries = 0


class Unmounts:
    """The volumes of one node that do not unmount, by pod."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[PodUid, list[_Mounted]] | None = None

    def attempt(self, pod: Pod, turn: Turn) -> int:
        """Unmount what is due; return when it is tried again, 0 once nothing is mounted."""
        left = (self._left or {}).get(pod.uid)
        if left is None:
            left = [_Mounted(each) for each in pod.spec.volumes if each.mounted]
        left = [each for each in left if not _tear_down(pod, each, turn)]
        if left:
            self._left = {**(self._left or {}), pod.uid: left}
            return min(each.due_ns for each in left)
        if self._left is not None:
            self._left.pop(pod.uid, None)
            self._left = self._left or None
        return 0


def _tear_down(pod: Pod, mounted: _Mounted, turn: Turn) -> bool:
    """Try to unmount one volume if that is due; return whether it is unmounted."""
    if turn.now_ns < mounted.due_ns:
        return False
    if not _is_stuck(pod, mounted.spec, turn):
        return True
    turn.facts.counts().on_volumes((mounted.spec,), UNMOUNT_FAILED)
    wait_ns = min(RETRY_FIRST_NS << min(mounted.tries, _STEPS_MAX), RETRY_MAX_NS)
    loop_ns = int(LOOP_NS * turn.draw(_STREAM_UNMOUNT, f"{pod.uid}/{mounted.spec.name}"))
    mounted.due_ns = turn.now_ns + wait_ns + loop_ns
    mounted.tries += 1
    return False


def _is_stuck(pod: Pod, spec: VolumeSpec, turn: Turn) -> bool:
    """Return whether a volume cannot be unmounted now.

    There is nothing to unmount of a path of the host. Source: host_path.go, TearDown.
    """
    if spec.host_path:
        return False
    if turn.env.model.broken.stuck_mounts:
        return True
    declared = turn.behavior(pod).volumes
    return volume_behavior(declared, spec.name, pod.annotations).unmount_fails
