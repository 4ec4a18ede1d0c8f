"""The token buckets of a kubelet's clients, number by number."""

import pytest
from world.pod_world import model_of

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import ApiCall, NodeId, Op
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.reactor.calls import ClientLimits

NODE = NodeId(7)
GET_POD = ApiCall(NODE, Op.GET_POD)
GET_CSINODE = ApiCall(NODE, Op.GET_CSINODE)
EVENT = ApiCall(NODE, Op.CREATE_EVENT)


def waits_ms(
    limits: ClientLimits, call: ApiCall, count: int, model: NodeModel, now_ns: int = 0
) -> list[float]:
    return [limits.wait_ns(call, model, now_ns) / NS_PER_MS for _ in range(count)]


DEFAULT = load_mix().model_of(0)


def test_a_burst_of_100_and_then_one_every_20_ms() -> None:
    limits = ClientLimits()
    waits = waits_ms(limits, GET_POD, 103, DEFAULT, 5 * NS_PER_S)
    assert waits == [*[0] * 100, 20, 40, 60]


def test_a_bucket_fills_at_50_a_second_up_to_100() -> None:
    limits = ClientLimits()
    waits_ms(limits, GET_POD, 100, DEFAULT)
    assert waits_ms(limits, GET_POD, 11, DEFAULT, NS_PER_S // 5) == [*[0] * 10, 20]
    assert waits_ms(limits, GET_POD, 101, DEFAULT, 60 * NS_PER_S) == [*[0] * 100, 20]


def test_the_groups_of_the_main_client_share_a_limiter_and_events_have_their_own() -> None:
    limits = ClientLimits()
    waits_ms(limits, GET_POD, 100, DEFAULT)
    assert waits_ms(limits, GET_CSINODE, 1, DEFAULT) == [20]
    assert waits_ms(limits, EVENT, 101, DEFAULT) == [*[0] * 100, 20]


@pytest.mark.parametrize(
    "call",
    [
        ApiCall(NODE, Op.RENEW_LEASE),
        ApiCall(NODE, Op.GET_NODE_HEARTBEAT),
        ApiCall(NODE, Op.PATCH_NODE_STATUS_HEARTBEAT),
        ApiCall(NODE, Op.CREATE_RESOURCE_SLICE),
    ],
)
def test_heartbeats_and_other_processes_are_not_limited(call: ApiCall) -> None:
    limits = ClientLimits()
    assert not any(waits_ms(limits, call, 500, DEFAULT))
    assert not len(limits)


def test_the_patch_of_a_registration_is_the_main_clients() -> None:
    patch = ApiCall(NODE, Op.PATCH_NODE_STATUS)
    assert waits_ms(ClientLimits(), patch, 101, DEFAULT)[-1] == 20


def test_a_profile_sets_rate_and_burst() -> None:
    model = model_of(
        kubeletConfiguration={
            "kubeAPIQPS": 10,
            "kubeAPIBurst": 20,
            "eventRecordQPS": 1,
            "eventBurst": 2,
        }
    )
    limits = ClientLimits()
    assert waits_ms(limits, GET_POD, 22, model)[-3:] == [0, 100, 200]
    assert waits_ms(limits, EVENT, 4, model) == [0, 0, 1000, 2000]


def test_a_rate_of_0_is_client_gos_default_and_each_group_has_its_own() -> None:
    """0 is no "no limit", whatever the configuration's documentation says; since 1.37 of Events."""
    unlimited = {"kubeAPIQPS": 0, "eventRecordQPS": 0, "kubeAPIBurst": 0}
    for version, last_ms in (("v1.36.3", 200), ("v1.37.2", 0)):
        model = model_of(kubeletVersion=version, kubeletConfiguration=unlimited)
        limits = ClientLimits()
        assert waits_ms(limits, GET_POD, 101, model) == [*[0] * 100, 200]
        assert waits_ms(limits, GET_CSINODE, 101, model) == [*[0] * 100, 200]
        assert waits_ms(limits, EVENT, 101, model) == [*[0] * 100, last_ms]


def test_nodes_do_not_share_and_full_buckets_are_forgotten() -> None:
    limits = ClientLimits()
    waits_ms(limits, GET_POD, 100, DEFAULT)
    other = ApiCall(NodeId(8), Op.GET_POD)
    assert waits_ms(limits, other, 1, DEFAULT, NS_PER_S) == [0]
    assert len(limits) == 2
    limits.forget(NS_PER_S + 20 * NS_PER_MS)
    assert len(limits) == 1
    limits.forget(2 * NS_PER_S)
    assert not len(limits)
