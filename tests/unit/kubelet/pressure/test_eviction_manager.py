"""Thresholds, grace periods, holds, ranking and words of evictions, one pass after another."""

from collections.abc import Sequence

import orjson
import pytest
from world.pod_world import container, model_of

from fleet.clock import NS_PER_S
from fleet.k8s.admission import AdmissionSpec
from fleet.k8s.pods import Pod, PodSpec, PodUid
from fleet.k8s.selectors import Toleration
from fleet.kubelet.containers.stats_provider import Measure, NodeUse, PodTerms, node_use, pod_stats
from fleet.kubelet.pressure.eviction_manager import (
    EvictionManager,
    Pass,
    admits_under_pressure,
    local_storage_message,
    observations_of,
    rank,
    thresholds_of,
)
from fleet.kubelet.pressure.oom_watcher import oom_score_adjust
from fleet.profile.node_model import NodeModel
from fleet.profile.usage import NEVER, Curve, constant_curve
from fleet.quantity import parse_quantity
from fleet.runtime.container_usage import ContainerUsage

MI = 1 << 20
GI = 1 << 30
ZERO = constant_curve(0)
BOTH = ("MemoryPressure", "DiskPressure")
TOLERATIONS = (Toleration("node.kubernetes.io/memory-pressure", "Exists", "", "NoSchedule"),)


def configured(**configuration: object) -> NodeModel:
    return model_of(kubeletConfiguration=configuration)


def pod(name: str, *, priority: int = 0, qos: str = "BestEffort", **requests: str) -> Pod:
    asked = orjson.dumps({"requests": requests})
    amounts = ((each, parse_quantity(text).value) for each, text in requests.items())
    return Pod(
        namespace="default",
        name=name,
        uid=PodUid(name),
        spec=PodSpec(
            containers=(container(image="registry.k8s.io/pause:3.10", resources_json=asked),),
            resources_json=asked,
            admission=AdmissionSpec(tuple(amounts)),
            priority=priority,
            qos_class=qos,
        ),
    )


def using(owner: Pod, memory: int = 0, disk: int = 0, pids: int = 0) -> PodTerms:
    curves = (constant_curve(memory), ZERO, constant_curve(disk), ZERO, constant_curve(pids))
    return PodTerms(owner, (("c", ContainerUsage(*curves), 0),), ())


class Node:
    """A node whose usage a test sets, and its eviction manager."""

    def __init__(self, model: NodeModel) -> None:
        self.model = model
        self.manager = EvictionManager(0)
        self.free = 32 * GI
        self.free_disk = 100 * GI
        self.freed = 0  # by the next reclaim
        self.pids = 10

    def use(self) -> NodeUse:
        return NodeUse(
            memory=Measure(32 * GI, (), 32 * GI - self.free),
            pods_memory=Measure(32 * GI, ()),
            disk=Measure(100 * GI, (), 100 * GI - self.free_disk),
            inodes=Measure(1_000_000, (), 1000),
            pids=Measure(10_000, (), self.pids),
        )

    def reclaim(self) -> None:
        self.free_disk += self.freed

    def run(self, at_s: int, *pods: PodTerms | Pod) -> Pass:
        now_ns = at_s * NS_PER_S
        return self.manager.synchronize(self.model, pods, self.use, self.reclaim, now_ns)


def names(ranked: Sequence[tuple[Pod, object]]) -> list[str]:
    return [each[0].name for each in ranked]


def test_memory_is_ranked_by_excess_then_priority_then_usage_above_the_request() -> None:
    wrapped = pod("wrapped", memory="2Gi")  # all of it the overhead of its RuntimeClass
    admission = wrapped.spec.admission._replace(overhead=wrapped.spec.admission.requests)
    wrapped.spec = wrapped.spec._replace(admission=admission)
    found = [
        using(wrapped, memory=1 * GI),
        using(pod("within", memory="2Gi"), memory=1 * GI),
        using(pod("most", memory="1Gi"), memory=4 * GI),
        using(pod("some", memory="1Gi"), memory=2 * GI),
        using(pod("high", priority=10), memory=8 * GI),
        using(pod("within-low", priority=-1, memory="2Gi"), memory=1 * GI),
    ]
    ranked = rank([(each.pod, pod_stats(each, 0)) for each in found], "memory")
    assert names(ranked) == ["most", "wrapped", "some", "high", "within-low", "within"]


