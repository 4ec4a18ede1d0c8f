"""What is told, refused and arranged before a run may load a cluster that others use."""

import asyncio
import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from world.cluster_fakes import FakeApi

from fleet.cluster.api_client import Cluster
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.errors import UsageError
from fleet.k8s.well_known import OPT_IN_LABEL
from fleet.profile.loader import mix_of
from fleet.profile.settings import Settings
from fleet.report.display import Display
from fleet.run.permission import may_load, node_selector
from fleet.run.scenario_player import ScenarioPlayer
from fleet.run.user_command import NODE_SELECTOR, environment_of
from fleet.scenario.scenario import load, parse, shipped

Json = dict[str, Any]


def shared_cluster() -> FakeApi:
    api = FakeApi()
    api.put("/api/v1/namespaces/kube-system", metadata={"uid": "system-uid"})
    api.put(f"{NODES}/machine", spec={})
    return api


def asked(player: ScenarioPlayer | None, **options: object) -> tuple[str, FakeApi]:
    """Ask whether a run may load a shared cluster; return what a person reads."""
    api, questions = shared_cluster(), list[str]()
    options.setdefault("nodes", 50)
    settings = Settings.from_options(context="prod", **options)
    cluster = SimpleNamespace(
        api=lambda _purpose: api,
        credentials=SimpleNamespace(route="https://api.example", context="prod"),
        version="v1.36.3",
    )

    async def ask(question: str) -> bool:
        questions.append(question)
        return True

    display = Display(is_quiet=True)
    asyncio.run(
        may_load(cast("Cluster", cluster), settings, mix_of(settings), "r1", display, ask, player)
    )
    return questions[0], api


def of(name: str) -> ScenarioPlayer:
    return ScenarioPlayer(load(shipped()[name]), shipped()[name])


def templates(player: ScenarioPlayer) -> list[Json]:
    manifests = [cast("Json", made) for each in player._manifests.values() for made in each]
    return [made["spec"].get("template", made)["spec"] for made in manifests if "spec" in made]


def test_pods_of_a_scenario_stay_on_nodes_of_the_run_and_the_question_says_how_many() -> None:
    player = of("gpu-cluster")
    question, api = asked(player)
    assert {each["nodeSelector"][RUN_LABEL] for each in templates(player)} == {"r1"}
    assert "- Pods of the scenario run on nodes with fleet.emulator/run=r1 only." in question
    assert "    1 x Deployment train: 400 pods, each nvidia.com/gpu 1, together nv" in question
    assert {method for method, _ in api.log} == {"GET"}


def test_real_nodes_are_given_to_them_only_by_that_name() -> None:
    player = of("gpu-cluster")
    question, _ = asked(player, real_nodes=True)
    assert not any("nodeSelector" in each for each in templates(player))
    assert "- --real-nodes: pods of the scenario may run on REAL machines." in question
    assert "400 pods" in question


def test_an_object_that_fleet_cannot_place_is_refused_before_anything_is_asked_or_created() -> None:
    text = yaml.safe_load(shipped()["rolling-update"].read_text())
    manifest = copy.deepcopy(text["spec"]["phases"][0]["apply"][0]["manifest"])
    text["spec"]["phases"][0]["apply"][0]["manifest"] = manifest
    manifest["apiVersion"] = "other.io/v1"
    player = ScenarioPlayer(parse(yaml.safe_dump(text), "s.yaml"), Path("s.yaml"))
    with pytest.raises(UsageError, match=r"Deployment \(other.io/v1\) web has a pod template at"):
        asked(player)


def test_of_a_command_the_question_says_that_its_pods_are_its_own_to_place() -> None:
    question, _ = asked(None, command=("true",))
    assert "$FLEET_NODE_SELECTOR" in question
    assert "REAL machines" in question
    target = SimpleNamespace(kubeconfig=None, local=None)
    environment = environment_of(cast("Any", target), Path("here"), "r1")
    assert environment[NODE_SELECTOR] == "fleet.emulator/run=r1"
    assert NODE_SELECTOR not in environment_of(cast("Any", target), Path("here"), "")


def test_command_gets_no_token_of_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEET_BOOTSTRAP_TOKEN", "FLEET_DASHBOARD_TOKEN"):
        monkeypatch.setenv(name, "abcdef.0123456789abcdef")
    monkeypatch.setenv("FLEET_NODES", "7")
    target = SimpleNamespace(kubeconfig=None, local=None)
    environment = environment_of(cast("Any", target), Path("here"), "r1")
    assert "abcdef.0123456789abcdef" not in environment.values()
    assert environment["FLEET_NODES"] == "7"
    assert "REAL" not in asked(None)[0]


@pytest.mark.parametrize(
    ("manage", "found"), [("a=b, c == d", {"a": "b", "c": "d"}), ("a=", {"a": ""})]
)
def test_nodes_that_fleet_serves_are_found_by_their_labels(
    manage: str, found: dict[str, str]
) -> None:
    found = {OPT_IN_LABEL: "true", **found}
    assert node_selector(Settings.from_options(manage=manage), "r1") == found
    player = of("gpu-cluster")
    asked(player, manage=manage)
    assert all(found.items() <= each["nodeSelector"].items() for each in templates(player))


@pytest.mark.parametrize("manage", ["a in (b, c)", "a", "!a", "a!=b"])
def test_nodes_that_no_labels_name_take_no_pods_of_a_scenario(manage: str) -> None:
    with pytest.raises(UsageError, match=r"--manage .*: the scenario's pods need labels"):
        asked(of("gpu-cluster"), manage=manage)
    asked(of("steady-5k"), manage=manage)  # it creates no pods
    asked(of("gpu-cluster"), manage=manage, real_nodes=True)
