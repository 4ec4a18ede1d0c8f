"""What a faulty machine is like: the model of its profile with other inputs, and its clock.

A kubelet reads all that it knows of its machine from its Environment. Nodes that a fault hits get
another one, which they share; so a fault costs those nodes a pointer, and all others nothing.
"""

from collections.abc import Iterable
from dataclasses import replace

from fleet.errors import UsageError
from fleet.faults.fault import FaultSpec, FaultType
from fleet.kubelet.containers.stats_provider import node_capacity
from fleet.kubelet.environment import Environment
from fleet.kubelet.pressure.eviction_manager import threshold_amount, thresholds_of
from fleet.profile.container_behavior import HANGS
from fleet.profile.distribution import ZERO
from fleet.profile.machine import Happening, OutageKind
from fleet.profile.node_model import NodeModel
from fleet.profile.usage import Usage, constant_curve

OUTAGES = {
    FaultType.RUNTIME_DOWN: OutageKind.RUNTIME_DOWN,
    FaultType.RUNTIME_NOT_READY: OutageKind.RUNTIME_NOT_READY,
    FaultType.NETWORK_NOT_READY: OutageKind.NETWORK_NOT_READY,
    FaultType.PLEG_STALL: OutageKind.PLEG_STALL,
}
_BREAKS: dict[FaultType, tuple[str, str | bool]] = {
    FaultType.SANDBOX_FAILURE: (
        "sandboxes",
        'plugin type="bridge" failed (add): failed to create bridge: resource busy',
    ),
    FaultType.KILL_FAILURE: ("kills", HANGS),
    FaultType.SANDBOX_KILL_FAILURE: (
        "sandbox_kills",
        'plugin type="bridge" failed (delete): failed to delete bridge: resource busy',
    ),
    FaultType.MOUNT_FAILURE: ("mounts", "the device did not appear"),
    FaultType.UNMOUNT_FAILURE: ("stuck_mounts", True),
    FaultType.REGISTRY_OUTAGE: ("registries", True),
    FaultType.ATTACH_FAILURE: ("attachments", "the machine is not in a state to attach volumes"),
}
"""What of a machine fails, and what is said where a fault has no message."""
_PRESSURES = {
    FaultType.MEMORY_PRESSURE: ("memory.available", "memory"),
    FaultType.DISK_PRESSURE: ("nodefs.available", "ephemeral_storage"),
    FaultType.PID_PRESSURE: ("pid.available", "pids"),
}
"""The signal, and what is used of a machine."""
OF_MACHINE = frozenset(
    (
        *(FaultType.CLOCK_SKEW, FaultType.OUT_OF_MEMORY),
        *(*OUTAGES, *_PRESSURES, *_BREAKS, FaultType.DEVICE_FAILURE),
    )
)
"""Faults that are an input of the machine itself."""


def check(spec: FaultSpec, model: NodeModel) -> None:
    """Raise UsageError if nodes of a profile cannot have a fault."""
    offered = [each.resource for each in model.devices]
    if spec.type is FaultType.DEVICE_FAILURE and (
        not offered or (spec.resource and spec.resource not in offered)
    ):
        raise UsageError(
            f"DeviceFailure: profile {model.name} has no device plugin for "
            f"{spec.resource or 'any resource'}; it has: {', '.join(offered) or 'none'}"
        )
    if spec.type is FaultType.CERTIFICATE_EXPIRED and not model.kubelet.rotate_certificates:
        raise UsageError(
            f"CertificateExpired: profile {model.name} has rotateCertificates: false; "
            "its nodes would not come back"
        )
    if spec.type is FaultType.ATTACH_FAILURE and not model.csi_drivers:
        raise UsageError(f"AttachFailure: profile {model.name} has no csiDrivers")
    signal, _ = _PRESSURES.get(spec.type, ("", ""))
    if signal and not _amounts(model, signal):
        raise UsageError(
            f"{spec.type.value}: profile {model.name} has no threshold {signal}; "
            "name one in its kubeletConfiguration.evictionHard"
        )


def faulty(origin: Environment, found: Iterable[tuple[FaultSpec, int, int]]) -> Environment:
    """Return the environment of nodes under some faults: each with its beginning and end."""
    model, skew_ns = origin.model, 0
    outages, usage, broken = list(model.outages), model.usage, model.broken
    is_changed = False
    for spec, since_ns, until_ns in found:
        is_changed = True
        kind = OUTAGES.get(spec.type)
        if kind is not None:
            outage = Happening(
                kind=kind,
                start=ZERO,
                duration=ZERO,
                reason=spec.reason,
                message=spec.message,
                since_ns=since_ns,
                until_ns=until_ns,
            )
            outages.append(outage)
        elif spec.type is FaultType.CLOCK_SKEW:
            skew_ns += spec.by_ns or 0
        elif spec.type is FaultType.DEVICE_FAILURE:
            broken = broken._replace(devices=(*broken.devices, (spec.resource, spec.count)))
        elif spec.type in _BREAKS:
            part, usual = _BREAKS[spec.type]
            broken = broken._replace(**{part: spec.message or usual})  # type: ignore[arg-type]
        elif spec.type is FaultType.OUT_OF_MEMORY:
            memory = constant_curve(node_capacity(model).memory)
            usage = usage.model_copy(update={"memory": memory})
        else:
            usage = _pressed(spec.type, usage, model)
    if not is_changed:
        return origin
    model = replace(model, outages=tuple(outages), usage=usage, broken=broken)
    return origin.of_machine(model, skew_ns)


def _amounts(model: NodeModel, signal: str) -> list[int]:
    """Return below how much of a resource a profile's nodes are under pressure at once."""
    capacity = _capacity(model, signal)
    return [
        threshold_amount(each, capacity)
        for each in thresholds_of(model)
        if each.signal == signal and not each.grace_ns
    ]


def _capacity(model: NodeModel, signal: str) -> int:
    capacity = node_capacity(model)
    if signal == "memory.available":
        return capacity.memory
    return capacity.disk if signal == "nodefs.available" else model.pids_max


def _pressed(kind: FaultType, usage: Usage, model: NodeModel) -> Usage:
    """Return a usage outside of pods that leaves half of what the threshold spares."""
    signal, used = _PRESSURES[kind]
    left = max(_amounts(model, signal), default=0) // 2
    return usage.model_copy(update={used: constant_curve(_capacity(model, signal) - left)})
