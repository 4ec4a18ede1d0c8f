"""A kubelet with pods as the texts of its server see it."""

from types import SimpleNamespace
from typing import cast

from world.pod_world import World, container, make_pod

from fleet.k8s.pods import Pod
from fleet.kubelet.kubelet import VirtualKubelet

LIMITS = b'{"limits":{"memory":"64Mi"},"requests":{"cpu":"100m","memory":"32Mi"}}'


def kubelet_of(world: World) -> VirtualKubelet:
    """Return what of a kubelet is read."""
    return cast(
        "VirtualKubelet", SimpleNamespace(env=world.env, facts=world.facts, pods=world.loop)
    )


def pod(name: str = "web", uid: str = "u-1", **fields: object) -> Pod:
    spec = container("c", resources_json=LIMITS)
    return make_pod(spec, uid=uid, name=name, ended_json=LIMITS, **fields)


def world_with(*pods: Pod, seconds: float = 100.5) -> World:
    world = World()
    for each in pods:
        world.create(each)
    world.run(seconds)
    return world
