"""Every right that the chart gives is one that fleet's preflight misses when it is taken away."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.e2e_world import World, eventually

from chart.chart_rbac import IDENTITIES, kube_proxy
from chart.chart_release import OF_RELEASE, WITHOUT_CONSTRAINED_IMPERSONATION, another_world
from chart.helm_commands import NAMESPACE, RELEASE, Helm
from chart.played_node import Server
from chart.test_chart import OF_PODS
from fleet.cluster.agent_access import NAME, check_agents
from fleet.cluster.api_client import Cluster
from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.identity import (
    Features,
    authorize,
    check_permissions,
    optional_permissions,
)
from fleet.cluster.rbac import rules as rules_of
from fleet.errors import SetupError
from fleet.profile.settings import Fidelity

pytest_plugins = ("e2e.e2e_fixtures", "chart.chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Json = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
NAMES = tuple(f"{RELEASE}-0000-{slot:05d}" for slot in (0, 4))
"""The first and the last of a pod."""
ALL = [(name, fidelity) for name in IDENTITIES for fidelity in Fidelity]


class Granted:
    """The chart's account with the chart's rights, and nothing of a fleet."""

    def __init__(
        self, world: World, values: Json, helm: Helm, path: Path, features: Features
    ) -> None:
        self.objects = [each for each in helm.objects(values) if each["kind"] in KINDS]
        world.kubectl("create", "namespace", NAMESPACE, check=False)
        world.apply(*self.objects)
        self._server = Server(world.info.token_kubeconfig)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{RELEASE}/token"
        token = self._server.ask("POST", account, {"spec": {"expirationSeconds": 3600}})
        self._kubeconfig = world.user(path, token["status"]["token"])
        chosen = values["identity"]
        mode = chosen["mode"] if isinstance(chosen, dict) else chosen
        self._mode = IDENTITIES[mode].mode
        self._features = features

    def roles(self) -> Iterator[tuple[str, list[Json]]]:
        """Yield path and rules of each role."""
        for each in self.objects:
            if "rules" in each:
                metadata = each["metadata"]
                place = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
                kind = each["kind"].lower() + "s"
                yield f"{RBAC}{place}/{kind}/{metadata['name']}", each["rules"]

    def write(self, path: str, rules: list[Json]) -> None:
        self._server.ask("PATCH", path, {"rules": rules})

    def refusal(self) -> str:
        """Return what preflight says, "" if nothing."""

        async def look() -> None:
            async with await Cluster.connect(
                ClusterSelection(kubeconfig=self._kubeconfig)
            ) as found:
                api = found.api("preflight")
                identity = await authorize(api, self._mode, NAMES, self._features)
                if self._features.fidelity is Fidelity.KUBELET:
                    await check_agents(api, identity, [kube_proxy()], NAMES[0])
                await check_permissions(api, OF_PODS)

        try:
            asyncio.run(look())
        except SetupError as error:
            return str(error)
        return ""


RECORDS = rules_of(optional_permissions(Features(keeps_records=True)))


def smaller(rules: list[Json], *, by_verb: bool) -> Iterator[list[Json]]:
    """Yield the rules without one of them, or without one verb on one resource."""
    for at, rule in enumerate(rules):
        if rule in RECORDS:  # a run goes on without them
            continue
        rest = rules[:at] + rules[at + 1 :]
        if not by_verb:
            yield rest
            continue
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                others = {**rule, "resources": [r for r in rule["resources"] if r != resource]}
                same = {**rule, "resources": [resource]}
                same["verbs"] = [v for v in rule["verbs"] if v != verb]
                yield rest + [
                    each for each in (others, same) if each["resources"] and each["verbs"]
                ]


def miss_each_right(granted: Granted, *, by_verb: bool) -> None:
    """Take each right away once: preflight must refuse, and must not once it is back."""
    eventually(lambda: not granted.refusal(), "the rights are there")
    taken = 0
    for path, rules in granted.roles():
        for fewer in smaller(rules, by_verb=by_verb):
            granted.write(path, fewer)
            eventually(granted.refusal, f"{path} misses {rules} less {fewer}")
            taken += 1
        granted.write(path, rules)
        eventually(lambda: not granted.refusal(), "the rights are back")
    assert taken > 8


@pytest.fixture
def grants(world: World, helm: Helm, tmp_path: Path) -> Iterator[Callable[..., Granted]]:
    def grant(values: Json, features: Features) -> Granted:
        # Of a run that was this server's own: it would give kube-proxy what the chart is to give.
        for kind in ("clusterrolebinding", "clusterrole"):
            world.kubectl("delete", kind, f"{NAME}{kube_proxy().name}", "--ignore-not-found")
        return Granted(world, values, helm, tmp_path / "account", features)

    yield grant
    kinds = "clusterrole,clusterrolebinding,role,rolebinding,serviceaccount"
    world.kubectl("delete", kinds, "-A", "-l", OF_RELEASE, check=False)


@pytest.mark.parametrize(
    ("identity", "fidelity", "by_verb"),
    [
        ("impersonate", Fidelity.KUBELET, False),
        *(
            pytest.param(name, fidelity, True, marks=pytest.mark.slow)
            for name, fidelity in ALL
            if not name.endswith("-legacy")  # this server knows the new grant
        ),
    ],
)
def test_a_right_that_is_taken_away_is_missed(
    grants: Callable[..., Granted], identity: str, fidelity: Fidelity, *, by_verb: bool
) -> None:
    values: Json = {"identity": identity, "fidelity": str(fidelity), "csr": {"tokenSecret": "t"}}
    miss_each_right(grants(values, Features(fidelity)), by_verb=by_verb)


@pytest.mark.slow
def test_a_right_of_a_feature_is_missed(grants: Callable[..., Granted]) -> None:
    values = {
        "identity": "csr",
        "csr": {"tokenSecret": "t", "approve": True},
        "rbac": dict.fromkeys(("storage", "staticPods", "dynamicResources", "polledObjects"), True),
    }
    features = Features(
        storage=True,
        static_pods=True,
        dynamic_resources=True,
        polled_objects=True,
        approve_csrs=True,
    )
    miss_each_right(grants(values, features), by_verb=True)


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("fidelity", list(Fidelity))
def test_a_right_on_an_older_server_is_missed(tmp_path: Path, fidelity: Fidelity) -> None:
    with another_world(tmp_path / "old", WITHOUT_CONSTRAINED_IMPERSONATION) as old:
        helm = Helm(tmp_path / "helm", old.info.token_kubeconfig)
        granted = Granted(
            old,
            {
                "fidelity": str(fidelity),
                "identity": {"mode": "impersonate", "allowBroadImpersonation": True},
                "rbac": {"legacyImpersonation": "always"},
            },
            helm,
            tmp_path / "account",
            Features(fidelity),
        )
        miss_each_right(granted, by_verb=True)
