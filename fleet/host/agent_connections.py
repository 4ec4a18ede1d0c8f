"""The connections of node agents: a transport for each kind, with its user agent and encoding."""

from collections.abc import Callable

from fleet.agents.runner import Agents
from fleet.cluster.identity import Identity
from fleet.k8s.well_known import NODE_USER
from fleet.profile.agent_behavior import AgentEncoding, AgentModel
from fleet.profile.node_model import NodeModel
from fleet.report.figure import filled
from fleet.report.figures import AgentFigures
from fleet.wire.api.watch import Wire
from fleet.wire.sockets.transport import Transport, UserAgent

ACCEPT = {
    AgentEncoding.JSON: b"application/json",
    AgentEncoding.PROTOBUF: b"application/vnd.kubernetes.protobuf,application/json",
}

NewTransport = Callable[[UserAgent, bytes, bytes], Transport]
"""Make a transport of user agent, Accept header and the group that is named beside the user."""


class AgentConnections:
    """Makes transports as kinds of agents come up, and keeps them to the end of the run."""

    def __init__(
        self,
        identity: Identity,
        model_of: Callable[[int], NodeModel],
        new_transport: NewTransport,
        wires: list[Wire],
    ) -> None:
        self._identity = identity
        self._model_of = model_of  # by the number of a node
        self._new_transport = new_transport
        self._wires = wires  # of the reactor, to be flushed
        self._transports: dict[str, Transport] = {}

    def figures(self, agents: Agents) -> dict[str, AgentFigures]:
        """Return what the agents of each name did so far."""
        found = {}
        for name, kind in agents.kinds.items():
            counts, stats = kind.counts, self._transports[name].stats
            figures = found[name] = filled(AgentFigures, counts)
            figures.received_bytes, figures.sent_bytes = stats.bytes_in, stats.bytes_out
        return found

    def closed_slow(self) -> int:
        """Return how many watches ended because we read too slowly."""
        return sum(each.stats.closed_slow for each in self._transports.values())

    def set_authorization(self, value: bytes) -> None:
        """Let new requests carry a rotated token."""
        for transport in self._transports.values():
            transport.set_authorization(value)

    async def close(self) -> None:
        """Close every connection."""
        for transport in self._transports.values():
            await transport.close()

    def new(self, model: AgentModel) -> Transport:
        """Make the transport of one kind of agent."""

        def user_agent(node: int) -> bytes:
            return self._model_of(node).filled(model.user_agent)

        group = self._identity.group if model.user.startswith(NODE_USER) else b""
        transport = self._new_transport(user_agent, ACCEPT[model.encoding], group)
        self._transports[model.name] = transport
        self._wires.append(transport)
        return transport
