"""The administrator of a control plane: makes, changes, reads and deletes objects.

Source: what kubectl does, at a hundredth of its cost.
"""

import http.client
import ssl
import threading
from http import HTTPStatus
from urllib.parse import urlsplit

import orjson

from fleet.controlplane.options import ControlPlaneInfo
from oracle.normalisation import Json

TIMEOUT_S = 30.0
STRATEGIC = "application/strategic-merge-patch+json"
GROUPS = {
    "jobs": "/apis/batch/v1",
    "deployments": "/apis/apps/v1",
    "runtimeclasses": "/apis/node.k8s.io/v1",
    "storageclasses": "/apis/storage.k8s.io/v1",
    "priorityclasses": "/apis/scheduling.k8s.io/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "clusterroles": "/apis/rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "csidrivers": "/apis/storage.k8s.io/v1",
    "csinodes": "/apis/storage.k8s.io/v1",
}
PLURALS = {
    "PriorityClass": "priorityclasses",
    "RuntimeClass": "runtimeclasses",
    "StorageClass": "storageclasses",
}


class RefusedError(AssertionError):
    """The API server said no."""

    def __init__(self, code: int, what: str, answer: object) -> None:
        super().__init__(f"{code}: {what}: {answer}")
        self.code = code


class Admin:
    """Asks as the administrator; each thread has a connection of its own."""

    def __init__(self, info: ControlPlaneInfo) -> None:
        self._address = urlsplit(info.url)
        self._context = ssl.create_default_context(cafile=info.ca_file)
        self._context.load_cert_chain(info.admin_certificate, info.admin_key)
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    def close(self) -> None:
        """Close the connections of all threads."""
        for each in self._connections:
            each.close()

    def ask(
        self, verb: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Json:
        """Send a request. Raises RefusedError."""
        content = None if body is None else orjson.dumps(body)
        headers = {"content-type": content_type, "accept": "application/json"}
        for last in (False, True):
            connection = getattr(self._local, "connection", None)
            if connection is None:
                host, port = self._address.hostname, self._address.port
                connection = self._local.connection = http.client.HTTPSConnection(
                    str(host), port, context=self._context, timeout=TIMEOUT_S
                )
                self._connections.append(connection)
            try:
                connection.request(verb, path, content, headers)
                answer = connection.getresponse()
                found: Json = orjson.loads(answer.read())
                break
            except (http.client.HTTPException, OSError):  # the server has closed it meanwhile
                connection.close()
                self._local.connection = None
                if last:
                    raise
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise RefusedError(answer.status, f"{verb} {path}", found.get("message"))
        return found

    def path(self, plural: str, namespace: str = "", name: str = "") -> str:
        """Return where an object is, or where all of its kind are."""
        group = GROUPS.get(plural, "/api/v1")
        parts = [group, *(("namespaces", namespace) if namespace else ()), plural]
        return "/".join([*parts, *([name] if name else ())])

    def create(self, made: Json) -> Json:
        """Create an object in the namespace that it names, if it names one."""
        kind = str(made["kind"])
        plural = PLURALS.get(kind, f"{kind.lower()}s")
        namespace = made["metadata"].get("namespace", "")
        return self.ask("POST", self.path(plural, namespace), made)

    def get(self, plural: str, namespace: str, name: str) -> Json | None:
        """Return an object, or nothing if it is not there."""
        try:
            return self.ask("GET", self.path(plural, namespace, name))
        except RefusedError as refused:
            if refused.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def items(self, plural: str, namespace: str = "", selector: str = "") -> list[Json]:
        query = f"?labelSelector={selector}" if selector else ""
        found: list[Json] = self.ask("GET", self.path(plural, namespace) + query)["items"]
        return found

    def patch(
        self, plural: str, namespace: str, name: str, change: Json, subresource: str = ""
    ) -> Json:
        path = self.path(plural, namespace, name) + (f"/{subresource}" if subresource else "")
        return self.ask("PATCH", path, change, STRATEGIC)

    def delete(self, plural: str, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete an object; it may be gone already."""
        body = {"gracePeriodSeconds": grace_s} if grace_s is not None else {}
        body["propagationPolicy"] = "Background"  # type: ignore[assignment]
        try:
            self.ask("DELETE", self.path(plural, namespace, name), body)
        except RefusedError as refused:
            if refused.code != HTTPStatus.NOT_FOUND:
                raise
