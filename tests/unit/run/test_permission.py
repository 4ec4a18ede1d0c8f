"""What is told, refused and arranged before a run may load a cluster that others use."""

import asyncio
import copy
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from world.cluster_fakes import FakeApi

from fleet.cli import cli
from fleet.cluster.api_client import Cluster
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.cluster.preflight import TargetFacts
from fleet.errors import SetupError, UsageError
from fleet.k8s.well_known import OPT_IN_LABEL
from fleet.profile.loader import mix_of
from fleet.profile.settings import Settings
from fleet.report.display import Display
from fleet.run.permission import how_to_grant, may_load, node_selector
from fleet.run.scenario_player import ScenarioPlayer
from fleet.run.user_command import NODE_SELECTOR, environment_of
from fleet.scenario.scenario import load, parse, shipped

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("user", "options", "command"),
    [
        ("jane@example.com", {}, "--user jane@example.com"),
        ("", {}, "--user YOUR_USER"),
        (
            "system:serviceaccount:load:fleet",
            {"identity": "csr", "bootstrap_kubeconfig": Path(__file__), "approve_csrs": True},
            "--service-account load/fleet --identity=csr --approve-csrs",
        ),
        (
            "a b",
            {"profile": ("default", "gpu")},
            "--user 'a b' --profile=default=1 --profile=gpu=1",
        ),
    ],
)
def test_the_command_that_grants_what_is_missing(
    user: str, options: dict[str, object], command: str
) -> None:
    api = FakeApi()
    api.user = user
    told = asyncio.run(how_to_grant(api, Settings.from_options(**options)))
    assert told.endswith(f"fleet rbac {command} | kubectl apply -f -")
    _, *words = shlex.split(told.partition("with: ")[2].partition(" |")[0])
    assert cli.commands["rbac"].make_context("rbac", words[1:]).params


class NotedDisplay(Display):
    """Notes what a person sees, in order."""

    def __init__(self) -> None:
        super().__init__(is_quiet=True)
        self.seen: list[str] = []

    def pause(self) -> None:
        self.seen.append("pause")

    def start(self) -> None:
        self.seen.append("start")

    def note(self, line: str) -> None:
        self.seen.append(line)


class Target:
    """A cluster with one machine that fleet did not create, and a person who answers."""

    def __init__(self, *foreign: str, answer: bool | None = True) -> None:
        self.api = FakeApi()
        self.api.put("/api/v1/namespaces/kube-system", metadata={"uid": "system-uid"})
        for name in foreign or ("machine",):
            self.api.put(f"{NODES}/{name}", spec={})
        self.display = NotedDisplay()
        self._answer = answer  # None: no terminal

    async def _ask(self, question: str) -> bool:
        self.display.seen.append(question)
        return bool(self._answer)

    def may_load(self, player: ScenarioPlayer | None = None, **options: object) -> TargetFacts:
        """Ask whether a run may load the cluster; nothing is written, whatever the answer."""
        settings = Settings.from_options(**{"nodes": 50, "context": "prod", **options})
        cluster = SimpleNamespace(
            api=lambda _purpose: self.api,
            credentials=SimpleNamespace(route="https://api.example", context="prod"),
            version="v1.36.3",
        )
        ask = None if self._answer is None else self._ask
        mix = mix_of(settings)
        try:
            return asyncio.run(
                may_load(cast("Cluster", cluster), settings, mix, "r1", self.display, ask, player)
            )
        finally:
            assert {method for method, _ in self.api.log} == {"GET"}


def asked(player: ScenarioPlayer | None, **options: object) -> str:
    """Return what a person reads who is asked whether a run may load a shared cluster."""
    target = Target()
    target.may_load(player, **options)
    pause, *_notes, question, start = target.display.seen
    assert (pause, start) == ("pause", "start"), "the question has the terminal for itself"
    return question


@pytest.mark.parametrize("name", ["prod", "system-uid"])
@pytest.mark.parametrize("answer", [None, False, True])
def test_the_name_of_a_shared_cluster_confirms_it(name: str, *, answer: bool | None) -> None:
    """With a terminal nobody is asked; either way the log says what will happen."""
    target = Target(answer=answer)
    assert target.may_load(confirm_cluster=name).is_shared
    pause, notice, start = target.display.seen
    assert (pause, start) == ("pause", "start")
    assert "This is a SHARED cluster" in notice


