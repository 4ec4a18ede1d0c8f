"""The devices of a node and the plugins that offer them, declared in a NodeProfile.

Times count from the start of the node's kubelet. What happens to devices and plugins is an input
of the simulation: capacity, allocation and the statuses of pods follow from it.
"""

import enum
import hashlib
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints, model_validator

from fleet.clock import NS_PER_S
from fleet.profile.distribution import Distribution, DistributionField, constant
from fleet.profile.schema import DurationNs, QuantityField, Spec
from fleet.quantity import Quantity

DEVICES_MAX = 1024
NUMA_NODES_MAX = 8
"""As upstream: pkg/kubelet/cm/topologymanager, defaultMaxAllowableNUMANodes."""
FAILURES_MAX = 10_000
"""Of one device: beyond, it has no more."""
REGISTRATION_DELAY = constant(5 * NS_PER_S)
"""A plugin is a pod of a DaemonSet: its node is Ready before it runs."""
UNHEALTHY_ANNOTATION = "fleet.emulator/unhealthy-devices"
"""On a Node: `nvidia.com/gpu=0,3`; several resources are joined by `;`."""

RESOURCE_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
ResourceName = Annotated[str, StringConstraints(pattern=RESOURCE_PATTERN)]
DRIVER_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class HealthChange(NamedTuple):
    """From an instant on some devices are healthy, or are not."""

    at_ns: int
    devices: tuple[int, ...]  # empty for all
    is_healthy: bool


class PluginOutage(NamedTuple):
    """A plugin is away for a time; 0 is for ever."""

    at_ns: int
    duration_ns: int


class Failures(NamedTuple):
    """How long each device runs until it fails by chance, and how long it then is unhealthy."""

    interval: Distribution
    repair: Distribution


class DeviceModel(NamedTuple):
    """The compiled form of one entry of `spec.devices`."""

    resource: str
    total: int
    ids: tuple[str, ...] = ()
    id_prefix: str = ""
    registration_delay: Distribution = REGISTRATION_DELAY
    health: tuple[HealthChange, ...] = ()
    outages: tuple[PluginOutage, ...] = ()
    failures: Failures | None = None
    numa_nodes: int = 0  # over which the devices are spread; 0: they have no topology

    def numa_node(self, index: int) -> int:
        """Return the NUMA node of a device."""
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


class Attribute(NamedTuple):
    """An attribute of a DRA device; the kind is the API's: string, int, bool, version."""

    name: str
    kind: str
    value: str | int | bool


class DraDriver(NamedTuple):
    """The compiled form of one entry of `spec.dynamicResources`."""

    driver: str
    total: int
    name_prefix: str
    attributes: tuple[Attribute, ...]
    capacity: tuple[tuple[str, str], ...]
    registration_delay: Distribution
    outages: tuple[PluginOutage, ...]
    prepare_error: str


class HealthChangeSpec(Spec):
    """When devices fail or recover; none named means all."""

    after: DurationNs
    devices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    state: Literal["Healthy", "Unhealthy"] = "Unhealthy"


class PluginOutageSpec(Spec):
    """When a plugin is away, and for how long; without a duration it does not come back."""

    after: DurationNs
    duration: DurationNs = 0

    def compiled(self) -> PluginOutage:
        """Return what the managers read."""
        return PluginOutage(self.after, self.duration)


class FailuresSpec(Spec):
    """Failures by chance, each device by itself."""

    interval: DistributionField
    repair: DistributionField

    def compiled(self) -> Failures:
        """Return what the device manager reads."""
        return Failures(self.interval.compiled(), self.repair.compiled())


