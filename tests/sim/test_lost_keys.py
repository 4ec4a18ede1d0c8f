"""ConfigMaps and Secrets that a running pod shows, and that lose what the pod shows of them.

Source: pkg/volume/configmap/configmap.go, RequiresRemount, MakePayload; secret/secret.go.
"""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

RESYNC_S = 90
"""A lost key is missed by the next sync of the pod."""
KINDS = {
    "configmaps": ("configMap", "name", "configmap references non-existent config key: a"),
    "secrets": ("secret", "secretName", "references non-existent secret key: a"),
}


def started(strategy: str = "Watch") -> Simulation:
    kubelet = {"configMapAndSecretChangeDetectionStrategy": strategy}
    sim = Simulation(seed=3, model=model_of(kubeletConfiguration=kubelet)).run_for(seconds=60)
    for kind in KINDS:
        for name in ("one", "two"):
            sim.server.create((kind, "default", name), {"data": {"a": "YQ==", "b": "Yg=="}})
    return sim


def volume(kind: str, name: str, *, optional: bool = False) -> Object:
    field, key, _ = KINDS[kind]
    source = {key: name, "items": [{"key": "a", "path": "a"}], "optional": optional}
    return {"name": f"of-{name}", field: source}


@pytest.mark.parametrize("strategy", ["Watch", "Get"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_goes_fails_the_mount_for_as_long_as_it_is_gone(
    kind: str, strategy: str
) -> None:
    sim = started(strategy)
    sim.create_pod("web", volumes=[volume(kind, "one")])
    sim.run_for(seconds=30)
    sim.server.update(kind, "one", {"data": {"b": None}}, "default")
    sim.run_for(seconds=2 * RESYNC_S)
    assert sim.said("FailedMount") == {}  # none that the pod shows
    sim.server.update(kind, "one", {"data": {"a": None}}, "default")
    sim.run_for(seconds=RESYNC_S + 128)
    text = f'MountVolume.SetUp failed for volume "of-one" : {KINDS[kind][2]}'
    [(message, first)] = sim.said("FailedMount").items()
    assert message == text
    assert 8 <= first <= 9  # after 0.5, 1, 2, ... 64 s
    sim.run_for(seconds=600)
    again = sim.said("FailedMount")[text] - first
    assert 4 <= again <= 5  # every 122 s
    assert sim.phase("web") == "Running"
    sim.server.update(kind, "one", {"data": {"a": "YQ=="}}, "default")
    sim.run_for(seconds=130)
    told = sim.said("FailedMount")
    sim.run_for(seconds=600)
    assert sim.said("FailedMount") == told


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_key_is_missed_by_a_sync_that_comes_before_the_resync(kind: str) -> None:
    sim = started()
    sim.create_pod("web", volumes=[volume(kind, "one")])
    sim.run_for(seconds=30)
    sim.server.update(kind, "one", {"data": {"a": None}}, "default")
    sim.run_for(seconds=1)
    sim.server.update("pods", "web", {"metadata": {"annotations": {"a": "1"}}}, "default")
    sim.run_for(seconds=2)
    assert len(sim.said("FailedMount")) == 1


def test_a_key_of_an_optional_object_may_go() -> None:
    sim = started()
    sim.create_pod("web", volumes=[volume("configmaps", "one", optional=True)])
    sim.run_for(seconds=30)
    sim.server.update("configmaps", "one", {"data": {"a": None}}, "default")
    sim.run_for(seconds=2 * RESYNC_S)
    assert sim.said("FailedMount") == {}


def test_two_objects_of_a_pod_are_missed_by_themselves() -> None:
    """The second one used to be forgotten while the first one was missing."""
    sim = started()
    sim.create_pod("web", volumes=[volume("configmaps", "one"), volume("secrets", "two")])
    sim.run_for(seconds=30)
    sim.server.remove(("configmaps", "default", "one"))
    sim.run_for(seconds=2 * RESYNC_S)
    sim.server.update("secrets", "two", {"data": {"a": None}}, "default")
    sim.run_for(seconds=2 * RESYNC_S)
    assert set(sim.said("FailedMount")) == {
        'MountVolume.SetUp failed for volume "of-one" : configmap "one" not found',
        f'MountVolume.SetUp failed for volume "of-two" : {KINDS["secrets"][2]}',
    }
