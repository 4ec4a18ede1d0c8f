"""The roles of agents, and profiles that name them."""

import asyncio
from pathlib import Path

import pytest
from world.cluster_fakes import FakeApi

from fleet.cluster.agent_access import agents_of, grant, manifests, prepare_agents
from fleet.cluster.identity import ACCESS_REVIEW, Identity, Permission
from fleet.errors import DeniedError, SetupError, UsageError
from fleet.k8s.well_known import ROLES
from fleet.profile.loader import NodeMix, load_mix
from fleet.profile.option_types import ProfileChoice
from fleet.profile.settings import IdentityMode

HEAD = "apiVersion: fleet.emulator/v1alpha1\nkind: {}\nmetadata: {{name: {}}}\nspec: {}\n"
OWN = HEAD.format("NodeAgent", "own", "{userAgent: o, user: 'system:node:{{node}}', reads: %s}")
OWN %= "[{resource: pods}]"
KUBE_PROXY = HEAD.format("NodeProfile", "p", "{agents: [{name: kube-proxy}]}")


def mix_of(tmp_path: Path, *texts: str) -> NodeMix:
    path = tmp_path / "p.yaml"
    path.write_text("---\n".join(texts))
    return load_mix((ProfileChoice(str(path)),))


def test_a_profile_names_shipped_agents_and_those_of_its_file(tmp_path: Path) -> None:
    profile = HEAD.format("NodeProfile", "p", "{agents: [{name: kube-proxy, share: 0.5}]}")
    mix = mix_of(tmp_path, profile, OWN)
    assert [(each.name, each.share) for each in mix.model_of(0).agents] == [
        ("kube-proxy", 0.5),
        ("own", 1.0),
    ]
    assert mix.agents_per_node == 1.5


def test_an_unknown_agent_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"agents\[0\].name: no agent 'kube-prox' \(did you mean"):
        mix_of(tmp_path, HEAD.format("NodeProfile", "p", "{agents: [{name: kube-prox}]}"))
    with pytest.raises(UsageError, match="agents name one agent twice"):
        mix_of(tmp_path, HEAD.format("NodeProfile", "p", "{agents: [{name: a}, {name: a}]}"))


def test_a_role_of_another_s_making_is_not_overwritten(tmp_path: Path) -> None:
    agents = agents_of(mix_of(tmp_path, KUBE_PROXY, OWN).models)
    api = FakeApi()
    asyncio.run(grant(api, agents))
    asyncio.run(grant(api, agents))  # by the run after
    role = f"{ROLES}/fleet:agent:kube-proxy"
    del api.objects[role]["metadata"]["labels"]
    api.objects[role]["rules"] = []
    with pytest.raises(SetupError, match="ClusterRole fleet:agent:kube-proxy is not one that fle"):
        asyncio.run(grant(api, agents))
    assert api.objects[role]["rules"] == []


def test_roles_are_what_agents_ask(tmp_path: Path) -> None:
    mix = mix_of(tmp_path, KUBE_PROXY, OWN)
    role, binding = manifests(agents_of(mix.models))  # who acts as its node has rights already
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "namespace": "kube-system", "name": "kube-proxy"}
    ]
    granted = {(rule["apiGroups"][0], rule["resources"][0]) for rule in role["rules"]}
    assert granted == {
        ("", "nodes"),
        ("", "services"),
        ("discovery.k8s.io", "endpointslices"),
        ("networking.k8s.io", "servicecidrs"),
        ("events.k8s.io", "events"),
    }


def test_light_has_no_optional_agent_unless_it_is_asked_for() -> None:
    def agents(*names: str, is_light: bool) -> list[tuple[str, bool]]:
        choices = tuple(ProfileChoice(each) for each in names)
        [model] = load_mix(choices, is_light=is_light).models
        return [(each.name, each.optional) for each in model.agents]

    assert agents("default", is_light=False) == [("kube-proxy", True)]
    assert agents("default", is_light=True) == []
    assert agents("default", "kube-proxy", is_light=True) == [("kube-proxy", False)]
    assert agents("default", "kube-proxy", is_light=False) == [("kube-proxy", False)]


def test_an_optional_agent_without_rights_is_left_out_and_told(tmp_path: Path) -> None:
    profile = HEAD.format("NodeProfile", "p", "{agents: [{name: kube-proxy, optional: %s}]}")
    identity = Identity(IdentityMode.SHARED)
    denied = Permission("watch", "discovery.k8s.io", "endpointslices")
    told: list[str] = []  # what each agent lacks that was left out

    def agents_left(*, optional: bool, may: bool) -> list[str]:
        api = FakeApi()
        api.denied = set() if may else {denied}
        mix = mix_of(tmp_path, profile % str(optional).lower(), OWN)
        lacking = asyncio.run(prepare_agents(api, identity, mix, "n", is_local=False))
        told.extend(f"{name}: {why}" for name, why in lacking.items())
        assert not [path for path in api.objects if "rbac" in path]
        return [each.name for each in mix.model_of(0).agents]

    assert agents_left(optional=True, may=True) == ["kube-proxy", "own"]
    assert not told
    assert agents_left(optional=True, may=False) == ["own"]
    assert told[0].startswith("kube-proxy: ")
    assert "watch endpointslices" in told[0]
    with pytest.raises(DeniedError, match="watch endpointslices"):
        agents_left(optional=False, may=False)


def test_an_optional_agent_is_asked_about_before_it_is_impersonated(tmp_path: Path) -> None:
    """A refusal is in the server's audit log for good."""
    profile = HEAD.format("NodeProfile", "p", "{agents: [{name: kube-proxy, optional: true}]}")
    user = "kube-proxy"
    api, mix = FakeApi(), mix_of(tmp_path, profile)
    api.denied = {
        Permission("impersonate", "", "serviceaccounts", namespace="kube-system", name=user),
        Permission(
            *("impersonate:serviceaccount", "authentication.k8s.io", "serviceaccounts"),
            namespace="kube-system",
            name=user,
        ),
    }
    identity = Identity(IdentityMode.IMPERSONATE)
    lacking = asyncio.run(prepare_agents(api, identity, mix, "n", is_local=False))
    assert not mix.model_of(0).agents
    assert "impersonate:serviceaccount" in str(lacking[user])
    assert {path for _, path in api.log} == {ACCESS_REVIEW}


def test_roles_that_are_there_already_are_not_written_again(tmp_path: Path) -> None:
    agents = agents_of(mix_of(tmp_path, KUBE_PROXY).models)
    api = FakeApi()
    asyncio.run(grant(api, agents))
    asyncio.run(grant(api, agents))
    assert not [path for method, path in api.log if method == "PUT"]
    role = f"{ROLES}/fleet:agent:kube-proxy"
    api.objects[role]["rules"].pop()  # as an older fleet made it
    asyncio.run(grant(api, agents))
    assert [path for method, path in api.log if method == "PUT"] == [role]
