"""What can go wrong between kubelets and the API server: `inject` and `heal`, as in a real run.

A fault that is an instant (a lost connection, a compaction) heals by doing nothing.
"""

from typing import NamedTuple, Protocol

from fake_transport import FakeTransport
from fakes import Answer, status_body

from fleet.clock import NS_PER_S


class Fault(Protocol):
    def inject(self, transport: FakeTransport) -> None: ...
    def heal(self, transport: FakeTransport) -> None: ...


class ApiServerAnswers(NamedTuple):
    """Every request is answered with an error; open watches go on."""

    code: int
    retry_after_s: int = -1

    def inject(self, transport: FakeTransport) -> None:
        body = status_body(self.code, "ServiceUnavailable")
        transport.server.answers = Answer(self.code, body, self.retry_after_s)

    def heal(self, transport: FakeTransport) -> None:
        transport.server.answers = None


class ConnectionsRefused(NamedTuple):
    """The API server is down: what is open is lost, nothing new connects."""

    def inject(self, transport: FakeTransport) -> None:
        transport.is_refusing = True
        transport.drop()

    def heal(self, transport: FakeTransport) -> None:
        transport.is_refusing = False


class ConnectionsDropped(NamedTuple):
    """Every connection breaks once; what was on its way to the server still gets there."""

    def inject(self, transport: FakeTransport) -> None:
        transport.drop()

    def heal(self, transport: FakeTransport) -> None:
        del transport


class RequestsVanish(NamedTuple):
    """Nothing is answered, and nothing fails before its time-out."""

    def inject(self, transport: FakeTransport) -> None:
        transport.is_silent = True

    def heal(self, transport: FakeTransport) -> None:
        transport.is_silent = False


class AnswersSlow(NamedTuple):
    """Every request takes longer by so many seconds."""

    by_s: float

    def inject(self, transport: FakeTransport) -> None:
        transport.slow_ns = int(self.by_s * NS_PER_S)

    def heal(self, transport: FakeTransport) -> None:
        transport.slow_ns = 0


class VersionsExpired(NamedTuple):
    """History is compacted and watches end: whoever goes on from a version gets 410."""

    def inject(self, transport: FakeTransport) -> None:
        transport.server.compact()
        transport.server.end_watches()

    def heal(self, transport: FakeTransport) -> None:
        del transport


class WatchesEnded(NamedTuple):
    """The server ends all watches in good order."""

    def inject(self, transport: FakeTransport) -> None:
        transport.server.end_watches()

    def heal(self, transport: FakeTransport) -> None:
        del transport


class Throttled(NamedTuple):
    """So many requests of one verb are answered with 429 and Retry-After: 1."""

    verb: str
    times: int

    def inject(self, transport: FakeTransport) -> None:
        transport.server.throttles[self.verb] = self.times

    def heal(self, transport: FakeTransport) -> None:
        transport.server.throttles.pop(self.verb, None)
