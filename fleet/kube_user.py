"""`KubeUser`: a Locust user of an API server, for load beside the nodes.

Imported by locustfiles only; never by fleet itself. Certificates are verified, which Locust by
default does not do. Rows are named as the nodes' are: verb and `resource[/subresource]`.
"""

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from locust import FastHttpUser

from fleet.load_credentials import NAMESPACE, Json, LoadCredentials

PAGE = 500


class KubeUser(FastHttpUser):
    """A client of the API server that `LoadCredentials.from_environment` finds."""

    abstract = True
    insecure = False
    namespace: ClassVar[str] = NAMESPACE
    credentials: ClassVar[LoadCredentials | None] = None

    def __init__(self, environment: Any) -> None:
        if KubeUser.credentials is None:
            KubeUser.credentials = LoadCredentials.from_environment()
        self.host = KubeUser.credentials.server
        self.ssl_context_factory = KubeUser.credentials.ssl_context
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
        headers = {**self._headers(), "Content-Type": content_type}
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
        query = f"watch=true&allowWatchBookmarks=true&resourceVersion={version}"
        with self.client.request(
            "GET",
            f"{path}?{query}&timeoutSeconds={seconds}",
            name=resource,
            headers=self._headers(),
            stream=True,
            catch_response=True,
        ) as response:
            response.request_meta["request_type"] = "WATCH"
            response.success()
            while line := response._response.readline():  # noqa: SLF001 - there is no other way
                yield json.loads(line)

    def _headers(self) -> dict[str, str]:
        assert self.credentials is not None
        authorization = self.credentials.authorization()
        said = {"Authorization": authorization} if authorization else {}
        return {"Accept": "application/json", **said}

    def ensure_namespace(self) -> None:
        """Create the namespace that the load lives in."""
        body = {"metadata": {"name": self.namespace}}
        self.ask("POST", "/api/v1/namespaces", "namespaces", body, expected=(409,))
