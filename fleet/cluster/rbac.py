"""The least RBAC for a run, as YAML: printed from the very table that preflight checks.

Preflight does not check `optional_permissions`: without them a run does less, and says so.

    NAME          what fleet itself asks: preflight, the run's Lease, adoption, clean-up
    NAME-nodes    what it takes to be, or to act for, the nodes
    NAME-agents   the same for node agents; fleet:agent:AGENT is what each of them may do

Rights in one namespace become Roles there, the rest ClusterRoles. With certificates of their own
nodes need no right of fleet's user, but the cluster the three bindings that let a bootstrap token
become a node. Source: cmd/kubeadm/app/phases/bootstraptoken/node/tlsbootstrap.go.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import yaml

from fleet.cluster.agent_access import agents_of, impersonation_of, permissions_of
from fleet.cluster.agent_access import manifests as agent_manifests
from fleet.cluster.api_client import Json
from fleet.cluster.identity import (
    Features,
    Identity,
    Impersonation,
    Permission,
    features_of,
    impersonation_permissions,
    is_of_one_node,
    narrowed,
    node_permissions,
    optional_permissions,
    own_permissions,
)
from fleet.controlplane.options import NODE_BINDINGS
from fleet.errors import UsageError
from fleet.k8s import roles
from fleet.profile.loader import mix_of
from fleet.profile.settings import IdentityMode, Settings

NAMES_MAX = 1_000
"""Nodes that one role names. `kubectl apply` notes a whole object in an annotation of at most
256 KiB, and there are three lists of names of up to 63 characters in one.
"""
Rule = dict[str, list[str]]


class Subject(NamedTuple):
    """Who gets the rights: a ServiceAccount, or a user if there is no namespace."""

    name: str
    namespace: str = ""

    @classmethod
    def parse(cls, service_account: str, user: str | None) -> "Subject":
        """Read `NAMESPACE/NAME` or a user's name. Raises UsageError."""
        if user:
            return cls(user)
        namespace, _, name = service_account.partition("/")
        if not namespace or not name or "/" in name:
            raise UsageError(f"--service-account: {service_account!r} is not NAMESPACE/NAME")
        return cls(name, namespace)


def of_run(
    name: str,
    subject: Subject,
    settings: Settings,
    node_names: Sequence[str] = (),
    *,
    is_legacy: bool = False,
) -> list[Json]:
    """Return the objects for runs with these options, which the server is not asked about.

    Raises UsageError for options that do not go together.
    """
    mix = mix_of(settings)
    agents = [each for each in agents_of(mix.models) if not each.optional]
    acts = settings.identity is IdentityMode.IMPERSONATE
    if is_legacy and not acts and not (agents and settings.identity is IdentityMode.CSR):
        raise UsageError(
            "--legacy-impersonation is for --identity impersonate, and for agents with csr"
        )
    if is_legacy and acts and not node_names:
        raise UsageError(
            "--legacy-impersonation needs --nodes: a grant that names none is the right to be any "
            "user, such as system:kube-controller-manager"
        )
    wanted = Impersonation.USER_AND_GROUP if is_legacy else Impersonation.USER
    identity = Identity(settings.identity, wanted if acts else Impersonation.NONE)
    features = features_of(settings, mix.models)._replace(certificate_requests=True)
    found = manifests(name, subject, identity, features, node_names)
    if settings.identity is IdentityMode.SHARED:
        needed = [each for agent in agents for each in permissions_of(agent)]
        return found + _granted(f"{name}-agents", subject, needed)
    needed = impersonation_of(agents, wanted)
    return found + _granted(f"{name}-agents", subject, needed, node_names) + agent_manifests(agents)


def manifests(
    name: str,
    subject: Subject,
    identity: Identity,
    features: Features,
    node_names: Sequence[str] = (),
) -> list[Json]:
    """Return the objects to create, for the nodes that are named, else for all."""
    nodes = [
        *impersonation_permissions(identity.impersonation),
        *node_permissions(identity, features),
    ]
    own = [*own_permissions(features), *optional_permissions(features)]
    found = [
        *_granted(name, subject, own, node_names),
        *_granted(
            f"{name}-nodes", subject, [each for each in nodes if each not in own], node_names
        ),
    ]
    if identity.mode is IdentityMode.CSR:
        found += [
            roles.binding(name, role, roles.subject(whom, kind=kind))
            for name, role, kind, whom in NODE_BINDINGS
        ]
    return found


def text(objects: Iterable[Json]) -> str:
    """Return objects as one YAML stream."""
    shown = yaml.safe_dump_all(
        objects, sort_keys=False, explicit_start=True, default_flow_style=None, width=100
    )
    return str(shown)


def rules(permissions: Iterable[Permission]) -> list[Rule]:
    """Return permissions as RBAC rules: verbs of one resource, then resources of one set of verbs.

    The order is that of the table.
    """
    verbs: dict[tuple[str, str, str], list[str]] = {}
    for each in dict.fromkeys(permissions):
        resource = f"{each.resource}/{each.subresource}" if each.subresource else each.resource
        verbs.setdefault((each.group, resource, each.name), []).append(each.verb)
    named: dict[tuple[str, str, tuple[str, ...], bool], list[str]] = {}
    for (group, resource, name), listed in verbs.items():
        named.setdefault((group, resource, tuple(listed), bool(name)), []).append(name)
    resources: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, resource, of_verbs, is_named), listed in named.items():
        key = (group, of_verbs, tuple(listed) if is_named else ())
        resources.setdefault(key, []).append(resource)
    return [
        {
            "apiGroups": [group],
            "resources": listed,
            **({"resourceNames": list(resource_names)} if resource_names else {}),
            "verbs": list(of_verbs),
        }
        for (group, of_verbs, resource_names), listed in resources.items()
    ]


def node_names(settings: Settings) -> list[str]:
    """Return the names of all nodes that a run may ever have, in all its processes."""
    return [name for share in settings.shares() for name in share.node_names()]


def _granted(
    name: str, subject: Subject, permissions: Sequence[Permission], names: Sequence[str] = ()
) -> list[Json]:
    """Return roles and bindings; those of more nodes than a role names have a number."""
    found = _roles(name, subject, narrowed(permissions, names[:NAMES_MAX]))
    of_nodes = [each for each in permissions if is_of_one_node(each)]
    for at in range(NAMES_MAX, len(names), NAMES_MAX):
        some = narrowed(of_nodes, names[at : at + NAMES_MAX])
        found += _roles(f"{name}-{at // NAMES_MAX + 1}", subject, some)
    return found


def _roles(name: str, subject: Subject, permissions: Sequence[Permission]) -> list[Json]:
    """Return a role and its binding for each namespace that the permissions are about."""
    found: list[Json] = []
    for namespace in dict.fromkeys(each.namespace for each in permissions):
        there = [each for each in permissions if each.namespace == namespace]
        found.append(roles.role(name, rules(there), namespace))
        found.append(roles.binding(name, name, roles.subject(*subject), namespace))
    return found
