"""Stats of a node, its pods and its containers at an instant: what cAdvisor would have measured.

Pure functions of the profile, the simulated runtime and the time; nothing is kept. What is used is
a sum of curves, so that the eviction manager can compute when it crosses a threshold.
Source: pkg/kubelet/stats/cri_stats_provider.go; pkg/kubelet/server/stats/summary.go.
Differs: a container's writable layer and logs are one amount; of volumes only emptyDirs on the disk
are measured.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod
from fleet.profile.node_model import NodeModel
from fleet.profile.pod_behavior import PodBehavior, volume_behavior
from fleet.profile.usage import Curve, Term, constant_curve, next_crossing, sum_at
from fleet.quantity import parse_quantity
from fleet.runtime.container_usage import ContainerUsage, container_usage
from fleet.runtime.containers import RunState, Sandbox

INODE_BYTES = 16 << 10  # mkfs.ext4 makes one inode for so many bytes
SYSTEM_MEMORY_SHARE = 20
SYSTEM_MEMORY_MAX = 512 << 20
SYSTEM_CPU_MILLI = 20
SYSTEM_DISK_SHARE = 20
SYSTEM_DISK_MAX = 4 << 30
SYSTEM_INODES = 100_000
SYSTEM_PIDS = 200
SYSTEM_NETWORK = 2 << 10
"""What a node runs alongside its pods, if its profile does not say: a part of it, at most so much.
"""


class PodTerms(NamedTuple):
    """A pod that has containers, with the curves of those that run and their starts."""

    pod: Pod
    running: tuple[tuple[str, ContainerUsage, int], ...]  # name, curves, start
    ended: tuple[tuple[str, ContainerUsage, int], ...]  # name, curves, age at its end
    volumes: tuple[tuple[str, Curve, int], ...] = ()  # emptyDirs: name, curve, start

    def memory(self) -> Iterator[Term]:
        """Yield the curves of the working set."""
        return ((usage.memory, start_ns) for _, usage, start_ns in self.running)

    def pids(self) -> Iterator[Term]:
        """Yield the curves of the processes."""
        return ((usage.pids, start_ns) for _, usage, start_ns in self.running)

    def ephemeral(self) -> Iterator[Term]:
        """Yield the curves of the disk; what a container wrote stays when it ends."""
        yield from ((usage.ephemeral, start_ns) for _, usage, start_ns in self.running)
        yield from ((constant_curve(usage.ephemeral.at(age)), 0) for _, usage, age in self.ended)
        yield from ((curve, start_ns) for _, curve, start_ns in self.volumes)

    def inodes(self) -> Iterator[Term]:
        """Yield the curves of the inodes."""
        yield from ((usage.inodes, start_ns) for _, usage, start_ns in self.running)
        yield from ((constant_curve(usage.inodes.at(age)), 0) for _, usage, age in self.ended)


class ContainerStats(NamedTuple):
    """One container that runs. Source: stats/v1alpha1 ContainerStats."""

    name: str
    memory: int  # working set, bytes
    ephemeral: int  # writable layer and logs, bytes


class PodStats(NamedTuple):
    """One pod. Source: stats/v1alpha1 PodStats."""

    memory: int
    ephemeral: int
    inodes: int
    pids: int
    containers: tuple[ContainerStats, ...]
    volumes: tuple[tuple[str, int], ...] = ()  # emptyDirs: name, used bytes


class Measure(NamedTuple):
    """What there is of one resource, and the curves that add up to what is used of it."""

    capacity: int
    terms: tuple[Term, ...]
    base: int = 0

    def used(self, now_ns: int) -> int:
        """Return what is used now; it may be more than there is."""
        return sum_at(self.terms, self.base, now_ns)

    def is_over(self, now_ns: int) -> bool:
        """Return whether more is used than there is."""
        return self.used(now_ns) > self.capacity

    def next_over_ns(self, now_ns: int) -> int:
        """Return when that is so first, NEVER if it will not be."""
        return next_crossing(self.terms, self.base, self.capacity, now_ns)


class NodeUse(NamedTuple):
    """What is used of a node's capacity. Source: stats/v1alpha1 NodeStats."""

    memory: Measure  # working set of the root cgroup
    pods_memory: Measure  # working set of the cgroup of all pods
    disk: Measure  # the base are images
    inodes: Measure
    pids: Measure  # the base is a pause process per pod


class NodeCapacity(NamedTuple):
    """What of a profile's capacity is measured, in whole units."""

    memory: int
    disk: int
    inodes: int