class DeviceSpec(Spec):
    """An extended resource that a device plugin offers."""

    resource: ResourceName
    count: Annotated[int, Field(ge=1, le=DEVICES_MAX)] | None = None
    ids: tuple[str, ...] = ()
    id_prefix: str = ""
    registration_delay: DistributionField | None = None
    health: tuple[HealthChangeSpec, ...] = ()
    failures: FailuresSpec | None = None
    numa_nodes: Annotated[int, Field(ge=0, le=NUMA_NODES_MAX)] = 0
    plugin_outages: tuple[PluginOutageSpec, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> "DeviceSpec":
        if (self.count is None) == (not self.ids):
            raise ValueError("devices take either count or ids")
        if len(set(self.ids)) < len(self.ids):
            raise ValueError("ids names a device twice")
        count = self.count or len(self.ids)
        if any(index >= count for each in self.health for index in each.devices):
            raise ValueError(f"health names a device beyond the {count} that there are")
        return self

    def compiled(self) -> DeviceModel:
        """Return what the device manager reads."""
        delay = self.registration_delay
        return DeviceModel(
            resource=self.resource,
            total=self.count or len(self.ids),
            ids=self.ids,
            id_prefix=self.id_prefix,
            registration_delay=REGISTRATION_DELAY if delay is None else delay.compiled(),
            health=tuple(
                HealthChange(each.after, each.devices, each.state == "Healthy")
                for each in sorted(self.health, key=lambda change: change.after)
            ),
            outages=tuple(each.compiled() for each in self.plugin_outages),
            failures=self.failures.compiled() if self.failures else None,
            numa_nodes=self.numa_nodes,
        )


class _AttributeKind(enum.Enum):
    """How the API names the type of an attribute's value."""

    STRING = "string"
    INT = "int"
    BOOL = "bool"


class DraDriverSpec(Spec):
    """The devices that a DRA driver publishes in a ResourceSlice of each node."""

    driver: Annotated[str, StringConstraints(pattern=DRIVER_PATTERN, max_length=63)]
    count: Annotated[int, Field(ge=1, le=128)] = 1
    name_prefix: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*)$")] = "device-"
    attributes: dict[str, bool | int | str] = Field(default_factory=dict)
    capacity: dict[str, QuantityField] = Field(default_factory=dict)
    registration_delay: DistributionField | None = None
    plugin_outages: tuple[PluginOutageSpec, ...] = ()
    prepare_error: str = ""

    def compiled(self) -> DraDriver:
        """Return what the DRA manager reads."""
        delay = self.registration_delay
        return DraDriver(
            driver=self.driver,
            total=self.count,
            name_prefix=self.name_prefix,
            attributes=tuple(
                Attribute(name, _kind(value).value, value)
                for name, value in sorted(self.attributes.items())
            ),
            capacity=tuple((name, _text(amount)) for name, amount in sorted(self.capacity.items())),
            registration_delay=REGISTRATION_DELAY if delay is None else delay.compiled(),
            outages=tuple(each.compiled() for each in self.plugin_outages),
            prepare_error=self.prepare_error,
        )


def _kind(value: bool | int | str) -> _AttributeKind:  # noqa: FBT001 - a value of the document
    if isinstance(value, bool):
        return _AttributeKind.BOOL
    return _AttributeKind.INT if isinstance(value, int) else _AttributeKind.STRING


def _text(amount: Quantity) -> str:
    return str(amount)


def unhealthy_in(note: str, resource: str) -> tuple[str, ...]:
    """Return which devices of a resource the annotation of a Node names, as it writes them."""
    for part in note.split(";"):
        name, _, listed = part.partition("=")
        if name.strip() == resource:
            return tuple(each.strip() for each in listed.split(",") if each.strip())
    return ()


def fate(
    failures: Failures, draw: Callable[[int], float], start_ns: int, now_ns: int
) -> tuple[bool, int]:
    """Return whether a device has failed, and when that changes; `draw(n)` is its n-th number."""
    at_ns = start_ns
    for turn in range(FAILURES_MAX):
        at_ns += max(failures.interval.sample(draw(2 * turn)), 1)
        if at_ns > now_ns:
            return False, at_ns
        at_ns += max(failures.repair.sample(draw(2 * turn + 1)), 1)
        if at_ns > now_ns:
            return True, at_ns
    return False, 0


def outage_begin_ns(outages: tuple[PluginOutage, ...], start_ns: int, now_ns: int) -> int:
    """Return since when a plugin is away, -1 while it is there; `start_ns` is the kubelet's."""
    for outage in outages:
        begin_ns = start_ns + outage.at_ns
        ends = outage.duration_ns and now_ns >= begin_ns + outage.duration_ns
        if now_ns >= begin_ns and not ends:
            return begin_ns
    return -1