def test_pids_are_ranked_by_priority_then_processes_and_disk_by_usage() -> None:
    one = using(pod("one"), disk=GI, pids=5)
    two = using(pod("two"), disk=2 * GI, pids=9)
    low = using(pod("low", priority=-5), disk=MI, pids=1)
    stats = [(each.pod, pod_stats(each, 0)) for each in (one, two, low)]
    assert names(rank(stats, "pids")) == ["low", "two", "one"]
    assert names(rank(stats, "ephemeral-storage")) == ["low", "two", "one"]
    assert names(rank([*stats, (pod("new"), None)], "memory"))[0] == "new"


def test_a_container_within_its_request_is_not_blamed() -> None:
    node = Node(configured(evictionHard={"memory.available": "10%"}))
    node.free = GI
    found = node.run(10, using(pod("within", qos="Burstable", memory="2Gi"), memory=GI))
    assert found.evictions[0].message == (
        "The node was low on resource: memory. Threshold quantity: 3435973888, available: 1Gi. "
    )


def test_critical_pods_are_spared() -> None:
    node = Node(configured())
    node.free = 0
    critical = pod("dns", priority=2_000_000_000)
    assert node.run(10, using(critical, memory=4 * GI)).evictions == ()
    (eviction,) = node.run(20, using(critical, memory=4 * GI), using(pod("p"))).evictions
    assert eviction.pod.name == "p"


def test_a_soft_threshold_waits_for_its_grace_period_and_gives_the_pod_time() -> None:
    node = Node(
        configured(
            evictionSoft={"memory.available": "1Gi"},
            evictionSoftGracePeriod={"memory.available": "25s"},
            evictionMaxPodGracePeriod=20,
        )
    )
    node.free = 500 * MI
    for at_s in (10, 20, 30):
        assert node.run(at_s, using(pod("p"), memory=GI)) == Pass("", ())
        assert node.manager.conditions == ("MemoryPressure",)
    node.free = 2 * GI
    assert node.run(40, using(pod("p"), memory=GI)) == Pass("", ())
    node.free = 500 * MI  # the grace period begins anew
    assert node.run(50, using(pod("p"), memory=GI)).evictions == ()
    assert node.run(70, using(pod("p"), memory=GI)).evictions == ()
    (eviction,) = node.run(80, using(pod("p"), memory=GI)).evictions
    assert eviction.grace_s == 20


def test_the_minimum_reclaim_keeps_a_threshold_met() -> None:
    node = Node(configured(evictionMinimumReclaim={"memory.available": "1Gi"}))
    node.free = 1100 * MI
    assert node.run(10, using(pod("p"))).starved == ""
    node.free = 50 * MI
    assert node.run(20, using(pod("p"))).starved == "memory"
    node.free = 1100 * MI  # above 100Mi, but not by 1Gi
    assert node.run(30, using(pod("p"))).starved == "memory"
    node.free = 1200 * MI
    assert node.run(40, using(pod("p"))).starved == ""


def test_the_request_of_a_whole_pod_is_told_with_its_usage() -> None:
    node = Node(configured())
    node.free = 90 * MI
    whole = pod("whole")
    whole.spec = whole.spec._replace(own_json=b'{"requests":{"memory":"4Gi"}}')
    (eviction,) = node.run(10, using(whole, memory=3 * GI)).evictions
    assert eviction.message == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
        "Pod whole was using 3Gi, request is 4Gi, has larger consumption of memory. "
        "Container c was using 3Gi, request is 0, has larger consumption of memory. "
    )
    assert eviction.annotations == (
        ("offending_containers", "c"),
        ("offending_containers_usage", "3Gi"),
        ("offending_pod", "whole"),
        ("offending_pod_usage", "3Gi"),
        ("starved_resource", "memory"),
    )


def test_ephemeral_containers_are_not_blamed() -> None:
    node = Node(configured())
    node.free = 90 * MI
    debugged = pod("debugged")
    debugged.spec = debugged.spec._replace(
        containers=(container(name="other"),), ephemeral_containers=debugged.spec.containers
    )
    (eviction,) = node.run(10, using(debugged, memory=GI)).evictions
    assert eviction.message.endswith("available: 90Mi. ")
    assert eviction.annotations[0] == ("offending_containers", "")


