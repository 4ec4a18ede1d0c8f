"""How volumes behave: how long a driver takes to mount, and what it refuses; CSI drivers of a node.

Annotations of a pod come first, then the first entry of its PodBehavior that fits the volume.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple

from pydantic import Field

from fleet.profile.distribution import Distribution, DistributionField, constant
from fleet.profile.schema import Spec
from fleet.profile.usage import Curve, CurveField, curve_of
from fleet.quantity import parse_positive_duration

MOUNT_DELAY = constant(100_000_000)
"""NodeStageVolume and NodePublishVolume of a driver whose device is there."""
PROVISION_DELAY = constant(500_000_000)
ATTACH_DELAY = constant(500_000_000)
MOUNT_DELAY_ANNOTATION = "fleet.emulator/mount-delay"
MOUNT_ERROR_ANNOTATION = "fleet.emulator/mount-error"
EMPTY_DIR_ANNOTATION = "fleet.emulator/empty-dir-usage"

DEFAULT_DRIVER = "csi.fleet.emulator"
DRIVER_PATTERN = r"^[a-zA-Z0-9]([-a-zA-Z0-9._]{0,61}[a-zA-Z0-9])?$"


class VolumeBehaviorSpec(Spec):
    """What the volumes of one name do; `*` and `?` match as in a shell."""

    name: str = "*"
    mount_delay: DistributionField | None = None
    mount_error: str = ""
    usage: CurveField | None = None  # of an emptyDir, in bytes


class VolumeBehavior(NamedTuple):
    """What mounting one volume takes. With an `error` it fails for as long as it is declared."""

    pattern: str = "*"
    mount_delay: Distribution = MOUNT_DELAY
    error: str = ""
    usage: Curve | None = None  # from the start of the pod's first container


DEFAULT_VOLUME = VolumeBehavior()


class CSIDriverSpec(Spec):
    """A CSI driver whose node plug-in runs on the nodes of a profile, and how its storage acts."""

    name: Annotated[str, Field(pattern=DRIVER_PATTERN)]
    allocatable_count: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0  # 0: no limit
    topology_keys: tuple[str, ...] = ()
    provision_delay: DistributionField | None = None
    attach_delay: DistributionField | None = None

    def compiled(self) -> "CSIDriver":
        """Return what kubelets and the CSI controller read."""
        provision, attach = self.provision_delay, self.attach_delay
        return CSIDriver(
            self.name,
            self.allocatable_count,
            tuple(sorted(set(self.topology_keys))),
            PROVISION_DELAY if provision is None else provision.compiled(),
            ATTACH_DELAY if attach is None else attach.compiled(),
        )


class CSIDriver(NamedTuple):
    """A CSI driver of a profile's nodes."""

    name: str
    allocatable_count: int = 0  # volumes that a node takes, 0: no limit
    topology_keys: tuple[str, ...] = ()
    provision_delay: Distribution = PROVISION_DELAY  # to make or to delete a volume
    attach_delay: Distribution = ATTACH_DELAY  # to attach or to detach it


def compile_volumes(specs: tuple[VolumeBehaviorSpec, ...]) -> tuple[VolumeBehavior, ...]:
    """Return what the volume manager reads."""
    return tuple(
        VolumeBehavior(
            each.name,
            MOUNT_DELAY if each.mount_delay is None else each.mount_delay.compiled(),
            each.mount_error,
            None if each.usage is None else each.usage.compiled(),
        )
        for each in specs
    )


def volume_behavior(
    declared: tuple[VolumeBehavior, ...],
    name: str,
    annotations: Mapping[str, str] | tuple[tuple[str, str], ...],
) -> VolumeBehavior:
    """Return how one volume of a pod behaves; an annotation that cannot be read is ignored."""
    found = next((each for each in declared if fnmatchcase(name, each.pattern)), DEFAULT_VOLUME)
    notes = dict(annotations)
    if EMPTY_DIR_ANNOTATION in notes:
        found = found._replace(usage=curve_of(notes[EMPTY_DIR_ANNOTATION]) or found.usage)
    if MOUNT_ERROR_ANNOTATION in notes:
        found = found._replace(error=notes[MOUNT_ERROR_ANNOTATION])
    if MOUNT_DELAY_ANNOTATION in notes:
        try:
            delay_ns = parse_positive_duration(notes[MOUNT_DELAY_ANNOTATION])
        except ValueError:
            return found
        found = found._replace(mount_delay=constant(delay_ns))
    return found
