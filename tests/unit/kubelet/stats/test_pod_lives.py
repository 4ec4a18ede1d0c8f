"""What /metrics says of the lives of pods, against what was played."""

import re

from stats_world import kubelet_of, pod, world_with
from world.pod_world import World, container, make_pod

from fleet.k8s.pods import VolumeSpec
from fleet.kubelet.host_interface import kubelet_metrics


def series(world: World, name: str) -> dict[str, float]:
    """Return the samples of a metric by their labels."""
    text = kubelet_metrics(kubelet_of(world), world.now_ns).decode()
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def test_what_ended_is_counted_once_by_how() -> None:
    fails = make_pod(
        container("c", "sh", "-c", "exit 3"), uid="u-1", name="a", restart_policy="Never"
    )
    done = make_pod(
        container("c", "sh", "-c", "exit 0"),
        uid="u-2",
        name="b",
        restart_policy="Never",
        init_containers=(container("i", "true"),),
    )
    world = world_with(fails, done, pod("runs", "u-3"), seconds=300)
    kinds = 'container_type="{}",exit_code="{}",reason="{}"'
    assert series(world, "kubelet_terminated_containers_total") == {
        kinds.format("container", 3, "Error"): 1,
        kinds.format("container", 0, "Completed"): 1,
        kinds.format("init_container", 0, "Completed"): 1,
    }


def test_pods_are_counted_by_their_containers() -> None:
    one = make_pod(container("a"), uid="u-1", name="one")
    three = make_pod(*map(container, "abc"), uid="u-2", name="three")
    world = world_with(one, three)
    name = "kubelet_containers_per_pod_count"
    assert series(world, f"{name}_bucket") == {
        'le="1"': 1, 'le="2"': 1, 'le="4"': 2, 'le="8"': 2, 'le="16"': 2, 'le="+Inf"': 2,
    }  # fmt: skip
    assert series(world, f"{name}_sum") == {"": 4}


def test_the_first_pod_with_a_network_of_its_own_is_measured() -> None:
    name = "kubelet_first_network_pod_start_sli_duration_seconds"
    host = make_pod(container(), uid="u-1", name="host", host_network=True)
    world = world_with(host)
    assert series(world, name) == {"": 0}
    world.create(pod("web", "u-2"))
    world.run(60)
    [first] = series(world, name).values()
    assert first > 0
    world.create(pod("other", "u-3"))
    world.run(60)
    assert list(series(world, name).values()) == [first]


def test_looks_for_images_are_counted_by_what_was_found() -> None:
    name = "kubelet_image_manager_ensure_image_requests_total"
    always = make_pod(container("c", pull_policy="Always"), uid="u-1", name="always")
    world = world_with(always)
    labels = 'present_locally="{}",pull_policy="{}",pull_required="{}"'
    expected = {labels.format("unknown", "always", "true"): 1.0}
    assert series(world, name) == expected
    world.create(make_pod(container("c", pull_policy="IfNotPresent"), uid="u-2", name="there"))
    world.run(60)
    expected[labels.format("true", "ifnotpresent", "false")] = 1
    assert series(world, name) == expected
    absent = container("c", pull_policy="IfNotPresent", image="elsewhere")
    world.create(make_pod(absent, uid="u-3", name="absent"))
    never = container("c", pull_policy="Never", image="nowhere")
    world.create(make_pod(never, uid="u-4", name="never"))
    world.run(5)
    found = series(world, name)
    assert found[labels.format("false", "ifnotpresent", "true")] == 1
    assert found[labels.format("false", "never", "unknown")] >= 1


def test_a_node_without_pods_shows_zeros() -> None:
    world = World()
    assert series(world, "dra_resource_claims_in_use") == {'driver_name="<any>"': 0}
    assert series(world, "kubelet_started_pods_errors_total") == {"": 0}
    assert series(world, "kubelet_pod_in_progress_resizes") == {"": 0}
    assert series(world, "kubelet_terminated_containers_total") == {}


def test_volumes_are_counted_by_what_was_done_with_them() -> None:
    """As a real kubelet told it of such a pod, but for how often it looks again."""
    volumes = (
        VolumeSpec("e", "emptyDir"),
        VolumeSpec("h", "hostPath"),
        VolumeSpec("d", "downwardAPI"),
    )
    web = make_pod(container(), uid="u-1", name="web", volumes=volumes)
    world = world_with(web)
    plugins = {f"kubernetes.io/{name}" for name in ("empty-dir", "host-path", "downward-api")}
    steps, mounts = "storage_operation_duration_seconds", "volume_operation_total_seconds"

    def done(operation: str) -> dict[str, float]:
        found = series(world, f"{steps}_count")
        return {
            labels.rpartition("=")[2].strip('"'): count
            for labels, count in found.items()
            if f'operation_name="{operation}",status="success"' in labels
        }

    assert done("verify_controller_attached_volume") == dict.fromkeys(plugins, 1)
    first = done("volume_mount")
    assert first.keys() == plugins
    assert first["kubernetes.io/empty-dir"] == first["kubernetes.io/host-path"] == 1
    assert first["kubernetes.io/downward-api"] >= 1
    assert {
        labels.rpartition("=")[2].strip('"'): count
        for labels, count in series(world, f"{mounts}_count").items()
    } == first
    assert done("volume_unmount") == {}
    world.delete("u-1")
    world.run(60)
    assert done("volume_unmount") == dict.fromkeys(plugins, 1)
    claims = "dra_operations_duration_seconds_count"
    of = 'is_error="false",operation_name="{}"'
    assert series(world, claims) == {
        of.format("PrepareResources"): 1, of.format("UnprepareResources"): 1
    }  # fmt: skip
