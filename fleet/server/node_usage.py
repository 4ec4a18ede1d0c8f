"""What a node, its pods and its containers use at an instant: the numbers behind every text.

They come from the same curves as what the eviction manager and the OOM watcher decide on. What is
cumulative is the area under a curve; what pods used up that are gone is added, so that no counter
falls while a machine runs.
Source: pkg/kubelet/stats/cri_stats_provider.go, listPodStatsPartiallyFromCRI; helper.go.
Differs: a page cache, faults and the share of user time follow from memory and cpu.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod
from fleet.kubelet.containers.stats_provider import (
    NodeCapacity,
    node_capacity,
    pod_terms,
    system_usage,
)
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.pods.node_pods import NodePods
from fleet.profile.node_model import NodeModel
from fleet.runtime.container_usage import NOTHING_SPENT, ContainerUsage, Spent, resources_of, spent
from fleet.runtime.containers import Container, RunState, Sandbox

NANO_PER_MILLI = 1_000_000
CACHE_SHARE = 8  # of a working set so much more lies in the page cache without being used
ANONYMOUS_SHARE = 4  # of a working set all but this part is anonymous memory


class Cgroup(NamedTuple):
    """What the processes of a container, a pod or a node use."""

    cpu_nano: int  # cores, in billionths
    cpu_ns: int  # core-nanoseconds since the start
    memory: int  # working set, bytes
    swap: int
    pids: int

    @property
    def memory_usage(self) -> int:
        """Return the memory with the page cache."""
        return self.memory + self.memory // CACHE_SHARE

    @property
    def memory_rss(self) -> int:
        """Return the anonymous memory."""
        return self.memory - self.memory // ANONYMOUS_SHARE

    @property
    def page_faults(self) -> int:
        """Return the minor faults so far."""
        return self.cpu_ns // 10_000_000

    @property
    def major_faults(self) -> int:
        """Return the faults so far that read a disk."""
        return self.cpu_ns // 100_000_000_000


class ContainerUse(NamedTuple):
    """One container that runs."""

    name: str
    id: str
    image: str
    started_s: int
    cgroup: Cgroup
    memory_limit: int  # 0 for none
    cpu_limit_milli: int
    cpu_request_milli: int
    disk: int
    inodes: int


class PodUse(NamedTuple):
    """One pod with containers that run."""

    pod: Pod
    created_s: int  # of its sandbox
    containers: tuple[ContainerUse, ...]
    cgroup: Cgroup
    received: int  # bytes since the start
    sent: int
    disk: int
    inodes: int
    volumes: Mapping[str, int]  # emptyDirs whose usage is declared: bytes


class NodeUse(NamedTuple):
    """A node and its pods, sorted by namespace and name."""

    name: str
    model: NodeModel
    capacity: NodeCapacity
    wall_ns: int
    started_s: int
    cgroup: Cgroup
    system: Cgroup  # what is no pod's
    pods_cgroup: Cgroup
    received: int
    sent: int
    disk: int
    image_bytes: int
    inodes: int
    pods: tuple[PodUse, ...]


def node_usage(kubelet: VirtualKubelet, now_ns: int) -> NodeUse:
    """Measure a node at an instant."""
    env, facts = kubelet.env, kubelet.facts
    model = env.model
    capacity = node_capacity(model)
    own = system_usage(model)
    age_ns = now_ns - facts.booted_ns
    system = _cgroup(own, age_ns, spent(own, age_ns))
    network = spent(own, age_ns)
    loop = kubelet.pods
    gone = facts.spent
    pods: tuple[PodUse, ...] = ()
    if loop is not None:
        pods = _pods(loop, kubelet, now_ns)
        gone = gone.plus(loop.runtime.spent)
    pods_cgroup = _sum(each.cgroup for each in pods) if pods else NO_PROCESSES
    pods_cgroup = pods_cgroup._replace(cpu_ns=pods_cgroup.cpu_ns + gone.cpu_ns)
    image_bytes = env.images.used_bytes(facts.node)
    disk = own.ephemeral.at(age_ns) + image_bytes + sum(each.disk for each in pods)
    inodes = own.inodes.at(age_ns) + sum(each.inodes for each in pods)
    return NodeUse(
        facts.name,
        model,
        capacity,
        env.wall_ns(now_ns),
        env.wall_s(facts.booted_ns),
        _sum((system, pods_cgroup)),
        system,
        pods_cgroup,
        network.received + gone.received + sum(each.received for each in pods),
        network.sent + gone.sent + sum(each.sent for each in pods),
        min(disk, capacity.disk),
        image_bytes,
        min(inodes, capacity.inodes),
        pods,
    )


NO_PROCESSES = Cgroup(0, 0, 0, 0, 0)


def _sum(cgroups: Iterable[Cgroup]) -> Cgroup:
    cpu_nano = cpu_ns = memory = swap = pids = 0
    for each in cgroups:
        cpu_nano += each.cpu_nano
        cpu_ns += each.cpu_ns
        memory += each.memory
        swap += each.swap
        pids += each.pids
    return Cgroup(cpu_nano, cpu_ns, memory, swap, pids)


def _cgroup(usage: ContainerUsage, age_ns: int, used: Spent) -> Cgroup:
    return Cgroup(
        usage.cpu_milli.at(age_ns) * NANO_PER_MILLI,
        used.cpu_ns,
        usage.memory.at(age_ns),
        usage.swap.at(age_ns),
        usage.pids.at(age_ns),
    )


def _pods(loop: NodePods, kubelet: VirtualKubelet, now_ns: int) -> tuple[PodUse, ...]:
    found = []
    for worker in loop.workers.values():
        sandbox = loop.runtime.sandbox(worker.pod.uid)
        if sandbox is not None and sandbox.ready:
            use = _pod(worker.pod, sandbox, kubelet, now_ns)
            if use is not None:
                found.append(use)
    found.sort(key=lambda use: (use.pod.namespace, use.pod.name))
    return tuple(found)


def _pod(pod: Pod, sandbox: Sandbox, kubelet: VirtualKubelet, now_ns: int) -> PodUse | None:
    """Measure a pod; None if none of its containers runs."""
    env = kubelet.env
    offset_ns = env.wall_offset_ns
    behavior = env.model.behavior_of(pod)
    terms = pod_terms(pod, sandbox, behavior, now_ns, offset_ns)
    if terms is None or not terms.running:
        return None
    containers = []
    used = NOTHING_SPENT
    for container in sandbox.containers:
        start_ns = container.started_s * NS_PER_S - offset_ns
        used = used.plus(container.spent_at(now_ns, start_ns))
    for name, usage, start_ns in terms.running:
        found = sandbox.find(name)
        assert found is not None, name
        containers.append(_container(pod, found, usage, start_ns, now_ns))
    total = _sum(each.cgroup for each in containers)
    return PodUse(
        pod,
        min(each.started_s for each in sandbox.containers if each.state is not RunState.CREATED),
        tuple(sorted(containers, key=lambda use: use.name)),
        total._replace(cpu_ns=used.cpu_ns, pids=total.pids + 1),  # and the pause process
        used.received,
        used.sent,
        sum(curve.at(now_ns - at_ns) for curve, at_ns in terms.ephemeral()),
        sum(curve.at(now_ns - at_ns) for curve, at_ns in terms.inodes()),
        {name: curve.at(now_ns - at_ns) for name, curve, at_ns in terms.volumes},
    )


def _container(
    pod: Pod, container: Container, usage: ContainerUsage, start_ns: int, now_ns: int
) -> ContainerUse:
    spec = pod.find(container.name)
    assert spec is not None, container.name
    asked, limits = resources_of(spec.resources_json)
    age_ns = now_ns - start_ns
    return ContainerUse(
        container.name,
        container.id,
        spec.image,
        container.started_s,
        _cgroup(usage, age_ns, spent(usage, age_ns)),
        limits.memory,
        limits.cpu_milli,
        asked.cpu_milli,
        usage.ephemeral.at(age_ns),
        usage.inodes.at(age_ns),
    )
