"""Plain Locust workers beside the fleet: API users from locustfiles, under an identity of theirs.

On the local control plane they are a service account: the administrator's requests are exempt from
priority-and-fairness, and would say nothing of what users see.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from fleet.api_client import Api, expect
from fleet.config import shipped_directory
from fleet.controlplane.process import Component
from fleet.dashboard_door import TOKEN_VARIABLE
from fleet.errors import SetupError, UsageError
from fleet.load_credentials import KUBECONFIG, NAMESPACE
from fleet.locust_master import LOOPBACK, locust_with

USER = NAMESPACE
TOKEN_S = 86_400
END_S_MAX = 10.0


def find_loads(names: Sequence[Path]) -> tuple[Path, ...]:
    """Return the locustfiles that were named, shipped ones by their bare name. UsageError."""
    found = []
    for name in names:
        shipped = shipped_directory() / "loads" / f"{name}.py"
        path = name if name.is_file() else shipped
        if not path.is_file():
            known = ", ".join(sorted(each.stem for each in shipped.parent.glob("*.py")))
            raise UsageError(
                f"--load {name}: no such file, and no shipped load; there are: {known}"
            )
        found.append(path.absolute())
    return tuple(found)


async def load_kubeconfig(api: Api, kubeconfig: Path) -> bytes:
    """Return a kubeconfig of a service account that may do everything, as a user may."""
    namespace = {"metadata": {"name": NAMESPACE}}
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    binding = {
        "metadata": {"name": USER},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": NAMESPACE}],
    }
    for path, body in (
        ("/api/v1/namespaces", namespace),
        (accounts, {"metadata": {"name": USER}}),
        (bindings, binding),
    ):
        answer = await api.request("POST", path, body=body)
        if answer.code != 409:
            expect(answer, f"cannot create {path}")
    asked = {"spec": {"expirationSeconds": TOKEN_S}}
    answer = await api.request("POST", f"{accounts}/{USER}/token", body=asked)
    token = expect(answer, "cannot get a token for the load")["status"]["token"]
    return _with_token(kubeconfig, token)


def _with_token(kubeconfig: Path, token: str) -> bytes:
    document = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    document["users"] = [{"name": document["users"][0]["name"], "user": {"token": token}}]
    return yaml.safe_dump(document, encoding="utf-8")


async def remove_load(api: Api) -> None:
    """Delete what the load has left."""
    await api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    await api.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{USER}")


class LoadWorker:
    """One plain Locust worker process."""

    def __init__(self, loads: Sequence[Path], kubeconfig: Path, directory: Path) -> None:
        self._loads = loads
        self._kubeconfig = kubeconfig
        self._log = directory / "locust-users.log"

    async def serve(self, port: int) -> None:
        """Run it for the master on a port of loopback. Raises SetupError if it ends by itself."""
        command = [
            *locust_with(self._loads),
            *("--worker", "--master-host", LOOPBACK, "--master-port", str(port)),
        ]
        environment = {**os.environ, KUBECONFIG: str(self._kubeconfig)}
        environment.pop(TOKEN_VARIABLE, None)  # a locustfile of others has no business with it
        process = Component("API users", command, self._log, environment=environment)
        await process.start()
        try:
            death = await process.wait()
        finally:
            await process.stop(END_S_MAX)
        raise SetupError(str(death))
