"""Where the pods of a scenario may run on a cluster of others, and what it asks of that cluster."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.cluster.daemonsets import FAKE_KEY, FAKE_TAINT, NodeShape, lands_on
from fleet.errors import UsageError
from fleet.run.scenario_player import ScenarioPlayer
from fleet.scenario.placement import TEMPLATES, Placement
from fleet.scenario.preview import demand, requests_of
from fleet.scenario.scenario import load, parse, shipped

Json = dict[str, Any]
RUN = {"fleet.emulator/run": "r1"}
OURS = NodeShape(count=1, labels={**RUN, "disk": "ssd"})
FOREIGN = NodeShape(count=1, labels={"disk": "ssd", "nvidia.com/gpu": "8"}, taints=())
PLACEMENT = Placement(RUN, {"fleet-00000"}.__contains__)
POD: Json = {"containers": [{"name": "c", "image": "nginx"}]}


def of_kind(group: str, kind: str, path: str, spec: Json) -> Json:
    """Return an object with a pod template where its kind has it."""
    made: Json = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind}
    made["metadata"] = {"name": "x"}
    at = made
    for part in filter(None, path.split(".")):
        at = at.setdefault(part, {})
    at["spec"] = copy.deepcopy(spec)
    return made


def spec_at(made: Json, path: str) -> Json:
    for part in filter(None, path.split(".")):
        made = made[part]
    found: Json = made["spec"]
    return found


@pytest.mark.parametrize(("group", "kind", "path"), [(*key, at) for key, at in TEMPLATES.items()])
def test_pods_of_each_kind_run_on_nodes_of_the_run_and_on_no_machine(
    group: str, kind: str, path: str
) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
                ]
            }
        }
    }
    theirs = {"key": "gpu", "operator": "Exists"}
    selector = {"disk": "ssd", **dict.fromkeys(RUN)}  # a null would take ours off again
    before = of_kind(
        group,
        kind,
        path,
        {**POD, "affinity": affinity, "nodeSelector": selector, "tolerations": [theirs]},
    )
    kept = copy.deepcopy(before)
    placed = spec_at(PLACEMENT.placed(before, ()), path)
    assert before == kept  # phases share manifests
    assert placed["affinity"] == affinity
    assert placed["nodeSelector"] == {"disk": "ssd", **RUN}
    assert placed["tolerations"][0] == theirs
    assert lands_on(placed, OURS)
    assert not lands_on(placed, FOREIGN)
    assert lands_on(spec_at(of_kind(group, kind, path, POD), path), FOREIGN)  # as it was written


def test_a_toleration_by_name_is_not_repeated_and_a_wildcard_does_not_do() -> None:
    named: Json = {"key": FAKE_KEY, "operator": "Equal", "value": FAKE_TAINT.value}
    for tolerations, more in (([named], 0), ([{"operator": "Exists"}], 1)):
        made = of_kind("", "Pod", "", {**POD, "tolerations": tolerations})
        assert len(PLACEMENT.placed(made, ())["spec"]["tolerations"]) == len(tolerations) + more  # type: ignore[index]


def test_a_change_without_a_template_stays_what_it_is() -> None:
    change: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}
    change["spec"] = {"replicas": 0}
    assert PLACEMENT.placed(change, ()) == change


JOBS: Json = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "x"},
    "spec": {
        "replicas": {
            "Master": {"template": {"spec": POD}},
            "Worker": {"template": {"spec": {**POD}}},
        }
    },
}


def test_custom_resources_are_placed_where_the_file_says_and_refused_elsewhere() -> None:
    made: Json = PLACEMENT.placed(JOBS, ("spec.replicas.*.template",))
    for each in made["spec"]["replicas"].values():
        assert each["template"]["spec"]["nodeSelector"] == RUN
    with pytest.raises(UsageError, match=r"PyTorchJob .* a pod template at spec.replicas.Worker"):
        PLACEMENT.placed(JOBS, ("spec.replicas.Master.template",))
    with pytest.raises(UsageError, match=r"podTemplates: spec\.replicas of PyTorchJob is no pod"):
        PLACEMENT.placed(JOBS, ("spec.replicas",))


def custom(spec: str) -> Json:
    return object_of(f"{{apiVersion: x.io/v1, kind: X, metadata: {{name: x}}, spec: {spec}}}")


def object_of(text: str) -> Json:
    found: Json = yaml.safe_load(text)
    return found


BINDING = object_of("{apiVersion: v1, kind: Binding, metadata: {name: p}, target: {}}")
NAMESPACE = object_of("{apiVersion: v1, kind: Namespace, metadata: {name: n}}")
DEFINITION = object_of(
    "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: c}}"
)
OF_OTHERS = "what others put in it would be deleted with it"


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (JOBS, "podTemplates"),
        (of_kind("", "PodTemplate", "template", POD), "PodTemplate"),
        (of_kind("other.io", "Deployment", "spec.template", POD), "spec.template"),
        (custom("{templates: [{name: a, container: {}}]}"), r"spec.templates\[0\].container"),
        (custom("{podTemplate: {metadata: {}}}"), "spec.podTemplate"),
        (custom("{template: {spec: {domain: {}}}}"), "spec.template"),
        (custom("{image: 'server:1'}"), "spec.image"),
        (of_kind("", "Pod", "", {**POD, "nodeName": "machine-1"}), "nodeName machine-1 is not"),
        (BINDING, "Binding sends a pod to a node"),
        (NAMESPACE, OF_OTHERS),
        (DEFINITION, OF_OTHERS),
        (of_kind("", "Pod", "", {**POD, "tolerations": {"a": 1}}), "tolerations are a list"),
    ],
)
def test_what_might_run_on_a_machine_is_refused(manifest: Json, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        PLACEMENT.placed(manifest, ())


@pytest.mark.parametrize(
    "manifest",
    [
        object_of("{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {image: a}}"),
        custom("{size: 3, issuer: {name: a}}"),
        of_kind("", "Pod", "", {**POD, "nodeName": "fleet-00000"}),
    ],
)
def test_what_makes_no_pods_elsewhere_is_not(manifest: Json) -> None:
    assert PLACEMENT.placed(manifest, ())["kind"] == manifest["kind"]


@pytest.mark.parametrize("name", sorted(shipped()))
def test_each_scenario_that_ships_can_be_placed(name: str) -> None:
    path = shipped()[name]
    player = ScenarioPlayer(load(path), path)
    player.place(PLACEMENT)
    specs = [
        spec_at(made, TEMPLATES[group, str(made["kind"])])
        for manifests in player._manifests.values()
        for made in manifests
        for group in [str(made["apiVersion"]).rpartition("/")[0]]
        if (group, made["kind"]) in TEMPLATES and "template" in str(made)
    ]
    assert all(each["nodeSelector"] == RUN for each in specs)


SCENARIO = """
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: s}
spec:
  nodePools: [{name: main, replicas: 20}]
  phases:
  - name: one
    duration: 1m
    apply: [{manifest: MANIFEST}]
