"""What happens to the machine of a node over time: its runtime's outages, and its shutdown.

These are inputs of the simulated runtime, declared in a NodeProfile. Times count from the start of
the node's kubelet. `share` picks nodes by a seeded draw, the same ones after a restart.
"""

import enum
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from fleet.clock import NS_PER_S
from fleet.profile.distribution import ZERO, DistributionField, constant
from fleet.profile.schema import DurationNs, Spec

POWER_OFF_DELAY = constant(2 * NS_PER_S)
"""From the end of the inhibitor's lock until the kubelet is stopped too."""
NETWORK_REASON = "NetworkPluginNotReady"
NETWORK_MESSAGE = "Network plugin returns error: cni plugin not initialized"

Share = Annotated[float, Field(gt=0, le=1)]


class Broken(NamedTuple):
    """What of a machine fails whenever it is asked for, and what it says then; "": it works."""

    sandboxes: str = ""
    mounts: str = ""
    attachments: str = ""
    kills: str = ""  # of containers; HANGS: they are not answered
    sandbox_kills: str = ""
    devices: tuple[tuple[str, int], ...] = ()
    """Unhealthy ones: a resource, "" for each, and how many of it, 0 for all."""
    stuck_mounts: bool = False  # nothing is unmounted; nobody is told why


NOTHING_BROKEN = Broken()


class OutageKind(enum.Enum):
    """What is out of order."""

    RUNTIME_DOWN = "RuntimeDown"  # the CRI socket does not answer
    RUNTIME_NOT_READY = "RuntimeNotReady"  # it answers RuntimeReady=false
    NETWORK_NOT_READY = "NetworkNotReady"  # it answers NetworkReady=false
    PLEG_STALL = "PLEGStall"  # it hangs in ListPodSandbox


class Outage(Spec):
    """When the runtime of a node is out of order; `reason` and `message` are what it answers."""

    kind: OutageKind
    start: Annotated[DistributionField, Field(alias="from")]
    duration: Annotated[DistributionField, Field(alias="for")]
    every_ns: DurationNs = 0  # 0: once
    share: Share = 1.0
    reason: str = ""
    message: str = ""

    @model_validator(mode="after")
    def _is_consistent(self) -> "Outage":
        if "every_ns" in self.model_fields_set and not self.every_ns:
            raise ValueError("every must be above 0s")
        answers = {OutageKind.RUNTIME_NOT_READY, OutageKind.NETWORK_NOT_READY}
        if (self.reason or self.message) and self.kind not in answers:
            raise ValueError(f"{self.kind.value} takes no reason and no message")
        return self

    @property
    def shown(self) -> tuple[str, str]:
        """Return reason and message of the condition that is false meanwhile."""
        if self.kind is OutageKind.NETWORK_NOT_READY:
            return self.reason or NETWORK_REASON, self.message or NETWORK_MESSAGE
        return self.reason, self.message


class Happening(Outage):
    """An outage that began while the kubelet ran: its instants are known, monotonic."""

    since_ns: int
    until_ns: int


class RuntimeSpec(Spec):
    """How the container runtime of a node fares."""

    network_ready_delay: DistributionField | None = None
    outages: tuple[Outage, ...] = ()

    @property
    def all_outages(self) -> tuple[Outage, ...]:
        """The outages; a network that comes up late is one from the beginning."""
        if self.network_ready_delay is None:
            return self.outages
        kind, delay = OutageKind.NETWORK_NOT_READY, self.network_ready_delay
        return (Outage(kind=kind, start=ZERO, duration=delay), *self.outages)


class ShutdownSchedule(Spec):
    """When the machine is told to shut down."""

    after: DistributionField
    share: Share = 1.0
    power_off_delay: DistributionField = POWER_OFF_DELAY
    cancel_after: DistributionField | None = None  # unless the machine is off by then
    off_for: DistributionField | None = None  # then it boots; None: it stays off
