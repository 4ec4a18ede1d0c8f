"""The requests of single nodes, as the API server's audit log has them."""

from collections.abc import Iterable
from datetime import datetime
from http import HTTPStatus

from e2e.e2e_world import Json, World


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


BROUGHT_BY_PODS = {"configmaps", "secrets", "serviceaccounts", "pods", "persistentvolumeclaims"}
"""What a node may ask for while one of its pods needs it."""
REFUSALS_MAX = 12
"""A kubelet that is refused waits 0.5 s, then twice as long each time: 16 s in six times.

Each time it asks for a stream and then for a list."""
_ONE_QUESTION = {"list": "read", "watch": "read", "get": "read"}
"""A reflector whose list was refused asks for a stream next, not for a list again."""


def assert_refusals_end(events: Iterable[Json]) -> None:
    """Check that 403s of one node are those of a node authorizer that lags behind, and pass.

    It learns of a binding by a watch of its own, which may be later than the node's. So what it
    refuses is brought by a pod, is asked for again, not often, and then granted.
    """
    codes: dict[tuple[str, ...], list[int]] = {}
    once = {each["auditID"]: each for each in events}  # a watch is logged at its end, too
    for each in sorted(once.values(), key=seconds):
        about = each["objectRef"]
        names = (about.get(key, "") for key in ("resource", "subresource", "namespace", "name"))
        verb: str = each["verb"]
        codes.setdefault((_ONE_QUESTION.get(verb, verb), *names), []).append(
            each["responseStatus"]["code"]
        )
    for asked, answers in codes.items():
        refusals = answers.count(HTTPStatus.FORBIDDEN)
        if refusals:
            assert asked[1] in BROUGHT_BY_PODS, asked
            assert refusals <= REFUSALS_MAX, (asked, answers)
            assert answers[-1] != HTTPStatus.FORBIDDEN, (asked, answers)
