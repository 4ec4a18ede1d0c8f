"""How volumes behave: how long a driver takes to mount, and what fails; CSI drivers of a node.

Annotations of a pod come first, then the first entry of its PodBehavior that fits the volume.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from fleet.profile.distribution import DistributionField, constant, constant_of
from fleet.profile.schema import Spec
from fleet.profile.usage import CurveField, curve_of

MOUNT_DELAY = constant(100_000_000)
"""NodeStageVolume and NodePublishVolume of a driver whose device is there."""
EXPAND_DELAY = constant(100_000_000)
"""NodeExpandVolume."""
PROVISION_DELAY = constant(500_000_000)
ATTACH_DELAY = constant(500_000_000)
MOUNT_DELAY_ANNOTATION = "fleet.emulator/mount-delay"
MOUNT_ERROR_ANNOTATION = "fleet.emulator/mount-error"
UNMOUNT_FAILS_ANNOTATION = "fleet.emulator/unmount-fails"
EXPAND_ERROR_ANNOTATION = "fleet.emulator/expand-error"
EMPTY_DIR_ANNOTATION = "fleet.emulator/empty-dir-usage"

DEFAULT_DRIVER = "csi.fleet.emulator"
DRIVER_PATTERN = r"^[a-zA-Z0-9]([-a-zA-Z0-9._]{0,61}[a-zA-Z0-9])?$"

RPC_CODES = frozenset(
    (
        *("Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound"),
        *("AlreadyExists", "PermissionDenied", "ResourceExhausted", "FailedPrecondition"),
        *("Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss"),
        "Unauthenticated",
    )
)


class VolumeBehavior(Spec):
    """What the volumes of one name do; `*` and `?` match as in a shell."""

    name: str = "*"
    mount_delay: DistributionField = MOUNT_DELAY
    mount_error: str = ""  # mounting fails with it for as long as it is declared
    unmount_fails: bool = False  # the same of unmounting, of whatever is mounted
    expand_delay: DistributionField = EXPAND_DELAY
    expand_error: str = ""  # as mount_error: `OutOfRange: the disk is full` names its gRPC code
    usage: CurveField | None = None  # of an emptyDir, in bytes, from the first container on


DEFAULT_VOLUME = VolumeBehavior()


def _each_once(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(keys)))


class RpcError(NamedTuple):
    """What a driver answers that refuses. Source: google.golang.org/grpc/codes."""

    code: str
    text: str

    @classmethod
    def of(cls, declared: str) -> "RpcError":
        """Read a declared error; one that names no code is Internal."""
        code, colon, text = declared.partition(": ")
        return cls(code, text) if colon and code in RPC_CODES else cls("Internal", declared)

    def __str__(self) -> str:
        return f"rpc error: code = {self.code} desc = {self.text}"


class CSIDriver(Spec):
    """A CSI driver whose node plug-in runs on the nodes of a profile, and how its storage acts."""

    name: Annotated[str, Field(pattern=DRIVER_PATTERN)]
    allocatable_count: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0  # 0: no limit
    allocatable_over_time: CurveField | None = None  # instead, since the start of the kubelet
    topology_keys: Annotated[tuple[str, ...], AfterValidator(_each_once)] = ()
    provision_delay: DistributionField = PROVISION_DELAY  # to make or to delete a volume
    attach_delay: DistributionField = ATTACH_DELAY  # to attach or to detach it
    node_expansion: bool = False  # what has grown is expanded on the node, too

    def count_at(self, age_ns: int) -> int:
        """Return how many volumes a node takes at an age of its kubelet, 0 for any number."""
        if self.allocatable_over_time is None:
            return self.allocatable_count
        return self.allocatable_over_time.at(age_ns)


def volume_behavior(
    declared: tuple[VolumeBehavior, ...],
    name: str,
    annotations: Mapping[str, str] | tuple[tuple[str, str], ...],
) -> VolumeBehavior:
    """Return how one volume of a pod behaves; an annotation that cannot be read is ignored."""
    found = next((each for each in declared if fnmatchcase(name, each.name)), DEFAULT_VOLUME)
    notes = dict(annotations)
    changes: dict[str, object] = {}
    if usage := curve_of(notes.get(EMPTY_DIR_ANNOTATION, "")):
        changes["usage"] = usage
    if MOUNT_ERROR_ANNOTATION in notes:
        changes["mount_error"] = notes[MOUNT_ERROR_ANNOTATION]
    if (text := notes.get(UNMOUNT_FAILS_ANNOTATION)) in {"true", "false"}:
        changes["unmount_fails"] = text == "true"
    if EXPAND_ERROR_ANNOTATION in notes:
        changes["expand_error"] = notes[EXPAND_ERROR_ANNOTATION]
    if delay := constant_of(notes.get(MOUNT_DELAY_ANNOTATION)):
        changes["mount_delay"] = delay
    return found.model_copy(update=changes) if changes else found
