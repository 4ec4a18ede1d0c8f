"""What the machine of a node has and what happens to it: devices, paths, outages, shutdown.

All of it is declared in a NodeProfile, and is an input of the simulated runtime. Times count from
the start of the node's kubelet. `share` picks nodes by a seeded draw, the same ones after a
restart. A machine is a usual Linux one that runs a kubelet and containerd; `machinePaths` of a
profile adds to it. runtime/host_paths.py knows what pods make there.
Differs: machine_paths.toml lists only what everyday pods mount of /proc, /sys and /dev.
"""

import enum
import hashlib
import posixpath
import tomllib
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from fleet.clock import NS_PER_S
from fleet.profile.distribution import ZERO, Distribution, DistributionField, constant
from fleet.profile.schema import DurationNs, QuantityField, Spec

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
    stuck_mounts: bool = False  # nothing is unmounted; without a reason
    registries: bool = False  # none lets an image be pulled


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
        """Return reason and message of the condition that is false then."""
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
    """When the machine shuts down."""

    after: DistributionField
    share: Share = 1.0
    power_off_delay: DistributionField = POWER_OFF_DELAY
    cancel_after: DistributionField | None = None  # unless the machine is off by then
    off_for: DistributionField | None = None  # then it boots; None: it stays off


DEVICES_MAX = 1024
NUMA_NODES_MAX = 8  # as upstream: pkg/kubelet/cm/topologymanager, defaultMaxAllowableNUMANodes
MESSAGE_MAX = 1000  # Source: core/v1 ResourceHealthMessageMaxLength
REGISTRATION_DELAY = constant(5 * NS_PER_S)
"""A plugin is a pod of a DaemonSet: its node is Ready before it runs."""
LOOP_NS = 1 * NS_PER_S  # Source: pkg/kubelet/pluginmanager/plugin_manager.go, loopSleepDuration
RESOURCE_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
ResourceName = Annotated[str, StringConstraints(pattern=RESOURCE_PATTERN)]
DRIVER_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class Attribute(NamedTuple):
    """An attribute of a DRA device; the kind is one of the API's."""

    name: str
    kind: str
    value: str | int | bool


KINDS = {bool: "bool", int: "int", str: "string"}


class HealthChange(Spec):
    """When devices fail or recover; none named means all. `message` is a DRA driver's."""

    after_ns: DurationNs
    devices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    state: Literal["Healthy", "Unhealthy", "Unknown"] = "Unhealthy"
    message: Annotated[str, Field(max_length=MESSAGE_MAX)] = ""


def _in_order(changes: tuple[HealthChange, ...]) -> tuple[HealthChange, ...]:
    return tuple(sorted(changes, key=lambda change: change.after_ns))


HealthChanges = Annotated[tuple[HealthChange, ...], AfterValidator(_in_order)]


class PluginOutage(Spec):
    """When a plugin is away, and for how long; without a duration it does not come back."""

    after_ns: DurationNs
    duration_ns: DurationNs = 0


