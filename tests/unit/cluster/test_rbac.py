"""The rules that `fleet rbac` prints are the rights that preflight asks for."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fleet.cli import cli
from fleet.cluster.api_client import Json
from fleet.cluster.identity import (
    Features,
    Identity,
    Impersonation,
    Permission,
    impersonation_permissions,
    node_permissions,
    optional_permissions,
    own_permissions,
)
from fleet.cluster.rbac import Subject, manifests, of_run, rules
from fleet.profile.loader import show_profile
from fleet.profile.settings import Fidelity, IdentityMode, Settings

IDENTITIES = [
    Identity(IdentityMode.IMPERSONATE, Impersonation.USER),
    Identity(IdentityMode.IMPERSONATE, Impersonation.USER_AND_GROUP),
    Identity(IdentityMode.CSR),
    Identity(IdentityMode.SHARED),
]
FEATURES = [
    Features(),
    Features(Fidelity.LIGHT),
    Features(own_watches=False),
    Features(Fidelity.LIGHT, own_watches=True),
    Features(storage=True, static_pods=True, dynamic_resources=True, approve_csrs=True),
    Features(polled_objects=True),
    Features(manages=True),
    Features(serves=True),
    Features(keeps_records=True),
]


def printed(*arguments: str) -> list[Json]:
    done = CliRunner().invoke(cli, ["rbac", *arguments], catch_exceptions=False)
    return [found for found in yaml.safe_load_all(done.output) if found]


def granted(objects: list[Json]) -> list[Permission]:
    """Return the rights that roles give."""
    found = []
    for role in objects:
        for rule in role.get("rules", ()):
            for resource in rule["resources"]:
                kind, _, sub = resource.partition("/")
                for name in rule.get("resourceNames", [""]):
                    (group,), space = rule["apiGroups"], role["metadata"].get("namespace", "")
                    found += [Permission(v, group, kind, sub, space, name) for v in rule["verbs"]]
    return found


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_is_granted_is_what_is_checked(identity: Identity, features: Features) -> None:
    objects = manifests("fleet", Subject("sa", "ns"), identity, features)
    checked = [
        *own_permissions(features),
        *node_permissions(identity, features),
        *impersonation_permissions(identity.impersonation),
    ]
    assert set(granted(objects)) == {*checked, *optional_permissions(features)}


def test_managed_and_served_nodes_take_rights_of_their_own() -> None:
    usual = set(granted(printed()))
    assert set(granted(printed("--manage", "pool=a"))) - usual == {
        Permission("watch", "coordination.k8s.io", "leases", namespace="kube-node-lease"),
        Permission("create", "", "events", namespace="default"),
    }
    served = set(granted(printed("--serve", "ports", "--serve-at", "10.0.0.1:10250"))) - usual
    name = "extension-apiserver-authentication"
    assert Permission("get", "", "configmaps", namespace="kube-system", name=name) in served


@pytest.mark.parametrize("identity", IDENTITIES)
def test_with_names_no_right_is_left_to_touch_another_node(identity: Identity) -> None:
    names = ["fleet-00000", "fleet-00001"]
    found = granted(manifests("fleet", Subject("sa", "ns"), identity, Features(), names))
    writes = {"patch", "delete", "update", "impersonate", "impersonate:arbitrary-node"}
    mine = {*names, *(f"system:node:{name}" for name in names), "system:nodes"}
    kinds = {"nodes", "csinodes", "users", "groups"}
    written = [p for p in found if p.verb in writes and p.resource in kinds]
    of_leases = [p for p in found if p.resource == "leases" and p.namespace == "kube-node-lease"]
    written += [p for p in of_leases if p.verb in writes]
    assert {"nodes", "csinodes", "leases"} <= {p.resource for p in written}
    assert {p.name for p in written} <= mine
    # What narrows asks for nothing more: all of it is in what is granted without names.
    broad = granted(manifests("fleet", Subject("sa", "ns"), identity, Features()))
    assert {p._replace(name="") for p in found} <= {p._replace(name="") for p in broad}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), {"fleet-run-fleet"}),
        (("--name-prefix=a-b", "--processes=3"), {f"fleet-run-a-b-000{n}" for n in range(3)}),
        (("--nodes=2500",), {"fleet-run-fleet"}),
    ],
)
def test_with_names_the_only_lease_in_default_is_that_of_the_run(
    options: tuple[str, ...], names: set[str]
) -> None:
    """Others guard the leader elections of whoever has them there."""
    found = granted(printed("--nodes=30", *options))
    leases = [p for p in found if (p.resource, p.namespace) == ("leases", "default")]
    assert {p.verb for p in leases if not p.name} == {"list", "create"}
    assert {p.name for p in leases if p.name} == names
    assert {p.verb for p in leases if p.name} == {"get", "update", "delete"}


def test_a_role_names_a_thousand_nodes_and_stays_small() -> None:
    """`kubectl apply` notes an object in an annotation, and those have 256 KiB."""
    prefix = "x" * 52
    objects = printed("--nodes=2500", f"--name-prefix={prefix}", "--processes=3")
    names = {p.name for p in granted(objects) if p.verb == "impersonate:arbitrary-node"}
    shares = [(0, 834), (1, 833), (2, 833)]
    assert names == {f"{prefix}-{a:04d}-{b:05d}" for a, of in shares for b in range(of)}
    assert max(len(json.dumps(each)) for each in objects) < 256 << 10
    roles = {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"}
    assert roles == {f"fleet{a}{b}" for a in ("", "-nodes") for b in ("", "-2", "-3")}


def test_every_role_is_bound_where_it_is() -> None:
    objects = printed("--service-account=load/generator", "--name=gen")
    roles = {
        (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace"))
        for each in objects
        if "rules" in each
    }
    bindings = [each for each in objects if "roleRef" in each]
    bound = {
        (each["roleRef"]["kind"], each["roleRef"]["name"], each["metadata"].get("namespace"))
        for each in bindings
    }
    assert roles == bound
    account = {"kind": "ServiceAccount", "name": "generator", "namespace": "load"}
    assert all(each["subjects"] == [account] for each in bindings)
    assert {name for _, name, _ in roles} == {"gen", "gen-nodes"}


def test_one_rule_holds_resources_of_one_name_only() -> None:
    """A rule with resourceNames narrows all its resources, so it must not swallow others."""
    found = rules(
        [Permission("get", "", "pods"), Permission("get", "", "pods", name="one")],
    )
    assert found == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": ["one"], "verbs": ["get"]},
    ]


def test_the_old_grant_never_gives_away_a_group_but_the_nodes() -> None:
    objects = printed("--legacy-impersonation", "--nodes=2", "--name-prefix=n")
    impersonated = {(p.resource, p.name) for p in granted(objects) if p.verb == "impersonate"}
    assert impersonated == {
        ("users", "system:node:n-00000"),
        ("users", "system:node:n-00001"),
        ("groups", "system:nodes"),
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--legacy-impersonation", "--identity=shared"], "--legacy-impersonation is for"),
        (["--legacy-impersonation"], "--legacy-impersonation needs --nodes"),
        (["--service-account=fleet"], "'fleet' is not NAMESPACE/NAME"),
        (["--profile=nonsense"], "nonsense"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["rbac", *arguments])
    assert said in str(done.exception)
    assert not done.output


@pytest.mark.parametrize(("strategy", "reads"), [("Watch", False), ("Cache", True), ("Get", True)])
def test_objects_may_be_read_where_the_profile_reads_them(
    tmp_path: Path, strategy: str, *, reads: bool
) -> None:
    profile = yaml.safe_load(show_profile("default"))
    configuration = profile["spec"].setdefault("kubeletConfiguration", {})
    configuration["configMapAndSecretChangeDetectionStrategy"] = strategy
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(profile))
    verbs = {
        fidelity: {
            permission.verb
            for permission in granted(
                printed(f"--profile={path}", "--identity=shared", f"--fidelity={fidelity}")
            )
            if permission.resource == "secrets" and not permission.namespace
        }
        for fidelity in Fidelity
    }
    assert verbs[Fidelity.KUBELET] == {"list", "watch"} | ({"get"} if reads else set())
    assert not verbs[Fidelity.LIGHT]


def test_agents_get_roles_and_fleet_the_right_to_be_them() -> None:
    settings = Settings.from_options(profile=("kube-proxy",))
    found = of_run("fleet", Subject("fleet", "fleet"), settings)
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in found}
    named = [each for each in found if each["metadata"].get("namespace") == "kube-system"]
    [role] = [each for each in named if each["kind"] == "Role"]
    assert role["metadata"]["name"] == "fleet-agents"
    to_be = {"resources": ["serviceaccounts"], "resourceNames": ["kube-proxy"]}
    assert role["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], **to_be, "verbs": ["impersonate:serviceaccount"]}
    ]
    on = "impersonate-on:serviceaccount:"
    watches = {"resources": ["endpointslices"], "verbs": [f"{on}list", f"{on}watch"]}
    rules = by_name["ClusterRole", "fleet-agents"]["rules"]
    assert {"apiGroups": ["discovery.k8s.io"], **watches} in rules
    old = of_run("fleet", Subject("fleet", "fleet"), settings, ["n"], is_legacy=True)
    [role] = [
        each for each in old if each["metadata"]["name"] == "fleet-agents" and "rules" in each
    ]
    assert role["rules"] == [{"apiGroups": [""], **to_be, "verbs": ["impersonate"]}]
    assert ("ClusterRole", "fleet:agent:kube-proxy") in by_name
    assert ("ClusterRoleBinding", "fleet:agent:kube-proxy") in by_name
    plain = of_run("fleet", Subject("fleet", "fleet"), Settings.from_options())
    assert not [each for each in plain if "agent" in each["metadata"]["name"]]
