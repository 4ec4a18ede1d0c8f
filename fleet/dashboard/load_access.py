"""What the API users of a run are given: a namespace, an account in it, and the least rights.

The account is not the administrator: whose requests are exempt from priority-and-fairness, and say
nothing of what users see.
"""

from typing import Any

import yaml

from fleet.cluster.api_client import Api, Json, expect
from fleet.cluster.identity import Permission
from fleet.cluster.leftovers import NAMESPACES, Leftover, remove_load
from fleet.cluster.rbac import rules
from fleet.cluster.run_id import LABEL, LOAD_LABEL, load_name
from fleet.errors import SetupError
from fleet.k8s.well_known import BINDINGS, RBAC, ROLES

EVERYWHERE = (
    *(Permission(verb, "", "pods") for verb in ("list", "watch")),
    *(Permission(verb, "", "nodes") for verb in ("get", "list", "watch")),
    *(Permission(verb, "apps", "deployments") for verb in ("list", "watch")),
    *(Permission(verb, "apps", "replicasets") for verb in ("list", "watch")),
    Permission("watch", "", "services"),
    Permission("list", "", "events"),
)
"""What profiles/loads/api_users.py asks of the whole cluster; a test sees that it is all used."""
IN_NAMESPACE = (
    *(Permission(verb, "", "configmaps") for verb in ("get", "create", "patch", "delete")),
    *(Permission(verb, "apps", "deployments") for verb in ("create", "patch", "delete")),
    Permission("create", "batch", "jobs"),
)
"""And of its own namespace."""
TOKEN_S = 86_400


class LoadAccess:
    """Made once, removed once: only what was created here."""

    def __init__(self, api: Api, run: str, cluster_role: str = "") -> None:
        self._api = api
        self._run = run
        self._cluster_role = cluster_role
        self._created: list[Leftover] = []
        self.namespace = load_name(run)

    async def create(self) -> str:
        """Return a token of an account with the rights.

        Raises SetupError, also for a namespace or role of the name that is not ours.
        """
        namespaced = f"{NAMESPACES}/{self.namespace}"
        accounts = f"{namespaced}/serviceaccounts"
        here = f"/apis/{RBAC}/v1/namespaces/{self.namespace}"
        await self._create(NAMESPACES, {})
        await self._create(accounts, {})
        if self._cluster_role:
            await self._create(BINDINGS, self._binding("ClusterRole", self._cluster_role))
        else:
            await self._create(ROLES, {"rules": rules(EVERYWHERE)})
            await self._create(BINDINGS, self._binding("ClusterRole", self.namespace))
            await self._create(f"{here}/roles", {"rules": rules(IN_NAMESPACE)})
            await self._create(f"{here}/rolebindings", self._binding("Role", self.namespace))
        asked = {"spec": {"expirationSeconds": TOKEN_S}}
        answer = await self._api.request("POST", f"{accounts}/{self.namespace}/token", body=asked)
        token = expect(answer, "cannot get a token for the API users")["status"]["token"]
        return str(token)

    async def remove(self) -> None:
        """Delete what was created; the namespace takes along what is in it."""
        created, self._created = self._created, []
        await remove_load(self._api, created[::-1])

    async def _create(self, path: str, body: Json) -> None:
        labels = {LOAD_LABEL: "true", LABEL: self._run}
        metadata = {"name": self.namespace, "labels": labels}
        answer = await self._api.request("POST", path, body={"metadata": metadata, **body})
        if answer.code == 409:
            raise SetupError(
                f"{path}/{self.namespace} is there and not of this run: remove it, or choose "
                "another --run-id"
            )
        made = expect(answer, f"cannot create {path}/{self.namespace} for the API users")
        if path in (NAMESPACES, ROLES, BINDINGS):
            name = f"{path}/{self.namespace}"
            self._created.append(Leftover(name, made["metadata"]["uid"], self._run))

    def _binding(self, kind: str, role: str) -> Json:
        subject = {
            "kind": "ServiceAccount",
            "name": self.namespace,
            "namespace": self.namespace,
        }
        reference = {"apiGroup": RBAC, "kind": kind, "name": role}
        return {"roleRef": reference, "subjects": [subject]}


def with_token(kubeconfig: bytes, token: str) -> bytes:
    """Return a kubeconfig of one context with another user: who has the token."""
    document: dict[str, Any] = yaml.safe_load(kubeconfig)  # fleet wrote it
    [context] = document["contexts"]
    context["context"]["user"] = "fleet-load"
    document["users"] = [{"name": "fleet-load", "user": {"token": token}}]
    return yaml.safe_dump(document, encoding="utf-8")