@pytest.mark.parametrize("shared", [None, True, False])
@pytest.mark.parametrize("answer", [None, False, True])
def test_another_name_is_refused_on_every_cluster(
    *, shared: bool | None, answer: bool | None
) -> None:
    target = Target(answer=answer)
    with pytest.raises(UsageError, match=r"--confirm-cluster staging: this is prod"):
        target.may_load(confirm_cluster="staging", shared=shared)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(None, "shared cluster .* confirm with --confirm-cluster prod$"), (False, "^not confirmed")],
)
def test_a_shared_cluster_that_nobody_confirms_is_refused(
    *, answer: bool | None, said: str
) -> None:
    target = Target(answer=answer)
    with pytest.raises(UsageError, match=said):
        target.may_load()
    shown = [each for each in target.display.seen if "This is a SHARED cluster" in each]
    assert len(shown) == 1, "once: in the question, or in the log where nobody is asked"
    assert "start" not in target.display.seen


def test_a_cluster_that_is_not_shared_needs_no_answer() -> None:
    """`shared` is what the first of many processes has found."""
    for answer in (None, False):
        target = Target(answer=answer)
        assert not target.may_load(shared=False).is_shared
        assert target.display.seen == ["pause", "start"]
    assert Target(answer=True).may_load(context=None, shared=True).is_shared


@pytest.mark.parametrize(
    ("options", "taken", "free"),
    [
        ({"nodes": 3}, "fleet-00002", "fleet-00003"),
        ({"nodes": 4, "processes": 2}, "fleet-0001-00001", "fleet-0001-00002"),
    ],
)
def test_a_node_of_others_with_a_name_of_the_run_stops_it(
    options: Json, taken: str, free: str
) -> None:
    assert Target(free).may_load(**options).foreign_names == {free}
    with pytest.raises(SetupError, match=rf"have names that this run would use \({taken}, "):
        Target(taken).may_load(**options)


def test_nodes_that_fleet_only_serves_may_have_any_name() -> None:
    assert Target("fleet-00002").may_load(manage="a=b").foreign_names == {"fleet-00002"}


def test_the_question_counts_the_pods_of_daemonsets_on_all_nodes_of_the_run() -> None:
    """Each profile has its share of the nodes, and at least one."""
    for nodes, profiles, pods in (
        (50, (), 50),
        (50, ("default", "gpu"), 50),
        (1, ("default", "gpu"), 2),
    ):
        target = Target()
        spec = {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}
        path = "/apis/apps/v1/namespaces/d/daemonsets/agent"
        target.api.put(path, metadata={"namespace": "d"}, spec=spec)
        found = target.may_load(nodes=nodes, profile=profiles)
        assert found.daemon_pods == pods
        assert f"makes {pods:,} more pods" in target.display.seen[1]
        assert not target.may_load(nodes=nodes, manage="a=b").landings, "they are there already"


def test_nodes_that_their_owner_does_not_opt_in_are_named() -> None:
    target = Target()
    for name, opt_in in (("in", {OPT_IN_LABEL: "true"}), ("out", {})):
        target.api.put(f"{NODES}/{name}", metadata={"labels": {"pool": "fake", **opt_in}})
    target.may_load(manage="pool=fake")
    _pause, note, question, _start = target.display.seen
    assert note.startswith("1 Nodes match pool=fake without the label")
    assert ": out left alone" in note
    assert "of 1 now" in question
    assert "creates and deletes no Node here" in question


def test_only_a_run_with_nodes_of_its_own_adds_nodes() -> None:
    assert "will get    at most 50 nodes fleet-*" in asked(None)
    assert "Only pods that tolerate the taint fleet.emulator/fake" in asked(None)
    assert "--no-taint: ANY pod of this cluster" in asked(None, no_taint=True)


def of(name: str) -> ScenarioPlayer:
    return ScenarioPlayer(load(shipped()[name]), shipped()[name])


def templates(player: ScenarioPlayer) -> list[Json]:
    manifests = [cast("Json", made) for each in player._manifests.values() for made in each]
    return [made["spec"].get("template", made)["spec"] for made in manifests if "spec" in made]


def test_pods_of_a_scenario_stay_on_nodes_of_the_run_and_the_question_says_how_many() -> None:
    player = of("gpu-cluster")
    question = asked(player)
    assert {each["nodeSelector"][RUN_LABEL] for each in templates(player)} == {"r1"}
    assert "- Pods of the scenario run on nodes with fleet.emulator/run=r1 only." in question
    assert "    1 x Deployment train: 400 pods, each nvidia.com/gpu 1, together nv" in question


def test_real_nodes_are_given_to_them_only_by_that_name() -> None:
    player = of("gpu-cluster")
    question = asked(player, real_nodes=True)
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
    question = asked(None, command=("true",))
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
    assert "REAL" not in asked(None)


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
