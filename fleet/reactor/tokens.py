"""Whose an answer is: what a request leaves the reactor with, and what comes back with it.

An `ApiCall` is a kubelet's; `Delayed` and `Unsent` carry one. An `Opening` is of a list-watch, an
`AgentCall` of an agent, and an `Errand` of nobody but itself.
"""

from fleet.k8s.effects import ApiCall
from fleet.reactor.calls import Delayed, Unsent
from fleet.reactor.roster import NOBODY
from fleet.wire.api.watch import Opening, Reflector


class Errand:
    """A request that no kubelet made: the token takes the answer itself."""

    __slots__ = ()

    def on_message(self, message: object, now_ns: int) -> None:
        """Take what the transport brought."""
        raise NotImplementedError


def owner_of(token: object) -> int:
    """Return the node whose kubelet a request is of, NOBODY for none."""
    if type(token) is ApiCall:
        return token.node
    if type(token) is Delayed or type(token) is Unsent:
        return token.call.node
    if type(token) is Opening and isinstance(token.reflector, Reflector):
        return token.reflector.node
    return NOBODY
