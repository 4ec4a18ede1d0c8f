"""The rights that the chart gives, against what others say: the API server, and a list by hand.

test_chart.py compares them with the table that they are made of, which finds no wrong row.
"""

import itertools
from typing import Any

import pytest
from e2e.e2e_world import World

from chart.helm_commands import RELEASE, Helm
from chart.test_chart import permissions
from fleet.profile.settings import Fidelity

pytest_plugins = ("e2e.e2e_fixtures", "chart.chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Json = dict[str, Any]
ON_NODE = "impersonate-on:arbitrary-node:"
KUBELET_ROLES = ("system:node", "system:basic-user")
"""What Kubernetes grants a kubelet. Source: pkg/auth/authorizer/rbac/bootstrappolicy/policy.go."""
SLICES = {(verb, "resource.k8s.io", "resourceslices") for verb in ("create", "list", "watch")}
"""Its own a node may have without a rule. Source: node_authorizer.go, authorizeResourceSlice."""
READS = {"get", "list", "watch"}
OWN_WRITES = {
    ("patch", "nodes"),
    ("delete", "nodes"),
    ("delete", "pods"),
    ("delete", "csinodes"),
    ("create", "leases"),
    ("update", "leases"),
    ("delete", "leases"),
    ("create", "configmaps"),
    ("update", "configmaps"),
    ("delete", "configmaps"),
    ("patch", "statefulsets/scale"),
}
"""By hand, since all else is made of one table: what fleet changes under its own name."""


def given_by(helm: Helm, **values: object) -> set[tuple[str, str, str]]:
    """Return verb, group and resource of all that the chart grants."""
    found = permissions(helm.objects(dict(values), "--kube-version=1.36.3"), RELEASE)
    return {
        (each.verb, each.group, "/".join(filter(None, (each.resource, each.subresource))))
        for each in found
    }


OF_1_37 = {(verb, "certificates.k8s.io", "podcertificaterequests") for verb in ("list", "watch")}
"""What kubelets have since 1.37: system:node of an older server does not grant it."""


@pytest.mark.parametrize("fidelity", list(Fidelity))
def test_nodes_are_granted_no_more_than_kubelets_have(
    world: World, bare_helm: Helm, fidelity: Fidelity
) -> None:
    rights: Json = {"staticPods": True, "dynamicResources": True, "polledObjects": True}
    given = given_by(bare_helm, fidelity=str(fidelity), rbac=rights)
    ours = {(verb.removeprefix(ON_NODE), *of) for verb, *of in given if verb.startswith(ON_NODE)}
    theirs = {
        each
        for role in KUBELET_ROLES
        for rule in world.get("clusterroles", role)["rules"]
        for each in itertools.product(
            rule["verbs"], rule.get("apiGroups", ()), rule.get("resources", ())
        )
    }
    assert len(ours) > 10
    assert ours <= theirs | SLICES | OF_1_37, ours - theirs


def test_kube_proxy_is_granted_no_more_than_kubernetes_grants_it(
    world: World, bare_helm: Helm
) -> None:
    found = permissions(bare_helm.objects({}, "--kube-version=1.36.3"), "kube-proxy")
    ours = {(each.verb, each.group, each.resource) for each in found}
    theirs = {
        each
        for rule in world.get("clusterroles", "system:node-proxier")["rules"]
        for each in itertools.product(rule["verbs"], rule["apiGroups"], rule["resources"])
    }
    assert len(ours) == 9
    assert ours <= theirs, ours - theirs
    as_it = {
        each for each in given_by(bare_helm) if each[0].startswith("impersonate-on:serviceaccount:")
    }
    said = {(verb.rpartition(":")[2], *of) for verb, *of in as_it}
    reviews = {("create", "authentication.k8s.io", "selfsubjectreviews")}
    reviews |= {("create", "authorization.k8s.io", "selfsubjectaccessreviews")}
    assert said == ours | reviews


def test_fleet_itself_changes_what_is_written_down_here(bare_helm: Helm) -> None:
    given = {
        (verb, of) for verb, _, of in given_by(bare_helm) if not verb.startswith("impersonate")
    }
    assert {each for each in given if each[0] not in READS} == OWN_WRITES
    assert not {each for each in given if "*" in each}
    assert not {of for _, of in given if of == "secrets"}
