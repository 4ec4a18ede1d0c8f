"""The numbers of a node: they agree with each other, and no counter falls."""

from stats_world import kubelet_of, pod, world_with
from world.pod_world import World

from fleet.clock import NS_PER_S
from fleet.server.node_usage import node_usage

RAMP = (("fleet.emulator/cpu-usage", '{"curve":"Ramp","from":"0","to":"1","duration":"100s"}'),)


def cpu_ns(world: World) -> int:
    return node_usage(kubelet_of(world), world.now_ns).cgroup.cpu_ns


def test_an_idle_node_uses_what_its_system_does() -> None:
    use = node_usage(kubelet_of(world_with(seconds=10)), 10 * NS_PER_S)
    assert use.pods == ()
    assert use.cgroup == use.system
    assert use.cgroup.cpu_nano == 20_000_000
    assert use.cgroup.cpu_ns == 200_000_000
    assert 0 < use.disk < use.capacity.disk


def test_a_pod_adds_up_from_its_containers_and_a_node_from_its_pods() -> None:
    world = world_with(pod("a", "u-1"), pod("b", "u-2"))
    use = node_usage(kubelet_of(world), world.now_ns)
    assert [each.pod.name for each in use.pods] == ["a", "b"]
    first = use.pods[0]
    assert first.cgroup.memory == first.containers[0].cgroup.memory == 16 << 20
    assert first.containers[0].cgroup.cpu_nano == 50_000_000
    assert first.containers[0].memory_limit == 64 << 20
    assert use.pods_cgroup.memory == 32 << 20
    assert use.cgroup.memory == use.system.memory + use.pods_cgroup.memory
    assert use.cgroup.pids == use.system.pids + 4


def test_cumulative_cpu_is_the_area_under_the_curve() -> None:
    world = world_with(pod(annotations=RAMP), seconds=50)
    use = node_usage(kubelet_of(world), world.now_ns)
    (container,) = use.pods[0].containers
    age_s = world.now_ns / NS_PER_S - (container.started_s - world.env.wall_s(0))
    assert abs(container.cgroup.cpu_nano - age_s * 1e7) < 2e6
    assert abs(container.cgroup.cpu_ns - age_s * age_s / 200 * NS_PER_S) < 0.05 * NS_PER_S


def test_counters_of_the_node_outlive_its_pods() -> None:
    world = world_with(pod("a", "u-1"), pod("b", "u-2"))
    seen = [cpu_ns(world)]
    world.delete("u-1")
    for _ in range(40):
        world.run(1)
        seen.append(cpu_ns(world))
    assert seen == sorted(seen)
    world.delete("u-2")
    for _ in range(40):
        world.run(1)
        seen.append(cpu_ns(world))
    assert seen == sorted(seen)
    assert node_usage(kubelet_of(world), world.now_ns).pods == ()


def test_a_restarted_container_begins_anew_but_its_pod_does_not() -> None:
    notes = (("fleet.emulator/run-time", "20s"), ("fleet.emulator/exit-code", "1"))
    world = world_with(pod(annotations=notes), seconds=5)
    pods, containers = [], []
    for _ in range(90):
        world.run(1)
        use = node_usage(kubelet_of(world), world.now_ns)
        for each in use.pods:
            pods.append(each.cgroup.cpu_ns)
            containers.append(each.containers[0].cgroup.cpu_ns)
    assert world.container("u-1").restart_count > 1
    assert pods == sorted(pods)
    assert containers != sorted(containers)