class DeviceModel(Spec):
    """An extended resource that a device plugin offers."""

    resource: ResourceName
    count: Annotated[int, Field(ge=1, le=DEVICES_MAX)] | None = None
    ids: tuple[str, ...] = ()
    id_prefix: str = ""
    registration_delay: DistributionField = REGISTRATION_DELAY
    health: HealthChanges = ()
    numa_nodes: Annotated[int, Field(ge=0, le=NUMA_NODES_MAX)] = 0  # 0: they have no topology
    plugin_outages: tuple[PluginOutage, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> "DeviceModel":
        if (self.count is None) == (not self.ids):
            raise ValueError("devices take either count or ids")
        if len(set(self.ids)) < len(self.ids):
            raise ValueError("ids names a device twice")
        count = self.total
        if any(index >= count for each in self.health for index in each.devices):
            raise ValueError(f"health names a device beyond the {count} that there are")
        if any(each.state == "Unknown" or each.message for each in self.health):
            raise ValueError("health: a device plugin says Healthy or Unhealthy, and no message")
        return self

    @property
    def total(self) -> int:
        return self.count or len(self.ids)

    def numa_node(self, index: int) -> int:
        return index * self.numa_nodes // self.total

    def device_id(self, node: str, index: int) -> str:
        """Return the ID of a device: as declared, else made from its node's name.

        With a prefix it has the form of a GPU's, `GPU-` and a UUID.
        """
        if self.ids:
            return self.ids[index]
        if not self.id_prefix:
            return f"{self.resource.rpartition('/')[2]}-{index}"
        digits = hashlib.sha256(f"{node}/{self.resource}/{index}".encode()).hexdigest()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
        return self.id_prefix + "-".join(parts)

    def index_of(self, node: str, device_id: str) -> int:
        """Return which device has an ID, -1 if none has."""
        ids = (self.device_id(node, index) for index in range(self.total))
        return next((index for index, each in enumerate(ids) if each == device_id), -1)


class DraDriver(Spec):
    """The devices that a DRA driver publishes in a ResourceSlice of each node."""

    driver: Annotated[str, StringConstraints(pattern=DRIVER_PATTERN, max_length=63)]
    count: Annotated[int, Field(ge=1, le=128)] = 1
    name_prefix: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*)$")] = "device-"
    attributes: dict[str, bool | int | str] = Field(default_factory=dict)
    capacity: dict[str, QuantityField] = Field(default_factory=dict)
    registration_delay: DistributionField = REGISTRATION_DELAY
    plugin_outages: tuple[PluginOutage, ...] = ()
    prepare_error: str = ""
    health: HealthChanges | None = None
    """What the driver's health service says; without one the health of devices is unknown."""

    @model_validator(mode="after")
    def _has_these_devices(self) -> "DraDriver":
        if any(index >= self.count for each in self.health or () for index in each.devices):
            raise ValueError(f"health names a device beyond the {self.count} that there are")
        return self

    def health_at(self, device: str, age_ns: int) -> tuple[str, str]:
        """Return health and message of a device, so long after the start of its kubelet."""
        text = device.removeprefix(self.name_prefix)
        if self.health is None or text == device or text not in map(str, range(self.count)):
            return "Unknown", ""
        found = "Healthy", ""
        for change in self.health:
            if change.after_ns <= age_ns and (not change.devices or int(text) in change.devices):
                found = change.state, change.message
        return found

    @cached_property
    def typed_attributes(self) -> tuple[Attribute, ...]:
        """The attributes in order, with the API's names of their kinds."""
        return tuple(
            Attribute(name, KINDS[type(value)], value)
            for name, value in sorted(self.attributes.items())
        )


def registers_after_ns(delay: Distribution, share: float, *, runs: bool) -> int:
    """Return how long after the start of a kubelet a plugin registers with it.

    One that runs already begins again once it sees that a kubelet restarts, and is found by the
    next look of the kubelet, each second.
    """
    return int(LOOP_NS * (1 + share)) if runs else delay.sample(share)


def outage_begin_ns(outages: tuple[PluginOutage, ...], start_ns: int, now_ns: int) -> int:
    """Return since when a plugin is away, -1 while it is there; `start_ns` is the kubelet's."""
    for outage in outages:
        begin_ns = start_ns + outage.after_ns
        ends = outage.duration_ns and now_ns >= begin_ns + outage.duration_ns
        if now_ns >= begin_ns and not ends:
            return begin_ns
    return -1


PathType = Literal["Directory", "File", "Socket", "CharDevice", "BlockDevice"]
DIRECTORY = "Directory"


@cache
def _usual_paths() -> tuple[dict[str, str], dict[str, str]]:
    """Return the type of each path of a usual machine, and the links near its root."""
    found = tomllib.loads(Path(__file__).with_name("machine_paths.toml").read_text())
    links = found.pop("links")
    return {path: kind for kind, paths in found.items() for path in paths.split()}, links


class MachinePath(Spec):
    """A path that the machines of a profile have."""

    path: Annotated[str, Field(pattern="^/")]
    type: PathType = "Directory"


@lru_cache(maxsize=64)
def types_by_path(declared: tuple[MachinePath, ...]) -> dict[str, str]:
    """Return the type of each path of a machine; what leads to a path is a directory."""
    found: dict[str, str] = {}
    usual, _ = _usual_paths()
    for path, kind in (*usual.items(), *((each.path, each.type) for each in declared)):
        real = real_path(path)
        found[real] = kind
        while real != "/":
            real = posixpath.dirname(real)
            found[real] = DIRECTORY
    return found


def real_path(path: str) -> str:
    """Return a path without the links that a Linux machine has near its root."""
    path = f"/{posixpath.normpath(path).lstrip('/')}"
    for link, target in _usual_paths()[1].items():
        if path == link or path.startswith(f"{link}/"):
            return target + path[len(link) :]
    return path
