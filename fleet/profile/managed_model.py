"""What nodes are like that others make: a profile, and the resources that their Nodes declare.

Nodes of one size share a model, as those of one profile do.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fleet.profile.node_model import NodeModel
from fleet.quantity import parse_quantity

NATIVE = ("cpu", "ephemeral-storage", "memory", "pods")
"""What every kubelet reports; of all else a Node has what it says."""

Amounts = tuple[tuple[str, str], ...]


class Resources(NamedTuple):
    """What a Node declares, sorted by name; a Node that others made may say nothing yet."""

    capacity: Amounts = ()
    allocatable: Amounts = ()

    @classmethod
    def of(cls, status: Mapping[str, object]) -> "Resources":
        """Read them from the status of a Node as JSON shows it."""
        return cls(_amounts(status.get("capacity")), _amounts(status.get("allocatable")))


def managed_model(model: NodeModel, found: Resources) -> NodeModel:
    """Return a model with these resources; what a Node does not say of them is the profile's.

    Without allocatable all of the capacity is, as a scheduler takes it. The device plugins of the
    profile would say otherwise, and are left out.
    """
    capacity = {name: model.capacity[name] for name in NATIVE} | dict(found.capacity)
    free = dict(found.allocatable or found.capacity)
    allocatable = {name: model.allocatable[name] for name in NATIVE} | free
    return replace(
        model,
        capacity=dict(sorted(capacity.items())),
        allocatable=dict(sorted(allocatable.items())),
        pods_max=parse_quantity(capacity["pods"]).value,
        pods_memory_bytes=model.kubelet.pods_memory(parse_quantity(capacity["memory"])),
        image_disk_bytes=parse_quantity(capacity["ephemeral-storage"]).value,
        devices=(),
    )


def _amounts(found: object) -> Amounts:
    listed = found if isinstance(found, dict) else {}
    return tuple(sorted((str(name), str(amount)) for name, amount in listed.items()))
