"""What the API server in memory makes of pods, where the real one has rules of its own."""

from pathlib import Path

import pytest
from world.admission import admitted, kept_fields, qos_class
from world.encodings import ENCODINGS

from fleet.profile.node_model import NodeModel
from fleet.profile.release import V1_34, V1_35, Release
from oracle import scenes_node
from oracle.exchange import NODE_SCOPE
from oracle.normalisation import Json
from oracle.objects_of_scenes import container, pod, resources
from oracle.recorded_scenes import DIRECTORY, path_of
from oracle.replay import model_of, played
from oracle.scene import FLEET, Scene

OF_BOTH = resources("100m", "64Mi")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NodeModel:
    return model_of(tmp_path_factory.mktemp("node"), path_of(NODE_SCOPE))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pod("none"), "BestEffort"),
        (pod("device", container(resources={"limits": {"example.com/one": "1"}})), "BestEffort"),
        (pod("all", container(resources=OF_BOTH)), "Guaranteed"),
        (pod("cpu", container(resources=resources("100m"))), "Burstable"),
        (pod("one of two", container("a", resources=OF_BOTH), container("b")), "Burstable"),
        (pod("init", container(resources=OF_BOTH), initContainers=[container("i")]), "Burstable"),
        (pod("whole", container("a"), container("b"), resources=OF_BOTH), "Guaranteed"),
        (pod("part of whole", resources={"requests": {"cpu": "1"}}), "Burstable"),
    ],
)
def test_a_pod_has_the_class_of_its_resources(made: Json, expected: str) -> None:
    assert qos_class(made["spec"]) == expected
    assert admitted(made)["status"] == {"phase": "Pending", "qosClass": expected}


def test_a_status_keeps_its_class_and_generations() -> None:
    told = {"qosClass": None, "observedGeneration": None, "podIP": None, "phase": "Failed"}
    condition = {"type": "Ready", "observedGeneration": None, "message": None}
    assert kept_fields({**told, "conditions": [condition]}) == {
        "podIP": None,
        "phase": "Failed",
        "conditions": [{"type": "Ready", "message": None}],
    }


def test_a_pod_that_a_taint_drives_away_says_of_which_generation(model: NodeModel) -> None:
    _, node = played("tainted", scenes_node.tainted, model, "json")
    told = [
        condition
        for each in node.server.audit
        for condition in (each.get("responseObject") or {"status": {}})["status"].get(
            "conditions", ()
        )
        if each["objectRef"]["name"] == "goes" and condition["type"] == "DisruptionTarget"
    ]
    assert {(each["reason"], each["observedGeneration"]) for each in told} == {
        ("DeletionByTaintManager", 1)
    }


@pytest.mark.parametrize(("release", "ends"), [(V1_34, True), (V1_35, False)], ids=["1.34", "1.35"])
def test_a_server_of_1_34_takes_restart_rules_from_pods(
    tmp_path: Path, release: Release, *, ends: bool
) -> None:
    """Its gate ContainerRestartRules is off, so that the container is not started again."""

    def ruled(scene: Scene) -> None:
        rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
        made = container(script="exit 42", restartPolicy="Never", restartPolicyRules=[rule])
        scene.create(pod("ruled", made, restartPolicy="Never"))
        scene.until_over("ruled")

    real = path_of(NODE_SCOPE, DIRECTORY.with_name(release.name))
    play, _ = played("ruled", ruled, model_of(tmp_path, real, version=release.newest), "json")
    assert bool(play.failures) is not ends


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_pod_has_what_its_classes_say(model: NodeModel, encoding: str) -> None:
    def classes(scene: Scene) -> None:
        meta = {"metadata": {"name": "own"}}
        scene.create(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **meta, "value": 7},
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                **meta,
                "handler": "runc",
                "overhead": {"podFixed": {"cpu": "50m"}},
            },
            pod("classed", priorityClassName="own", runtimeClassName="own"),
        )
        scene.until_running("classed")
        found = scene.get(FLEET, "pods", "classed")
        assert found is not None
        assert (found["spec"]["priority"], found["spec"]["overhead"]) == (7, {"cpu": "50m"})

    play, _ = played("classes", classes, model, encoding)
    assert not play.failures


def test_manifests_of_a_scene_that_failed_do_not_reach_the_next(model: NodeModel) -> None:
    left = Path(model.kubelet.static_pod_path, "left.json")
    left.write_text("{}")
    played("tainted", scenes_node.tainted, model, "json")
    assert not left.exists()
