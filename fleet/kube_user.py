"""`KubeUser`: a Locust user of an API server, for load beside the nodes.

Imported by locustfiles only; never by fleet itself. Certificates are verified, which Locust by
default does not do. Rows are named as the nodes' are: verb and `resource[/subresource]`.
"""

import base64
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import yaml
from locust import FastHttpUser
from locust.exception import StopUser

Json = dict[str, Any]

KUBECONFIG = "FLEET_LOAD_KUBECONFIG"
PAGE = 500
TOKEN_LEFT_S = 60.0


class Kubeconfig:
    """Server and credentials of one context: certificates, tokens, exec plugins."""

    def __init__(self, path: Path, context: str = "") -> None:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._base = path.parent
        chosen = named(document, "context", context or document["current-context"])
        self._cluster = named(document, "cluster", chosen["cluster"])
        self._user = named(document, "user", chosen["user"])
        self.server: str = self._cluster["server"]
        self._token: tuple[str, float] = ("", 0.0)
        self._context: ssl.SSLContext | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context that trusts the cluster's authority and presents the certificate."""
        if self._context is None:
            authority = self._bytes(self._cluster, "certificate-authority")
            context = ssl.create_default_context(cadata=authority.decode() if authority else None)
            certificate = self._bytes(self._user, "client-certificate")
            if certificate:
                with tempfile.NamedTemporaryFile() as pair:
                    pair.write(certificate + b"\n" + self._bytes(self._user, "client-key"))
                    pair.flush()
                    context.load_cert_chain(pair.name)
            self._context = context
        return self._context

    def authorization(self) -> str:
        """Return the Authorization header, "" if the certificate says who we are."""
        if "token" in self._user:
            return f"Bearer {self._user['token']}"
        if "tokenFile" in self._user:
            return f"Bearer {(self._base / self._user['tokenFile']).read_text().strip()}"
        if "exec" in self._user:
            return f"Bearer {self._plugin_token()}"
        return ""

    def _plugin_token(self) -> str:
        token, until_s = self._token
        if time.time() > until_s - TOKEN_LEFT_S:
            plugin = self._user["exec"]
            extra = {each["name"]: each["value"] for each in plugin.get("env") or ()}
            command = [plugin["command"], *(plugin.get("args") or ())]
            done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it
                command, check=True, capture_output=True, env={**os.environ, **extra}, timeout=60
            )
            token = json.loads(done.stdout)["status"]["token"]
            self._token = (token, time.time() + 10 * TOKEN_LEFT_S)
        return token

    def _bytes(self, entry: Json, key: str) -> bytes:
        if f"{key}-data" in entry:
            return base64.b64decode(entry[f"{key}-data"])
        return (self._base / entry[key]).read_bytes() if key in entry else b""


def named(document: Json, kind: str, name: str) -> Json:
    """Return one entry of a kubeconfig's lists. Raises KeyError."""
    for entry in document.get(f"{kind}s") or ():
        if entry["name"] == name:
            found: Json = entry[kind]
            return found
    raise KeyError(f"{kind} {name}")


class KubeUser(FastHttpUser):
    """A client of the API server that `$FLEET_LOAD_KUBECONFIG`, or else `$KUBECONFIG`, names."""

    abstract = True
    insecure = False
    namespace: ClassVar[str] = "fleet-load"
    config: ClassVar[Kubeconfig | None] = None

    def __init__(self, environment: Any) -> None:
        if KubeUser.config is None:
            path = os.environ.get(KUBECONFIG) or os.environ.get("KUBECONFIG")
            if not path:
                raise StopUser(f"set {KUBECONFIG} to a kubeconfig")
            KubeUser.config = Kubeconfig(Path(path))
        self.host = KubeUser.config.server
        self.ssl_context_factory = KubeUser.config.ssl_context
        super().__init__(environment)

    def ask(
        self,
        verb: str,
        path: str,
        resource: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
        expected: tuple[int, ...] = (),
    ) -> Json:
        """Send one request and return what was answered; `expected` codes are no failures."""
        assert self.config is not None
        headers = {"Accept": "application/json", "Content-Type": content_type}
        authorization = self.config.authorization()
        if authorization:
            headers["Authorization"] = authorization
        data = json.dumps(body) if body is not None else None
        method = {"LIST": "GET", "WATCH": "GET"}.get(verb, verb)
        with self.client.request(
            method, path, name=resource, data=data, headers=headers, catch_response=True
        ) as response:
            response.request_meta["request_type"] = verb
            if response.status_code in expected:
                response.success()
            if not response.text:
                return {}
            answer: Json = json.loads(response.text)
            return answer

    def pages(self, path: str, resource: str, limit: int = PAGE) -> Iterator[list[Json]]:
        """LIST page by page."""
        token = ""
        while True:
            listed = self.ask("LIST", f"{path}?limit={limit}&continue={token}", resource)
            yield listed.get("items") or []
            token = (listed.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    def watch(self, path: str, resource: str, version: str, seconds: int) -> Iterator[Json]:
        """Yield the events of one watch; its row counts the time to the first byte."""
        assert self.config is not None
        headers = {"Accept": "application/json", "Authorization": self.config.authorization()}
        query = f"watch=true&allowWatchBookmarks=true&resourceVersion={version}"
        with self.client.request(
            "GET",
            f"{path}?{query}&timeoutSeconds={seconds}",
            name=resource,
            headers={key: value for key, value in headers.items() if value},
            stream=True,
            catch_response=True,
        ) as response:
            response.request_meta["request_type"] = "WATCH"
            response.success()
            while line := response._response.readline():  # noqa: SLF001 - there is no other way
                yield json.loads(line)

    def ensure_namespace(self) -> None:
        """Create the namespace that the load lives in."""
        body = {"metadata": {"name": self.namespace}}
        self.ask("POST", "/api/v1/namespaces", "namespaces", body, expected=(409,))
