"""The connections of one process: its transports, and how the nodes of fidelity light share them.

    nodes, observer, each kind of agent   a transport each, all to one server, on one loop
    nodes of light: calls    LIGHT_CONNECTIONS pools for each user agent
                    watches  of nodes that have their own: a pool for each WATCH_POOL_NODES of them
                             and user agent

A watch holds its stream for minutes, and a connection has a hundred. In pools of their own watches
never take the stream of a renewal.
"""

import asyncio
import math
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.agents.runner import Agents
from fleet.cluster.credentials import Credentials
from fleet.cluster.identity import Identity
from fleet.errors import UsageError
from fleet.host.reactor_loop import ReactorLoop
from fleet.k8s.effects import NodeId
from fleet.k8s.well_known import NODE_USER
from fleet.profile.agent_behavior import AgentEncoding, AgentModel
from fleet.reactor.reactor import Reactor
from fleet.report.figure import filled
from fleet.report.figures import AgentFigures
from fleet.wire.api.codec import JSON
from fleet.wire.http2.http2_codec import STREAMS_DEFAULT
from fleet.wire.sockets.connection import DEFAULT_LIMITS, ConnectionHealth, PoolLimits, UserAgent
from fleet.wire.sockets.dials import Endpoint
from fleet.wire.sockets.transport import Transport

LIGHT_CONNECTIONS = 2
"""Pools of the calls, each with one connection in quiet times.

Further ones are dialed while these are full. Few, so that the requests of a turn leave in few
writes and come back in few reads; two, so that not all of them hang on one API server of several.
"""
CALLS_AT_ONCE = 2
"""So many calls of each node find a stream at the same moment.

A server that stands still for a while holds the renewal of every node, and what it began besides.
"""
WATCH_POOL_NODES = 256  # few, as a pool dials one connection at a time
WATCH_LIMITS = PoolLimits(connections=1_024)
"""400 watches for each node, most of them of what its pods refer to; also of all shared watches."""
WATCHES_OF_A_NODE = 8  # five that each kubelet has, and room for ConfigMaps and Secrets of its pods


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
        if pool < self._calls:
            return pool // LIGHT_CONNECTIONS
        return (pool - self._calls) // self._watches


ACCEPT = {
    AgentEncoding.JSON: b"application/json",
    AgentEncoding.PROTOBUF: b"application/vnd.kubernetes.protobuf,application/json",
}


def endpoint_of(credentials: Credentials) -> Endpoint:
    """Return where an API server is, and by which proxy it is reached."""
    server_name, proxy = credentials.server_name, credentials.proxy
    return Endpoint(credentials.host, credentials.port, server_name, proxy)


@dataclass(eq=False, repr=False)
class Transports:
    """Makes transports whose answers go to the inbox of the reactor, and keeps them to the end."""

    _credentials: Credentials
    _identity: Identity
    _reactor: Reactor
    _reactor_loop: ReactorLoop
    _health: ConnectionHealth
    _made: list[Transport] = field(default_factory=list)
    _own: list[Transport] = field(default_factory=list)  # with fleet's own credentials
    _agents: dict[str, Transport] = field(default_factory=dict)  # by the name of the agent

    def __post_init__(self) -> None:
        self._secrets = self._credentials.secrets()  # that those in `_own` have
        self._endpoint = endpoint_of(self._credentials)

    def own(self, user_agent: UserAgent, accept: bytes, group: bytes) -> Transport:
        """Make one with fleet's own credentials, to act as nodes or as fleet itself."""
        context, authorization = self._credentials.ssl_context(), self._credentials.authorization()
        made = self.to(self._endpoint, context, authorization, user_agent, group, accept)
        self._own.append(made)
        return made

    def anonymous(self, user_agent: UserAgent, accept: bytes) -> Transport:
        """Make one whose pools bring credentials of their own."""
        context = self._credentials.ssl_context(with_client_certificate=False)
        return self.to(self._endpoint, context, None, user_agent, accept=accept)

    def of_agents(self, model: AgentModel) -> Transport:
        """Make the one of all agents of a kind, which the reactor flushes."""

        def user_agent(node: int) -> bytes:
            return self._reactor.entries[node].caller.template.model.filled(model.user_agent)

        group = self._identity.group if model.user.startswith(NODE_USER) else b""
        made = self._agents[model.name] = self.own(user_agent, ACCEPT[model.encoding], group)
        self._reactor.wires.all.append(made)
        return made

    def to(
        self,
        endpoint: Endpoint,
        context: ssl.SSLContext,
        authorization: bytes | None,
        user_agent: UserAgent,
        group: bytes = b"",
        accept: bytes = JSON.accept,
    ) -> Transport:
        """Make one to an endpoint that need not be the cluster's, as with a bootstrap token."""
        made = Transport(
            endpoint,
            context,
            user_agent=user_agent,
            authorization=authorization,
            accept=accept,
            now_ns=self._reactor.clock.now_ns,
            inbox=self._reactor.inbox,
            on_ready=self._reactor_loop.wake,
            loop=asyncio.get_running_loop(),
            impersonate_group=group,
            health=self._health,
        )
        self._made.append(made)
        return made

    def use_fresh_credentials(self) -> None:
        """Let what acts with fleet's own credentials have those that are valid now."""
        credentials, before = self._credentials, self._secrets
        authorization, certificate = fresh = credentials.secrets()
        pair = credentials.client_certificate if certificate != before[1] else None
        if pair is not None:
            try:
                credentials.ssl_context()
            except UsageError:  # its file is being written; what there is goes on
                return
        self._secrets = fresh
        for each in self._own:
            if pair is not None:
                each.use_certificate(pair)
            if authorization is not None and authorization != before[0]:
                each.set_authorization(authorization)

    def own_limits(self) -> Counter[str]:
        """Return how often all of them hit which limit of fleet's own."""
        return sum((each.stats.own_limits for each in self._made), Counter[str]())

    def agents_closed_slow(self) -> int:
        """Return how many watches of agents ended because we read too slowly."""
        return sum(each.stats.closed_slow for each in self._agents.values())

    def agent_figures(self, agents: Agents) -> dict[str, AgentFigures]:
        found = {}
        for name, kind in agents.kinds.items():
            stats = self._agents[name].stats
            figures = found[name] = filled(AgentFigures, kind.counts)
            figures.received_bytes, figures.sent_bytes = stats.bytes_in, stats.bytes_out
        return found

    async def close(self) -> None:
        for each in self._made:
            await each.close()