def test_the_disk_limit_of_a_container_is_not_that_of_a_sidecar() -> None:
    limited = container(resources_json=b'{"limits":{"ephemeral-storage":"1Gi"}}')
    one = pod("one")
    stats = pod_stats(using(one, disk=2 * GI), 0)
    assert stats is not None
    one.spec = one.spec._replace(containers=(limited,))
    assert local_storage_message(one, stats) == (
        'Container c exceeded its local ephemeral storage limit "1Gi". '
    )
    limited = limited._replace(restart_policy="Always")
    one.spec = one.spec._replace(containers=(container(name="other"),), init_containers=(limited,))
    assert local_storage_message(one, stats) == ""
    assert local_storage_message(one, stats, limits_sidecars=True).startswith("Container c ")


def test_pids_have_their_own_condition() -> None:
    node = Node(configured(evictionHard={"pid.available": "1000"}))
    node.pids = 9500
    found = node.run(10, using(pod("p"), pids=100))
    assert node.manager.conditions == ("PIDPressure",)
    assert found.evictions[0].message == (
        "The node was low on resource: pids. Threshold quantity: 1k, available: 500. "
    )


@pytest.mark.parametrize(
    ("conditions", "qos", "priority", "toleration", "words"),
    [
        ((), "BestEffort", 0, (), ""),
        (("MemoryPressure",), "BestEffort", 0, (), "The node had condition: [MemoryPressure]. "),
        (("MemoryPressure",), "Burstable", 0, (), ""),
        (("MemoryPressure",), "BestEffort", 2_000_000_000, (), ""),
        (("MemoryPressure",), "BestEffort", 0, TOLERATIONS, ""),
        (BOTH, "Guaranteed", 0, (), "The node had condition: [MemoryPressure DiskPressure]. "),
    ],
)
def test_what_a_node_under_pressure_admits(
    conditions: tuple[str, ...],
    qos: str,
    priority: int,
    toleration: tuple[Toleration, ...],
    words: str,
) -> None:
    wanted = pod("p", priority=priority, qos=qos)
    wanted.spec = wanted.spec._replace(tolerations=toleration)
    assert admits_under_pressure(wanted, conditions) == words


def test_the_pass_that_finds_something_is_computed() -> None:
    model = configured()
    manager = EvictionManager(0)
    ramp = Curve(((0, 0), (100 * NS_PER_S, 64 * GI)))
    usage = ContainerUsage(ramp, ZERO, ZERO, ZERO, ZERO)
    pods = (PodTerms(pod("p"), (("c", usage, 0),), ()),)
    terms = node_use(model, pods, 0, 0)
    due_ns = manager.next_pass_ns(model, terms, pods, 1)
    assert due_ns == 50 * NS_PER_S  # 31.9 GiB are reached in 49.8 s, less what the system uses
    calm = node_use(model, (), 0, 0)
    assert manager.next_pass_ns(model, calm, (), 1) == NEVER


def test_the_cleanup_of_an_evicted_pod_is_waited_for() -> None:
    node = Node(configured())
    node.free = 0
    (eviction,) = node.run(10, using(pod("p"), memory=GI)).evictions
    terms = node_use(node.model, (), 0, 0)
    for begun_s, until_s, killed in ((10, 20, eviction), (11, 41, None)):
        node.manager.wait(killed, begun_s * NS_PER_S)
        assert node.manager.evicted == ("p",)
        until_ns = node.manager.next_pass_ns(node.model, terms, (), 11 * NS_PER_S)
        assert until_ns == until_s * NS_PER_S  # 10 s to kill it, then 30 s to clean up
    node.manager.on_cleaned_up(12 * NS_PER_S + 1)
    assert node.manager.next_pass_ns(node.model, terms, (), 12 * NS_PER_S + 1) == 13 * NS_PER_S


def test_pods_have_a_memory_threshold_of_their_own() -> None:
    reserved = configured(kubeReserved={"memory": "2Gi"})
    assert reserved.pods_memory_bytes == 30 * GI
    signals = [each.signal for each in thresholds_of(reserved)]
    assert signals[:2] == ["memory.available", "allocatableMemory.available"]
    off = configured(enforceNodeAllocatable=["none"])
    assert "allocatableMemory.available" not in [each.signal for each in thresholds_of(off)]
    use = Node(reserved).use()._replace(pods_memory=Measure(30 * GI, (), 29 * GI))
    assert observations_of(use, 0)["allocatableMemory.available"] == (GI, 30 * GI)


def test_a_sidecar_alone_is_spared_like_what_it_serves() -> None:
    burst, init = pod("burst", qos="Burstable", memory="1Gi"), container(name="init")
    both = (init, init._replace(restart_policy="Always"))
    assert [oom_score_adjust(burst, each, 10 * GI) for each in both] == [999, 900]
