"""What a browser asks a Locust dashboard, and what the API server has counted meanwhile."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from e2e_world import Running, World


class Dashboard:
    """The web UI of a run, or of a master at an address."""

    def __init__(self, run: Running | None = None, *, url: str = "") -> None:
        self._run = run
        self._url = url

    @property
    def url(self) -> str:
        if self._run is None:
            return self._url
        found: list[str] = re.findall(r"dashboard: (http://[\d.]+:\d+)", self._run.log)
        return found[-1]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=120) as answer:
            return str(answer.read().decode())

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/stats/requests"))
        return found

    def swarm(self, users: int, **options: object) -> None:
        asked = {"user_count": users, "spawn_rate": 30, **options}
        form = urllib.parse.urlencode(asked).encode()
        with urllib.request.urlopen(f"{self.url}/swarm", form, timeout=120) as answer:
            assert json.load(answer)["success"]

    def stop(self) -> None:
        with urllib.request.urlopen(f"{self.url}/stop", b"", timeout=120) as answer:
            assert json.load(answer)["success"]

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
