"""What happens to the machine of a node over time: its runtime's outages, and its shutdown.

These are inputs of the simulated runtime, declared in a NodeProfile. Times count from the start of
the node's kubelet. `share` picks nodes by a seeded draw, the same ones after a restart.
"""

import enum
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from fleet.clock import NS_PER_S
from fleet.profile.distribution import ZERO, Distribution, DistributionField, constant
from fleet.profile.schema import DurationNs, Spec

POWER_OFF_DELAY = constant(2 * NS_PER_S)
"""From the end of the inhibitor's lock until the kubelet is stopped too."""
NETWORK_REASON = "NetworkPluginNotReady"
NETWORK_MESSAGE = "Network plugin returns error: cni plugin not initialized"

Share = Annotated[float, Field(gt=0, le=1)]


class OutageKind(enum.Enum):
    """What is out of order."""

    RUNTIME_DOWN = "RuntimeDown"  # the CRI socket does not answer
    RUNTIME_NOT_READY = "RuntimeNotReady"  # it answers RuntimeReady=false
    NETWORK_NOT_READY = "NetworkNotReady"  # it answers NetworkReady=false
    PLEG_STALL = "PLEGStall"  # it hangs in ListPodSandbox


class Outage(NamedTuple):
    """The compiled form of one entry of `spec.runtime.outages`."""

    kind: OutageKind
    start: Distribution
    duration: Distribution
    every_ns: int = 0  # 0: once
    share: float = 1.0
    reason: str = ""
    message: str = ""


class ShutdownSchedule(NamedTuple):
    """The compiled form of `spec.shutdown`."""

    after: Distribution
    share: float = 1.0
    power_off_delay: Distribution = POWER_OFF_DELAY


class OutageSpec(Spec):
    """When the runtime of a node is out of order; `reason` and `message` are what it answers."""

    kind: OutageKind
    start: Annotated[DistributionField, Field(alias="from")]
    duration: Annotated[DistributionField, Field(alias="for")]
    every: DurationNs | None = None
    share: Share = 1.0
    reason: str = ""
    message: str = ""

    @model_validator(mode="after")
    def _is_consistent(self) -> "OutageSpec":
        if self.every is not None and not self.every:
            raise ValueError("every must be above 0s")
        answers = {OutageKind.RUNTIME_NOT_READY, OutageKind.NETWORK_NOT_READY}
        if (self.reason or self.message) and self.kind not in answers:
            raise ValueError(f"{self.kind.value} takes no reason and no message")
        return self

    def compiled(self) -> Outage:
        """Return what the simulated runtime reads."""
        reason, message = self.reason, self.message
        if self.kind is OutageKind.NETWORK_NOT_READY:
            reason, message = reason or NETWORK_REASON, message or NETWORK_MESSAGE
        return Outage(
            self.kind,
            self.start.compiled(),
            self.duration.compiled(),
            self.every or 0,
            self.share,
            reason,
            message,
        )


class RuntimeSpec(Spec):
    """How the container runtime of a node fares."""

    network_ready_delay: DistributionField | None = None
    outages: tuple[OutageSpec, ...] = ()

    def compiled(self) -> tuple[Outage, ...]:
        """Return the outages; a network that comes up late is one from the beginning."""
        outages = tuple(each.compiled() for each in self.outages)
        if self.network_ready_delay is None:
            return outages
        late = Outage(
            OutageKind.NETWORK_NOT_READY,
            ZERO,
            self.network_ready_delay.compiled(),
            reason=NETWORK_REASON,
            message=NETWORK_MESSAGE,
        )
        return (late, *outages)


class ShutdownSpec(Spec):
    """When the machine is told to shut down."""

    after: DistributionField
    share: Share = 1.0
    power_off_delay: DistributionField | None = None

    def compiled(self) -> ShutdownSchedule:
        """Return what a kubelet reads."""
        delay = self.power_off_delay
        return ShutdownSchedule(
            self.after.compiled(),
            self.share,
            POWER_OFF_DELAY if delay is None else delay.compiled(),
        )
