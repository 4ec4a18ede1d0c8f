"""What `kubectl get -o json` and the audit log tell, at a hundredth of what a kubectl costs.

Tests that wait ask ten times a second; a process for each question would keep a core busy. What
kubectl makes of objects (describe, wait, rollout, apply) is still asked of kubectl.
"""

import argparse
import functools
import http.client
import ssl
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import orjson

from fleet.controlplane.options import ControlPlaneInfo

Json = dict[str, Any]
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TIMEOUT_S = 60.0
ANSWER_MAX_S = 90.0
"""Longer than the minute after which a server that is busy gives a request up by itself."""
PATIENCE_S = 180.0
TRY_AGAIN = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""What a busy server says to whoever should come again."""


class Resource(NamedTuple):
    """Where the objects of a kind are."""

    group_path: str
    plural: str
    is_namespaced: bool


class Api:
    """One API server, as its administrator."""

    def __init__(self, url: str, ca_file: Path, certificate: Path, key: Path) -> None:
        self._address = urlsplit(url)
        self._context = ssl.create_default_context(cafile=ca_file)
        self._context.load_cert_chain(certificate, key)
        self._resources: dict[str, Resource] = {}

    def get(self, *arguments: str) -> Json:
        """Return what `kubectl get` with these arguments finds; it must find it."""
        asked = _PARSER.parse_intermixed_args(arguments)
        group_path, plural, is_namespaced = self._resource(asked.kind)
        parts = [group_path]
        if is_namespaced and not asked.all_namespaces:
            parts += ["namespaces", asked.namespace]
        parts += [plural, *filter(None, [asked.name])]
        selectors = {"labelSelector": asked.selector, "fieldSelector": asked.field_selector}
        query = urlencode({key: each for key, each in selectors.items() if each})
        return self._ask("/".join(parts) + (f"?{query}" if query else ""))

    def _ask(self, path: str, accept: str = "application/json") -> Json:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                code, body = self._ask_once(path, accept)
            except (http.client.IncompleteRead, TimeoutError):  # a busy server gives up
                code, body = HTTPStatus.GATEWAY_TIMEOUT, b""
            if code not in TRY_AGAIN or time.monotonic() > deadline:
                break
            time.sleep(1)
        assert code == HTTPStatus.OK, (path, body)
        found: Json = orjson.loads(body)
        return found

    def _ask_once(self, path: str, accept: str) -> tuple[int, bytes]:
        host, port = self._address.hostname, self._address.port
        connection = http.client.HTTPSConnection(
            str(host), port, context=self._context, timeout=ANSWER_MAX_S
        )
        try:
            connection.request("GET", path, headers={"accept": accept, "user-agent": "kubectl"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _resource(self, name: str) -> Resource:
        """Return the resource of a name; a group that has a name first has it, as with kubectl.

        A server that has just come up does not name all groups yet.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while name not in self._resources and time.monotonic() < deadline:
            for root in ("/api", "/apis"):
                for group in self._ask(root, DISCOVERY)["items"]:
                    self._learn(root, group)
            if name not in self._resources:
                time.sleep(1)
        return self._resources[name]

    def _learn(self, root: str, group: Json) -> None:
        group_name = group["metadata"].get("name", "")
        for version in group["versions"]:
            path = "/".join(filter(None, (root, group_name, version["version"])))
            for each in version.get("resources", ()):  # none while another server does not answer
                plural = each["resource"]
                found = Resource(path, plural, each["scope"] == "Namespaced")
                names = (plural, each["singularResource"], *each.get("shortNames", ()))
                for name in (*names, f"{plural}.{group_name}"):
                    self._resources.setdefault(name, found)


_PARSER = argparse.ArgumentParser(allow_abbrev=False)
_PARSER.add_argument("kind")
_PARSER.add_argument("name", nargs="?")
_PARSER.add_argument("-n", "--namespace", default="default")
_PARSER.add_argument("-A", "--all-namespaces", action="store_true")
_PARSER.add_argument("-l", "--selector")
_PARSER.add_argument("--field-selector")


@functools.cache
def _api(url: str, ca_file: Path, certificate: Path, key: Path) -> Api:
    return Api(url, ca_file, certificate, key)


def api_of(info: ControlPlaneInfo) -> Api:
    return _api(info.url, info.ca_file, info.admin_certificate, info.admin_key)


class AuditLog:
    """A log that grows; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._events: list[Json] = []

    def events(self) -> list[Json]:
        """Return the requests so far; the user of one that was not let in has no name."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            found = log.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event: Json = orjson.loads(line)
            event["user"].setdefault("username", "")
            self._events.append(event)
        return self._events


@functools.cache
def audit_log(path: Path) -> AuditLog:
    return AuditLog(path)
