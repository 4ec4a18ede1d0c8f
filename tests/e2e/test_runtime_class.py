"""Pods whose RuntimeClass names a handler that their nodes lack, on a real control plane."""

import pytest
import yaml
from e2e_world import Json, World, condition, eventually

from fleet.profile.loader import show_profile

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

HANDLERS = ("", "runc", "kata")


def runtime_class(name: str, handler: str) -> Json:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": handler,
    }


def pod(name: str, node: str, **spec: object) -> Json:
    containers = [{"name": "c", "image": "registry.k8s.io/pause:3.10.1"}]
    spec |= {"nodeName": node, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def why_not(world: World, name: str) -> str:
    found = world.items("events", f"--field-selector=involvedObject.name={name}")
    return "".join(each["message"] for each in found if each["reason"] == "FailedCreatePodSandBox")


def test_a_pod_waits_for_a_handler_that_its_node_has(world: World) -> None:
    document = yaml.safe_load(show_profile("default"))
    handlers = [{"name": each} for each in HANDLERS]
    document["spec"]["template"]["status"]["runtimeHandlers"] = handlers
    profile = world.root / "handlers.yaml"
    profile.write_text(yaml.safe_dump(document))
    with world.spawn("handler", 1, f"--profile={profile}") as run:
        run.until_ready()
        world.apply(runtime_class("vm", "kata"), runtime_class("user-space", "runsc"))
        world.apply(
            pod("boxed", "handler-00000", runtimeClassName="vm"),
            pod("waits", "handler-00000", runtimeClassName="user-space"),
        )
        eventually(
            lambda: condition(world.get("pod", "boxed"), "Ready") == "True", "the handler is there"
        )
        text = 'no runtime for "runsc" is configured'
        eventually(lambda: text in why_not(world, "waits"), "there is no such handler")
        assert world.get("pod", "waits")["status"]["phase"] == "Pending"
        world.kubectl("delete", "runtimeclass/user-space")  # a handler cannot be changed
        gone = 'runtimeclass.node.k8s.io "user-space" not found'
        eventually(lambda: gone in why_not(world, "waits"), "there is no such class")
        world.apply(runtime_class("user-space", "runc"))
        eventually(
            lambda: condition(world.get("pod", "waits"), "Ready") == "True", "it runs after all"
        )
        world.kubectl("delete", "pod/boxed", "pod/waits", "--now")
        world.kubectl("delete", "runtimeclass/vm", "runtimeclass/user-space")
        run.end_well_or_late()
    world.assert_nothing_left("handler")
