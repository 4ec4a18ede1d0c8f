"""The roles of agents, and profiles that name them."""

import asyncio
from pathlib import Path

import pytest
from cluster_fakes import FakeApi

from fleet.cluster.agent_access import agents_of, grant, manifests
from fleet.errors import SetupError, UsageError
from fleet.objects.well_known import ROLES
from fleet.profile.loader import NodeMix, load_mix
from fleet.profile.option_types import ProfileChoice

HEAD = "apiVersion: fleet.emulator/v1alpha1\nkind: {}\nmetadata: {{name: {}}}\nspec: {}\n"
OWN = HEAD.format("NodeAgent", "own", "{userAgent: o, user: 'system:node:{{node}}', reads: %s}")
OWN %= "[{resource: pods}]"


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
    profile = HEAD.format("NodeProfile", "p", "{agents: [{name: kube-proxy}]}")
    agents = agents_of(mix_of(tmp_path, profile, OWN).models)
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
    profile = HEAD.format("NodeProfile", "p", "{agents: [{name: kube-proxy}]}")
    mix = mix_of(tmp_path, profile, OWN)
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
