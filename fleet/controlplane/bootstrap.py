"""What a fresh API server needs before nodes can join: roles, and a look whether it is all there.

Source: cmd/kubeadm/app/phases/bootstraptoken/node/tlsbootstrap.go, and cmd/kubeadm/app/phases/
kubeconfig/kubeconfig.go for the administrators.
Differs: the API server's kubelet client gets the one role that it needs, not an administrator's.
"""

import ssl
from pathlib import Path
from typing import Self

import aiohttp

from fleet.controlplane.directory import KUBELET_CLIENT_USER, Pair
from fleet.errors import SetupError
from fleet.k8s.well_known import BINDINGS, NODES_GROUP, RBAC

REQUEST_TIMEOUT_S = 5.0
CREATED = (200, 201, 409)  # 409: of an earlier start in the same directory

SIGNING = "system:certificates.k8s.io:certificatesigningrequests"

# Binding, role, kind of subject, subject.
NODE_BINDINGS = (
    ("fleet:kubelet-bootstrap", "system:node-bootstrapper", "Group", "system:bootstrappers"),
    ("fleet:node-autoapprove-bootstrap", f"{SIGNING}:nodeclient", "Group", "system:bootstrappers"),
    ("fleet:node-autoapprove-rotation", f"{SIGNING}:selfnodeclient", "Group", NODES_GROUP),
)
"""What lets bootstrap tokens become nodes, and nodes renew their certificates."""

ROLE_BINDINGS = (
    *NODE_BINDINGS,
    ("fleet:kubelet-api-admin", "system:kubelet-api-admin", "User", KUBELET_CLIENT_USER),
)

NODE_LEASES = "/api/v1/namespaces/kube-node-lease"
DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


class Probe:
    """Asks the components how they are, as the administrator."""

    def __init__(self, ca_file: Path, admin: Pair) -> None:
        context = ssl.create_default_context(cafile=str(ca_file))
        context.load_cert_chain(admin.certificate, admin.key)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def is_ok(self, url: str) -> bool:
        """Whether a GET is answered with 200; whatever else happens means not yet."""
        try:
            async with self._session.get(url) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def server_version(self, url: str) -> str:
        """Ask the API server for its version. Raises SetupError if it does not tell."""
        try:
            async with self._session.get(f"{url}/version") as response:
                version = await response.json()
                return str(version["gitVersion"])
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
            raise SetupError(f"{url}/version does not work: {error!r}") from error

    async def bind_roles(self, url: str) -> None:
        """Let bootstrap tokens join as nodes and the API server speak to kubelets."""
        for name, role, kind, subject in ROLE_BINDINGS:
            body = {
                "apiVersion": f"{RBAC}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": RBAC, "kind": kind, "name": subject}],
            }
            try:
                async with self._session.post(url + BINDINGS, json=body) as response:
                    if response.status not in CREATED:
                        answer = await response.text()
                        raise SetupError(f"ClusterRoleBinding {name}: {response.status} {answer}")
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise SetupError(f"ClusterRoleBinding {name}: {error!r}") from error
