"""Every right that the chart gives is one that fleet's preflight misses when it is taken away."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_rbac import IDENTITIES
from e2e_world import World, eventually
from helm_commands import NAMESPACE, RELEASE, Helm
from played_node import Server
from test_chart import OF_PODS

from fleet.cluster import Cluster, ClusterSelection
from fleet.config import Fidelity
from fleet.errors import SetupError
from fleet.identity import Features, authorize, check_permissions

pytest_plugins = ("e2e_fixtures", "chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

Json = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
ALL = [(name, fidelity) for name in IDENTITIES for fidelity in Fidelity]


class Granted:
    """The chart's account with the chart's rights, and nothing of a fleet."""

    def __init__(self, world: World, values: Json, helm: Helm, path: Path) -> None:
        self.objects = [each for each in helm.objects(values) if each["kind"] in KINDS]
        world.kubectl("create", "namespace", NAMESPACE, check=False)
        world.apply(*self.objects)
        self._server = Server(world.info.token_kubeconfig)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{RELEASE}/token"
        token = self._server.ask("POST", account, {"spec": {"expirationSeconds": 3600}})
        self._kubeconfig = world.user(path, token["status"]["token"])
        self._values = values

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
        name, fidelity = self._values["identity"], Fidelity(self._values["fidelity"])

        async def look() -> None:
            async with await Cluster.connect(
                ClusterSelection(kubeconfig=self._kubeconfig)
            ) as found:
                api = found.api("preflight")
                mode = IDENTITIES[name].mode
                await authorize(api, mode, f"{RELEASE}-0000-00000", Features(fidelity))
                await check_permissions(api, OF_PODS)

        try:
            asyncio.run(look())
        except SetupError as error:
            return str(error)
        return ""


def smaller(rules: list[Json], *, by_verb: bool) -> Iterator[list[Json]]:
    """Yield the rules without one of them, or without one verb on one resource."""
    for at, rule in enumerate(rules):
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
    world: World, helm: Helm, tmp_path: Path, identity: str, fidelity: Fidelity, *, by_verb: bool
) -> None:
    values: Json = {"identity": identity, "fidelity": str(fidelity), "csr": {"tokenSecret": "t"}}
    granted = Granted(world, values, helm, tmp_path / "account")
    try:
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
    finally:
        kinds = "clusterrole,clusterrolebinding,role,rolebinding"
        managed = "app.kubernetes.io/instance=fleet"
        world.kubectl("delete", kinds, "-A", "-l", managed, check=False)
        for namespace in ("default", "kube-node-lease", NAMESPACE):
            account = ("role,rolebinding,serviceaccount", "-l", managed)
            world.kubectl("delete", *account, "-n", namespace, check=False)
