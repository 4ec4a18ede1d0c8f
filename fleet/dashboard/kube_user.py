"""`KubeUser`: a Locust user of an API server, for load next to the nodes.

Imported by locustfiles only; never by fleet itself. Certificates are verified, which Locust by
default does not do. Rows are named as the nodes' are: verb and `resource[/subresource]`.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gevent
from gevent.pool import Group
from locust import FastHttpUser
from locust.exception import StopUser

from fleet.cluster.run_id import LABEL, LOAD_LABEL, load_name
from fleet.dashboard.load_credentials import NAMESPACE, RUN, Json, LoadCredentials

ANY = {"operator": "Exists"}
PAGE = 500
PAGES_MAX = 10_000
JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
"""What kubectl accepts: the server's own columns."""
WATCH_S = (300, 600)  # the server's time-out of a reflector's watch, drawn again for each
REOPEN_S = 1.0


class KubeUser(FastHttpUser):
    """A client of the API server that `LoadCredentials.from_environment` finds."""

    abstract = True
    host = "kube-apiserver"  # what the form shows; each user has its real one
    insecure = False
    of_run: ClassVar[str] = os.environ.get(RUN, "")
    namespace: ClassVar[str] = os.environ.get(NAMESPACE) or load_name(of_run)
    credentials: ClassVar[LoadCredentials | None] = None

    def __init__(self, environment: Any) -> None:
        if KubeUser.credentials is None:
            KubeUser.credentials = LoadCredentials.from_environment()
        self.host = KubeUser.credentials.server
        self.ssl_context_factory = KubeUser.credentials.ssl_context
        self.proxy_host, self.proxy_port = KubeUser.credentials.proxy() or (None, None)
        super().__init__(environment)

    def ask(
        self,
        verb: str,
        path: str,
        resource: str,
        body: Json | None = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        expected: tuple[int, ...] = (),
    ) -> Json:
        """Send one request and return what was answered; `expected` codes are no failures."""
        headers = {**self._headers(accept), "Content-Type": content_type}
        data = json.dumps(body) if body is not None else None
        method = "GET" if verb == "LIST" else verb
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
        token, before = "", ""
        for _ in range(PAGES_MAX):
            listed = self.ask("LIST", f"{path}?limit={limit}&continue={token}", resource)
            yield listed.get("items") or []
            token, before = (listed.get("metadata") or {}).get("continue") or "", token
            if token in {"", before}:
                return

    def watch(
        self, path: str, resource: str, version: str, seconds: int, *, accept: str = JSON
    ) -> Iterator[Json]:
        """Yield the events of one watch.

        Its row counts the time to the first byte, and is there from then on; what the stream
        carries is not in it.
        """
        query = f"watch=true&allowWatchBookmarks=true&resourceVersion={version}"
        with self.client.request(
            "GET",
            f"{path}?{query}&timeoutSeconds={seconds}",
            name=resource,
            headers=self._headers(accept),
            stream=True,
            catch_response=True,
        ) as response:
            response.request_meta["request_type"] = "WATCH"
        if not response.ok:
            return
        stream = response._response  # noqa: SLF001 - there is no other way to a line
        try:
            while line := stream.readline():
                yield json.loads(line)
        finally:
            stream.release()  # closes the connection if the watch was left early

    def follow(self, path: str, resource: str, *, accept: str = JSON) -> None:
        """List and watch for as long as the user lives, as client-go's reflectors do.

        Source: k8s.io/client-go/tools/cache/reflector.go, ListAndWatchWithContext.
        Differs: always a LIST of resource version 0, never a streamed one.
        """
        version = ""
        while True:
            if not version:
                listed = self.ask("LIST", f"{path}?resourceVersion=0", resource, accept=accept)
                version = (listed.get("metadata") or {}).get("resourceVersion") or ""
            seconds = random.randint(*WATCH_S)  # noqa: S311 - as uneven as reflectors' time-outs
            for event in self.watch(path, resource, version, seconds, accept=accept):
                if event["type"] == "ERROR":
                    version = ""
                    break
                version = event["object"]["metadata"]["resourceVersion"]
            gevent.sleep(REOPEN_S)

    def together(self, *calls: Callable[[], object]) -> None:
        """Do several things at a time, each in a greenlet; they end with the user.

        Set `concurrency` of the class to at least as many: it is the number of connections.
        """
        group = Group()
        for call in calls:
            group.spawn(call)
        try:
            group.join(raise_error=True)
        finally:
            group.kill()

    def _headers(self, accept: str) -> dict[str, str]:
        assert self.credentials is not None
        authorization = self.credentials.authorization()
        said = {"Authorization": authorization} if authorization else {}
        return {"Accept": accept, **said}

    def ensure_namespace(self) -> None:
        """Create the namespace that the load lives in, unless it was made for us.

        Raises StopUser if it is there and not a load's: what it holds is somebody else's.
        """
        if os.environ.get(NAMESPACE):
            return
        labels = {LOAD_LABEL: "true", **({LABEL: self.of_run} if self.of_run else {})}
        body = {"metadata": {"name": self.namespace, "labels": labels}}
        self.ask("POST", "/api/v1/namespaces", "namespaces", body, expected=(409,))
        found = self.ask("GET", f"/api/v1/namespaces/{self.namespace}", "namespaces")
        has = (found.get("metadata") or {}).get("labels") or {}
        if LOAD_LABEL not in has or has.get(LABEL, "") != self.of_run:
            raise StopUser(f"namespace {self.namespace} is not of this load")

    def on_our_nodes(self) -> Json:
        """Return what a pod's spec must have to run on nodes of this run, and nowhere else."""
        ours = {"key": LABEL, "operator": "In", "values": [self.of_run]}
        term = {"matchExpressions": [ours if self.of_run else {**ANY, "key": LABEL}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        return {
            "tolerations": [{"key": "fleet.emulator/fake", "operator": "Exists"}],
            "affinity": {"nodeAffinity": required},
        }
