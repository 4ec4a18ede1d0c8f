"""How the nodes of fidelity light share connections: few for their calls, others for their watches.

    calls    LIGHT_CONNECTIONS pools for each user agent
    watches  of nodes that have their own: a pool for each WATCH_POOL_NODES of them and user agent

A watch holds its stream for minutes, and a connection has a hundred. In pools of their own watches
never take the stream of a renewal.
"""

import math
from collections.abc import Callable

from fleet.k8s.effects import NodeId
from fleet.wire.http2.http2_codec import STREAMS_DEFAULT
from fleet.wire.sockets.connection import DEFAULT_LIMITS, PoolLimits

LIGHT_CONNECTIONS = 2
"""Pools of the calls, each with one connection in quiet times.

Further ones are dialed while these are full. Few, so that the requests of a turn leave in few
writes and come back in few reads; two, so that not all of them hang on one API server of several.
"""
CALLS_AT_ONCE = 2
"""So many calls of each node find a stream at the same moment.

A server that stands still for a while holds the renewal of every node, and what it began besides.
"""
WATCH_POOL_NODES = 256
"""Few, as a pool dials one connection at a time."""
WATCH_LIMITS = PoolLimits(connections=1_024)
"""400 watches for each node, most of them of what its pods refer to; also of all shared watches."""
WATCHES_OF_A_NODE = 8
"""Five that each kubelet has, and room for ConfigMaps and Secrets of its pods."""


def call_limits(nodes: int) -> PoolLimits:
    """Return what each pool of calls may have with so many nodes."""
    calls = math.ceil(nodes * CALLS_AT_ONCE / LIGHT_CONNECTIONS)
    return PoolLimits(
        connections=max(DEFAULT_LIMITS.connections, math.ceil(calls / STREAMS_DEFAULT)),
        waiting=max(DEFAULT_LIMITS.waiting, calls),
    )


def connections_of(nodes: int, *, own_watches: bool) -> int:
    """Return how many connections so many nodes may have at the same time."""
    count = LIGHT_CONNECTIONS * call_limits(nodes).connections
    if own_watches:
        watches = math.ceil(nodes * WATCHES_OF_A_NODE / STREAMS_DEFAULT)
        count += watches + math.ceil(nodes / WATCH_POOL_NODES)  # the last of a pool is half full
    return count


class LightPools:
    """The numbers of the pools. `nodes` is the most that there will be."""

    __slots__ = ("_calls", "_nodes", "_user_agents", "_watches")

    def __init__(self, nodes: int, user_agents: int, *, own_watches: bool) -> None:
        self._nodes = nodes
        self._user_agents = user_agents
        self._calls = LIGHT_CONNECTIONS * user_agents
        self._watches = math.ceil(nodes / WATCH_POOL_NODES) if own_watches else 0

    def open(self, open_pool: Callable[[int, PoolLimits], object]) -> None:
        """Open all of them; each dials at its first request."""
        limits = call_limits(self._nodes)
        for pool in range(self._calls):
            open_pool(pool, limits)
        for pool in range(self._watches * self._user_agents):
            open_pool(self._calls + pool, WATCH_LIMITS)

    def of(self, node: NodeId, user_agent: int) -> tuple[int, int]:
        """Return the pools of a node's calls and of its watches."""
        pool = node % LIGHT_CONNECTIONS + LIGHT_CONNECTIONS * user_agent
        if not self._watches:
            return pool, pool
        return pool, self._calls + node % self._watches + self._watches * user_agent

    def user_agent_of(self, pool: int) -> int:
        """Return the number of a pool's user agent."""
        if pool < self._calls:
            return pool // LIGHT_CONNECTIONS
        return (pool - self._calls) // self._watches
