"""The topology manager, as far as devices go: which NUMA nodes the devices of a container share.

Source: pkg/kubelet/cm/topologymanager/policy.go, mergePermutation; policy_restricted.go;
policy_single_numa_node.go; devicemanager/topology_hints.go, generateDeviceTopologyHints.
Differs: only devices give hints, not CPUs and memory; the scope is always the container.
"""

from collections.abc import Iterator
from typing import NamedTuple

REASON = "TopologyAffinityError"
MESSAGE = "Resources cannot be allocated with Topology locality"
STRICT_POLICIES = frozenset(("restricted", "single-numa-node"))
ALIGNING_POLICIES = STRICT_POLICIES | {"best-effort"}


class Supply(NamedTuple):
    """The devices of one resource that a container asks for, by NUMA node."""

    amount: int  # asked for
    devices: tuple[int, ...]  # how many each NUMA node has
    available: tuple[int, ...]  # of these healthy and free


class Hint(NamedTuple):
    """NUMA nodes as bits, and whether no narrower choice could ever do."""

    nodes: int
    is_preferred: bool


def best_hint(supplies: list[Supply], policy: str) -> Hint | None:
    """Return the NUMA nodes that a container's devices should be of; None: the policy refuses."""
    everywhere = (1 << len(supplies[0].devices)) - 1
    merged = {Hint(everywhere, is_preferred=True)}
    for supply in supplies:
        hints = list(_hints(supply))
        if policy == "single-numa-node":
            hints = [each for each in hints if each.is_preferred and each.nodes.bit_count() == 1]
        merged = {
            Hint(one.nodes & other.nodes, one.is_preferred and other.is_preferred)
            for one in merged
            for other in hints
            if one.nodes & other.nodes
        }
    best = min(merged, key=_rank, default=Hint(everywhere, is_preferred=False))
    return None if policy in STRICT_POLICIES and not best.is_preferred else best


def _rank(hint: Hint) -> tuple[bool, int, int]:
    return not hint.is_preferred, hint.nodes.bit_count(), hint.nodes


def _hints(supply: Supply) -> Iterator[Hint]:
    """Yield every set of NUMA nodes that has what is asked for."""
    masks = range(1, 1 << len(supply.devices))
    sizes = (mask.bit_count() for mask in masks if _within(supply.devices, mask) >= supply.amount)
    narrowest = min(sizes, default=len(supply.devices))
    for mask in masks:
        if _within(supply.available, mask) >= supply.amount:
            yield Hint(mask, mask.bit_count() == narrowest)


def _within(counts: tuple[int, ...], mask: int) -> int:
    return sum(count for node, count in enumerate(counts) if mask >> node & 1)
