"""Capacity and allocatable of extended resources, where the Node shows them otherwise.

Source: pkg/kubelet/nodestatus/setters.go, MachineInfo: a device plugin's resource has what the
device manager says, one whose plugin has gone stays with 0; of any other, allocatable is made equal
to the capacity that somebody else wrote, and goes with it.
"""

from collections.abc import Mapping

import orjson

from fleet.k8s.admission import NodeState
from fleet.profile.node_model import NodeModel

Wanted = tuple[tuple[str, int, int], ...]
"""Resource, capacity, allocatable; both below 0 while no plugin has registered."""


def differing_resources(state: NodeState, wanted: Wanted, stated: Mapping[str, str]) -> bytes:
    """Render the members of the status that must change, b"" when the Node is as it should be.

    `stated` are the resources of the profile, whose allocatable is as the profile says.
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


def reports_health(model: NodeModel) -> bool:
    """Return whether container statuses name devices: gate ResourceHealthStatus."""
    return model.has_gate("ResourceHealthStatus", since=(1, 36))
