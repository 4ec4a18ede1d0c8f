"""What a browser asks a Locust dashboard, and what the API server has counted meanwhile."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from e2e.e2e_world import World, eventually

PRINTED = re.compile(r"dashboard: ((http://\S+)/fleet\?token=(\S+))")


class HasLog(Protocol):
    """What prints the address of a dashboard."""

    @property
    def log(self) -> str: ...


class Dashboard:
    """The web UI of a run, or of a master without a door at an address."""

    def __init__(self, run: HasLog | None = None, *, url: str = "") -> None:
        self._run = run
        self._url = url

    def _printed(self) -> tuple[str, str, str]:
        """Return the address that a browser opens, the same without the token, and the token."""
        if self._run is None:
            return self._url, self._url, ""
        run = self._run
        eventually(lambda: PRINTED.search(run.log), "the address of the dashboard")
        link, url, token = PRINTED.findall(run.log)[-1]
        return link, url, token

    @property
    def link(self) -> str:
        return self._printed()[0]

    @property
    def url(self) -> str:
        return self._printed()[1]

    @property
    def token(self) -> str:
        return self._printed()[2]

    def ask(
        self,
        path: str,
        form: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        """Ask as anybody may; return the code and the body."""
        data = None if form is None else urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(self.url + path, data, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path: str, form: Mapping[str, object] | None = None) -> str:
        """Ask with the token."""
        code, body = self.ask(path, form, {"Authorization": f"Bearer {self.token}"})
        assert code == 200, (path, code, body)
        return body

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/stats/requests"))
        return found

    def swarm(self, users: int, **options: object) -> None:
        asked = {"user_count": users, "spawn_rate": 30, **options}
        assert json.loads(self.get("/swarm", asked))["success"]

    def stop(self) -> None:
        assert json.loads(self.get("/stop", {}))["success"]

    def shows(self, state: str, users: int) -> Callable[[], bool]:
        def is_so() -> bool:
            try:
                found = self.stats()
            except OSError:
                return False
            return (found["state"], found["user_count"]) == (state, users)

        return is_so

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the statistics by method and name."""
        return {(row["method"], row["name"]): row for row in self.stats()["stats"]}

    def count(self, method: str, name: str) -> int:
        return int(self.rows().get((method, name), {"num_requests": 0})["num_requests"])

    def classes(self) -> dict[str, int]:
        """Return how many users of each class there are."""
        total = self.stats()["user_count"]
        ratios = json.loads(self.get("/tasks"))["per_class"].items()
        return {name: round(each["ratio"] * total) for name, each in ratios if each["ratio"]}

    def shards_known(self) -> list[str]:
        """Return the shards whose fleets have joined."""
        return sorted(worker["id"].partition("_")[0] for worker in self.stats()["workers"])

    def shards(self) -> list[dict[str, Any]]:
        """Return the rows of the tab Fleet."""
        found: list[dict[str, Any]] = self.stats()["extended_stats"][0]["data"]
        return found


def audited(world: World, prefix: str, verb: str, resource: str, since: int) -> int:
    """Count a fleet's requests that the API server answered after a place in its log."""
    return sum(
        event["stage"] == "ResponseComplete"
        and event["verb"] == verb
        and event.get("objectRef", {}).get("resource") == resource
        and f"system:node:{prefix}-" in event.get("impersonatedUser", {}).get("username", "")
        for event in world.audit()[since:]
    )
