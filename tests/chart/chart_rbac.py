"""Writes the chart's RBAC from the table that fleet's preflight checks: `make chart-rbac`.

The file maps what a run may be (`own`, `IDENTITY/FIDELITY`, with `+FEATURE` for what that adds) to
rules by namespace; `cluster` stands for all of them, and NODE in `resourceNames` for the names of
the nodes. `users` is for API users. `bindings` let bootstrap tokens become nodes. `+kubeProxy` is
what it takes to be the agent of the shipped profiles, `kubeProxy` who that is and what it may do.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml

from fleet.cluster.agent_access import impersonation_of, permissions_of
from fleet.cluster.identity import (
    Features,
    Identity,
    Impersonation,
    Permission,
    impersonation_permissions,
    narrowed,
    node_permissions,
    optional_permissions,
    own_permissions,
)
from fleet.cluster.rbac import Rule, rules
from fleet.controlplane.options import NODE_BINDINGS
from fleet.dashboard.dashboard import EVERYWHERE, IN_NAMESPACE
from fleet.profile.agent_behavior import SERVICE_ACCOUNT_USER, AgentModel
from fleet.profile.loader import mix_of
from fleet.profile.settings import Fidelity, IdentityMode, Settings

CHART = Path(__file__).parents[2] / "charts" / "fleet"
FILE = CHART / "files" / "rbac.yaml"
HEADER = "# Written by `make chart-rbac` from fleet/cluster/identity.py; do not edit.\n"
CLUSTER = "cluster"
ANY_NODE = "NODE"  # no name that an object can have
FEATURES = {
    "storage": Features(storage=True),
    "staticPods": Features(static_pods=True),
    "dynamicResources": Features(dynamic_resources=True),
    "polledObjects": Features(polled_objects=True),
    "approveCsrs": Features(approve_csrs=True),
    "serves": Features(serves=True),
}
IDENTITIES = {
    "impersonate": Identity(IdentityMode.IMPERSONATE, Impersonation.USER),
    "impersonate-legacy": Identity(IdentityMode.IMPERSONATE, Impersonation.USER_AND_GROUP),
    "csr": Identity(IdentityMode.CSR),
    "shared": Identity(IdentityMode.SHARED),
}
CSR_LEGACY = "csr-legacy"
"""Nodes are themselves, but agents are impersonated, here by the grant of servers before 1.36."""
AGENTS = {
    **{name: identity.impersonation for name, identity in IDENTITIES.items()},
    "csr": Impersonation.USER,
    CSR_LEGACY: Impersonation.USER_AND_GROUP,
}
"""By identity, how agents are impersonated."""


def of_nodes(identity: Identity, features: Features) -> list[Permission]:
    """Return what it takes to be, or to act for, the nodes."""
    granted = impersonation_permissions(identity.impersonation)
    return [*granted, *node_permissions(identity, features)]


def kube_proxy() -> AgentModel:
    """Return the agent that the shipped profiles have."""
    [agent] = mix_of(Settings()).models[0].agents
    return agent


def of_agent(name: str) -> list[Permission]:
    """Return what it takes to be kube-proxy, or with the identity `shared` to act for it."""
    if name == "shared":
        return permissions_of(kube_proxy())
    return impersonation_of([kube_proxy()], AGENTS[name])


def named(permissions: list[Permission]) -> list[Rule]:
    """Return rules for one node, in whose place the chart puts the names of all."""
    return rules(narrowed(permissions, [ANY_NODE]))


def grants() -> Iterator[tuple[str, list[Permission]]]:
    """Yield each part of the table with its name; none gives what another one gives already."""
    own = own_permissions(Features())
    yield "own", own
    yield "own+storage", beyond(own, own_permissions(Features(storage=True)))
    yield "own+records", optional_permissions(Features(keeps_records=True))
    for name, identity in IDENTITIES.items():
        for fidelity in Fidelity:
            base = beyond(own, of_nodes(identity, Features(fidelity)))
            yield f"{name}/{fidelity}", base
            for feature, features in FEATURES.items():
                more = of_nodes(identity, features._replace(fidelity=fidelity))
                more += optional_permissions(features)
                yield f"{name}/{fidelity}+{feature}", beyond([*own, *base], more)
            yield f"{name}/{fidelity}+kubeProxy", beyond([*own, *base], of_agent(name))
    for fidelity in Fidelity:
        yield f"{CSR_LEGACY}/{fidelity}+kubeProxy", of_agent(CSR_LEGACY)


def beyond(base: list[Permission], more: list[Permission]) -> list[Permission]:
    return [each for each in more if each not in base]


def by_namespace(permissions: list[Permission]) -> dict[str, list[Rule]]:
    return {
        namespace or CLUSTER: named([each for each in permissions if each.namespace == namespace])
        for namespace in dict.fromkeys(each.namespace for each in permissions)
    }


def text() -> str:
    found: dict[str, object] = {name: by_namespace(each) for name, each in grants()}
    namespace, _, account = kube_proxy().user.removeprefix(SERVICE_ACCOUNT_USER).partition(":")
    found["kubeProxy"] = {
        "account": {"kind": "ServiceAccount", "name": account, "namespace": namespace},
        "rules": by_namespace(permissions_of(kube_proxy())),
    }
    found["users"] = {CLUSTER: rules(EVERYWHERE), "namespace": rules(IN_NAMESPACE)}
    found["bindings"] = [list(binding) for binding in NODE_BINDINGS]
    shown = yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=100)
    return HEADER + str(shown)


if __name__ == "__main__":
    FILE.write_text(text())