"""


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("", r"s\.yaml: spec\.phases\[0\]: PyTorchJob"),
        ("podTemplates: [spec.worker], ", r"podTemplates: no object has spec\.worker"),
    ],
)
def test_a_refusal_names_the_file_and_the_phase_or_the_path(where: str, told: str) -> None:
    manifest = yaml.safe_dump(JOBS, default_flow_style=True).strip()
    text = SCENARIO.replace("[{manifest: MANIFEST", f"[{{{where}manifest: {manifest}")
    player = ScenarioPlayer(parse(text, "s.yaml"), Path("s.yaml"))
    with pytest.raises(UsageError, match=told):
        player.place(PLACEMENT)


def test_kinds_replicas_and_requests_are_told() -> None:
    path = shipped()["gpu-cluster"]
    assert demand(load(path), path, 50) == [
        "1 x Deployment train: 400 pods, each nvidia.com/gpu 1, together nvidia.com/gpu 400",
        "80 x Pod job, each nvidia.com/gpu 1, together nvidia.com/gpu 80",
    ]
    path = shipped()["big-objects"]
    assert demand(load(path), path, 50) == [
        "1 x Deployment reader: 200 pods, each no requests",
        "1 x ConfigMap big",
        "20 x ConfigMap unread",
    ]
    assert not demand(load(shipped()["steady-5k"]), path, 50)


def test_requests_of_a_pod_are_those_that_the_scheduler_sees() -> None:
    one = {"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"x/y": 2}}}
    spec: Json = {
        "containers": [one, one, {"resources": "nonsense"}, 7],
        "initContainers": [
            {"resources": {"requests": {"cpu": "2"}}},
            {"restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}},
        ],
    }
    found = {name: str(amount) for name, amount in requests_of(spec).items()}
    assert found == {"cpu": "2", "memory": "3Gi", "x/y": "4"}
    spec["resources"] = {"requests": {"cpu": "3"}}
    assert str(requests_of(spec)["cpu"]) == "3"
