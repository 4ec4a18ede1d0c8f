"""Counts the requests of a fleet in the API server's audit log, by verb, resource and code.

The log of ten minutes has some 200,000 lines; they are counted, not kept.
"""

from collections import Counter
from pathlib import Path
from typing import Protocol

import orjson

VERBS = {
    "create": "POST",
    "get": "GET",
    "list": "LIST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETECOLLECTION",
    "watch": "WATCH",
}
Kind = tuple[str, str, int]
"""Verb, resource with its subresource, and code of the answer."""


class Asker(Protocol):
    @property
    def prefix(self) -> str: ...
    @property
    def user(self) -> str: ...


class AuditCounter:
    """A log that grows; each line is counted once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._by_user: dict[str, Counter[Kind]] = {}

    def read(self) -> None:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:  # its writer was killed in the middle of the line
            return
        is_watch = event["verb"] == "watch"
        if not event.get("userAgent", "").startswith("kubelet/") or (
            event["stage"] != ("ResponseStarted" if is_watch else "ResponseComplete")
            and not (is_watch and event["responseStatus"]["code"] >= 300)
        ):
            return
        about = event.get("objectRef", {})
        resource = about.get("resource", "")
        if sub := about.get("subresource"):
            resource += f"/{sub}"
        kind = (VERBS[event["verb"]], resource, event["responseStatus"]["code"])
        user = event["user"].get("username", "")
        self._by_user.setdefault(user, Counter())[kind] += 1

    def of(self, fleet: Asker) -> Counter[Kind]:
        """Return what a fleet's kubelets have asked, whomever they impersonate."""
        return Counter(self._by_user.get(fleet.user, ()))
