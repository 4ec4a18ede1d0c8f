"""What can go wrong between kubelets and the API server: `inject` and `heal`, as in a real run.

A fault that is an instant (a lost connection, a compaction) heals by doing nothing. What a
connection suffers can be that of some nodes only; faults may overlap, and each heals by itself.
"""

from typing import NamedTuple, Protocol

from fleet.clock import NS_PER_S
from world.api_server import Answer, refusal
from world.transport import Pools, SimTransport


class Fault(Protocol):
    def inject(self, transport: SimTransport) -> None: ...
    def heal(self, transport: SimTransport) -> None: ...


class ApiServerAnswers(NamedTuple):
    """Every request is answered with an error; open watches go on."""

    code: int
    retry_after_s: int = -1
    pools: Pools = None

    def _of(self, transport: SimTransport) -> tuple[Pools, Answer]:
        answer = refusal(self.code, "ServiceUnavailable")._replace(retry_after_s=self.retry_after_s)
        return self.pools, transport.server.encoded(answer)

    def inject(self, transport: SimTransport) -> None:
        transport.refusals.append(self._of(transport))

    def heal(self, transport: SimTransport) -> None:
        transport.refusals.remove(self._of(transport))


class ConnectionsRefused(NamedTuple):
    """The API server is down: what is open is lost, nothing new connects."""

    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.refusing.append(self.pools)
        transport.drop(self.pools)

    def heal(self, transport: SimTransport) -> None:
        transport.refusing.remove(self.pools)


class ConnectionsDropped(NamedTuple):
    """Every connection breaks once; what was on its way to the server still gets there."""

    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.drop(self.pools)

    def heal(self, transport: SimTransport) -> None:
        del transport


class RequestsVanish(NamedTuple):
    """Nothing is answered, and nothing fails before its time-out."""

    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.silent.append(self.pools)

    def heal(self, transport: SimTransport) -> None:
        transport.silent.remove(self.pools)


class AnswersSlow(NamedTuple):
    """Every request takes longer by so many seconds."""

    by_s: float
    pools: Pools = None

    def inject(self, transport: SimTransport) -> None:
        transport.slow.append((self.pools, int(self.by_s * NS_PER_S)))

    def heal(self, transport: SimTransport) -> None:
        transport.slow.remove((self.pools, int(self.by_s * NS_PER_S)))


class EventsLate(NamedTuple):
    """Every event of a watch comes later by so many seconds; answers do not."""

    by_s: float

    def inject(self, transport: SimTransport) -> None:
        transport.events_late_ns += int(self.by_s * NS_PER_S)

    def heal(self, transport: SimTransport) -> None:
        transport.events_late_ns -= int(self.by_s * NS_PER_S)


class ClockSteps(NamedTuple):
    """The wall clock of the fleet's machine is set forward by so many seconds, and right again."""

    by_s: float

    def inject(self, transport: SimTransport) -> None:
        transport.clock.stepped_ns = int(self.by_s * NS_PER_S)

    def heal(self, transport: SimTransport) -> None:
        transport.clock.stepped_ns = 0


class VersionsExpired(NamedTuple):
    """History is compacted and watches end: a client that goes on from a version gets 410."""

    def inject(self, transport: SimTransport) -> None:
        transport.server.compact()
        transport.server.end_watches()

    def heal(self, transport: SimTransport) -> None:
        del transport


class WatchesEnded(NamedTuple):
    """The server ends all watches in good order."""

    def inject(self, transport: SimTransport) -> None:
        transport.server.end_watches()

    def heal(self, transport: SimTransport) -> None:
        del transport


class Throttled(NamedTuple):
    """So many requests of one verb are answered with 429 and Retry-After: 1."""

    verb: str
    times: int

    def inject(self, transport: SimTransport) -> None:
        transport.server.throttles[self.verb] = self.times

    def heal(self, transport: SimTransport) -> None:
        transport.server.throttles.pop(self.verb, None)
