"""The controllers of the simulated control plane, each rule by itself."""

import pytest
from world.admission import admitted_pod
from world.node_lifecycle import Zone, ZoneState, zone_state
from world.scheduler import asked_by, feasible_wanted
from world.strategic_merge import Object
from world.taint_eviction import tolerated_ns

from fleet.clock import NS_PER_S

UNREACHABLE: Object = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
NOT_READY: Object = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("lost", "of", "state"),
    [
        (0, 5, ZoneState.NORMAL),
        (2, 3, ZoneState.NORMAL),  # fewer than three are never a disruption
        (3, 5, ZoneState.PARTIAL),
        (54, 100, ZoneState.NORMAL),
        (55, 100, ZoneState.PARTIAL),
        (1, 1, ZoneState.FULL),
    ],
)
def test_a_zone_is_disrupted_by_its_share_of_lost_nodes(
    lost: int, of: int, state: ZoneState
) -> None:
    assert zone_state(["Unknown"] * lost + ["True"] * (of - lost)) is state


def test_a_zone_taints_one_node_in_ten_seconds_and_none_at_rate_0() -> None:
    zone = Zone(0)
    taken = [second for second in range(31) if zone.accepts(second * NS_PER_S)]
    assert taken == [0, 10, 20, 30]
    zone.limit(0.0, 31 * NS_PER_S)
    assert not any(zone.accepts(second * NS_PER_S) for second in range(31, 100))


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


def test_pods_get_what_admission_gives_them() -> None:
    limits = {"cpu": "1", "memory": "1Gi"}
    given = {
        "spec": {"containers": [{"name": "c", "image": "a:1", "resources": {"limits": limits}}]}
    }
    pod = admitted_pod(given, "abcde")
    assert pod["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}
    assert [each["tolerationSeconds"] for each in pod["spec"]["tolerations"]] == [300, 300]
    assert pod["spec"]["volumes"][0]["name"] == "kube-api-access-abcde"
    assert asked_by(pod) == {"cpu": 1.0, "memory": 1024**3}
    assert "volumes" not in given["spec"]


def test_of_many_nodes_a_part_is_looked_at() -> None:
    assert [feasible_wanted(each) for each in (50, 100, 1_000, 5_000, 20_000)] == [
        *(50, 100, 420, 500, 1_000)
    ]
