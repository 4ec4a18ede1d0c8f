"""Which runtime handler a pod gets. Source: pkg/kubelet/runtimeclass/runtimeclass_manager.go."""

import pytest
from world.pod_world import World, make_pod

from fleet.k8s.effects import WatchEvent, WatchKind
from fleet.k8s.objects import RuntimeClassView
from fleet.k8s.pods import EventType
from fleet.kubelet.containers.kuberuntime_sandbox import handler_error
from fleet.kubelet.environment import on_catalog


def say(world: World, kind: EventType, handler: str, name: str = "special") -> None:
    record = RuntimeClassView(name, "7", handler)
    on_catalog(world.env, WatchEvent(WatchKind.RUNTIME_CLASSES, kind, record))


def error(world: World, runtime_class: str = "special") -> str:
    return handler_error(make_pod(runtime_class=runtime_class), world.turn([]))


@pytest.mark.parametrize("handler", ["", "runc"])
def test_a_handler_that_the_node_has(handler: str) -> None:
    world = World()
    say(world, EventType.ADDED, handler)
    assert error(world) == ""
    assert error(world, "") == ""


def test_a_handler_that_the_node_has_not() -> None:
    world = World()
    say(world, EventType.ADDED, "runsc")
    text = error(world)
    assert text.startswith(
        'rpc error: code = Unknown desc = unable to get OCI runtime for sandbox "'
    )
    assert text.endswith('": no runtime for "runsc" is configured')
    say(world, EventType.MODIFIED, "runc")
    assert error(world) == ""


def test_a_class_that_is_not_there() -> None:
    world = World()
    missing = 'runtimeclass.node.k8s.io "special" not found'
    assert error(world) == missing
    say(world, EventType.ADDED, "runc")
    say(world, EventType.DELETED, "runc", "other")
    assert error(world) == ""
    say(world, EventType.DELETED, "runc")
    assert error(world) == missing


def test_light_nodes_read_no_classes() -> None:
    assert error(World(light=True)) == ""


def test_nothing_is_said_of_a_sandbox_that_a_pod_does_not_need_any_more() -> None:
    world = World()
    world.create(make_pod(runtime_class="special"))
    world.run(0.35)  # it is being made
    world.delete()
    world.run(5)
    assert "CREATE_EVENT FailedCreatePodSandBox" not in world.log
