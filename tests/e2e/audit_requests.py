"""The requests of single nodes, as the API server's audit log has them."""

from collections.abc import Iterable
from datetime import datetime

from e2e_world import Json, World


def requests_of(world: World, node: str) -> list[Json]:
    """Return the requests of a node, each once, in the order in which they came."""
    name = f"system:node:{node}"
    found: dict[str, Json] = {}
    for each in world.audit():
        user: Json = each.get("impersonatedUser") or each["user"]
        if user["username"] == name:
            found[each["auditID"]] = each
    return sorted(found.values(), key=lambda each: each["requestReceivedTimestamp"])


def seconds(request: Json) -> float:
    """Return when a request came, in seconds since the epoch."""
    stamp = str(request["requestReceivedTimestamp"]).replace("Z", "+00:00")
    return datetime.fromisoformat(stamp).timestamp()


def shape_of(requests: Iterable[Json]) -> set[str]:
    """Return verb, resource with its namespace, and code of each kind of request."""
    found = set()
    for each in requests:
        about = each["objectRef"]
        where = "/".join(filter(None, (about["resource"], about.get("namespace"))))
        found.add(f"{each['verb']} {where} {each['responseStatus']['code']}")
    return found