@lru_cache(maxsize=256)
def node_capacity(model: NodeModel) -> NodeCapacity:
    """Return the capacity that the nodes of a profile share.

    Source: pkg/kubelet/server/stats/summary.go, adjustForHugePages.
    """
    spared = model.capacity.items() if model.release.spares_huge_pages else ()
    pages = sum(parse_quantity(text).value for name, text in spared if name.startswith("hugepages"))
    memory = max(parse_quantity(model.capacity["memory"]).value - pages, 0)
    shown = model.capacity.get("ephemeral-storage")
    disk = parse_quantity(shown).value if shown else model.image_disk_bytes
    return NodeCapacity(memory, disk, disk // INODE_BYTES)


@lru_cache(maxsize=256)
def system_usage(model: NodeModel) -> ContainerUsage:
    """Return what a node uses outside of its pods, from the start of its kubelet on."""
    capacity = node_capacity(model)
    declared = model.usage
    memory = min(capacity.memory // SYSTEM_MEMORY_SHARE, SYSTEM_MEMORY_MAX)
    disk = min(capacity.disk // SYSTEM_DISK_SHARE, SYSTEM_DISK_MAX)
    inodes = min(capacity.inodes // SYSTEM_DISK_SHARE, SYSTEM_INODES)
    pids = min(model.pids_max // SYSTEM_DISK_SHARE, SYSTEM_PIDS)
    return ContainerUsage(
        declared.memory or constant_curve(memory),
        declared.cpu_milli or constant_curve(SYSTEM_CPU_MILLI),
        declared.ephemeral_storage or constant_curve(disk),
        declared.inodes or constant_curve(inodes),
        declared.pids or constant_curve(pids),
        declared.swap or constant_curve(0),
        declared.network_receive or constant_curve(SYSTEM_NETWORK),
        declared.network_transmit or constant_curve(SYSTEM_NETWORK),
    )


def pod_terms(
    pod: Pod, sandbox: Sandbox, behavior: PodBehavior, now_ns: int, wall_offset_ns: int
) -> PodTerms | None:
    """Return the curves of a pod, None when it has no containers.

    A container's start is known to the second, as its status shows it.
    """
    running = []
    ended = []
    for container in sandbox.containers:
        spec = pod.find(container.name)
        if spec is None:
            continue
        usage = container_usage(spec.resources_json, behavior.container(spec.name).usage)
        start_ns = container.started_s * NS_PER_S - wall_offset_ns
        if container.state is RunState.RUNNING and container.exit_ns > now_ns:
            running.append((spec.name, usage, start_ns))
        elif container.state is not RunState.CREATED:
            ended.append((spec.name, usage, max(container.exit_ns - start_ns, 0)))
    if not running and not ended:
        return None
    first_s = min(each.started_s for each in sandbox.containers)
    volumes = _volume_terms(pod, behavior, first_s * NS_PER_S - wall_offset_ns)
    return PodTerms(pod, tuple(running), tuple(ended), volumes)


def _volume_terms(
    pod: Pod, behavior: PodBehavior, start_ns: int
) -> tuple[tuple[str, Curve, int], ...]:
    found = []
    for volume in pod.spec.volumes:
        if volume.kind == "emptyDir" and not volume.in_memory:
            curve = volume_behavior(behavior.volumes, volume.name, pod.annotations).usage
            if curve is not None:
                found.append((volume.name, curve, start_ns))
    return tuple(found)


def pod_stats(terms: PodTerms, now_ns: int) -> PodStats:
    """Return the stats of a pod; the pause process of its sandbox counts among its processes."""
    containers = tuple(
        ContainerStats(
            name,
            usage.memory.at(now_ns - start_ns),
            usage.ephemeral.at(now_ns - start_ns),
        )
        for name, usage, start_ns in terms.running
    )
    return PodStats(
        memory=sum(each.memory for each in containers),
        ephemeral=sum_at(tuple(terms.ephemeral()), 0, now_ns),
        inodes=sum_at(tuple(terms.inodes()), 0, now_ns),
        pids=sum_at(tuple(terms.pids()), 1, now_ns),
        containers=containers,
        volumes=tuple((name, curve.at(now_ns - at_ns)) for name, curve, at_ns in terms.volumes),
    )


def node_use(
    model: NodeModel, pods: Iterable[PodTerms], started_ns: int, image_bytes: int
) -> NodeUse:
    """Return what is used of a node whose machine booted at `started_ns`."""
    found = tuple(pods)
    system, capacity = system_usage(model), node_capacity(model)

    def with_system(curve: Curve, terms: Iterable[Term]) -> tuple[Term, ...]:
        return ((curve, started_ns), *terms)

    pods_memory = tuple(term for each in found for term in each.memory())
    disk = with_system(system.ephemeral, (t for each in found for t in each.ephemeral()))
    inodes = with_system(system.inodes, (t for each in found for t in each.inodes()))
    pids = with_system(system.pids, (t for each in found for t in each.pids()))
    return NodeUse(
        Measure(capacity.memory, with_system(system.memory, pods_memory)),
        Measure(model.pods_memory_bytes, pods_memory),
        Measure(capacity.disk, disk, image_bytes),
        Measure(capacity.inodes, inodes),
        Measure(model.pids_max, pids, len(found)),
    )
