"""How long a pod may stay on a node with taints."""

from world.strategic_merge import Object
from world.taints import tolerated_ns

from fleet.clock import NS_PER_S

UNREACHABLE: Object = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
NOT_READY: Object = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


def test_the_shortest_toleration_of_all_taints_counts() -> None:
    def toleration(taint: Object, seconds: int | None) -> Object:
        limit = {} if seconds is None else {"tolerationSeconds": seconds}
        return {"key": taint["key"], "operator": "Exists", "effect": "NoExecute", **limit}

    both = [toleration(UNREACHABLE, 300), toleration(NOT_READY, 20)]
    assert tolerated_ns([UNREACHABLE], both) == 300 * NS_PER_S
    assert tolerated_ns([UNREACHABLE, NOT_READY], both) == 20 * NS_PER_S
    assert tolerated_ns([UNREACHABLE], both[1:]) == 0
    assert tolerated_ns([UNREACHABLE], [toleration(UNREACHABLE, None)]) is None
    assert tolerated_ns([UNREACHABLE], [{"operator": "Exists"}]) is None
