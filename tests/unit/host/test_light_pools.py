"""Which connections the nodes of fidelity light share, and how many there may be."""

import pytest

from fleet.host.transports import (
    LIGHT_CONNECTIONS,
    WATCH_LIMITS,
    WATCH_POOL_NODES,
    WATCHES_OF_A_NODE,
    LightPools,
    call_limits,
)
from fleet.k8s.effects import NodeId
from fleet.wire.http2.http2_codec import STREAMS_DEFAULT
from fleet.wire.sockets.connection import PoolLimits


def opened(pools: LightPools) -> dict[int, PoolLimits]:
    found: dict[int, PoolLimits] = {}
    pools.open(found.__setitem__)
    return found


@pytest.mark.parametrize("nodes", [1, 256, 257, 3_000, 20_000, 100_000])
def test_watches_and_calls_share_no_pool_and_have_room_for_all_nodes(nodes: int) -> None:
    """The case of 3,000 nodes: 128 connections of 100 streams were full of 2,576 nodes' watches."""
    pools = LightPools(nodes, 2, own_watches=True)
    limits = opened(pools)
    watching: dict[int, int] = {}
    calling: dict[int, int] = {}
    for node in range(nodes):
        calls, watches = pools.of(NodeId(node), node % 2)
        assert pools.user_agent_of(calls) == pools.user_agent_of(watches) == node % 2
        calling[calls] = calling.get(calls, 0) + 1
        watching[watches] = watching.get(watches, 0) + WATCHES_OF_A_NODE
    assert not calling.keys() & watching.keys()
    assert calling.keys() | watching.keys() <= limits.keys()
    for pool, count in calling.items():
        assert count <= limits[pool].connections * STREAMS_DEFAULT
        assert count <= limits[pool].waiting
    for pool, count in watching.items():
        assert count <= WATCH_POOL_NODES * WATCHES_OF_A_NODE
        assert count <= limits[pool].connections * STREAMS_DEFAULT / 10  # pods bring more


def test_nodes_without_watches_of_their_own_have_few_pools() -> None:
    pools = LightPools(20_000, 3, own_watches=False)
    assert sorted(opened(pools)) == list(range(3 * LIGHT_CONNECTIONS))
    calls, watches = pools.of(NodeId(7), 2)
    assert calls == watches == 1 + 2 * LIGHT_CONNECTIONS


def test_few_nodes_have_the_limits_of_one() -> None:
    assert call_limits(1) == call_limits(6_400) == PoolLimits()
    assert call_limits(6_401) == PoolLimits(connections=65)
    assert call_limits(20_000) == PoolLimits(connections=200, waiting=20_000)
    assert WATCH_LIMITS.waiting == PoolLimits().waiting
