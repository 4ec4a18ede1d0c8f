"""How the transports of one process are made: all lead to one server, on one loop."""

import asyncio
import ssl
from collections import Counter

from fleet.cluster.credentials import Credentials
from fleet.host.reactor_loop import ReactorLoop
from fleet.reactor.reactor import Reactor
from fleet.wire.api.codec import JSON
from fleet.wire.sockets.connection import ConnectionHealth
from fleet.wire.sockets.transport import Endpoint, Transport, UserAgent


def endpoint_of(credentials: Credentials) -> Endpoint:
    """Return where an API server is, and by which proxy it is reached."""
    server_name, proxy = credentials.server_name, credentials.proxy
    return Endpoint(credentials.host, credentials.port, server_name, proxy)


class Transports:
    """Makes transports whose answers go to the inbox of the reactor."""

    def __init__(
        self,
        credentials: Credentials,
        reactor: Reactor,
        reactor_loop: ReactorLoop,
        health: ConnectionHealth,
    ) -> None:
        self._credentials = credentials
        self._reactor = reactor
        self._reactor_loop = reactor_loop
        self._health = health
        self._made: list[Transport] = []
        self._endpoint = endpoint_of(credentials)

    @property
    def authority(self) -> str:
        """Host and port of the API server."""
        return self._endpoint.authority().decode()

    def own(self, user_agent: UserAgent, accept: bytes, group: bytes) -> Transport:
        """Make one with fleet's own credentials, to act as nodes or as fleet itself."""
        context, authorization = self._credentials.ssl_context(), self._credentials.authorization()
        return self.to(self._endpoint, context, authorization, user_agent, group, accept)

    def anonymous(self, user_agent: UserAgent, accept: bytes) -> Transport:
        """Make one whose pools bring credentials of their own."""
        context = self._credentials.ssl_context(with_client_certificate=False)
        return self.to(self._endpoint, context, None, user_agent, accept=accept)

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

    def own_limits(self) -> Counter[str]:
        """Return how often all of them hit which limit of fleet's own."""
        return sum((each.stats.own_limits for each in self._made), Counter[str]())
