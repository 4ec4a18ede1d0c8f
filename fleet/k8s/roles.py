"""Roles and their bindings as JSON; without a namespace they are of the whole cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.k8s.well_known import RBAC

Json = dict[str, Any]


def subject(name: str, namespace: str = "", kind: str = "User") -> Json:
    """Return whom a binding names: a ServiceAccount if it has a namespace."""
    if namespace:
        return {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return {"kind": kind, "apiGroup": RBAC, "name": name}


def role(name: str, rules: Sequence[Mapping[str, object]], namespace: str = "") -> Json:
    return {**_object("Role", name, namespace), "rules": rules}


def binding(name: str, of_role: str, whom: Json, namespace: str = "") -> Json:
    kind = "Role" if namespace else "ClusterRole"
    reference = {"apiGroup": RBAC, "kind": kind, "name": of_role}
    return {**_object("RoleBinding", name, namespace), "roleRef": reference, "subjects": [whom]}


def _object(kind: str, name: str, namespace: str) -> Json:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    kind = kind if namespace else f"Cluster{kind}"
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata}
