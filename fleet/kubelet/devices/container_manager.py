"""What the CPU, memory and topology managers give to pods, or refuse to give.

Static policies: a container of a Guaranteed pod that asks for whole CPUs has them alone; each one
has its memory and huge pages. A pod that the node cannot give them to is refused, before the node's
resources are looked at. How much is given out follows from the pods of the node; nothing is kept.
Topology: which NUMA nodes the devices of a container share.
Source: pkg/kubelet/cm/cpumanager/policy_static.go, Allocate, guaranteedCPUs, updateCPUsToReuse,
enforceSMTAlignment; memorymanager/policy_static.go,
Allocate, getDefaultHint, updatePodReusableMemory; topologymanager/policy.go, filterProvidersHints,
mergePermutation; policy_restricted.go; policy_single_numa_node.go; devicemanager/topology_hints.go.
Differs: all CPUs and memory are of one NUMA node, and only devices give hints; the scope is always
the container. An even number of CPUs has two in each core. Of cpuManagerPolicyOptions only
full-pcpus-only decides whether a pod is taken, as upstream.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import orjson

from fleet.k8s.pods import Pod
from fleet.kubelet.containers.pod_actions import is_sidecar
from fleet.kubelet.pod_worker import Rejection
from fleet.profile.kubelet_configuration import cpus_in
from fleet.profile.node_model import NodeModel
from fleet.quantity import parse_quantity

Wanted = tuple[tuple[str, int, int], ...]
"""Resource, capacity, allocatable; both below 0 while no plugin has registered."""
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
    best = min(
        merged,
        key=lambda hint: (not hint.is_preferred, hint.nodes.bit_count(), hint.nodes),
        default=Hint(everywhere, is_preferred=False),
    )
    return None if policy in STRICT_POLICIES and not best.is_preferred else best


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


UNEXPECTED, MISALIGNED = "UnexpectedAdmissionError", "SMTAlignmentError"
_NO_MEMORY = (
    "[memorymanager] failed to get the default NUMA affinity, "
    "no NUMA nodes with enough memory is available"
)
_HUGE_PAGES = "hugepages-"


class Part(NamedTuple):
    """What one container is given of one resource."""

    resource: str
    amount: int  # CPUs, or bytes
    fresh: int  # of these: what no init container before it had


def static_refusal(pod: Pod, others: Iterable[Pod], model: NodeModel) -> Rejection | None:
    """Return why the static policies of a node refuse a pod, None if they do not.

    `others` are the other active pods of the node.
    """
    if not model.kubelet.static_policies or not _is_pinned(pod):
        return None
    free = dict(_supply(model))
    for other in others:
        for part in _parts(other):
            if part.resource in free:
                free[part.resource] -= part.fresh
    for part in _parts(pod):
        left = free.get(part.resource)
        if left is None:
            continue
        refused = _shortage(part, left, model) if part.fresh > left else None
        if part.resource == "cpu" and (refused is None or refused.reason != REASON):
            refused = _misalignment(part, left, model) or refused
        if refused is not None:
            return refused
        free[part.resource] = left - part.fresh
    return None


def _shortage(part: Part, left: int, model: NodeModel) -> Rejection:
    if model.kubelet.topology_manager_policy in STRICT_POLICIES:
        return Rejection(REASON, MESSAGE)
    error = _NO_MEMORY
    if part.resource == "cpu":
        available = max(left, 0) + part.amount - part.fresh
        error = (
            "not enough cpus available to satisfy request: "
            f"requested={part.amount}, available={available}"
        )
    return Rejection(UNEXPECTED, f"Allocate failed due to {error}, which is unexpected")


def _misalignment(part: Part, left: int, model: NodeModel) -> Rejection | None:
    """Return why a container cannot have whole cores, where it has to. Source: SMTAlignmentError.

    `left` counts the free CPUs without those that are kept; their cores are no pod's either.
    """
    if not part.amount or not model.kubelet.has_cpu_option("full-pcpus-only"):
        return None
    threads, idle = _cores(model)
    if part.amount % threads:
        text = f"requested {part.amount} cpus not multiple cpus per core = {threads}"
        return Rejection(MISALIGNED, f"SMT Alignment Error: {text}")
    if part.amount > left - idle:
        text = (
            f"not enough free physical CPUs: available physical CPUs = {max(left - idle, 0)}, "
            f"requested CPUs = {part.amount}, CPUs per core = {threads}"
        )
        return Rejection(MISALIGNED, f"SMT Alignment Error: {text}")
    return None


@lru_cache(maxsize=64)
def _cores(model: NodeModel) -> tuple[int, int]:
    """Return how many CPUs a core has, and how many CPUs stand in cores of kept ones unused."""
    cpus = parse_quantity(model.capacity["cpu"]).milli // 1000
    threads = 1 if cpus % 2 else 2
    named = cpus_in(model.kubelet.reserved_system_cpus)
    kept = len(named) or -(-model.kubelet.reserved_cpu_milli // 1000)
    # CPUs i and i + n/2 share a core; by number, kept ones are taken core by core.
    cores = len({cpu % (cpus // threads) for cpu in named}) or -(-kept // threads)
    return threads, cores * threads - kept


def _is_pinned(pod: Pod) -> bool:
    """Return whether a pod may have something alone: not if it has resources as a whole."""
    return pod.spec.qos_class == "Guaranteed" and not pod.spec.own_json


def _parts(pod: Pod) -> Iterator[Part]:
    """Yield what the containers of a pod are given, in the order in which they get it."""
    if not _is_pinned(pod):
        return
    spec, reusable = pod.spec, Counter[str]()
    inits = len(spec.init_containers)
    for at, container in enumerate((*spec.init_containers, *spec.containers)):
        ends = at < inits and not is_sidecar(container)
        for resource, amount in _amounts(container.requests_json):
            had = reusable[resource]
            reusable[resource] = max(had, amount) if ends else max(had - amount, 0)
            fresh = max(amount - had, 0)
            yield Part(resource, amount, fresh)


@lru_cache(maxsize=1024)
def _amounts(requests_json: bytes) -> tuple[tuple[str, int], ...]:
    """Return what a container may have alone: whole CPUs, its memory and huge pages."""
    found = []
    for name, text in orjson.loads(requests_json or b"{}").items():
        amount = parse_quantity(text)
        if name == "cpu" and not amount.milli % 1000:
            found.append((name, amount.milli // 1000))
        elif name == "memory" or name.startswith(_HUGE_PAGES):
            found.append((name, amount.value))
    return tuple(found)


@lru_cache(maxsize=64)
def _supply(model: NodeModel) -> dict[str, int]:
    """Return what a node gives out by its static policies."""
    found = {}
    if model.kubelet.cpu_manager_policy == "static":
        cpus = parse_quantity(model.capacity["cpu"]).milli // 1000
        found["cpu"] = cpus - -(-model.kubelet.reserved_cpu_milli // 1000)
    if model.kubelet.memory_manager_policy == "Static":
        found |= {
            name: parse_quantity(text).value
            for name, text in model.allocatable.items()
            if name == "memory" or name.startswith(_HUGE_PAGES)
        }
    return found
