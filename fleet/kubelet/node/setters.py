"""The setters of the conditions of a Node, in upstream order. Pure.

Source: pkg/kubelet/nodestatus/setters.go; kubelet_node_status.go, defaultNodeStatusFuncs,
nodeStatusHasChanged.
"""

from collections.abc import Mapping
from typing import NamedTuple

import orjson

from fleet.k8s.admission import NodeState
from fleet.k8s.pods import NodeCondition
from fleet.kubelet.devices.container_manager import Wanted
from fleet.kubelet.events import Reason


class Pressure(NamedTuple):
    """What a pressure condition says; the reason is that of the event: KubeletHas for NodeHas."""

    type: str
    fine: Reason
    bad: Reason
    fine_message: str
    bad_message: str


PRESSURES = (
    Pressure(
        "MemoryPressure",
        Reason.NODE_HAS_SUFFICIENT_MEMORY,
        Reason.NODE_HAS_INSUFFICIENT_MEMORY,
        "kubelet has sufficient memory available",
        "kubelet has insufficient memory available",
    ),
    Pressure(
        "DiskPressure",
        Reason.NODE_HAS_NO_DISK_PRESSURE,
        Reason.NODE_HAS_DISK_PRESSURE,
        "kubelet has no disk pressure",
        "kubelet has disk pressure",
    ),
    Pressure(
        "PIDPressure",
        Reason.NODE_HAS_SUFFICIENT_PID,
        Reason.NODE_HAS_INSUFFICIENT_PID,
        "kubelet has sufficient PID available",
        "kubelet has insufficient PID available",
    ),
)
READY_MESSAGE = "kubelet is posting ready status"


class NodeInputs(NamedTuple):
    """What the setters draw from, handed in by the kubelet at each computation."""

    pressures: tuple[str, ...] = ()  # the pressure conditions that the node is under
    not_ready: tuple[str, ...] = ()  # why the node is not ready, in upstream order
    volumes_in_use: tuple[str, ...] | None = None  # None: as the server shows them
    extended: Wanted = ()  # what device plugins offer
    images_json: bytes = b""  # the `images` member if it differs from what was reported


def set_pressure(
    old: NodeCondition | None, pressure: Pressure, *, is_under: bool, now_s: int
) -> tuple[NodeCondition, Reason | None]:
    """Refresh one pressure condition; return it and the event to record if it flipped.

    The heartbeat moves on every call, the transition only on a flip; a new condition is Unknown,
    so the first call flips it.
    Source: pkg/kubelet/nodestatus/setters.go, MemoryPressureCondition and its two sisters.
    """
    status = "True" if is_under else "False"
    if old is not None and old.status == status:
        return old._replace(heartbeat_s=now_s), None
    event = pressure.bad if is_under else pressure.fine
    message = pressure.bad_message if is_under else pressure.fine_message
    reason = event.text.replace("Node", "Kubelet", 1)
    return NodeCondition(pressure.type, status, now_s, now_s, reason, message), event


def set_ready(
    old: NodeCondition | None, causes: tuple[str, ...], now_s: int
) -> tuple[NodeCondition, Reason | None]:
    """Rebuild the Ready condition; the event comes only when an existing one changed.

    Source: setters.go, ReadyCondition; the causes are joined as apimachinery's Aggregate does.
    """
    if causes:
        message = causes[0] if len(causes) == 1 else "[" + ", ".join(causes) + "]"
        new = NodeCondition("Ready", "False", now_s, now_s, "KubeletNotReady", message)
    else:
        new = NodeCondition("Ready", "True", now_s, now_s, "KubeletReady", READY_MESSAGE)
    if old is None:
        return new, None
    if old.status == new.status:
        return new._replace(transition_s=old.transition_s), None
    return new, Reason.NODE_NOT_READY if causes else Reason.NODE_READY


def compute_conditions(
    old: tuple[NodeCondition, ...], inputs: NodeInputs, now_s: int
) -> tuple[tuple[NodeCondition, ...], list[Reason]]:
    """Run the condition setters in upstream order; foreign conditions keep their place.

    Source: kubelet_node_status.go, defaultNodeStatusFuncs.
    """
    found = {condition.type: condition for condition in old}
    events = []
    for pressure in PRESSURES:
        kind = pressure.type
        found[kind], event = set_pressure(
            found.get(kind), pressure, is_under=kind in inputs.pressures, now_s=now_s
        )
        if event is not None:
            events.append(event)
    found["Ready"], event = set_ready(found.get("Ready"), inputs.not_ready, now_s)
    if event is not None:
        events.append(event)
    return tuple(found.values()), events


def has_changed(old: tuple[NodeCondition, ...], new: tuple[NodeCondition, ...]) -> bool:
    """Return whether anything but heartbeats differs. Source: nodeStatusHasChanged."""
    if len(old) != len(new):
        return True
    return any(
        before._replace(heartbeat_s=0) != after._replace(heartbeat_s=0)
        for before, after in zip(old, new, strict=True)
    )


def differing_resources(state: NodeState, wanted: Wanted, stated: Mapping[str, str]) -> bytes:
    """Render the members of the status that must change, b"" when the Node is as it should be.

    `stated` are the resources of the profile, whose allocatable is as the profile says. A device
    plugin's resource has what the device manager says, one whose plugin has gone stays with 0; of
    any other, allocatable is made equal to the capacity that somebody else wrote, and goes with it.
    Source: pkg/kubelet/nodestatus/setters.go, MachineInfo.
    """
    if not state.extended and not wanted:
        return b""
    shown = {name: (capacity, allocatable) for name, capacity, allocatable in state.extended}
    capacity: dict[str, str] = {}
    allocatable: dict[str, str | None] = {}  # None: to be removed
    for name, has, free in wanted:
        old = shown.pop(name, None)
        new = (max(has, 0), max(free, 0))
        if old is None and has < 0:
            continue  # not registered yet, and never was
        if old is None or old[0] != new[0]:
            capacity[name] = str(new[0])
        if old is None or old[1] != new[1]:
            allocatable[name] = str(new[1])
    for name, (has, free) in shown.items():
        if name not in stated and has != free:
            allocatable[name] = str(has) if has >= 0 else None
    members = []
    if allocatable:
        members.append(b'"allocatable":' + orjson.dumps(allocatable, option=orjson.OPT_SORT_KEYS))
    if capacity:
        members.append(b'"capacity":' + orjson.dumps(capacity, option=orjson.OPT_SORT_KEYS))
    return b",".join(members)
