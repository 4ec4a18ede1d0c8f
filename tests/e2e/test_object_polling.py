"""ConfigMaps and Secrets without watches: what a real API server is asked for."""

from urllib.parse import parse_qs

import pytest
import yaml

from e2e.audit_requests import requests_of
from e2e.e2e_world import Json, World, condition, eventually
from fleet.profile.loader import show_profile

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

CONFIG, SECRET = "polled", "polled-secret"
OBJECTS = {"configmaps", "secrets"}


def profile(world: World, strategy: str) -> str:
    """Name a profile whose pods look at what they show every 3 to 4.5 s."""
    document = yaml.safe_load(show_profile("default"))
    configuration = document["spec"].setdefault("kubeletConfiguration", {})
    configuration |= {
        "configMapAndSecretChangeDetectionStrategy": strategy,
        "syncFrequency": "3s",
    }
    path = world.root / f"{strategy}.yaml"
    path.write_text(yaml.safe_dump(document))
    return f"--profile={path}"


def pod(node: str) -> Json:
    container = {
        "name": "c",
        "image": "registry.k8s.io/pause:3.10.1",
        "volumeMounts": [{"name": "cfg", "mountPath": "/cfg"}],
        "envFrom": [{"secretRef": {"name": SECRET}}],
    }
    spec = {
        "nodeName": node,
        "containers": [container],
        "volumes": [{"name": "cfg", "configMap": {"name": CONFIG}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "polls"}, "spec": spec}


def config_map() -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG}}


def secret() -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}


def reads(world: World, node: str, name: str) -> list[str]:
    """Return the resourceVersion of each granted read of an object, in order."""
    return [
        parse_qs(each["requestURI"].partition("?")[2]).get("resourceVersion", [""])[0]
        for each in requests_of(world, node)
        if each["objectRef"].get("name") == name
        and each["verb"] == "get"
        and each["responseStatus"]["code"] == 200
    ]


def says(world: World, text: str) -> bool:
    selector = "--field-selector=involvedObject.name=polls"
    return any(text in each["message"] for each in world.items("events", selector))


@pytest.mark.parametrize(
    ("strategy", "version"), [("Cache", "0"), pytest.param("Get", "", marks=pytest.mark.slow)]
)
def test_objects_are_read_and_not_watched(world: World, strategy: str, version: str) -> None:
    """On a small cluster the TTL is 0 s: what is cached is looked at in each sync."""
    prefix = f"polls-{strategy.lower()}"
    node = f"{prefix}-00000"
    with world.spawn(prefix, 1, profile(world, strategy)) as run:
        run.until_ready()
        world.apply(pod(node))
        missing = f'MountVolume.SetUp failed for volume "cfg" : configmaps "{CONFIG}" not found'
        eventually(lambda: says(world, missing), "the volume lacks its ConfigMap")
        world.apply(config_map())
        eventually(lambda: says(world, f'Error: secrets "{SECRET}" not found'), "no Secret for c")
        world.apply(secret())
        eventually(
            lambda: condition(world.get("pod", "polls"), "Ready") == "True", "the pod is ready"
        )
        eventually(lambda: len(reads(world, node, CONFIG)) > 3, "the ConfigMap is read again")
        assert reads(world, node, CONFIG)[0] == ""
        assert set(reads(world, node, CONFIG)[1:]) == {version}
        assert reads(world, node, SECRET) == [""]  # by the one container that started
        asked = {
            each["verb"]
            for each in requests_of(world, node)
            if each["objectRef"]["resource"] in OBJECTS
        }
        assert asked == {"get"}
        world.kubectl("delete", "pod", "polls", "--now")
        world.kubectl("delete", f"configmap/{CONFIG}", f"secret/{SECRET}")
        run.end_well_or_late()
    world.assert_nothing_left(prefix)
