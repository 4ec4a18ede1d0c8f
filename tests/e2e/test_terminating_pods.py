"""Pods that cannot be killed, volumes that do not unmount, as the API shows them; and their end."""

from functools import partial

import pytest

from e2e.e2e_world import Json, World, condition, eventually, pod, workload
from e2e.fault_world import lively, order

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

DRIVER = "csi.fleet.emulator"
REFUSED = "operation not permitted"
NO_ANSWER = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
PILED = 4
PODS = ("calm", "refused", "hung", "networked", "busy")
"""By the number of the node on which each runs, and what goes wrong there."""
FAULTS: tuple[Json, ...] = (
    {"type": "KillFailure", "message": REFUSED},
    {"type": "KillFailure"},
    {"type": "SandboxKillFailure"},
    {"type": "UnmountFailure"},
)
TOLD = {
    "refused": f'{REFUSED}"',
    "hung": f'failed to "KillContainer" for "c" with KillContainerError: "{NO_ANSWER}"',
    "networked": 'failed to "KillPodSandbox" for ',
}


nginx = partial(pod, container={"image": "nginx"})


def claimed(node: str) -> list[Json]:
    """Return a pod with a claim of a driver's volume."""
    wanted = {"requests": {"storage": "1Gi"}}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "stuck",
        "resources": wanted,
    }
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "stuck"}}
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "stuck"},
        "provisioner": DRIVER,
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "stuck"}}]
    return [storage_class, {**claim, "spec": spec}, nginx("busy", node=node, volumes=volumes)]


def kills(world: World, name: str) -> list[Json]:
    selector = f"--field-selector=involvedObject.name={name},reason=FailedKillPod"
    return world.items("events", selector)


def tries(world: World, name: str) -> int:
    return sum(each["count"] for each in kills(world, name))


def deleted_by_nodes(world: World) -> set[str]:
    """Return of which pods a kubelet has asked for the end."""
    return {
        each["objectRef"]["name"]
        for each in world.audit()
        if each["verb"] == "delete"
        and each["objectRef"]["resource"] == "pods"
        and (each.get("impersonatedUser") or each["user"])["username"].startswith("system:node:")
    }


def check_what_is_stuck(world: World, busy_node: str) -> None:
    """Check what is told of pods that are killed again and again, and of one with a volume."""
    for name, words in TOLD.items():
        for each in kills(world, name):
            assert each["type"] == "Warning"
            assert each["message"].startswith("error killing pod: "), each["message"]
            assert words in each["message"]
    phases = {each: world.get("pod", each)["status"]["phase"] for each in (*TOLD, "busy")}
    assert phases == {**dict.fromkeys(TOLD, "Running"), "busy": "Succeeded"}
    assert kills(world, "busy") == []
    node = world.get("node", busy_node)["status"]
    attached = [each["name"] for each in node["volumesAttached"]]
    assert attached
    assert node["volumesInUse"] == attached


def test_pods_that_cannot_end_stay_until_it_is_healed(world: World) -> None:
    prefix = "stuck"
    names = [f"{prefix}-{number:05d}" for number in range(len(PODS))]
    quick = {"nodeLeaseDurationSeconds": 8, "runtimeRequestTimeout": "2s"}
    drivers = [{"name": DRIVER}]
    profile = lively(world, "lively-stuck", csiDrivers=drivers, kubeletConfiguration=quick)

    def left() -> set[str]:
        found = {each["metadata"]["name"] for each in world.items("pods")}
        return found & set(PODS)

    def ready(*wanted: str) -> bool:
        return all(condition(world.get("pod", each), "Ready") == "True" for each in wanted)

    def piled() -> int:
        return sum("deletionTimestamp" in each["metadata"] for each in world.pods("pile"))

    def attached() -> list[Json]:
        found = world.items("volumeattachments")
        return [each for each in found if each["spec"]["nodeName"] == names[4]]

    with world.spawn(prefix, len(PODS), profile) as run:
        run.until_ready()
        alone = [nginx(name, node=node) for name, node in zip(PODS[:4], names[:4], strict=True)]
        where = {"kubernetes.io/hostname": names[1]}
        pile = workload(
            "Deployment", "pile", PILED, nodeSelector=where, terminationGracePeriodSeconds=1
        )
        world.apply(*alone, *claimed(names[4]), pile)
        eventually(lambda: ready(*PODS), "all pods are Ready")
        eventually(lambda: len(world.ready_pods("pile")) == PILED, "the others, too")
        for fault, node in zip(FAULTS, names[1:], strict=True):
            order(run, do="inject", fault={**fault, "nodes": [node]})
        world.kubectl("delete", "pod", *PODS, "--wait=false")
        world.kubectl("delete", "pod", "-l", "app=pile", "--wait=false")
        eventually(lambda: left() == set(PODS[1:]), "one pod is gone", seen=left)
        eventually(lambda: all(tries(world, each) > 1 for each in TOLD), "each is tried again")
        check_what_is_stuck(world, names[4])
        # What was piled up stays beside what the ReplicaSet has made for it.
        eventually(lambda: len(world.ready_pods("pile")) == 2 * PILED, "successors run")
        assert piled() == PILED
        assert deleted_by_nodes(world) & {*PODS, *_names(world.pods("pile"))} == {"calm"}

        world.kubectl("delete", "pod", "refused", "--force", "--grace-period=0")
        assert "refused" not in left()
        before = tries(world, "refused")
        eventually(lambda: tries(world, "refused") > before + 1, "its containers are not")

        assert len(order(run, do="heal", what="")["healed"]) == len(FAULTS)
        eventually(lambda: left() == set(), "all pods are gone", seen=left)
        eventually(lambda: piled() == 0, "and what was piled up")
        assert len(world.ready_pods("pile")) == PILED
        assert deleted_by_nodes(world) & set(PODS) == {"calm", "hung", "networked", "busy"}
        eventually(lambda: attached() == [], "the volume is detached", seen=attached)
        world.kubectl("delete", "deployment", "pile")
        world.kubectl("delete", "pvc", "stuck", "--wait=false")
        eventually(lambda: not world.items("pv"), "the volume is gone")
        run.end_well_or_late()
        world.kubectl("delete", "storageclass", "stuck")
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)


def _names(items: list[Json]) -> set[str]:
    return {each["metadata"]["name"] for each in items}
